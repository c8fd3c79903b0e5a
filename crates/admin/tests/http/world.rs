//! A listener of HTTP with nothing behind it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use posthaste_admin::{
    AdminApi, AdminService, AskRefusal, ClientAddress, Counters, Distribution, FollowEvents, Guess, HostNames,
    HttpListener, HttpSettings, InjectCall, InjectReply, PublicFile, QueueStatus, Readiness, Scope, Secret,
    ServerStatus, ServerView, Token, TokenFile, TokenHash, secret_hash,
};
use posthaste_control::Request;
use posthaste_net::{Admission, GateLimits, ListenPlace, Listeners, Rules};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A server with nothing behind it.
#[derive(Default)]
pub struct Fake {
    guesses: Arc<AtomicU64>,
    pub drains: AtomicU64,
}

impl ServerView for Fake {
    fn readiness(&self) -> Readiness {
        Readiness::NotReady("full")
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn distributions(&self) -> Vec<Distribution> {
        Vec::new()
    }
    fn status(&self) -> ServerStatus {
        ServerStatus { host_name: "mx.example.org".to_owned(), ..ServerStatus::default() }
    }
    fn queue(&self, _: Option<&str>) -> QueueStatus {
        QueueStatus::default()
    }
    fn ask(&self, request: &Request, token: &Token, answer: &dyn Fn(Value) -> bool) -> Result<Value, AskRefusal> {
        match request {
            Request::Act { expect: Some(expected), .. } => Err(AskRefusal::Changed { expected: *expected, now: 7 }),
            Request::List { limit, .. } => {
                answer(json!({ "limit": limit, "token": token.name() }));
                Ok(json!({ "done": 1 }))
            }
            _ => Err(AskRefusal::Refused("not here".to_owned())),
        }
    }
    fn system(&self) -> Value {
        json!({ "version": "1" })
    }
    fn drain(&self, _: &Token) {
        self.drains.fetch_add(1, Ordering::Relaxed);
    }
    fn log_lines(&self) -> Vec<String> {
        vec!["a line".to_owned()]
    }
    fn follow(&self, _: Option<&str>) -> Option<Box<dyn FollowEvents>> {
        None
    }
    fn public_file(&self, host: &str, path: &str) -> Option<PublicFile> {
        let is_known = host == "mta-sts.example.org" && path == "/.well-known/mta-sts.txt";
        is_known.then(|| PublicFile { content_type: "text/plain", text: "version: STSv1\r\n".to_owned() })
    }
    async fn inject(&self, call: InjectCall<'_>) -> InjectReply {
        assert_eq!((call.token.name(), call.client.0), ("i", Some([127, 0, 0, 1].into())));
        let key = call.key.map_or(String::new(), |key| format!(",\"key\":\"{key}\""));
        let body = format!("{{\"bytes\":{}{key}}}", call.body.len());
        InjectReply { status: 503, body, retry_secs: Some(7), is_replayed: call.key == Some("old") }
    }
    fn is_first_password(&self, presented: &str) -> bool {
        presented == "kelp-orbit"
    }
    fn first_password(&self) -> Option<TokenHash> {
        Some(secret_hash("kelp-orbit"))
    }
    async fn wrong_token(&self, client: ClientAddress, _: &str) -> Guess {
        assert_eq!(client.0, Some([127, 0, 0, 1].into()));
        match self.guesses.fetch_add(1, Ordering::Relaxed) {
            0 => Guess::Wrong,
            _ => Guess::TooMany,
        }
    }
}

pub struct World {
    pub address: SocketAddr,
    /// Opens the queue only.
    pub secret: Secret,
    /// Takes mail only.
    pub injects: Secret,
    pub guesses: Arc<AtomicU64>,
    pub api: AdminApi<Fake>,
    pub tokens: TokenFile,
    pub runtime: Runtime,
    pub listeners: Option<Listeners>,
    _data: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self::at(true)
    }

    pub fn at(is_loopback: bool) -> Self {
        let data = tempfile::tempdir().unwrap();
        let (tokens, secret) = (TokenFile::in_directory(data.path()), Secret::random());
        let injects = Secret::random();
        tokens.add(Token::new("i", &injects, [Scope::Inject].into(), None).unwrap()).unwrap();
        tokens.add(Token::new("q", &secret, [Scope::QueueRead].into(), None).unwrap()).unwrap();
        let guesses = Arc::<AtomicU64>::default();
        let names = HostNames::new(["mx.example.org".to_owned()]);
        let settings = HttpSettings { names, token_rate: "100/hour, burst 20".parse().unwrap() };
        let api =
            AdminApi::new(Fake { guesses: guesses.clone(), ..Fake::default() }, tokens.clone(), settings, 1 << 20);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let guard = runtime.enter();
        let mut listeners = Listeners::new(GateLimits::default()).unwrap();
        let address = serve(&mut listeners, api.clone(), is_loopback);
        drop(guard);
        Self { address, secret, injects, guesses, api, tokens, runtime, listeners: Some(listeners), _data: data }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// All that comes back for these octets until the server closes.
    pub fn raw(&self, octets: &[u8]) -> String {
        let mut stream = self.connect();
        // It may have closed before all was sent.
        let _ = stream.write_all(octets);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub fn get(&self, path: &str, fields: &str) -> String {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n").as_bytes())
    }

    /// A request with a body, to the server by its name.
    pub fn send(&self, method: &str, path: &str, fields: &str, body: &str) -> String {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: mx.example.org\r\nConnection: close\r\n{fields}");
        self.raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
    }

    pub fn log_in(&self, by: &str, secret: &str) -> String {
        let body = format!("{{\"{by}\":\"{secret}\"}}");
        self.send("POST", "/api/session/v1", "Content-Type: application/json\r\n", &body)
    }

    pub fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.secret.reveal())
    }
}

pub fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

/// Serves `api` at a free port of loopback, in the clear.
pub fn serve(listeners: &mut Listeners, api: AdminApi<Fake>, is_loopback: bool) -> SocketAddr {
    let (bound, ()) = posthaste_net::bind(vec![(ListenPlace::Tcp("127.0.0.1:0".into()), ())], &GateLimits::default())
        .unwrap()
        .remove(0);
    let address = bound.local_addr().unwrap();
    let at = HttpListener {
        certificate: None,
        is_strict: Arc::default(),
        is_loopback,
        is_public: false,
        proxies: Arc::new(RwLock::default()),
        inject_from: Arc::default(),
    };
    listeners.serve(bound.listen().unwrap(), &Admission::new(Rules::default()), AdminService::new(api, at));
    address
}
