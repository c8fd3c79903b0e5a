//! Requests over real sockets, kind and hostile, at the listeners of `posthaste-net`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use posthaste_admin::{
    AdminApi, AdminService, ClientAddress, Counters, Guess, HostNames, HttpListener, HttpSettings, InjectCall,
    InjectReply, QueueStatus, Readiness, Scope, Secret, ServerStatus, ServerView, Token, TokenFile, TokenHash,
    secret_hash,
};
use posthaste_net::{Admission, Limits, Listeners, Place, Rules};
use tokio::runtime::Runtime;

/// A server with nothing behind it.
#[derive(Default)]
struct Fake {
    guesses: Arc<AtomicU64>,
}

impl ServerView for Fake {
    fn readiness(&self) -> Readiness {
        Readiness::NotReady("full")
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn status(&self) -> ServerStatus {
        ServerStatus { host_name: "mx.example.org".to_owned(), ..ServerStatus::default() }
    }
    fn queue(&self) -> QueueStatus {
        QueueStatus::default()
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

struct World {
    address: SocketAddr,
    /// Opens the queue only.
    secret: Secret,
    /// Takes mail only.
    injects: Secret,
    guesses: Arc<AtomicU64>,
    api: AdminApi<Fake>,
    tokens: TokenFile,
    runtime: Runtime,
    listeners: Option<Listeners>,
    _data: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self::at(true)
    }

    fn at(is_loopback: bool) -> Self {
        let data = tempfile::tempdir().unwrap();
        let (tokens, secret) = (TokenFile::in_directory(data.path()), Secret::random());
        let injects = Secret::random();
        tokens.add(Token::new("i", &injects, [Scope::Inject].into(), None).unwrap()).unwrap();
        tokens.add(Token::new("q", &secret, [Scope::QueueRead].into(), None).unwrap()).unwrap();
        let guesses = Arc::<AtomicU64>::default();
        let names = HostNames::new(["mx.example.org".to_owned()]);
        let settings = HttpSettings { names, token_rate: "100/hour, burst 20".parse().unwrap() };
        let api = AdminApi::new(Fake { guesses: guesses.clone() }, tokens.clone(), settings, 1 << 20);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let guard = runtime.enter();
        let mut listeners = Listeners::new(Limits::default()).unwrap();
        let address = serve(&mut listeners, api.clone(), is_loopback);
        drop(guard);
        Self { address, secret, injects, guesses, api, tokens, runtime, listeners: Some(listeners), _data: data }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// All that comes back for these octets until the server closes.
    fn raw(&self, octets: &[u8]) -> String {
        let mut stream = self.connect();
        // It may have closed before all was sent.
        let _ = stream.write_all(octets);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(&self, path: &str, fields: &str) -> String {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n").as_bytes())
    }

    /// A request with a body, to the server by its name.
    fn send(&self, method: &str, path: &str, fields: &str, body: &str) -> String {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: mx.example.org\r\nConnection: close\r\n{fields}");
        self.raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
    }

    fn log_in(&self, by: &str, secret: &str) -> String {
        let body = format!("{{\"{by}\":\"{secret}\"}}");
        self.send("POST", "/api/session/v1", "Content-Type: application/json\r\n", &body)
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.secret.reveal())
    }
}

fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

#[test]
fn every_answer_has_the_headers_that_protect_the_page() {
    let world = World::new();
    let bad_host = world.raw(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    let all = [
        (world.get("/", ""), 200),
        (world.get("/health/live", ""), 200),
        (world.get("/health/ready", ""), 503),
        (world.get("/nowhere", ""), 404),
        (world.get("/assets/nothing.js", ""), 404),
        (world.get("/api/queue/v1", ""), 401),
        (world.get("/api/queue/v1", &world.bearer()), 200),
        (world.get("/api/token/v1", &world.bearer()), 200),
        (world.get("/api/now/v1", &world.bearer()), 403),
        (world.raw(b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), 405),
        (bad_host, 421),
    ];
    for (answer, expected) in &all {
        assert_eq!(status(answer), *expected, "{answer}");
        let head = answer.split("\r\n\r\n").next().unwrap();
        for field in [
            "content-security-policy: default-src 'none'; script-src 'self'; ",
            "; require-trusted-types-for 'script'; trusted-types 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-opener-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
            "permissions-policy: camera=()",
            "cache-control: no-store",
        ] {
            assert!(head.contains(field), "{field} is missing: {head}");
        }
        for field in ["access-control-allow", "www-authenticate", "set-cookie"] {
            assert!(!head.contains(field), "{head}");
        }
    }
    assert!(all[2].0.ends_with("full\n"));
    assert!(all[7].0.contains("\"name\":\"q\"") && all[7].0.contains("queue:read"));
    assert!(all[8].0.contains("the token has no scope server:read"));
}

#[test]
fn files_of_the_page_last_and_come_from_here() {
    let world = World::new();
    let index = world.get("/", "");
    assert!(index.contains("content-type: text/html; charset=utf-8"), "{index}");
    let script = index.split('"').find(|word| word.starts_with("/assets/main.")).expect("a script");
    let script = world.get(script, "");
    assert!(
        status(&script) == 200 && script.contains("cache-control: public, max-age=31536000, immutable"),
        "{script}"
    );
    assert!(script.contains("content-type: text/javascript; charset=utf-8"));
    let head = world.raw(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_wrong_token_is_counted_and_a_good_one_is_never_refused() {
    let world = World::new();
    let wrong = "Authorization: Bearer pht_0000000000000000000000000000000000000000\r\n";
    assert_eq!(status(&world.get("/api/queue/v1", wrong)), 401);
    let too_many = world.get("/api/queue/v1", wrong);
    assert!(status(&too_many) == 429 && too_many.contains("retry-after: 600"), "{too_many}");
    assert_eq!(status(&world.get("/api/queue/v1", &world.bearer())), 200);
    assert_eq!(world.guesses.load(Ordering::Relaxed), 2);
}

#[test]
fn the_first_password_opens_everything_from_this_machine() {
    let world = World::new();
    let field = "Authorization: Bearer kelp-orbit\r\n";
    let whose = world.get("/api/token/v1", field);
    assert!(status(&whose) == 200 && whose.contains("\"name\":\"first-password\""), "{whose}");
    for path in ["/api/now/v1", "/api/queue/v1"] {
        assert_eq!(status(&world.get(path, field)), 200);
    }
    let metrics = world.get("/metrics", field);
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    assert!(
        metrics.contains("\nposthaste_ready 0\n") && metrics.contains("\nposthaste_queue_recipients 0\n"),
        "{metrics}"
    );
    assert_eq!(status(&world.get("/metrics", &world.bearer())), 403);
    let far = World::at(false);
    assert_eq!(status(&far.get("/api/token/v1", field)), 401, "not where others can connect");
}

/// The field of a request with the session of this answer.
fn session(answer: &str) -> String {
    let begin = answer.find("\"session\":\"").unwrap_or_else(|| panic!("no session: {answer}")) + 11;
    format!("Authorization: Bearer {}\r\n", &answer[begin..begin + 44])
}

#[test]
fn a_link_opens_one_session_until_it_is_left() {
    let world = World::new();
    let link = world.api.links().make(vec![Scope::QueueRead], 60);
    let begun = world.log_in("link", link.reveal());
    assert!(status(&begun) == 200 && begun.contains("\"scopes\":[\"queue:read\"]"), "{begun}");
    assert!(!begun.contains("set-cookie"), "{begun}");
    let field = session(&begun);
    assert_eq!(status(&world.get("/api/queue/v1", &field)), 200);
    assert_eq!(status(&world.get("/api/now/v1", &field)), 403);
    let again = world.log_in("link", link.reveal());
    assert!(status(&again) == 401 && again.contains("posthaste page"), "{again}");
    assert_eq!(world.guesses.load(Ordering::Relaxed), 1, "it counts as a wrong token");
    let left = world.raw(
        format!("DELETE /api/session/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n").as_bytes(),
    );
    assert_eq!(status(&left), 200);
    for _ in 0..3 {
        assert_eq!(status(&world.get("/api/queue/v1", &field)), 401);
    }
    assert_eq!(world.guesses.load(Ordering::Relaxed), 1, "a page that is still open does not guess");
    for body in ["", "{}", "{\"link\":1}", "{\"link\":\"a\",\"token\":\"b\"}", "[]"] {
        let answer = world.send("POST", "/api/session/v1", "Content-Type: application/json\r\n", body);
        assert_eq!(status(&answer), 400, "{body}: {answer}");
    }
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(status(&world.send("POST", "/api/session/v1", form, "link=a")), 415);
    let evil = "Content-Type: application/json\r\nOrigin: http://evil.example\r\n";
    assert_eq!(status(&world.send("POST", "/api/session/v1", evil, "{\"link\":\"a\"}")), 403);
}

#[test]
fn a_session_ends_with_its_token() {
    let world = World::new();
    let field = session(&world.log_in("token", world.secret.reveal()));
    assert_eq!(status(&world.get("/api/queue/v1", &field)), 200);
    world.tokens.remove("q").unwrap();
    assert_eq!(status(&world.get("/api/queue/v1", &field)), 401);
    let field = session(&world.log_in("token", "kelp-orbit"));
    let whose = world.get("/api/token/v1", &field);
    assert!(whose.contains("first-password"), "{whose}");
}

#[test]
fn over_a_network_the_session_is_a_cookie() {
    let world = World::at(false);
    let begun = world.log_in("token", world.secret.reveal());
    let cookie = begun.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{begun}"));
    let (pair, rest) = cookie.split_once("; ").unwrap();
    assert_eq!(rest, "Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=43200");
    assert!(pair.starts_with("__Host-posthaste=phs_") && !begun.contains("\"session\""), "{begun}");
    let get = |fields: &str| {
        let head = "GET /api/queue/v1 HTTP/1.1\r\nConnection: close\r\n";
        status(&world.raw(format!("{head}Cookie: {pair}\r\n{fields}\r\n").as_bytes()))
    };
    assert_eq!(get("Host: mx.example.org\r\n"), 200);
    assert_eq!(get("Host: evil.example\r\n"), 421, "DNS that points here");
    assert_eq!(get("Host: mx.example.org\r\nOrigin: https://evil.example\r\n"), 403);
    assert_eq!(get("Host: mx.example.org\r\nSec-Fetch-Site: cross-site\r\n"), 403);
    let both = format!("Host: evil.example\r\n{}", world.bearer());
    assert_eq!(get(&both), 421, "a request with both counts as the cookie's");
    let leave =
        |fields: &str| status(&world.send("DELETE", "/api/session/v1", &format!("Cookie: {pair}\r\n{fields}"), ""));
    let (origin, ours) = ("Origin: https://mx.example.org\r\n", "X-Posthaste: 1\r\n");
    let json = "Content-Type: application/json\r\n";
    for fields in [String::new(), format!("{ours}{json}"), format!("{origin}{json}"), format!("{origin}{ours}")] {
        assert_eq!(leave(&fields), 403, "{fields}");
    }
    assert_eq!(get("Host: mx.example.org\r\n"), 200);
    assert_eq!(leave(&format!("{origin}{ours}{json}")), 200);
    assert_eq!(get("Host: mx.example.org\r\n"), 401);
}

#[test]
fn a_token_has_a_limit_of_requests() {
    let world = World::new();
    for _ in 0..20 {
        assert_eq!(status(&world.get("/api/token/v1", &world.bearer())), 200);
    }
    let refused = world.get("/api/queue/v1", &world.bearer());
    assert!(status(&refused) == 429 && refused.contains("retry-after: 3"), "{refused}");
    let other = format!("Authorization: Bearer {}\r\n", world.injects.reveal());
    assert_eq!(status(&world.get("/api/token/v1", &other)), 200);
    assert_eq!(status(&world.get("/health/live", &world.bearer())), 200);
}

#[test]
fn browsers_and_other_sites_are_kept_out() {
    let world = World::new();
    for fields in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Authorization: Basic eDp5\r\nOrigin: http://localhost\r\n",
        "Authorization: Basic eDp5\r\nSec-Fetch-Site: same-origin\r\n",
    ] {
        assert_eq!(status(&world.get("/api/queue/v1", fields)), 403, "{fields}");
    }
    let rebound =
        format!("GET /api/queue/v1 HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n{}\r\n", world.bearer());
    assert_eq!(status(&world.raw(rebound.as_bytes())), 200, "who has a token may use any name");
    let health = world.raw(b"GET /health/live HTTP/1.1\r\nHost: 10.0.0.1\r\nConnection: close\r\n\r\n");
    assert!(status(&health) == 200 && health.ends_with("live\n"), "{health}");
}

#[test]
fn requests_that_are_read_in_two_ways_are_refused() {
    let world = World::new();
    let refused: [&[u8]; 12] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3, 4\r\n\r\nabcd",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"GET / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\rX: y\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"MAIL FROM:<a@example.org>\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ];
    for request in refused {
        let answer = world.raw(request);
        let text = String::from_utf8_lossy(request);
        assert!(status(&answer) == 400 && answer.matches("HTTP/1.1 ").count() == 1, "{text:?}: {answer}");
        assert!(answer.contains("content-security-policy: ") && answer.contains("{\"error\":\""), "{text:?}: {answer}");
    }
    // Nothing behind a refused head is answered, and nothing behind chunks that are none.
    let second = "GET / HTTP/1.1\nHost: localhost\n\nGET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = world.raw(format!("GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n{second}").as_bytes());
    assert!(!answer.contains("full"), "{answer}");
    let garbage = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(world.raw(garbage).matches("HTTP/1.1 ").count(), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let world = World::new();
    let one = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = "GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = world.raw(format!("{}{last}", one.repeat(20)).as_bytes());
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 20, "{answer}");
    assert!(answer.ends_with("full\n"));
}

#[test]
fn heads_are_bounded() {
    let world = World::new();
    let check = |fields: String, expected: &[u16]| {
        let answer = world.get("/", &fields);
        assert!(expected.contains(&status(&answer)), "{answer}");
    };
    check("X: y\r\n".repeat(60), &[200]);
    let many = world.get("/", &"X: y\r\n".repeat(100));
    assert!(status(&many) == 431 && many.contains("content-security-policy: "), "{many}");
    check(format!("X: {}\r\n", "y".repeat(20_000)), &[431]);
    let target = world.get(&format!("/{}", "x".repeat(30_000)), "");
    assert!([414, 431].contains(&status(&target)), "{target}");
}

#[test]
fn a_shutdown_ends_idle_connections_and_those_without_a_request() {
    let mut world = World::new();
    let mut idle = world.connect();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut begin = [0; 12];
    idle.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    let silent = world.connect();
    let mut half = world.connect();
    half.write_all(b"GET /health/live HTTP/1.1\r\nHo").unwrap();
    // Each is served before the shutdown begins.
    let deadline = Instant::now() + Duration::from_secs(10);
    while world.listeners.as_ref().unwrap().connections() < 3 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let begun = Instant::now();
    let listeners = world.listeners.take().unwrap();
    world.runtime.block_on(listeners.shutdown(Duration::from_millis(500)));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop((silent, half));
}

#[test]
fn a_drain_ends_idle_connections_and_finishes_requests() {
    let mut world = World::new();
    let mut under_way = world.connect();
    let (secret, json) = (world.injects.reveal(), "Content-Type: application/json\r\nExpect: 100-continue\r\n");
    let head = format!("POST /api/inject/v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n{json}");
    under_way.write_all(format!("{head}Content-Length: 3\r\n\r\n").as_bytes()).unwrap();
    let mut continues = [0; 25];
    under_way.read_exact(&mut continues).unwrap();
    let mut idle = world.connect();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut begin = [0; 12];
    idle.read_exact(&mut begin).unwrap();
    let listeners = world.listeners.take().unwrap();
    let stopping = world.runtime.spawn(listeners.shutdown(Duration::from_secs(20)));
    // The idle connection is ended by the drain.
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    under_way.write_all(b"abc").unwrap();
    let mut answer = String::new();
    under_way.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("{\"bytes\":3}") && answer.contains("connection: close"), "{answer}");
    world.runtime.block_on(stopping).unwrap();
}

/// Serves `api` at a free port of loopback, in the clear.
fn serve(listeners: &mut Listeners, api: AdminApi<Fake>, is_loopback: bool) -> SocketAddr {
    let (bound, ()) =
        posthaste_net::bind(vec![(Place::Tcp("127.0.0.1:0".into()), ())], &Limits::default()).unwrap().remove(0);
    let address = bound.local_addr().unwrap();
    let at = HttpListener { certificate: None, is_loopback, proxies: Arc::new(RwLock::default()) };
    listeners.serve(bound.listen().unwrap(), &Admission::new(Rules::default()), AdminService::new(api, at));
    address
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_is_not_waited_for() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let data = tempfile::tempdir().unwrap();
    let settings = HttpSettings { names: HostNames::default(), token_rate: "1/second".parse().unwrap() };
    let api = AdminApi::new(Fake::default(), TokenFile::in_directory(data.path()), settings, 0);
    let mut listeners = Listeners::new(Limits::default()).unwrap();
    let address = serve(&mut listeners, api, true);
    for begin in ["", "GET / HTTP/1.1\r\nHost: loc"] {
        let mut slow = tokio::net::TcpStream::connect(address).await.unwrap();
        slow.write_all(begin.as_bytes()).await.unwrap();
        let begun = tokio::time::Instant::now();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).await.unwrap();
        assert!(answer.is_empty() || status(&answer) == 408, "{answer}");
        assert!((29..32).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}

#[test]
fn an_injection_is_taken_with_its_scope_and_within_bounds() {
    let world = World::new();
    let post = |secret: &Secret, fields: &str, body: &str| {
        let secret = secret.reveal();
        let head = format!("POST /api/inject/v1 HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {secret}\r\n");
        world.raw(format!("{head}Connection: close\r\n{fields}\r\n{body}").as_bytes())
    };
    let json = "Content-Type: application/json; charset=utf-8\r\n";
    let taken = post(&world.injects, &format!("{json}Content-Length: 3\r\n"), "abc");
    assert!(status(&taken) == 503 && taken.contains("retry-after: 7") && taken.ends_with("{\"bytes\":3}"), "{taken}");
    let chunked =
        post(&world.injects, &format!("{json}Transfer-Encoding: chunked\r\n"), "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
    assert!(chunked.ends_with("{\"bytes\":3}"), "{chunked}");
    for (fields, body, expected) in [
        (format!("{json}Content-Length: 70000000\r\n"), "abc", 413),
        (format!("{json}Transfer-Encoding: chunked\r\n"), "zz\r\nabc", 400),
        (format!("{json}Content-Length: 3\r\nContent-Encoding: br\r\n"), "abc", 415),
        (format!("{json}Content-Length: 3\r\nContent-Encoding: gzip\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key: a b\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key:\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key: {}\r\n", "k".repeat(256)), "abc", 400),
        ("Content-Type: text/plain\r\nContent-Length: 3\r\n".to_owned(), "abc", 415),
        ("Content-Length: 3\r\n".to_owned(), "abc", 415),
    ] {
        let answer = post(&world.injects, &fields, body);
        assert_eq!(status(&answer), expected, "{fields}: {answer}");
    }
    for (key, is_replayed) in [("new", false), ("old", true)] {
        let answer = post(&world.injects, &format!("{json}Content-Length: 3\r\nIdempotency-Key: {key}\r\n"), "abc");
        assert!(answer.ends_with(&format!("{{\"bytes\":3,\"key\":\"{key}\"}}")), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed: true\r\n"), is_replayed, "{answer}");
    }
    assert_eq!(status(&post(&world.secret, &format!("{json}Content-Length: 3\r\n"), "abc")), 403);
    assert_eq!(status(&world.get("/api/inject/v1", &world.bearer())), 405);
}
