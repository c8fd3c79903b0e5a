//! Certificates from an authority: from the configuration to `posthaste-acme`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use posthaste_acme::{
    AcmeError, AcmeHandle, AcmeSettings, LookupAnswer, LookupError, NameLookup, NameOutcome, Ports, Way, start,
};
use posthaste_dns::{Resolver, ask_own_servers};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::config::certificate_lists::OwnCertificates;
use posthaste_config::{Config, Listener, ListenerTls};

/// Files of certificates that were obtained, or will be.
pub(crate) fn files(config: &Config) -> impl Iterator<Item = PathBuf> {
    let dir = config.acme_dir();
    config.acme_names().into_iter().map(move |name| posthaste_acme::certificate_file(&dir, &name))
}

/// The worker, if the configuration wants one. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Acme(Arc<Mutex<Option<Running>>>);

struct Running {
    settings: AcmeSettings,
    /// DNS settings of its look-ups.
    dns: posthaste_config::Dns,
    handle: AcmeHandle,
    working: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.working.abort();
    }
}

impl Acme {
    /// Applies the configuration. A worker with unchanged settings only retries now. Blocks; needs a tokio runtime.
    ///
    /// # Errors
    /// A message: local files are unusable. Present certificates stay in force.
    pub fn apply(&self, config: &Config, own: &OwnCertificates) -> Result<(), String> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(settings) = settings(config) else {
            *running = None;
            own.obtained.set([]);
            return Ok(());
        };
        if let Some(running) = running.as_ref().filter(|of| of.settings == settings && of.dns == config.dns) {
            running.handle.try_at_once();
            return Ok(());
        }
        // One after the other: they have one directory.
        *running = None;
        let resolver = crate::config::resolver::resolver(config).map_err(|error| format!("dns: {error}"))?;
        let lookup = Arc::new(ByDns { resolver, config: config.clone() });
        let obtained = Arc::clone(&own.obtained);
        let started = start(settings.clone(), own.challenges.clone(), lookup, obtained);
        let (handle, working) = started.map_err(|error: AcmeError| error.to_string())?;
        *running = Some(Running { settings, dns: config.dns.clone(), handle, working });
        Ok(())
    }

    /// Orders certificates now; with `all`, also those that are not due. Returns the result for each name.
    ///
    /// # Errors
    /// A message for the operator.
    pub async fn renew(&self, all: bool) -> Result<Vec<Value>, String> {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|of| of.handle.clone());
        let handle = handle.ok_or("the running server has no [acme] with enabled = true")?;
        let outcomes = handle.renew(all).await.ok_or("too many requests for certificates at once: try again later")?;
        let line = |of: NameOutcome| json!({ "name": of.name, "new": of.is_new, "error": of.why, "about_key": of.about_key, "ends": of.ends });
        Ok(outcomes.into_iter().map(line).collect())
    }

    /// Ends the worker.
    pub fn stop(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn settings(config: &Config) -> Option<AcmeSettings> {
    let acme = Some(&config.acme).filter(|acme| acme.enabled)?;
    Some(AcmeSettings {
        names: config.acme_names(),
        directory: acme.directory.clone(),
        ca_file: acme.ca_file.clone(),
        contact: acme.contact.clone(),
        dir: config.acme_dir(),
        way: way(config),
        addresses: acme.addresses.clone(),
        new_key: acme.new_key,
        ports: Ports::default(),
    })
}

/// TLS at port 443, else HTTP at port 80, else the program, else a web server that forwards requests to this one.
fn way(config: &Config) -> Way {
    let has = |is: fn(&Listener) -> bool| config.listeners.iter().any(is);
    match &config.acme.dns_program {
        _ if has(validates_names) => Way::Tls,
        _ if has(|of| of.is_http() && of.tls_mode() == ListenerTls::Off && of.has_port(80)) => Way::Http,
        Some(program) => Way::Dns(program.clone()),
        None => Way::Http,
    }
}

/// True for a listener where authorities validate names by TLS.
pub(crate) fn validates_names(listener: &Listener) -> bool {
    listener.tls_mode() == ListenerTls::Implicit && listener.has_port(443)
}

/// The servers of the names' own zones, and addresses that the configuration gives.
struct ByDns {
    resolver: Resolver,
    config: Config,
}

impl NameLookup for ByDns {
    fn addresses<'a>(&'a self, name: &'a str) -> LookupAnswer<'a, Vec<IpAddr>> {
        Box::pin(async move {
            if self.resolver.has_fixed_hosts(name) {
                let found = self.resolver.addresses(name).await;
                return Ok(found.map_err(|error| unknown(&error))?.all().to_vec());
            }
            let dns = self.config.dns.clone();
            let name = name.to_owned();
            apart(async move || {
                // A resolver may remember for hours that there was no record.
                let found = ask_own_servers(&dns, DNS, async |source| Ok(source.addresses(&name).await)).await;
                let found = found.map_err(|error| unknown(&error))?.map_err(|error| unknown(&error))?;
                let missing = || LookupError::Missing(format!("{name} has no address in DNS"));
                if found.is_empty() { Err(missing()) } else { Ok(found) }
            })
            .await
        })
    }

    fn allows_key<'a>(&'a self, name: &'a str, key: &'a [u8]) -> LookupAnswer<'a, ()> {
        Box::pin(async move {
            if !name.eq_ignore_ascii_case(&self.config.host_name) {
                return Ok(());
            }
            let config = self.config.clone();
            let key = key.to_vec();
            apart(async move || check_tlsa(&config, &key).await).await
        })
    }
}

fn unknown(error: &dyn std::fmt::Display) -> LookupError {
    LookupError::Unknown(error.to_string())
}

/// Runs a query on its own thread: the future cannot move between threads.
async fn apart<T: Send + 'static>(
    ask: impl AsyncFnOnce() -> Result<T, LookupError> + Send + 'static,
) -> Result<T, LookupError> {
    let asked = spawn_blocking(move || Handle::current().block_on(ask())).await;
    asked.map_err(|error| unknown(&error))?
}

/// Checks at the servers of our own zone that senders with DANE accept the host with this key, a SubjectPublicKeyInfo in DER.
async fn check_tlsa(config: &Config, key: &[u8]) -> Result<(), LookupError> {
    let certificate = config.host_certificate();
    let ask = async |source: posthaste_dns::RecordSource<'_>| Ok(source.tlsa(&config.host_name, SMTP).await);
    let found = ask_own_servers(&config.dns, DNS, ask).await.map_err(|error| unknown(&error))?;
    if certificate.outlasts(&found.map_err(|error| unknown(&error))?, key) {
        return Ok(());
    }
    let why = format!("the TLSA records of _{SMTP}._tcp.{} do not name the next one", config.host_name);
    Err(LookupError::Missing(why))
}

const DNS: u16 = 53;
/// Mail between hosts: DANE is for that port.
const SMTP: u16 = 25;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn files_are_where_the_configuration_looks_for_them() {
        use posthaste_config::{acme_file, acme_next_key_file};

        let (dir, name) = (Path::new("acme"), "mx.example.org");
        assert_eq!(posthaste_acme::certificate_file(dir, name), acme_file(dir, name));
        assert_eq!(posthaste_acme::next_key_file(dir, name), acme_next_key_file(dir, name));
    }

    #[test]
    fn the_way_follows_from_the_listeners() {
        let check = |more: &str, expected: Way| {
            let text = format!("host_name = 'mx.example.org'\n[acme]\nenabled = true\n{more}");
            let config = Config::parse(Path::new("x"), &text).unwrap();
            assert_eq!(way(&config), expected, "{more}");
        };
        let (https, http) = (
            "[[listener]]\naddress = '[::]:443'\nprotocol = 'http'\n",
            "[[listener]]\naddress = '[::]:80'\nprotocol = 'http'\n",
        );
        let behind = "[[listener]]\naddress = '127.0.0.1:8025'\nprotocol = 'http'\n";
        let program = "dns_program = '/bin/p'\n";
        check(&format!("{program}{http}{https}"), Way::Tls);
        check(&format!("{program}{http}"), Way::Http);
        check(&format!("{program}{behind}"), Way::Dns("/bin/p".into()));
        check(behind, Way::Http);
        check("[[listener]]\naddress = '[::]:25'\n", Way::Http);
    }
}
