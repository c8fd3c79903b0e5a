//! Requests that change the queue.

use std::process::ExitCode;

use posthaste_config::Config;
use posthaste_control::{Doing, Request, Which};

use super::args::{ActArgs, AnyError, ServerArgs};
use super::socket::{answer, answer_of};
use super::tables::number;
use crate::terminal::{print, print_json};

/// Makes the server try all waiting mail now.
///
/// # Errors
/// The server does not answer, or refuses this user.
pub fn flush_all(config: &Config, reason: &str) -> Result<(), AnyError> {
    let of = Which::default();
    let reason = reason.to_owned();
    answer_of(config, &Request::Act { of, action: Doing::Flush, secs: None, reason, expect: None }).map(drop)
}

pub(super) fn act(args: ActArgs, action: Doing, secs: Option<u32>, done: &str) -> Result<ExitCode, AnyError> {
    let of = args.which.which();
    if (of == Which::default()) != args.all {
        return Err("name an id, a sender, recipient, domain, tenant, campaign or --held; or --all, alone".into());
    }
    change(&args.server, &Request::Act { of, action, secs, reason: args.reason, expect: None }, done)
}

pub(super) fn change(server: &ServerArgs, request: &Request, done: &str) -> Result<ExitCode, AnyError> {
    let lines = answer(server, request)?;
    let last = lines.last().cloned().unwrap_or_default();
    let changed = number(&last, "done");
    let follow = number(&last, "follow");
    let outranked = number(&last, "outranked");
    if server.json {
        print_json(&format!("{last}\n"))?;
    } else if matches!(request, Request::Act { .. }) {
        let mut line = format!("{changed} {done}");
        for (count, what) in [(follow, "under way follow"), (outranked, "under way have an earlier command")] {
            if count > 0 {
                line += &format!("; {count} {what}");
            }
        }
        if let (Request::Act { of: Which { message: Some(message), .. }, .. }, 0) = (request, changed + follow) {
            line += &format!(": {message} does not wait, or is in that state already; see `posthaste trace {message}`");
        }
        print(&format!("{line}\n"))?;
    } else {
        print(if changed > 0 { format!("{done}\n") } else { "nothing to do\n".to_owned() }.as_str())?;
    }
    Ok(ExitCode::from(u8::from(changed + follow == 0)))
}
