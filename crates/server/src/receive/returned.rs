//! Mail about sent mail: bounces to a signed return path, and complaints of mail that had one. For each: the sent
//! message, the report, and the forwarding address.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_events::{Event, EventKind, Feedback};
use posthaste_intake::GatheredBody;
use posthaste_notify::originals::Original;
use posthaste_notify::report::{FeedbackReport, MailReport, RecipientReport, ReportedAction};
use posthaste_notify::return_path::ReturnPathError;
use posthaste_notify::suppression::SuppressionSource;
use posthaste_queue::RecipientKey;
use posthaste_relay::sender::Relay;
use posthaste_smtp::ForwardPath;
use posthaste_spool::Lsn;
use tokio::task::spawn_blocking;

use crate::receive::events::EventRecorder;
use crate::receive::success::HEADER_BYTES_MAX;

/// A recipient that is a return path signed by this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Returned {
    /// The recipient of the sent message.
    pub key: RecipientKey,
    /// Sender, recipient and tenant of the original; `None` if no longer known.
    pub original: Option<Original>,
}

/// A message about mail sent from here.
#[derive(Debug)]
pub(crate) struct ReturnedMail {
    /// The sent messages that it concerns.
    pub returned: Vec<Returned>,
    /// The report; `None` if unreadable.
    pub report: Option<MailReport>,
}

/// Kinds of recipients.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReturnPath {
    /// An ordinary address.
    Ordinary,
    /// Forged, altered or expired.
    Invalid,
    /// A return path signed by this server.
    Ours(Returned),
    /// A return path signed by us, whose recipient cannot be looked up now.
    NotNow,
}

/// The report on the recipient that its return path names.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReportFields {
    kind: String,
    reporter: String,
    status: String,
    text: String,
    message_id: String,
    /// Class and reply in one line, if the recipient was refused permanently.
    refused: Option<String>,
    is_complaint: bool,
}

impl ReturnPath {
    /// Looks a recipient up. May read from the disk.
    pub fn of(relay: Option<&Relay>, path: &ForwardPath) -> Self {
        let signed = relay.and_then(|relay| relay.bounces().return_path.as_ref());
        let (Some(signed), Some(address)) = (signed, path.address()) else { return Self::Ordinary };
        match signed.verify(address.local_part(), &address.domain().to_string()) {
            Ok(bounced) => match signed.original(bounced.key) {
                Ok(original) => Self::Ours(Returned { key: bounced.key, original }),
                Err(error) => {
                    tracing::error!(error = %error, "mail to a signed return path is deferred");
                    Self::NotNow
                }
            },
            Err(ReturnPathError::NotOurs) => Self::Ordinary,
            Err(_) => Self::Invalid,
        }
    }
}

/// Logs mail to signed return paths, in the message `report`, and suppresses addresses as configured.
pub(crate) fn note(relay: &Relay, recorder: Option<&EventRecorder>, mail: &ReturnedMail, report: Lsn) {
    let read = mail.report.as_ref();
    for Returned { key, original } in &mail.returned {
        let recipient = original.as_ref().map_or("", |original| &original.recipient);
        let said = said(read, recipient);
        let id = key.message;
        let number = key.number;
        let kind = &*said.kind;
        let status = &*said.status;
        let text = &*said.text;
        tracing::info!(%id, number, to = recipient, kind, status, text, "a bounce or complaint about sent mail has arrived");
        let bounces = relay.bounces();
        if let Some(original) = original {
            let classes = bounces.classes.now();
            let class = said.refused.as_deref().map(|line| (classes.classify(line), line));
            if let Some((class, line)) = class.filter(|(class, _)| class.is_address_bad()) {
                let reason = format!("{}: {line}", class.name());
                bounces.suppress(SuppressionSource::Bounce, &original.tenant, &original.recipient, reason);
            }
            if said.is_complaint {
                bounces.suppress(
                    SuppressionSource::Complaint,
                    &original.tenant,
                    &original.recipient,
                    said.kind.clone(),
                );
            }
        }
        let Some(recorder) = recorder else { continue };
        let text_of = |text: Option<&String>| Arc::from(text.map_or("", String::as_str));
        recorder.note(&Event::now(EventKind::Feedback(Feedback {
            kind: said.kind.into(),
            report,
            message: key.message,
            number: key.number,
            reporter: said.reporter.into(),
            sender: text_of(original.as_ref().map(|original| &original.sender)),
            recipient: text_of(original.as_ref().map(|original| &original.recipient)),
            message_id: said.message_id.into(),
            status: said.status.into(),
            text: said.text.into(),
            tenant: text_of(original.as_ref().map(|original| &original.tenant)),
            campaign: Arc::default(),
        })));
    }
}

/// Complaint in a feedback report that was sent to an ordinary address. A valid signed return path proves that the reporter has the original. Larger reports
/// than [`COMPLAINT_BYTES_MAX`] are not read.
pub(crate) async fn complaint(relay: Option<&Relay>, body: &GatheredBody) -> Option<ReturnedMail> {
    let relay = relay.filter(|relay| relay.bounces().return_path.is_some())?;
    let GatheredBody::Memory(pieces) = body else { return None };
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    if bytes > COMPLAINT_BYTES_MAX || !header_has(pieces, REPORT_TYPE) {
        return None;
    }
    let relay = relay.clone();
    let pieces = pieces.clone();
    // A report takes time to parse, and its original may be on the disk.
    let read = spawn_blocking(move || {
        let report = MailReport::read(&pieces.concat())?;
        let MailReport::Feedback(FeedbackReport { mail_from: Some(sender), .. }) = &report else { return None };
        match ReturnPath::of(Some(&relay), &ForwardPath::parse(&format!("<{sender}>")).ok()?) {
            ReturnPath::Ours(returned) => Some(ReturnedMail { returned: vec![returned], report: Some(report) }),
            _ => None,
        }
    });
    read.await.unwrap_or_else(|error| {
        tracing::error!(error = error.to_string(), "cannot read a feedback report: the address is not suppressed");
        None
    })
}

/// True if a message's header contains a word, ignoring case. The word's first letter must occur in it once.
fn header_has(pieces: &[Bytes], word: &[u8]) -> bool {
    let mut matched = 0;
    let mut ended = 2;
    for octet in pieces.iter().flatten().take(HEADER_BYTES_MAX) {
        let octet = octet.to_ascii_lowercase();
        matched = if octet == word[matched] { matched + 1 } else { usize::from(octet == word[0]) };
        ended = if octet == b"\r\n\r\n"[ended] { ended + 1 } else { usize::from(octet == b'\r') };
        if matched == word.len() || ended == 4 {
            return matched == word.len();
        }
    }
    false
}

/// RFC 5965 section 2.
const REPORT_TYPE: &[u8] = b"feedback-report";
/// Maximum size of a complaint, including the original or its header.
const COMPLAINT_BYTES_MAX: usize = 1 << 20;

/// The report in a message. One too large for memory is not read.
pub(crate) fn read(body: &GatheredBody) -> Option<MailReport> {
    match body {
        GatheredBody::Memory(pieces) => MailReport::read(&pieces.concat()),
        _ => None,
    }
}

/// The report on a recipient: by its address, or the report's only one.
fn said(report: Option<&MailReport>, recipient: &str) -> ReportFields {
    match report {
        None => ReportFields { kind: "other".to_owned(), ..ReportFields::default() },
        Some(MailReport::Feedback(report)) => ReportFields {
            kind: report.feedback_type.clone(),
            reporter: report.reported_domain.clone().unwrap_or_default(),
            message_id: report.message_id.clone().unwrap_or_default(),
            is_complaint: report.is_complaint(),
            ..ReportFields::default()
        },
        Some(MailReport::Delivery(report)) => {
            let is_it = |of: &&RecipientReport| {
                let original = of.original.as_deref().unwrap_or_default();
                [&*of.recipient, original].iter().any(|address| address.eq_ignore_ascii_case(recipient))
            };
            // Behind a forward it has another address.
            let of = report.recipients.iter().find(is_it).or(report.recipients.first());
            let Some(of) = of else { return ReportFields::default() };
            let kind = match of.action {
                ReportedAction::Failed => "failed",
                ReportedAction::Delayed => "delayed",
                ReportedAction::Delivered => "delivered",
                ReportedAction::Relayed => "relayed",
                ReportedAction::Expanded => "expanded",
                _ => "other",
            };
            let status =
                of.status.map_or_else(String::new, |(class, subject, detail)| format!("{class}.{subject}.{detail}"));
            let line = of.line();
            let is_final = of.action == ReportedAction::Failed && line.starts_with('5');
            ReportFields {
                kind: kind.to_owned(),
                reporter: report.reporting_mta.clone().unwrap_or_default(),
                status,
                text: of.diagnostic.clone().unwrap_or_default(),
                message_id: report.message_id.clone().unwrap_or_default(),
                refused: is_final.then_some(line),
                is_complaint: false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(fields: &str) -> Option<MailReport> {
        let text = format!(
            "Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n\
             --b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.there.example\r\n\r\n{fields}\r\n--b--\r\n"
        );
        read(&GatheredBody::Memory(vec![text.into()]))
    }

    #[test]
    fn the_recipient_that_was_sent_to_is_looked_for() {
        let report = delivery(
            "Final-Recipient: rfc822; other@there.example\r\nAction: delayed\r\nStatus: 4.2.2\r\n\r\n\
             Final-Recipient: rfc822; new@far.example\r\nOriginal-Recipient: rfc822; Bob@There.example\r\nAction: failed\r\nStatus: 5.1.1\r\n",
        );
        let found = said(report.as_ref(), "bob@there.example");
        assert_eq!((&*found.kind, &*found.status, &*found.reporter), ("failed", "5.1.1", "mx.there.example"));
        assert!(found.refused.unwrap().starts_with("550 5.1.1"));
        let found = said(report.as_ref(), "gone@there.example");
        assert_eq!((&*found.kind, found.refused), ("delayed", None), "the first stands for what is not named");
    }

    #[test]
    fn a_word_is_looked_for_in_the_header_alone_however_it_is_split() {
        let check = |text: &str, expected: bool| {
            for at in 0..=text.len() {
                let (first, second) = text.as_bytes().split_at(at);
                let pieces = [Bytes::copy_from_slice(first), Bytes::copy_from_slice(second)];
                assert_eq!(header_has(&pieces, REPORT_TYPE), expected, "{text:?} at {at}");
            }
        };
        check("A: b\r\nContent-Type: multipart/report; report-type=Feedback-Report\r\n\r\nx", true);
        check("A: feedfeedback-report\r\n\r\n", true);
        check("A: feedback-repor\r\n\r\nfeedback-report", false);
        check("\r\nfeedback-report", false);
        check("A: b\r\r\n\r\nfeedback-report", false);
        check("", false);
        let far = format!("A: {}\r\nfeedback-report", "x".repeat(HEADER_BYTES_MAX));
        assert!(!header_has(&[far.into()], REPORT_TYPE));
    }

    #[test]
    fn only_a_final_refusal_can_suppress() {
        for (action, status, is_final) in [
            ("failed", "5.1.1", true),
            ("failed", "4.4.7", false),
            ("delayed", "5.1.1", false),
            ("delivered", "2.0.0", false),
        ] {
            let report =
                delivery(&format!("Final-Recipient: rfc822; a@b.example\r\nAction: {action}\r\nStatus: {status}\r\n"));
            assert_eq!(said(report.as_ref(), "a@b.example").refused.is_some(), is_final, "{action} {status}");
        }
        assert_eq!(said(None, "a@b.example"), ReportFields { kind: "other".into(), ..ReportFields::default() });
    }
}
