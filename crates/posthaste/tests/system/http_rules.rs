//! Further rules of HTTP: passwords that give no access, and the cost of requests for mail.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::auth::{line, plain};
use crate::http::{CONFIG, ask, page_of, serve, token};
use crate::inject::{JSON, request, status, to, try_ask};
use crate::support::{ANYBODY, Client, PATIENCE, Server};

/// The answer to a request without a body, with these fields.
pub fn get(server: &Server, path: &str, fields: &str) -> (u16, String) {
    let address = page_of(server);
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}\r\n"))
}

pub fn basic(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
}

/// Logins may send without TLS: the listener is on loopback.
pub const LOGINS: &str =
    "[auth]\nfile = \"passwords\"\n[[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"off\"\nauth = \"offered\"\n";

#[test]
fn no_password_of_mail_opens_http() {
    let dir = tempfile::tempdir().unwrap();
    let users = "host_name = \"mx.example.org\"\n[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n";
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann@example.org", "open-sesame")).unwrap();
    let server = Server::start(dir.path(), &format!("{users}{LOGINS}{CONFIG}"));
    let mut client = server.hello();
    client.expect(&plain("ann@example.org", "open-sesame"), 235);
    for fields in [
        basic("ann@example.org", "open-sesame"),
        basic("ann@example.org", "open-sesame\0"),
        "Authorization: Bearer open-sesame\r\n".to_owned(),
    ] {
        assert_eq!(get(&server, "/api/token/v1", &fields).0, 401, "{fields}");
    }
    let body = "{\"token\":\"open-sesame\"}";
    let head = format!("POST /api/session/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{JSON}");
    let begun = ask(page_of(&server), &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(begun.0, 401, "{}", begun.1);
    // The token's password may come with any name.
    let secret = token(dir.path(), "me", "queue:read");
    assert_eq!(get(&server, "/api/token/v1", &basic("ann@example.org", &secret)).0, 200);
    server.stop();
}

#[test]
fn the_messages_of_a_request_share_syncs() {
    const RECIPIENTS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject,metrics");
    let bearer = format!("Authorization: Bearer {secret}\r\n");
    let syncs = || {
        let (_, text) = get(&server, "/metrics", &bearer);
        let line = text.lines().find_map(|line| line.strip_prefix("posthaste_sync_seconds_count ")).unwrap().to_owned();
        line.parse::<usize>().unwrap()
    };
    let before = syncs();
    let all: Vec<Value> = (0..RECIPIENTS).map(|n| json!({ "email": format!("u{n}@example.org") })).collect();
    let mail = json!({ "envelope_sender": "shop@example.net", "recipients": all, "content": "Subject: to {{ email }}\n\nx\n" });
    let (head, answer) = try_ask(address, &request(&secret, JSON, &mail.to_string())).unwrap();
    assert_eq!((status(&head), &answer["success_count"]), (200, &RECIPIENTS.into()), "{answer}");
    let shared = syncs() - before;
    // Records of deliveries meanwhile are among them.
    assert!(shared < RECIPIENTS, "{shared} syncs for {RECIPIENTS} messages");
    server.stop();
}

#[test]
fn a_request_whose_key_is_at_work_is_told_to_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    let all: Vec<Value> = (0..2000).map(|n| json!({ "email": format!("u{n}@example.org") })).collect();
    let mail = json!({ "envelope_sender": "shop@example.net", "recipients": all, "content": "Subject: to {{ email }}\n\nx\n" });
    let text = request(&secret, &format!("{JSON}Idempotency-Key: mailing\r\n"), &mail.to_string());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| try_ask(address, &text).unwrap());
        server.wait_for_log("message kept");
        let (head, answer) = try_ask(address, &text).unwrap();
        assert!(status(&head) == 409 && head.contains("retry-after: 1"), "{head} {answer}");
        let (head, answer) = first.join().unwrap();
        assert_eq!((status(&head), &answer["success_count"]), (200, &2000.into()), "{answer}");
    });
    let (head, _) = try_ask(address, &text).unwrap();
    assert!(status(&head) == 200 && head.contains("idempotent-replayed: true"), "{head}");
    server.stop();
}

#[test]
fn a_draining_server_takes_no_further_request() {
    use std::io::{Read as _, Write as _};
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    let text = request(&secret, JSON, &to(&["ann@example.org"], "Subject: x\n\nx\n").to_string());
    let first = text.replace("Connection: close\r\n", "Expect: 100-continue\r\n");
    let (begin, rest) = first.split_at(first.len() - 5);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(begin.as_bytes()).unwrap();
    let mut continues = [0; 25];
    stream.read_exact(&mut continues).unwrap();
    server.signal(rustix::process::Signal::TERM);
    server.wait_for_log("stopping: no new connections");
    // A second request on the connection that is still open: the first is its last.
    stream.write_all(format!("{rest}{text}").as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.starts_with("HTTP/1.1 200") && answers.contains("connection: close"), "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
    assert!(server.wait().success());
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_mail("example.org", "ann", 1);
    server.stop();
}

#[test]
fn a_token_drains_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = serve(dir.path());
    let (secret, reader) = (token(dir.path(), "deploy", "server:drain"), token(dir.path(), "reader", "server:read"));
    let drain = |secret: &str| {
        let head = "POST /api/drain/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n";
        ask(address, &format!("{head}Authorization: Bearer {secret}\r\n\r\n"))
    };
    assert_eq!(drain(&reader).0, 403);
    // A session that is under way is finished.
    let mut client = server.hello();
    client.expect("MAIL FROM:<eve@example.net>", 250);
    client.expect("RCPT TO:<ann@example.org>", 250);
    client.expect("DATA", 354);
    let (status, answer) = drain(&secret);
    assert_eq!((status, &*answer), (202, "{\"draining\":true}"));
    server.wait_for_log("stopping: no new connections");
    // The service manager's signal is the first.
    server.signal(rustix::process::Signal::TERM);
    server.wait_for_log("signal during the drain");
    client.expect("Subject: x\r\n\r\nx\r\n.", 250);
    drop(client);
    assert!(server.wait().success());
    let log = server.log_text();
    assert!(log.contains("has started the drain") && log.contains("deploy"), "{log}");
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_mail("example.org", "ann", 1);
    server.stop();
}

#[test]
fn who_guesses_wrong_is_slowed_and_never_shut_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}"));
    let secret = token(dir.path(), "me", "queue:read");
    // The same guess counts once, however often it comes.
    let wrong = |n: u32| format!("Authorization: Bearer pht_{n:040}\r\n");
    let mut said = Vec::new();
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..15)
            .map(|n| {
                scope.spawn({
                    let (server, wrong) = (&server, wrong(n));
                    move || get(server, "/api/queue/v1", &wrong).0
                })
            })
            .collect();
        said.extend(asking.into_iter().map(|asking| asking.join().unwrap()));
    });
    said.push(get(&server, "/api/queue/v1", &wrong(99)).0);
    assert!(said.contains(&401) && said.last() == Some(&429), "{said:?}");
    assert_eq!(get(&server, "/api/queue/v1", &format!("Authorization: Bearer {secret}\r\n")).0, 200);
    assert_eq!(get(&server, "/health/live", "").0, 200);
    // Mail is as before.
    let mut client: Client = server.hello();
    client.deliver(&["ann@example.org"], b"Subject: x\r\n\r\nx\r\n");
    server.stop();
}
