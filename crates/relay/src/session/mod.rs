//! Sessions with one address of a host: connect, send message after message, and learn each recipient's outcome.
//!
//! [`OutgoingSession::open`] connects and does all steps before the first message. [`OutgoingSession::run`] takes messages from a
//! [`Traffic`] and returns a [`RecipientFate`] for each recipient. [`OutgoingSession::verify`] asks for a recipient and sends nothing.
//! With PIPELINING the next message's commands share a write with the end of the last one. A session knows no MX,
//! queues or limits; bodies are written without a copy.
//!
//! ```no_run
//! use posthaste_relay::session::{Endpoint, RecipientFate, OutgoingMessage, OutgoingSession, SessionSettings, Traffic};
//! use std::task::{Context, Poll};
//!
//! /// One message.
//! struct One(Option<OutgoingMessage<()>>);
//!
//! impl Traffic for One {
//!     type Key = ();
//!
//!     fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<OutgoingMessage<()>>> {
//!         Poll::Ready(self.0.take())
//!     }
//!
//!     fn finished(&mut self, _: (), fates: Vec<RecipientFate>) {
//!         for fate in fates {
//!             println!("{:?}: {}", fate.scope(), fate.reply());
//!         }
//!     }
//! }
//!
//! async fn send(message: OutgoingMessage<()>) -> Result<(), Box<dyn std::error::Error>> {
//!     let endpoint = Endpoint::Tcp("192.0.2.1:25".parse()?);
//!     let mut session = OutgoingSession::open(&endpoint, &SessionSettings::new("mail.example.net")).await?;
//!     session.run(&mut One(Some(message))).await;
//!     session.quit().await;
//!     Ok(())
//! }
//! ```
mod channel;
mod error;
mod fate;
mod link;
mod open;
mod proxy;
mod settings;
pub(crate) mod steps;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use posthaste_net::Stream;
use posthaste_smtp::client::{Event, Extensions, MessageBody, Stage, Step};
use posthaste_smtp::{MailFrom, RcptTo, Reply, ReversePath};
use posthaste_watch::Pulse;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

pub use channel::Channel;
pub use error::{Loss, SessionOpenError};
pub use fate::{FateScope, RecipientFate, Said};
pub use proxy::Proxy;
pub use settings::{Endpoint, Halt, SessionAuth, SessionSettings, SessionTimeouts, SessionTls, TlsPolicy};
pub use steps::STEPS;

use link::Link;

/// One message for one transaction.
#[derive(Debug, Clone)]
pub struct OutgoingMessage<K> {
    /// The key that identifies the message to [`Traffic::finished`].
    pub key: K,
    /// Sender and parameters. The session sends those that the server offers, and SIZE from the body.
    pub mail: MailFrom,
    /// Recipients of one transaction, as far as the server takes them. Without any the message is finished at once.
    pub recipients: Vec<RcptTo>,
    /// The content with CRLF line ends, without dot-stuffing, in any number of pieces. Bare CR and LF become CRLF.
    pub body: Vec<Bytes>,
}

/// The source of a session's messages, and the receiver of their outcomes.
pub trait Traffic {
    /// The owner's key of a message.
    type Key;

    /// The next message; `None` ends the run once those in flight are finished. Called again after `Pending` at any
    /// wake-up of the task. Each message given is finished exactly once, unless the future of [`OutgoingSession::run`] is
    /// dropped.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<OutgoingMessage<Self::Key>>>;

    /// True if no message is on its way to the session. While one is, as from a slow disk, the session is not
    /// [idle](RunEnd::Idle).
    fn is_idle(&self) -> bool {
        true
    }

    /// True if the time of giving a message counts, as for a rate. It is then asked for only when its MAIL can be
    /// written at once, not with the rest of the last message.
    fn is_timed(&self) -> bool {
        false
    }

    /// The outcome of a message: a fate for each recipient, in their order.
    fn finished(&mut self, key: Self::Key, fates: Vec<RecipientFate>);
}

/// The reason why a run ended. All messages taken are finished.
#[derive(Debug)]
pub enum RunEnd {
    /// [`Traffic::poll_next`] returned `None`. The session stays open for another run.
    NoMore,
    /// No message came for [`SessionTimeouts::idle`]. The session stays open: call [`OutgoingSession::quit`].
    Idle,
    /// The session has sent its maximum of messages: call [`OutgoingSession::quit`].
    Full,
    /// The session is over.
    Lost(Loss),
}

/// A host's verdict on a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipientVerdict {
    /// 2yz to RCPT: the host accepts mail for it.
    Taken,
    /// 5yz to RCPT, or the address needs an extension that the host lacks: no mail for it.
    Refused(Reply),
    /// Any other reply, such as 4yz other than 421 to RCPT, or a refused sender.
    NotKnown(Reply),
}

/// An open session.
#[derive(Debug)]
pub struct OutgoingSession {
    link: Link,
    channel: Channel,
    messages_left: u64,
    finished: u64,
    /// Replies received before the first message.
    replied: u64,
    /// Set within [`OutgoingSession::run`]. Stays if its future is dropped: then the state of the dialogue is unknown.
    is_running: bool,
}

impl OutgoingSession {
    /// Connects and does all steps before the first message.
    ///
    /// # Errors
    /// See [`SessionOpenError`]; its scope is the host, or the source.
    pub async fn open(endpoint: &Endpoint, settings: &SessionSettings) -> Result<Self, SessionOpenError> {
        Self::open_over(open::connect(endpoint, settings).await?, settings).await
    }

    /// Like [`OutgoingSession::open`], over an existing connection, as by a proxy.
    ///
    /// # Errors
    /// See [`SessionOpenError`].
    pub async fn open_over(stream: Stream, settings: &SessionSettings) -> Result<Self, SessionOpenError> {
        let (link, channel) = open::establish(stream, settings).await?;
        let replied = link.machine.replied();
        let messages_left = settings.messages_max;
        Ok(Self { link, channel, messages_left, finished: 0, replied, is_running: false })
    }

    /// The extensions that the server offers.
    pub fn extensions(&self) -> &Extensions {
        self.link.machine.extensions()
    }

    /// The protection of the session.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// Messages finished since the opening, whatever their outcome. A session lost before its first is the host's
    /// trouble; a used one may have been closed for its age.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// True if the server has answered anything since the opening.
    pub(crate) fn has_answered(&self) -> bool {
        self.link.machine.replied() > self.replied
    }

    /// True if the session was lost at its first MAIL without an answer over TLS: the server's TLS may not work.
    pub(crate) fn is_useless_tls(&self, loss: &Loss) -> bool {
        let is_at_mail =
            matches!(loss, Loss::Io { step: Step::Mail, .. } | Loss::TimedOut(Step::Mail)) && !self.has_answered();
        self.channel != Channel::Clear && is_at_mail
    }

    /// Passes the session to another owner. `messages_max` includes the messages sent before; steps go to `pulse`.
    pub(crate) fn take_over(&mut self, messages_max: u64, pulse: Pulse) {
        self.messages_left = self.messages_left.min(messages_max.saturating_sub(self.finished));
        self.link.pulse = Some(pulse);
    }

    /// True if another message can be sent.
    pub fn is_open(&self) -> bool {
        !self.link.machine.is_closed() && !self.is_running && !self.link.is_broken() && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.messages_left == 0 || self.link.machine.messages_left() == 0
    }

    /// Sends messages until there are no more, none comes for a while, the server takes no more, or the session is
    /// lost. At most two are in flight.
    ///
    /// Dropping the future early ends the session; the outcome of messages in flight is then unknown.
    pub async fn run<T: Traffic>(&mut self, traffic: &mut T) -> RunEnd {
        if std::mem::replace(&mut self.is_running, true) || self.link.machine.is_closed() {
            return RunEnd::Lost(Loss::Over);
        }
        self.link.begin_wait();
        let mut keys = VecDeque::new();
        let end = match self.carry(traffic, &mut keys).await {
            Ok(end) => end,
            Err(loss) => {
                self.give_up(traffic, &mut keys, &loss.as_reply());
                RunEnd::Lost(loss)
            }
        };
        assert!(keys.is_empty(), "{} messages are not finished", keys.len());
        self.is_running = false;
        end
    }

    async fn carry<T: Traffic>(&mut self, traffic: &mut T, keys: &mut VecDeque<T::Key>) -> Result<RunEnd, Loss> {
        let mut has_more = true;
        loop {
            match self.link.step()? {
                Event::NeedInput => {}
                Event::Sent(outcome) => {
                    self.finished += 1;
                    let key = keys.pop_front().expect("each transaction has its key");
                    traffic.finished(key, fate::of(outcome));
                    continue;
                }
                Event::Closed => return Err(self.link.closed()),
                event => unreachable!("{event:?} within a transaction"),
            }
            let is_idle = self.link.machine.in_flight() == 0;
            // The rest of a body that was refused early goes first.
            let is_flushed = !self.link.machine.output().has_remaining();
            if is_idle && is_flushed {
                if !has_more {
                    return Ok(RunEnd::NoMore);
                }
                if self.is_full() {
                    return Ok(RunEnd::Full);
                }
            }
            let is_stuck = self.link.is_broken() || is_idle && !is_flushed;
            let may_take = has_more && self.messages_left > 0 && self.link.machine.may_send() && !is_stuck;
            let may_take = may_take && (!traffic.is_timed() || is_flushed && self.link.machine.may_mail());
            match poll_fn(|cx| self.poll(traffic, may_take, is_idle, cx)).await {
                Ok(Next::Progress) => {}
                Ok(Next::NoMore) => has_more = false,
                Ok(Next::Message(message)) => self.begin(message, traffic, keys),
                Err(Loss::TimedOut(Step::Idle)) if is_flushed && !traffic.is_idle() => self.link.wait_on(),
                Err(Loss::TimedOut(Step::Idle)) if is_flushed => return Ok(RunEnd::Idle),
                Err(loss) => return Err(loss),
            }
        }
    }

    fn poll<T: Traffic>(
        &mut self,
        traffic: &mut T,
        may_take: bool,
        is_idle: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Next<T::Key>, Loss>> {
        // A closed idle session takes no message.
        if is_idle && let Poll::Ready(progress) = self.link.poll_progress(cx) {
            return Poll::Ready(progress.map(|()| Next::Progress));
        }
        // Before any write, so that the next message's commands join it.
        if may_take && let Poll::Ready(next) = traffic.poll_next(cx) {
            return Poll::Ready(Ok(next.map_or(Next::NoMore, Next::Message)));
        }
        if is_idle { Poll::Pending } else { self.link.poll_progress(cx).map_ok(|()| Next::Progress) }
    }

    fn begin<T: Traffic>(&mut self, message: OutgoingMessage<T::Key>, traffic: &mut T, keys: &mut VecDeque<T::Key>) {
        if message.recipients.is_empty() {
            return traffic.finished(message.key, Vec::new());
        }
        self.messages_left -= 1;
        keys.push_back(message.key);
        self.link.machine.send(message.mail, message.recipients, MessageBody::Whole(message.body));
    }

    fn give_up<T: Traffic>(&mut self, traffic: &mut T, keys: &mut VecDeque<T::Key>, reply: &Reply) {
        for outcome in self.link.machine.abort(reply) {
            self.finished += 1;
            let key = keys.pop_front().expect("each transaction has its key");
            traffic.finished(key, fate::of(outcome));
        }
    }

    /// Verifies a recipient: MAIL with the empty sender, then RCPT, and no DATA. The next use of the session begins
    /// with RSET. Counts as a message.
    ///
    /// Dropping the future before its end ends the session.
    ///
    /// # Errors
    /// The session is over, or was already: [`Loss::Closed`] after any 421.
    pub async fn verify(&mut self, recipient: RcptTo) -> Result<RecipientVerdict, Loss> {
        if !self.is_open() {
            return Err(Loss::Over);
        }
        self.is_running = true;
        self.messages_left -= 1;
        self.link.begin_wait();
        self.link.machine.send(MailFrom::new(ReversePath::Null), vec![recipient], MessageBody::Absent);
        let outcome = loop {
            match self.link.step()? {
                Event::NeedInput => poll_fn(|cx| self.link.poll_progress(cx)).await?,
                Event::Sent(outcome) => break outcome,
                Event::Closed => return Err(self.link.closed()),
                event => unreachable!("{event:?} within a transaction"),
            }
        };
        self.finished += 1;
        self.is_running = false;
        let Some(recipient) = outcome.recipients.into_iter().next() else { return Err(Loss::Over) };
        let reply = Reply::from(recipient.reply);
        if recipient.lost || reply.code() == 421 {
            return Err(self.link.closed());
        }
        Ok(match recipient.stage {
            Stage::Rcpt if reply.is_positive() => RecipientVerdict::Taken,
            Stage::Rcpt | Stage::Local if reply.is_permanent() => RecipientVerdict::Refused(reply),
            _ => RecipientVerdict::NotKnown(reply),
        })
    }

    /// Sends QUIT, waits for the reply, at most [`SessionTimeouts::quit`], and closes. Nothing depends on it.
    pub async fn quit(mut self) {
        if self.link.machine.is_closed() || self.is_running || self.link.is_broken() {
            return;
        }
        self.link.machine.quit();
        while matches!(self.link.step(), Ok(Event::NeedInput)) {
            if poll_fn(|cx| self.link.poll_progress(cx)).await.is_err() {
                return;
            }
        }
        let _ = timeout(self.link.timeouts.quit, self.link.stream.shutdown()).await;
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "it is matched where it is returned; a box would be an allocation a message"
)]
enum Next<K> {
    Progress,
    Message(OutgoingMessage<K>),
    NoMore,
}
