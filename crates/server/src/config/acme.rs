//! Certificates from an authority: from the configuration to `posthaste-acme`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use posthaste_acme::{AcmeError, AcmeHandle, AcmeSettings, AddressLookup, NameOutcome, Ports, Way, start};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::config::own_certificates::OwnCertificates;
use posthaste_config::{Config, Listener, ListenerTls};

/// Directory of certificates, the account and failures.
pub(crate) fn dir(config: &Config) -> PathBuf {
    config.storage.data.join("acme")
}

/// Files of certificates that were obtained, or will be.
pub(crate) fn files(config: &Config) -> impl Iterator<Item = PathBuf> {
    let dir = dir(config);
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
    /// Puts the configuration in force: a worker with the same settings only tries at once. Blocks; needs a tokio runtime.
    ///
    /// # Errors
    /// A sentence: files here cannot be used. Certificates that were in force stay.
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
        let resolver = crate::config::start_files::resolver(config).map_err(|error| format!("dns: {error}"))?;
        let resolver = Arc::new(resolver);
        let addresses = Arc::new(ByResolver(Box::new(move |name| {
            let resolver = Arc::clone(&resolver);
            Box::pin(async move {
                let found = resolver.addresses(&name).await.map_err(|error| error.to_string())?;
                Ok(found.all().to_vec())
            })
        })));
        let obtained = Arc::clone(&own.obtained);
        let started = start(settings.clone(), own.challenges.clone(), addresses, obtained);
        let (handle, working) = started.map_err(|error: AcmeError| error.to_string())?;
        *running = Some(Running { settings, dns: config.dns.clone(), handle, working });
        Ok(())
    }

    /// Tries at once, and says of each name what came of it.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn renew(&self, all: bool) -> Result<Vec<Value>, String> {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|of| of.handle.clone());
        let handle = handle.ok_or("the running server has no [acme] with enabled = true")?;
        let outcomes = handle.renew(all).await.ok_or("too many ask for certificates now")?;
        let line = |of: NameOutcome| json!({ "name": of.name, "new": of.is_new, "error": of.why, "ends": of.ends });
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
        dir: dir(config),
        way: way(config),
        addresses: acme.addresses.clone(),
        new_key: acme.new_key,
        ports: Ports::default(),
    })
}

/// At port 443 by TLS, else at port 80 by HTTP, else by the program, else by a web server that passes requests on to us.
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

type LookUp = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send>>;

/// The resolver of mail hosts.
struct ByResolver(Box<dyn Fn(String) -> LookUp + Send + Sync>);

impl AddressLookup for ByResolver {
    fn of<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        (self.0)(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

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
