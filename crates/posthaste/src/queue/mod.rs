//! `posthaste queue …` and `mailq`: the queue of a running server, through its control socket.
//!
//! Commands of the queue; each group has a file of its own.

mod args;
mod cat;
mod change;
mod explain;
mod import;
mod mailq;
mod socket;
mod tables;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use posthaste_control::{By, Doing, Request, SummaryEnd, Which};
use posthaste_message::DateTime;
use posthaste_spool::Lsn;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::terminal::{harmless_json, print, print_again, print_json};
use args::{ActArgs, ByArg, ScopeArgs, WhichArgs, id};
pub use args::{AnyError, ServerArgs};
use cat::cat;
use change::{act, change};
use explain::ExplainArgs;
pub use socket::{Connection, ELSEWHERE, answer, answer_in, answer_or_none, ask, connect_or_open};
use tables::{details, diversions, list, room, summary, suspensions};
use transfer::{ExportArgs, ImportArgs};

pub use change::flush_all;
pub use mailq::mailq;
pub use tables::{columns, number, text};

#[derive(Subcommand)]
pub enum QueueCommand {
    /// List the recipients that wait
    List {
        #[command(flatten)]
        which: WhichArgs,
        /// At most this many recipients, the oldest messages first
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one message, and why each of its recipients waits
    Show {
        /// A message, such as 4711, or one of its recipients, such as 4711.0
        #[arg(value_name = "ID", value_parser = id)]
        id: (Lsn, Option<u16>),
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Print one message as it waits; when it is sent, `relay.maps.generic` may still change addresses and sign it
    /// again
    Cat {
        /// The message, such as 4711
        #[arg(value_name = "ID", value_parser = id)]
        id: (Lsn, Option<u16>),
        /// Print the header only
        #[arg(long)]
        header: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Count the recipients that wait
    Summary {
        #[command(flatten)]
        which: WhichArgs,
        /// What to count by
        #[arg(long, value_enum, default_value = "domain")]
        by: ByArg,
        /// Count again every so often until it is interrupted; default: every 2 s
        #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s", value_parser = posthaste_units::duration)]
        watch: Option<Duration>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Stop trying; held mail does not expire
    Hold {
        #[command(flatten)]
        act: ActArgs,
        /// For how long, such as 2h; default: until it is released
        #[arg(long = "for", value_name = "TIME", value_parser = posthaste_units::duration)]
        time: Option<Duration>,
    },
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
    /// Do not try mail of a domain, tenant, campaign or site for a time; it still expires
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
    /// Send mail of a domain, tenant or campaign to another host, whatever its routes and MX records
    Route {
        #[command(flatten)]
        scope: ScopeArgs,
        /// A host or an address in brackets, followed by a colon and the port if it is not 25
        #[arg(long, value_name = "HOST")]
        to: String,
        /// For how long, such as 2h; default: until `queue unroute`
        #[arg(long = "for", value_name = "TIME", value_parser = posthaste_units::duration)]
        time: Option<Duration>,
        /// The reason, for the list
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// End the effect of `queue route`
    Unroute {
        #[command(flatten)]
        scope: ScopeArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List what `queue route` sends elsewhere
    Routes {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Say which limits apply to a destination, and which of them mail waits for now
    Explain(ExplainArgs),
    /// Convert a shaping file of KumoMTA; what has no equivalent is listed on standard error, with exit status 1
    ImportShaping {
        /// KumoMTA's file, in TOML
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print JSON: `shaping` and `ignored`
        #[arg(long)]
        json: bool,
    },
    /// Write mail that waits, with attempts and schedule, for the queue of another server
    Export(ExportArgs),
    /// Take mail of another queue; what was imported before is left out
    Import(ImportArgs),
    /// List what is suspended
    Suspensions {
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Key that `queue summary` counts by.
/// Exit status 1: no recipient matches.
pub fn run(command: QueueCommand) -> Result<ExitCode, AnyError> {
    match command {
        QueueCommand::List { which, limit, server } => {
            let of = which.which();
            let request = Request::List { of: of.clone(), limit, after: None };
            show(&server, &request, |lines| list(lines, &nothing_of(&of)))
        }
        QueueCommand::Show { id: (message, number), server } => {
            let of = Which { message: Some(message), number, ..Which::default() };
            let request = Request::List { of: of.clone(), limit: None, after: None };
            show(&server, &request, |lines| details(lines, &nothing_of(&of)))
        }
        QueueCommand::Cat { id: (message, _), header, server } => cat(&server, message, header),
        QueueCommand::Summary { which, by, watch, server } => {
            let of = which.which();
            let by = by.by();
            if let Some(pause) = watch {
                return watch_summary(&server, &of, by, pause);
            }
            let (text, is_empty) = summary_now(&server, &of, by)?;
            if server.json {
                print_json(&text)?
            } else {
                print(&text)?
            }
            Ok(ExitCode::from(u8::from(is_empty)))
        }
        QueueCommand::Hold { act: args, time } => act(args, Doing::Hold, secs(time), "held"),
        QueueCommand::Release(args) => act(args, Doing::Release, None, "released"),
        QueueCommand::Flush(args) => act(args, Doing::Flush, None, "tried now"),
        QueueCommand::Requeue(args) => act(args, Doing::Requeue, None, "tried now"),
        QueueCommand::Delete(args) => act(args, Doing::Delete, None, "removed"),
        QueueCommand::Bounce(args) => act(args, Doing::Bounce, None, "given up"),
        QueueCommand::Suspend { scope, time, reason, server } => change(
            &server,
            &Request::Suspend { scope: scope.named(), secs: secs(time), reason, expect: None },
            "suspended",
        ),
        QueueCommand::Resume { scope, server } => change(&server, &Request::Resume { scope: scope.named() }, "resumed"),
        QueueCommand::Route { scope, to, time, reason, server } => change(
            &server,
            &Request::Divert { scope: scope.named(), to, secs: secs(time), reason, expect: None },
            "routed",
        ),
        QueueCommand::Unroute { scope, server } => {
            change(&server, &Request::Undivert { scope: scope.named() }, "no longer routed")
        }
        QueueCommand::Routes { server } => show(&server, &Request::Diversions {}, diversions),
        QueueCommand::Explain(args) => explain::run(&args),
        QueueCommand::Export(args) => transfer::export(&args),
        QueueCommand::Import(args) => transfer::import(&args),
        QueueCommand::ImportShaping { file, json } => import::shaping(&file, json),
        QueueCommand::Suspensions { server } => show(&server, &Request::Suspensions {}, suspensions),
    }
}

/// Message when no recipient matches.
fn nothing_of(which: &Which) -> String {
    match which {
        Which { message: Some(id), .. } => {
            format!("{id} does not wait; see `posthaste trace {id}`")
        }
        which if *which == Which::default() => "nothing waits".to_owned(),
        _ => "nothing that fits waits".to_owned(),
    }
}

/// The printed counts, with true if no mail waits.
fn summary_now(server: &ServerArgs, of: &Which, by: By) -> Result<(String, bool), AnyError> {
    let mut lines = answer(server, &Request::Summary { of: of.clone(), by, top: None })?;
    let last = lines.pop().unwrap_or_default();
    let end: SummaryEnd = serde_json::from_value(last.clone())?;
    // What waits for transports is not counted.
    let empty = if *of == Which::default() { "nothing waits for other hosts".to_owned() } else { nothing_of(of) };
    let is_empty = lines.is_empty();
    let text = if server.json {
        let mut counts = json!({ "counts": lines, "notices": end.notices, "room": end.room });
        if let Some(cluster) = last.get("cluster") {
            counts["cluster"] = cluster.clone();
        }
        counts.to_string() + "\n"
    } else {
        summary(&typed(lines)?, by.key(), &empty) + &room(&end)
    };
    Ok((text, is_empty))
}

/// Runs until the reader has gone. A terminal is cleared before each count; elsewhere each begins with the time.
fn watch_summary(server: &ServerArgs, of: &Which, by: By, pause: Duration) -> Result<ExitCode, AnyError> {
    loop {
        let (text, _) = summary_now(server, of, by)?;
        let now = DateTime::from_unix(jiff::Timestamp::now().as_second());
        let text = if server.json { harmless_json(&text).into_owned() } else { format!("{now}\n{text}\n") };
        if !print_again(&text)? {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(pause.max(WATCH_PAUSE_MIN));
    }
}

/// Minimum pause, since a count scans each queue.
const WATCH_PAUSE_MIN: Duration = Duration::from_millis(100);

fn secs(time: Option<Duration>) -> Option<u32> {
    time.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX))
}

/// Asks for a list, and prints it. In a cluster, JSON also has the nodes that have answered.
pub fn show<T: DeserializeOwned>(
    server: &ServerArgs,
    request: &Request,
    table: impl Fn(&[T]) -> String,
) -> Result<ExitCode, AnyError> {
    let mut lines = answer(server, request)?;
    let last = lines.pop().unwrap_or_default();
    let is_empty = lines.is_empty();
    if server.json {
        let all = match last.get("cluster") {
            Some(cluster) => json!({ "cluster": cluster, "lines": lines }),
            None => lines.into(),
        };
        print_json(&(all.to_string() + "\n"))?
    } else {
        print(&table(&typed(lines)?))?
    }
    Ok(ExitCode::from(u8::from(is_empty)))
}

/// Parses the lines of an answer.
fn typed<T: DeserializeOwned>(lines: Vec<Value>) -> serde_json::Result<Vec<T>> {
    lines.into_iter().map(serde_json::from_value).collect()
}
