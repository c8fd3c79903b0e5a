//! Events about mail to other hosts.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::relaying::{ANYWHERE, EVENTS, config, next_hop, unused_port};
use crate::support::{PATIENCE, Server, command};

pub fn lines(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("posthaste-data/events/events-00000001.jsonl")).unwrap_or_default();
    // Not half a line that is being written.
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole.map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Lines of an event that has a key of this value.
pub fn wait_for(dir: &Path, event: &str, key: &str, value: &str) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = lines(dir);
        let found: Vec<Value> =
            all.iter().filter(|line| line["event"] == event && line[key] == value).cloned().collect();
        if !found.is_empty() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {event} with {key} {value}: {all:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_outcome_has_its_line_across_kills_with_the_operator() {
    let (here_dir, there_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there_dir.path(), ANYWHERE);
    let dir = here_dir.path();
    let mut server = Server::start(dir, &config(next.addresses[0].port(), EVENTS));
    let mut client = server.hello();
    let to = ["ann@there.example", "slow@there.example"];
    client.try_message("eve@here.example", &to, b"Subject: a\r\n\r\nx\r\n").unwrap();
    // By itself: failures of a message whose other recipients wait are gathered for a minute.
    client.try_message("eve@here.example", &["nobody@there.example"], b"Subject: b\r\n\r\nx\r\n").unwrap();
    next.wait_for_mail("there.example", "ann", 1);
    // The notification and the event of the failure are one batch.
    server.wait_for_mail("here.example", "eve", 1);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir);

    let bounced = wait_for(dir, "bounced", "recipient", "nobody@there.example");
    let line = &bounced[0];
    assert_eq!((bounced.len(), &line["code"], &line["status"]), (1, &550.into(), &"5.1.1".into()), "{line}");
    assert_eq!((&line["from"], &line["host"]), (&"<eve@here.example>".into(), &"there.example".into()));
    assert!(line["reply"].as_str().unwrap().starts_with("550 5.1.1 "), "{line}");
    let delivered = wait_for(dir, "delivered", "recipient", "ann@there.example");
    assert_eq!((&delivered[0]["code"], &delivered[0]["attempts"]), (&250.into(), &1.into()));
    let deferred = wait_for(dir, "deferred", "recipient", "slow@there.example");
    let line = &deferred[0];
    assert_eq!((&line["status"], &line["reply"]), (&"4.2.1".into(), &"450 4.2.1 Come back".into()));
    assert!(line["next"].as_str().unwrap() > line["time"].as_str().unwrap(), "{line}");

    let queue = |args: &[&str]| {
        let output = command(dir, &[&["queue"], args].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    queue(&["hold", "--recipient", "slow@there.example", "--for", "2h", "--reason", "look at it"]);
    let admin = wait_for(dir, "admin", "action", "hold");
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!((admin.len(), &admin[0]["uid"], &admin[0]["reason"]), (1, &uid.into(), &"look at it".into()));
    assert_eq!(admin[0]["recipient"], "slow@there.example");
    assert_eq!(admin[0]["message"], line["message"]);
    assert!(admin[0]["until"].is_string(), "{}", admin[0]);
    queue(&["suspend", "--domain", "there.example", "--for", "2h", "--reason", "too many"]);
    let suspended = &wait_for(dir, "admin", "action", "suspend")[0];
    assert_eq!((&suspended["scope"], &suspended["name"]), (&"domain".into(), &"there.example".into()));
    assert!(suspended["until"].is_string(), "{suspended}");
    queue(&["resume", "--domain", "there.example"]);
    wait_for(dir, "admin", "action", "resume");
    queue(&["delete", "--recipient", "slow@there.example"]);
    wait_for(dir, "admin", "action", "delete");
    server.stop();
    let all = lines(dir);
    assert!(all.is_sorted_by_key(|line| line["lsn"].as_str().unwrap().parse::<u64>().unwrap()), "{all:#?}");
    next.stop();
}

#[test]
fn a_message_has_one_id_wherever_it_is_told_of() {
    let (here_dir, there_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there_dir.path(), ANYWHERE);
    let dir = here_dir.path();
    // The event log is on by itself.
    let server = Server::start(dir, &config(next.addresses[0].port(), ""));
    let mut client = server.hello();
    let to = ["ann@there.example", "slow@there.example"];
    let replies = client.try_message("eve@here.example", &to, b"Subject: a\r\n\r\nx\r\n").unwrap();
    let id = replies.text.strip_prefix("2.0.0 Kept as ").unwrap().to_owned();
    let kept = server.wait_for_log("message kept");
    assert!(kept.contains(&format!(" id={id} received_id=\"")) && kept.contains(" remote=2"), "{kept}");
    assert!(!kept.contains("mailboxes=") && !kept.contains("=\"\""), "{kept}");
    let delivered = server.wait_for_log("INFO delivered ");
    let host = "to=\"ann@there.example\" host=\"there.example\" reply=\"250 2.0.0 Kept as ";
    assert!(
        delivered.contains(&format!(" id={id} number=0 {host}")) && delivered.contains(" delay_secs="),
        "{delivered}"
    );
    let deferred = server.wait_for_log("not delivered yet");
    assert!(deferred.contains(&format!(" id={id} number=1 ")), "{deferred}");
    let received = &wait_for(dir, "received", "from", "<eve@here.example>")[0];
    assert_eq!(received["message"], id);
    wait_for(dir, "deferred", "recipient", "slow@there.example");
    let said = |args: &[&str]| String::from_utf8(command(dir, args).output().unwrap().stdout).unwrap();
    assert!(said(&["queue", "list"]).contains(&format!("\n{id}.1 ")));
    assert!(said(&["queue", "show", &id]).contains("slow@there.example"));
    assert!(said(&["sendmail", "-bp"]).contains(&format!("\n{id} ")));
    let received_id = received["received_id"].as_str().unwrap();
    for what in [&*id, received_id, "ann@there.example"] {
        assert!(said(&["trace", what]).starts_with(&format!("message {id}")), "{what}");
    }
    server.stop();
    next.stop();
}

#[test]
fn a_summary_can_be_watched() {
    let here_dir = tempfile::tempdir().unwrap();
    let dir = here_dir.path();
    let server = Server::start(dir, &config(unused_port(), ""));
    let mut watch =
        command(dir, &["queue", "summary", "--watch=100ms", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let counts = |line: String| serde_json::from_str::<Value>(&line).unwrap()["counts"].as_array().unwrap().len();
    assert_eq!(lines.next().map(counts), Some(0));
    let mut client = server.hello();
    client.try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    assert_eq!(lines.by_ref().map(counts).find(|count| *count > 0), Some(1));
    // It ends with its reader, or its server.
    server.stop();
    assert_eq!(lines.map(counts).filter(|count| *count > 1).count(), 0);
    assert!(watch.wait().unwrap().code().is_some_and(|code| code == 2));
}

#[test]
fn what_becomes_too_old_is_told_as_expired() {
    let here_dir = tempfile::tempdir().unwrap();
    let dir = here_dir.path();
    let schedule = "[relay.schedule.default]\nmax_age_secs = 1\ndelay_notice_secs = 1\n";
    let server = Server::start(dir, &config(unused_port(), &format!("{schedule}{EVENTS}")));
    let mut client = server.hello();
    client.try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    let expired = &wait_for(dir, "expired", "recipient", "ann@there.example")[0];
    assert_eq!((&expired["status"], &expired["attempts"]), (&"5.4.7".into(), &0.into()), "{expired}");
    server.stop();
}

#[test]
fn a_reply_that_ends_a_session_is_seen_with_stage_and_host() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"421 4.7.0 rate limited\r\n");
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(dir, &config(port, EVENTS));
    server.hello().try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    let line = wait_for(dir, "interrupted", "recipient", "ann@there.example").remove(0);
    assert_eq!((&line["stage"], &line["host"]), (&"greeting".into(), &"there.example".into()), "{line}");
    assert_eq!((&line["code"], &line["reply"]), (&421.into(), &"421 4.7.0 rate limited".into()), "{line}");
    assert_eq!(line["attempts"], 0, "{line}");
    let message = line["message"].as_str().unwrap();
    for args in [&["queue", "show", message][..], &["trace", message]] {
        let output = command(dir, args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("421 4.7.0 rate limited") && text.contains("there.example"), "{args:?}: {output:?}");
    }
    server.stop();
}

#[test]
fn a_reply_that_ends_a_session_of_no_mail_is_seen_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 there\r\n").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
            let reply: &[u8] = match &*line {
                "DATA" => b"354 go\r\n",
                "." => b"250 2.0.0 taken\r\n421 4.7.0 rate limited\r\n",
                line if ["EHLO", "MAIL", "RCPT"].iter().any(|word| line.starts_with(word)) => b"250 ok\r\n",
                _ => b"",
            };
            let _ = stream.write_all(reply);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(dir, &config(port, EVENTS));
    server.hello().try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    let line = wait_for(dir, "interrupted", "host", "there.example").remove(0);
    assert_eq!((&line["stage"], &line["reply"]), (&"idle".into(), &"421 4.7.0 rate limited".into()), "{line}");
    assert!(line["message"].is_null() && line["attempts"].is_null(), "{line}");
    let output = command(dir, &["trace", "there.example"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("421 4.7.0 rate limited"), "{output:?}");
    server.stop();
}
