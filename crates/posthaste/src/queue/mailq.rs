//! The queue as `mailq` shows it.

use std::fmt::Write as _;

use posthaste_config::Config;
use posthaste_control::{Request, Which};
use posthaste_message::DateTime;

use super::AnyError;
use super::socket::answer_of;
use super::tables::{number, text};
use crate::terminal::harmless;

/// The list that users of Postfix know.
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
    let (mut last, mut messages, mut bytes) = (String::new(), 0, 0);
    for line in &lines {
        let id = text(line, "id");
        let message = id.split('.').next().unwrap_or_default();
        if message != last {
            let mark = match text(line, "state").as_str() {
                "held" => '!',
                "under way" => '*',
                _ => ' ',
            };
            let (size, sender) = (number(line, "bytes"), text(line, "sender"));
            let sender = if sender.is_empty() { "MAILER-DAEMON".to_owned() } else { sender };
            let arrival = DateTime::from_unix(number(line, "received").cast_signed()).to_string();
            let _ = writeln!(out, "{:<11} {size:>8} {arrival}  {}", format!("{message}{mark}"), harmless(&sender));
            (last, messages, bytes) = (message.to_owned(), messages + 1, bytes + size);
        }
        let why = [text(line, "why"), text(line, "status")].into_iter().find(|why| !why.is_empty());
        if let Some(why) = why {
            let _ = writeln!(out, "{:>76}", format!("({})", harmless(&why)));
        }
        let _ = writeln!(out, "{:42}{}", "", harmless(&text(line, "recipient")));
    }
    let _ = writeln!(out, "\n-- {} Kbytes in {messages} Requests.", bytes.div_ceil(1024));
    Ok(out)
}
