//! Decisions at the stages of a session.

use std::time::Duration;

use posthaste_smtp::{EnhancedCode, Reply};

/// Decision at a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Delay before the action.
    pub delay: Duration,
    /// Action after it.
    pub action: Action,
}

/// An answer, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A positive answer.
    Accept,
    /// A negative answer.
    Refuse(Reply),
    /// Close the connection.
    Drop,
}

impl Verdict {
    /// A positive answer without delay.
    pub const YES: Self = Self { delay: Duration::ZERO, action: Action::Accept };

    pub(super) fn refuse(reply: Reply) -> Self {
        Self { delay: Duration::ZERO, action: Action::Refuse(reply) }
    }
}

/// Parses `CODE [ENHANCED] TEXT`; line feeds in the text make a reply of several lines. An enhanced code of another
/// class than the code counts as text.
pub(super) fn parse_reply(text: &str) -> Option<Reply> {
    let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
    let code = code.parse::<u16>().ok().filter(|code| (200..600).contains(code) && text.is_char_boundary(3))?;
    let (first, words) = rest.split_once(' ').unwrap_or((rest, ""));
    let enhanced = EnhancedCode::parse(first).filter(|enhanced| u16::from(enhanced.class) == code / 100);
    Some(match enhanced {
        Some(_) => Reply::new(code, first, words.to_owned()),
        None => Reply::new(code, "", rest.to_owned()),
    })
}
