//! A program that writes the TXT record of a challenge.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::AcmeError;

/// Timeout of the program: a record takes time to reach all servers of a zone.
const PATIENCE: Duration = Duration::from_secs(600);
/// Characters of the program's standard error in the log.
const SHOWN_MAX: usize = 300;
/// Bytes of standard error that are kept: a character has at most four.
const SAID_BYTES_MAX: usize = 4 * SHOWN_MAX;

/// Runs `program` with the record's name and its value. It ends with status 0 once the zone's servers have the record.
///
/// # Errors
/// [`AcmeError::Program`].
pub(crate) async fn write_record(program: &Path, name: &str, value: &str) -> Result<(), AcmeError> {
    let failed = |why: String| AcmeError::Program(format!("{}: {why}", program.display()));
    let mut command = Command::new(program);
    command.args([&format!("_acme-challenge.{name}"), value]).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = timeout(PATIENCE, run(command)).await.map_err(|_| failed("it does not end".to_owned()))?;
    let (status, said) = run.map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&said);
    let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN_MAX).collect();
    Err(failed(format!("{status}: {}", said.trim())))
}

/// Returns the exit status and the start of standard error. The rest is read and dropped, so that the program never
/// blocks on the pipe.
async fn run(mut command: Command) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut child = command.spawn()?;
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    if let Some(mut pipe) = child.stderr.take() {
        loop {
            let read = pipe.read(&mut piece).await?;
            if read == 0 {
                break;
            }
            let room = SAID_BYTES_MAX - said.len();
            said.extend_from_slice(&piece[..read.min(room)]);
        }
    }
    Ok((child.wait().await?, said))
}
