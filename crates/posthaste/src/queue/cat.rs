//! `posthaste queue cat`.

use std::io::{self, Write};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_control::Request;
use posthaste_spool::Lsn;

use super::args::{AnyError, ServerArgs};
use super::socket::ask;
use super::tables::text;

/// Writes a message to standard output, octet for octet.
pub(super) fn cat(server: &ServerArgs, message: Lsn, header: bool) -> Result<ExitCode, AnyError> {
    let mut out = io::stdout().lock();
    for line in ask(server, &Request::Cat { message, header })? {
        let piece = STANDARD.decode(text(&line, "data"))?;
        match out.write_all(&piece).and_then(|()| out.flush()) {
            // Nobody reads on.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            other => other?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
