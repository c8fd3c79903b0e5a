//! `posthaste queue …` and `mailq`: the queue of a running server, through its control socket.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use posthaste_message::DateTime;
use posthaste_server::config::{Config, Loaded};
use posthaste_server::control::{Doing, Named, Request, SOCKET, Which};
use serde_json::{Value, json};

use crate::terminal::{harmless, print, print_json};

type AnyError = Box<dyn std::error::Error>;

#[derive(Subcommand)]
pub enum QueueCommand {
    /// List the recipients that wait
    List {
        #[command(flatten)]
        which: WhichArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one message, and why each of its recipients waits
    Show {
        /// A message, such as 4711, or one of its recipients, such as 4711.0
        #[arg(value_name = "ID", value_parser = id)]
        id: (u64, Option<u16>),
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Count the recipients that wait, by domain
    Summary {
        #[command(flatten)]
        which: WhichArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Stop trying; held mail does not expire
    Hold(ActArgs),
    /// Try held mail again
    Release(ActArgs),
    /// Try now
    Flush(ActArgs),
    /// Try now, as if for the first time
    Requeue(ActArgs),
    /// Remove without telling the sender
    Delete(ActArgs),
    /// Give up, and tell the senders
    Bounce(ActArgs),
    /// Try nothing of a domain, tenant, campaign or site for a time; its mail still expires
    Suspend {
        #[command(flatten)]
        scope: ScopeArgs,
        /// For how long, such as 2h; default: until it is resumed
        #[arg(long = "for", value_name = "TIME", value_parser = posthaste_units::duration)]
        time: Option<Duration>,
        /// The reason, for the list
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// End a suspension
    Resume {
        #[command(flatten)]
        scope: ScopeArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List what is suspended
    Suspensions {
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Args)]
pub struct ServerArgs {
    /// The server's configuration file; default: ./posthaste.toml if it exists, otherwise built-in defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Default)]
pub struct WhichArgs {
    /// A message, such as 4711, or one of its recipients, such as 4711.0
    #[arg(value_name = "ID", value_parser = id)]
    id: Option<(u64, Option<u16>)>,
    /// From this sender; "" for notifications
    #[arg(long, value_name = "ADDRESS")]
    sender: Option<String>,
    /// To this recipient
    #[arg(long, value_name = "ADDRESS")]
    recipient: Option<String>,
    /// To this domain
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Of this campaign
    #[arg(long, value_name = "NAME")]
    campaign: Option<String>,
    /// Only held mail
    #[arg(long)]
    held: bool,
}

#[derive(Args)]
pub struct ActArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// All that waits
    #[arg(long)]
    all: bool,
    /// The reason, for the log, and for those who are told
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct ScopeArgs {
    /// Mail to this domain
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Mail of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// This campaign, of any tenant
    #[arg(long, value_name = "NAME")]
    campaign: Option<String>,
    /// Mail to this set of mail hosts, as the log names it
    #[arg(long, value_name = "HOSTS")]
    site: Option<String>,
}

fn id(text: &str) -> Result<(u64, Option<u16>), String> {
    let (message, number) = text.split_once('.').map_or((text, None), |(message, number)| (message, Some(number)));
    let wrong = || "an id is the number of a message, as `posthaste queue list` shows it".to_owned();
    let number = number.map(|number| number.parse().map_err(|_| wrong())).transpose()?;
    Ok((message.parse().map_err(|_| wrong())?, number))
}

impl WhichArgs {
    fn which(&self) -> Which {
        Which {
            message: self.id.map(|(message, _)| message),
            number: self.id.and_then(|(_, number)| number),
            sender: self.sender.clone(),
            recipient: self.recipient.clone(),
            domain: self.domain.clone(),
            tenant: self.tenant.clone(),
            campaign: self.campaign.clone(),
            held: self.held.then_some(true),
        }
    }
}

impl ScopeArgs {
    fn named(self) -> Named {
        let ScopeArgs { domain, tenant, campaign, site } = self;
        let named = domain.map(Named::Domain).or(tenant.map(Named::Tenant)).or(campaign.map(Named::Campaign));
        named.or(site.map(Named::Site)).expect("one is required")
    }
}

/// Exit status 1: nothing fits.
pub fn run(command: QueueCommand) -> Result<ExitCode, AnyError> {
    match command {
        QueueCommand::List { which, server } => {
            let lines = ask(&server, &Request::List { of: which.which() })?;
            show(&server, &lines, list)
        }
        QueueCommand::Show { id: (message, number), server } => {
            let of = Which { message: Some(message), number, ..Which::default() };
            let lines = ask(&server, &Request::List { of })?;
            show(&server, &lines, details)
        }
        QueueCommand::Summary { which, server } => {
            let lines = ask(&server, &Request::List { of: which.which() })?;
            show(&server, &by_domain(&lines), summary)
        }
        QueueCommand::Hold(args) => act(args, Doing::Hold, "held"),
        QueueCommand::Release(args) => act(args, Doing::Release, "released"),
        QueueCommand::Flush(args) => act(args, Doing::Flush, "tried now"),
        QueueCommand::Requeue(args) => act(args, Doing::Requeue, "tried now"),
        QueueCommand::Delete(args) => act(args, Doing::Delete, "removed"),
        QueueCommand::Bounce(args) => act(args, Doing::Bounce, "given up"),
        QueueCommand::Suspend { scope, time, reason, server } => {
            let secs = time.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
            change(&server, &Request::Suspend { scope: scope.named(), secs, reason }, "suspended")
        }
        QueueCommand::Resume { scope, server } => change(&server, &Request::Resume { scope: scope.named() }, "resumed"),
        QueueCommand::Suspensions { server } => {
            let lines = ask(&server, &Request::Suspensions)?;
            show(&server, &lines, suspensions)
        }
    }
}

/// The list that users of Postfix know.
///
/// # Errors
/// The server does not answer.
pub fn mailq(config: &Config) -> Result<String, AnyError> {
    let mut lines = answer_of(config, &Request::List { of: Which::default() })?;
    lines.pop();
    if lines.is_empty() {
        return Ok("Mail queue is empty\n".to_owned());
    }
    let mut out = String::from("-Queue ID-  --Size-- ----Arrival Time---- -Sender/Recipient-------\n");
    let (mut last, mut messages, mut bytes) = (String::new(), 0, 0);
    for line in &lines {
        let id = text(line, "id");
        let message = id.split('.').next().unwrap_or_default();
        if message != last {
            let mark = match text(line, "state").as_str() {
                "held" => '!',
                "under way" => '*',
                _ => ' ',
            };
            let (size, sender) = (number(line, "bytes"), text(line, "sender"));
            let sender = if sender.is_empty() { "MAILER-DAEMON".to_owned() } else { sender };
            let arrival = DateTime::from_unix(number(line, "received").cast_signed()).to_string();
            let _ = writeln!(out, "{:<11} {size:>8} {arrival}  {}", format!("{message}{mark}"), harmless(&sender));
            (last, messages, bytes) = (message.to_owned(), messages + 1, bytes + size);
        }
        let why = [text(line, "why"), text(line, "status")].into_iter().find(|why| !why.is_empty());
        if let Some(why) = why {
            let _ = writeln!(out, "{:>76}", format!("({})", harmless(&why)));
        }
        let _ = writeln!(out, "{:42}{}", "", harmless(&text(line, "recipient")));
    }
    let _ = writeln!(out, "\n-- {} Kbytes in {messages} Requests.", bytes.div_ceil(1024));
    Ok(out)
}

/// Asks a server; the lines of its answer but the last.
fn ask(server: &ServerArgs, request: &Request) -> Result<Vec<Value>, AnyError> {
    let mut lines = answer(server, request)?;
    lines.pop();
    Ok(lines)
}

fn answer(server: &ServerArgs, request: &Request) -> Result<Vec<Value>, AnyError> {
    answer_of(&Loaded::load(server.config.as_deref())?.config, request)
}

fn answer_of(config: &Config, request: &Request) -> Result<Vec<Value>, AnyError> {
    let path = config.storage.data.join(SOCKET);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no server runs with its data in {}", config.storage.data.display())
        }
        _ => format!("{}: {error}", path.display()),
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    stream.write_all((serde_json::to_string(request)? + "\n").as_bytes()).map_err(failed)?;
    let lines: Result<Vec<String>, _> = BufReader::new(stream).lines().collect();
    let lines: Vec<Value> =
        lines.map_err(failed)?.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    match lines.last() {
        Some(last) if last.get("error").is_some() => Err(text(last, "error").into()),
        Some(last) if last.get("done").is_some() => Ok(lines),
        _ => Err("the server ended in the middle of its answer".into()),
    }
}

fn act(args: ActArgs, action: Doing, done: &str) -> Result<ExitCode, AnyError> {
    let of = args.which.which();
    if (of == Which::default()) != args.all {
        return Err("name an id, a sender, recipient, domain, tenant, campaign or --held; or --all, alone".into());
    }
    change(&args.server, &Request::Act { of, action, reason: args.reason }, done)
}

fn change(server: &ServerArgs, request: &Request, done: &str) -> Result<ExitCode, AnyError> {
    let lines = answer(server, request)?;
    let last = lines.last().cloned().unwrap_or_default();
    let (changed, follow) = (number(&last, "done"), number(&last, "follow"));
    if server.json {
        print_json(&format!("{last}\n"))?;
    } else if matches!(request, Request::Act { .. }) {
        let more = if follow > 0 { format!("; {follow} under way follow") } else { String::new() };
        print(&format!("{changed} {done}{more}\n"))?;
    } else {
        print(if changed > 0 { format!("{done}\n") } else { "nothing to do\n".to_owned() }.as_str())?;
    }
    Ok(ExitCode::from(u8::from(changed + follow == 0)))
}

fn show(server: &ServerArgs, lines: &[Value], table: impl Fn(&[Value]) -> String) -> Result<ExitCode, AnyError> {
    match server.json {
        true => print_json(&(Value::from(lines.to_vec()).to_string() + "\n"))?,
        false => print(&table(lines))?,
    }
    Ok(ExitCode::from(u8::from(lines.is_empty())))
}

fn list(lines: &[Value]) -> String {
    let rows = lines.iter().map(|line| {
        let state = match line["until"].as_i64() {
            Some(until) => format!("{} until {}", text(line, "state"), DateTime::from_unix(until)),
            None => text(line, "state"),
        };
        [
            text(line, "id"),
            number(line, "attempts").to_string(),
            text(line, "status"),
            state,
            text(line, "sender"),
            text(line, "recipient"),
        ]
    });
    columns(["id", "attempts", "status", "state", "sender", "recipient"], rows)
}

fn details(lines: &[Value]) -> String {
    let time = |secs: Option<i64>| secs.map_or(String::new(), |secs| DateTime::from_unix(secs).to_string());
    let mut out = String::new();
    for line in lines {
        let state = [text(line, "state"), text(line, "held_by")].join(" ");
        let rows = [
            ("id", text(line, "id")),
            ("sender", text(line, "sender")),
            ("recipient", text(line, "recipient")),
            ("tenant", text(line, "tenant")),
            ("campaign", text(line, "campaign")),
            ("bytes", number(line, "bytes").to_string()),
            ("received", time(line["received"].as_i64())),
            ("expires", time(line["expires"].as_i64())),
            ("attempts", number(line, "attempts").to_string()),
            ("status", text(line, "status")),
            ("why", text(line, "why")),
            ("state", state.trim_end().to_owned()),
            ("until", time(line["until"].as_i64())),
        ];
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(out, "{name:<10} {}", harmless(value));
        }
        out.push('\n');
    }
    if lines.is_empty() { "nothing waits\n".to_owned() } else { out }
}

fn by_domain(lines: &[Value]) -> Vec<Value> {
    let mut domains: BTreeMap<String, [u64; 5]> = BTreeMap::new();
    for line in lines {
        let row = domains.entry(text(line, "domain")).or_insert([0, u64::MAX, 0, 0, 0]);
        row[0] += 1;
        row[1] = row[1].min(number(line, "received"));
        row[2] += u64::from(number(line, "attempts") > 0);
        row[3] += u64::from(text(line, "state") == "held");
        row[4] += u64::from(text(line, "state") == "suspended");
    }
    let mut rows: Vec<_> = domains.into_iter().collect();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row[0]));
    let row = |(domain, [recipients, oldest, deferred, held, suspended]): (String, [u64; 5])| {
        json!({
            "domain": domain, "recipients": recipients, "oldest": oldest, "deferred": deferred, "held": held,
            "suspended": suspended,
        })
    };
    rows.into_iter().map(row).collect()
}

fn summary(rows: &[Value]) -> String {
    let rows = rows.iter().map(|row| {
        let oldest = DateTime::from_unix(number(row, "oldest").cast_signed()).to_string();
        let count = |key| number(row, key).to_string();
        [text(row, "domain"), count("recipients"), count("deferred"), count("held"), count("suspended"), oldest]
    });
    columns(["domain", "recipients", "deferred", "held", "suspended", "oldest"], rows)
}

fn suspensions(lines: &[Value]) -> String {
    let rows = lines.iter().map(|line| {
        let until = line["until"].as_i64().map_or("resumed".to_owned(), |until| DateTime::from_unix(until).to_string());
        [text(line, "kind"), text(line, "name"), until, text(line, "reason")]
    });
    columns(["kind", "name", "until", "reason"], rows)
}

/// A table with a heading; nothing for no rows.
fn columns<const N: usize>(heading: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.map(|row| row.map(|text| harmless(&text))).collect();
    if rows.is_empty() {
        return "nothing waits\n".to_owned();
    }
    let heading = heading.map(str::to_owned);
    let all = || std::iter::once(&heading).chain(&rows);
    let widths: [usize; N] = std::array::from_fn(|at| crate::columns::width(all().map(|row| row[at].as_str())));
    let mut out = String::new();
    for row in all() {
        let cells: Vec<String> = row.iter().zip(widths).map(|(text, width)| crate::columns::fit(text, width)).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn text(line: &Value, key: &str) -> String {
    line[key].as_str().unwrap_or_default().to_owned()
}

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_default()
}
