//! `posthaste dns`: the DNS records of a domain.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_config::{Config, acme_file};
use posthaste_dns::{FoundRecord, OwnDomain, RecordSource, Resolver, WEB_NAMES, WantedRecord};
use posthaste_mta_sts::seen_by_https;
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::dns_check::CheckArgs;
use crate::own_domain::{HTTPS, host_certificate, own_domain, quote, quoted_value};
use crate::queue::AnyError;
use crate::terminal::{complain, harmless, print, print_json};

#[derive(Subcommand)]
pub enum DnsCommand {
    /// Print the DNS records that a domain needs, beside those that it has
    Records(RecordsArgs),
    /// Ask the domain's own servers for its records; exit status 1 if one is wrong or missing
    Check(CheckArgs),
}

#[derive(Args)]
pub struct RecordsArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// The domain
    domain: String,
    /// Print the missing records as lines of a zone file
    #[arg(long, conflicts_with = "json")]
    zone: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The port at which this server answers others by HTTPS
    #[arg(long, hide = true, value_name = "PORT", default_value_t = HTTPS)]
    https_port: u16,
}

pub fn run(command: DnsCommand) -> Result<ExitCode, AnyError> {
    match command {
        DnsCommand::Records(args) => args.run().map(|()| ExitCode::SUCCESS),
        DnsCommand::Check(args) => args.run(),
    }
}

impl RecordsArgs {
    fn run(self) -> Result<(), AnyError> {
        let loaded = self.config.load()?;
        let own = own_domain(&loaded, &self.domain)?;
        let certificate = host_certificate(&loaded)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Within it: the resolver has tasks.
        let (own, wanted) = runtime.block_on(async {
            let resolver = Resolver::new(&loaded.config.dns)?;
            let source = RecordSource::Resolver(&resolver);
            let ca_file = &loaded.config.acme.ca_file;
            let own = seen_by_https(&own, source, self.https_port, ca_file).await;
            let mut wanted = own.wanted(source).await?;
            wanted.extend(certificate.records(source).await);
            Ok::<_, AnyError>((own, wanted))
        })?;
        let web_server = WebServer::of(&own, &loaded.config);
        if self.json {
            let all = json!({ "records": wanted, "web_server": web_server.as_ref().map(WebServer::json) });
            return Ok(print_json(&format!("{all:#}\n"))?);
        }
        if self.zone {
            return Ok(print(&wanted.iter().map(|record| record.zone_line() + "\n").collect::<String>())?);
        }
        let of_web_server = web_server.map_or_else(String::new, |web_server| web_server.text());
        print(&(wanted.iter().map(line).collect::<String>() + &of_web_server))?;
        if own.keys.is_empty() {
            complain(&format!("{0} has no DKIM key: `posthaste dkim new {0}` makes one", own.domain));
        }
        Ok(())
    }
}

/// A web server in front of ours that does not serve our MTA-STS policy yet.
struct WebServer {
    /// The host names for which it must pass requests to us, at ports 80 and 443.
    names: Vec<String>,
    /// The configuration lines for nginx.
    nginx: String,
    /// Pattern of the certificates' files, if an authority signs them.
    certificates: Option<String>,
}

impl WebServer {
    fn of(own: &OwnDomain, config: &Config) -> Option<Self> {
        let address = own.behind_web.as_ref().filter(|_| own.has_web && own.policy_id.is_none())?;
        let names = [own.host.clone()].into_iter().chain(WEB_NAMES.map(|name| format!("{name}.{}", own.domain)));
        let nginx = format!("{NGINX_LOCATION}    proxy_pass http://{address};\n    proxy_set_header Host $host;\n}}\n");
        let certificates = config.acme.enabled.then(|| acme_file(&config.acme_dir(), "NAME").display().to_string());
        Some(Self { names: names.collect(), nginx, certificates })
    }

    fn text(&self) -> String {
        let Self { names, nginx, certificates } = self;
        let names = names.join(", ");
        let mut text = format!("\nFor the web server of this host (nginx), at ports 80 and 443 of {names}:\n{nginx}");
        if let Some(file) = certificates {
            text += &format!("Certificates of these names, once obtained: {file}\n");
        }
        text
    }

    fn json(&self) -> Value {
        let Self { names, nginx, certificates } = self;
        json!({ "names": names, "nginx": nginx, "certificates": certificates })
    }
}

/// The paths that the HTTP listener answers without a token.
const NGINX_LOCATION: &str = "location ~ ^/(\\.well-known/(acme-challenge/|autoconfig/|mta-sts\\.txt$)|mail/) {\n";

fn line(record: &WantedRecord) -> String {
    let WantedRecord { name, kind, found, .. } = record;
    let found = match found {
        FoundRecord::Same => "  is there".to_owned(),
        FoundRecord::Nothing if *kind == "TLSA" => "  (the next key is not used without it)".to_owned(),
        FoundRecord::Nothing if *kind == "PTR" => "  (the owner of the address sets it)".to_owned(),
        FoundRecord::Nothing => String::new(),
        FoundRecord::Other(other) => format!("  replaces {}", quote(kind, &harmless(other))),
        FoundRecord::Unknown(why) => format!("  ({})", harmless(why)),
    };
    format!("{name}.  {kind}  {}{found}\n", quoted_value(record))
}
