//! Incoming reports about what we sent: delivery status notifications (RFC 3464, RFC 6533) and feedback reports (ARF, RFC 5965).
//!
//! [`Report::read`] takes the octets of a message. What a report says proves nothing: anybody can write one. A
//! [signed return path](crate::return_path) to which it came says whose it is.
//!
//! ```
//! use posthaste_relay::report::{Report, Action};
//!
//! let mail = b"Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n\
//!     --b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example.org\r\n\r\n\
//!     Final-Recipient: rfc822; bob@example.org\r\nAction: failed\r\nStatus: 5.1.1\r\n\
//!     --b\r\nContent-Type: text/rfc822-headers\r\n\r\nMessage-ID: <1@example.net>\r\n--b--\r\n";
//! let Some(Report::Delivery(report)) = Report::read(mail) else { panic!() };
//! assert_eq!(report.message_id.as_deref(), Some("1@example.net"));
//! let bob = &report.recipients[0];
//! assert_eq!((bob.recipient.as_str(), bob.action, bob.status), ("bob@example.org", Action::Failed, Some((5, 1, 1))));
//! ```
mod fields;
#[cfg(test)]
mod tests;

use posthaste_message::mime::{Header, Kind, Limits, Message, Part, message_id};

use fields::{address, blocks, code, text_of, typed};

/// The report in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The outcome of a message, for some of its recipients.
    Delivery(DeliveryReport),
    /// A recipient's or its provider's opinion of a message.
    Feedback(FeedbackReport),
}

/// A delivery status notification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The host that reports, without the type of its name.
    pub reporting_mta: Option<String>,
    /// ENVID of the original.
    pub envelope_id: Option<String>,
    /// Message-ID of the original, without brackets.
    pub message_id: Option<String>,
    /// The first [`RECIPIENTS_MAX`]; at least one.
    pub recipients: Vec<RecipientReport>,
}

/// The outcome of a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientReport {
    /// Its address at the end (Final-Recipient), without the type.
    pub recipient: String,
    /// Its address as we wrote it (Original-Recipient), without the type.
    pub original: Option<String>,
    /// Its outcome.
    pub action: Action,
    /// The enhanced status code.
    pub status: Option<(u8, u16, u16)>,
    /// The host's words, without the type: for SMTP a reply.
    pub diagnostic: Option<String>,
    /// The host that said so, without the type of its name.
    pub remote_mta: Option<String>,
}

/// The outcome of a recipient (RFC 3464 section 2.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// It will not be delivered.
    Failed,
    /// Not yet.
    Delayed,
    /// Delivered.
    Delivered,
    /// Handed to a host that says nothing of success.
    Relayed,
    /// Handed to several other addresses.
    Expanded,
}

/// A feedback report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedbackReport {
    /// `abuse`, `fraud`, `not-spam`, `opt-out` or another word, in lower case.
    pub feedback_type: String,
    /// Sender of the original: by the report, else by the Return-Path of what it encloses.
    pub mail_from: Option<String>,
    /// Recipients of the original: the first [`RECIPIENTS_MAX`]. Often left out, or made unreadable.
    pub recipients: Vec<String>,
    /// The address that the original came from, as text.
    pub source_ip: Option<String>,
    /// The domain that is complained about.
    pub reported_domain: Option<String>,
    /// Message-ID of the original, without brackets.
    pub message_id: Option<String>,
}

impl FeedbackReport {
    /// True if it is a complaint: `not-spam` is the opposite, and `auth-failure` (RFC 6591) and `dmarc` speak of signatures.
    pub fn is_complaint(&self) -> bool {
        matches!(&*self.feedback_type, "abuse" | "fraud" | "opt-out" | "opt-out-list" | "complaint")
    }
}

impl RecipientReport {
    /// The line `code enhanced text` for a [`Classifier`](crate::classify::Classifier). Without a reply, the status stands for it.
    pub fn line(&self) -> String {
        let said = self.diagnostic.as_deref().unwrap_or_default();
        if let Some((reply_code, text)) = said.split_once([' ', '-'])
            && reply_code.len() == 3
            && reply_code.bytes().all(|octet| octet.is_ascii_digit())
        {
            return format!("{reply_code} {text}");
        }
        let unknown = if self.action == Action::Failed { (5, 0, 0) } else { (4, 0, 0) };
        let (class, subject, detail) = self.status.unwrap_or(unknown);
        format!("{class}50 {class}.{subject}.{detail} {said}")
    }
}

impl Report {
    /// Reads the report in a message, if it is one. One that is forwarded within another message does not count.
    ///
    /// The time grows with the size of the message alone; texts are cut at [`TEXT_BYTES_MAX`] octets.
    pub fn read(message: &[u8]) -> Option<Report> {
        let message = Message::parse_within(message, &LIMITS);
        let part = message.parts().find(|part| part.media_type() == "multipart/report" && !is_enclosed(part))?;
        let kind = part.type_parameter("report-type").unwrap_or_default().to_ascii_lowercase();
        let child = |types: &[&str]| part.children().find(|child| types.contains(&&*child.media_type()));
        let original = child(&["message/rfc822", "message/global", "text/rfc822-headers", "message/global-headers"]);
        let message_id = original.as_ref().and_then(original_id);
        match &*kind {
            "delivery-status" => {
                let status = child(&["message/delivery-status", "message/global-delivery-status"])?;
                let report = delivery(&status.decoded(), message_id);
                (!report.recipients.is_empty()).then_some(Report::Delivery(report))
            }
            "feedback-report" => {
                let fields = child(&["message/feedback-report"])?;
                let mut report = feedback(&fields.decoded(), message_id)?;
                report.mail_from = report.mail_from.or_else(|| {
                    let header = original?.decoded();
                    text_of(&Header::new(&header), "Return-Path").map(|text| address(&text))
                });
                Some(Report::Feedback(report))
            }
            _ => None,
        }
    }
}

/// Recipients of a report that are read.
pub const RECIPIENTS_MAX: usize = 1000;
/// Octets of a text that are kept.
pub const TEXT_BYTES_MAX: usize = 1000;
/// A report has three parts, perhaps within others.
const LIMITS: Limits = Limits { depth: 10, parts: 100 };

fn is_enclosed(part: &Part<'_, '_>) -> bool {
    std::iter::successors(part.parent(), Part::parent).any(|above| above.kind() == Kind::Message)
}

fn original_id(original: &Part<'_, '_>) -> Option<String> {
    let header = original.decoded();
    let field = Header::new(&header).first("Message-ID")?;
    message_id(field.value).map(fields::cut)
}

fn delivery(status: &[u8], message_id: Option<String>) -> DeliveryReport {
    let mut report = DeliveryReport { message_id, ..DeliveryReport::default() };
    for block in blocks(status) {
        let header = Header::new(block);
        // Some hosts leave out the empty line behind the fields of the message, or put one within.
        report.reporting_mta = report.reporting_mta.or_else(|| typed(&header, "Reporting-MTA"));
        report.envelope_id = report.envelope_id.or_else(|| text_of(&header, "Original-Envelope-Id"));
        if report.recipients.len() < RECIPIENTS_MAX {
            report.recipients.extend(recipient(&header));
        }
    }
    report
}

fn recipient(header: &Header<'_>) -> Option<RecipientReport> {
    let action = match &*text_of(header, "Action")?.to_ascii_lowercase() {
        "failed" | "failure" => Action::Failed,
        "delayed" => Action::Delayed,
        "delivered" => Action::Delivered,
        "relayed" => Action::Relayed,
        "expanded" => Action::Expanded,
        _ => return None,
    };
    let original = typed(header, "Original-Recipient").map(|text| address(&text)).filter(|text| !text.is_empty());
    let last = typed(header, "Final-Recipient").map(|text| address(&text)).filter(|text| !text.is_empty());
    Some(RecipientReport {
        recipient: last.or_else(|| original.clone())?,
        original,
        action,
        status: text_of(header, "Status").and_then(|text| code(&text)),
        diagnostic: typed(header, "Diagnostic-Code"),
        remote_mta: typed(header, "Remote-MTA"),
    })
}

fn feedback(fields: &[u8], message_id: Option<String>) -> Option<FeedbackReport> {
    let header = Header::new(blocks(fields).next()?);
    let one = |name| text_of(&header, name);
    let recipients = header.fields().filter(|field| field.is("Original-Rcpt-To")).take(RECIPIENTS_MAX);
    Some(FeedbackReport {
        feedback_type: one("Feedback-Type")?.to_ascii_lowercase(),
        mail_from: one("Original-Mail-From").map(|text| address(&text)),
        recipients: recipients.map(|field| address(&fields::clean(&field.text(None)))).collect(),
        source_ip: one("Source-IP"),
        reported_domain: one("Reported-Domain"),
        message_id,
    })
}
