//! Adapts a connection of `posthaste-net` to hyper: octets, and a timer.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Read, ReadBufCursor, Sleep, Timer, Write};
use posthaste_net::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::heads::{HeadRefusal, Heads};

/// Octets of a connection. A write fails if the client reads nothing for [`WRITE_PATIENCE`], so that idle readers
/// cannot hold connections and descriptors forever.
pub(crate) struct Octets {
    stream: Stream,
    /// Timer that runs while a write waits for the client.
    stalled: Option<Pin<Box<tokio::time::Sleep>>>,
    heads: Heads,
}

impl Octets {
    pub fn new(stream: Stream) -> Self {
        Self { stream, stalled: None, heads: Heads::default() }
    }

    /// The refusal of the first head, while nothing was answered.
    pub fn refused_at_once(&self) -> Option<HeadRefusal> {
        self.heads.refusal().filter(|_| !self.heads.had_any())
    }

    /// Returns the underlying connection.
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// The outcome of a write, or a timeout error.
    fn within_patience<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_PATIENCE)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Maximum octets of one read.
const READ_BYTES: usize = 16 << 10;
/// Timeout of a write during which the client takes no octet.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

impl Read for Octets {
    /// Returns complete, checked heads, and bodies. They are copied: hyper's buffer may be uninitialised, and this
    /// crate has no unsafe code.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut to: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        loop {
            let ready = self.heads.ready();
            if !ready.is_empty() {
                let part = ready.split_to(ready.len().min(to.remaining()));
                to.put_slice(&part);
                return Poll::Ready(Ok(()));
            }
            if let Some(refusal) = self.heads.refusal() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refusal)));
            }
            let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
            let mut read = ReadBuf::uninit(&mut scratch[..to.remaining().min(READ_BYTES)]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let passed = self.heads.pass(read.filled());
            let (body, rest) = read.filled().split_at(passed);
            to.put_slice(body);
            // Good octets in front of a refused head are given out first.
            let _ = self.heads.push(rest);
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl Write for Octets {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, octets);
        self.within_patience(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.within_patience(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.within_patience(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.within_patience(cx, ended)
    }
}

/// The clock of tokio, for hyper's time limit on heads.
pub(crate) struct TokioTimer;

struct Until(Pin<Box<tokio::time::Sleep>>);

impl Future for Until {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl Sleep for Until {}

impl Timer for TokioTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let mut octets = Octets::new(Stream::Unix(ours));
        let begun = tokio::time::Instant::now();
        let error = std::future::poll_fn(|cx| {
            loop {
                if let Err(error) = ready!(Pin::new(&mut octets).poll_write(cx, &[b'x'; 4096])) {
                    return Poll::Ready(error);
                }
            }
        })
        .await;
        assert_eq!((error.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, WRITE_PATIENCE));
        drop(theirs);
    }
}
