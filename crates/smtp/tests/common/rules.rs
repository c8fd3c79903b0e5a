//! The rules of the small mail host in `common` as a handler of the tokio driver.

use posthaste_smtp::driver::{Handler, IncomingBody, Session};
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::{Envelope, MailFrom, MessageOutcome, RcptTo, Reply};

use super::common;

pub struct Rules;

impl Handler for Rules {
    type State = ();
    type Transaction = ();

    async fn authenticate(&self, _: &mut Session, _: &'static str, credentials: Credentials) -> Result<String, Reply> {
        common::judge_credentials(&credentials)
    }
    async fn mail(&self, _: &mut Session, _: &mut (), mail: &MailFrom) -> Result<(), Reply> {
        common::judge_mail(mail)
    }
    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, rcpt: &RcptTo) -> Result<(), Reply> {
        common::judge_rcpt(rcpt)
    }
    async fn message(&self, _: &mut Session, _: (), envelope: Envelope, body: &mut IncomingBody<'_>) -> MessageOutcome {
        while let Some(chunk) = body.chunk().await {
            if let Err(error) = chunk {
                return error.reply().into();
            }
        }
        common::judge_message(&envelope)
    }
}
