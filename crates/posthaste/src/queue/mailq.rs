//! The queue in the format of `mailq`.

use std::fmt::Write as _;

use posthaste_config::Config;
use posthaste_control::{Request, WaitState, WaitingLine, Which};
use posthaste_message::DateTime;

use super::args::AnyError;
use super::socket::answer_of;
use crate::terminal::harmless;

/// The list in the format of Postfix.
///
/// # Errors
/// The server does not answer.
pub fn mailq(config: &Config) -> Result<String, AnyError> {
    let mut lines = answer_of(config, &Request::List { of: Which::default(), limit: None, after: None })?;
    lines.pop();
    if lines.is_empty() {
        return Ok("Mail queue is empty\n".to_owned());
    }
    let mut out = String::from("-Queue ID-  --Size-- ----Arrival Time---- -Sender/Recipient-------\n");
    let mut last = String::new();
    let mut messages = 0;
    let mut bytes = 0;
    for line in lines {
        let line: WaitingLine = serde_json::from_value(line)?;
        let message = line.id.split('.').next().unwrap_or_default();
        if message != last {
            let mark = match line.state {
                WaitState::Held => '!',
                WaitState::UnderWay => '*',
                WaitState::Scheduled | WaitState::Due | WaitState::Suspended => ' ',
            };
            let sender = if line.sender.is_empty() { "MAILER-DAEMON" } else { &line.sender };
            let arrival = DateTime::from_unix(line.received).to_string();
            let size = line.bytes;
            let _ = writeln!(out, "{:<11} {size:>8} {arrival}  {}", format!("{message}{mark}"), harmless(sender));
            (last, messages, bytes) = (message.to_owned(), messages + 1, bytes + size);
        }
        let why = [&line.why, &line.status].into_iter().flatten().find(|why| !why.is_empty());
        if let Some(why) = why {
            let _ = writeln!(out, "{:>76}", format!("({})", harmless(why)));
        }
        let _ = writeln!(out, "{:42}{}", "", harmless(&line.recipient));
    }
    let _ = writeln!(out, "\n-- {} Kbytes in {messages} Requests.", bytes.div_ceil(1024));
    Ok(out)
}
