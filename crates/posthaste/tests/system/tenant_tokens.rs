//! Tokens of tenants: mail of other tenants is invisible in the answers to all requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use serde_json::{Value, json};

use crate::http::{CONFIG, ask, page_of};
use crate::inject::{JSON, request, status, try_ask};
use crate::relaying::{config, list, queue, unused_port};
use crate::support::{PATIENCE, Server, command};

const SCOPES: &str = "inject,queue:read,queue:write,suppression,events:read,mail:read";
/// One of these is in every text of bravo's mail.
const OF_BRAVO: [&str; 2] = ["bravo", "bsecret"];

/// Creates a token with bounds and returns its secret.
pub fn token(dir: &Path, name: &str, scopes: &str, bounds: &[&str]) -> String {
    let file = dir.join(format!("{name}.token"));
    let words = [&["token", "add", name, "--scope", scopes], bounds, &["--output"]].concat();
    let made = command(dir, &words).arg(&file).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::read_to_string(file).unwrap().trim_end().to_owned()
}

struct World {
    dir: tempfile::TempDir,
    server: Server,
    address: SocketAddr,
    /// The tokens of the tenants acme and bravo.
    acme: String,
    bravo: String,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let relay = config(unused_port(), "tenant_header = \"X-Tenant\"\n")
            .replace("unreachable_secs = 1\n", "unreachable_secs = 600\n");
        let server = Server::start(dir.path(), &format!("{relay}{CONFIG}"));
        let address = page_of(&server);
        let acme = token(dir.path(), "a", SCOPES, &["--tenant", "acme"]);
        let bravo = token(dir.path(), "b", SCOPES, &["--tenant", "bravo"]);
        Self { dir, server, address, acme, bravo }
    }

    fn control(&self, secret: &str, request: &Value) -> (u16, Value) {
        let body = request.to_string();
        let head = format!(
            "POST /api/control/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n"
        );
        let (status, answer) = ask(self.address, &format!("{head}{JSON}Content-Length: {}\r\n\r\n{body}", body.len()));
        (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
    }

    fn get(&self, path: &str, secret: &str) -> (u16, String) {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        ask(self.address, &format!("{head}Authorization: Bearer {secret}\r\n\r\n"))
    }

    fn inject(&self, secret: &str, sender: &str, to: &str, header: &str) -> (u16, Value) {
        let content = format!("From: {sender}\nSubject: of {to}\n{header}\ntext\n");
        let body = json!({ "envelope_sender": sender, "recipients": [{ "email": to }], "content": content });
        let (head, answer) = try_ask(self.address, &request(secret, JSON, &body.to_string())).unwrap();
        (status(&head), answer)
    }

    /// Repeats a request until the answer is the expected one: the event log is written a moment later.
    fn until(&self, secret: &str, request: &Value, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let (status, answer) = self.control(secret, request);
            if status == 200 && is_it(&answer) {
                return answer;
            }
            assert!(std::time::Instant::now() < deadline, "{request}: {status} {answer}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Bravo's waiting mail, as the operator sees it.
    fn of_bravo(&self) -> Vec<(String, String)> {
        let text = |line: &Value, key: &str| line[key].to_string();
        let all = list(self.dir.path(), &["--tenant", "bravo"]);
        all.iter().map(|line| (text(line, "id"), text(line, "held_by") + &text(line, "state"))).collect()
    }
}

fn assert_nothing_of_bravo(what: &Value, answer: &str) {
    let lower = answer.to_lowercase();
    assert!(OF_BRAVO.iter().all(|text| !lower.contains(text)), "{what} shows {answer}");
}

#[test]
fn no_request_of_a_tenant_shows_or_changes_mail_of_another() {
    let world = World::new();
    let dir = world.dir.path();
    assert_eq!(world.inject(&world.acme, "shop@acme.example", "ann@there.example", "").0, 200);
    assert_eq!(world.inject(&world.bravo, "shop@bravo.example", "bsecret@there.example", "").0, 200);
    let all = list(dir, &[]);
    let tenants: Vec<&str> = all.iter().map(|line| line["tenant"].as_str().unwrap()).collect();
    assert_eq!(tenants, ["acme", "bravo"], "{all:?}");
    let number = |line: &Value| line["id"].as_str().unwrap().split_once('.').unwrap().0.parse::<u64>().unwrap();
    let (own, foreign) = (number(&all[0]), number(&all[1]));
    let (own_text, foreign_text) = (own.to_string(), foreign.to_string());
    let entry = |address: &str| json!({ "ask": "suppress", "entries": [{ "address": address }] });
    assert_eq!(world.control(&world.bravo, &entry("bsecret@else.example")).0, 200);
    assert_eq!(world.control(&world.acme, &entry("x@else.example")).0, 200);
    assert_eq!(queue(dir, &["suspend", "--tenant", "bravo", "--reason", "bsecret"]).0, 0);
    let found = json!({ "ask": "find", "what": "ann@there.example" });
    world.until(&world.acme, &found, |answer| answer["lines"][0]["events"][0]["event"] == "received");
    let before = world.of_bravo();
    assert_eq!(before.len(), 1);
    let named = [
        json!({ "message": foreign_text }),
        json!({ "recipient": "bsecret@there.example" }),
        json!({ "sender": "shop@bravo.example" }),
        json!({ "campaign": "", "message": foreign_text }),
    ];
    let mut requests = vec![
        json!({ "ask": "list" }),
        json!({ "ask": "suspensions" }),
        json!({ "ask": "suppressions" }),
        json!({ "ask": "suppressions", "of": { "address": "bsecret@else.example" } }),
        json!({ "ask": "unsuppress", "addresses": ["bsecret@else.example"] }),
        json!({ "ask": "find" }),
        json!({ "ask": "find", "what": foreign_text }),
        json!({ "ask": "find", "what": "bsecret@there.example" }),
        json!({ "ask": "find", "what": "shop@bravo.example" }),
        json!({ "ask": "find", "user": "b" }),
        json!({ "ask": "resume", "scope": {} }),
        json!({ "ask": "resume", "scope": { "domain": "there.example" } }),
    ];
    requests
        .extend(["domain", "tenant", "campaign", "site"].map(|by| json!({ "ask": "summary", "by": by, "top": 10 })));
    requests.extend(named.iter().map(|of| json!({ "ask": "list", "of": of })));
    for action in ["hold", "release", "flush", "requeue", "delete", "bounce"] {
        requests.extend(named.iter().map(|of| json!({ "ask": "act", "of": of, "action": action })));
    }
    for request in &requests {
        let (status, answer) = world.control(&world.acme, request);
        assert_eq!(status, 200, "{request}: {answer}");
        assert_nothing_of_bravo(request, &answer.to_string());
        if request["ask"] == "act" {
            assert_eq!(answer["end"]["changed"], 0, "{request}: {answer}");
        }
    }
    let tenant = json!({ "tenant": "bravo" });
    let scope = json!({ "tenant": "bravo", "domain": "there.example" });
    for refused in [
        json!({ "ask": "list", "of": tenant }),
        json!({ "ask": "summary", "of": tenant }),
        json!({ "ask": "act", "of": tenant, "action": "delete" }),
        json!({ "ask": "suspend", "scope": scope, "secs": null }),
        json!({ "ask": "resume", "scope": tenant }),
        json!({ "ask": "suppressions", "of": tenant }),
        json!({ "ask": "suppress", "entries": [{ "address": "x@y.example", "tenant": "bravo" }] }),
        json!({ "ask": "unsuppress", "tenant": "bravo", "addresses": ["bsecret@else.example"] }),
        json!({ "ask": "suspend", "scope": { "campaign": "" }, "secs": null }),
        json!({ "ask": "explain", "domain": "there.example" }),
        json!({ "ask": "divert", "scope": scope, "to": "x.example", "secs": null }),
        json!({ "ask": "undivert", "scope": scope }),
        json!({ "ask": "diversions" }),
        json!({ "ask": "subjects", "of": [] }),
        json!({ "ask": "mail", "of": { "message": own_text, "mailbox": "here.example/eve/Maildir" } }),
        json!({ "ask": "logins" }),
        json!({ "ask": "domains" }),
        json!({ "ask": "records", "domain": "bravo.example" }),
        json!({ "ask": "export", "of": {} }),
        json!({ "ask": "page", "secs": 1 }),
    ] {
        let (status, answer) = world.control(&world.acme, &refused);
        assert_eq!(status, 403, "{refused}: {answer}");
        assert_nothing_of_bravo(&refused, &answer.to_string());
    }
    // A message of another tenant is as one that there is not.
    for ask in ["cat", "mail"] {
        let of = |message: u64| {
            let number = message.to_string();
            let request = match ask {
                "mail" => json!({ "ask": ask, "of": { "message": number } }),
                _ => json!({ "ask": ask, "message": number }),
            };
            let (status, answer) = world.control(&world.acme, &request);
            (status, answer.to_string().replace(&number, "N"))
        };
        assert_eq!(of(foreign), of(foreign + 1_000_000), "{ask}");
        assert_eq!(of(foreign).0, 404, "{ask}");
        assert_eq!(of(own).0, 200, "{ask}");
    }
    for path in ["/api/now/v1", "/api/system/v1", "/api/log/v1", "/metrics"] {
        assert_eq!(world.get(path, &world.acme).0, 403, "{path}");
    }
    let (status, answer) = world.get("/api/queue/v1", &world.acme);
    let shown: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &shown["recipients"]), (200, &1.into()), "{answer}");
    assert_nothing_of_bravo(&"/api/queue/v1".into(), &answer);
    let (_, answer) = world.get("/api/token/v1", &world.acme);
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["tenant"], "acme");
    assert_eq!(world.of_bravo(), before, "nothing of it was changed");
    let suppressed = world.control(&world.bravo, &json!({ "ask": "suppressions" })).1;
    assert_eq!(suppressed["lines"][0]["address"], "bsecret@else.example", "{suppressed}");
    world.server.stop();
}

#[test]
fn a_tenant_changes_its_own_mail_alone() {
    let world = World::new();
    let dir = world.dir.path();
    for (secret, tenant) in [(&world.acme, "acme"), (&world.bravo, "bravo")] {
        assert_eq!(world.inject(secret, &format!("shop@{tenant}.example"), "ann@there.example", "").0, 200);
    }
    let of = json!({ "domain": "there.example" });
    let (_, held) = world.control(&world.acme, &json!({ "ask": "act", "of": of, "action": "hold", "expect": 1 }));
    assert_eq!(held["end"]["changed"], 1, "{held}");
    let held_by = |line: &Value| (line["tenant"].as_str().unwrap().to_owned(), line["held_by"].is_string());
    let all: Vec<_> = list(dir, &[]).iter().map(held_by).collect();
    assert_eq!(all, [("acme".to_owned(), true), ("bravo".to_owned(), false)]);
    let suspend = json!({ "ask": "suspend", "scope": of, "secs": 600, "reason": "look" });
    assert_eq!(world.control(&world.acme, &suspend).0, 200);
    let suspensions = |secret: &str| world.control(secret, &json!({ "ask": "suspensions" })).1["lines"].clone();
    assert_eq!(suspensions(&world.acme)[0]["scope"], json!({ "tenant": "acme", "domain": "there.example" }));
    assert_eq!(suspensions(&world.bravo), json!([]));
    let (status, deleted) = world.control(&world.acme, &json!({ "ask": "act", "of": {}, "action": "delete" }));
    assert_eq!((status, &deleted["end"]["changed"]), (200, &1.into()), "{deleted}");
    assert_eq!(list(dir, &[]).len(), 1);
    // Its header cannot say otherwise.
    let (status, answer) = world.inject(&world.acme, "shop@acme.example", "ann@there.example", "X-Tenant: bravo\n");
    assert!(status == 400 && answer.to_string().contains("another tenant"), "{status} {answer}");
    assert_eq!(world.inject(&world.acme, "shop@acme.example", "ann@there.example", "X-Tenant: acme\n").0, 200);
    world.server.stop();
}

#[test]
fn a_tenant_follows_its_own_events() {
    let world = World::new();
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head =
        format!("GET /api/events/v1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n", world.acme);
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line.contains(": events")));
    assert_eq!(world.inject(&world.bravo, "shop@bravo.example", "bsecret@there.example", "").0, 200);
    assert_eq!(world.inject(&world.acme, "shop@acme.example", "ann@there.example", "").0, 200);
    let first = lines.find(|line| line.contains("data: ")).unwrap();
    assert!(first.contains("\"event\":\"received\"") && first.contains("\"tenant\":\"acme\""), "{first}");
    assert_nothing_of_bravo(&"events".into(), &first);
    world.server.stop();
}

#[test]
fn a_token_is_bound_to_senders_and_networks() {
    let world = World::new();
    let dir = world.dir.path();
    let bound =
        token(dir, "bound", "inject", &["--sender-domains", "a.example,.b.example", "--networks", "127.0.0.0/8,::1"]);
    let far = token(dir, "far", "inject,queue:read", &["--networks", "192.0.2.0/24"]);
    let check = |secret: &str, sender: &str, expected: u16| {
        let (status, answer) = world.inject(secret, sender, "ann@there.example", "");
        assert_eq!(status, expected, "{sender}: {answer}");
    };
    check(&bound, "x@a.example", 200);
    check(&bound, "x@y.b.example", 200);
    check(&bound, "x@b.example", 403);
    check(&bound, "x@acme.example", 403);
    check(&far, "x@a.example", 403);
    assert_eq!(world.get("/api/queue/v1", &far).0, 403);
    assert_eq!(list(dir, &[]).len(), 2);
    let shown = command(dir, &["token", "list"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("of tenant acme") && shown.contains("from a.example,.b.example  at 127.0.0.0/8,::1/128"),
        "{shown}"
    );
    for (words, expected) in [
        (&["--scope", "server:read", "--tenant", "acme"][..], "about the whole server"),
        (&["--scope", "inject", "--sender-domains", "a b"][..], "not a domain of senders"),
        (&["--scope", "inject", "--networks", "10.0.0.1/8"][..], "10.0.0.0/8"),
    ] {
        let words = [&["token", "add", "wrong"], words, &["--output", "wrong.token"]].concat();
        let refused = command(dir, &words).output().unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && told.contains(expected), "{told}");
    }
    world.server.stop();
}
