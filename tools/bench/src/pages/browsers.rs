//! Requests of browsers that have the page open, at the page's own intervals.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use posthaste_loadgen::server::ScratchServer;

use crate::suite::SideError;

/// A connection to a server's HTTP listener, kept for many requests.
pub(crate) struct Web {
    stream: BufReader<TcpStream>,
    token: String,
}

/// For an answer of the largest queue.
const PATIENCE: Duration = Duration::from_secs(120);
/// Reads of a stream end so often, to see whether the page is still open.
const LOOK: Duration = Duration::from_millis(100);

impl Web {
    pub fn connect(address: SocketAddr, token: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), token: token.to_owned() })
    }

    /// Sends a request and returns the body of its answer.
    ///
    /// # Errors
    /// Errors of the connection; another status than 200; an answer without a length.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
        let length = self.head(method, path, body)?;
        let length = length.ok_or_else(|| io::Error::other(format!("{path}: an answer without a length")))?;
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    /// Sends a request and reads the head of its answer. Returns the length of the body, if it has one.
    fn head(&mut self, method: &str, path: &str, body: &str) -> io::Result<Option<usize>> {
        let Self { stream, token } = self;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.get_mut().write_all(request.as_bytes())?;
        let (mut line, mut length, mut status) = (String::new(), None, None);
        loop {
            line.clear();
            if stream.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end();
            if status.is_none() {
                status = Some(line.split(' ').nth(1) == Some("200"));
                if status == Some(false) {
                    return Err(io::Error::other(format!("{path}: {line}")));
                }
            } else if line.is_empty() {
                return Ok(length);
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
    }
}

/// Pages that are open at a time: [`Page`] says which.
pub(super) const PAGES: usize = ALL.len();
const ALL: [Page; 5] = [Page::Now, Page::Now, Page::Now, Page::Queue, Page::Find];

#[derive(Debug, Clone, Copy)]
enum Page {
    /// Asks for the state and the queue each second.
    Now,
    /// Asks for a summary, at most a five hundredth of the time.
    Queue,
    /// Has a stream of events.
    Find,
}

/// Five browsers that have the page open.
pub(crate) struct OpenPages {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<Duration>>>,
}

impl OpenPages {
    /// Opens the pages, and waits for the first answer to each.
    pub fn open(server: &ScratchServer) -> Result<Self, SideError> {
        let address = server.http.ok_or_else(|| SideError::Failed("it has no HTTP listener".into()))?;
        let name = format!("pages-{:x}", fastrand::u64(..));
        let token = server.token(&name, "server:read,queue:read,events:read");
        let token = token.map_err(SideError::failed("posthaste token"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (told, answered) = channel();
        let threads = ALL.map(|page| {
            let (stop, told, token) = (Arc::clone(&stop), Some(told.clone()), token.clone());
            std::thread::spawn(move || Browser { web: Web::connect(address, &token)?, stop, told }.show(page))
        });
        drop(told);
        let pages = Self { stop, threads: threads.into() };
        // A page that fails tells nothing, and says why when it is closed.
        match answered.iter().take(PAGES).count() {
            PAGES => Ok(pages),
            _ => Err(pages.close().err().unwrap_or_else(|| SideError::Failed("a page was closed".into()))),
        }
    }

    /// Closes them. Returns the slowest answer.
    ///
    /// # Errors
    /// The first request that failed.
    pub fn close(self) -> Result<Duration, SideError> {
        self.stop.store(true, Relaxed);
        let mut slowest = Duration::ZERO;
        for thread in self.threads {
            let took = thread.join().expect("a browser does not panic").map_err(SideError::failed("a page"))?;
            slowest = slowest.max(took);
        }
        Ok(slowest)
    }
}

struct Browser {
    web: Web,
    stop: Arc<AtomicBool>,
    /// Told of the first answer.
    told: Option<Sender<()>>,
}

const NOW_EVERY: Duration = Duration::from_secs(1);
const QUEUE_EVERY: Duration = Duration::from_secs(5);
const QUEUE_SHARE: u32 = 500;

impl Browser {
    /// Shows a page until it is closed. Returns the slowest answer.
    fn show(mut self, page: Page) -> io::Result<Duration> {
        if let Page::Find = page {
            return self.follow();
        }
        let mut slowest = Duration::ZERO;
        while !self.stop.load(Relaxed) {
            let asked = Instant::now();
            let pause = match page {
                Page::Now => {
                    self.web.ask("GET", "/api/now/v1", "")?;
                    self.web.ask("GET", "/api/queue/v1", "")?;
                    NOW_EVERY
                }
                _ => {
                    let summary = r#"{"ask":"summary","of":{},"by":"domain","top":100}"#;
                    self.web.ask("POST", "/api/control/v1", summary)?;
                    self.web.ask("POST", "/api/control/v1", r#"{"ask":"suspensions"}"#)?;
                    self.web.ask("POST", "/api/control/v1", r#"{"ask":"diversions"}"#)?;
                    QUEUE_EVERY.max(asked.elapsed() * QUEUE_SHARE)
                }
            };
            slowest = slowest.max(asked.elapsed());
            self.tell();
            let again = Instant::now() + pause;
            while Instant::now() < again && !self.stop.load(Relaxed) {
                std::thread::sleep(LOOK.min(again.saturating_duration_since(Instant::now())));
            }
        }
        Ok(slowest)
    }

    fn tell(&mut self) {
        // Nobody listens once another page has failed.
        let _ = self.told.take().map(|told| told.send(()));
    }

    /// Reads events as they come.
    fn follow(mut self) -> io::Result<Duration> {
        let asked = Instant::now();
        self.begin_stream()?;
        let took = asked.elapsed();
        self.tell();
        let mut octets = [0; 16 << 10];
        while !self.stop.load(Relaxed) {
            match self.web.stream.read(&mut octets) {
                // The server drops whoever is too slow; somebody looks again.
                Ok(0) => {
                    self.web = Web::connect(self.web.stream.get_ref().peer_addr()?, &self.web.token)?;
                    self.begin_stream()?;
                }
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(took)
    }

    fn begin_stream(&mut self) -> io::Result<()> {
        self.web.head("GET", "/api/events/v1", "")?;
        self.web.stream.get_ref().set_read_timeout(Some(LOOK))
    }
}
