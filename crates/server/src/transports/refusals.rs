//! Who is told that a transport refuses a message for good: the sender if it is one of ours, else the postmaster of the recipient's domain. A stranger's
//! address may be forged.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_message::DateTime;
use posthaste_relay::dsn::Written;
use posthaste_spool::Entry;
use posthaste_transport::{RefusalNotifier, RefusedMail, Telling};

use crate::forward::now;
use crate::receive::{Receiver, WeakReceiver};
use crate::success::random_id;

/// Tells them.
#[derive(Clone)]
pub(crate) struct RefusalNotices {
    receiver: WeakReceiver,
    /// When the postmaster was last told of a transport.
    told: Arc<Mutex<HashMap<Arc<str>, Instant>>>,
}

impl fmt::Debug for RefusalNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalNotices").finish_non_exhaustive()
    }
}

impl RefusalNotifier for RefusalNotices {
    fn tell(&self, refused: RefusedMail, told: Entry) -> Telling {
        let notices = self.clone();
        Box::pin(async move {
            let receiver = notices.receiver.upgrade().ok_or("the server ends")?;
            let Some(to) = notices.reader(&receiver, &refused) else { return Ok(false) };
            let written = notice(&receiver.settings().host_name, &to.address, &refused);
            let made = receiver.notify(&to.address, written, Some(told), None).await;
            match made {
                Ok(false) => {
                    let id = refused.id;
                    tracing::warn!(
                        to = to.address,
                        id,
                        "nobody has the address to tell of a message that a transport refuses"
                    );
                }
                Err(_) if to.is_postmaster => drop(notices.told().remove(&refused.transport)),
                _ => {}
            }
            made
        })
    }
}

/// The reader of a notice.
struct Reader {
    address: String,
    is_postmaster: bool,
}

impl RefusalNotices {
    pub fn new(receiver: &Receiver) -> Self {
        Self { receiver: receiver.downgrade(), told: Arc::default() }
    }

    fn told(&self) -> MutexGuard<'_, HashMap<Arc<str>, Instant>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom to tell, if anybody: not a postmaster whose own mail is refused, and a postmaster once an hour of each transport.
    fn reader(&self, receiver: &Receiver, refused: &RefusedMail) -> Option<Reader> {
        if receiver.is_ours(&refused.sender) {
            return Some(Reader { address: refused.sender.to_string(), is_postmaster: false });
        }
        let (local_part, domain) = refused.recipient.rsplit_once('@')?;
        if local_part.eq_ignore_ascii_case(POSTMASTER) {
            return None;
        }
        let mut told = self.told();
        let now = Instant::now();
        told.retain(|_, last| now.saturating_duration_since(*last) < POSTMASTER_PAUSE);
        let is_due = !told.contains_key(&refused.transport);
        told.entry(refused.transport.clone()).or_insert(now);
        is_due.then(|| Reader { address: format!("{POSTMASTER}@{domain}"), is_postmaster: true })
    }
}

const POSTMASTER: &str = "postmaster";
const POSTMASTER_PAUSE: Duration = Duration::from_secs(3600);

fn notice(host: &str, to: &str, refused: &RefusedMail) -> Written {
    let RefusedMail { transport, id, recipient, original, sender, received_secs, reply } = refused;
    let clean = |text: &str| text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let sender = if sender.is_empty() { "nobody (a notification)" } else { sender };
    let received = DateTime::from_unix(received_secs.cast_signed());
    let address = if original.is_empty() { recipient } else { original };
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
        let refused = RefusedMail {
            transport: "lmtp:unix:/run/x".into(),
            id: 4711,
            recipient: "bob@example.org".into(),
            original: "".into(),
            sender: "ann@example.org".into(),
            received_secs: 0,
            reply: "550 no\r\nBcc: <eve@example.net>\u{7f}".into(),
        };
        let written = notice("mx.example.org", "ann@example.org", &refused);
        let text = String::from_utf8(written.message.concat()).unwrap();
        assert!(!written.is_8bit && !written.smtputf8);
        assert!(text.contains("\r\nto:        bob@example.org\r\n"), "{text}");
        assert!(text.ends_with("answer:    550 no  Bcc: <eve@example.net> \r\n"), "{text}");
        assert!(text.lines().all(|line| line.len() < 200));
        let written = notice("mx.example.org", "jürgen@example.org", &refused);
        assert!(written.is_8bit && written.smtputf8);
    }
}
