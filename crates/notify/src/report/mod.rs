//! Incoming reports about mail we sent: delivery status notifications (RFC 3464, RFC 6533) and feedback reports (ARF,
//! RFC 5965).
//!
//! [`MailReport::read`] parses the octets of a message. A report proves nothing, since anybody can write one. A [signed
//! return path](crate::return_path) that received it identifies the mail.
//!
//! ```
//! use posthaste_notify::report::{MailReport, ReportedAction};
//!
//! let mail = b"Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n\
//!     --b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example.org\r\n\r\n\
//!     Final-Recipient: rfc822; bob@example.org\r\nAction: failed\r\nStatus: 5.1.1\r\n\
//!     --b\r\nContent-Type: text/rfc822-headers\r\n\r\nMessage-ID: <1@example.net>\r\n--b--\r\n";
//! let Some(MailReport::Delivery(report)) = MailReport::read(mail) else { panic!() };
//! assert_eq!(report.message_id.as_deref(), Some("1@example.net"));
//! let bob = &report.recipients[0];
//! assert_eq!((bob.recipient.as_str(), bob.action, bob.status), ("bob@example.org", ReportedAction::Failed, Some((5, 1, 1))));
//! ```
mod fields;
#[cfg(test)]
mod tests;

use posthaste_message::mime::{Header, Kind, Message, Part, ScanLimits, message_id};

pub use fields::TEXT_BYTES_MAX;

use fields::{address, blocks, code, text_of, typed};

/// The report in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailReport {
    /// The outcome of a message for some of its recipients.
    Delivery(DeliveryReport),
    /// The opinion of a recipient, or of its provider, about a message.
    Feedback(FeedbackReport),
}

/// A delivery status notification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The reporting host, without the type of its name.
    pub reporting_mta: Option<String>,
    /// ENVID of the original message.
    pub envelope_id: Option<String>,
    /// Message-ID of the original message, without brackets.
    pub message_id: Option<String>,
    /// The first [`RECIPIENTS_MAX`] recipients; at least one.
    pub recipients: Vec<RecipientReport>,
}

/// The outcome of a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientReport {
    /// Its final address (Final-Recipient), without the type.
    pub recipient: String,
    /// The address as we sent it (Original-Recipient), without the type.
    pub original: Option<String>,
    /// Its outcome.
    pub action: ReportedAction,
    /// Enhanced status code.
    pub status: Option<(u8, u16, u16)>,
    /// The host's diagnostic, without the type: a reply for SMTP.
    pub diagnostic: Option<String>,
    /// The host that gave it, without the type of its name.
    pub remote_mta: Option<String>,
}

/// The outcome of a recipient (RFC 3464 section 2.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReportedAction {
    /// Delivery has failed for good.
    Failed,
    /// Not delivered yet.
    Delayed,
    /// Delivered.
    Delivered,
    /// Handed to a host that does not report success.
    Relayed,
    /// Forwarded to several other addresses.
    Expanded,
}

/// A feedback report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedbackReport {
    /// `abuse`, `fraud`, `not-spam`, `opt-out` or another word, in lower case.
    pub feedback_type: String,
    /// Sender of the original: by the report, else by the Return-Path of the enclosed message.
    pub mail_from: Option<String>,
    /// The first [`RECIPIENTS_MAX`] recipients of the original. Often missing or obfuscated.
    pub recipients: Vec<String>,
    /// IP address that the original came from, as text.
    pub source_ip: Option<String>,
    /// Domain of the complaint.
    pub reported_domain: Option<String>,
    /// Message-ID of the original, without brackets.
    pub message_id: Option<String>,
}

impl FeedbackReport {
    /// True for a complaint: `not-spam` is the opposite, and `auth-failure` (RFC 6591) and `dmarc` concern signatures.
    pub fn is_complaint(&self) -> bool {
        matches!(&*self.feedback_type, "abuse" | "fraud" | "opt-out" | "opt-out-list" | "complaint")
    }
}

impl RecipientReport {
    /// The line `code enhanced text` for a classifier of replies. The status replaces a missing
    /// reply.
    pub fn line(&self) -> String {
        let said = self.diagnostic.as_deref().unwrap_or_default();
        if let Some((reply_code, text)) = said.split_once([' ', '-'])
            && reply_code.len() == 3
            && reply_code.bytes().all(|octet| octet.is_ascii_digit())
        {
            return format!("{reply_code} {text}");
        }
        let unknown = if self.action == ReportedAction::Failed { (5, 0, 0) } else { (4, 0, 0) };
        let (class, subject, detail) = self.status.unwrap_or(unknown);
        format!("{class}50 {class}.{subject}.{detail} {said}")
    }
}

impl MailReport {
    /// Reads the report in a message; `None` if it is none. A report forwarded within another message does not count.
    ///
    /// Takes time linear in the message; texts are cut at [`TEXT_BYTES_MAX`] octets.
    pub fn read(message: &[u8]) -> Option<MailReport> {
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
                (!report.recipients.is_empty()).then_some(MailReport::Delivery(report))
            }
            "feedback-report" => {
                let fields = child(&["message/feedback-report"])?;
                let mut report = feedback(&fields.decoded(), message_id)?;
                report.mail_from = report.mail_from.or_else(|| {
                    let header = original?.decoded();
                    text_of(&Header::new(&header), "Return-Path").map(|text| address(&text))
                });
                Some(MailReport::Feedback(report))
            }
            _ => None,
        }
    }
}

/// Recipients of a report that are read.
pub const RECIPIENTS_MAX: usize = 1000;
/// A report has three parts, perhaps nested in others.
const LIMITS: ScanLimits = ScanLimits { depth: 10, parts: 100 };

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
        // Some hosts omit the empty line after the fields of the message, or add one within.
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
        "failed" | "failure" => ReportedAction::Failed,
        "delayed" => ReportedAction::Delayed,
        "delivered" => ReportedAction::Delivered,
        "relayed" => ReportedAction::Relayed,
        "expanded" => ReportedAction::Expanded,
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
