//! Recipients of notices about undeliverable mail.

use std::time::SystemTime;

use posthaste_queue::QueuedRet;
use posthaste_relay::sender::Notices;

use super::*;

fn copies(to: &str, rate: &str) -> Notices {
    Notices { copies_to: Some(to.into()), copies_rate: rate.parse().unwrap(), ..Notices::default() }
}

impl Rig {
    /// Number of double bounces in the log.
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
fn a_postmaster_that_does_not_exist_holds_nothing_up() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.notices = copies("gone@here.example", "9/hour, burst 9"));
    rig.send("", &["no1@a.example"], "x\r\n");
    rig.wait_empty();
    assert_eq!((rig.written().len(), rig.double_bounces()), (0, 1));
    let said = "nobody gets copies of double bounces: there is no gone@here.example";
    assert!(rig.log().iter().any(|line| line.ends_with(said)), "{:?}", rig.log());
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
    // A reload gives no new burst; another address applies at once.
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

/// A message to one recipient with NOTIFY and ORCPT; the message has ENVID.
fn asking(to: &str, notify: u8, ret: Option<QueuedRet>) -> Queued {
    let mut message = outgoing("ann@a.example", &[to], notify);
    (message.ret, message.envid) = (ret, "QQ+2B314".into());
    message.recipients[0].orcpt = "rfc822;Bob+2Bx@old.example".into();
    message
}

#[test]
fn a_delay_is_told_once_and_only_to_those_who_ask() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| {
        config.schedules = schedules(3600, 86_400);
        config.schedules.default.delay_notice_secs = 1;
    });
    let late = ["never1@a.example", "never2@a.example", "never3@a.example"];
    rig.send_asking("ann@a.example", &late, "Subject: late\r\n\r\nsecret\r\n", notify::DELAY);
    rig.send_asking("eve@a.example", &late, "x\r\n", notify::SUCCESS | notify::FAILURE);
    rig.send("joe@a.example", &late, "x\r\n");
    rig.send_asking("", &late, "x\r\n", notify::DELAY);
    wait("it is told", || !rig.written().is_empty());
    // All are checked each second: once a later message is reported, the first ones were checked again.
    rig.send_asking("ann@a.example", &["never4@a.example"], "x\r\n", notify::DELAY);
    wait("the later one is told", || rig.written().len() >= 2);
    let written = rig.written();
    assert_eq!(written.len(), 2, "{written:?}");
    let (to, text) = &written[0];
    assert_eq!((&**to, text.matches("Action: delayed\r\n").count()), ("ann@a.example", 3), "one for all: {text}");
    for line in ["Subject: Your message is delayed\r\n", "Will-Retry-Until: ", "Status: 4.4.7\r\n", "Subject: late\r\n"]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("secret"), "the header is enough: {text}");
    assert!(!rig.log().iter().any(|line| line.ends_with("double-bounced")));
}

#[test]
fn a_failure_obeys_ret_and_names_the_original_recipient() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.returned_bytes_max = 200);
    let body = |subject: &str, bytes: usize| format!("Subject: {subject}\r\n\r\nsecret{}\r\n", "x".repeat(bytes));
    for (subject, ret, bytes) in [
        ("none", None, 0),
        ("full", Some(QueuedRet::Full), 0),
        ("header", Some(QueuedRet::Headers), 0),
        ("long", Some(QueuedRet::Full), 300),
    ] {
        rig.append(asking("no1@a.example", notify::FAILURE, ret), &body(subject, bytes));
    }
    sink.wait_taken(4);
    rig.wait_empty();
    let written = rig.written();
    assert_eq!(written.len(), 4, "{written:?}");
    for (subject, is_whole) in [("none", true), ("full", true), ("header", false), ("long", false)] {
        let line = format!("Subject: {subject}\r\n");
        let text =
            &written.iter().find(|(_, text)| text.contains(&line)).unwrap_or_else(|| panic!("{line}: {written:?}")).1;
        assert_eq!(text.contains("secret"), is_whole, "{text}");
        let returned = if is_whole { "message/rfc822" } else { "text/rfc822-headers" };
        for line in [returned, "Original-Envelope-Id: QQ+314\r\n", "Original-Recipient: rfc822; Bob+x@old.example\r\n"]
        {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}

#[test]
fn a_host_that_tells_of_success_itself_gets_all_that_was_asked() {
    let sink = Sink::offering(&["PIPELINING", "8BITMIME", "DSN"]);
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.append(asking("bob@a.example", notify::SUCCESS | notify::DELAY, Some(QueuedRet::Headers)), "x\r\n");
    rig.append(asking("bob@a.example", notify::NEVER, None), "y\r\n");
    let taken = sink.wait_taken(2);
    rig.wait_empty();
    assert_eq!(rig.written(), [], "the host tells of success");
    let commands = |body: &[u8]| taken.iter().find(|taken| taken.body == body).unwrap().commands.join("\n");
    let asked = commands(b"x\r\n");
    for parameter in [" RET=HDRS", " ENVID=QQ+2B314", " NOTIFY=SUCCESS,DELAY", " ORCPT=rfc822;Bob+2Bx@old.example"] {
        assert!(asked.contains(parameter), "{parameter} in {asked}");
    }
    let never = commands(b"y\r\n");
    assert!(never.contains(" NOTIFY=NEVER") && !never.contains("RET="), "{never}");
}

#[test]
fn a_host_without_dsn_gets_no_parameters_and_notify_decides() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    for (notify, body) in [(notify::NEVER, "1\r\n"), (notify::FAILURE | notify::DELAY, "2\r\n"), (0, "3\r\n")] {
        rig.append(asking("bob@a.example", notify, Some(QueuedRet::Full)), body);
    }
    rig.append(asking("no1@a.example", notify::NEVER, None), "4\r\n");
    rig.append(asking("no1@a.example", notify::SUCCESS | notify::DELAY, None), "5\r\n");
    let taken = sink.wait_taken(3);
    rig.wait_empty();
    assert_eq!((rig.written(), sink.rcpts("no1@a.example")), (vec![], 2));
    let commands: Vec<&String> = taken.iter().flat_map(|taken| &taken.commands).collect();
    let parameters = ["NOTIFY", "ORCPT", "RET", "ENVID"];
    assert!(commands.iter().all(|line| parameters.iter().all(|name| !line.contains(name))), "{commands:?}");
}

#[test]
fn failures_of_different_messages_are_told_apart() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.send("ann@a.example", &["no1@a.example", "no2@a.example"], "x\r\n");
    rig.send("ann@a.example", &["no1@a.example", "no2@a.example"], "x\r\n");
    rig.send("eve@a.example", &["no1@a.example"], "x\r\n");
    sink.wait_taken(3);
    rig.wait_empty();
    let written = rig.written();
    let told: Vec<_> = written.iter().map(|(to, text)| (&**to, text.matches("Action: failed").count())).collect();
    let count = |one: (&str, usize)| told.iter().filter(|other| **other == one).count();
    assert_eq!((told.len(), count(("ann@a.example", 2)), count(("eve@a.example", 1))), (3, 2, 1), "{told:?}");
}

#[test]
fn notices_have_the_right_date_after_a_start_with_a_wrong_clock() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    // The clock was 20 years ahead when the queue began.
    let at = u32::try_from(now() + 20 * 365 * 86_400).unwrap();
    let stream = rig.relay.entry(outgoing("", &["x@a.example"], 0)).stream;
    let payload = QueueEntry::Changes { at, changes: Vec::new() }.encode().into();
    let batch = Batch { entries: vec![Entry { stream, needs_body: false, payload }], body: Body::None };
    let (tell, told) = std::sync::mpsc::channel();
    rig.spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
    told.recv().unwrap().unwrap();
    let rig = rig_in(rig.end(), zone(), sink.port(), |_| ());
    rig.send("ann@here.example", &["no1@a.example"], "x\r\n");
    rig.wait_empty();
    let (_, text) = rig.written().remove(0);
    for field in ["Date: ", "Arrival-Date: ", "Last-Attempt-Date: "] {
        let date =
            text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_else(|| panic!("{field} in {text}"));
        let date = posthaste_message::DateTime::parse(date.as_bytes()).unwrap().unix_secs().cast_unsigned();
        assert!(now() - date < 600, "{field} {date} in {text}");
    }
    let queue = rig.relay.stats().now;
    assert!(
        queue >= at && rig.relay.wall(queue).abs_diff(now().cast_signed()) <= 1,
        "decisions go on by its own clock"
    );
}
