//! `posthaste dns check`: checks the records of a domain at its own servers.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use posthaste_dns::{DomainCheck, FoundRecord, HostView, RecordSource, WantedRecord};
use posthaste_mta_sts::seen_by_https;
use serde_json::{Value, json};

use crate::acme::{outcome_line, try_at_once};
use crate::config_arg::ConfigArg;
use crate::own_domain::{CUT_OFF, HTTPS, host_certificate, own_domain, quoted_value};
use crate::queue::AnyError;
use crate::terminal::{complain, harmless, is_colourful, print, print_again, print_json};

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

impl CheckArgs {
    /// Exit status 1: a record is wrong or missing.
    pub fn run(self) -> Result<ExitCode, AnyError> {
        let loaded = self.config.load()?;
        let own = own_domain(&loaded, &self.domain)?;
        let certificate = host_certificate(&loaded)?;
        let ca_file = &loaded.config.acme.ca_file;
        let view = async |source: RecordSource<'_>| HostView {
            own: seen_by_https(&own, source, self.https_port, ca_file).await,
            tlsa: certificate.records(source).await,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ask = async || DomainCheck::ask(&own, &loaded.config.dns, self.dns_port, &view).await;
        let is_shown = is_colourful() && !self.json;
        let show = |round: &DomainCheck, certificates: Option<&[Value]>, next: &str| {
            if is_shown { print_again(&format!("{}{next}\n", text(round, certificates))) } else { Ok(true) }
        };
        // Outcomes for the names whose records are there now.
        let mut certificates: Option<Vec<Value>> = None;
        let round = runtime.block_on(async {
            loop {
                let round = ask().await?;
                if !self.watch {
                    return Ok::<_, AnyError>(round);
                }
                if round.is_complete() {
                    let lacks_policy = loaded.config.acme.enabled && round.has_policy == Some(false);
                    if !lacks_policy || certificates.is_some() {
                        return Ok(round);
                    }
                    show(&round, None, "the server asks for certificates now; an authority may take minutes")?;
                    // By itself the server looks for new records every ten minutes.
                    certificates = Some(try_at_once(&loaded.config.storage.data));
                    continue;
                }
                let next = format!("asking again every {} s; Ctrl-C ends it", self.every);
                show(&round, certificates.as_deref(), &next)?;
                tokio::time::sleep(Duration::from_secs(self.every)).await;
            }
        })?;
        if self.json {
            let mut all = json!(round);
            all["certificates"] = json!(certificates);
            print_json(&format!("{all:#}\n"))?
        } else if self.watch && is_colourful() {
            _ = print_again(&text(&round, certificates.as_deref()))?
        } else {
            print(&text(&round, certificates.as_deref()))?
        }
        if round.servers.is_empty() {
            complain(CUT_OFF);
        }
        Ok(ExitCode::from(u8::from(!round.is_complete())))
    }
}

fn asked(check: &DomainCheck) -> String {
    if check.servers.is_empty() {
        "asked: the resolver".to_owned()
    } else {
        format!("asked: {}", harmless(&check.servers.join(", ")))
    }
}

fn text(check: &DomainCheck, certificates: Option<&[Value]>) -> String {
    let mut text: String = check.records.iter().map(line).collect();
    text.extend(certificates.into_iter().flatten().map(|outcome| format!("certificate {}", outcome_line(outcome))));
    match &check.host_address {
        FoundRecord::Unknown(why) => {
            text += &format!("no answer  {}.  A or AAAA  {}\n", check.host, harmless(why));
        }
        FoundRecord::Nothing => text += &format!("missing    {}.  A or AAAA: the host has no address\n", check.host),
        FoundRecord::Same | FoundRecord::Other(_) => {}
    }
    if !check.has_keys {
        text += &format!("missing    a DKIM key: `posthaste dkim new {}` makes one\n", check.domain);
    }
    let all = check.records.len();
    let unanswered = check.unanswered();
    let verdict = match (check.left() - unanswered, unanswered) {
        _ if check.is_complete() => "all records are seen".to_owned(),
        (0, 0) => "all records are seen, but something else is missing".to_owned(),
        (wrong, 0) => format!("{wrong} of {all} records are wrong or missing"),
        (0, _) => format!("DNS did not answer about {unanswered} of {all} records"),
        (wrong, _) => {
            format!("{wrong} of {all} records are wrong or missing, and DNS did not answer about {unanswered}")
        }
    };
    text + &format!("{verdict} ({})\n", asked(check))
}

fn line(record: &WantedRecord) -> String {
    let WantedRecord { name, kind, .. } = record;
    let wanted = format!("{name}.  {kind}  {}", quoted_value(record));
    match &record.found {
        FoundRecord::Same => format!("seen       {wanted}\n"),
        FoundRecord::Nothing if *kind == "TLSA" => {
            format!("missing    {wanted}  the next key is not used without it\n")
        }
        FoundRecord::Nothing => format!("missing    {wanted}\n"),
        FoundRecord::Other(other) => format!("different  {wanted}  there is: {}\n", harmless(other)),
        FoundRecord::Unknown(why) => format!("no answer  {wanted}  {}\n", harmless(why)),
    }
}
