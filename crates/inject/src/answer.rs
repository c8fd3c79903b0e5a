//! The answer to an injection.

use std::sync::Arc;

use posthaste_smtp::{ForwardPath, Reply};
use serde::Serialize;

/// Remedy for a request that failed as a whole. Later variants take precedence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    /// A different request is needed.
    #[default]
    None,
    /// Send a smaller message.
    Smaller,
    /// Send fewer requests.
    Slower,
    /// Try again later.
    Later,
}

/// Why a recipient does not get its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Reply code (RFC 5321 section 4.2).
    pub(crate) code: u16,
    /// Text of the reply.
    pub(crate) line: Arc<str>,
}

impl Refusal {
    /// The reply, truncated for storage.
    pub fn of(reply: &Reply) -> Self {
        let mut line = reply.to_string();
        if let Some((end, _)) = line.char_indices().nth(LINE_CHARS_MAX) {
            line.truncate(end);
        }
        Self { code: reply.code(), line: line.into() }
    }

    /// True if another attempt would not help.
    pub fn is_permanent(&self) -> bool {
        (500..600).contains(&self.code)
    }

    fn remedy(&self) -> Remedy {
        match self.code {
            552 => Remedy::Smaller,
            450 if self.line.get(3..).is_some_and(|rest| rest.trim_start().starts_with(OVER_QUOTA)) => Remedy::Slower,
            _ if self.is_permanent() => Remedy::None,
            _ => Remedy::Later,
        }
    }
}

/// Maximum characters of a stored reply.
const LINE_CHARS_MAX: usize = 300;

/// Status code in the reply to a sender whose recipient quota is spent.
const OVER_QUOTA: &str = "4.7.1 ";

/// KumoMTA's answer: the number of accepted recipients, and the reasons of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InjectAnswer {
    success_count: usize,
    fail_count: usize,
    failed_recipients: Vec<String>,
    errors: Vec<String>,
    /// The failure that decides the status: a temporary one, if any.
    #[serde(skip)]
    remedy: Remedy,
}

impl InjectAnswer {
    /// Counts recipients of a durable message.
    pub fn accepted(&mut self, recipients: usize) {
        self.success_count += recipients;
    }

    /// Counts a failed recipient, with the reason.
    pub fn failed(&mut self, recipient: &ForwardPath, refusal: &Refusal) {
        let recipient = recipient.bare();
        self.fail_count += 1;
        self.remedy = self.remedy.max(refusal.remedy());
        self.errors.push(format!("{recipient}: {}", refusal.line));
        self.failed_recipients.push(recipient);
    }

    /// The answer as JSON.
    ///
    /// # Panics
    /// Never: numbers and strings have a JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("it has a JSON form")
    }

    /// The HTTP status: 200 if any recipient was accepted. Else 503 if a retry may help, 429 if the sender is over a
    /// rate limit, 413 if the message is too large for all, 400.
    pub fn status(&self) -> u16 {
        match self.remedy {
            _ if self.success_count > 0 => 200,
            Remedy::Later => 503,
            Remedy::Slower => 429,
            Remedy::Smaller => 413,
            Remedy::None => 400,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_and_names_what_failed() {
        let path = |text: &str| ForwardPath::parse(text).unwrap();
        let refusal = |code, enhanced, text: &'static str| Refusal::of(&Reply::new(code, enhanced, text));
        let mut answer = InjectAnswer::default();
        answer.failed(&path("<a@example.org>"), &refusal(550, "5.1.1", "No such user"));
        assert_eq!(answer.status(), 400);
        let mut other = answer.clone();
        other.failed(&path("<b@example.org>"), &refusal(552, "5.3.4", "Too large"));
        assert_eq!(other.status(), 413);
        other.failed(&path("<b@example.org>"), &refusal(450, "4.7.1", "Too many recipients"));
        assert_eq!(other.status(), 429);
        answer.failed(&path("<b@example.org>"), &refusal(452, "4.3.1", "Too much mail waits"));
        assert_eq!(answer.status(), 503);
        answer.accepted(2);
        assert_eq!(answer.status(), 200);
        let json: serde_json::Value = serde_json::from_str(&answer.to_json()).unwrap();
        let expected = serde_json::json!({
            "success_count": 2, "fail_count": 2, "failed_recipients": ["a@example.org", "b@example.org"],
            "errors": ["a@example.org: 550 5.1.1 No such user", "b@example.org: 452 4.3.1 Too much mail waits"],
        });
        assert_eq!(json, expected);
    }
}
