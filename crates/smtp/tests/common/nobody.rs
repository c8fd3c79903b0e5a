//! A handler for tests of everything else: accepts all and keeps nothing.

use posthaste_smtp::driver::{Handler, IncomingBody, Session};
use posthaste_smtp::{Envelope, MessageOutcome, RcptTo, Reply};

pub struct Nobody;

impl Handler for Nobody {
    type State = ();
    type Transaction = ();

    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }
    async fn message(&self, _: &mut Session, _: (), _: Envelope, _: &mut IncomingBody<'_>) -> MessageOutcome {
        MessageOutcome::accepted("dropped")
    }
}
