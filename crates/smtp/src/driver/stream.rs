//! The kinds of sockets that a session runs over.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "tls")]
use tokio::io::AsyncBufRead;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// One of the others, encrypted.
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::TlsStream<Stream>>),
    /// Taken away for a handshake, or lost in it.
    #[cfg(feature = "tls")]
    Gone,
}

impl Stream {
    /// Waits until there may be something to read, without needing a buffer for it.
    pub fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
            // What has come may be no more than a part of a record: there is something to read once a record is whole.
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_fill_buf(cx).map_ok(drop),
            #[cfg(feature = "tls")]
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Whether all that was written has gone to the socket.
    pub fn is_flushed(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => true,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => !stream.get_ref().1.wants_write(),
            #[cfg(feature = "tls")]
            Self::Gone => true,
        }
    }

    /// Whether a handshake has failed, so that nothing can be said any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(_) => false,
            #[cfg(feature = "tls")]
            Self::Gone => true,
        }
    }

    /// Writes without waiting; for replies to clients that are turned away.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(_) | Self::Gone => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
            #[cfg(feature = "tls")]
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
            #[cfg(feature = "tls")]
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
            #[cfg(feature = "tls")]
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
            #[cfg(feature = "tls")]
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            #[cfg(feature = "tls")]
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}
