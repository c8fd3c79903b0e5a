//! HTTP through the real server: health, tokens, permissions, output.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::support::{ANYBODY, MESSAGE, PATIENCE, Server, command};

pub const CONFIG: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\n";

/// Address of the page, from the server's banner.
pub fn page_of(server: &Server) -> SocketAddr {
    let told = server.banner.lines().find_map(|line| line.trim().strip_prefix("page "));
    let address = told.and_then(|told| told.trim().strip_prefix("http://")?.strip_suffix('/')?.parse().ok());
    address.unwrap_or_else(|| panic!("no page: {}", server.banner))
}

pub fn serve(dir: &Path) -> (Server, SocketAddr) {
    let server = Server::start(dir, &format!("{ANYBODY}{CONFIG}"));
    let address = page_of(&server);
    (server, address)
}

#[test]
fn a_server_may_have_an_http_listener_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("host_name = \"mx.example.org\"\n{CONFIG}"));
    assert_eq!(get(page_of(&server), "/health/ready", None), (200, "ready\n".to_owned()));
}

/// Creates a token and returns its secret.
pub fn token(dir: &Path, name: &str, scopes: &str) -> String {
    let file = dir.join(format!("{name}.token"));
    let made = command(dir, &["token", "add", name, "--scope", scopes, "--output"]).arg(&file).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::read_to_string(file).unwrap().trim_end().to_owned()
}

/// Sends a request. Returns the status and the body of the answer.
pub fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head[9..12].parse().unwrap(), body.to_owned())
}

pub fn get(address: SocketAddr, path: &str, secret: Option<&str>) -> (u16, String) {
    let field = secret.map_or(String::new(), |secret| format!("Authorization: Bearer {secret}\r\n"));
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{field}\r\n"))
}

#[test]
fn health_and_page_are_for_everybody_and_the_rest_needs_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    assert_eq!(get(address, "/health/live", None), (200, "live\n".to_owned()));
    assert_eq!(get(address, "/health/ready", None), (200, "ready\n".to_owned()));
    assert!(get(address, "/", None).1.starts_with("<!doctype html>"));
    let evil = "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(address, evil).0, 421);
    assert_eq!(get(address, "/api/now/v1", None).0, 401);
    let secret = token(dir.path(), "watcher", "server:read");
    let (status, body) = get(address, "/api/now/v1", Some(&secret));
    assert!(status == 200 && body.contains("\"host_name\":\"mx.example.org\""), "{body}");
    assert_eq!(get(address, "/api/queue/v1", Some(&secret)).0, 403);
    let begun = Instant::now();
    assert_eq!(get(address, "/api/now/v1", Some(&format!("{secret}0"))).0, 401);
    assert!(begun.elapsed().as_millis() >= 900, "a wrong token is answered as slowly as a wrong password");
    server.wait_for_log("login failed");
    let log = server.log_text();
    assert!(!log.contains(&secret[4..]), "{log}");
    let removed = command(dir.path(), &["token", "remove", "watcher"]).output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(get(address, "/api/now/v1", Some(&secret)).0, 401, "a removed token is refused at once");
    server.stop();
}

#[test]
fn what_the_server_does_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "watcher", "server:read,queue:read");
    let mut client = server.hello();
    client.deliver(&["ann@example.org"], MESSAGE);
    client.expect("MAIL FROM:<a@example.net>", 250);
    client.expect("RCPT TO:<b@elsewhere.example>", 550);
    server.wait_for_mail("example.org", "ann", 1);
    let deadline = Instant::now() + PATIENCE;
    // Rates are those of the second before.
    let sum = |values: &Value| values.as_array().unwrap().iter().filter_map(Value::as_f64).sum::<f64>();
    loop {
        let (_, body) = get(address, "/api/now/v1", Some(&secret));
        let now: Value = serde_json::from_str(&body).unwrap();
        let rates = &now["rates"];
        if ["received", "delivered", "refused"].iter().all(|of| sum(&rates[of]) > 0.5) {
            assert_eq!(now["server"]["attention"], serde_json::json!([]), "{body}");
            assert!(now["server"]["streams"].as_array().unwrap().iter().any(|stream| stream["name"] == "local:"));
            break;
        }
        assert!(Instant::now() < deadline, "{body}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (_, body) = get(address, "/api/queue/v1", Some(&secret));
    let queue: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&queue["recipients"], &queue["oldest"]), (&0.into(), &Value::Null));
}

/// Sends a login with this body. Returns the status and the JSON of the answer.
fn log_in(address: SocketAddr, body: &str) -> (u16, Value) {
    let head = format!(
        "POST /api/session/v1 HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    );
    let (status, answer) = ask(address, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
    (status, serde_json::from_str(&answer).unwrap())
}

#[test]
fn a_printed_link_logs_a_browser_in_once_and_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let piped = command(dir.path(), &["page"]).output().unwrap();
    let said = String::from_utf8_lossy(&piped.stderr);
    assert!(!piped.status.success() && piped.stdout.is_empty() && said.contains("--output FILE"), "{said}");
    let link = |name: &str, more: &[&str]| {
        let file = dir.path().join(name);
        let printed = command(dir.path(), &["page", "--output"]).arg(&file).args(more).output();
        let printed = printed.unwrap();
        assert!(printed.status.success(), "{printed:?}");
        let text = std::fs::read_to_string(file).unwrap();
        let (url, key) = text.trim_end().split_once("#k=").unwrap();
        assert_eq!(url, format!("http://{address}/"));
        key.to_owned()
    };
    let key = link("first", &[]);
    let (status, begun) = log_in(address, &format!("{{\"link\":\"{key}\"}}"));
    assert_eq!(status, 200, "{begun}");
    let scopes = begun["scopes"].as_array().unwrap();
    assert!(scopes.contains(&"queue:write".into()) && !scopes.contains(&"mail:read".into()), "{begun}");
    let session = begun["session"].as_str().unwrap().to_owned();
    assert_eq!(log_in(address, &format!("{{\"link\":\"{key}\"}}")).0, 401, "a second use");
    let key = link("second", &["--for", "1h", "--scopes", "queue:read"]);
    let (_, begun) = log_in(address, &format!("{{\"link\":\"{key}\"}}"));
    assert_eq!(begun["scopes"], serde_json::json!(["queue:read"]));
    let log = server.log_text();
    assert!(!log.contains(&key[4..]) && !log.contains(&session[4..]), "{log}");
    let usual = "scopes=\"inject,queue:read,queue:write,route,suppression,events:read,accounts,server:read,server:drain,metrics\" secs=43200";
    assert!(log.contains(usual) && log.contains("scopes=\"queue:read\" secs=3600"), "{log}");
    server.stop();
    let (server, address) = serve(dir.path());
    assert_eq!(get(address, "/api/now/v1", Some(&session)).0, 200, "still logged in");
    server.stop();
    let gone = command(dir.path(), &["page", "--output", "/dev/null"]).output().unwrap();
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no server runs"), "{gone:?}");
}

#[test]
fn a_secret_is_shown_on_a_terminal_only() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path());
    let none = command(dir.path(), &["token", "list"]).output().unwrap();
    assert_eq!((none.status.code(), &*none.stdout), (Some(1), &b"there are no tokens\n"[..]));
    let piped = command(dir.path(), &["token", "add", "piped", "--scope", "server:read"]).output().unwrap();
    let said = String::from_utf8_lossy(&piped.stderr);
    assert!(!piped.status.success() && piped.stdout.is_empty() && said.contains("--output FILE"), "{said}");
    let secret = token(dir.path(), "kept", "server:read");
    assert!(secret.starts_with("pht_") && secret.len() == 44, "{secret}");
    let listed = command(dir.path(), &["token", "list"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "kept  server:read  no end\n");
    let unknown = command(dir.path(), &["token", "add", "x", "--scope", "everything"]).output().unwrap();
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(unknown.status.code() == Some(2) && said.contains("there is no scope `everything`"), "{said}");
    let of = |name: &str, tenant: &str| {
        let words = ["token", "add", name, "--scope", "inject", "--tenant", tenant, "--output"];
        let made = command(dir.path(), &words).arg(dir.path().join(name)).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        String::from_utf8_lossy(&made.stderr).into_owned()
    };
    assert!(of("nope", "nope").contains("warning: the configuration names no tenant nope"));
    let path = dir.path().join("posthaste.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config + "[[network]]\ncidr = \"192.0.2.1\"\ntenant = \"acme\"\n").unwrap();
    assert!(!of("acme", "acme").contains("warning"));
    let ended = command(dir.path(), &["token", "add", "x", "--scope", "inject", "--for", "0s"]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(2) && said.contains("at least 1s"), "{said}");
    let tokens = std::fs::read_to_string(dir.path().join("posthaste-data/tokens")).unwrap();
    assert!(!tokens.contains(&secret[4..]), "{tokens}");
    server.stop();
}
