//! Asks a host about a recipient without sending anything.

use std::future::poll_fn;

use posthaste_smtp::client::{Event, MessageBody, Stage};
use posthaste_smtp::{MailFrom, RcptTo, Reply, ReversePath};

use super::{Loss, Session};

/// A host's verdict on a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// 2yz to RCPT: it takes mail for it.
    Taken,
    /// 5yz to RCPT, or the address needs something that the host does not offer: it takes no mail for it.
    Refused(Reply),
    /// Any other reply, such as 4yz other than 421 to RCPT, or a refused sender.
    NotKnown(Reply),
}

impl Session {
    /// Asks about a recipient: MAIL with the empty sender, RCPT, and nothing more. The next question or message begins
    /// with RSET. Counts as a message.
    ///
    /// Dropping the future before its end ends the session.
    ///
    /// # Errors
    /// The session is over, or was already: [`Loss::Closed`] after any 421.
    pub async fn verify(&mut self, recipient: RcptTo) -> Result<Verdict, Loss> {
        if !self.is_open() {
            return Err(Loss::Over);
        }
        self.is_running = true;
        self.messages_left -= 1;
        self.link.begin_wait();
        self.link.machine.send(MailFrom::new(ReversePath::Null), vec![recipient], MessageBody::Absent);
        let outcome = loop {
            match self.link.step()? {
                Event::NeedInput => poll_fn(|cx| self.link.poll_progress(cx)).await?,
                Event::Sent(outcome) => break outcome,
                Event::Closed => return Err(self.link.closed()),
                event => unreachable!("{event:?} within a transaction"),
            }
        };
        self.finished += 1;
        self.is_running = false;
        let Some(recipient) = outcome.recipients.into_iter().next() else { return Err(Loss::Over) };
        let reply = Reply::from(recipient.reply);
        if recipient.lost || reply.code() == 421 {
            return Err(self.link.closed());
        }
        Ok(match recipient.stage {
            Stage::Rcpt if reply.is_positive() => Verdict::Taken,
            Stage::Rcpt | Stage::Local if reply.is_permanent() => Verdict::Refused(reply),
            _ => Verdict::NotKnown(reply),
        })
    }
}
