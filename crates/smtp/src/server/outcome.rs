//! Verdicts of a session's owner on a message, and their replies.

use std::borrow::Cow;

use crate::reply::Reply;

/// The verdict on a message, given once its fate is known: a positive reply is a promise to deliver it or to report
/// failure (RFC 5321 section 4.2.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageOutcome {
    /// One reply for every recipient.
    All(Reply),
    /// One reply per recipient, in the order of [`Envelope::recipients`](super::Envelope::recipients).
    ///
    /// LMTP sends them all. SMTP has one reply for the whole message: the first positive one, if any, else the first
    /// transient, else the first. After a positive one the server must retry or report the failed recipients.
    Each(Vec<Reply>),
}

impl MessageOutcome {
    /// 250 2.0.0 for everybody.
    pub fn accepted(text: impl Into<Cow<'static, str>>) -> Self {
        Self::All(Reply::ok(text))
    }

    /// True if any recipient was accepted.
    pub fn is_accepted(&self) -> bool {
        match self {
            Self::All(reply) => reply.is_positive(),
            Self::Each(replies) => replies.iter().any(Reply::is_positive),
        }
    }

    /// True if every reply ends the transaction; a 3yz would leave the client waiting for more.
    pub(crate) fn is_final(&self) -> bool {
        let replies = match self {
            Self::All(reply) => std::slice::from_ref(reply),
            Self::Each(replies) => replies,
        };
        replies.iter().all(|reply| reply.code() / 100 != 3)
    }

    /// The one reply of SMTP.
    pub(crate) fn single(&self) -> Cow<'_, Reply> {
        let first = |fits: fn(&Reply) -> bool| match self {
            Self::All(reply) => Some(reply),
            Self::Each(replies) => replies.iter().find(|reply| fits(reply)),
        };
        let chosen = first(Reply::is_positive).or_else(|| first(Reply::is_transient)).or_else(|| first(|_| true));
        chosen.map_or_else(Self::missing, Cow::Borrowed)
    }

    /// The reply of LMTP for recipient number `index`.
    pub(crate) fn of_recipient(&self, index: usize) -> Cow<'_, Reply> {
        match self {
            Self::All(reply) => Cow::Borrowed(reply),
            Self::Each(replies) => replies.get(index).map_or_else(Self::missing, Cow::Borrowed),
        }
    }

    /// A recipient without a verdict must be retried.
    fn missing<'a>() -> Cow<'a, Reply> {
        Cow::Owned(Reply::new(451, "4.3.0", "No verdict for this recipient"))
    }
}

impl From<Reply> for MessageOutcome {
    fn from(reply: Reply) -> Self {
        Self::All(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_durable_recipient_makes_smtp_say_250() {
        let (yes, later, never) =
            (Reply::ok("yes"), Reply::new(452, "4.2.2", "later"), Reply::new(550, "5.1.1", "never"));
        let single =
            |replies: &[&Reply]| MessageOutcome::Each(replies.iter().copied().cloned().collect()).single().into_owned();
        assert_eq!(single(&[&never, &later, &yes]), yes);
        assert_eq!(single(&[&never, &later]), later);
        assert_eq!(single(&[&never]), never);
        assert_eq!(single(&[]).code(), 451);
    }
}
