//! The answer to an injection.

use posthaste_smtp::{EnhancedCode, ForwardPath, Reply};
use serde::Serialize;

/// The reason why a request failed as a whole. The last counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    /// Another request.
    #[default]
    None,
    /// A smaller message.
    Smaller,
    /// Fewer requests.
    Slower,
    /// Another attempt.
    Later,
}

impl Remedy {
    fn of(reply: &Reply) -> Self {
        match reply.code() {
            552 => Self::Smaller,
            450 if reply.enhanced() == Some(OVER_QUOTA) => Self::Slower,
            _ if reply.is_permanent() => Self::None,
            _ => Self::Later,
        }
    }
}

/// A recipient quota is spent.
const OVER_QUOTA: EnhancedCode = EnhancedCode::new(4, 7, 1);

/// KumoMTA's answer: how many recipients will get the message, and why the others will not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InjectAnswer {
    success_count: usize,
    fail_count: usize,
    failed_recipients: Vec<String>,
    errors: Vec<String>,
    /// The worst for the status: what may help, if anything.
    #[serde(skip)]
    remedy: Remedy,
}

impl InjectAnswer {
    /// So many recipients more will get it: it is durable for them.
    pub fn accepted(&mut self, recipients: usize) {
        self.success_count += recipients;
    }

    /// A recipient does not get it.
    pub fn failed(&mut self, recipient: &ForwardPath, reply: &Reply) {
        let recipient = recipient.bare();
        self.fail_count += 1;
        self.remedy = self.remedy.max(Remedy::of(reply));
        self.errors.push(format!("{recipient}: {reply}"));
        self.failed_recipients.push(recipient);
    }

    /// Adds what became of further messages.
    pub fn add(&mut self, other: Self) {
        self.success_count += other.success_count;
        self.fail_count += other.fail_count;
        self.failed_recipients.extend(other.failed_recipients);
        self.errors.extend(other.errors);
        self.remedy = self.remedy.max(other.remedy);
    }

    /// The answer as JSON.
    ///
    /// # Panics
    /// Never: numbers and strings have a JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("it has a JSON form")
    }

    /// The status of HTTP: 200 if anybody gets it. Else 503 if somebody may at another attempt, 429 if the sender has sent to too many, 413 if the message is too large
    /// for all, 400.
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
        let mut answer = InjectAnswer::default();
        answer.failed(&path("<a@example.org>"), &Reply::new(550, "5.1.1", "No such user"));
        assert_eq!(answer.status(), 400);
        let mut other = answer.clone();
        other.failed(&path("<b@example.org>"), &Reply::new(552, "5.3.4", "Too large"));
        assert_eq!(other.status(), 413);
        other.failed(&path("<b@example.org>"), &Reply::new(450, "4.7.1", "Too many recipients"));
        assert_eq!(other.status(), 429);
        answer.failed(&path("<b@example.org>"), &Reply::new(452, "4.3.1", "Too much mail waits"));
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
