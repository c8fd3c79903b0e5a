//! A message as its handler reads it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use posthaste_net::after;
use tokio::time::Instant;

use super::connection::{Connection, Stop};
use crate::body_error::BodyError;
use crate::server::{Event, MessageOutcome};

/// The message that is being received. Reading it is what reads the connection, so a slow reader slows its client down
/// and no one else, and nothing piles up in between.
#[derive(Debug)]
pub struct Body<'a> {
    connection: &'a mut Connection,
    state: State,
}

#[derive(Debug)]
enum State {
    Reading,
    /// The end was met and the machine waits for the outcome.
    Complete,
    /// The machine replies by itself, or nobody listens any more.
    Failed(BodyError, Option<Stop>),
}

/// How a body ended.
#[derive(Debug)]
pub(super) enum End {
    Complete,
    Refused,
    Stopped(Stop),
}

impl<'a> Body<'a> {
    pub(super) fn new(connection: &'a mut Connection) -> Self {
        Self { connection, state: State::Reading }
    }

    /// The next piece of the message: wire octets with the dots of transparency removed and CRLF kept, a slice of the
    /// read buffer and not a copy. A small message that arrived in one read comes as one piece. `None` once the whole
    /// message was given out. The future may be dropped; nothing is lost.
    ///
    /// # Errors
    /// The message is lost or will be refused, and the client is told so whatever the handler returns. What was read
    /// before must be thrown away. Further calls return the same error.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            if let Some(next) = self.at_hand().await {
                return next;
            }
            self.read().await;
        }
    }

    /// What [`Body::chunk`] gives, if no more has to be read for it; otherwise `None`. With [`Body::readable`] and [`Body::read`],
    /// for those who count memory before it is used: nothing at hand, readable, count, read, and again.
    pub async fn at_hand(&mut self) -> Option<Option<Result<Bytes, BodyError>>> {
        loop {
            match &self.state {
                State::Reading => {}
                State::Complete => return Some(None),
                State::Failed(error, _) => return Some(Some(Err(error.clone()))),
            }
            match self.connection.step() {
                Event::Body(bytes) => return Some(Some(Ok(bytes))),
                Event::BodyEnd => self.state = State::Complete,
                Event::BodyAborted(error) => self.state = State::Failed(error, None),
                Event::Close => self.state = State::Failed(BodyError::Disconnected, None),
                Event::NeedInput => return None,
                Event::Flush => {
                    let flushed = self.connection.flush().await;
                    self.note(flushed);
                }
                event @ (Event::Hello
                | Event::Mail
                | Event::Rcpt
                | Event::Data
                | Event::BodyBegin(_)
                | Event::StartTls
                | Event::Auth(_)) => unreachable!("{event:?} within a body"),
            }
        }
    }

    /// Waits until there is something to read, for use when nothing is [`Body::at_hand`]. Each time that there is nothing, as much
    /// memory as can be is given back, and `waits` is told the [`Body::buffer_bytes`] that are left. Returns `false` when nothing
    /// will be read any more: the error is at hand.
    pub async fn readable(&mut self, waits: impl FnMut(usize)) -> bool {
        if matches!(self.state, State::Reading) {
            let readable = self.connection.readable(waits).await;
            self.note(readable);
        }
        matches!(self.state, State::Reading)
    }

    /// Waits for input and reads it once, into [`Body::growth_bytes`] of new memory.
    pub async fn read(&mut self) {
        if matches!(self.state, State::Reading) {
            let read = self.connection.fill().await;
            self.note(read);
        }
    }

    fn note(&mut self, done: Result<(), Stop>) {
        if let Err(stop) = done {
            self.state = State::Failed(stop.body_error(), Some(stop));
        }
    }

    /// Octets of memory that the connection keeps ready for what comes next. A piece is a slice of the same memory, so one who
    /// keeps all pieces of a message holds their lengths and this.
    pub fn buffer_bytes(&self) -> usize {
        self.connection.buffer_bytes()
    }

    /// Octets that [`Body::buffer_bytes`] grows by with the next [`Body::read`]. It may become more where a new buffer is made as
    /// large as the one before, so count again when something is at hand.
    pub fn growth_bytes(&self) -> usize {
        self.connection.growth_bytes()
    }

    /// Gives back what [`Body::buffer_bytes`] counts as far as no piece shares it; what has come and was not taken stays.
    pub fn give_buffer_back(&mut self) {
        self.connection.give_buffer_back();
    }

    /// Waits for `work`, and for `patience` at most: then `None`. Does what a timeout of tokio's does, on the timer that the
    /// session has anyway, so that it costs no timer operation.
    pub async fn within<F: Future>(&mut self, patience: Duration, work: F) -> Option<F::Output> {
        let deadline = after(Instant::now(), patience);
        let mut work = pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.connection.poll_alarm(deadline, cx).map(|()| None),
        })
        .await
    }

    /// The handler has decided before the end.
    pub(super) fn refuse_rest(&mut self, outcome: &MessageOutcome) {
        self.connection.machine.refuse_rest(outcome);
    }

    /// Reads over what the handler left.
    pub(super) async fn end(mut self) -> End {
        while let Some(Ok(_)) = self.chunk().await {}
        self.ended().expect("read to its end")
    }

    /// How it ended, if the handler has read it to its end.
    pub(super) fn ended(&self) -> Option<End> {
        match self.state {
            State::Reading => None,
            State::Complete => Some(End::Complete),
            State::Failed(_, Some(stop)) => Some(End::Stopped(stop)),
            State::Failed(_, None) => Some(End::Refused),
        }
    }
}
