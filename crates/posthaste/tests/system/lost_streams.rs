//! A server uses every stream. Each of its files is removed, truncated and damaged while it is down. It starts, the log names
//! the file and the remedy, and the other streams serve.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::auth::line;
use crate::http::{self, page_of, token};
use crate::imap::{Imap, address_of};
use crate::inject::{JSON, request, to, try_ask};
use crate::lost_files::{How, copy, files, spoil};
use crate::relaying::{self, ANYWHERE, EVENTS, next_hop};
use crate::support::{Server, command};
use crate::{page, tenant_tokens};

/// Runs and stops a server that has used all streams: mail delivered locally and remotely, by SMTP and by HTTP with a
/// key, read by IMAP and searched. Some mail waits for another host and for a transport. Returns the secret of a token.
fn used_by_all(dir: &Path, next: &Server) -> String {
    fs::write(dir.join("passwords"), line(dir, "eve@here.example", "secret")).unwrap();
    fs::write(dir.join("secret"), "a secret for tests\n").unwrap();
    let paths = "[relay.return_path]\ndomain = \"bounces.here.example\"\nsecret_file = \"secret\"\n";
    let hook = "[[webhook]]\nname = \"crm\"\nurl = \"http://127.0.0.1:9/\"\n[search]\nindex = true\n";
    let readers = "[auth]\nfile = \"passwords\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"imap\"\n";
    let more = format!("{paths}{EVENTS}{hook}{readers}{}", http::CONFIG);
    let users = "users = [\"eve\"]\n";
    let config = relaying::config(next.addresses[0].port(), &more)
        .replace(users, &format!("{users}aliases = {{ box = \"lmtp:127.0.0.1:1\" }}\n"));
    let server = Server::start(dir, &config);
    let mut client = server.hello();
    for _ in 0..3 {
        let to = ["eve@here.example", "box@here.example", "ann@there.example", "slow@there.example"];
        client.deliver(&to, b"Subject: x\r\n\r\nx\r\n");
    }
    let secret = token(dir, "shop", "inject");
    assert!(!is_repeated(&server, &secret), "the first one");
    server.wait_for_mail("here.example", "eve", 4);
    next.wait_for_mail("there.example", "ann", 3);
    let told = Imap::logged_in_as(address_of(&server, "imap"), "eve@here.example").ok("SELECT INBOX");
    assert!(told.contains("* 4 EXISTS"), "{told}");
    let listed = command(dir, &["suppression", "add", "gone@there.example"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    relaying::wait_for_queue(dir, "some wait for another host, and some for a transport", |waiting| {
        let at = |state: &Value| state["attempts"].as_u64() >= Some(1) || state["transport"].is_string();
        waiting.len() == 6 && waiting.iter().all(at)
    });
    drop(client);
    server.stop();
    // Whoever is idle has its state twice.
    Server::start_as_it_is(dir).stop();
    secret
}

/// Sends a request with a key by HTTP. Returns true if the server answers that it is a repetition.
fn is_repeated(server: &Server, secret: &str) -> bool {
    let fields = format!("{JSON}Idempotency-Key: one\r\n");
    let mail = to(&["eve@here.example"], "Subject: x\n\nx\n").to_string();
    let (head, answer) = try_ask(page_of(server), &request(secret, &fields, &mail)).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head} {answer}");
    head.contains("\r\nidempotent-replayed: true")
}

/// Expected parts of the log line about a file whose loss has consequences.
fn expected(name: &str, how: How) -> Option<[&'static str; 2]> {
    let told = match (name, how) {
        ("webhook-crm.json", _) => "so that the webhook receives the events from then on",
        // The bit may lie where nothing is kept.
        (_, How::Flipped) => return None,
        ("suppression.redb" | "return-paths.redb", _) => "put this file back, or remove it",
        ("meta.redb", How::Removed) => "stop the server, put it back, and start it again",
        ("meta.redb", _) => "or remove it (`rm posthaste-data/mailstore/meta.redb`",
        ("events-00000001.jsonl", _) => "starting a new file",
        ("current", How::Cut) => "`posthaste index rebuild`",
        _ => return None,
    };
    let name =
        ["suppression.redb", "return-paths.redb", "meta.redb", "events-00000001.jsonl", "webhook-crm.json", "current"]
            .into_iter()
            .find(|known| *known == name)?;
    Some([name, told])
}

/// Waits until the index, which is rebuilt beside the server, finds the mail or names the command for its repair.
fn wait_for_an_answer(dir: &Path, what: &str) {
    let began = Instant::now();
    loop {
        let found = command(dir, &["find", "--index", "posthaste-data/search", "x"]).output().unwrap();
        let said = String::from_utf8(found.stderr).unwrap();
        if found.status.success() || said.contains("posthaste-data/search") && said.contains("`posthaste index") {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: {said}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_lost_file_of_any_stream_is_told_with_its_remedy() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let secret = used_by_all(here.path(), &next);
    let all = files(here.path(), Path::new("posthaste-data"));
    // Those of the spool have tests of their own, tokens are secrets, and nothing is in locks.
    let not = ["mail", "spool", "tokens", "search/turn", "search/watch.json"]
        .map(|name| Path::new("posthaste-data").join(name));
    let is_lock = |path: &Path| path.to_string_lossy().ends_with("lock");
    let tried: Vec<&PathBuf> =
        all.iter().filter(|path| !is_lock(path) && !not.iter().any(|other| path.starts_with(other))).collect();
    let mut told = Vec::new();
    // `index verify` compares the checksums of the index, which can be rebuilt.
    let is_of_index =
        |(path, how): &(&PathBuf, How)| matches!(how, How::Flipped) && path.starts_with("posthaste-data/search");
    let kinds = |path| [How::Removed, How::Cut, How::Flipped].map(|how| (path, how));
    for (path, how) in tried.into_iter().flat_map(kinds).filter(|one| !is_of_index(one)) {
        let (tried, what) = (tempfile::tempdir().unwrap(), format!("{} {how:?}", path.display()));
        copy(here.path(), tried.path());
        spoil(&tried.path().join(path), how);
        let server = Server::start_as_it_is(tried.path());
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some([name, remedy]) = expected(name, how) {
            let line = server.wait_for_log(remedy);
            assert!(line.contains(name), "{what}: {line}");
            told.push(name);
        }
        let mut client = server.hello();
        client.deliver(&["eve@here.example", "box@here.example"], b"Subject: y\r\n\r\ny\r\n");
        server.wait_for_mail("here.example", "eve", 5);
        assert!(is_repeated(&server, &secret), "{what}: keys of requests are known");
        drop(client);
        let is_stuck = server
            .log_text()
            .contains("stuck: its mail is deferred or stays in the spool; the others serve stream=\"queue\"");
        // What is stuck is named on standard error.
        let listed = command(tried.path(), &["queue", "list", "--json"]).output().unwrap();
        let waiting: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        let of = |address: &str| waiting.iter().filter(|line| line["recipient"] == address).count();
        let slow = if is_stuck { 0 } else { 3 };
        assert_eq!((of("slow@there.example"), of("box@here.example")), (slow, 4), "{what}: {waiting:?}");
        if path.starts_with("posthaste-data/search") {
            wait_for_an_answer(tried.path(), &what);
        }
        server.stop();
    }
    told.dedup();
    assert_eq!(told.len(), 6, "{told:?}");
    assert_eq!(next.mailbox("there.example", "ann").len(), 3, "none twice");
    next.stop();
}

#[test]
fn without_an_event_log_mail_is_delivered_and_it_is_stuck() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let next = next_hop(there.path(), ANYWHERE);
    let port = next.addresses[0].port();
    // The other streams exist before.
    Server::start(dir, &relaying::config(port, "[events]\nenabled = false\n")).stop();
    let obstacle = dir.join("posthaste-data/spool/streams.new");
    fs::create_dir(&obstacle).unwrap();
    let deliver = |server: &Server, nth: usize| {
        server.hello().deliver(&["eve@here.example", "ann@there.example"], b"Subject: x\r\n\r\nx\r\n");
        server.wait_for_mail("here.example", "eve", nth);
        next.wait_for_mail("there.example", "ann", nth);
    };
    let server = Server::start(dir, &relaying::config(port, EVENTS));
    let line = server.wait_for_log("this stream of the spool is stuck");
    for part in ["stream=\"events\"", "the names of the streams", "start the server again"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    deliver(&server, 1);
    assert!(relaying::queue(dir, &["list"]).1.contains("a stream of the spool is stuck: events: "));
    server.stop();
    assert!(!dir.join("posthaste-data/events").exists());
    fs::remove_dir(obstacle).unwrap();
    let server = Server::start_as_it_is(dir);
    deliver(&server, 2);
    assert!(!server.log_text().contains("is stuck"));
    server.stop();
    let log = fs::read_to_string(dir.join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    assert_eq!(log.matches("\"event\":\"received\"").count(), 1, "{log}");
    next.stop();
}

/// Removes both checkpoints of a stopped server and rebuilds its spool.
fn lose_and_rebuild(dir: &Path) {
    let spool = dir.join("posthaste-data/spool");
    ["checkpoint.0", "checkpoint.1"].iter().for_each(|name| spoil(&spool.join(name), How::Emptied));
    let rebuilt = command(dir, &["spool", "repair", "posthaste-data", "--rebuild", "new"]).output().unwrap();
    assert!(rebuilt.status.success(), "{rebuilt:?}");
    fs::rename(&spool, dir.join("old")).unwrap();
    fs::rename(dir.join("new"), &spool).unwrap();
}

#[test]
fn mail_for_transports_is_held_after_a_loss_until_released() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let address = format!("127.0.0.1:{}", relaying::unused_port());
    let listener = "host_name = \"mx.here.example\"\n[[listener]]\naddress = ";
    let config = format!(
        "{listener}\"127.0.0.1:0\"\n[[domain]]\nname = \"here.example\"\naliases = {{ box = \"lmtp:{address}\" }}\n"
    );
    let server = Server::start(dir, &config);
    let mut client = server.hello();
    (0..3).for_each(|_| drop(client.deliver(&["box@here.example"], b"Subject: old\r\n\r\nx\r\n")));
    drop(client);
    server.stop();
    lose_and_rebuild(dir);
    let next = "protocol = \"lmtp\"\n[[domain]]\nname = \"here.example\"\nusers = [\"box\"]\n";
    let next = Server::start(there.path(), &format!("{listener}\"{address}\"\n{next}"));
    let held = |dir: &Path| {
        let held = relaying::list(dir, &["--held"]);
        held.iter().filter(|line| line["held_by"] == "uncertain").count()
    };
    // Also after a restart that finds nothing wrong.
    for nth in 1..=2 {
        let server = Server::start_as_it_is(dir);
        let told = "it is unknown if programs";
        if nth == 1 {
            server.wait_for_log(told);
        }
        assert_eq!(held(dir), 3);
        assert_eq!(server.log_text().contains(told), nth == 1);
        server.reload(&config);
        let mut client = server.hello();
        client.deliver(&["box@here.example"], b"Subject: new\r\n\r\nx\r\n");
        drop(client);
        let taken = next.wait_for_mail("here.example", "box", nth);
        assert!(taken.iter().all(|mail| mail.text().contains("Subject: new")), "the others are not tried");
        server.stop();
    }
    let shown = command(dir, &["spool", "inspect", "posthaste-data"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("3 messages held: unknown whether it was delivered"), "{shown}");
    let server = Server::start_as_it_is(dir);
    let first = relaying::list(dir, &["--held"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(relaying::queue(dir, &["delete", &first]), (0, "1 removed\n".to_owned()));
    let began = Instant::now();
    loop {
        // The event log has begun another file.
        let traced = command(dir, &["trace", &first]).output().unwrap();
        let traced = String::from_utf8(traced.stdout).unwrap();
        if traced.contains("given_up") && traced.contains("deleted by the operator") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{traced}");
        thread::sleep(Duration::from_millis(50));
    }
    server.stop();
    let server = Server::start_as_it_is(dir);
    assert_eq!(held(dir), 2, "it is gone for good");
    assert_eq!(relaying::queue(dir, &["release", "--recipient", "box@here.example"]), (0, "2 released\n".to_owned()));
    assert_eq!(next.wait_for_mail("here.example", "box", 4).len(), 4);
    server.stop();
    next.stop();
}

#[test]
fn a_release_counts_all_that_it_would_release() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let users = "users = [\"eve\"]\n";
    let config = relaying::config(relaying::unused_port(), http::CONFIG)
        .replace(users, &format!("{users}aliases = {{ box = \"lmtp:127.0.0.1:1\" }}\n"));
    let server = Server::start(dir, &config);
    let mut client = server.hello();
    (0..3).for_each(|_| drop(client.deliver(&["box@here.example", "ann@there.example"], b"Subject: x\r\n\r\nx\r\n")));
    drop(client);
    let acme = tenant_tokens::token(dir, "a", "inject,queue:read,queue:write", &["--tenant", "acme"]);
    let all = token(dir, "b", "queue:read,queue:write");
    let mail = to(&["bob@there.example"], "Subject: x\n\nx\n").to_string();
    let (head, answer) = try_ask(page_of(&server), &request(&acme, JSON, &mail)).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head} {answer}");
    server.stop();
    lose_and_rebuild(dir);
    let server = Server::start_as_it_is(dir);
    let held = relaying::list(dir, &["--held"]);
    assert!(
        held.len() == 7 && held.iter().all(|line| line["held_reason"] == "it is unknown whether it was delivered"),
        "{held:?}"
    );
    // It waits for its transport, and nobody holds it.
    server.hello().deliver(&["box@here.example"], b"Subject: new\r\n\r\nx\r\n");
    let ask = |secret: &str, request: Value| page::control(page_of(&server), secret, &request);
    let count = |secret: &str, of: Value, action: &str| {
        let (status, answer) = ask(secret, json!({ "ask": "count", "of": of, "action": action }));
        assert_eq!(status, 200, "{answer}");
        answer["end"]["done"].as_u64().unwrap()
    };
    assert_eq!(count(&all, json!({}), "release"), 7);
    assert_eq!(count(&all, json!({}), "delete"), 7);
    assert_eq!(count(&all, json!({ "domain": "here.example" }), "release"), 3);
    assert_eq!(count(&all, json!({ "domain": "there.example" }), "release"), 4);
    assert_eq!((count(&all, json!({ "held": false }), "release"), count(&all, json!({}), "flush")), (0, 0));
    assert_eq!(count(&all, json!({}), "hold"), 4, "an operator does not hold mail for transports");
    assert_eq!(
        (count(&acme, json!({}), "release"), count(&acme, json!({ "domain": "here.example" }), "delete")),
        (1, 0)
    );
    let release = |secret: &str, expect: u64| {
        let (status, answer) = ask(secret, json!({ "ask": "act", "of": {}, "action": "release", "expect": expect }));
        (status, answer["now"].as_u64().or(answer["end"]["changed"].as_u64()).unwrap_or_else(|| panic!("{answer}")))
    };
    // The recipients of one queue alone are not what it would release.
    assert_eq!((release(&all, 4), release(&all, 3), release(&acme, 7)), ((409, 7), (409, 7), (409, 1)));
    assert_eq!(relaying::list(dir, &["--held"]).len(), 7, "nothing was done");
    assert_eq!(release(&acme, 1), (200, 1));
    assert_eq!(relaying::list(dir, &["--held"]).len(), 6);
    assert_eq!(release(&all, 6), (200, 6));
    assert!(relaying::list(dir, &["--held"]).is_empty());
    server.stop();
}

#[test]
fn transports_are_listed_and_released_beside_a_stuck_queue() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let address = format!("127.0.0.1:{}", relaying::unused_port());
    let users = "users = [\"eve\"]\n";
    let config = relaying::config(relaying::unused_port(), http::CONFIG)
        .replace(users, &format!("{users}aliases = {{ box = \"lmtp:{address}\" }}\n"));
    let server = Server::start(dir, &config);
    let mut client = server.hello();
    (0..3).for_each(|_| drop(client.deliver(&["box@here.example", "ann@there.example"], b"Subject: x\r\n\r\nx\r\n")));
    drop(client);
    let acme = tenant_tokens::token(dir, "a", "queue:read,queue:write", &["--tenant", "acme"]);
    let all = token(dir, "b", "queue:read,queue:write");
    server.stop();
    lose_and_rebuild(dir);
    spoil(&dir.join("posthaste-data/suppression.redb"), How::Emptied);
    let server = Server::start_as_it_is(dir);
    server.wait_for_log("this stream of the spool is stuck");
    let ask = |secret: &str, request: Value| page::control(page_of(&server), secret, &request);
    let done = |request: Value| {
        let (status, answer) = ask(&all, request);
        assert!(status == 200 && answer["end"]["stuck"][0].as_str().unwrap().starts_with("queue: "), "{answer}");
        answer["end"]["done"].as_u64().unwrap()
    };
    // By hand the same is told on standard error.
    let of_both = |args: &[&str]| {
        let output = command(dir, &[&["queue"], args].concat()).output().unwrap();
        let text = |octets| String::from_utf8(octets).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, listed, said) = of_both(&["list", "--held", "--json"]);
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    assert!(code == Some(0) && said.contains("a stream of the spool is stuck: queue: "), "{said}");
    assert!(listed.len() == 3 && listed.iter().all(|line| line["recipient"] == "box@here.example"), "{listed:?}");
    assert_eq!(done(json!({ "ask": "count", "of": {}, "action": "release" })), 3);
    // Mail for other hosts cannot be seen or changed, and nobody is told that there is none.
    let message = listed[0]["id"].as_str().unwrap();
    let requests = [
        json!({ "ask": "summary" }),
        json!({ "ask": "list", "of": { "message": message, "number": 1 } }),
        json!({ "ask": "list", "of": { "message": "999999999999" } }),
        json!({ "ask": "act", "of": {}, "action": "flush" }),
        json!({ "ask": "act", "of": {}, "action": "hold" }),
        json!({ "ask": "act", "of": { "message": message, "number": 1 }, "action": "delete" }),
    ];
    let refused = requests.into_iter().map(|request| ask(&all, request));
    // No mail of a tenant is at a transport.
    let of_tenant = ask(&acme, json!({ "ask": "list", "of": {} }));
    for (status, answer) in refused.chain([of_tenant]) {
        assert!(status != 200 && answer.to_string().contains("the queue is stuck: "), "{status} {answer}");
    }
    fs::write(dir.join("exported"), "").unwrap();
    for args in [&["import", "exported"][..], &["cat", message], &["bounce", "--all"], &["suspensions"]] {
        let (code, _, said) = of_both(args);
        assert!(code == Some(2) && said.contains("the queue is stuck: "), "{args:?}: {said}");
    }
    let (code, told, said) = of_both(&["delete", message]);
    assert_eq!((code, &*told), (Some(0), "1 removed\n"), "{said}");
    let next = "protocol = \"lmtp\"\n[[domain]]\nname = \"here.example\"\nusers = [\"box\"]\n";
    let listener = "host_name = \"mx.here.example\"\n[[listener]]\naddress = ";
    let next = Server::start(there.path(), &format!("{listener}\"{address}\"\n{next}"));
    let expected = |expect: u64| ask(&all, json!({ "ask": "act", "of": {}, "action": "release", "expect": expect }));
    assert_eq!((expected(6).0, expected(2).0), (409, 200));
    next.wait_for_mail("here.example", "box", 2);
    server.stop();
    next.stop();
}
