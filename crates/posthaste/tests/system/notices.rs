//! Notifications about undeliverable mail: recipients and wording, with running servers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use crate::relay_events::wait_for;
use crate::relaying::{self, ANYWHERE, EVENTS, next_hop, unused_port, wait_for_queue, wait_until_unreachable};
use crate::support::{PATIENCE, Server, command};

fn config(port: u16, notices: &str) -> String {
    relaying::config(port, &format!("{EVENTS}[relay.notices]\n{notices}")).replace("\"eve\"", "\"eve\", \"boss\"")
}

#[test]
fn the_postmaster_gets_copies_once_the_configuration_says_so() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let port = next.addresses[0].port();
    let server = Server::start(here.path(), &config(port, ""));
    let send = |from: &str, to: &str, subject: &str| {
        let mut client = server.hello();
        let message = format!("Subject: {subject}\r\n\r\nx\r\n");
        assert_eq!(client.try_message(from, &[to], message.as_bytes()).unwrap().code, 250);
    };
    send("", "nobody@there.example", "first");
    server.wait_for_log("given up, and its sender cannot be notified");
    let bad = config(port, "double_bounce_to = \"boss\"\n");
    server.reload(&bad);
    let told = server.wait_for_log("configuration not reloaded");
    assert!(told.contains("`boss` is not an address"), "{told}");
    let good = config(port, "double_bounce_to = \"boss@here.example\"\ndouble_bounce_rate = \"2/day, burst 2\"\n");
    server.reload(&good);
    server.wait_for_log("configuration reloaded");
    send("", "nobody@there.example", "second");
    let copy = server.wait_for_mail("here.example", "boss", 1)[0].text();
    for line in ["To: <boss@here.example>\n", "Final-Recipient: rfc822; nobody@there.example\n", "Subject: second\n"] {
        assert!(copy.contains(line), "{line} in {copy}");
    }
    // This sender has no mailbox here, and the third copy would be one too many.
    send("nobody@here.example", "nobody@there.example", "third");
    let copies = server.wait_for_mail("here.example", "boss", 2);
    assert!(copies.iter().any(|copy| copy.text().contains("Subject: third\n")), "{copies:?}");
    send("", "other@there.example", "fourth");
    wait_for(here.path(), "double_bounced", "recipient", "other@there.example");
    server.stop();
    next.stop();
    let events = std::fs::read_to_string(here.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    let count = |event: &str| events.lines().filter(|line| line.contains(&format!("\"event\":\"{event}\""))).count();
    assert_eq!((count("bounced"), count("double_bounced")), (4, 4), "{events}");
    let stored = std::fs::read_dir(here.path().join("posthaste-data/mail/here.example/boss/Maildir/new")).unwrap();
    assert_eq!(stored.count(), 2);
}

#[test]
fn senders_are_told_in_the_words_of_templates() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let words = here.path().join("words");
    std::fs::create_dir(&words).unwrap();
    let write = |name: &str, text: &str| std::fs::write(words.join(name), text).unwrap();
    write("failure.txt", "Subject: Sorry\n\nNobody took it:\n${recipients}\n");
    write("success.txt", "Subject: Fine\n\nIt is there:\n${recipients}\n");
    let notices =
        format!("templates = \"{}\"\n[[network]]\ncidr = [\"127.0.0.1\"]\npolicy.dsn = true\n", words.display());
    let config = config(next.addresses[0].port(), &notices);
    let server = Server::start(here.path(), &config);
    let send = |to: &str, subject: &str| {
        let mut client = server.hello();
        client.expect("MAIL FROM:<eve@here.example>", 250);
        client.expect(&format!("RCPT TO:<{to}> NOTIFY=SUCCESS,FAILURE"), 250);
        client.expect("DATA", 354);
        client.expect(&format!("Subject: {subject}\r\n\r\nx\r\n."), 250);
    };
    let told = |count: usize, subject: &str| {
        let stored = server.wait_for_mail("here.example", "eve", count);
        let found =
            stored.iter().map(|stored| stored.text()).find(|text| text.contains(&format!("\nSubject: {subject}\n")));
        found.unwrap_or_else(|| panic!("{subject}: {stored:?}"))
    };
    send("nobody@there.example", "first");
    let text = told(1, "Sorry");
    assert!(
        text.contains("\nNobody took it:\n<nobody@there.example>: failed\n") && text.contains("\nStatus: 5.1.1\n"),
        "{text}"
    );
    send("boss@here.example", "second");
    assert!(told(2, "Fine").contains("\nIt is there:\n<boss@here.example>: delivered\n"));
    // A mistake changes nothing, whichever file has it.
    write("failure.txt", "Subject: Worse\n\n${recipients}\n");
    write("delay.txt", "Subject: Later\n\nYour ${recipient}\n");
    server.signal(Signal::HUP);
    let said = server.wait_for_log("keeping the old templates");
    assert!(said.contains("delay.txt:3: `${recipient}` cannot stand here"), "{said}");
    send("nobody@there.example", "third");
    server.wait_for_mail("here.example", "eve", 3);
    write("delay.txt", "Subject: Later\n\nYour\n${recipients}\n");
    server.signal(Signal::HUP);
    server.wait_for_log_again("configuration reloaded", 2);
    send("nobody@there.example", "fourth");
    told(4, "Worse");
    server.stop();
    next.stop();
    // At the start it is an error.
    write("delay.txt", "Later\n");
    let output = command(here.path(), &["serve"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("delay.txt:1: the first line is `Subject: ` and a subject"),
        "{said}"
    );
}

#[test]
fn a_refusal_survives_a_kill_and_its_notice_is_owed() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, next) = (here.path(), next_hop(there.path(), ANYWHERE));
    let schedule = "[relay.schedule.default]\nfirst_secs = 3600\n";
    let mut server = Server::start(dir, &relaying::config(next.addresses[0].port(), &format!("{schedule}{EVENTS}")));
    // The notice waits for the other recipient.
    let to = ["nobody@there.example", "slow@there.example"];
    server.hello().try_message("eve@here.example", &to, b"Subject: a\r\n\r\nx\r\n").unwrap();
    wait_for(dir, "bounced", "recipient", to[0]);
    let wait_until_owed = |is_owed: bool| {
        let deadline = Instant::now() + PATIENCE;
        while relaying::queue(dir, &["summary"]).1.contains("1 notice to a sender is still to be made\n") != is_owed {
            assert!(Instant::now() < deadline, "owed: {is_owed}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_until_owed(true);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir);
    wait_until_owed(true);
    let waiting = relaying::list(dir, &[]);
    assert!(waiting.len() == 1 && waiting[0]["recipient"] == to[1], "{waiting:?}");
    assert_eq!(relaying::queue(dir, &["delete", "--all"]), (0, "1 removed\n".to_owned()));
    let told = server.wait_for_mail("here.example", "eve", 1).remove(0).text();
    assert!(told.contains("rfc822; nobody@there.example\n") && !told.contains("slow@"), "{told}");
    wait_until_owed(false);
    assert_eq!(wait_for(dir, "bounced", "recipient", to[0]).len(), 1, "tried once");
    server.stop();
    next.stop();
}

/// Path of libfaketime, which fakes a program's clock.
fn faketime() -> Option<PathBuf> {
    let dirs = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    dirs.iter().map(|dir| Path::new(dir).join("faketime/libfaketimeMT.so.1")).find(|file| file.exists())
}

#[test]
fn dates_are_right_after_a_first_start_with_a_wrong_clock() {
    let Some(library) = faketime() else {
        assert!(std::env::var_os("CI_REQUIRE_PEERS").is_none(), "libfaketime is not installed");
        println!("libfaketime is not installed: nothing is tested");
        return;
    };
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let port = unused_port();
    let ahead = format!("export LD_PRELOAD={} FAKETIME=+{AHEAD_DAYS}d {REAL_MONOTONIC}", library.display());
    let server = Server::start_behind(&ahead, dir, &relaying::config(port, EVENTS));
    let send = |server: &Server, to: &str| {
        server.hello().try_message("eve@here.example", &[to], b"Subject: x\r\n\r\nx\r\n").unwrap();
    };
    send(&server, "nobody@there.example");
    wait_until_unreachable(&server, dir, 1);
    server.stop();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let wrong = now() + AHEAD_DAYS * 86_400;
    let year = |line: &serde_json::Value| line["time"].as_str().unwrap()[..4].parse::<i64>().unwrap();
    let began = year(&wait_for(dir, "received", "from", "<eve@here.example>")[0]);
    assert!((began - 1970 - wrong / YEAR_SECS).abs() <= 1, "the clock was ahead: {began}");

    let next = next_hop(there.path(), &format!("127.0.0.1:{port}"));
    let server = Server::start_as_it_is(dir);
    send(&server, "other@there.example");
    for notice in server.wait_for_mail("here.example", "eve", 2) {
        let text = notice.text();
        for field in ["Date: ", "Arrival-Date: ", "Last-Attempt-Date: "] {
            let date =
                text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_else(|| panic!("{field}: {text}"));
            let date = posthaste_message::DateTime::parse(date.as_bytes()).unwrap().unix_secs();
            assert!((now() - date).abs() < 86_400, "{field} {date} in {text}");
        }
    }
    wait_for_queue(dir, "nothing waits", |waiting| waiting.is_empty());
    server.stop();
    next.stop();
}

const AHEAD_DAYS: i64 = 7300;
const YEAR_SECS: i64 = 31_556_952;
/// Leaves the monotonic clock unchanged.
const REAL_MONOTONIC: &str = "FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1";
