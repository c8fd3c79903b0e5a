//! One thread of the sink: its event loop, and the sessions on it.
//!
//! All sessions of a thread read through one buffer. It stays in the processor's cache, and an idle connection owns
//! next to nothing. Input that a session leaves in it (part of a line, or commands after a delayed answer) is put aside
//! until its next turn. A read is followed by at most one write.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use posthaste_smtp::Reply;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::rule_file::SlowReadRule;
use super::session::{NextStep, Session};
use super::shared::Shared;
use super::tls::TlsMode;

/// Octets of one read. Fewer with delays, since a session may have to keep all of them.
const READ_BYTES: usize = 128 << 10;
const READ_BYTES_WITH_DELAYS: usize = 16 << 10;
/// Time for which a closed connection is still read, so that the last reply is not lost to a reset.
const LINGER: Duration = Duration::from_millis(500);
/// Pause in accepting when there are no descriptors left.
const REST: Duration = Duration::from_millis(20);

thread_local! {
    static BUFFER: RefCell<BytesMut> = RefCell::default();
}

/// A connection being handed to its thread.
pub(super) type Accepted = (std::net::TcpStream, IpAddr);

/// Serves the connections from `accepted` until `stop` is true. Sessions still open then are cut off.
pub(super) async fn serve(
    shared: Arc<Shared>,
    worker: usize,
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    mut stop: watch::Receiver<bool>,
) {
    let serving = async {
        while let Some((stream, client)) = accepted.recv().await {
            start(&shared, worker, TcpStream::from_std(stream), client);
        }
        // The acceptor is gone; the sessions go on until the end.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serving => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Accepts connections and hands each to the thread with the fewest. Runs on the first thread.
pub(super) async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    workers: Vec<mpsc::UnboundedSender<Accepted>>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => hand_over(stream, peer.ip().to_canonical(), &shared, &workers),
            // The client is gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // Out of descriptors or memory: what is open goes on, and accepting will be possible again.
            Err(_) => sleep(REST).await,
        }
    }
}

fn hand_over(stream: TcpStream, client: IpAddr, shared: &Arc<Shared>, workers: &[mpsc::UnboundedSender<Accepted>]) {
    let open = shared.open.fetch_add(1, Ordering::Relaxed);
    if open >= shared.connections_max {
        shared.open.fetch_sub(1, Ordering::Relaxed);
        shared.tallies[0].turned_away.add(1);
        let mut reply = Vec::new();
        Reply::new(421, "4.3.2", "Too many connections, come again").write(&mut reply);
        // A fresh socket has room for it; if not, the close says enough.
        let _ = stream.try_write(&reply);
        return;
    }
    // This thread alone accepts.
    shared.open_max.fetch_max(open + 1, Ordering::Relaxed);
    let open = |worker: &usize| shared.opened[*worker].load(Ordering::Relaxed) - shared.tallies[*worker].closed.get();
    let worker = (0..workers.len()).min_by_key(open).unwrap_or(0);
    shared.opened[worker].fetch_add(1, Ordering::Relaxed);
    if worker == 0 {
        start(shared, worker, Ok(stream), client);
        return;
    }
    // Both fail only when everything is being stopped; then the stream is closed and the count no longer matters.
    if let Ok(stream) = stream.into_std() {
        let _ = workers[worker].send((stream, client));
    }
}

fn start(shared: &Arc<Shared>, worker: usize, stream: io::Result<TcpStream>, client: IpAddr) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let tally = &shared.tallies[worker];
        tally.connections.add(1);
        let ended = match stream {
            Ok(stream) => converse_with(stream, &shared, worker, client).await,
            Err(error) => Err(error),
        };
        tally.failed.add(u64::from(ended.is_err()));
        tally.closed.add(1);
        shared.open.fetch_sub(1, Ordering::Relaxed);
    });
}

async fn converse_with(mut stream: TcpStream, shared: &Arc<Shared>, worker: usize, client: IpAddr) -> io::Result<()> {
    let mut session = Session::new(Arc::clone(shared), worker, client);
    if shared.tls_mode != TlsMode::Implicit {
        let first = session.open();
        if !converse(&mut stream, &mut session, first, shared, worker).await? {
            return Ok(());
        }
    }
    let acceptor = shared.tls.as_ref().expect("TLS is not offered without a certificate");
    let tally = &shared.tallies[worker];
    let Ok(Ok(mut stream)) = timeout(shared.idle_timeout, acceptor.accept(stream)).await else {
        tally.tls_failures.add(1);
        return Ok(());
    };
    tally.tls_sessions.add(1);
    let first = match shared.tls_mode {
        TlsMode::Implicit => session.open(),
        _ => {
            session.tls_started();
            NextStep::Read
        }
    };
    Box::pin(converse(&mut stream, &mut session, first, shared, worker)).await.map(drop)
}

/// Runs a session until its end (`false`) or until the client wants TLS (`true`).
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    session: &mut Session,
    first: NextStep,
    shared: &Shared,
    worker: usize,
) -> io::Result<bool> {
    let mut reader = Reader::new(shared);
    let mut step = first;
    loop {
        // Also before a drop: the answers to what came before are given.
        write_output(stream, session, shared).await?;
        if step == NextStep::Drop {
            return Ok(false);
        }
        step = match step {
            NextStep::GoOn => session.step(&mut reader.left),
            NextStep::Pause(delay) => {
                sleep(delay).await;
                session.step(&mut reader.left)
            }
            NextStep::Read => match reader.read(stream, session).await? {
                ReadOutcome::Step(step) => step,
                ReadOutcome::Nothing => {
                    shared.tallies[worker].timed_out.add(1);
                    session.time_out();
                    NextStep::Close
                }
                ReadOutcome::End => {
                    shared.tallies[worker].aborted.add(u64::from(session.is_in_body()));
                    return Ok(false);
                }
            },
            NextStep::StartTls => return Ok(true),
            NextStep::Close => {
                linger(stream).await;
                return Ok(false);
            }
            NextStep::Drop => unreachable!("seen above"),
        };
    }
}

async fn write_output<S: AsyncWrite + Unpin>(stream: &mut S, session: &mut Session, shared: &Shared) -> io::Result<()> {
    let output = session.output();
    if output.is_empty() {
        return Ok(());
    }
    {
        let mut writing = pin!(async {
            stream.write_all(output).await?;
            stream.flush().await
        });
        // Nearly always the socket has room; only otherwise a clock is needed.
        match poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx))).await {
            Poll::Ready(written) => written?,
            Poll::Pending => timeout(shared.idle_timeout, writing).await??,
        }
    }
    output.clear();
    Ok(())
}

/// Shuts down the sending side and reads on for a moment: closing with unread input would reset the connection, and the
/// client could miss the last replies. A client may have sent more after its QUIT.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let deadline = Instant::now() + LINGER;
    let mut scratch = [0; 4096];
    while let Ok(Ok(1..)) = tokio::time::timeout_at(deadline, stream.read(&mut scratch)).await {}
}

/// Result of a read.
enum ReadOutcome {
    Step(NextStep),
    /// The idle timeout has passed.
    Nothing,
    /// The client has closed.
    End,
}

/// The reading side of one session.
struct Reader {
    /// Input not processed by the session yet.
    left: BytesMut,
    read_bytes: usize,
    slow_read: Option<SlowReadRule>,
    idle: Idle,
}

impl Reader {
    fn new(shared: &Shared) -> Self {
        let read_bytes = if shared.rules.has_delays() { READ_BYTES_WITH_DELAYS } else { READ_BYTES };
        let idle = Idle::new(shared.idle_timeout);
        Self { left: BytesMut::new(), read_bytes, slow_read: shared.rules.slow_read, idle }
    }

    async fn read<S: AsyncRead + Unpin>(&mut self, stream: &mut S, session: &mut Session) -> io::Result<ReadOutcome> {
        let mut octets_max = self.read_bytes;
        if let (Some(slow), true) = (self.slow_read, session.is_in_body()) {
            sleep(slow.pause).await;
            octets_max = octets_max.min(slow.octets);
        }
        let Self { left, read_bytes, idle, .. } = self;
        poll_fn(|cx| {
            BUFFER.with_borrow_mut(|buffer| {
                // Nobody holds a slice of it any more, so this allocates the first time only.
                buffer.clear();
                buffer.reserve(left.len() + *read_bytes);
                buffer.extend_from_slice(left);
                let mut room = (&mut *buffer).limit(octets_max);
                match pin!(stream.read_buf(&mut room)).poll(cx)? {
                    Poll::Pending => return idle.poll(cx).map(|()| Ok(ReadOutcome::Nothing)),
                    Poll::Ready(0) => return Poll::Ready(Ok(ReadOutcome::End)),
                    Poll::Ready(_) => idle.came(),
                }
                let step = session.step(buffer);
                left.clear();
                left.extend_from_slice(buffer);
                Poll::Ready(Ok(ReadOutcome::Step(step)))
            })
        })
        .await
    }
}

/// Detects silence without a timer for each read: one timer runs, and at its end it checks for input since it was set.
/// So a silent client is noticed after one to two times the limit.
struct Idle {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    came: bool,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        Self { limit, timer: Box::pin(sleep(limit)), came: false }
    }

    fn came(&mut self) {
        self.came = true;
    }

    /// Ready after too long a silence.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.came) {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
        Poll::Pending
    }
}
