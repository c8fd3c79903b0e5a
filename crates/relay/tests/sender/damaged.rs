//! Messages whose records or bodies in the spool are damaged: a true reason, and an outcome in the end.

use std::path::Path;

use posthaste_spool::SpoolAdmin;

use super::*;

/// Flips a bit of the first octet of a text in the ring.
fn flip(dir: &Path, text: &str) {
    let mut paths: Vec<_> = std::fs::read_dir(dir.join("ring")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|part| part == text.as_bytes()) {
            bytes[at] ^= 1;
            return std::fs::write(&path, bytes).unwrap();
        }
    }
    panic!("{text} is not in the ring");
}

fn wait_long(config: &mut Config) {
    config.schedules = schedules(3600, 86_400);
}

/// A queue that knows a message that was deferred, after a bit of this text in the spool has flipped.
fn deferred(sink: &Sink, text: &str) -> tempfile::TempDir {
    let rig = rig_with(zone(), sink.port(), wait_long);
    rig.send("ann@a.example", &["never@a.example"], "Subject: x\r\n\r\nthe text\r\n");
    wait_log(&rig, "never@a.example deferred 4");
    let dir = rig.end();
    flip(dir.path(), text);
    dir
}

fn wait_log(rig: &Rig, start: &str) {
    wait(start, || rig.log().iter().any(|line| line.starts_with(start)));
}

/// The message, its recipient's address and why it waits.
fn waiting(rig: &Rig) -> (Lsn, String, String) {
    let mut found = None;
    rig.relay.waiting(&Filter::default(), &mut |waiting| {
        let why = waiting.why.unwrap_or_default().to_string();
        found = Some((waiting.state.key.message, waiting.recipient.to_string(), why));
        true
    });
    found.expect("it waits")
}

#[test]
fn a_message_whose_record_is_damaged_says_so_and_expires() {
    let sink = Sink::start();
    let dir = deferred(&sink, "never@a.example");
    let rig = rig_in(dir, zone(), sink.port(), wait_long);
    let (_, to, why) = waiting(&rig);
    assert!(to.is_empty() && why.contains("cannot be read now") && why.ends_with("is damaged"), "{why}");
    rig.flush();
    wait_log(&rig, " deferred 451");
    let rig = rig_in(rig.end(), zone(), sink.port(), |config| config.schedules = schedules(1, 3));
    wait_log(&rig, " expired 554");
    wait("it is done with", || rig.relay.stats().recipients == 0);
    assert_eq!(sink.rcpts("never@a.example"), 1, "no host has heard of it again");
}

#[test]
fn a_message_that_was_given_up_fails_at_its_next_attempt() {
    let sink = Sink::start();
    let dir = deferred(&sink, "never@a.example");
    let rig = rig_in(dir, zone(), sink.port(), wait_long);
    let (message, ..) = waiting(&rig);
    let dir = rig.end();
    let mut opened = None;
    wait("nobody else has the spool", || match FileSpool::open(dir.path(), spool_config()) {
        Err(posthaste_spool::OpenError::Locked) => false,
        found => opened.replace(found.unwrap()).is_none(),
    });
    let (spool, _) = opened.expect("it is open");
    spool.give_up_bodies(&[message]).unwrap();
    drop(spool);
    let rig = rig_in(dir, zone(), sink.port(), wait_long);
    assert!(waiting(&rig).2.contains("an operator has given it up"), "{:?}", waiting(&rig));
    rig.flush();
    wait_log(&rig, " failed 554");
    rig.wait_empty();
}

#[test]
fn a_damaged_body_fails_its_message_and_the_sender_is_told() {
    let sink = Sink::start();
    let rig = rig_in(deferred(&sink, "the text"), zone(), sink.port(), wait_long);
    rig.flush();
    wait_log(&rig, "never@a.example failed 554");
    sink.wait_taken(1);
    rig.wait_empty();
    let written = rig.back.written.lock().unwrap().clone();
    let told = written.iter().any(|(to, text)| to == "ann@a.example" && text.contains("never@a.example"));
    assert!(told && !written.iter().any(|(_, text)| text.contains("mx.a.example")), "no host said it: {written:?}");
}
