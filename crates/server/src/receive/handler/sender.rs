//! Checks of an incoming message: started before its body is read. Their results are written into its header, and
//! decide its treatment.

use std::time::Duration;

use posthaste_smtp::RcptTo;

use super::folders::{is_exempt_address, sort_into};
use super::receiver::{AtData, Check, Checking, ReadMessage, Stop};
use crate::ids::unix_micros;
use crate::receive::sender_checks::{SenderCheck, SenderFindings, Treatment};

/// Starts the checks of an incoming message. None if the client is trusted or there is no resolver.
pub(super) struct SenderLookup;

impl Check for SenderLookup {
    fn data(&self, at: &mut AtData<'_>) -> Result<(), Stop> {
        if let Some(ip) = at.session.peer.ip().filter(|_| at.settings.is_checked(at.session))
            && let Some(resolver) = at.receiver.remote().resolver()
        {
            let helo = at.session.helo.as_deref().unwrap_or_default();
            at.sender_check = Some(SenderCheck::begin(resolver, ip, helo, at.sender));
        }
        Ok(())
    }
}

/// Writes Authentication-Results above Received. Refuses the message, or sorts it into Junk, as configured.
pub(super) struct SenderResults;

impl Check for SenderResults {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        let Some((check, verifier)) = message.sender_check.take() else { return Checking::Done(Ok(())) };
        Checking::Waiting(Box::pin(async move {
            let now = u64::try_from(unix_micros() / 1_000_000).unwrap_or_default();
            let patience = Duration::from_secs(message.settings.checks.timeout_secs);
            let findings = check.findings(*verifier, message.author.domain(), patience, now).await;
            message.receiver.meters().checked(findings.results());
            if let Some(field) = findings.field(&message.settings.authserv_id) {
                message.add_front(&field);
            }
            message.results = Some(findings.summary());
            treat(message, &findings).await
        }))
    }
}

async fn treat(message: &mut ReadMessage<'_>, findings: &SenderFindings) -> Result<(), Stop> {
    // One of them beside others must not open the door to those.
    let is_exempt = message.envelope.recipients.iter().all(is_exempt);
    match message.settings.treatment.treatment(findings, is_exempt) {
        Treatment::Take => {}
        Treatment::Junk(why) => {
            let is_sorted = sort_into(message.transaction, message.receiver, &message.settings.mail, JUNK).await;
            message.junk = is_sorted.then_some(why);
        }
        Treatment::Refuse(reply) => return Err(Stop::because(reply, findings.summary())),
    }
    Ok(())
}

/// True for addresses whose senders ask for help with a refusal.
fn is_exempt(rcpt: &RcptTo) -> bool {
    is_exempt_address(&rcpt.forward_path.bare())
}

const JUNK: &str = "Junk";
