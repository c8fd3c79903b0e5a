//! Further rules of HTTP: passwords that give no access, places of secrets, and the cost of requests for mail.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::auth::{line, plain};
use crate::http::{CONFIG, ask, page_of, serve, token};
use crate::inject::{JSON, request, status, to, try_ask};
use crate::support::{ANYBODY, Client, PATIENCE, Server, command};

/// The answer to a request without a body, with these fields.
fn get(server: &Server, path: &str, fields: &str) -> (u16, String) {
    let address = page_of(server);
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}\r\n"))
}

fn basic(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
}

/// Logins may send without TLS: the listener is on loopback.
const LOGINS: &str =
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

/// All octets below a directory, by the names of their files.
fn written(dir: &Path, found: &mut HashMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            written(&entry.path(), found);
        } else if kind.is_file() {
            found.insert(entry.path().display().to_string(), std::fs::read(entry.path()).unwrap_or_default());
        }
    }
}

#[test]
fn secrets_stand_in_their_own_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let keep = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::write(own.join(name), text).unwrap();
        std::fs::set_permissions(own.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    for name in ["route", "proxy", "hook", "srs", "return-path"] {
        keep(name, &format!("canary-of-{name}\n"));
    }
    keep("passwords", &line(dir.path(), "ann@example.org", "canary-of-ann"));
    let nobody = crate::relaying::unused_port();
    let server = Server::start(
        dir.path(),
        &format!(
            "host_name = \"mx.example.org\"\n[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n{}{CONFIG}\
             [events]\nenabled = true\n[dns]\nservers = [\"127.0.0.1:9\"]\n[relay]\nunreachable_secs = 1\n\
             [relay.srs]\ndomain = \"example.org\"\nsecret_file = \"own/srs\"\n\
             [relay.return_path]\ndomain = \"example.org\"\nsecret_file = \"own/return-path\"\n\
             [[relay.route]]\nhost = \"[127.0.0.1]\"\nport = {nobody}\ntls = \"off\"\nusername = \"us\"\npassword_file = \"own/route\"\n\
             [[relay.source]]\nname = \"far\"\nproxy = \"socks5://127.0.0.1:{nobody}\"\nproxy_username = \"us\"\nproxy_password_file = \"own/proxy\"\n\
             [[webhook]]\nname = \"crm\"\nurl = \"http://127.0.0.1:{nobody}/\"\nsecret_file = \"own/hook\"\n",
            LOGINS.replace("\"passwords\"", "\"own/passwords\"")
        ),
    );
    let secret = token(dir.path(), "all", "server:read,metrics,queue:read,events:read");
    std::fs::rename(dir.path().join("all.token"), own.join("all.token")).unwrap();
    let mut secrets: Vec<String> =
        ["route", "proxy", "hook", "srs", "return-path", "ann"].map(|name| format!("canary-of-{name}")).into();
    // As they cross the wire, and what somebody types into the wrong field.
    for name in ["ann", "typed"] {
        secrets.push(STANDARD.encode(format!("\0ann@example.org\0canary-of-{name}")));
    }
    secrets.extend(["canary-of-typed".to_owned(), secret[4..].to_owned()]);
    let mut client = server.hello();
    client.expect(&plain("ann@example.org", "canary-of-ann"), 235);
    let mail = b"From: ann@example.org\r\nSubject: x\r\n\r\nx\r\n";
    client.try_message("ann@example.org", &["bob@there.example", "ann@example.org"], mail).unwrap();
    server.hello().expect(&plain("ann@example.org", "canary-of-typed"), 535);
    for fields in ["Authorization: Bearer canary-of-typed\r\n".to_owned(), basic("canary-of-typed", "canary-of-typed")]
    {
        assert_eq!(get(&server, "/api/token/v1", &fields).0, 401);
    }
    let link = own.join("link");
    let made = command(dir.path(), &["page", "--output"]).arg(&link).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let link = std::fs::read_to_string(link).unwrap();
    secrets.push(link.trim().split_once("#k=").unwrap().1[4..].to_owned());
    server.wait_for_log("login failed");
    server.wait_for_mail("example.org", "ann", 1);
    server.wait_for_log("crm");
    let bearer = format!("Authorization: Bearer {secret}\r\n");
    let mut shown = HashMap::new();
    for path in ["/metrics", "/api/now/v1", "/api/system/v1", "/api/log/v1", "/api/queue/v1", "/api/token/v1"] {
        let (status, answer) = get(&server, path, &bearer);
        assert_eq!(status, 200, "{path}: {answer}");
        shown.insert(path.to_owned(), answer.into_bytes());
    }
    for words in [&["config", "show"][..], &["trace", "bob@there.example", "--json"], &["queue", "list", "--json"]] {
        let said = command(dir.path(), words).output().unwrap();
        shown.insert(words.join(" "), [said.stdout, said.stderr].concat());
    }
    shown.insert("banner".to_owned(), server.banner.clone().into_bytes());
    shown.insert("log".to_owned(), server.log_text().into_bytes());
    server.stop();
    written(dir.path(), &mut shown);
    shown.retain(|name, _| !name.starts_with(&own.display().to_string()));
    assert!(shown.len() > 15 && shown["/api/system/v1"].windows(9).any(|text| text == b"own/route"), "paths are shown");
    for (name, octets) in &shown {
        let text = String::from_utf8_lossy(octets);
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{secret} is in {name}");
        }
    }
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
    assert!(log.contains("asks for the drain") && log.contains("deploy"), "{log}");
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
