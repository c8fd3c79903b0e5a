//! `posthaste queue explain`: the limits that apply to a destination.

use std::process::ExitCode;

use clap::Args;
use posthaste_control::{Defaults, Explained, Request, SOCKET};

use super::args::{AnyError, ServerArgs};
use super::socket::answer_of;
use super::tables::columns;
use crate::terminal::{print, print_json};

#[derive(Args)]
pub struct ExplainArgs {
    /// A domain, or an address in it
    #[arg(value_name = "DESTINATION")]
    destination: String,
    /// For mail of this tenant
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// For mail that was received for this pool of sources
    #[arg(long, value_name = "NAME", default_value = "")]
    pool: String,
    /// As it is from this source alone
    #[arg(long, value_name = "NAME", default_value = "")]
    source: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Asks the running server, or uses the limits in the files.
pub fn run(args: &ExplainArgs) -> Result<ExitCode, AnyError> {
    let domain = args.destination.rsplit_once('@').map_or(&*args.destination, |(_, domain)| domain).to_lowercase();
    let config = args.server.config.load()?.config;
    let explained = if config.storage.data.join(SOCKET).exists() {
        let tenant = args.tenant.clone();
        let pool = args.pool.clone();
        let source = args.source.clone();
        let lines = answer_of(&config, &Request::Explain { domain, tenant, pool, source })?;
        serde_json::from_value(lines.into_iter().next().ok_or("no answer")?)?
    } else {
        let defaults = Defaults {
            connections: config.site_connections(),
            messages_per_connection: config.relay.messages_per_connection,
            recipients_per_message: config.relay.recipients_per_message,
        };
        let rules = config.relay.shaping_rules(config.limit_shares())?;
        let mut sources = config.relay.source_names();
        if !args.source.is_empty() {
            sources.retain(|name| *name == args.source);
            if sources.is_empty() {
                return Err(format!("there is no source {}", args.source).into());
            }
        }
        rules.explain(&domain, &args.tenant, &sources, &[], defaults)
    };
    if args.server.json {
        print_json(&(serde_json::to_string(&explained)? + "\n"))?
    } else {
        print(&text(&explained))?
    }
    Ok(ExitCode::SUCCESS)
}

fn text(explained: &Explained) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            out += &format!("{name:<9} {value}\n");
        }
    };
    line("domain", &explained.domain);
    line("tenant", &explained.tenant);
    line("pool", &explained.pool);
    line("hosts", &explained.site);
    line("problem", explained.problem.as_deref().unwrap_or_default());
    line("sources", &explained.sources.join(", "));
    line("sections", &explained.sections.join(", "));
    match explained.waiting {
        Some(waiting) => line("waiting", &format!("{waiting} recipients")),
        None => line("waiting", "no server runs: its mail hosts were not looked up"),
    }
    out.push('\n');
    let rows = explained.values.iter();
    let rows = rows.map(|value| {
        let of = match &*value.source {
            "" => value.of.clone(),
            source => format!("{} from {source}", value.of),
        };
        [value.key.clone(), value.value.clone(), of, value.from.clone()]
    });
    out += &columns(["limit", "value", "of", "from"], rows, "no limit applies");
    if !explained.now.is_empty() {
        let rows = explained.now.iter().map(|now| {
            let secs = now.secs.map_or(String::new(), |secs| format!("{secs:.1} s"));
            let binds = if now.binds { "mail waits" } else { "" };
            [now.what.clone(), now.state.clone(), secs, binds.to_owned()]
        });
        out.push('\n');
        out += &columns(["now", "state", "until", ""], rows, "");
    }
    out
}
