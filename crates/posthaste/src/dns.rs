//! `posthaste dns`: the DNS records of a domain.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_config::{Config, Listener, ListenerAuth, ListenerProtocol, ListenerTls, Loaded};
use posthaste_directory::Route;
use posthaste_directory::names::folded_domain;
use posthaste_dkim::{KeyDirectory, KeyRecord, KeyState};
use posthaste_dns::{FoundRecord, OwnDomain, RecordSource, Resolver, WantedRecord};
use posthaste_smtp::ForwardPath;
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::dns_check::CheckArgs;
use crate::policy_file::{HTTPS, with_policy};
use crate::queue::AnyError;
use crate::spool_access::become_owner;
use crate::terminal::{complain, harmless, print, print_json};

#[derive(Subcommand)]
pub enum DnsCommand {
    /// Print the DNS records that a domain needs, beside those that it has
    Records(RecordsArgs),
    /// Ask the domain's own servers whether its records are there; exit status 1 if one is not as it should be
    Check(CheckArgs),
}

#[derive(Args)]
pub struct RecordsArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// The domain
    domain: String,
    /// Print lines of a zone file, without what is there
    #[arg(long, conflicts_with = "json")]
    zone: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Within it: the resolver has tasks.
        let wanted = runtime.block_on(async {
            let resolver = Resolver::new(&loaded.config.dns)?;
            let source = RecordSource::Resolver(&resolver);
            let own = with_policy(&own, source, &loaded.config, HTTPS).await;
            Ok::<_, AnyError>(own.wanted(source).await?)
        })?;
        if self.json {
            return Ok(print_json(&format!("{:#}\n", json!(wanted.iter().map(of_record).collect::<Vec<_>>())))?);
        }
        if self.zone {
            return Ok(print(&wanted.iter().map(|record| record.zone_line() + "\n").collect::<String>())?);
        }
        print(&wanted.iter().map(line).collect::<String>())?;
        if own.keys.is_empty() {
            complain(&format!("{0} has no DKIM key: `posthaste dkim new {0}` makes one", own.domain));
        }
        Ok(())
    }
}

/// The domain, with its data from the configuration and the keys.
pub fn own_domain(loaded: &Loaded, domain: &str) -> Result<OwnDomain, AnyError> {
    let (config, directory) = (&loaded.config, &loaded.directory);
    let name = folded_domain(domain.trim_end_matches('.')).map(|name| name.into_owned());
    let name = name.filter(|name| posthaste_dkim::is_domain(name));
    let name = name.ok_or_else(|| format!("`{}` is no domain", harmless(domain)))?;
    let host = folded_domain(&config.host_name).map_or_else(|| config.host_name.clone(), |host| host.into_owned());
    // An account of its own, if there is one; postmaster is always taken.
    let reports = format!("reports@{name}");
    let is_taken = ForwardPath::parse(&format!("<{reports}>"))
        .is_ok_and(|path| matches!(directory.recipient(&path), Route::Local(_)));
    let reports = if is_taken { reports } else { format!("postmaster@{name}") };
    // A slip of the pen, published, leads mail here that is refused.
    if !directory.is_ours(&name) {
        complain(&format!("{name} is not received here: no [[domain]] of the configuration has this name"));
    }
    Ok(OwnDomain {
        keys: keys(config, &name)?,
        domain: name,
        host,
        reports,
        services: services(config),
        has_web: config.listeners.iter().any(is_web),
        policy_id: None,
    })
}

/// Selectors and records of the keys that sign now or next.
fn keys(config: &Config, domain: &str) -> Result<Vec<(String, String)>, AnyError> {
    if config.dkim.dir.is_dir() {
        become_owner(&config.dkim.dir)?;
    }
    let mut records = Vec::new();
    for key in KeyDirectory::new(&config.dkim.dir).keys(domain)? {
        match &key.file {
            Ok(file) if file.state != KeyState::Old => {
                records.push((key.selector, KeyRecord::of(&file.key).to_string()));
            }
            Ok(_) => {}
            Err(why) => complain(&format!("{}: {}", key.path.display(), harmless(why))),
        }
    }
    Ok(records)
}

/// True for an HTTPS listener that is open to other hosts.
fn is_web(listener: &Listener) -> bool {
    listener.protocol == ListenerProtocol::Http && listener.tls_mode() == ListenerTls::Implicit && !listener.is_local()
}

/// Services with TLS from the first octet, at the first port of each.
fn services(config: &Config) -> Vec<(&'static str, u16)> {
    let name = |listener: &Listener| match listener.protocol {
        _ if listener.tls != Some(ListenerTls::Implicit) => None,
        ListenerProtocol::Imap => Some("_imaps"),
        ListenerProtocol::Pop3 => Some("_pop3s"),
        ListenerProtocol::Smtp if listener.auth_mode(None) != ListenerAuth::Off => Some("_submissions"),
        _ => None,
    };
    let mut services: Vec<(&'static str, u16)> = Vec::new();
    for listener in &config.listeners {
        let port = listener.socket.address.as_deref().and_then(|address| address.rsplit(':').next()?.parse().ok());
        if let (Some(name), Some(port)) = (name(listener), port)
            && !services.iter().any(|(known, _)| *known == name)
        {
            services.push((name, port));
        }
    }
    services
}

pub fn of_record(record: &WantedRecord) -> Value {
    let WantedRecord { name, kind, value, found } = record;
    let (state, other) = match found {
        FoundRecord::Same => ("there", None),
        FoundRecord::Nothing => ("missing", None),
        FoundRecord::Other(other) => ("differs", Some(other)),
        FoundRecord::Unknown(why) => ("unknown", Some(why)),
    };
    json!({ "name": name, "type": kind, "value": value, "state": state, "found": other })
}

/// The record's data in zone file syntax, TXT in quotes.
pub fn quoted_value(record: &WantedRecord) -> String {
    quote(record.kind, &harmless(&record.value))
}

fn quote(kind: &str, text: &str) -> String {
    if kind == "TXT" { format!("\"{text}\"") } else { text.to_owned() }
}

fn line(record: &WantedRecord) -> String {
    let WantedRecord { name, kind, found, .. } = record;
    let found = match found {
        FoundRecord::Same => "  is there".to_owned(),
        FoundRecord::Nothing if *kind == "PTR" => "  (the owner of the address sets it)".to_owned(),
        FoundRecord::Nothing => String::new(),
        FoundRecord::Other(other) => format!("  replaces {}", quote(kind, &harmless(other))),
        FoundRecord::Unknown(why) => format!("  ({})", harmless(why)),
    };
    format!("{name}.  {kind}  {}{found}\n", quoted_value(record))
}
