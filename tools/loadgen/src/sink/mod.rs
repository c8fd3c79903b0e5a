//! The sink: accepts mail as fast as it comes and discards it, refuses it by rule, or keeps it for inspection.
//!
//! For tests of clients, relays and load generators. It runs in its own threads and needs no runtime of its caller.
//!
//! ```
//! use posthaste_loadgen::sink::{Options, Sink};
//! # fn main() -> Result<(), posthaste_loadgen::sink::SinkError> {
//! let sink = Sink::start(Options { listen: "127.0.0.1:0".into(), ..Options::default() })?;
//! println!("send mail to {}", sink.local_addr());
//! let summary = sink.stop()?;
//! assert_eq!(summary.counts.messages, 0);
//! # Ok(())
//! # }
//! ```

mod chance;
mod counts;
mod dice;
mod greylist;
mod replies;
mod rule_file;
mod rules;
mod session;
mod shared;
mod stage;
mod store;
mod tls;
mod verdict;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use posthaste_smtp::server::Config;
use posthaste_smtp::{BareNewlines, Limits, NulOctets, Protocol};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};

pub use counts::{Counts, Summary};
pub use replies::Provider;
pub use rule_file::{Delay, DomainRules, GreylistRule, RuleError, RuleFile, SlowReadRule, StageRule};
pub use stage::Stage;
pub(crate) use store::DIR_INDEX;
pub use store::StoreKind;
pub use tls::{Certificate, TlsMode};

use crate::resources::raise_file_limit;
use counts::Tally;
use greylist::Greylist;
use rules::Rules;
use shared::Shared;
use store::{Ledger, Store};

/// Options of a sink.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port`; port 0 takes a free one.
    pub listen: String,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Name in the greeting, and in a certificate made at the start.
    pub host_name: String,
    /// Rules for the answers. Default: accept everything.
    pub rules: RuleFile,
    /// True if recipients such as `tempfail@` and `450-…@` order their answer. Default true.
    pub local_parts: bool,
    /// Keep accepted messages. Default: throw them away.
    pub store: Option<StoreKind>,
    /// Write a line for each accepted message that carries a stamp; an existing file is replaced.
    pub account: Option<PathBuf>,
    /// Encryption. Default off.
    pub tls: TlsMode,
    /// The server's certificate.
    pub certificate: Certificate,
    /// Threads; 0 for as many as there are processors. Default 0.
    pub threads: usize,
    /// Limit on simultaneous connections; more get 421 4.3.2. Default 20,000.
    pub connections_max: u64,
    /// Limit on the octets of one message; above it 552 5.3.4. 0 for no limit, which only makes sense if no mail is
    /// kept. Default 64 MiB.
    pub message_bytes_max: u64,
    /// Limit on the octets of all messages in memory, if they are kept or accounted for; above it 452 4.3.1. Default 1
    /// GiB.
    pub memory_bytes_max: usize,
    /// Time after which a client that sends nothing or does not read its replies gets 421 4.4.2. Silence is noticed
    /// after one to two times this. Default 5 minutes.
    pub idle_timeout: Duration,
    /// Accept messages with bare CR, bare LF or NUL unchanged, instead of refusing them. Default false.
    pub lenient: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:2525".into(),
            protocol: Protocol::Smtp,
            host_name: "sink.localhost".into(),
            rules: RuleFile::default(),
            local_parts: true,
            store: None,
            account: None,
            tls: TlsMode::Off,
            certificate: Certificate::SelfSigned,
            threads: 0,
            connections_max: 20_000,
            message_bytes_max: 64 << 20,
            memory_bytes_max: 1 << 30,
            idle_timeout: Duration::from_secs(300),
            lenient: false,
        }
    }
}

/// The reason why a sink did not start or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address as given.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// The rules make no sense.
    #[error(transparent)]
    Rules(#[from] RuleError),
    /// A certificate or key cannot be used.
    #[error("certificate: {0}")]
    Tls(#[from] posthaste_smtp::tls::TlsError),
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The store or the account cannot be opened or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// No thread or event loop could be had.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A running sink. Dropping it stops it, without a summary.
pub struct Sink {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    started: Instant,
    cpu_at_start: Duration,
    files: Vec<PathBuf>,
}

impl Sink {
    /// Opens all files and the listener and starts the threads. Clients can connect from then on.
    ///
    /// # Errors
    /// Any [`SinkError`].
    pub fn start(options: Options) -> Result<Self, SinkError> {
        let rules = Rules::new(&options.rules, options.local_parts)?;
        // Where it is not allowed, accepting waits for a descriptor when there is none.
        raise_file_limit(u64::MAX);
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let tls = match options.tls {
            TlsMode::Off => None,
            _ => Some(tls::acceptor(&options.certificate, &options.host_name)?),
        };
        // Before any file is opened: one that cannot listen must not empty the account of the one that does.
        let (listener, address) =
            listen(&options.listen).map_err(|error| SinkError::Listen { address: options.listen.clone(), error })?;
        let mut files = Vec::new();
        let mut opened = |path: &PathBuf| {
            files.push(path.clone());
            path.clone()
        };
        let store = match &options.store {
            Some(kind @ (StoreKind::Maildir(path) | StoreKind::Mbox(path) | StoreKind::Dir(path))) => {
                let path = opened(path);
                Some(Store::open(kind).map_err(|error| SinkError::File { path, error })?)
            }
            None => None,
        };
        let ledger = match &options.account {
            Some(path) => {
                let path = opened(path);
                Some(Ledger::create(&path).map_err(|error| SinkError::File { path, error })?)
            }
            None => None,
        };
        let shared = Arc::new(Shared {
            protocol: Arc::new(protocol(&options, &rules)),
            greylist: rules.greylist.map(Greylist::new),
            rules,
            store,
            ledger,
            tls,
            tls_mode: options.tls,
            tallies: (0..threads).map(|_| Tally::default()).collect(),
            held_octets: 0.into(),
            held_octets_max: options.memory_bytes_max,
            connections_max: options.connections_max,
            idle_timeout: options.idle_timeout,
            open: 0.into(),
            open_max: 0.into(),
            opened: (0..threads).map(|_| 0.into()).collect(),
        });
        let (stop, stopped) = watch::channel(false);
        let mut sink = Self {
            shared,
            address,
            stop,
            threads: Vec::new(),
            started: Instant::now(),
            cpu_at_start: cpu_time(),
            files,
        };
        sink.start_threads(listener, &stopped).map_err(SinkError::Thread)?;
        Ok(sink)
    }

    fn start_threads(&mut self, listener: TcpListener, stop: &watch::Receiver<bool>) -> io::Result<()> {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            self.shared.tallies.iter().map(|_| mpsc::unbounded_channel()).unzip();
        let mut acceptor = Some((listener, senders));
        for (worker, accepted) in receivers.into_iter().enumerate() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let shared = Arc::clone(&self.shared);
            // The first thread also accepts.
            let acceptor = acceptor.take();
            let stop = stop.clone();
            let thread = std::thread::Builder::new().name(format!("sink-{worker}"));
            self.threads.push(thread.spawn(move || {
                runtime.block_on(async {
                    if let Some((listener, workers)) = acceptor {
                        tokio::spawn(worker::accept(listener, Arc::clone(&shared), workers));
                    }
                    worker::serve(shared, worker, accepted, stop).await;
                });
            })?);
        }
        Ok(())
    }

    /// Address of its listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        let open_connections_max = self.shared.open_max.load(Ordering::Relaxed);
        Counts { open_connections_max, ..Counts::of(&self.shared.tallies) }
    }

    /// Flushes the account and the store's index to the kernel, so that others can read the entries so far.
    ///
    /// # Errors
    /// [`SinkError::File`].
    pub fn flush(&self) -> Result<(), SinkError> {
        let store = self.shared.store.as_ref().map_or(Ok(()), Store::flush);
        let ledger = self.shared.ledger.as_ref().map_or(Ok(()), Ledger::flush);
        let path = || self.files.last().cloned().unwrap_or_default();
        store.and(ledger).map_err(|error| SinkError::File { path: path(), error })
    }

    /// Counts so far, with their cost.
    pub fn summary(&self) -> Summary {
        Summary::new(self.counts(), self.started.elapsed(), cpu_time().saturating_sub(self.cpu_at_start))
    }

    /// Cuts all connections off, flushes all buffers, and returns the summary.
    ///
    /// # Errors
    /// [`SinkError::File`].
    pub fn stop(mut self) -> Result<Summary, SinkError> {
        let summary = self.end();
        self.flush()?;
        Ok(summary)
    }

    fn end(&mut self) -> Summary {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // It cannot have panicked but by a bug, which it has reported.
            let _ = thread.join();
        }
        self.summary()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

fn protocol(options: &Options, rules: &Rules) -> Config {
    let limits = Limits {
        message_bytes: options.message_bytes_max,
        messages: rules.messages_max,
        // Refusing for as long as it is asked to is what a sink is for.
        errors: u32::MAX,
        idle_commands: u32::MAX,
        deferred_recipients: u32::MAX,
        ..Limits::default()
    };
    let mut config = Config {
        protocol: options.protocol,
        limits,
        starttls: options.tls == TlsMode::StartTls,
        asks_hello: rules.applies(Stage::Ehlo),
        asks_data: rules.applies(Stage::Data),
        ..Config::new(options.host_name.clone())
    };
    if options.lenient {
        config.bare_newlines = BareNewlines::Accept;
        config.nul_octets = NulOctets::Accept;
    }
    config
}

/// Listens with the longest backlog that the kernel grants.
fn listen(address: &str) -> io::Result<(TcpListener, SocketAddr)> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpListener::bind(address) {
            Ok(listener) => {
                rustix::net::listen(&listener, i32::MAX)?;
                listener.set_nonblocking(true)?;
                // Replies are written whole; waiting to fill a segment would only delay them. Connections inherit it.
                rustix::net::sockopt::set_tcp_nodelay(&listener, true)?;
                let address = listener.local_addr()?;
                return Ok((listener, address));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
