//! A program that writes the TXT record of a challenge.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::error::AcmeError;

/// Records take their time until all servers of a zone have them.
const PATIENCE: Duration = Duration::from_secs(600);
/// Characters of its standard error that the log shows.
const SHOWN_MAX: usize = 300;

/// Runs `program` with the record's name and its value. It ends with status 0 once the zone's servers have the record.
///
/// # Errors
/// [`AcmeError::Program`].
pub(crate) async fn write_record(program: &Path, name: &str, value: &str) -> Result<(), AcmeError> {
    let failed = |why: String| AcmeError::Program(format!("{}: {why}", program.display()));
    let mut command = Command::new(program);
    command.args([&format!("_acme-challenge.{name}"), value]).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = timeout(PATIENCE, command.output()).await.map_err(|_| failed("it does not end".to_owned()))?;
    let output = run.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN_MAX).collect();
    Err(failed(format!("{}: {}", output.status, said.trim())))
}
