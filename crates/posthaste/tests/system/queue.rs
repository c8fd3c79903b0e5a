//! `posthaste queue` and mailq, with a running server.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::relaying::{ANYWHERE, config, list, next_hop, queue, unused_port, wait_for_queue, wait_until_unreachable};
use crate::support::{Server, command};

fn recipients(dir: &Path, args: &[&str]) -> Vec<String> {
    list(dir, args).iter().map(|line| line["recipient"].as_str().unwrap().to_owned()).collect()
}

/// A server, and the port of an unreachable next hop without a retry soon.
fn waiting(dir: &Path) -> (Server, u16) {
    let port = unused_port();
    let server = Server::start(dir, &config(port, "").replace("unreachable_secs = 1\n", "unreachable_secs = 600\n"));
    let mut client = server.hello();
    client
        .try_message("eve@here.example", &["ann@there.example", "bob@there.example"], b"Subject: a\r\n\r\n\r\n")
        .unwrap();
    client.try_message("joe@here.example", &["ann@there.example"], b"Subject: b\r\n\r\n\r\n").unwrap();
    client.try_message("eve@here.example", &["ann@other.example"], b"Subject: c\r\n\r\n\r\n").unwrap();
    wait_until_unreachable(&server, dir, 2);
    (server, port)
}

#[test]
fn what_waits_is_listed_held_and_released_also_behind_a_kill() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let (mut server, port) = waiting(dir);
    assert_eq!(
        recipients(dir, &[]),
        ["ann@there.example", "bob@there.example", "ann@there.example", "ann@other.example"]
    );
    assert_eq!(recipients(dir, &["--domain", "THERE.example", "--sender", "Eve@here.example"]).len(), 2);
    assert_eq!(recipients(dir, &["--sender", "joe@here.example"]).len(), 1);
    let id = list(dir, &["--recipient", "bob@there.example"])[0]["id"].as_str().unwrap().to_owned();
    let (_, shown) = queue(dir, &["show", &id]);
    let why = shown.lines().find(|line| line.starts_with("why")).expect(&shown);
    assert!(why.contains("there.example (127.0.0.1): ") && why.contains("refused"), "{shown}");
    let (_, summary) = queue(dir, &["summary"]);
    let there_line = summary.lines().find(|line| line.starts_with("there.example")).expect(&summary);
    assert_eq!(there_line.split_whitespace().take(5).collect::<Vec<_>>(), ["there.example", "3", "0", "0", "0"]);
    assert_eq!(queue(dir, &["hold", "--recipient", "ann@there.example", "--reason", "look"]), (0, "2 held\n".into()));
    assert_eq!(queue(dir, &["hold", "--recipient", "ann@there.example"]).0, 1, "nothing to do");
    assert_eq!(recipients(dir, &["--held"]), ["ann@there.example"; 2]);
    assert!(server.wait_for_log("the operator has changed the queue").contains("reason=\"look\""));
    server.signal(Signal::KILL);
    server.wait();
    assert!(queue(dir, &["list"]).1.contains("no server runs"), "none does");
    let next = next_hop(there.path(), &format!("127.0.0.1:{port}"));
    let server = Server::start_as_it_is(dir);
    next.wait_for_mail("there.example", "bob", 1);
    let held = list(dir, &["--held"]);
    assert_eq!(held.len(), 2);
    let id = held[0]["id"].as_str().unwrap();
    assert_eq!(queue(dir, &["release", id]), (0, "1 released\n".into()));
    next.wait_for_mail("there.example", "ann", 1);
    wait_for_queue(dir, "the other is held", |waiting| waiting.len() == 1);
    assert_eq!(queue(dir, &["release", "--all"]), (0, "1 released\n".into()));
    next.wait_for_mail("there.example", "ann", 2);
    server.stop();
    next.stop();
}

#[test]
fn a_hold_with_an_end_survives_a_kill_and_an_export() {
    let (here, there, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let (mut server, port) = waiting(dir);
    let hold = |time: &str| queue(dir, &["hold", "--domain", "there.example", "--for", time, "--reason", "look"]);
    assert_eq!(hold("2h"), (0, "3 held\n".into()));
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let ends = |dir: &Path| {
        let held = list(dir, &["--held"]);
        assert!(held.iter().all(|line| line["held_by"] == "operator" && line["expires"].is_null()), "{held:?}");
        held.iter().map(|line| line["until"].as_u64().expect("it has an end")).collect::<Vec<_>>()
    };
    let before = ends(dir);
    assert_eq!(before.len(), 3);
    assert!(before.iter().all(|end| end.abs_diff(now() + 7200) < 120), "{before:?}");
    let (_, shown) = queue(dir, &["list", "--held"]);
    assert_eq!(shown.matches("held until ").count(), 3, "{shown}");
    let (status, text) = queue(dir, &["release", "--all", "--for", "2h"]);
    assert!(status == 2 && text.contains("--for"), "only a hold has an end: {text}");

    let path = dir.join("moved.jsonl");
    let path = path.to_str().unwrap();
    assert_eq!(queue(dir, &["export", "--held", "--output", path]).0, 0);
    server.signal(Signal::KILL);
    server.wait();
    let next = next_hop(there.path(), &format!("127.0.0.1:{port}"));
    let server = Server::start_as_it_is(dir);
    assert_eq!(ends(dir), before, "after a kill");
    server.stop();
    let server = Server::start_as_it_is(dir);
    assert_eq!(ends(dir), before, "after an end, which wrote a snapshot");
    assert_eq!(hold("1s"), (0, "3 held\n".into()), "an end can be changed");
    next.wait_for_mail("there.example", "ann", 2);
    next.wait_for_mail("there.example", "bob", 1);

    let server_to = Server::start(other.path(), &config(unused_port(), ""));
    assert_eq!(queue(other.path(), &["import", path]).0, 0);
    for (before, after) in before.iter().zip(ends(other.path())) {
        assert!(before.abs_diff(after) <= 2, "the clocks of two queues are whole seconds: {before} {after}");
    }
    server_to.stop();
    let third = tempfile::tempdir().unwrap();
    let server_to = Server::start(third.path(), &config(unused_port(), ""));
    assert_eq!(queue(third.path(), &["import", "--release", path]).0, 0);
    assert!(list(third.path(), &[]).iter().all(|line| line["state"] != "held" && line["until"].is_null()));
    server_to.stop();
    server.stop();
    next.stop();
}

#[test]
fn a_held_recipient_says_why_also_after_a_restart() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let (mut server, _) = waiting(dir);
    let hold = |who: &str, reason: &[&str]| queue(dir, &[&["hold", "--recipient", who], reason].concat()).0;
    assert_eq!(hold("bob@there.example", &["--reason", "their disk is full"]), 0);
    assert_eq!(hold("ann@there.example", &[]), 0);
    let reasons = || {
        let held = list(dir, &["--held"]);
        let of = |who: &str| held.iter().find(|line| line["recipient"] == who).map(|line| line["held_reason"].clone());
        [of("bob@there.example").unwrap(), of("ann@there.example").unwrap()]
    };
    let expected = [Value::from("their disk is full"), Value::Null];
    assert_eq!(reasons(), expected);
    let (_, shown) = queue(dir, &["list", "--held"]);
    assert_eq!(shown.matches("held: their disk is full").count(), 1, "{shown}");
    let held = list(dir, &["--recipient", "bob@there.example"]);
    let (_, shown) = queue(dir, &["show", held[0]["id"].as_str().unwrap()]);
    assert!(shown.contains("\nreason     their disk is full\n"), "{shown}");
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir);
    assert_eq!(reasons(), expected, "after a kill");
    server.stop();
    let server = Server::start_as_it_is(dir);
    assert_eq!(reasons(), expected, "from a snapshot");
    assert_eq!(queue(dir, &["release", "--all"]).0, 0);
    assert_eq!((hold("bob@there.example", &[]), hold("ann@there.example", &["--reason", "look"])), (0, 0));
    assert_eq!(reasons(), [Value::Null, "look".into()], "the last hold counts");
    server.stop();
}

#[test]
fn mail_is_removed_silently_and_given_up_aloud() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let (server, _) = waiting(dir);
    assert_eq!(queue(dir, &["delete", "--sender", "joe@here.example"]), (0, "1 removed\n".into()));
    assert_eq!(queue(dir, &["delete"]).0, 2, "not all by mistake");
    assert_eq!(
        queue(dir, &["bounce", "--domain", "there.example", "--reason", "not wanted"]),
        (0, "2 given up\n".into())
    );
    // Both recipients in one notification.
    let told = server.wait_for_mail("here.example", "eve", 1).remove(0).text();
    assert!(told.matches("Action: failed").count() == 2 && told.contains("not wanted"), "{told}");
    assert_eq!(recipients(dir, &[]), ["ann@other.example"]);
    let output = command(dir, &["sendmail", "-C", "posthaste.toml", "-bp"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("-Queue ID-") && text.contains("eve@here.example\n"), "{text}");
    assert!(text.ends_with("ann@other.example\n\n-- 1 Kbytes in 1 Requests.\n"), "{text}");
    assert_eq!(queue(dir, &["delete", "--all"]).0, 0);
    assert_eq!(queue(dir, &["list"]), (1, "nothing waits\n".into()));
    server.stop();
}

#[test]
fn a_suspended_domain_waits_until_it_is_resumed() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let (mut server, port) = waiting(dir);
    let args = ["suspend", "--domain", "there.example", "--for", "2h", "--reason", "their wish"];
    assert_eq!(queue(dir, &args), (0, "suspended\n".into()));
    server.signal(Signal::KILL);
    server.wait();
    let next = next_hop(there.path(), &format!("127.0.0.1:{port}"));
    let server = Server::start_as_it_is(dir);
    let states: Vec<_> = list(dir, &["--domain", "there.example"]).iter().map(|line| line["state"].clone()).collect();
    assert_eq!(states, ["suspended"; 3]);
    let (_, text) = queue(dir, &["suspensions"]);
    assert!(text.contains("there.example") && text.contains("their wish"), "{text}");
    assert_eq!(queue(dir, &["resume", "--domain", "there.example"]), (0, "resumed\n".into()));
    next.wait_for_mail("there.example", "ann", 2);
    assert_eq!(queue(dir, &["resume", "--domain", "there.example"]), (1, "nothing to do\n".into()));
    assert_eq!(queue(dir, &["suspensions"]), (1, "nothing is suspended or slowed down\n".into()));
    assert_eq!(queue(dir, &["routes"]), (1, "nothing is routed by `posthaste queue route`\n".into()));
    // Of a tenant, mail to one domain alone.
    let at = ["--tenant", "news", "--domain", "Other.example"];
    assert_eq!(queue(dir, &[&["suspend"], &at[..]].concat()), (0, "suspended\n".into()));
    let (_, text) = queue(dir, &["suspensions"]);
    assert!(text.contains("tenant at domain  news at other.example"), "{text}");
    let (_, text) = queue(dir, &["suspensions", "--json"]);
    let scope = &serde_json::from_str::<Value>(&text).unwrap()[0]["scope"];
    assert_eq!(*scope, serde_json::json!({ "tenant": "news", "domain": "other.example" }));
    assert_eq!(queue(dir, &["resume", "--tenant", "news"]), (1, "nothing to do\n".into()));
    assert_eq!(queue(dir, &[&["resume"], &at[..]].concat()), (0, "resumed\n".into()));
    assert_eq!(queue(dir, &["suspend", "--tenant", "news", "--campaign", "spring"]).0, 2);
    server.stop();
    next.stop();
}

#[test]
fn a_diversion_of_a_domain_holds_until_its_end_across_kills() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let (mut server, _) = waiting(dir);
    let next = next_hop(there.path(), ANYWHERE);
    let to = format!("[127.0.0.1]:{}", next.addresses[0].port());
    let route = |more: &[&str]| queue(dir, &[&["route", "--domain", "There.example"], more].concat());
    let (code, text) = route(&["--to", "a b"]);
    assert!(code == 2 && text.contains("`a b` is not a host"), "{text}");
    let (code, text) = queue(dir, &["route", "--site", "x", "--to", &to]);
    assert!(code == 2 && text.contains("name a domain"), "{text}");
    assert_eq!(route(&["--to", &to, "--for", "2h", "--reason", "their disk"]), (0, "routed\n".into()));
    next.wait_for_mail("there.example", "ann", 2);
    next.wait_for_mail("there.example", "bob", 1);
    // Other domains wait as before.
    wait_for_queue(dir, "it is recorded", |waiting| {
        waiting.len() == 1 && waiting[0]["recipient"] == "ann@other.example"
    });
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir);
    let (_, text) = queue(dir, &["routes"]);
    assert!(text.contains("there.example") && text.contains(&to) && text.contains("their disk"), "{text}");
    let mut client = server.hello();
    client.try_message("eve@here.example", &["bob@there.example"], b"Subject: d\r\n\r\n\r\n").unwrap();
    next.wait_for_mail("there.example", "bob", 2);
    wait_for_queue(dir, "it is recorded", |waiting| waiting.len() == 1);
    assert_eq!(queue(dir, &["unroute", "--domain", "there.example"]), (0, "no longer routed\n".into()));
    assert_eq!(queue(dir, &["unroute", "--domain", "there.example"]), (1, "nothing to do\n".into()));
    client.try_message("eve@here.example", &["bob@there.example"], b"Subject: e\r\n\r\n\r\n").unwrap();
    server.wait_for_log("0 there.example :");
    assert_eq!(recipients(dir, &["--domain", "there.example"]), ["bob@there.example"]);
    assert_eq!(queue(dir, &["delete", "--all"]).0, 0);
    drop(client);
    server.stop();
    next.stop();
}

#[test]
fn what_is_no_request_is_answered_and_others_are_served() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let server = Server::start(dir, &config(1, ""));
    let ask = |text: &[u8]| {
        let mut stream = UnixStream::connect(dir.join("posthaste-data/control.sock")).unwrap();
        // A line that is too long may be refused while it is written.
        let _ = stream.write_all(text);
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line);
        line
    };
    let silent = UnixStream::connect(dir.join("posthaste-data/control.sock")).unwrap();
    for text in
        [&b"\n"[..], b"{}\n", b"{\"ask\":\"everything\"}\n", b"{\"ask\":\"list\",\"of\":{\"x\":1}}\n", b"\xff\xfe\n"]
    {
        let answer = ask(text);
        assert!(answer.is_empty() && text[0] == 0xff || answer.starts_with("{\"error\":"), "{answer}");
    }
    ask(&[b'['; 200_000]);
    assert_eq!(ask(b"{\"ask\":\"list\"}\n"), "{\"done\":0}\n");
    drop(silent);
    server.stop();
}
