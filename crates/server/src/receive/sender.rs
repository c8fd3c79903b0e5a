//! Results of the checks of a stranger's message, written into its header.

use std::time::Duration;

use super::checks::{Check, Checking, ReadMessage};
use crate::ids::unix_micros;

/// Writes Authentication-Results above Received.
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
            Ok(())
        }))
    }
}
