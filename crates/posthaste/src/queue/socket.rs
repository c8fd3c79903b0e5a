//! Requests to the control socket of a running server.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use posthaste_server::config::{Config, Loaded};
use posthaste_server::control::{Request, SOCKET};
use serde_json::Value;

use super::tables::text;
use super::{AnyError, ServerArgs};

/// Asks a server; the lines of its answer but the last.
pub fn ask(server: &ServerArgs, request: &Request) -> Result<Vec<Value>, AnyError> {
    let mut lines = answer(server, request)?;
    lines.pop();
    Ok(lines)
}

pub fn answer(server: &ServerArgs, request: &Request) -> Result<Vec<Value>, AnyError> {
    answer_of(&Loaded::load(server.config.as_deref())?.config, request)
}

pub(super) fn answer_of(config: &Config, request: &Request) -> Result<Vec<Value>, AnyError> {
    answer_in(&config.storage.data, request)
}

/// A connection to a server, for requests with long answers.
pub(super) fn connect(server: &ServerArgs) -> Result<UnixStream, AnyError> {
    connect_in(&Loaded::load(server.config.as_deref())?.config.storage.data)
}

fn connect_in(data: &Path) -> Result<UnixStream, AnyError> {
    let path = data.join(SOCKET);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no server runs with its data in {}", data.display())
        }
        _ => format!("{}: {error}", path.display()),
    };
    Ok(UnixStream::connect(&path).map_err(failed)?)
}

/// Asks the server with this data directory.
pub fn answer_in(data: &Path, request: &Request) -> Result<Vec<Value>, AnyError> {
    let mut stream = connect_in(data)?;
    let path = data.join(SOCKET);
    let failed = |error: io::Error| format!("{}: {error}", path.display());
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
