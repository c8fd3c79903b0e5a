//! Who is told of what cannot be delivered.

use posthaste_relay::sender::Notices;

use super::*;

fn copies(to: &str, rate: &str) -> Notices {
    Notices { copies_to: Some(to.into()), copies_rate: rate.parse().unwrap(), ..Notices::default() }
}

impl Rig {
    /// How many double bounces the log has.
    fn double_bounces(&self) -> usize {
        self.log().iter().filter(|line| line.ends_with(" double-bounced")).count()
    }

    fn written(&self) -> Vec<(String, String)> {
        self.back.written.lock().unwrap().clone()
    }
}

#[test]
fn what_has_no_sender_is_told_to_the_postmaster_alone() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.notices = copies("boss@a.example", "9/hour, burst 9"));
    rig.send("", &["no1@a.example", "bob@a.example", "no2@a.example"], "Subject: lost\r\n\r\nx\r\n");
    let copy = sink.wait_taken(2).pop().unwrap();
    rig.wait_empty();
    assert_eq!((&*copy.sender, copy.recipients), ("", vec!["boss@a.example".to_owned()]));
    let text = String::from_utf8(copy.body).unwrap();
    for line in ["To: <boss@a.example>\r\n", "Final-Recipient: rfc822; no2@a.example", "Subject: lost\r\n"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!((rig.written().len(), rig.double_bounces()), (1, 2), "one copy for both");
}

#[test]
fn a_double_bounce_is_in_the_log_also_where_nobody_gets_copies() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.schedules = schedules(1, 3));
    rig.send("", &["no1@a.example", "never@a.example"], "x\r\n");
    rig.wait_empty();
    assert_eq!((rig.written().len(), rig.double_bounces()), (0, 2), "refused, and too old");
}

#[test]
fn a_copy_that_fails_makes_no_further_copy() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.notices = copies("no9@a.example", "9/hour, burst 9"));
    rig.send("", &["no1@a.example"], "x\r\n");
    sink.wait_rcpts("no9@a.example", 1);
    rig.wait_empty();
    assert_eq!((rig.written().len(), rig.double_bounces()), (1, 2));
}

#[test]
fn a_failed_notification_is_a_double_bounce() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.notices = copies("boss@a.example", "9/hour, burst 9"));
    // The notification goes to an address that its host refuses.
    rig.send("no2@a.example", &["no1@a.example"], "x\r\n");
    let copy = sink.wait_taken(1).remove(0);
    rig.wait_empty();
    let text = String::from_utf8(copy.body).unwrap();
    assert!(text.contains("To: <no2@a.example>\r\n") && text.contains("To: <boss@a.example>\r\n"), "{text}");
    let to: Vec<String> = rig.written().into_iter().map(|(to, _)| to).collect();
    assert_eq!(to, ["no2@a.example", "boss@a.example"]);
    assert_eq!(rig.double_bounces(), 1, "of the notification alone");
}

#[test]
fn copies_are_limited_and_what_is_above_is_in_the_log() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.notices = copies("boss@a.example", "2/day, burst 2"));
    for _ in 0..5 {
        rig.send("", &["no1@a.example"], "x\r\n");
    }
    rig.wait_empty();
    assert_eq!((rig.written().len(), rig.double_bounces()), (2, 5));
    // A reload gives no new burst, and another address counts at once.
    rig.relay.set_notices(copies("chief@a.example", "3/day, burst 3"));
    for _ in 0..3 {
        rig.send("", &["no1@a.example"], "x\r\n");
    }
    rig.wait_empty();
    assert_eq!((rig.written().len(), rig.double_bounces()), (3, 8));
    assert_eq!(rig.written()[2].0, "chief@a.example");
}

#[test]
fn a_sender_that_does_not_exist_is_a_double_bounce_as_well() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.notices = copies("boss@a.example", "9/hour, burst 9"));
    rig.send("gone@here.example", &["no1@a.example"], "x\r\n");
    rig.wait_empty();
    let written = rig.written();
    assert_eq!((written.len(), &*written[0].0, rig.double_bounces()), (1, "boss@a.example", 1));
}
