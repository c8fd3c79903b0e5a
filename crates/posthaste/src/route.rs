//! `posthaste route`: where mail for an address goes, and why.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use posthaste_directory::{Place, Route, Rule, Step};
use posthaste_server::config::{Config, Loaded};
use posthaste_smtp::ForwardPath;
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct RouteArgs {
    /// Addresses as a client gives them in RCPT TO, such as bob+x@example.org
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit status 1: one of the addresses is refused.
pub fn run(args: RouteArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut paths = Vec::new();
    for address in &args.addresses {
        let bare = address.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).unwrap_or(address);
        let path = ForwardPath::parse(&format!("<{bare}>"));
        paths.push((address, path.map_err(|error| format!("`{address}` is not an address: {error}"))?));
    }
    let Loaded { config, directory, .. } = args.config.load()?;
    let explained: Vec<_> = paths.iter().map(|(address, path)| (*address, directory.explain(path))).collect();
    match args.json {
        true => {
            let all = explained.iter().map(|(address, (steps, route))| as_json(address, steps, route, &config));
            print_json(&(Value::from_iter(all).to_string() + "\n"))?;
        }
        false => print(
            &explained
                .iter()
                .map(|(address, (steps, route))| as_text(address, steps, route, &config))
                .collect::<String>(),
        )?,
    }
    let is_refused = explained.iter().any(|(_, (_, route))| matches!(route, Route::Refused(_)));
    Ok(ExitCode::from(u8::from(is_refused)))
}

fn as_text(address: &str, steps: &[Step], route: &Route, config: &Config) -> String {
    let mut out = harmless(address) + "\n";
    let mut line = |what: &str, text: &str| {
        let _ = writeln!(out, "  {what:<12}  {}", harmless(text));
    };
    for Step { address, rule, to } in steps {
        let to = if to.is_empty() { String::new() } else { format!(" -> {}", to.join(", ")) };
        let pattern =
            if let Rule::Pattern(pattern) = rule { format!("   (match = {pattern:?})") } else { String::new() };
        line(rule.name(), &format!("{address}{to}{pattern}"));
    }
    match route {
        Route::Local(mailboxes) => {
            for mailbox in mailboxes.iter() {
                match &mailbox.place {
                    Place::Maildir(path) => line("mailbox", &config.storage.mail.join(&**path).display().to_string()),
                    Place::Remote => line("other host", &mailbox.address),
                    Place::Transport(to) => line(to.kind().name(), &format!("{to}   (for {})", mailbox.address)),
                }
            }
        }
        Route::Discard => line("discarded", "accepted, and kept nowhere"),
        Route::Refused(refusal) => line("refused", &refusal.reply().to_string()),
        other => line("route", &format!("{other:?}")),
    }
    out
}

fn as_json(address: &str, steps: &[Step], route: &Route, config: &Config) -> Value {
    let steps = steps.iter().map(|Step { address, rule, to }| {
        let mut step = json!({ "address": address, "rule": rule.name(), "to": to });
        if let Rule::Pattern(pattern) = rule {
            step["match"] = json!(pattern);
        }
        step
    });
    let mut out = json!({ "address": address, "steps": Value::from_iter(steps) });
    match route {
        Route::Local(mailboxes) => {
            out["route"] = json!("local");
            out["mailboxes"] = Value::from_iter(mailboxes.iter().map(|mailbox| match &mailbox.place {
                Place::Maildir(path) => {
                    json!({ "path": config.storage.mail.join(&**path), "delivered_to": &*mailbox.address })
                }
                Place::Remote => json!({ "remote": &*mailbox.address }),
                Place::Transport(to) => json!({
                    "transport": &**to.text(), "kind": to.kind().name(), "delivered_to": &*mailbox.address
                }),
            }));
        }
        Route::Discard => out["route"] = json!("discard"),
        Route::Refused(refusal) => {
            out["route"] = json!("refused");
            out["reply"] = json!(refusal.reply().to_string());
        }
        other => out["route"] = json!(format!("{other:?}")),
    }
    out
}
