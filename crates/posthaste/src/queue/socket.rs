//! Requests to the control socket of a running server.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use posthaste_config::Config;
use posthaste_control::{NodeAnswers, Request, SOCKET};
use rustix::process::getuid;
use serde_json::Value;

use super::args::{AnyError, ServerArgs};
use super::tables::text;
use crate::spool_access::become_owner;
use crate::terminal::harmless;

/// Asks a server; returns the lines of its answer without the last.
pub fn ask(server: &ServerArgs, request: &Request) -> Result<Vec<Value>, AnyError> {
    let mut lines = answer(server, request)?;
    lines.pop();
    Ok(lines)
}

pub fn answer(server: &ServerArgs, request: &Request) -> Result<Vec<Value>, AnyError> {
    answer_of(&server.config.load()?.config, request)
}

/// Nodes of a cluster that have not applied a change yet, according to its last line.
fn missing_nodes(last: &Value) -> Option<String> {
    let missing: Vec<&str> = last["missing"].as_array()?.iter().filter_map(Value::as_str).collect();
    let all = last["nodes"].as_u64()?;
    let lacks = missing.len() as u64;
    let names = harmless(&missing.join(", "));
    (lacks > 0)
        .then(|| format!("{} of {all} nodes have it; {names} will get it when they reach the engine", all - lacks))
}

/// The nodes of a cluster that are not in the answer, if its last line has some.
fn unanswered_nodes(last: &Value) -> Option<String> {
    let answers: NodeAnswers = serde_json::from_value(last.get("cluster")?.clone()).ok()?;
    (!answers.is_whole()).then(|| harmless(&answers.to_string()))
}

pub(super) fn answer_of(config: &Config, request: &Request) -> Result<Vec<Value>, AnyError> {
    answer_in(&config.storage.data, request)
}

/// A connection to a running server, or to a spool that this process has open, with a request on it.
pub struct Connection {
    pub stream: UnixStream,
    serving: Option<JoinHandle<io::Result<()>>>,
}

impl Connection {
    /// Drops the stream and joins the thread that has the spool open. Call it after the answer.
    pub fn end(self) -> Result<(), AnyError> {
        drop(self.stream);
        self.serving.map_or(Ok(()), |serving| Ok(serving.join().expect("the thread that has the spool open")?))
    }
}

/// Asks the server for an export or an import. If none runs, this process opens the queue.
pub(super) fn connect(server: &ServerArgs, request: Request) -> Result<Connection, AnyError> {
    connect_or_open(server.config.load()?.config, "queue", request)
}

/// Asks the server. If none runs, this process opens `what` and answers like a server. It does so on a thread with the
/// identity of the spool's owner: a server could not use files of root.
pub fn connect_or_open(config: Config, what: &str, request: Request) -> Result<Connection, AnyError> {
    if let Some(mut stream) = connect_in(&config.storage.data)? {
        stream.write_all((serde_json::to_string(&request)? + "\n").as_bytes())?;
        return Ok(Connection { stream, serving: None });
    }
    let (stream, theirs) = UnixStream::pair()?;
    let (uid, (tell, told)) = (getuid().as_raw(), sync_channel(1));
    let serving = std::thread::Builder::new().name(what.to_owned()).spawn(move || {
        let dir = config.storage.spool.clone();
        let owned = if dir.is_dir() { become_owner(&dir).map_err(|error| error.to_string()) } else { Ok(()) };
        match owned.and_then(|()| crate::server::open_closed(&config, request).map_err(|error| error.to_string())) {
            Ok(answer) => {
                let _ = tell.send(Ok(config.storage.data));
                answer(theirs, uid)
            }
            Err(error) => {
                let _ = tell.send(Err(error));
                Ok(())
            }
        }
    })?;
    let data = told.recv()??;
    eprintln!("posthaste: no server runs: opening the {what} in {}", data.display());
    Ok(Connection { stream, serving: Some(serving) })
}

/// Hint for a missing server: it may use another data directory.
pub const ELSEWHERE: &str = "if it was started in another directory, go there or use --config";

/// `None` if no server listens.
fn connect_in(data: &Path) -> Result<Option<UnixStream>, AnyError> {
    let path = data.join(SOCKET);
    match UnixStream::connect(&path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(unreachable(&path, &error).into()),
    }
}

/// Explains why the socket cannot be connected to, and who could do it.
fn unreachable(path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; only root and the server's user may ask the server",
        _ => "",
    };
    format!("{}: {error}{hint}", path.display())
}

/// Asks the server with this data directory.
pub fn answer_in(data: &Path, request: &Request) -> Result<Vec<Value>, AnyError> {
    let absent = || format!("no server runs with its data in {}; {ELSEWHERE}", data.display());
    answer_or_none(data, request)?.ok_or_else(|| absent().into())
}

/// Like [`answer_in`]; `None` if no server is running.
pub fn answer_or_none(data: &Path, request: &Request) -> Result<Option<Vec<Value>>, AnyError> {
    let Some(mut stream) = connect_in(data)? else { return Ok(None) };
    let path = data.join(SOCKET);
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    stream.write_all((serde_json::to_string(request)? + "\n").as_bytes()).map_err(failed)?;
    let lines: Result<Vec<String>, _> = BufReader::new(stream).lines().collect();
    let lines: Vec<Value> =
        lines.map_err(failed)?.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    match lines.last() {
        Some(last) if last.get("error").is_some() => Err(text(last, "error").into()),
        Some(last) if last.get("done").is_some() => {
            let stuck = last["stuck"].as_array().into_iter().flatten().filter_map(Value::as_str);
            stuck.for_each(|why| eprintln!("posthaste: a stream of the spool is stuck: {}", harmless(why)));
            unanswered_nodes(last).iter().for_each(|line| eprintln!("posthaste: {line}"));
            missing_nodes(last).iter().for_each(|line| eprintln!("posthaste: {line}"));
            Ok(Some(lines))
        }
        _ => Err("the server ended in the middle of its answer".into()),
    }
}
