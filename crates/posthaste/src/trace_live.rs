//! `posthaste trace --live`: dialogues of a running server as they happen.

use std::io::{self, BufRead, BufReader, IsTerminal, Write, stdout};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use jiff::Timestamp;
use posthaste_config::Config;
use posthaste_control::{Request, SOCKET};
use serde_json::Value;

use crate::queue::ELSEWHERE;
use crate::terminal::{complain, harmless, harmless_json};

type AnyError = Box<dyn std::error::Error>;

/// Runs until the server ends, or the reader has gone.
pub fn run(config: &Config, request: &Request, as_json: bool) -> Result<ExitCode, AnyError> {
    let path = config.storage.data.join(SOCKET);
    let mut stream = UnixStream::connect(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no server runs with its data in {}; {ELSEWHERE}", config.storage.data.display())
        }
        _ => format!("{}: {error}", path.display()),
    })?;
    stream.write_all((serde_json::to_string(request)? + "\n").as_bytes())?;
    for line in BufReader::new(stream).lines() {
        let text = line?;
        let line: Value = serde_json::from_str(&text)?;
        if let Some(error) = line["error"].as_str() {
            return Err(error.into());
        }
        if line["watching"] == true && stdout().is_terminal() {
            complain("sessions that begin from now on are shown; end with Ctrl-C");
        }
        if let Some(dropped) = line["dropped"].as_u64() {
            complain(&format!("{dropped} lines were left out: the sessions said more than can be shown"));
        }
        let shown = match line["line"].as_str() {
            None => String::new(),
            Some(_) if as_json => harmless_json(&text).into_owned() + "\n",
            Some(said) => for_people(&line, said),
        };
        let mut out = stdout();
        match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            written => written?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn for_people(line: &Value, said: &str) -> String {
    let micros = line["time_us"].as_i64().unwrap_or_default();
    let time = Timestamp::from_microsecond(micros).map(|time| format!("{time:.3}")).unwrap_or_default();
    let side = if line["said_by"] == "client" { "C" } else { "S" };
    let direction = line["direction"].as_str().unwrap_or_default();
    let peer = line["peer"].as_str().unwrap_or_default();
    format!("{time} {direction:<3} {} {}  {side}: {}\n", line["session"], harmless(peer), harmless(said))
}
