//! The transfer format of messages between queues: JSON lines.

use posthaste_intake::notify;
use posthaste_queue::entry::{Forwarded, HoldReason};
use posthaste_queue::{Queued, QueuedRecipient, QueuedRet, Status};
use posthaste_relay::sender::{Exported, ExportedRecipient};
use posthaste_smtp::{ForwardPath, ReversePath};
use posthaste_spool::Lsn;
use posthaste_units::is_name;
use serde::{Deserialize, Serialize};

/// `format` of the first line.
pub(super) const FORMAT: &str = "posthaste-queue";
/// `version` of the first line.
pub(super) const VERSION: u64 = 1;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum Line {
    First {
        format: String,
        version: u64,
        host: String,
        exported: u64,
    },
    Message {
        message: Head,
    },
    Recipient {
        recipient: Recipient,
    },
    Data {
        data: String,
    },
    End {
        end: End,
    },
    /// The message could not be read completely: discard its lines.
    Broken {
        broken: String,
    },
    Last {
        done: u64,
        recipients: u64,
        under_way: u64,
        broken: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    number: Lsn,
    sender: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    forwarded_sender: String,
    received: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    not_before: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    expires: u64,
    #[serde(default, skip_serializing_if = "is_no")]
    eight_bit: bool,
    #[serde(default, skip_serializing_if = "is_no")]
    smtputf8: bool,
    #[serde(default, skip_serializing_if = "is_no")]
    may_sign: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ret: Option<Returns>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    envid: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    tenant: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    campaign: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pool: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recipient {
    number: u16,
    address: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    orcpt: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notify: Vec<Notify>,
    #[serde(default, skip_serializing_if = "is_no")]
    forwarded: bool,
    attempts: u8,
    #[serde(default, skip_serializing_if = "is_none")]
    next: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<Held>,
    #[serde(default, skip_serializing_if = "is_no")]
    delay_told: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<(u16, u16, u16)>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reply: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    pub origin: String,
    /// Bytes of the content.
    pub bytes: u64,
    /// Digest of the lines of message and recipients with their line ends, the content, and `origin`.
    pub sha256: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Returns {
    Full,
    Headers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Notify {
    Never,
    Success,
    Failure,
    Delay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Held {
    Operator,
    Quarantine,
    Policy,
    Uncertain,
}

const NOTIFY: [(Notify, u8); 4] = [
    (Notify::Never, notify::NEVER),
    (Notify::Success, notify::SUCCESS),
    (Notify::Failure, notify::FAILURE),
    (Notify::Delay, notify::DELAY),
];
const HELD: [(Held, HoldReason); 4] = [
    (Held::Operator, HoldReason::Operator),
    (Held::Quarantine, HoldReason::Quarantine),
    (Held::Policy, HoldReason::Policy),
    (Held::Uncertain, HoldReason::Uncertain),
];

fn is_none(number: &u64) -> bool {
    *number == 0
}

fn is_no(is: &bool) -> bool {
    !is
}

impl Head {
    pub fn new(message: &Exported, bytes: u64) -> Self {
        let queued = &message.queued;
        Head {
            number: message.message,
            sender: queued.sender.to_string(),
            forwarded_sender: queued.forwarded.as_ref().map_or_else(String::new, |of| of.sender.to_string()),
            received: message.received,
            not_before: message.not_before,
            expires: message.expires,
            eight_bit: queued.is_8bit,
            smtputf8: queued.smtputf8,
            may_sign: queued.may_sign,
            ret: queued.ret.map(|ret| if ret == QueuedRet::Full { Returns::Full } else { Returns::Headers }),
            envid: queued.envid.to_string(),
            tenant: queued.tenant.to_string(),
            campaign: queued.campaign.to_string(),
            pool: queued.pool.to_string(),
            bytes,
        }
    }

    /// # Errors
    /// No server could have received it.
    pub fn into_message(self) -> Result<Exported, String> {
        let Head { number, sender, received, not_before, expires, envid, tenant, campaign, pool, .. } = self;
        let other = self.forwarded_sender;
        if let Some(wrong) = [&sender, &other].into_iter().find(|of| ReversePath::parse(&format!("<{of}>")).is_err()) {
            return Err(format!("`{wrong}` is not a sender"));
        }
        if let Some(name) = [&tenant, &campaign, &pool].into_iter().find(|name| !name.is_empty() && !is_name(name)) {
            return Err(format!("`{name}` is not a name of a tenant, campaign or pool"));
        }
        if !is_parameter(&envid) {
            return Err("`envid` is not an ENVID".to_owned());
        }
        let queued = Queued {
            received: 0,
            not_before: 0,
            expires: 0,
            sender: sender.into(),
            forwarded: (!other.is_empty()).then(|| Box::new(Forwarded { sender: other.into(), numbers: Vec::new() })),
            is_8bit: self.eight_bit,
            smtputf8: self.smtputf8,
            may_sign: self.may_sign,
            ret: self.ret.map(|ret| if ret == Returns::Full { QueuedRet::Full } else { QueuedRet::Headers }),
            envid: envid.into(),
            tenant: tenant.into(),
            campaign: campaign.into(),
            pool: pool.into(),
            recipients: Vec::new(),
        };
        Ok(Exported { message: number, queued, received, not_before, expires, recipients: Vec::new() })
    }
}

impl Recipient {
    pub fn new(of: &ExportedRecipient) -> Self {
        let Status { code, enhanced } = of.status;
        Recipient {
            number: of.to.number,
            address: of.to.address.to_string(),
            orcpt: of.to.orcpt.to_string(),
            notify: NOTIFY.into_iter().filter(|(_, bit)| of.to.notify & bit != 0).map(|(notify, _)| notify).collect(),
            forwarded: of.is_forwarded,
            attempts: of.attempts,
            next: of.next,
            held: HELD.into_iter().find(|(_, reason)| Some(*reason) == of.held).map(|(held, _)| held),
            delay_told: of.delay_told,
            status: (code != 0).then_some((code, enhanced / 1000, enhanced % 1000)),
            reply: of.reply.to_string(),
        }
    }

    /// # Errors
    /// No server could have received it.
    pub fn into_recipient(self) -> Result<ExportedRecipient, String> {
        let Recipient { number, address, orcpt, attempts, next, delay_told, status, reply, .. } = self;
        if ForwardPath::parse(&format!("<{address}>")).is_err() {
            return Err(format!("`{address}` is not a recipient"));
        }
        let bits = self
            .notify
            .iter()
            .fold(0, |bits, notify| bits | NOTIFY.iter().find(|(name, _)| name == notify).map_or(0, |(_, bit)| *bit));
        if !is_parameter(&orcpt) || bits & notify::NEVER != 0 && bits != notify::NEVER {
            return Err(format!("`{address}` has an invalid ORCPT or NOTIFY"));
        }
        let status = status.unwrap_or_default();
        if status.0 != 0 && !(200..600).contains(&status.0) || status.1 > 64 || status.2 > 999 {
            return Err(format!("`{address}` has an invalid status"));
        }
        let held = self.held.and_then(|held| HELD.iter().find(|(name, _)| *name == held).map(|(_, reason)| *reason));
        let end = reply.floor_char_boundary(REPLY_BYTES_MAX);
        Ok(ExportedRecipient {
            to: QueuedRecipient { number, address: address.into(), orcpt: orcpt.into(), notify: bits },
            is_forwarded: self.forwarded,
            attempts,
            next,
            status: Status { code: status.0, enhanced: status.1 * 1000 + status.2 },
            held,
            delay_told,
            reply: reply[..end].into(),
        })
    }
}

/// True if it is valid as a value in a command.
fn is_parameter(text: &str) -> bool {
    text.len() <= PARAMETER_BYTES_MAX && !text.contains(|c: char| c.is_control() || c.is_whitespace())
}

const PARAMETER_BYTES_MAX: usize = 500;
const REPLY_BYTES_MAX: usize = posthaste_queue::entry::REPLY_BYTES_MAX;

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Exported {
        let to = QueuedRecipient {
            number: 3,
            address: "bob@there.example".into(),
            orcpt: "rfc822;b+2B@x.example".into(),
            notify: notify::FAILURE | notify::DELAY,
        };
        let (status, reply) = (Status { code: 450, enhanced: 2001 }, "busy \u{e9}".into());
        let first = ExportedRecipient {
            to,
            is_forwarded: true,
            attempts: 3,
            next: 1_900_000_000,
            status,
            held: None,
            delay_told: true,
            reply,
        };
        let to = QueuedRecipient { number: 9, notify: notify::NEVER, orcpt: "".into(), ..first.to.clone() };
        let held = Some(HoldReason::Quarantine);
        let second =
            ExportedRecipient { to, is_forwarded: false, next: 0, held, status: Status::default(), ..first.clone() };
        let queued = Queued {
            received: 0,
            not_before: 0,
            expires: 0,
            sender: "".into(),
            forwarded: Some(Box::new(Forwarded { sender: "SRS0=x@here.example".into(), numbers: Vec::new() })),
            is_8bit: true,
            smtputf8: true,
            may_sign: true,
            ret: Some(QueuedRet::Headers),
            envid: "QQ".into(),
            tenant: "acme".into(),
            campaign: "spring".into(),
            pool: "fast".into(),
            recipients: Vec::new(),
        };
        let recipients = vec![first, second];
        Exported { message: Lsn::new(7), queued, received: 1, not_before: 2, expires: 3, recipients }
    }

    fn through_json<T: Serialize + for<'de> Deserialize<'de>>(line: &T) -> T {
        serde_json::from_str(&serde_json::to_string(line).unwrap()).unwrap()
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        let Line::Message { message: head } = through_json(&Line::Message { message: Head::new(&message(), 4) }) else {
            panic!("another line")
        };
        let mut found = head.into_message().unwrap();
        for recipient in &message().recipients {
            let line = Line::Recipient { recipient: Recipient::new(recipient) };
            let Line::Recipient { recipient } = through_json(&line) else { panic!("another line") };
            found.recipients.push(recipient.into_recipient().unwrap());
        }
        assert_eq!(found, message());
    }

    #[test]
    fn nothing_comes_in_that_no_client_could_have_sent() {
        let head = |change: &dyn Fn(&mut Head)| {
            let mut head = Head::new(&message(), 4);
            change(&mut head);
            head.into_message().is_ok()
        };
        assert!(head(&|_| ()));
        assert!(!head(&|head| head.sender = "a@b>\r\nRCPT TO:<c@d".to_owned()));
        assert!(!head(&|head| head.forwarded_sender = "a@b>\r\nRCPT TO:<c@d".to_owned()));
        assert!(!head(&|head| head.envid = "a\r\nDATA".to_owned()));
        assert!(!head(&|head| head.envid = "a BODY=BINARYMIME".to_owned()));
        assert!(!head(&|head| head.envid = "a".repeat(501)));
        assert!(!head(&|head| head.tenant = "a b".to_owned()));
        let recipient = |change: &dyn Fn(&mut Recipient)| {
            let mut recipient = Recipient::new(&message().recipients[0]);
            change(&mut recipient);
            recipient.into_recipient()
        };
        assert!(recipient(&|_| ()).is_ok());
        assert!(recipient(&|to| to.address = String::new()).is_err());
        assert!(recipient(&|to| to.address = "a@b> NOTIFY=NEVER".to_owned()).is_err());
        assert!(recipient(&|to| to.orcpt = "rfc822;a NOTIFY=NEVER".to_owned()).is_err());
        assert!(recipient(&|to| to.notify = vec![Notify::Never, Notify::Delay]).is_err());
        assert!(recipient(&|to| to.status = Some((450, 65, 0))).is_err());
        assert!(recipient(&|to| to.status = Some((99, 0, 0))).is_err());
        let long = recipient(&|to| to.reply = "\u{e9}".repeat(600)).unwrap();
        assert_eq!(long.reply.len(), REPLY_BYTES_MAX);
    }

    #[test]
    fn lines_with_something_else_in_them_are_none() {
        // A promise that nothing here keeps.
        let promise = r#"{"message":{"number":"7","sender":"a@b","received":1,"bytes":4}}"#;
        assert!(serde_json::from_str::<Line>(promise).is_ok());
        let with = promise.replace("\"bytes\"", "\"require_tls\":true,\"bytes\"");
        assert!(serde_json::from_str::<Line>(&with).is_err(), "{with}");
        for line in ["{}", "[]", "{\"data\":1}", "{\"data\":\"\",\"more\":1}", "{\"end\":{\"origin\":\"x\"}}", "nul"] {
            assert!(serde_json::from_str::<Line>(line).is_err(), "{line}");
        }
    }
}
