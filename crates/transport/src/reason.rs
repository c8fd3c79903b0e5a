//! The reason why an attempt failed.

use std::fmt;
use std::sync::Arc;

/// Maximum bytes of an error.
pub const ERROR_BYTES_MAX: usize = 1000;

/// The error of a failed attempt: a server's reply with its stage, or another error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureReason {
    /// `greeting`, `LHLO`, `MAIL`, `RCPT`, `DATA` or `message`; empty without a server's reply.
    pub stage: Arc<str>,
    /// The reply, or the error.
    pub text: Arc<str>,
}

impl FailureReason {
    pub(crate) fn at(stage: &str, reply: &impl fmt::Display) -> Self {
        FailureReason { stage: stage.into(), text: reply.to_string().into() }
    }

    /// Text for display: the stage, then the reply. The transport names the host.
    pub fn said(&self) -> Arc<str> {
        if self.stage.is_empty() { self.text.clone() } else { self.to_string().into() }
    }

    /// Truncated for an entry.
    pub(crate) fn shortened(&self) -> Self {
        let text = &self.text;
        let end = (0..=text.len().min(ERROR_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        FailureReason { stage: self.stage.clone(), text: text[..end].into() }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.stage {
            "" => f.write_str(&self.text),
            stage => write!(f, "{stage}: {}", self.text),
        }
    }
}

impl From<Arc<str>> for FailureReason {
    fn from(text: Arc<str>) -> Self {
        FailureReason { stage: Arc::default(), text }
    }
}

impl From<String> for FailureReason {
    fn from(text: String) -> Self {
        Arc::<str>::from(text).into()
    }
}

impl From<&str> for FailureReason {
    fn from(text: &str) -> Self {
        Arc::<str>::from(text).into()
    }
}
