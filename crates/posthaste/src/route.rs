//! `posthaste route`: shows and explains the route of mail for an address.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;
use posthaste_config::{Config, Loaded};
use posthaste_control::{MailSender, OutboundRoute, RouteFinder};
use posthaste_directory::{AddressStep, Place, Route, Rule};
use posthaste_relay::sender::{HopPreview, MtaStsPreview};
use posthaste_smtp::{ForwardPath, ReversePath};
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct RouteArgs {
    /// Addresses as a client gives them in RCPT TO, such as bob+x@example.org
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,
    /// The sender's address
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    /// Mail that a client with this address brings; without --client and --login: a program on this machine
    #[arg(long, value_name = "IP")]
    client: Option<IpAddr>,
    /// Mail that is sent with this login
    #[arg(long, value_name = "NAME")]
    login: Option<String>,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result for one address.
struct Explained<'a> {
    address: &'a str,
    /// The replacement address from `relay.maps.canonical`.
    canonical: Option<ForwardPath>,
    steps: Vec<AddressStep>,
    end: End,
}

enum End {
    /// Mailboxes, each with its route if it is at another host.
    Local(Vec<(posthaste_directory::Mailbox, Option<OutboundRoute>)>),
    Discard,
    /// `sender`: the refused sender; `None` if all are.
    Refused {
        reply: String,
        sender: Option<String>,
    },
    Remote(Box<OutboundRoute>),
}

impl Explained<'_> {
    /// True if the recipient is refused, or one of its next hops has no host.
    fn is_bad(&self) -> bool {
        let is_stuck = |way: &OutboundRoute| way.hops.usual.problem.is_some();
        match &self.end {
            End::Local(mailboxes) => mailboxes.iter().filter_map(|(_, way)| way.as_ref()).any(is_stuck),
            End::Discard => false,
            End::Refused { .. } => true,
            End::Remote(way) => is_stuck(way),
        }
    }
}

/// Exit status 1: one of the addresses is refused, or has no host.
pub fn run(args: RouteArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut paths = Vec::new();
    for address in &args.addresses {
        let path = ForwardPath::parse(&in_brackets(address));
        paths.push((address.as_str(), path.map_err(|error| format!("`{address}` is not an address: {error}"))?));
    }
    let from = args.from.as_deref().map(|from| {
        ReversePath::parse(&in_brackets(from)).map_err(|error| format!("`{from}` is not an address: {error}"))
    });
    let sender = MailSender { from: from.transpose()?, client: args.client, login: args.login };
    let loaded = args.config.load()?;
    let mut ways = Ways { loaded: &loaded, sender, open: None };
    let explained = paths.iter().map(|(address, path)| explain(address, path, &mut ways));
    let explained: Vec<Explained<'_>> = explained.collect::<Result<_, _>>()?;
    if args.json {
        print_json(&(Value::from_iter(explained.iter().map(|one| as_json(one, &loaded.config))).to_string() + "\n"))?
    } else {
        print(&explained.iter().map(|one| as_text(one, &loaded.config)).collect::<String>())?
    }
    Ok(ExitCode::from(u8::from(explained.iter().any(Explained::is_bad))))
}

fn in_brackets(address: &str) -> String {
    format!("<{}>", address.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).unwrap_or(address))
}

/// Routing data, loaded for the first remote address: local addresses need no passwords and no resolver.
struct Ways<'a> {
    loaded: &'a Loaded,
    sender: MailSender,
    open: Option<Box<dyn RouteFinder>>,
}

impl Ways<'_> {
    fn get(&mut self) -> Result<&dyn RouteFinder, Box<dyn std::error::Error>> {
        if self.open.is_none() {
            self.open = Some(crate::server::open_routes(self.loaded, self.sender.clone())?);
        }
        Ok(self.open.as_deref().expect("just opened"))
    }
}

fn explain<'a>(
    address: &'a str,
    path: &ForwardPath,
    ways: &mut Ways<'_>,
) -> Result<Explained<'a>, Box<dyn std::error::Error>> {
    let map = ways.loaded.config.relay.maps.canonical.map();
    let canonical: Option<ForwardPath> = path.address().and_then(|address| map.address(address)).map(Into::into);
    let path = canonical.as_ref().unwrap_or(path);
    let (steps, route) = ways.loaded.directory.explain(path);
    let end = match route {
        Route::Local(mailboxes) => {
            let mut found = Vec::new();
            for mailbox in mailboxes.iter() {
                let way = match &mailbox.place {
                    Place::Remote => ways.get()?.forwarded(&mailbox.address),
                    Place::Maildir(_) | Place::Transport(_) => None,
                };
                found.push((mailbox.clone(), way));
            }
            End::Local(found)
        }
        Route::Discard => End::Discard,
        Route::Refused(posthaste_directory::DirectoryRefusal::Relay) => match ways.get()?.sent(path) {
            Ok(way) => End::Remote(Box::new(way)),
            Err(not) => End::Refused { reply: not.reply.to_string(), sender: Some(not.sender) },
        },
        Route::Refused(refusal) => End::Refused { reply: refusal.reply().to_string(), sender: None },
        other => End::Refused { reply: format!("{other:?}"), sender: None },
    };
    Ok(Explained { address, canonical, steps, end })
}

fn as_text(explained: &Explained<'_>, config: &Config) -> String {
    let mut out = harmless(explained.address) + "\n";
    let mut line = |what: &str, text: &str| {
        let _ = writeln!(out, "  {what:<12}  {}", harmless(text));
    };
    if let Some(canonical) = &explained.canonical {
        line("canonical", &format!("{} -> {}", explained.address, canonical.bare()));
    }
    for AddressStep { address, rule, to } in &explained.steps {
        let to = if to.is_empty() { String::new() } else { format!(" -> {}", to.join(", ")) };
        let pattern =
            if let Rule::Pattern(pattern) = rule { format!("   (match = {pattern:?})") } else { String::new() };
        line(rule.name(), &format!("{address}{to}{pattern}"));
    }
    match &explained.end {
        End::Local(mailboxes) => {
            for (mailbox, way) in mailboxes {
                match &mailbox.place {
                    Place::Maildir(path) => line("mailbox", &config.storage.mail.join(&**path).display().to_string()),
                    Place::Remote => line("other host", &mailbox.address),
                    Place::Transport(to) => line(to.kind().name(), &format!("{to}   (for {})", mailbox.address)),
                }
                way.iter().for_each(|way| lines_of_way(way, &mut line));
            }
        }
        End::Discard => line("discarded", "accepted, and kept nowhere"),
        End::Refused { reply, sender } => {
            line("refused", reply);
            sender.iter().for_each(|sender| line("sent by", sender));
        }
        End::Remote(way) => {
            line("other host", &way.recipient);
            line("sent by", &way.taken_from);
            lines_of_way(way, &mut line);
        }
    }
    out
}

fn lines_of_way(way: &OutboundRoute, line: &mut dyn FnMut(&str, &str)) {
    if !way.tenant.is_empty() {
        line("tenant", &way.tenant);
    }
    if !way.campaign.is_empty() {
        line("campaign", &way.campaign);
    }
    if way.asks_ahead {
        line("call ahead", "the next hop is asked for the recipient before it is accepted");
    }
    lines_of_hop("route", &way.hops.usual, line);
    way.hops.fallback.iter().for_each(|hop| lines_of_hop("fallback", hop, line));
}

fn lines_of_hop(name: &str, hop: &HopPreview, line: &mut dyn FnMut(&str, &str)) {
    let hosts = match &hop.mx_of {
        Some(domain) if hop.is_implicit_mx => format!("{domain}, which has no MX records"),
        Some(domain) => format!("the mail hosts of {domain}"),
        None => hop.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", "),
    };
    let by = hop.route.map_or_else(String::new, |number| format!("   (relay.route {number})"));
    let protocol = if hop.protocol == "lmtp" { ", by LMTP" } else { "" };
    line(name, &format!("{hosts}{protocol}{by}"));
    for host in &hop.hosts {
        let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
        let problem = host.problem.as_ref().map_or_else(String::new, |problem| format!("   ({problem})"));
        let preference = host.preference;
        let name = &host.name;
        let port = hop.port;
        let preference = if hop.mx_of.is_some() { format!("{preference} ") } else { String::new() };
        let dane = match host.dane {
            None => "",
            Some("verified") => ", DANE: verified by TLSA records",
            Some(_) => ", DANE: encrypted, no TLSA record is usable",
        };
        line("host", &format!("{preference}{name}, port {port}: {}{dane}{problem}", addresses.join(", ")));
    }
    if let Some(problem) = &hop.problem {
        line("problem", problem);
    }
    let by = hop.tls_policy.map_or_else(String::new, |number| format!("   (relay.tls_policy {number})"));
    let tls = match &hop.tls {
        None => "off".to_owned(),
        Some(tls) => {
            let name = tls.name.as_ref().map_or_else(String::new, |name| format!(", certificate of {name}"));
            let way = if tls.is_implicit { ", from the first octet" } else { "" };
            format!("{}{way}{name}", tls.policy)
        }
    };
    line("TLS", &(tls + &by));
    if let Some(MtaStsPreview { mode, problem }) = &hop.mta_sts {
        let problem = problem.as_ref().map_or_else(String::new, |problem| format!("   ({problem})"));
        line("MTA-STS", &format!("{}{problem}", mode.unwrap_or("no policy")));
    }
    if let Some(login) = &hop.login {
        line("login", login);
    }
    let weights: u64 = hop.sources.iter().map(|source| u64::from(source.weight)).sum();
    let pool = hop.pool.as_ref().map_or_else(String::new, |pool| format!("   (relay.pool {pool})"));
    for source in &hop.sources {
        let mut text = source.name.clone();
        if source.addresses.is_empty() && source.proxy.is_none() {
            text += ", an address that the system chooses";
        }
        source.addresses.iter().for_each(|address| text += &format!(", {address}"));
        source.ehlo.iter().for_each(|ehlo| text += &format!(", as {ehlo}"));
        source.proxy.iter().for_each(|proxy| text += &format!(", by proxy {proxy}"));
        if hop.sources.len() > 1 {
            text += &format!(", {} of {weights} parts", source.weight);
        }
        line("source", &(text + &pool));
    }
}

fn as_json(explained: &Explained<'_>, config: &Config) -> Value {
    let steps = explained.steps.iter().map(|AddressStep { address, rule, to }| {
        let mut step = json!({ "address": address, "rule": rule.name(), "to": to });
        if let Rule::Pattern(pattern) = rule {
            step["match"] = json!(pattern);
        }
        step
    });
    let mut out = json!({ "address": explained.address, "steps": Value::from_iter(steps) });
    if let Some(canonical) = &explained.canonical {
        out["canonical"] = json!(canonical.bare());
    }
    match &explained.end {
        End::Local(mailboxes) => {
            out["route"] = json!("local");
            out["mailboxes"] = Value::from_iter(mailboxes.iter().map(|(mailbox, way)| match &mailbox.place {
                Place::Maildir(path) => {
                    json!({ "path": config.storage.mail.join(&**path), "delivered_to": &*mailbox.address })
                }
                Place::Remote => json!({ "remote": &*mailbox.address, "way": way }),
                Place::Transport(to) => json!({
                    "transport": &**to.text(), "kind": to.kind().name(), "delivered_to": &*mailbox.address
                }),
            }));
        }
        End::Discard => out["route"] = json!("discard"),
        End::Refused { reply, sender } => {
            out["route"] = json!("refused");
            out["reply"] = json!(reply);
            if let Some(sender) = sender {
                out["sent_by"] = json!(sender);
            }
        }
        End::Remote(way) => {
            out["route"] = json!("remote");
            out["way"] = json!(way);
        }
    }
    out
}
