//! Mail in by HTTP through the real server: delivered, relayed, durable, and refused with the right code.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use posthaste_smtp::command::date_time;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{CONFIG, get, page_of, serve, token};
use crate::relaying::{self, ANYWHERE, next_hop};
use crate::support::{ANYBODY, PATIENCE, Server, mailbox};

/// A request with additional header fields.
pub fn request(secret: &str, fields: &str, body: &str) -> String {
    let head = format!("POST /api/inject/v1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n");
    let length = body.len();
    format!("{head}Connection: close\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
}

pub const JSON: &str = "Content-Type: application/json\r\n";

/// Head and body of the answer; an error if it is missing or incomplete.
pub fn try_ask(address: SocketAddr, request: &str) -> std::io::Result<(String, Value)> {
    try_ask_octets(address, request.as_bytes())
}

pub fn try_ask_octets(address: SocketAddr, request: &[u8]) -> std::io::Result<(String, Value)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    read_answer(&mut stream)
}

fn read_answer(stream: &mut TcpStream) -> std::io::Result<(String, Value)> {
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok((head.to_owned(), serde_json::from_str(body)?))
}

pub fn status(head: &str) -> u16 {
    head[9..12].parse().unwrap()
}

/// Sends a message. Returns the status and the body of the answer.
fn inject(address: SocketAddr, secret: &str, body: &Value) -> (u16, Value) {
    let (head, answer) = try_ask(address, &request(secret, JSON, &body.to_string())).unwrap();
    (status(&head), answer)
}

pub fn to(recipients: &[&str], content: impl Into<Value>) -> Value {
    let recipients: Vec<Value> = recipients.iter().map(|email| json!({ "email": email })).collect();
    json!({ "envelope_sender": "shop@example.net", "recipients": recipients, "content": content.into() })
}

#[test]
fn an_injected_message_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let known = ANYBODY.replace("\"any\"", "[\"ann\", \"bob\"]");
    let server = Server::start(dir.path(), &format!("{known}{CONFIG}"));
    let (address, secret) = (page_of(&server), token(dir.path(), "shop", "inject"));
    let text = "Subject: hello\nBcc: hidden@example.org\nFrom: shop@example.net\n\nbody\n.\n..\nüber\n";
    let all = ["ann@example.org", "bob@example.org", "ann@example.org", "eve@example.org"];
    let (status, answer) = inject(address, &secret, &to(&all, text));
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["success_count"], &answer["fail_count"]), (&2.into(), &1.into()), "{answer}");
    assert_eq!(answer["failed_recipients"], json!(["eve@example.org"]));
    assert!(answer["errors"][0].as_str().unwrap().starts_with("eve@example.org: 550 5.1.1 "), "{answer}");
    let found = server.wait_for_mail("example.org", "ann", 1).remove(0).text();
    assert!(found.contains("Return-Path: <shop@example.net>") && found.contains("Subject: hello\n"), "{found}");
    assert!(found.contains("\nReceived: by mx.example.org (Posthaste, by HTTP)\n"), "{found}");
    assert!(found.contains("\nDate: ") && found.contains("\nMessage-ID: <") && !found.contains("hidden@"), "{found}");
    assert!(found.ends_with("\n\nbody\n.\n..\nüber\n") && !found.contains("127.0.0.1"), "{found}");
    server.wait_for_mail("example.org", "bob", 1);
    let kept = server.wait_for_log("message kept");
    assert!(kept.contains("127.0.0.1 (token shop)") && kept.contains("with=\"HTTP\""), "{kept}");
    let (status, answer) = inject(address, &secret, &to(&["eve@example.org"], text));
    assert_eq!((status, &answer["success_count"]), (400, &0.into()), "{answer}");
    server.stop();
}

#[test]
fn messages_of_a_request_have_its_id_in_common() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    let each = to(&["ann@example.org", "bob@example.org"], "Subject: {{ email }}\n\nx\n");
    assert_eq!(inject(address, &secret, &each).0, 200);
    assert_eq!(inject(address, &secret, &to(&["cid@example.org"], "Subject: x\n\nx\n")).0, 200);
    server.wait_for_log_again("message kept", 3);
    let log = server.log_text();
    let id_of = |user: &str| {
        let line = log.lines().find(|line| line.contains("message kept") && line.contains(user)).unwrap();
        let id = line.split_once("received_id=\"").unwrap().1.split_once('"').unwrap().0;
        let text = server.wait_for_mail("example.org", user, 1)[0].text();
        assert!(text.contains(&format!("\tid {id}")), "{id}: {text}");
        let (request, number) = id.rsplit_once('.').unwrap();
        (request.to_owned(), number.to_owned())
    };
    let (ann, bob, cid) = (id_of("ann"), id_of("bob"), id_of("cid"));
    assert!(ann.0 == bob.0 && ann.0 != cid.0, "{ann:?} {bob:?} {cid:?}");
    assert_eq!([ann.1, bob.1, cid.1], ["1", "2", "1"]);
    server.stop();
}

#[test]
fn an_injected_message_is_relayed() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let config = relaying::config(next.addresses[0].port(), "").replace("networks = [\"127.0.0.1\"]\n", "");
    let server = Server::start(here.path(), &(config + CONFIG));
    let secret = token(here.path(), "shop", "inject");
    let recipients = ["ann@there.example", "bob@there.example", "eve@here.example"];
    let (status, answer) = inject(page_of(&server), &secret, &to(&recipients, "Subject: x\r\n\r\n.dot\r\n"));
    assert_eq!((status, &answer["success_count"]), (200, &3.into()), "{answer}");
    for user in ["ann", "bob"] {
        let found = next.wait_for_mail("there.example", user, 1).remove(0).text();
        assert!(found.contains("(Posthaste, by HTTP)") && found.ends_with("\n.dot\n"), "{found}");
    }
    server.wait_for_mail("here.example", "eve", 1);
    server.stop();
    next.stop();
}

#[test]
fn an_injected_message_names_its_tenant_campaign_and_pool() {
    let here = tempfile::tempdir().unwrap();
    let labels = "tenant_header = \"X-Tenant\"\ncampaign_header = \"X-Campaign\"\npool_header = \"X-Pool\"\n\
                  [[relay.tenant]]\nname = \"acme\"\nsender_domains = [\"example.net\"]\n\
                  [[relay.source]]\nname = \"one\"\nipv4 = \"127.0.0.1\"\n\
                  [[relay.pool]]\nname = \"bulk\"\ntenants = []\nsources = { one = 1 }\n";
    let server = Server::start(here.path(), &(relaying::config(relaying::unused_port(), labels) + CONFIG));
    let (address, secret) = (page_of(&server), token(here.path(), "shop", "inject"));
    let raw = json!("Subject: x\nX-Tenant: acme\nX-Campaign: spring\nX-Pool: bulk\n\nx\n");
    let headers = json!({ "X-Tenant": "acme", "X-Campaign": "spring", "X-Pool": "bulk" });
    for content in [raw, json!({ "subject": "x", "text_body": "x", "headers": headers })] {
        let (status, answer) = inject(address, &secret, &to(&["ann@there.example"], content));
        assert_eq!(status, 200, "{answer}");
    }
    let waiting = relaying::list(here.path(), &[]);
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    for line in waiting {
        assert_eq!([&line["tenant"], &line["campaign"], &line["pool"]], ["acme", "spring", "bulk"], "{line}");
        let id = line["id"].as_str().unwrap().split('.').next().unwrap();
        let (_, text) = relaying::queue(here.path(), &["cat", id]);
        assert!(text.contains("Subject: x") && !text.contains("X-"), "they are for this server alone: {text}");
    }
    let (status, answer) = inject(address, &secret, &to(&["ann@there.example"], "X-Pool: none\n\nx\n"));
    assert_eq!(status, 400, "there is no such pool: {answer}");
    server.stop();
}

#[test]
fn a_request_with_a_schedule_waits_for_its_time() {
    let here = tempfile::tempdir().unwrap();
    let config = relaying::config(relaying::unused_port(), "");
    let server = Server::start(here.path(), &(config + CONFIG));
    let secret = token(here.path(), "shop", "inject");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let scheduled = |first: i64, expires: i64| {
        let mut body = to(&["ann@there.example", "eve@here.example"], "Subject: later\n\nx\n");
        let [first_attempt, expires] = [first, expires].map(|secs| date_time(now + secs).to_string());
        body["schedule"] = json!({ "first_attempt": first_attempt, "expires": expires });
        inject(page_of(&server), &secret, &body)
    };
    const DAY: i64 = 86_400;
    let (status, answer) = scheduled(DAY, 2 * DAY);
    assert_eq!(
        (status, &answer["success_count"], &answer["failed_recipients"]),
        (200, &1.into(), &json!(["eve@here.example"]))
    );
    assert!(answer["errors"][0].as_str().unwrap().contains("550 5.5.4"), "{answer}");
    let waiting = relaying::list(here.path(), &[]);
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!(waiting[0]["state"], "scheduled");
    // Counted from when it was received, in whole seconds.
    for (key, secs) in [("until", DAY), ("expires", 2 * DAY)] {
        let found = waiting[0][key].as_i64().unwrap() - now;
        assert!((secs - 2..secs + 3600).contains(&found), "{key} after {found} s: {waiting:?}");
    }
    for (first, expires, why) in [(DAY, DAY, "expire before"), (400 * DAY, 500 * DAY, "a year ahead at most")] {
        let (status, answer) = scheduled(first, expires);
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(why), "{answer}");
    }
    let (status, answer) = scheduled(-2 * DAY, -DAY);
    assert!(status == 400 && answer["errors"][0].as_str().unwrap().contains("501 5.4.7"), "{answer}");
    server.stop();
}

#[test]
fn injected_mail_that_was_answered_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    let acknowledged = Mutex::new(HashSet::new());
    // One in ten is large, and goes to a file of its own.
    let large = "x".repeat(70).repeat(20_000);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (acknowledged, secret, large) = (&acknowledged, &secret, &large);
            scope.spawn(move || {
                for number in 0.. {
                    let name = format!("{client}-{number}");
                    let text = if number % 10 == 5 { large } else { "small" };
                    let mail = to(&["ann@example.org"], format!("Subject: {name}\n\n{text}\n"));
                    let Ok((head, answer)) = try_ask(address, &request(secret, JSON, &mail.to_string())) else {
                        return;
                    };
                    assert_eq!(status(&head), 200, "{answer}");
                    acknowledged.lock().unwrap().insert(name);
                }
            });
        }
        while acknowledged.lock().unwrap().len() < 100 {
            std::thread::yield_now();
        }
        server.signal(Signal::KILL);
        server.wait();
    });
    let server = Server::start_as_it_is(dir.path());
    let acknowledged = acknowledged.into_inner().unwrap();
    let subject = |text: String| text.lines().find_map(|line| line.strip_prefix("Subject: ")).unwrap().to_owned();
    let found = || server.mailbox("example.org", "ann").iter().map(|mail| subject(mail.text())).collect::<Vec<_>>();
    // Some more may have come that were durable, and not answered yet.
    let deadline = Instant::now() + PATIENCE;
    while let Some(missing) = acknowledged.difference(&found().into_iter().collect()).next() {
        assert!(Instant::now() < deadline, "lost: {missing}");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.stop();
    let found: Vec<String> =
        mailbox(dir.path(), "example.org", "ann").iter().map(|mail| subject(mail.text())).collect();
    assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len(), "each once");
}

#[test]
fn each_refusal_of_a_request_has_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let limits = "[limits]\nmessage_bytes = 100000\nheader_bytes = 1024\n[auth]\nrecipient_rate = \"3/day\"\n";
    let server = Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}{limits}"));
    let address = page_of(&server);
    let (secret, other) = (token(dir.path(), "shop", "inject"), token(dir.path(), "watcher", "server:read"));
    let mail = to(&["ann@example.org"], "Subject: x\n\nx\n");
    let check = |secret: &str, fields: &str, body: &str, expected: u16, why: &str| {
        let (head, answer) = try_ask(address, &request(secret, fields, body)).unwrap();
        let said = answer["error"].as_str().unwrap_or_else(|| answer["errors"][0].as_str().unwrap());
        assert!(status(&head) == expected && said.contains(why), "{expected} {why}: {head} {answer}");
        head
    };
    let text = mail.to_string();
    check("pht_0", JSON, &text, 401, "not valid");
    check(&other, JSON, &text, 403, "no scope inject");
    check(&secret, "", &text, 415, "Content-Type");
    check(&secret, "Content-Type: text/plain\r\n", &text, 415, "Content-Type");
    check(&secret, &format!("{JSON}Content-Encoding: br\r\n"), &text, 415, "Content-Encoding");
    check(&secret, &format!("{JSON}Idempotency-Key: a b\r\n"), &text, 400, "Idempotency-Key");
    check(&secret, JSON, "{", 400, "EOF");
    check(&secret, JSON, &to(&[], "x").to_string(), 400, "recipients");
    check(&secret, JSON, &to(&["ann"], "x").to_string(), 400, "recipients[0].email");
    check(&secret, JSON, &to(&["ann@example.org"], json!({ "amp_html_body": "x" })).to_string(), 400, "amp_html_body");
    check(
        &secret,
        JSON,
        &to(&["ann@example.org", "bob@example.org"], "X: y\n\n{{ x ~ x }}").to_string(),
        400,
        "operators",
    );
    check(&secret, JSON, &to(&["ann@example.org"], "Subject: x\r\n\nx\n").to_string(), 400, "LF");
    for line in ["From : ann@example.net", "From ann Mon Jan  1 00:00:00 2026", ">From ann", "hello"] {
        let why = format!("line 1 is not a header field: {line:?}");
        let text = to(&["ann@example.org"], format!("{line}\nSubject: x\n\nx\n")).to_string();
        check(&secret, JSON, &text, 400, &why);
    }
    let mut local = mail.clone();
    local["envelope_sender"] = "a".into();
    check(&secret, JSON, &local.to_string(), 400, "envelope_sender: an address needs a domain");
    let mut more = mail.clone();
    more["trace_headers"] = json!({ "supplemental_header": true });
    check(&secret, JSON, &more.to_string(), 400, "trace_headers.supplemental_header");
    let large = |text: String| to(&["ann@example.org"], text).to_string();
    check(&secret, JSON, &large(format!("X: {}\n\nx", "x".repeat(2000))), 413, "header is larger");
    check(&secret, JSON, &large(format!("X: x\n\n{}", "x\n".repeat(50_000))), 413, "larger than 100000 bytes");
    let hops = "Received: x\n".repeat(60);
    check(&secret, JSON, &large(format!("{hops}\nx")), 400, "554 5.4.6");
    assert!(server.mailbox("example.org", "ann").is_empty());
    // The one above counts as well.
    assert_eq!(inject(address, &secret, &to(&["ann@example.org", "bob@example.org"], "X: y\n\nx")).0, 200);
    let head = check(&secret, JSON, &text, 429, "450 4.7.1");
    assert!(head.contains("retry-after: "), "{head}");
    server.stop();
}

#[test]
fn a_full_spool_takes_no_request_and_says_when_to_come_again() {
    let dir = tempfile::tempdir().unwrap();
    // No disk has so much room.
    let full = "[storage]\nfree_bytes_min = 9000000000000000\n";
    let server = Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}{full}"));
    let secret = token(dir.path(), "shop", "inject");
    let mail = to(&["ann@example.org", "bob@example.org"], "Subject: x\n\nx\n");
    let (head, answer) = try_ask(page_of(&server), &request(&secret, JSON, &mail.to_string())).unwrap();
    assert!(status(&head) == 503 && head.contains("retry-after: "), "{head} {answer}");
    assert_eq!((&answer["success_count"], &answer["fail_count"]), (&0.into(), &2.into()), "{answer}");
    // The disk is looked at every ten seconds.
    let deadline = Instant::now() + PATIENCE;
    while get(page_of(&server), "/health/ready", None) != (503, "full\n".to_owned()) {
        assert!(Instant::now() < deadline, "a balancer would still send mail here");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(get(page_of(&server), "/health/live", None), (200, "live\n".to_owned()));
    server.stop();
    assert!(mailbox(dir.path(), "example.org", "ann").is_empty());
}

#[test]
fn a_request_under_way_is_finished_when_the_server_stops() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    let text = request(&secret, JSON, &to(&["ann@example.org"], "Subject: last\n\nx\n").to_string());
    let (begin, rest) = text.split_at(text.len() - 5);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(begin.replace("Connection: close\r\n", "Expect: 100-continue\r\n").as_bytes()).unwrap();
    let mut continues = [0; 25];
    stream.read_exact(&mut continues).unwrap();
    assert_eq!(&continues, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.signal(Signal::TERM);
    server.wait_for_log("stopping: no new connections");
    stream.write_all(rest.as_bytes()).unwrap();
    let (head, answer) = read_answer(&mut stream).unwrap();
    assert!(status(&head) == 200 && head.contains("connection: close"), "{head} {answer}");
    assert!(server.wait().success());
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_mail("example.org", "ann", 1);
    server.stop();
}

#[test]
fn a_built_message_is_made_for_each_recipient() {
    const RECIPIENTS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    let recipients: Vec<Value> = (0..RECIPIENTS)
        .map(
            |n| json!({ "email": format!("u{n}@example.org"), "name": format!("U. {n}"), "substitutions": { "n": n } }),
        )
        .collect();
    let mail = json!({
        "envelope_sender": "shop@example.net",
        "recipients": recipients,
        "substitutions": { "shop": "Müller & Co" },
        "content": {
            "from": { "email": "shop@example.net", "name": "{{ shop }}" },
            "subject": "Order {{ n }}",
            "text_body": "Dear {{ name }},\nyour order is number {{ n }}.\n",
            "html_body": "<p>{{ shop }}</p>",
            "attachments": [{ "data": "aGVsbG8=", "base64": true, "content_type": "text/csv", "file_name": "a.csv" }],
        },
    });
    let (status, answer) = inject(address, &secret, &mail);
    assert_eq!((status, &answer["success_count"]), (200, &RECIPIENTS.into()), "{answer}");
    for n in [0, 7, RECIPIENTS - 1] {
        let found = server.wait_for_mail("example.org", &format!("u{n}"), 1).remove(0).text();
        for part in [
            &format!("Subject: Order {n}\n"),
            &format!("To: \"U. {n}\" <u{n}@example.org>\n"),
            &format!("Dear U. {n},\nyour order is number {n}.\n"),
            "From: =?UTF-8?B?TcO8bGxlciAmIENv?= <shop@example.net>\n",
            "<p>M=C3=BCller &amp; Co</p>",
            "\nMessage-ID: <",
        ] {
            assert!(found.contains(part), "{part} is missing: {found}");
        }
    }
    // One that cannot be made stops all: nothing was received.
    let mut wrong = mail.clone();
    wrong["recipients"][RECIPIENTS - 1]["substitutions"]["n"] = "1\r\nBcc: eve@example.org".into();
    let (status, answer) = inject(address, &secret, &wrong);
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("recipients[299]"), "{answer}");
    server.stop();
    assert_eq!(mailbox(dir.path(), "example.org", "u0").len(), 1);
}
