//! Addressees of notices that a transport refuses a message for good: the sender if it is local, else the postmaster of
//! the recipient's domain. A stranger's address may be forged.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_message::DateTime;
use posthaste_notify::dsn::DsnMessage;
use posthaste_spool::Entry;
use posthaste_transport::{RefusalNotifier, RefusedMail, Telling};

use crate::config::forward::now;
use crate::receive::handler::{Receiver, WeakReceiver};
use crate::receive::success::random_id;

/// Tells them.
#[derive(Clone)]
pub(crate) struct RefusalNotices {
    receiver: WeakReceiver,
    /// Time of the last notice to the postmaster about each transport, or of the one in progress.
    told: Arc<Mutex<HashMap<Arc<str>, PostmasterTold>>>,
}

/// A notice to the postmaster about a transport.
struct PostmasterTold {
    since: Instant,
    /// The notice is durable.
    is_made: bool,
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
            let Some(mut to) = notices.reader(&receiver, &refused)? else { return Ok(false) };
            let written = notice(&receiver.settings().host_name, &to.address, &refused);
            let made = receiver.notify(&to.address, written, Some(told), None).await;
            to.telling.iter_mut().for_each(|telling| telling.is_made = made.is_ok());
            if made == Ok(false) {
                let id = refused.id;
                tracing::warn!(
                    to = to.address,
                    %id,
                    "no mailbox for the notice that a transport refuses this message"
                );
            }
            made
        })
    }
}

/// The reader of a notice.
struct Reader {
    address: String,
    /// If it is the postmaster.
    telling: Option<PostmasterTelling>,
}

/// A notice to the postmaster in progress. Dropped without success, even by a panic, it allows another one at the next
/// refusal.
struct PostmasterTelling {
    notices: RefusalNotices,
    transport: Arc<str>,
    is_made: bool,
}

impl Drop for PostmasterTelling {
    fn drop(&mut self) {
        self.notices.postmaster_told(&self.transport, self.is_made);
    }
}

impl RefusalNotices {
    pub fn new(receiver: &Receiver) -> Self {
        Self { receiver: receiver.downgrade(), told: Arc::default() }
    }

    fn told(&self) -> MutexGuard<'_, HashMap<Arc<str>, PostmasterTold>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addressee, if any: a postmaster at most once an hour for each transport, and not about its own refused
    /// mail.
    ///
    /// # Errors
    /// A notice about this transport is in progress, and may fail: retry.
    fn reader(&self, receiver: &Receiver, refused: &RefusedMail) -> Result<Option<Reader>, String> {
        if receiver.is_ours(&refused.sender) {
            return Ok(Some(Reader { address: refused.sender.to_string(), telling: None }));
        }
        let Some((local_part, domain)) = refused.recipient.rsplit_once('@') else { return Ok(None) };
        if local_part.eq_ignore_ascii_case(POSTMASTER) {
            return Ok(None);
        }
        let telling = self.begin_postmaster(&refused.transport, Instant::now())?;
        Ok(telling.map(|telling| Reader { address: format!("{POSTMASTER}@{domain}"), telling: Some(telling) }))
    }

    /// The right to notify the postmaster of a transport now; `None` if that was done within the hour.
    fn begin_postmaster(&self, transport: &Arc<str>, now: Instant) -> Result<Option<PostmasterTelling>, String> {
        let mut told = self.told();
        told.retain(|_, last| now.saturating_duration_since(last.since) < POSTMASTER_PAUSE);
        match told.get(transport) {
            Some(PostmasterTold { is_made: true, .. }) => Ok(None),
            Some(_) => Err("the postmaster is being told of another message".to_owned()),
            None => {
                told.insert(transport.clone(), PostmasterTold { since: now, is_made: false });
                Ok(Some(PostmasterTelling { notices: self.clone(), transport: transport.clone(), is_made: false }))
            }
        }
    }

    /// Notes that the notice is durable, or was not made: then the next refusal makes one.
    fn postmaster_told(&self, transport: &Arc<str>, is_made: bool) {
        let mut told = self.told();
        match told.get_mut(transport).filter(|_| is_made) {
            Some(last) => last.is_made = true,
            None => drop(told.remove(transport)),
        }
    }
}

const POSTMASTER: &str = "postmaster";
const POSTMASTER_PAUSE: Duration = Duration::from_secs(3600);

fn notice(host: &str, to: &str, refused: &RefusedMail) -> DsnMessage {
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
    let is_8bit = !text.is_ascii();
    let smtputf8 = !text[..header_end].is_ascii();
    DsnMessage { message: vec![Bytes::from(text)], is_8bit, smtputf8 }
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

    #[test]
    fn a_postmaster_is_told_once_the_notice_is_durable() {
        let notices = RefusalNotices { receiver: WeakReceiver::default(), told: Arc::default() };
        let (transport, now): (Arc<str>, _) = ("lmtp:x".into(), Instant::now());
        let begin = |now| notices.begin_postmaster(&transport, now);
        let mut telling = begin(now).unwrap().expect("nobody was told");
        assert!(begin(now).is_err(), "it may fail yet");
        telling.is_made = true;
        drop(telling);
        assert!(begin(now).unwrap().is_none());
        assert!(begin(now + POSTMASTER_PAUSE).unwrap().is_some());
    }

    #[test]
    fn a_notice_that_fails_or_panics_leaves_the_next_one_to_be_made() {
        let notices = RefusalNotices { receiver: WeakReceiver::default(), told: Arc::default() };
        let transport: Arc<str> = "lmtp:x".into();
        let begin = || notices.begin_postmaster(&transport, Instant::now()).unwrap();
        assert!(begin().is_some());
        assert!(begin().is_some(), "it has failed");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _telling = begin();
            panic!("a panic that a test asks for");
        }));
        assert!(panicked.is_err() && begin().is_some());
    }
}
