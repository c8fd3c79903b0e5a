//! Classes, the suppression list and signed return paths.

use std::sync::Arc;

use posthaste_notify::suppression::{Suppressed, SuppressionSource, Suppressions};
use posthaste_relay::sender::{Bounces, ReturnPathSection, SignedPaths};

use super::*;

fn suppressing(dir: &std::path::Path) -> Bounces {
    let list = Suppressions::open(&dir.join("list")).unwrap();
    Bounces { suppressions: Some(Arc::new(list)), suppress_bounces: true, ..Bounces::default() }
}

#[test]
fn a_bad_address_is_suppressed_and_then_not_connected_to() {
    let sink = Sink::start();
    let own = tempfile::tempdir().unwrap();
    let rig = rig_with(zone(), sink.port(), |config| config.bounces = suppressing(own.path()));
    rig.send("", &["no1@a.example", "later@a.example"], "x\r\n");
    rig.wait_empty();
    let list = rig.relay.bounces().suppressions.clone().unwrap();
    let found = list.find("", "NO1@a.example", 1).unwrap().expect("a bad address");
    assert_eq!((found.source, &*found.reason), (SuppressionSource::Bounce, "bad-address: 550 5.1.1 no such user"));
    assert!(list.find("", "later@a.example", 1).unwrap().is_none(), "it was refused for a time alone");
    wait("the connection ends", || rig.relay.stats().connections == 0);
    let connections = sink.connections();
    rig.send("ann@here.example", &["no1@a.example"], "x\r\n");
    rig.wait_empty();
    assert_eq!((sink.connections(), sink.rcpts("no1@a.example")), (connections, 1), "no connection for it");
    assert!(rig.log().contains(&"no1@a.example suppressed 550".to_owned()), "{:?}", rig.log());
    assert_eq!(rig.back.written.lock().unwrap().len(), 0, "no notification");
    // Only recipients that are not on the list are sent to.
    rig.send("ann@here.example", &["bob@a.example", "no1@a.example", "eve@a.example"], "both\r\n");
    let taken = sink.wait_taken(2).pop().unwrap();
    assert_eq!(taken.recipients, ["bob@a.example", "eve@a.example"]);
    rig.wait_empty();
    assert_eq!(sink.rcpts("no1@a.example"), 1);
    // Durable with the end of the relay at the latest.
    drop(list);
    rig.end();
    assert_eq!(Suppressions::open(&own.path().join("list")).unwrap().len(), 1);
}

#[test]
fn entries_are_for_their_tenant_alone() {
    let sink = Sink::start();
    let own = tempfile::tempdir().unwrap();
    let rig = rig_with(zone(), sink.port(), |config| config.bounces = suppressing(own.path()));
    let list = rig.relay.bounces().suppressions.clone().unwrap();
    let entry = |tenant: &str| Suppressed {
        address: "bob@a.example".to_owned(),
        tenant: tenant.to_owned(),
        ..Suppressed::default()
    };
    list.add(&[entry("news")], 0).unwrap();
    rig.send("", &["bob@a.example"], "x\r\n");
    sink.wait_taken(1);
    rig.wait_empty();
    list.add(&[entry("")], 0).unwrap();
    rig.send("", &["bob@a.example"], "x\r\n");
    rig.wait_empty();
    assert_eq!(sink.taken().len(), 1);
}

#[test]
fn another_class_by_the_rules_of_a_file_suppresses_nobody() {
    let sink = Sink::start();
    let own = tempfile::tempdir().unwrap();
    let rules = own.path().join("classes.toml");
    std::fs::write(&rules, "[[class]]\nname = 'policy'\npatterns = ['no such user']\n").unwrap();
    let bounces = suppressing(own.path());
    bounces.classes.load(Some(&rules)).unwrap();
    let rig = rig_with(zone(), sink.port(), |config| config.bounces = bounces);
    rig.send("", &["no1@a.example"], "x\r\n");
    rig.wait_empty();
    assert!(rig.relay.bounces().suppressions.as_ref().unwrap().is_empty(), "another class, by the operator's rules");
}

#[test]
fn failures_of_a_message_at_several_hosts_are_one_notice() {
    let sink = Sink::start();
    let zone = zone().mx("b.example", 1, "mx.b.example").a("mx.b.example", LOOPBACK);
    let zone = zone.mx("c.example", 1, "mx.c.example").a("mx.c.example", LOOPBACK);
    let rig = rig_with(zone, sink.port(), |_| ());
    // One is refused for a time first: the others wait for it.
    rig.send("ann@a.example", &["no1@a.example", "no2@b.example", "later@b.example", "no3@c.example"], "x\r\n");
    rig.wait_empty();
    let written = rig.back.written.lock().unwrap().clone();
    assert_eq!(written.len(), 1, "{written:?}");
    for address in ["no1@a.example", "no2@b.example", "no3@c.example"] {
        assert!(written[0].1.contains(&format!("Final-Recipient: rfc822; {address}")), "{written:?}");
        assert_eq!(sink.rcpts(address), 1);
    }
}

#[test]
fn failures_that_wait_for_others_are_told_at_the_end() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.send("ann@a.example", &["no1@a.example", "never@a.example"], "x\r\n");
    wait("it is deferred", || rig.log().iter().any(|line| line.starts_with("never@a.example deferred")));
    let back = rig.back.clone();
    let log = rig.log.clone();
    rig.end();
    assert_eq!(back.written.lock().unwrap().len(), 1);
    assert!(log.lines.lock().unwrap().contains(&"no1@a.example failed 550".to_owned()));
}

#[test]
fn the_list_is_asked_before_each_attempt() {
    let sink = Sink::start();
    let own = tempfile::tempdir().unwrap();
    let rig = rig_with(zone(), sink.port(), |config| {
        config.bounces = suppressing(own.path());
        config.schedules = schedules(3600, 86_400);
    });
    rig.send("ann@here.example", &["never@a.example", "later@a.example"], "x\r\n");
    wait("both are deferred", || rig.log().iter().filter(|line| line.contains(" deferred ")).count() == 2);
    let list = rig.relay.bounces().suppressions.clone().unwrap();
    let entry = Suppressed { address: "never@a.example".to_owned(), ..Suppressed::default() };
    list.add(&[entry], 0).unwrap();
    rig.flush();
    sink.wait_taken(1);
    rig.wait_empty();
    assert_eq!((sink.rcpts("never@a.example"), sink.rcpts("later@a.example")), (1, 2));
    assert!(rig.log().contains(&"never@a.example suppressed 550".to_owned()), "{:?}", rig.log());
    assert_eq!(rig.back.written.lock().unwrap().len(), 0, "no notification");
}

#[test]
fn with_signed_senders_each_recipient_has_a_message_of_its_own() {
    let sink = Sink::start();
    let own = tempfile::tempdir().unwrap();
    let secret_file = own.path().join("secret");
    std::fs::write(&secret_file, "a secret for tests of signed senders\n").unwrap();
    let section = ReturnPathSection { domain: "back.example".to_owned(), secret_file, prefix: "bounce".to_owned() };
    let signed = SignedPaths::open(&section, &own.path().join("originals")).unwrap();
    let rig = rig_with(zone(), sink.port(), |config| config.bounces.return_path = Some(signed));
    rig.send("ann@here.example", &["bob@a.example", "eve@a.example", "joe@a.example"], "x\r\n");
    let taken = sink.wait_taken(3);
    rig.wait_empty();
    assert!(taken.iter().all(|taken| taken.recipients.len() == 1), "{taken:?}");
    let senders: std::collections::HashSet<&String> = taken.iter().map(|taken| &taken.sender).collect();
    assert_eq!((senders.len(), sink.taken().len()), (3, 3));
}

/// Cannot deliver notifications for now.
struct Refusing(std::sync::atomic::AtomicUsize);

impl Notifier for Refusing {
    fn knows(&self, _: &str) -> bool {
        true
    }

    fn deliver(&self, _: OutgoingNotice) -> Delivering {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Box::pin(std::future::ready(Err("not now".to_owned())))
    }
}

#[test]
fn a_failure_is_recorded_although_its_sender_cannot_be_told() {
    let sink = Sink::start();
    let refusing = Arc::new(Refusing(Default::default()));
    let notifier = refusing.clone();
    let rig = rig_with(zone(), sink.port(), |config| config.notifier = notifier);
    rig.send("ann@a.example", &["no1@a.example"], "x\r\n");
    wait("it is to be told", || refusing.0.load(std::sync::atomic::Ordering::Relaxed) > 2);
    assert_eq!((rig.relay.stats().recipients, rig.relay.stats().owed_notices), (0, 1));
    let said =
        rig.log().iter().filter(|line| line.contains("its sender, and perhaps others, cannot be notified yet")).count();
    assert_eq!(said, 1, "once: {:?}", rig.log());
    // Like after a kill: only its sender is told.
    let rig = rig_in(rig.end(), zone(), sink.port(), |_| ());
    assert_eq!(sink.wait_taken(1)[0].recipients, ["ann@a.example"]);
    rig.wait_empty();
    assert_eq!((sink.rcpts("no1@a.example"), rig.back.written.lock().unwrap().len()), (1, 1));
    let text = rig.back.written.lock().unwrap()[0].1.clone();
    for line in
        ["Diagnostic-Code: smtp; 550 5.1.1 no such user\r\n", "Remote-MTA: dns; mx.a.example\r\n", "Status: 5.1.1\r\n"]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
    drop(rig_in(rig.end(), zone(), sink.port(), |_| ()));
    assert_eq!((sink.rcpts("no1@a.example"), sink.taken().len()), (1, 1));
}

/// Cannot deliver notifications to one sender.
struct RefusingOne(Arc<dyn Notifier>);

impl Notifier for RefusingOne {
    fn knows(&self, sender: &str) -> bool {
        self.0.knows(sender)
    }

    fn deliver(&self, notice: OutgoingNotice) -> Delivering {
        match &*notice.to {
            "full@a.example" => Box::pin(std::future::ready(Err("its mailbox is full".to_owned()))),
            _ => self.0.deliver(notice),
        }
    }
}

#[test]
fn notices_that_one_sender_cannot_get_hold_up_no_others() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.notifier = Arc::new(RefusingOne(config.notifier.clone())));
    for _ in 0..50 {
        rig.send("full@a.example", &["no1@a.example"], "x\r\n");
        rig.send("ann@a.example", &["no1@a.example"], "x\r\n");
    }
    sink.wait_taken(50);
    wait("those alone are owed", || (rig.relay.stats().recipients, rig.relay.stats().owed_notices) == (0, 50));
}
