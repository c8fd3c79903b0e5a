//! `posthaste dns check`: checks the records of a domain at its own servers.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use posthaste_config::Config;
use posthaste_dns::{FoundRecord, OwnDomain, OwnServers, RecordSource, Resolver, WantedRecord};
use serde_json::json;

use crate::config_arg::ConfigArg;
use crate::dns::{of_record, own_domain, quoted_value};
use crate::policy_file::{HTTPS, with_policy};
use crate::queue::AnyError;
use crate::terminal::{complain, harmless, is_colourful, print, print_again, print_json};

pub const CUT_OFF: &str =
    "port 53 of other hosts cannot be reached from here: the resolver was asked, which may keep old answers";

#[derive(Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// The domain
    domain: String,
    /// Ask again until all are seen
    #[arg(long)]
    watch: bool,
    /// Seconds between two rounds of --watch
    #[arg(long, value_name = "SECS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The port at which servers of domains listen
    #[arg(long, hide = true, value_name = "PORT", default_value_t = 53)]
    dns_port: u16,
    /// The port at which this server answers others by HTTPS
    #[arg(long, hide = true, value_name = "PORT", default_value_t = HTTPS)]
    https_port: u16,
}

/// The records of one round, and the servers that were asked.
struct Round {
    domain: String,
    host: String,
    records: Vec<WantedRecord>,
    /// The domain's own servers. Empty if they could not be asked, so that the resolver was.
    servers: Vec<String>,
    has_keys: bool,
    has_address: bool,
}

impl CheckArgs {
    /// Exit status 1: a record is wrong or missing.
    pub fn run(self) -> Result<ExitCode, AnyError> {
        let loaded = self.config.load()?;
        let own = own_domain(&loaded, &self.domain)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let round = runtime.block_on(async {
            loop {
                let round = self.round(&own, &loaded.config).await?;
                if !self.watch || round.is_complete() {
                    return Ok::<_, AnyError>(round);
                }
                if is_colourful() && !self.json {
                    print_again(&format!("{}asking again every {} s; Ctrl-C ends it\n", round.text(), self.every))?;
                }
                tokio::time::sleep(Duration::from_secs(self.every)).await;
            }
        })?;
        match self.json {
            true => print_json(&format!("{:#}\n", round.json()))?,
            false if self.watch && is_colourful() => _ = print_again(&round.text())?,
            false => print(&round.text())?,
        }
        if round.servers.is_empty() {
            complain(CUT_OFF);
        }
        Ok(ExitCode::from(u8::from(!round.is_complete())))
    }

    /// Asks with empty caches.
    async fn round(&self, own: &OwnDomain, config: &Config) -> Result<Round, AnyError> {
        ask_own_servers(config, self.dns_port, async |source| {
            let records = with_policy(own, source, config, self.https_port).await.wanted(source).await?;
            let addresses = source.addresses(&own.host).await;
            Ok(Round {
                domain: own.domain.clone(),
                host: own.host.clone(),
                records,
                servers: match source {
                    RecordSource::OwnServers(servers) => servers.servers_of(&own.domain),
                    RecordSource::Resolver(_) => Vec::new(),
                },
                has_keys: !own.keys.is_empty(),
                has_address: addresses.is_ok_and(|addresses| !addresses.is_empty()),
            })
        })
        .await
    }
}

/// Asks the servers of domains themselves at this port, or the resolver if none of them answers.
pub async fn ask_own_servers<T>(
    config: &Config,
    dns_port: u16,
    ask: impl AsyncFn(RecordSource<'_>) -> Result<T, AnyError>,
) -> Result<T, AnyError> {
    let resolver = Resolver::new(&config.dns)?;
    let servers = OwnServers::new(&resolver, dns_port);
    let answer = ask(RecordSource::OwnServers(&servers)).await;
    if servers.is_cut_off() { ask(RecordSource::Resolver(&resolver)).await } else { answer }
}

impl Round {
    fn is_complete(&self) -> bool {
        self.left() == 0 && self.has_keys && self.has_address
    }

    fn left(&self) -> usize {
        self.records.iter().filter(|record| record.found != FoundRecord::Same).count()
    }

    fn asked(&self) -> String {
        match self.servers.is_empty() {
            true => "asked: the resolver".to_owned(),
            false => format!("asked: {}", harmless(&self.servers.join(", "))),
        }
    }

    fn text(&self) -> String {
        let mut text: String = self.records.iter().map(line).collect();
        if !self.has_address {
            text += &format!("missing    {}.  A or AAAA: the host has no address\n", self.host);
        }
        if !self.has_keys {
            text += &format!("missing    a DKIM key: `posthaste dkim new {}` makes one\n", self.domain);
        }
        let verdict = match self.left() {
            _ if self.is_complete() => "all records are seen".to_owned(),
            0 => "the records are seen, and something else is missing".to_owned(),
            left => format!("{left} of {} records are not as they should be", self.records.len()),
        };
        text + &format!("{verdict} ({})\n", self.asked())
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "domain": self.domain,
            "complete": self.is_complete(),
            "asked": if self.servers.is_empty() { "resolver" } else { "own servers" },
            "servers": self.servers,
            "host_has_address": self.has_address,
            "has_dkim_keys": self.has_keys,
            "records": self.records.iter().map(of_record).collect::<Vec<_>>(),
        })
    }
}

fn line(record: &WantedRecord) -> String {
    let WantedRecord { name, kind, .. } = record;
    let wanted = format!("{name}.  {kind}  {}", quoted_value(record));
    match &record.found {
        FoundRecord::Same => format!("seen       {wanted}\n"),
        FoundRecord::Nothing => format!("missing    {wanted}\n"),
        FoundRecord::Other(other) => format!("different  {wanted}  there is: {}\n", harmless(other)),
        FoundRecord::Unknown(why) => format!("no answer  {wanted}  {}\n", harmless(why)),
    }
}
