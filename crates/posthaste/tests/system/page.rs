//! The requests of the page: the queue, the event log, messages, the system, live events.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::http::{CONFIG, ask, page_of, serve, token};
use crate::relaying::{config, list, unused_port, wait_until_unreachable};
use crate::support::{ANYBODY, MESSAGE, PATIENCE, Server, command};

/// A server with an unreachable next hop, with three recipients of there.example and one of other.example in its queue.
fn waiting(dir: &Path) -> (Server, SocketAddr) {
    let relay = config(unused_port(), "").replace("unreachable_secs = 1\n", "unreachable_secs = 600\n");
    let server = Server::start(dir, &format!("{relay}{CONFIG}"));
    let mut client = server.hello();
    let mut send =
        |from: &str, to: &[&str]| _ = client.try_message(from, to, b"Subject: xsubjectx\r\n\r\nxbodyx\r\n").unwrap();
    send("eve@here.example", &["ann@there.example", "bob@there.example"]);
    send("joe@here.example", &["ann@there.example"]);
    send("eve@here.example", &["ann@other.example"]);
    wait_until_unreachable(&server, dir, 2);
    let address = page_of(&server);
    (server, address)
}

/// Sends a control request by HTTP. Returns the answer.
pub fn control(address: SocketAddr, secret: &str, request: &Value) -> (u16, Value) {
    let body = request.to_string();
    let head = format!(
        "POST /api/control/v1 HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n"
    );
    let json = "Content-Type: application/json\r\n";
    let (status, answer) = ask(address, &format!("{head}{json}Content-Length: {}\r\n\r\n{body}", body.len()));
    (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
}

fn get(address: SocketAddr, path: &str, secret: &str) -> (u16, Value) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let (status, answer) = ask(address, &format!("{head}Authorization: Bearer {secret}\r\n\r\n"));
    (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
}

#[test]
fn the_queue_is_shown_and_changed_with_what_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = waiting(dir.path());
    let secret = token(dir.path(), "ann", "queue:read,queue:write,route");
    let ask = |request: Value| control(address, &secret, &request);
    let (status, summary) = ask(json!({ "ask": "summary", "top": 1 }));
    assert_eq!(status, 200, "{summary}");
    let line = &summary["lines"][0];
    assert_eq!(
        (&line["domain"], &line["recipients"], &summary["end"]["done"]),
        (&"there.example".into(), &3.into(), &2.into())
    );
    assert!(line["last_reply"].as_str().unwrap().contains("refused"), "{line}");
    // All of it is due, and waits until its hosts are tried again, in ten minutes.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(line["next"].as_u64().unwrap() > now + 300, "{now}: {line}");
    assert_eq!(summary["end"]["recipients"], 4);
    let of = json!({ "domain": "there.example" });
    let page = |after: Option<&str>| ask(json!({ "ask": "list", "of": of, "limit": 2, "after": after })).1;
    let first = page(None);
    let next = first["end"]["next"].as_str().unwrap();
    assert_eq!((first["lines"].as_array().unwrap().len(), &first["lines"][1]["id"]), (2, &next.into()));
    let last = page(Some(next));
    assert_eq!((&last["lines"][0]["sender"], &last["end"]["next"]), (&"joe@here.example".into(), &Value::Null));
    // The number that was shown is not the number that there is.
    let act = |action: &str, expect: u64| ask(json!({ "ask": "act", "of": of, "action": action, "expect": expect }));
    let (status, changed) = act("delete", 5);
    assert_eq!((status, &changed["now"]), (409, &3.into()), "{changed}");
    assert_eq!(list(dir.path(), &[]).len(), 4, "nothing was done");
    let (status, held) = act("hold", 3);
    assert_eq!((status, &held["end"]["changed"]), (200, &3.into()), "{held}");
    server.wait_for_log("token=\"ann\"");
    let deadline = Instant::now() + PATIENCE;
    // The log is written a moment later.
    loop {
        let told = command(dir.path(), &["trace", "bob@there.example", "--json"]).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        if told.contains("\"action\": \"hold\"") && told.contains("\"token\": \"ann\"") {
            break;
        }
        assert!(Instant::now() < deadline, "{told}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(act("release", 3).1["end"]["changed"], 3);
    let scope = json!({ "domain": "other.example" });
    for ask_ in ["suspend", "divert"] {
        let mut request = json!({ "ask": ask_, "scope": scope, "secs": 60, "expect": 9 });
        if ask_ == "divert" {
            request["to"] = "[127.0.0.1]:1".into();
        }
        let (status, changed) = ask(request);
        assert_eq!((status, &changed["now"]), (409, &1.into()), "{changed}");
    }
    assert_eq!(ask(json!({ "ask": "suspensions" })).1["lines"], json!([]), "nothing was done");
    assert_eq!(ask(json!({ "ask": "diversions" })).1["lines"], json!([]));
    assert_eq!(ask(json!({ "ask": "suspend", "scope": scope, "secs": 60, "reason": "look", "expect": 1 })).0, 200);
    assert_eq!(ask(json!({ "ask": "suspensions" })).1["lines"][0]["scope"], scope);
    assert_eq!(ask(json!({ "ask": "resume", "scope": scope })).1["end"]["done"], 1);
    assert_eq!(ask(json!({ "ask": "divert", "scope": scope, "to": "[127.0.0.1]:1", "secs": null })).0, 200);
    assert_eq!(ask(json!({ "ask": "undivert", "scope": scope })).1["end"]["done"], 1);
    let explained = ask(json!({ "ask": "explain", "domain": "there.example" })).1;
    assert_eq!(explained["lines"][0]["waiting"], 3, "{explained}");
    assert_eq!(act("delete", 3).1["end"]["changed"], 3);
    assert_eq!(list(dir.path(), &[]).len(), 1);
    server.stop();
}

#[test]
fn alerts_lead_to_their_mail_and_tenants_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let relay = config(unused_port(), "").replace("unreachable_secs = 1\n", "unreachable_secs = 600\n");
    let tenants = "[[network]]\ncidr = \"127.0.0.1\"\ntenant = \"acme\"\n[[relay.tenant]]\nname = \"shop\"\n";
    let server = Server::start(dir.path(), &format!("{relay}{CONFIG}{tenants}"));
    server.hello().deliver(&["ann@there.example", "bob@other.example"], MESSAGE);
    wait_until_unreachable(&server, dir.path(), 2);
    let address = page_of(&server);
    let secret = token(dir.path(), "ann", "queue:read,queue:write,metrics");
    for (scope, expect) in [(json!({ "domain": "there.example" }), 1), (json!({ "tenant": "acme" }), 2)] {
        let request = json!({ "ask": "suspend", "scope": scope, "secs": 600, "reason": "look", "expect": expect });
        assert_eq!(control(address, &secret, &request).0, 200);
    }
    let expected = [
        json!({ "page": "queue", "query": { "by": "site" } }),
        json!({ "page": "queue", "query": { "domain": "there.example" } }),
        json!({ "page": "queue", "query": { "tenant": "acme" } }),
    ];
    let deadline = Instant::now() + PATIENCE;
    // Looks of the second before are shared.
    loop {
        let (_, queue) = get(address, "/api/queue/v1", &secret);
        let links: Vec<&Value> = queue["attention"].as_array().unwrap().iter().map(|one| &one["link"]).collect();
        if expected.iter().all(|link| links.contains(&link)) {
            break;
        }
        assert!(Instant::now() < deadline, "{queue}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let (_, measured) = ask(address, &format!("{head}Authorization: Bearer {secret}\r\n\r\n"));
    for (tenant, recipients) in [("acme", 2), ("shop", 0), ("other", 0)] {
        let line = format!("\nposthaste_queue_tenant_recipients{{tenant=\"{tenant}\"}} {recipients}\n");
        assert!(measured.contains(&line), "{line}{measured}");
    }
    server.stop();
}

#[test]
fn each_request_needs_its_scope() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = waiting(dir.path());
    let reads = token(dir.path(), "reads", "queue:read");
    let domain = json!({ "domain": "there.example" });
    let check = |request: Value, expected: u16| {
        let (status, answer) = control(address, &reads, &request);
        assert_eq!(status, expected, "{request}: {answer}");
    };
    check(json!({ "ask": "list" }), 200);
    for shown in [
        json!({ "ask": "list" }),
        json!({ "ask": "summary", "top": 9 }),
        json!({ "ask": "explain", "domain": "there.example" }),
    ] {
        let text = control(address, &reads, &shown).1.to_string();
        assert!(text.contains("there.example") && !text.contains("xsubjectx") && !text.contains("xbodyx"), "{text}");
    }
    let text = get(address, "/api/queue/v1", &reads).1.to_string();
    assert!(!text.contains("xsubjectx") && !text.contains("xbodyx"), "{text}");
    for refused in [
        json!({ "ask": "act", "of": domain, "action": "delete" }),
        json!({ "ask": "suspend", "scope": domain, "secs": null }),
        json!({ "ask": "divert", "scope": domain, "to": "a.example", "secs": null }),
        json!({ "ask": "cat", "message": "1" }),
        json!({ "ask": "mail", "of": { "message": "1" } }),
        json!({ "ask": "subjects", "of": [] }),
        json!({ "ask": "search", "query": "x" }),
        json!({ "ask": "mail", "of": { "mailbox": "example.org/ann/Maildir", "name": "1.x" } }),
        json!({ "ask": "find" }),
        json!({ "ask": "suppressions" }),
        json!({ "ask": "logins" }),
        json!({ "ask": "domains" }),
        json!({ "ask": "records", "domain": "here.example" }),
        json!({ "ask": "page", "secs": 1 }),
        json!({ "ask": "export", "of": {} }),
        json!({ "ask": "forget-guesses", "of": [] }),
        json!({ "ask": "cluster" }),
    ] {
        check(refused, 403);
    }
    check(json!({ "ask": "nothing" }), 400);
    check(json!({ "ask": "list", "after": "x" }), 422);
    for path in ["/api/system/v1", "/api/log/v1", "/api/events/v1"] {
        assert_eq!(get(address, path, &reads).0, 403, "{path}");
    }
    assert_eq!(list(dir.path(), &[]).len(), 4);
    server.stop();
}

#[test]
fn mail_is_found_and_read_with_what_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "me", "events:read,mail:read");
    let html = b"Subject: =?utf-8?q?gr=C3=BCn?=\r\nX-Evil: <script>alert(1)</script>\r\nContent-Type: text/html\r\n\r\n<b onclick=x>hello</b>\r\n";
    let mut client = server.hello();
    client.deliver(&["ann@example.org"], html);
    client.expect("MAIL FROM:<a@example.net>", 250);
    client.expect("RCPT TO:<b@elsewhere.example>", 550);
    server.wait_for_mail("example.org", "ann", 1);
    let find = |request: Value| control(address, &secret, &request);
    let until = |request: Value, is_enough: &dyn Fn(&Value) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, found) = find(request.clone());
            if status == 200 && is_enough(&found) {
                return found;
            }
            assert!(Instant::now() < deadline, "{status} {found}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let found = until(json!({ "ask": "find", "what": "ann@example.org" }), &|found| {
        found["lines"][0]["events"]
            .as_array()
            .is_some_and(|events| events.iter().any(|event| event["event"] == "delivered"))
    });
    let message = found["lines"][0]["message"].as_str().unwrap();
    let next = (message.parse::<u64>().unwrap() + 1).to_string();
    let files =
        json!({ "ask": "file", "of": { "message": message, "mailbox": "example.org/ann/Maildir" }, "number": 0 });
    assert_eq!(find(files).0, 422, "it has none");
    let refused = until(json!({ "ask": "find", "events": ["refused"] }), &|found| !found["lines"][0].is_null());
    let refused = &refused["lines"][0]["events"][0];
    assert_eq!((&refused["event"], &refused["stage"]), (&"refused".into(), &"recipient".into()), "{refused}");
    let mailbox = "example.org/ann/Maildir";
    let (status, read) = find(json!({ "ask": "mail", "of": { "message": message, "mailbox": mailbox } }));
    let mail = &read["end"]["mail"];
    assert_eq!((status, &mail["subject"]), (200, &"grün".into()), "{read}");
    assert!(mail["html"].as_str().unwrap().contains("<b onclick=x>"), "as its source: {mail}");
    assert!(mail["source"].as_str().unwrap().contains("<script>alert(1)</script>"), "{mail}");
    assert!(mail["header"].as_array().unwrap().contains(&json!(["X-Evil", "<script>alert(1)</script>"])), "{mail}");
    for mailbox in ["../../etc", "example.org/../..", "/etc", "example.org/bob/Maildir", "."] {
        let (status, answer) = find(json!({ "ask": "mail", "of": { "message": message, "mailbox": mailbox } }));
        assert_eq!(status, 422, "{mailbox}: {answer}");
    }
    assert_eq!(find(json!({ "ask": "mail", "of": { "message": next, "mailbox": mailbox } })).0, 422);
    let of = |message: &str, mailbox: &str| json!({ "message": message, "mailbox": mailbox });
    let asked = [of(message, mailbox), of(&next, mailbox), of(message, "../../etc"), of(message, ".")];
    let (status, subjects) = find(json!({ "ask": "subjects", "of": asked }));
    let line = json!({ "message": message, "mailbox": mailbox, "subject": "grün", "from": "", "to": "" });
    assert_eq!((status, &subjects["lines"]), (200, &json!([line])), "{subjects}");
    assert_eq!(find(json!({ "ask": "subjects", "of": vec![of("1", mailbox); 101] })).0, 422);
    server.stop();
}

#[test]
fn words_in_mail_are_found_and_what_has_them_opens() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}[search]\nindex = true\n"));
    let address = page_of(&server);
    let secret = token(dir.path(), "me", "mail:read");
    let ask = |request: Value| control(address, &secret, &request);
    let mut client = server.hello();
    for number in 0..3 {
        let subject = format!("Subject: <b>rye {number}</b>\r\nFrom: Ann <ann@example.net>\r\n");
        client.deliver(&["bob@example.org"], format!("{subject}\r\nTwo days of work.\r\n").as_bytes());
    }
    let search = |more: Value| {
        let mut request = json!({ "ask": "search", "query": "rye days" });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(request)
    };
    let deadline = Instant::now() + PATIENCE;
    let found = loop {
        let (status, found) = search(json!({}));
        if status == 200 && found["end"]["done"] == 3 {
            break found;
        }
        assert!(Instant::now() < deadline, "{status} {found}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let line = &found["lines"][0];
    let (mailbox, from) = ("example.org/bob/Maildir", "Ann <ann@example.net>");
    assert_eq!((&line["mailbox"], &line["from"]), (&mailbox.into(), &from.into()), "{line}");
    let place = json!({ "ask": "mail", "of": { "mailbox": mailbox, "name": line["name"] } });
    let (status, read) = ask(place.clone());
    let mail = &read["end"]["mail"];
    assert_eq!((status, &mail["subject"]), (200, &line["subject"]), "{read}");
    assert_eq!(mail["text"].as_str().map(str::trim), Some("Two days of work."));
    // Whatever flags it has since.
    let maildir = dir.path().join("posthaste-data/mail").join(mailbox);
    let name = line["name"].as_str().unwrap();
    let of_new = std::fs::read_dir(maildir.join("new")).unwrap().map(|file| file.unwrap().file_name());
    let file = of_new.map(|file| file.into_string().unwrap()).find(|file| file.starts_with(name)).unwrap();
    std::fs::rename(maildir.join("new").join(&file), maildir.join("cur").join(format!("{file}:2,S"))).unwrap();
    assert_eq!(ask(place).0, 200);
    let first = search(json!({ "limit": 2 })).1;
    assert_eq!((&first["end"]["done"], &first["end"]["next"]), (&2.into(), &2.into()), "{first}");
    let last = search(json!({ "limit": 2, "skip": 2 })).1;
    assert_eq!((&last["end"]["done"], &last["end"]["next"]), (&1.into(), &Value::Null), "{last}");
    assert_eq!(search(json!({ "secs": 3600 })).1["end"]["done"], 3, "without a date, the file's time counts");
    let old = json!({ "query": "rye date:2001" });
    assert_eq!(search(old).1["end"]["done"], 0);
    for query in ["(", "date:never", "flag:odd", &"(".repeat(10_000), &"not ".repeat(10_000)] {
        let (status, refused) = search(json!({ "query": query }));
        assert_eq!(status, 422, "{query}: {refused}");
    }
    for (mailbox, name) in [("", "x"), (mailbox, ""), ("../../etc", "passwd"), (mailbox, "../new/x"), (mailbox, "1.x")]
    {
        let (status, refused) = ask(json!({ "ask": "mail", "of": { "mailbox": mailbox, "name": name } }));
        assert_eq!(status, 422, "{mailbox} {name}: {refused}");
    }
    assert_eq!(
        ask(json!({ "ask": "mail", "of": { "message": "1", "mailbox": mailbox, "name": name } })).0,
        422,
        "both"
    );
    server.stop();
}

#[test]
fn without_an_index_a_search_says_how_to_get_one() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "me", "mail:read");
    let (status, refused) = control(address, &secret, &json!({ "ask": "search", "query": "x" }));
    assert!(status == 422 && refused["error"].as_str().unwrap().contains("[search]"), "{status} {refused}");
    server.stop();
}

#[test]
fn the_text_of_a_message_is_one_alternative_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "me", "events:read,mail:read");
    let message = concat!(
        "Subject: code\r\nContent-Type: multipart/mixed; boundary=m\r\n\r\n",
        "--m\r\nContent-Type: multipart/alternative; boundary=a\r\n\r\n",
        "--a\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nYour code: 482913\r\n",
        "--a\r\nContent-Type: text/html\r\n\r\n<p>Click here</p>\r\n--a--\r\n",
        "--m\r\nContent-Type: text/plain\r\nContent-Disposition: attachment; filename=order.txt\r\n\r\norder 7\r\n--m--\r\n",
    );
    server.hello().deliver(&["ann@example.org"], message.as_bytes());
    server.wait_for_mail("example.org", "ann", 1);
    let deadline = Instant::now() + PATIENCE;
    let number = loop {
        let found = control(address, &secret, &json!({ "ask": "find", "events": ["delivered"] })).1;
        if let Some(number) = found["lines"][0]["message"].as_str() {
            break number.to_owned();
        }
        assert!(Instant::now() < deadline, "{found}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let request = json!({ "ask": "mail", "of": { "message": number, "mailbox": "example.org/ann/Maildir" } });
    let read = control(address, &secret, &request).1;
    assert_eq!(read["end"]["mail"]["text"].as_str().map(str::trim), Some("Your code: 482913"), "{read}");
    let file = |place: u32| {
        let request = json!({ "ask": "file", "of": { "message": number, "mailbox": "example.org/ann/Maildir" }, "number": place });
        control(address, &secret, &request)
    };
    let (status, saved) = file(0);
    assert_eq!((status, &saved["lines"]), (200, &json!([{ "data": "b3JkZXIgNw==" }])), "{saved}");
    assert_eq!(file(1).0, 422);
    server.stop();
}

#[test]
fn events_come_as_they_happen_until_the_token_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "me", "events:read");
    let mut client = server.hello();
    client.deliver(&["before@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "before", 1);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("GET /api/events/v1 HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {secret}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut wait = |text: &str| {
        let mut seen = Vec::new();
        for line in lines.by_ref() {
            let is_it = line.contains(text);
            seen.push(line);
            if is_it {
                return seen.concat();
            }
        }
        panic!("it ended without {text}: {seen:?}");
    };
    let head = wait(": events");
    for field in ["text/event-stream", "content-security-policy: ", "x-accel-buffering: no"] {
        assert!(head.contains(field), "{head}");
    }
    client.deliver(&["after@example.org"], MESSAGE);
    // What was told of the message before may still come first.
    let seen = wait("\"mailbox\":\"example.org/after/Maildir\"}");
    assert!(seen.contains("after@example.org"), "{seen}");
    let removed = command(dir.path(), &["token", "remove", "me"]).output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
    // The last chunk: the stream has ended.
    assert_eq!(lines.find(|line| line == "0").as_deref(), Some("0"));
    server.stop();
}

#[test]
fn the_system_is_shown_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "me", "server:read");
    let (status, system) = get(address, "/api/system/v1", &secret);
    assert_eq!((status, &system["host_name"]), (200, &"mx.example.org".into()), "{system}");
    assert!(system["config"].as_str().unwrap().contains("host_name = \"mx.example.org\""), "{system}");
    assert!(system["listeners"].as_array().unwrap().iter().any(|one| one["protocol"] == "http"), "{system}");
    let me = json!({ "name": "me", "scopes": ["server:read"], "until": null, "tenant": null, "sender_domains": [], "networks": [] });
    assert_eq!(system["tokens"], json!([me]));
    let mut client = server.hello();
    let kept = client.deliver(&["ann@example.org"], MESSAGE);
    let id = kept.text.split_whitespace().last().unwrap().to_owned();
    server.wait_for_log(&format!("id={id}"));
    let (_, log) = get(address, "/api/log/v1", &secret);
    let lines = log["lines"].as_array().unwrap();
    assert!(lines.iter().any(|line| line.as_str().unwrap().contains(&format!("id={id}"))), "{log}");
    for text in [system.to_string(), log.to_string()] {
        assert!(!text.contains(&secret[4..]), "{text}");
    }
    server.stop();
}
