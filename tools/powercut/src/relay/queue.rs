//! The queue of a running server, read through its control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_loadgen::process::PATIENCE;
use serde_json::Value;

/// Retries all waiting mail now, and waits until the queue is empty. False if that takes longer than a minute.
pub(super) fn is_emptied(data: &Path) -> io::Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    release_held(data)?;
    act(data, r#"{"ask":"act","of":{},"action":"flush","reason":""}"#)?;
    while !waiting(data, r#"{"ask":"list","of":{},"limit":1}"#)?.is_empty() {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// Releases held mail: recipients that were in flight in several crashes, and those whose outcome is unknown.
pub(super) fn release_held(data: &Path) -> io::Result<()> {
    act(data, r#"{"ask":"act","of":{"held":true},"action":"release","reason":""}"#)
}

/// All waiting mail, notices included.
pub(super) fn all(data: &Path) -> io::Result<Vec<Value>> {
    waiting(data, r#"{"ask":"list","of":{}}"#)
}

fn waiting(data: &Path, request: &str) -> io::Result<Vec<Value>> {
    ask(&data.join("control.sock"), request)
}

fn act(data: &Path, request: &str) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    // After several starts in a row, each with a segment of its own, a small ring is full until the first checkpoint.
    while let Err(error) = ask(&data.join("control.sock"), request) {
        if Instant::now() > deadline || !error.to_string().contains("the spool is full") {
            return Err(error);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The lines of the answer without the last, which marks it as complete.
fn ask(socket: &Path, request: &str) -> io::Result<Vec<Value>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line: Value = serde_json::from_str(&line?)?;
        if let Some(error) = line["error"].as_str() {
            return Err(io::Error::other(error.to_owned()));
        }
        if !line["done"].is_null() {
            return Ok(lines);
        }
        lines.push(line);
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

const LOOK: Duration = Duration::from_millis(20);
