use serde_json::{Value, json};

use crate::terminal::harmless;

/// One finding of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub topic: &'static str,
    pub text: String,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    /// Information for the user.
    Note,
    /// Stops setup.
    Stop,
}

impl Finding {
    pub fn new(topic: &'static str, text: impl Into<String>, verdict: Verdict) -> Self {
        Self { topic, text: text.into(), verdict }
    }

    pub fn line(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "!!",
            Verdict::Stop => "no",
        };
        format!(" {:<10} {:<70} {verdict}\n", self.topic, harmless(&self.text))
    }

    pub fn json(&self) -> Value {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Stop => "stop",
        };
        json!({ "topic": self.topic, "text": self.text, "verdict": verdict })
    }
}
