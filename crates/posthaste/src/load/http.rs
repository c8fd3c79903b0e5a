//! `load --http`: options and checks specific to HTTP.

use std::path::Path;

use posthaste_loadgen::load::{Injecting, Pool};
use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::{Protocol, Target, TlsStart};

use super::options::SessionOptions;

type AnyError = Box<dyn std::error::Error>;

/// Converts the targets to HTTP ones if `--http` is set. The flag is true if they are.
///
/// # Errors
/// Some are HTTP targets and some are not, or an option does not apply to their kind.
pub fn targets(named: &[Target], session: &SessionOptions) -> Result<(Vec<Target>, bool), AnyError> {
    let mut targets = named.to_vec();
    if session.http {
        for target in &mut targets {
            let is_plain = target.protocol == Protocol::Smtp && target.tls == TlsStart::Never;
            if is_plain {
                target.protocol = Protocol::Http;
            }
        }
    }
    let by_http = targets.iter().filter(|target| target.protocol == Protocol::Http).count();
    if by_http != 0 && by_http != targets.len() || session.http && by_http == 0 {
        return Err("a run uses HTTP, or SMTP and LMTP: give targets of one kind".into());
    }
    let is_http = by_http > 0;
    if is_http && (session.bdat || session.starttls || session.auth.is_some()) {
        return Err("--bdat, --starttls and --auth are for SMTP only".into());
    }
    if !is_http && (session.idempotency_key || session.token_file.is_some()) {
        return Err(
            "--idempotency-key and --token-file are for HTTP only: give a target http://HOST:PORT, or --http".into()
        );
    }
    Ok((targets, is_http))
}

/// Token and keys of a run by HTTP. `own`: the server started for the run.
///
/// # Errors
/// The token cannot be read or made.
pub fn injecting(session: &SessionOptions, own: Option<&ScratchServer>) -> Result<Injecting, AnyError> {
    let read = |path: &Path| match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(format!("--token-file {}: {error}", path.display())),
    };
    let named = session.token_file.as_deref().map(read).transpose()?;
    let token = match (named.or_else(|| std::env::var("POSTHASTE_LOAD_TOKEN").ok()), own) {
        (Some(token), _) => Some(token),
        (None, Some(server)) => Some(server.token("load", "inject")?),
        (None, None) => None,
    };
    if token.as_ref().is_some_and(|token| token.is_empty() || !token.bytes().all(|octet| octet.is_ascii_graphic())) {
        return Err("the token must be one line of visible ASCII".into());
    }
    Ok(Injecting { token, repeats: session.idempotency_key })
}

/// Refuses messages that JSON cannot carry.
///
/// # Errors
/// One of the corpus is not UTF-8.
pub fn check_pool(pool: &Pool) -> Result<(), AnyError> {
    if pool.is_text() {
        Ok(())
    } else {
        Err("--corpus: HTTP carries a message as a text in JSON, and some of these are not UTF-8".into())
    }
}
