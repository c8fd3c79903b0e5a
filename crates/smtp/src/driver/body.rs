//! A message as read by its handler.

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

/// The message being received. Reading it reads from the connection, so a slow reader slows only its own client, and
/// nothing accumulates in between.
#[derive(Debug)]
pub struct IncomingBody<'a> {
    connection: &'a mut Connection,
    state: State,
}

#[derive(Debug)]
enum State {
    Reading,
    /// A piece found before it was asked for.
    Ready(Bytes),
    /// The end was reached, and the machine waits for the outcome.
    Complete,
    /// The machine replies itself, or the client has gone.
    Failed(BodyError, Option<Stop>),
}

/// The end of a body.
#[derive(Debug)]
pub(super) enum End {
    Complete,
    Refused,
    Stopped(Stop),
}

impl<'a> IncomingBody<'a> {
    /// Maximum memory of one piece in bytes.
    pub const CHUNK_BYTES_MAX: usize = 512 << 10;

    pub(super) fn new(connection: &'a mut Connection) -> Self {
        Self { connection, state: State::Reading }
    }

    /// The next piece of the message: wire octets with the dots of transparency removed (RFC 5321 section 4.5.2) and
    /// CRLF kept. A small message that arrived in one read is one piece. `None` at the end. Dropping the future loses
    /// nothing.
    ///
    /// Reads from the client, as only this and [`IncomingBody::readable`] do: a slow reader slows its client, and nothing
    /// accumulates. A piece is a slice of the read buffer or a copy. Keeping one keeps about twice its length at most,
    /// and never more than [`IncomingBody::CHUNK_BYTES_MAX`].
    ///
    /// # Errors
    /// The message is lost or will be refused, and the client gets that reply whatever the handler returns. Discard the
    /// pieces read before. Further calls return the same error.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        while !self.look().await {
            let read = self.connection.fill().await;
            self.note(read);
        }
        match &mut self.state {
            State::Ready(piece) => {
                let piece = std::mem::take(piece);
                self.state = State::Reading;
                Some(Ok(self.connection.hand_out(piece)))
            }
            State::Failed(error, _) => Some(Err(error.clone())),
            State::Complete | State::Reading => None,
        }
    }

    /// Waits until [`IncomingBody::chunk`] has something to return or to read. Meanwhile the body holds only the memory of
    /// pieces given out, so callers can first make room. `false`: nothing more comes, and `chunk` says why. Dropping
    /// the future loses nothing.
    pub async fn readable(&mut self) -> bool {
        if !self.look().await {
            let readable = self.connection.readable().await;
            self.note(readable);
        }
        matches!(self.state, State::Reading | State::Ready(_))
    }

    /// Looks for the next piece in the read octets. False: it needs another read.
    async fn look(&mut self) -> bool {
        while matches!(self.state, State::Reading) {
            match self.connection.step() {
                Event::Body(bytes) => self.state = State::Ready(bytes),
                Event::BodyEnd => self.state = State::Complete,
                Event::BodyAborted(error) => self.state = State::Failed(error, None),
                Event::Close => self.state = State::Failed(BodyError::Disconnected, None),
                Event::NeedInput => return false,
                Event::Flush => {
                    let flushed = self.connection.flush().await;
                    self.note(flushed);
                }
                event @ (Event::Hello
                | Event::Mail
                | Event::Rcpt
                | Event::Data
                | Event::BodyBegin(_)
                | Event::TransactionAborted(_)
                | Event::StartTls
                | Event::Auth(_)) => unreachable!("{event:?} within a body"),
            }
        }
        true
    }

    fn note(&mut self, done: Result<(), Stop>) {
        if let Err(stop) = done {
            self.state = State::Failed(stop.body_error(), Some(stop));
        }
    }

    /// Waits for `work`; `None` after `patience`. Like `tokio::time::timeout`, but uses the session's own timer.
    pub async fn within<F: Future>(&mut self, patience: Duration, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut elapsed = pin!(self.elapsed(patience));
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => elapsed.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits for a time, as `tokio::time::sleep` does, but on the session's own timer.
    pub async fn elapsed(&mut self, patience: Duration) {
        let deadline = after(Instant::now(), patience);
        poll_fn(|cx| self.connection.poll_alarm(deadline, cx)).await;
    }

    /// True if the client has closed the connection after the whole message: nobody waits for a reply, and the client
    /// will send the message again. A client that has sent more before it closed its side may still wait.
    pub fn has_hung_up(&mut self) -> bool {
        matches!(self.state, State::Complete) && self.connection.has_hung_up()
    }

    /// Refuses the rest: the handler has decided before the end.
    pub(super) fn refuse_rest(&mut self, outcome: &MessageOutcome) {
        self.connection.machine.refuse_rest(outcome);
    }

    /// Skips the rest that the handler left.
    pub(super) async fn end(mut self) -> End {
        while let Some(Ok(_)) = self.chunk().await {}
        self.ended().expect("read to its end")
    }

    /// The end of the body, if the handler has read to it.
    pub(super) fn ended(&self) -> Option<End> {
        match self.state {
            State::Reading | State::Ready(_) => None,
            State::Complete => Some(End::Complete),
            State::Failed(_, Some(stop)) => Some(End::Stopped(stop)),
            State::Failed(_, None) => Some(End::Refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use posthaste_net::Stream;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;
    use crate::driver::setup::Door;
    use crate::server::{Config, Protocol};

    /// A connection at the start of a body.
    async fn in_body(begin: &str) -> (Connection, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let door = Door { protocol: Protocol::Smtp, implicit_tls: false };
        let config = Arc::new(Config::new("mx.example.org"));
        let mut connection = Connection::new(Stream::Unix(ours), config, Arc::default(), door);
        connection.machine.greet(Ok(()));
        let open = "EHLO c.example\r\nMAIL FROM:<a@example.org> SIZE=250000\r\nRCPT TO:<b@example.org>\r\n";
        theirs.write_all(format!("{open}{begin}\r\n").as_bytes()).await.unwrap();
        loop {
            match connection.step() {
                Event::NeedInput => connection.fill().await.unwrap(),
                Event::Mail | Event::Rcpt => connection.machine.answer(Ok(())),
                Event::BodyBegin(_) => return (connection, theirs),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Octets that the connection holds while nothing comes.
    async fn held_while_waiting(body: &mut IncomingBody<'_>) -> usize {
        let mut readable = Box::pin(body.readable());
        let waits = poll_fn(|cx| Poll::Ready(readable.as_mut().poll(cx).is_pending())).await;
        drop(readable);
        assert!(waits, "nothing was sent");
        body.connection.held_bytes()
    }

    #[tokio::test]
    async fn an_announced_size_or_a_small_piece_takes_no_memory() {
        for begin in ["BDAT 250000 LAST", "DATA"] {
            let (mut connection, mut client) = in_body(begin).await;
            let mut body = IncomingBody::new(&mut connection);
            assert!(held_while_waiting(&mut body).await <= 64, "{begin}");
            assert!(body.connection.missing_room().is_some_and(|bytes| bytes <= 64 << 10), "{begin}");
            let mut kept = Vec::new();
            for _ in 0..3 {
                client.write_all(b"xxxxxxxx").await.unwrap();
                assert!(body.readable().await);
                kept.push(body.chunk().await.unwrap().unwrap());
                assert!(held_while_waiting(&mut body).await <= 64, "{begin}: the buffer went back");
            }
            assert_eq!(kept.concat(), [b'x'; 24]);
        }
    }

    #[tokio::test]
    async fn pieces_that_are_kept_take_no_more_than_twice_their_length() {
        let (mut connection, mut client) = in_body("BDAT 250000 LAST").await;
        let sending = tokio::spawn(async move {
            for len in [60_000, 100, 5000, 40_000, 1, 100_000, 44_899] {
                client.write_all(&vec![b'x'; len]).await.unwrap();
                tokio::task::yield_now().await;
            }
            client
        });
        let mut body = IncomingBody::new(&mut connection);
        let (mut bytes, mut kept) = (0, Vec::new());
        while body.readable().await {
            let piece = body.chunk().await.unwrap().unwrap();
            assert!(piece.len() <= IncomingBody::CHUNK_BYTES_MAX);
            bytes += piece.len();
            // A slice keeps its buffer: the rest of that is less than the part given out.
            assert!(body.connection.held_bytes() <= bytes, "{} beside {bytes}", body.connection.held_bytes());
            kept.push(piece);
        }
        assert_eq!((bytes, body.chunk().await), (250_000, None));
        drop(sending.await.unwrap());
    }

    #[tokio::test]
    async fn looking_whether_there_is_more_loses_nothing() {
        let (mut connection, mut client) = in_body("DATA").await;
        client.write_all(b"one\r\n..two\r\n.\r\n").await.unwrap();
        let mut body = IncomingBody::new(&mut connection);
        let mut whole = Vec::new();
        while body.readable().await && body.readable().await {
            if let Some(Ok(piece)) = body.chunk().await {
                whole.extend_from_slice(&piece);
            }
        }
        assert_eq!(whole, b"one\r\n.two\r\n");
        assert!(body.chunk().await.is_none() && body.chunk().await.is_none());
    }
}
