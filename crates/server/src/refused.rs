//! Who is told that a transport refuses a message for good: the sender if it is one of ours, else the postmaster of the recipient's domain. A stranger's
//! address may be forged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_message::DateTime;
use posthaste_relay::dsn::Written;
use posthaste_transport::RefusedMail;
use tokio::runtime::Handle;

use crate::forward::now;
use crate::receive::{Receiver, WeakReceiver};
use crate::success::random_id;

/// Tells them.
#[derive(Clone)]
pub(crate) struct RefusalNotices {
    receiver: WeakReceiver,
    runtime: Handle,
    /// When the postmaster was last told of a transport.
    told: Arc<Mutex<HashMap<Arc<str>, Instant>>>,
}

/// One refusal.
pub(crate) struct RefusedDelivery {
    pub transport: Arc<str>,
    pub id: u64,
    pub recipient: Arc<str>,
    pub of: RefusedMail,
    pub reply: Arc<str>,
}

impl RefusalNotices {
    /// To be made within the runtime of the server.
    pub fn new(receiver: &Receiver) -> Self {
        Self { receiver: receiver.downgrade(), runtime: Handle::current(), told: Arc::default() }
    }

    /// Tells of a refusal. Does not block.
    pub fn tell(&self, refusal: RefusedDelivery) {
        let Some(receiver) = self.receiver.upgrade() else { return };
        let Some(to) = self.reader(&receiver, &refusal) else { return };
        self.runtime.spawn(async move {
            let written = notice(&receiver.settings().host_name, &to, &refusal);
            let error = match receiver.notify(&to, written, None).await {
                Ok(true) => return,
                Ok(false) => "nobody has this address".to_owned(),
                Err(error) => error,
            };
            tracing::warn!(to, id = refusal.id, error, "nobody could be told of a message that a transport refuses");
        });
    }

    /// Whom to tell, if anybody: not a postmaster whose own mail is refused, and a postmaster once an hour of each transport.
    fn reader(&self, receiver: &Receiver, refusal: &RefusedDelivery) -> Option<String> {
        if receiver.is_ours(&refusal.of.sender) {
            return Some(refusal.of.sender.to_string());
        }
        let (local_part, domain) = refusal.recipient.rsplit_once('@')?;
        if local_part.eq_ignore_ascii_case(POSTMASTER) {
            return None;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        told.retain(|_, last| now.saturating_duration_since(*last) < POSTMASTER_PAUSE);
        let is_due = !told.contains_key(&refusal.transport);
        told.entry(refusal.transport.clone()).or_insert(now);
        is_due.then(|| format!("{POSTMASTER}@{domain}"))
    }
}

const POSTMASTER: &str = "postmaster";
const POSTMASTER_PAUSE: Duration = Duration::from_secs(3600);

fn notice(host: &str, to: &str, refusal: &RefusedDelivery) -> Written {
    let RefusedDelivery { transport, id, recipient, of, reply } = refusal;
    let clean = |text: &str| text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let sender = if of.sender.is_empty() { "nobody (a notification)" } else { &of.sender };
    let received = DateTime::from_unix(of.received_secs.cast_signed());
    let address = if of.original.is_empty() { recipient } else { &of.original };
    let text = format!(
        "From: Mail Delivery System <MAILER-DAEMON@{host}>\r\nTo: <{}>\r\nSubject: A message is refused and waits\r\nDate: {}\r\n\
         Message-ID: <{:032x}@{host}>\r\nAuto-Submitted: auto-replied\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Transfer-Encoding: 8bit\r\n\r\n\
         This is the mail server {host}.\r\n\r\n\
         A message could not be handed over: the other side refuses it for good. It is kept here and tried again once in a while.\r\n\r\n\
         from:      {}\r\nto:        {}\r\nreceived:  {received}\r\nnumber:    {id}\r\nfor:       {}\r\nanswer:    {}\r\n",
        clean(to),
        now(),
        random_id(),
        clean(sender),
        clean(address),
        clean(transport),
        clean(reply),
    );
    let header_end = text.find("\r\n\r\n").unwrap_or(text.len());
    let (is_8bit, smtputf8) = (!text.is_ascii(), !text[..header_end].is_ascii());
    Written { message: vec![Bytes::from(text)], is_8bit, smtputf8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_one_text_whatever_the_other_side_says() {
        let refusal = RefusedDelivery {
            transport: "lmtp:unix:/run/x".into(),
            id: 4711,
            recipient: "bob@example.org".into(),
            of: RefusedMail { sender: "ann@example.org".into(), original: "".into(), received_secs: 0 },
            reply: "550 no\r\nBcc: <eve@example.net>\u{7f}".into(),
        };
        let written = notice("mx.example.org", "ann@example.org", &refusal);
        let text = String::from_utf8(written.message.concat()).unwrap();
        assert!(!written.is_8bit && !written.smtputf8);
        assert!(text.contains("\r\nto:        bob@example.org\r\n"), "{text}");
        assert!(text.ends_with("answer:    550 no  Bcc: <eve@example.net> \r\n"), "{text}");
        assert!(text.lines().all(|line| line.len() < 200));
        let written = notice("mx.example.org", "jürgen@example.org", &refusal);
        assert!(written.is_8bit && written.smtputf8);
    }
}
