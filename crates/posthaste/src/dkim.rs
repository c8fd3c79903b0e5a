//! `posthaste dkim`: the signing keys, and their DNS records.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use posthaste_config::Config;
use posthaste_control::Request;
use posthaste_dkim::{Algorithm, KeyDirectory, KeyRecord, KeyState, StoredKey};
use posthaste_dns::{FoundRecord, OwnDomain, RecordSource, ask_own_servers};
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::own_domain::{CUT_OFF, folded, now, tell_if_foreign};
use crate::queue::{AnyError, answer_or_none};
use crate::spool_access::become_owner;
use crate::terminal::{complain, harmless, print, print_json};

#[derive(Subcommand)]
pub enum DkimCommand {
    /// Make the first keys of a domain, which sign at once, and print their DNS records
    New {
        #[command(flatten)]
        of: OfDomain,
        /// Kinds of keys, with commas between: few receivers know ed25519, all know rsa
        #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "rsa,ed25519")]
        keys: Vec<Kind>,
    },
    /// List the keys with their records and, of old ones, the day from which no record is needed; exit status 1 if there are none
    List {
        #[command(flatten)]
        config: ConfigArg,
        /// Only of this domain
        domain: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make the next keys of a domain and print their DNS records; they sign after `activate`
    Rotate(OfDomain),
    /// Sign with the next keys of a domain from now on, once their records are seen at the domain's own servers
    Activate {
        #[command(flatten)]
        of: OfDomain,
        /// Sign whatever DNS says
        #[arg(long)]
        force: bool,
        /// The port at which servers of domains listen
        #[arg(long, hide = true, value_name = "PORT", default_value_t = 53)]
        dns_port: u16,
    },
}

#[derive(Args)]
pub struct OfDomain {
    #[command(flatten)]
    config: ConfigArg,
    /// The domain in From
    domain: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Rsa,
    Ed25519,
}

impl From<Kind> for Algorithm {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Rsa => Algorithm::Rsa,
            Kind::Ed25519 => Algorithm::Ed25519,
        }
    }
}

/// Exit status 1: there is no key to list.
pub fn run(command: DkimCommand) -> Result<ExitCode, AnyError> {
    match command {
        DkimCommand::New { of, mut keys } => {
            keys.sort_by_key(|kind| *kind as u8);
            keys.dedup();
            let algorithms: Vec<Algorithm> = keys.into_iter().map(Algorithm::from).collect();
            tell_if_foreign(&of.config.load()?, &folded(&of.domain)?);
            of.change("made", |store, domain, month, now| store.create(domain, &algorithms, month, now))
        }
        DkimCommand::Rotate(of) => of.change("next", KeyDirectory::rotate),
        DkimCommand::Activate { of, force, dns_port } => {
            if !force {
                check_published(&of, dns_port)?;
            }
            of.change("keys", |store, domain, _, now| store.activate(domain, now))
        }
        DkimCommand::List { config, domain, json } => list(&config, domain.as_deref(), json),
    }
}

/// The directory of keys, and the time after which their records may go.
struct Keys {
    store: KeyDirectory,
    config: Config,
    /// Seconds after a key's last signature for which its record is needed.
    needed_secs: u64,
}

impl Keys {
    /// Opens the keys. Root becomes the server's user first, so that the server can read new keys.
    fn open(config: &ConfigArg) -> Result<Self, AnyError> {
        let config = config.load()?.config;
        let dir = &config.dkim.dir;
        let data = &config.storage.data;
        let owned: &Path = if dir.is_dir() { dir } else { data };
        if !owned.is_dir() {
            let data = data.display();
            return Err(format!("{data}: there is no such directory; the server's first start makes it").into());
        }
        become_owner(owned)?;
        let needed_secs = config.dkim_record_secs();
        Ok(Self { store: KeyDirectory::new(dir), config, needed_secs })
    }

    fn json(&self, domain: &str, key: &StoredKey) -> Value {
        let selector = &key.selector;
        let path = key.path.display().to_string();
        match &key.file {
            Err(why) => json!({ "domain": domain, "selector": selector, "file": path, "error": why }),
            Ok(file) => {
                let needed_until = (file.state == KeyState::Old).then(|| file.since.saturating_add(self.needed_secs));
                json!({
                    "domain": domain,
                    "selector": selector,
                    "file": path,
                    "algorithm": file.key.algorithm().name(),
                    "state": file.state.name(),
                    "since": file.since,
                    "record_needed_until": needed_until,
                    "record": { "name": record_name(domain, selector), "type": "TXT", "value": KeyRecord::of(&file.key).to_string() },
                })
            }
        }
    }

    /// A line for the state of a key, and one for its record.
    fn lines(&self, domain: &str, key: &StoredKey) -> String {
        let selector = &key.selector;
        let file = match &key.file {
            Err(why) => {
                return format!("{domain}  {selector}  cannot be used: {}: {}\n", key.path.display(), harmless(why));
            }
            Ok(file) => file,
        };
        let until = match file.state {
            KeyState::Next => format!("; once the record is there: posthaste dkim activate {domain}"),
            KeyState::Active => String::new(),
            KeyState::Old => {
                format!("; its record is needed until {}", day(file.since.saturating_add(self.needed_secs)))
            }
        };
        let since = if file.since == 0 { String::new() } else { format!(" since {}", day(file.since)) };
        let kind = file.key.algorithm().name();
        let state = file.state.name();
        let name = record_name(domain, selector);
        let record = KeyRecord::of(&file.key);
        format!("{domain}  {selector}  {kind}  {state}{since}{until}\n  {name}.  TXT  \"{record}\"\n")
    }
}

impl OfDomain {
    fn change<E: Into<AnyError>>(
        &self,
        word: &str,
        change: impl FnOnce(&KeyDirectory, &str, &str, u64) -> Result<Vec<StoredKey>, E>,
    ) -> Result<ExitCode, AnyError> {
        let domain = folded(&self.domain)?;
        let keys = Keys::open(&self.config)?;
        let now = Timestamp::from_second(i64::try_from(now())?)?;
        let month = now.to_zoned(TimeZone::UTC).strftime("%y%m").to_string();
        let changed = change(&keys.store, &domain, &month, now.as_second().cast_unsigned()).map_err(Into::into)?;
        let is_told = tell_server(&keys.config)?;
        if self.json {
            let changed: Vec<Value> = changed.iter().map(|key| keys.json(&domain, key)).collect();
            print_json(&format!("{:#}\n", json!({ word: changed, "reloaded": is_told })))?;
        } else {
            print(&changed.iter().map(|key| keys.lines(&domain, key)).collect::<String>())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Fails if a record of a next key is missing at the domain's own servers: signatures with it would count as missing.
fn check_published(of: &OfDomain, dns_port: u16) -> Result<(), AnyError> {
    let domain = folded(&of.domain)?;
    let Keys { store, config, .. } = Keys::open(&of.config)?;
    let next = |key: StoredKey| {
        let file = key.file.ok().filter(|file| file.state == KeyState::Next)?;
        Some((key.selector, KeyRecord::of(&file.key).to_string()))
    };
    let keys = store.keys(&domain)?.into_iter().filter_map(next).collect();
    let own = OwnDomain { domain, keys, host: config.host_name.clone(), ..OwnDomain::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let records = runtime.block_on(ask_own_servers(&config.dns, dns_port, async |source| {
        if matches!(source, RecordSource::Resolver(_)) {
            complain(CUT_OFF);
        }
        Ok(own.key_records(source).await)
    }))?;
    let Some(record) = records.iter().find(|record| record.found != FoundRecord::Same) else { return Ok(()) };
    let there = match &record.found {
        FoundRecord::Other(other) => format!("has another record: {}", harmless(other)),
        FoundRecord::Unknown(why) => format!("is not known: {}", harmless(why)),
        FoundRecord::Nothing | FoundRecord::Same => "has no record".to_owned(),
    };
    Err(format!(
        "{} {there}. Publish it, or sign with --force; `posthaste dkim list {}` shows it",
        record.name, own.domain
    )
    .into())
}

fn list(config: &ConfigArg, domain: Option<&str>, as_json: bool) -> Result<ExitCode, AnyError> {
    let only = domain.map(folded).transpose()?;
    let keys = Keys::open(config)?;
    let mut all = keys.store.read()?;
    all.retain(|of| only.as_ref().is_none_or(|only| *only == of.domain));
    let each = || all.iter().flat_map(|of| of.keys.iter().map(|key| (of.domain.as_str(), key)));
    if as_json {
        let listed: Vec<Value> = each().map(|(domain, key)| keys.json(domain, key)).collect();
        print_json(&format!("{:#}\n", json!(listed)))?;
    } else if all.is_empty() {
        print("there are no keys\n")?;
    } else {
        print(&each().map(|(domain, key)| keys.lines(domain, key)).collect::<String>())?;
    }
    Ok(ExitCode::from(u8::from(all.is_empty())))
}

/// Makes a running server read the keys again. True if one runs.
fn tell_server(config: &Config) -> Result<bool, AnyError> {
    let Some(mut lines) = answer_or_none(&config.storage.data, &Request::Reload {})? else { return Ok(false) };
    let last = lines.pop().unwrap_or_default();
    for kept in last["kept"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        complain(&format!("the running server could not read {kept}: its log says why"));
    }
    Ok(true)
}

fn record_name(domain: &str, selector: &str) -> String {
    format!("{selector}._domainkey.{domain}")
}

/// In UTC.
fn day(at: u64) -> String {
    let at = i64::try_from(at).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    at.map_or("the far future".to_owned(), |at| at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d").to_string())
}
