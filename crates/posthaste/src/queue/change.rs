//! Requests that change the queue.

use std::process::ExitCode;

use posthaste_server::control::{Doing, Request, Which};

use super::socket::answer;
use super::tables::number;
use super::{ActArgs, AnyError, ServerArgs};
use crate::terminal::{print, print_json};

pub(super) fn act(args: ActArgs, action: Doing, secs: Option<u32>, done: &str) -> Result<ExitCode, AnyError> {
    let of = args.which.which();
    if (of == Which::default()) != args.all {
        return Err("name an id, a sender, recipient, domain, tenant, campaign or --held; or --all, alone".into());
    }
    change(&args.server, &Request::Act { of, action, secs, reason: args.reason }, done)
}

pub(super) fn change(server: &ServerArgs, request: &Request, done: &str) -> Result<ExitCode, AnyError> {
    let lines = answer(server, request)?;
    let last = lines.last().cloned().unwrap_or_default();
    let (changed, follow) = (number(&last, "done"), number(&last, "follow"));
    if server.json {
        print_json(&format!("{last}\n"))?;
    } else if matches!(request, Request::Act { .. }) {
        let more = if follow > 0 { format!("; {follow} under way follow") } else { String::new() };
        print(&format!("{changed} {done}{more}\n"))?;
    } else {
        print(if changed > 0 { format!("{done}\n") } else { "nothing to do\n".to_owned() }.as_str())?;
    }
    Ok(ExitCode::from(u8::from(changed + follow == 0)))
}
