//! Header fields as they are searched and shown.

use mail_parser::{Address, HeaderValue, Message};

use super::extract::{ITEMS_MAX, Priority};
use super::lenient;

/// No line ends and control characters in what is shown on one line.
pub(super) fn one_line(text: &str) -> String {
    if !text.chars().any(char::is_control) && !text.contains("  ") && text.trim().len() == text.len() {
        return text.to_owned();
    }
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(super) fn addresses(field: Option<&Address<'_>>) -> String {
    let mut all = String::new();
    for addr in field.into_iter().flat_map(Address::iter).take(ITEMS_MAX) {
        let name = addr.name().map(one_line).filter(|name| !name.is_empty());
        let address = addr.address().map(one_line).filter(|address| !address.is_empty());
        if !all.is_empty() && (name.is_some() || address.is_some()) {
            all.push_str(", ");
        }
        match (name, address) {
            (Some(name), Some(address)) => {
                // What would be read as two addresses is quoted, so that `addresses` can be taken apart again.
                if name.contains([',', ';', '<', '>', '"', '@']) {
                    all.push_str(&format!("\"{}\" <{address}>", name.replace(['"', '\\'], "")));
                } else {
                    all.push_str(&format!("{name} <{address}>"));
                }
            }
            (Some(one), None) | (None, Some(one)) => all.push_str(&one),
            (None, None) => {}
        }
    }
    all
}

pub(super) fn date(message: &Message<'_>) -> Option<i64> {
    // A year of two digits that was taken for one of the first century is read again.
    let plausible = |date: &mail_parser::DateTime| date.is_valid() && (1900..=9999).contains(&date.year);
    let own = message.date().filter(|date| plausible(date)).map(mail_parser::DateTime::to_timestamp);
    let own = own.or_else(|| lenient::date(message.header_raw("Date")?));
    own.or_else(|| message.received()?.date().filter(plausible).map(|date| date.to_timestamp()))
}

pub(super) fn references(message: &Message<'_>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for value in [message.references(), message.in_reply_to()] {
        let ids: Vec<&str> = match value {
            HeaderValue::Text(id) => vec![id],
            HeaderValue::TextList(ids) => ids.iter().map(AsRef::as_ref).collect(),
            _ => Vec::new(),
        };
        for id in ids.into_iter().map(str::trim).filter(|id| !id.is_empty()).take(ITEMS_MAX) {
            if !all.iter().any(|known| known == id) {
                all.push(id.to_owned());
            }
        }
    }
    all
}

pub(super) fn list_id(message: &Message<'_>) -> String {
    let text = |value: &HeaderValue<'_>| value.as_text().map(one_line).unwrap_or_default();
    let field = text(message.list_id());
    let bracketed = field.rsplit_once('<').and_then(|(_, id)| id.split_once('>')).map(|(id, _)| id.trim().to_owned());
    let id = bracketed.unwrap_or(field);
    if !id.is_empty() {
        return id;
    }
    // Older list managers: `List-Post: <mailto:users@example.org>`, `X-Mailing-List: users@example.org`.
    let post = text(message.list_post());
    let post = post.split_once("mailto:").map(|(_, rest)| rest.split(['>', '?']).next().unwrap_or("")).unwrap_or("");
    let other = message.header_raw("X-Mailing-List").map(one_line).unwrap_or_default();
    let address = if post.is_empty() { other.as_str() } else { post };
    address.trim_matches(['<', '>', ' ']).replace('@', ".")
}

pub(super) fn priority(message: &Message<'_>, list: bool) -> Priority {
    let field = |name: &'static str| message.header_raw(name).map(|value| value.trim().to_ascii_lowercase());
    for name in ["Priority", "X-Priority", "Importance"] {
        match field(name).as_deref().and_then(|value| value.split([' ', ',', '(']).next()) {
            Some("high" | "urgent" | "1" | "2") => return Priority::High,
            Some("low" | "non-urgent" | "4" | "5") => return Priority::Low,
            _ => {}
        }
    }
    let bulk = field("Precedence").is_some_and(|value| matches!(value.as_str(), "bulk" | "junk" | "list"));
    if bulk || list { Priority::Low } else { Priority::Normal }
}
