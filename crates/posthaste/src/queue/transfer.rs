//! `posthaste queue export` and `import`: moves mail from one queue to another.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use posthaste_control::{Request, Which};
use serde_json::Value;

use super::args::{AnyError, ServerArgs, WhichArgs};
use super::socket::connect;
use super::tables::{number, text};
use crate::new_file::new_file;
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct ExportArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// All that waits
    #[arg(long)]
    all: bool,
    /// Hold in this queue what is exported, so that it is not sent twice
    #[arg(long)]
    hold: bool,
    /// This node's copy of a shard of a cluster, though another node owns it or none
    #[arg(long, value_name = "NUMBER", conflicts_with = "hold")]
    shard: Option<u16>,
    /// A new file to write to; default: standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args)]
pub struct ImportArgs {
    /// What `queue export` has written; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Try now what an operator has held in the other queue
    #[arg(long)]
    release: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Exit status 1: no match, or some mail could not be read or is in flight.
pub(super) fn export(args: &ExportArgs) -> Result<ExitCode, AnyError> {
    let of = args.which.which();
    if (of == Which::default()) != args.all {
        return Err("name an id, a sender, recipient, domain, tenant, campaign or --held; or --all, alone".into());
    }
    let connection = connect(&args.server, Request::Export { of, hold: args.hold, shard: args.shard })?;
    let stream = &connection.stream;
    let last = match &args.output {
        Some(path) => {
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            let mut file = new_file(path).map_err(failed)?;
            let last = copy(stream, &mut file)?;
            // What is exported may be deleted next.
            file.sync_all().map_err(failed)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
            last
        }
        None => copy(stream, &mut io::stdout().lock())?,
    };
    connection.end()?;
    let count = |key| number(&last, key);
    if args.server.json && args.output.is_some() {
        print_json(&format!("{last}\n"))?;
    } else {
        eprintln!("posthaste: {} messages with {} recipients", count("done"), count("recipients"));
        if count("under_way") > 0 {
            eprintln!("posthaste: {} under way are left out: export them later", count("under_way"));
        }
        if count("broken") > 0 {
            eprintln!("posthaste: {} messages could not be read", count("broken"));
        }
    }
    Ok(ExitCode::from(u8::from(count("done") == 0 || count("under_way") + count("broken") > 0)))
}

/// Copies the lines, and returns the last one once all are written.
fn copy(stream: &UnixStream, out: &mut impl Write) -> Result<Value, AnyError> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Err("the server ended in the middle of its answer".into());
        }
        // Most lines are pieces of messages.
        let is_last = line.contains("\"done\"") || line.contains("\"error\"");
        let value = if is_last { serde_json::from_str(&line)? } else { Value::Null };
        if value.get("error").is_some() {
            return Err(text(&value, "error").into());
        }
        out.write_all(line.as_bytes())?;
        if value.get("done").is_some() {
            out.flush()?;
            return Ok(value);
        }
    }
}

/// Exit status 1: a message was refused, or there was none.
pub(super) fn import(args: &ImportArgs) -> Result<ExitCode, AnyError> {
    let from: Box<dyn Read + Send> = if args.file.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(&args.file).map_err(|error| format!("{}: {error}", args.file.display()))?)
    };
    let connection = connect(&args.server, Request::Import { release: args.release })?;
    let stream = &connection.stream;
    let mut sending = stream.try_clone()?;
    // Answers are read meanwhile: neither side may wait for the other.
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        // A server that wants no more has said why.
        let _ = io::copy(&mut from, &mut sending).and_then(|_| sending.shutdown(Shutdown::Write));
    });
    let mut last = Value::Null;
    for line in BufReader::new(stream).lines() {
        last = serde_json::from_str(&line?)?;
        let refused = text(&last, "refused");
        if !refused.is_empty() {
            eprintln!("posthaste: refused: {} {}", text(&last, "origin"), harmless(&refused));
        }
    }
    connection.end()?;
    if last.get("error").is_some() {
        return Err(text(&last, "error").into());
    }
    if last.get("done").is_none() {
        return Err("the server ended in the middle of its answer".into());
    }
    let count = |key| number(&last, key);
    if args.server.json {
        print_json(&format!("{last}\n"))?
    } else {
        print(&format!(
            "{} messages with {} recipients imported, {} recipients were here already, {} messages refused\n",
            count("done"),
            count("recipients"),
            count("duplicates"),
            count("refused")
        ))?
    }
    Ok(ExitCode::from(u8::from(count("refused") > 0 || count("recipients") + count("duplicates") == 0)))
}
