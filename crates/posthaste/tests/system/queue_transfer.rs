//! Mail moves from the queue of one server to that of another.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::queue_content::{config, deferring, start};
use crate::relaying::{list, queue, unused_port, wait_for_queue};
use crate::support::{Server, command, configure};

/// Imports, and returns the exit status and the summary.
fn import(dir: &Path, args: &[&str]) -> (i32, Value) {
    let output = command(dir, &[&["queue", "import", "--json"], args].concat()).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout.clone(), output.stderr].concat()).into_owned();
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap_or(Value::String(text)))
}

fn counts(imported: &(i32, Value)) -> (i32, [Option<u64>; 4]) {
    (imported.0, ["done", "recipients", "duplicates", "refused"].map(|key| imported.1[key].as_u64()))
}

fn of(done: u64, recipients: u64, duplicates: u64) -> (i32, [Option<u64>; 4]) {
    (0, [Some(done), Some(recipients), Some(duplicates), Some(0)])
}

/// Fields that a transfer must keep.
fn kept(dir: &Path) -> Vec<Vec<Value>> {
    let keys = ["recipient", "sender", "tenant", "campaign", "attempts", "status", "state", "why", "bytes"];
    let waiting = list(dir, &[]);
    waiting.iter().map(|line| keys.iter().map(|key| line[key].clone()).collect()).collect()
}

#[test]
fn a_queue_moves_with_its_schedule_and_no_import_doubles() {
    let (old, new, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (old.path(), new.path());
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = start(from, busy.local_addr().unwrap().port());
    deferring(busy);
    let mut client = server.hello();
    let small = b"X-Tenant: acme\r\nX-Campaign: spring\r\nSubject: a\r\n\r\n.dots\r\n\xff\xfe\r\n\r\n";
    let both = ["ann@there.example", "bob@there.example"];
    client.try_message("eve@here.example", &both, small).unwrap();
    let large = [&b"Subject: b\r\n\r\n"[..], &b"some more of it\r\n".repeat(100_000), b"\r\n"].concat();
    client.try_message("", &["ann@other.example"], &large).unwrap();
    wait_for_queue(from, "each is tried once", |waiting| {
        waiting.len() == 3 && waiting.iter().all(|line| line["attempts"] == 1)
    });
    let before = (kept(from), list(from, &[]));
    assert_eq!(queue(from, &["export"]).0, 2, "not all by mistake");
    let file = from.join("moved.jsonl");
    let path = file.to_str().unwrap();
    let (status, said) = queue(from, &["export", "--all", "--hold", "--output", path]);
    assert_eq!((status, said.contains("2 messages with 3 recipients")), (0, true), "{said}");
    assert_eq!(queue(from, &["export", "--all", "--output", path]).0, 2, "a file that is there stays");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "it has mail");
    assert!(list(from, &[]).iter().all(|line| line["state"] == "held"));
    assert_eq!(counts(&import(from, &[path])), of(0, 0, 3), "they wait there");

    // The next hop of the other server, which comes later.
    let port = unused_port();
    let mut server_to = start(to, port);
    assert_eq!(counts(&import(to, &[path])), of(2, 3, 0));
    assert_eq!(kept(to), before.0);
    for (before, after) in before.1.iter().zip(list(to, &[])) {
        // The clocks of two queues are whole seconds with different beginnings.
        for key in ["until", "expires", "received"] {
            let [before, after] = [before, &after].map(|line| line[key].as_u64().unwrap());
            assert!(before.abs_diff(after) <= 2, "{key} as before: {before} {after}");
        }
    }
    assert_eq!(counts(&import(to, &[path])), of(0, 0, 3));
    server_to.signal(Signal::KILL);
    server_to.wait();
    let server_to = Server::start_as_it_is(to);
    assert_eq!(counts(&import(to, &[path])), of(0, 0, 3), "after a kill");
    server_to.stop();
    let server_to = Server::start_as_it_is(to);
    assert_eq!(counts(&import(to, &[path])), of(0, 0, 3), "after an end, which wrote a snapshot");
    assert_eq!(kept(to), before.0);

    // What was changed, cut short or is something else.
    let whole = std::fs::read(&file).unwrap();
    let text = String::from_utf8(whole.clone()).unwrap();
    let data = text.lines().find(|line| line.starts_with("{\"data\"")).unwrap();
    let other = |text: String| {
        let path = from.join("other.jsonl");
        std::fs::write(&path, text).unwrap();
        import(to, &[path.to_str().unwrap()])
    };
    let (status, counted) = counts(&other(text.replacen(data, "{\"data\":\"QUFB\"}", 1)));
    assert_eq!((status, counted), (1, [Some(0), Some(0), Some(1), Some(1)]));
    let attempts = ["\"attempts\":1", "\"attempts\":0"];
    let envelopes = [["ann@there.example", "<ann> x"], ["bob@there.example", "eve@there.example"], attempts];
    for [before, after] in envelopes {
        let (status, counted) = counts(&other(text.replacen(before, after, 1)));
        assert_eq!((status, counted), (1, [Some(0), Some(0), Some(1), Some(1)]), "{after}");
    }
    for cut in [0, 10, text.find("{\"data\"").unwrap(), text.len() - 2] {
        let (status, said) = other(text[..cut].to_owned());
        assert_eq!(status, 2, "{cut}: {said}");
    }
    assert_eq!(other("{\"format\":\"x\",\"version\":1,\"host\":\"\",\"exported\":0}\n".to_owned()).0, 2);

    // It is exported from there as the same mail, and delivered once.
    let (status, again) = queue(to, &["export", "--domain", "other.example"]);
    let origin = |text: &str| {
        let line = text.lines().rfind(|line| line.starts_with("{\"end\"")).unwrap();
        serde_json::from_str::<Value>(line).unwrap()["end"]["origin"].clone()
    };
    assert_eq!((status, origin(&again)), (0, origin(&text)));
    let domains = ["there.example", "other.example"]
        .map(|name| format!("[[domain]]\nname = \"{name}\"\nusers = [\"ann\", \"bob\"]\n"));
    let listener = format!("host_name = \"mx.there.example\"\n[[listener]]\naddress = \"127.0.0.1:{port}\"\n");
    let next = Server::start(there.path(), &format!("{listener}{}", domains.concat()));
    assert_eq!(queue(to, &["flush", "--all"]).0, 0);
    next.wait_for_mail("there.example", "ann", 1);
    next.wait_for_mail("there.example", "bob", 1);
    let got = next.wait_for_mail("other.example", "ann", 1);
    assert!(got[0].text().matches("some more of it").count() == 100_000);
    wait_for_queue(to, "all is recorded", |waiting| waiting.is_empty());
    assert_eq!(counts(&import(to, &[path])), of(0, 0, 3), "also once it is delivered");
    assert_eq!(queue(from, &["delete", "--held"]), (0, "3 removed\n".to_owned()));
    server_to.stop();
    server.stop();
    next.stop();
}

#[test]
fn a_queue_moves_while_neither_server_runs() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (old.path(), new.path());
    let events = "[events]\nenabled = true\n";
    let config = || config(unused_port()) + events;
    let mut server = Server::start(from, &config());
    let mut client = server.hello();
    let large = [&b"Subject: b\r\n\r\n"[..], &b"some more of it\r\n".repeat(100_000), b"\r\n"].concat();
    client.try_message("eve@here.example", &["ann@there.example", "bob@there.example"], &large).unwrap();
    client.try_message("eve@here.example", &["ann@other.example"], b"Subject: c\r\n\r\n\r\n").unwrap();
    assert_eq!(list(from, &[]).len(), 3);
    server.signal(Signal::KILL);
    server.wait();
    assert_eq!(queue(from, &["list"]).0, 2, "only exports and imports need no server");
    let file = from.join("moved.jsonl");
    let path = file.to_str().unwrap();
    let (status, said) = queue(from, &["export", "--domain", "there.example", "--hold", "--output", path]);
    assert_eq!((status, said.contains("1 messages with 2 recipients")), (0, true), "{said}");
    let (status, again) = queue(from, &["export", "--all"]);
    assert_eq!((status, again.matches("\"held\":\"operator\"").count()), (0, 2), "{again}");

    configure(to, &config());
    let absent = import(to, &[path]);
    assert_eq!(absent.0, 2, "nothing is made: {}", absent.1);
    assert!(!to.join("posthaste-data").exists());
    Server::start_as_it_is(to).stop();
    assert_eq!(counts(&import(to, &[path])), of(1, 2, 0));
    assert_eq!(counts(&import(to, &[path])), of(0, 0, 2), "after an end, which wrote a snapshot");

    let (server, server_to) = (Server::start_as_it_is(from), Server::start_as_it_is(to));
    assert_eq!(counts(&import(to, &[path])), of(0, 0, 2), "with a server");
    let state = |dir: &Path| {
        let waiting = list(dir, &[]);
        waiting.iter().map(|line| (line["recipient"].clone(), line["state"] == "held")).collect::<Vec<_>>()
    };
    let of_there = |held| ["ann@there.example", "bob@there.example"].map(|to| (Value::from(to), held));
    assert_eq!(state(to), of_there(false));
    assert_eq!(state(from)[..2], of_there(true));
    assert!(!state(from)[2].1, "what was not exported is not held");
    std::fs::remove_file(from.join("posthaste-data/control.sock")).unwrap();
    let (status, said) = queue(from, &["export", "--all"]);
    assert_eq!((status, said.contains("in use")), (2, true), "{said}");
    server.stop();
    server_to.stop();
    let log = std::fs::read_to_string(from.join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    assert_eq!(log.matches("\"action\":\"hold\"").count(), 2, "{log}");
}
