//! Servers to load: an honest one that can be told to misbehave, and one that says whatever a test says.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use posthaste_loadgen::load::{
    Arrivals, Injecting, Outcome, Pace, Pipelining, Plan, Pool, Recipients, Server, Stop, run,
};
use posthaste_loadgen::values::{Address, PerConnection, TlsStart};
use posthaste_smtp::driver::{Handler, IncomingBody, RunningServer, Session};
use posthaste_smtp::server::Protocol;
use posthaste_smtp::{Envelope, MessageOutcome, RcptTo, Reply};
use tokio::sync::Semaphore;

/// The server's treatment of a message that it accepts, and its reply.
#[derive(Debug, Clone)]
pub enum Treat {
    /// A file in the Maildir of each recipient.
    Keep,
    /// 250, and nothing is kept.
    Lose,
    /// Twice as many files.
    Twice,
    /// Two files for the first recipient, none for the last, one for each between.
    TwiceForOneOnly,
    /// One octet in the middle is another.
    Alter,
    /// Says no.
    Refuse(Reply),
    /// Says no and keeps it all the same.
    RefuseAndKeep(Reply),
    /// One reply for each recipient; keeps a file for each positive one.
    Each(Vec<Reply>),
    /// Waits, then keeps.
    Wait(Duration),
    /// Waits until it is let through, then keeps.
    Hold(Arc<Semaphore>),
}

type Temper = Box<dyn Fn(usize) -> Treat + Send + Sync>;
type Gate = Box<dyn Fn(&str) -> Result<(), Reply> + Send + Sync>;

struct Keeper {
    dir: PathBuf,
    received: AtomicUsize,
    files: AtomicUsize,
    temper: Temper,
    gate: Gate,
}

impl Keeper {
    /// A file in the Maildir of each.
    fn keep<'a>(&self, octets: &[u8], recipients: impl IntoIterator<Item = &'a RcptTo>) {
        for recipient in recipients {
            let maildir = self.dir.join(recipient.forward_path.to_string().trim_matches(['<', '>']));
            ["new", "cur"].iter().for_each(|sub| std::fs::create_dir_all(maildir.join(sub)).expect("a Maildir"));
            let name = self.files.fetch_add(1, Relaxed).to_string();
            std::fs::write(maildir.join("new").join(name), octets).expect("keep a message");
        }
    }
}

impl Handler for Keeper {
    type State = ();
    type Transaction = ();

    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, rcpt: &RcptTo) -> Result<(), Reply> {
        (self.gate)(&rcpt.forward_path.to_string())
    }

    async fn message(&self, _: &mut Session, _: (), envelope: Envelope, body: &mut IncomingBody<'_>) -> MessageOutcome {
        let mut octets = Vec::new();
        while let Some(chunk) = body.chunk().await {
            match chunk {
                Ok(bytes) => octets.extend_from_slice(&bytes),
                Err(error) => return error.reply().into(),
            }
        }
        let all = &envelope.recipients;
        match (self.temper)(self.received.fetch_add(1, Relaxed)) {
            Treat::Keep => self.keep(&octets, all),
            Treat::Lose => {}
            Treat::Twice => self.keep(&octets, all.iter().chain(all)),
            Treat::TwiceForOneOnly => {
                self.keep(&octets, all.first());
                self.keep(&octets, &all[..all.len() - 1]);
            }
            Treat::Alter => {
                let middle = octets.len() / 2;
                octets[middle] ^= 1;
                self.keep(&octets, all);
            }
            Treat::Refuse(reply) => return reply.into(),
            Treat::RefuseAndKeep(reply) => {
                self.keep(&octets, all);
                return reply.into();
            }
            Treat::Each(replies) => {
                let of_both = all.iter().zip(&replies);
                self.keep(&octets, of_both.filter(|(_, reply)| reply.is_positive()).map(|(recipient, _)| recipient));
                return MessageOutcome::Each(replies);
            }
            Treat::Wait(time) => {
                tokio::time::sleep(time).await;
                self.keep(&octets, all);
            }
            Treat::Hold(gate) => {
                gate.acquire().await.expect("the gate is never closed").forget();
                self.keep(&octets, all);
            }
        }
        MessageOutcome::accepted("kept")
    }
}

/// A server in this process that keeps messages in Maildirs.
pub struct TestServer {
    pub address: Address,
    pub store: tempfile::TempDir,
    pub protocol: Protocol,
    _server: RunningServer,
    _runtime: tokio::runtime::Runtime,
}

impl TestServer {
    /// SMTP; `temper` is asked for each message in the order of arrival.
    pub fn start(temper: impl Fn(usize) -> Treat + Send + Sync + 'static) -> Self {
        Self::with(Protocol::Smtp, temper, |_| Ok(()), None)
    }

    /// `gate` is asked for each recipient; with `socket` the server listens there and not on TCP.
    pub fn with(
        protocol: Protocol,
        temper: impl Fn(usize) -> Treat + Send + Sync + 'static,
        gate: impl Fn(&str) -> Result<(), Reply> + Send + Sync + 'static,
        socket: Option<&Path>,
    ) -> Self {
        let store = tempfile::tempdir().expect("a directory");
        let keeper = Keeper {
            dir: store.path().to_owned(),
            received: AtomicUsize::new(0),
            files: AtomicUsize::new(0),
            temper: Box::new(temper),
            gate: Box::new(gate),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let config =
            posthaste_smtp::server::Config { protocol, ..posthaste_smtp::server::Config::new("mx.example.org") };
        let builder = posthaste_smtp::driver::Server::builder().config(config);
        let builder = match socket {
            Some(path) => builder.listen_unix(path),
            None => builder.listen("127.0.0.1:0"),
        };
        let server = runtime.block_on(builder.start(keeper)).expect("start the server");
        let address = match socket {
            Some(path) => Address::Unix(path.to_owned()),
            None => Address::Tcp(server.local_addrs()[0]),
        };
        Self { address, store, protocol, _server: server, _runtime: runtime }
    }

    /// A plan with this server.
    pub fn plan(&self, count: u64) -> Plan {
        let server = Server { protocol: self.protocol.into(), ..server(self.address.clone()) };
        plan(server, count)
    }

    /// Where messages are kept.
    pub fn stores(&self) -> Vec<PathBuf> {
        vec![self.store.path().to_owned()]
    }
}

/// An SMTP server without TLS.
pub fn server(address: Address) -> Server {
    Server { name: "test".into(), address, protocol: Protocol::Smtp.into(), tls: TlsStart::Never, tls_name: None }
}

/// A small closed loop of `count` messages.
pub fn plan(server: Server, count: u64) -> Plan {
    Plan {
        run: 0x7e57,
        servers: vec![server],
        connections: 4,
        threads: 1,
        pace: Pace { rate: None, arrivals: Arrivals::Even, count: Some(count), duration: None, warmup: Duration::ZERO },
        rounds: 1,
        per_connection: PerConnection::All,
        pipelining: Pipelining::On,
        bdat: false,
        sender: "a@example.org".into(),
        recipients: Recipients::Made { users: 10, domains: vec!["example.org".parse().unwrap()] },
        recipients_per_message: 1,
        helo: "load.invalid".into(),
        auth: None,
        injecting: Injecting::default(),
        tls: None,
        pool: Arc::new(Pool::generated(&"1k-4k".parse().unwrap(), &[], "a@example.org", 1)),
        timeout: Duration::from_secs(30),
        drain: Duration::from_secs(30),
        give_up: Duration::from_secs(30),
        outages: None,
    }
}

/// Runs a plan to its end.
pub fn go(plan: Plan) -> Outcome {
    run(plan, &[], &Stop::default(), Duration::from_secs(1), &mut |_| {}).expect("the run starts")
}

/// The classes of errors and how often each came.
pub fn errors(outcome: &Outcome) -> Vec<(&str, u64)> {
    outcome.errors.iter().map(|error| (error.class.as_str(), error.count)).collect()
}

/// A server that does with each connection what `talk` does; it ends with the test process.
pub fn scripted(talk: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let talk = Arc::new(talk);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let talk = Arc::clone(&talk);
            std::thread::spawn(move || talk(stream));
        }
    });
    address
}

/// Greets, then answers each line with what `answer` says to it; an empty answer closes the connection. Nothing is said
/// to the lines of a message but to its last.
pub fn answer_lines(stream: impl std::io::Read + Write, greeting: &str, answer: impl Fn(&str) -> String) {
    let mut reader = BufReader::new(stream);
    if reader.get_mut().write_all(greeting.as_bytes()).is_err() {
        return;
    }
    let mut in_message = false;
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|octets| octets > 0) {
        let said = line.trim_end().to_owned();
        line.clear();
        if in_message && said != "." {
            continue;
        }
        let reply = answer(&said);
        in_message = reply.starts_with("354");
        if reply.is_empty() || reader.get_mut().write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// Replies of a server that accepts everything.
pub fn agreeable(line: &str) -> String {
    match line.split(' ').next().unwrap_or_default() {
        "EHLO" | "LHLO" => "250-mx\r\n250 PIPELINING\r\n".into(),
        "DATA" => "354 go\r\n".into(),
        "QUIT" => "221 bye\r\n".into(),
        _ => "250 ok\r\n".into(),
    }
}
