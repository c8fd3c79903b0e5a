//! Mail that no attempt delivers: too old, or with a body that is lost.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use posthaste_intake::Destination as _;
use posthaste_spool::{ClosedFileSpool, Entry, Spool};
use posthaste_units::BackOff;

use crate::inspect::undelivered;
use crate::tests::{World, append, quick, read};
use crate::{Config, Deliver, Failure, STREAM, Target, TransportEntry, TransportEvent};

/// A message that was received in 1970.
fn send_old(world: &World, transport: &str) -> u64 {
    let recipient: std::sync::Arc<str> = "a@example.org".into();
    let target =
        Target { transport: transport.into(), recipient: recipient.clone(), original: recipient, detail: "".into() };
    let (secs, sender, targets) = (1, "s@example.net".into(), vec![(0, target)]);
    let deliver = Deliver { secs, sender, is_8bit: false, smtputf8: false, body: None, targets };
    let payload = TransportEntry::Deliver(deliver).encode();
    append(&*world.spool, Entry { stream: world.spool.stream(STREAM).unwrap(), needs_body: true, payload }, b"text\r\n")
}

#[test]
fn lasting_failures_are_held_told_once_and_tried_on_demand() {
    let world = World::new(quick());
    let program = world.script("test -e DIR/go || exit 75; cat > DIR/out");
    let id = send_old(&world, &program);
    let TransportEvent::Failed { id: of, failure: Failure::Overdue, is_new: true, pause, .. } = world.event() else {
        panic!("not held")
    };
    assert!(of == id && pause > Duration::from_secs(80_000), "{of}: {pause:?}");
    let listed = || undelivered(&ClosedFileSpool::glance(&world.path("spool")).unwrap()).unwrap();
    let is_overdue = |to: &crate::inspect::UnreachedTarget| {
        to.trouble.as_ref().is_some_and(|trouble| trouble.failure == Failure::Overdue)
    };
    world.until("it is listed", || listed().iter().any(|message| message.id == id && is_overdue(&message.targets[0])));
    world.transports.retry();
    assert!(matches!(world.event(), TransportEvent::Failed { failure: Failure::Overdue, is_new: false, .. }));
    std::fs::write(world.path("go"), "").unwrap();
    world.transports.retry();
    world.until_delivered(1);
}

#[test]
fn held_mail_is_dropped_for_good_and_other_mail_is_not() {
    let world = World::new(quick());
    let program = world.script("exit 75");
    let held = send_old(&world, &program);
    assert!(matches!(world.event(), TransportEvent::Failed { failure: Failure::Overdue, .. }));
    let other = world.send(&[(&program, "a@example.org")], b"text\r\n");
    assert!(matches!(world.event(), TransportEvent::Failed { failure: Failure::Temporary, .. }));
    let drop_held = |id: u64| world.transports.drop_held(&|target| target.id == id, &"deleted".into()).unwrap();
    assert_eq!((drop_held(other), drop_held(held), drop_held(held)), (0, 1, 0));
    assert_eq!(world.transports.stats().messages, 1);
    let listed = undelivered(&ClosedFileSpool::glance(&world.path("spool")).unwrap()).unwrap();
    assert_eq!(listed.iter().map(|message| message.id).collect::<Vec<_>>(), [other]);
}

#[test]
fn old_mail_for_a_missing_transport_is_told_once_and_retried() {
    let world = World::new(quick());
    let file = world.path("dir/file");
    send_old(&world, file.to_str().unwrap());
    for (attempt, expected) in [(1, true), (2, false), (3, false)] {
        let TransportEvent::Unavailable { attempts, is_overdue, .. } = world.event() else { panic!("another event") };
        assert_eq!((attempts, is_overdue), (attempt, expected));
    }
    std::fs::create_dir(world.path("dir")).unwrap();
    world.until_delivered(1);
}

/// Changes an octet of a text in the spool's log.
fn damage(spool: &Path, text: &str) {
    for path in std::fs::read_dir(spool.join("ring")).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = std::fs::read(&path).unwrap();
        let Some(at) = bytes.windows(text.len()).position(|window| window == text.as_bytes()) else { continue };
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
        return;
    }
    panic!("{text} is not in the spool");
}

#[test]
fn a_message_with_a_lost_body_is_reported_and_given_up() {
    for transport in ["|/bin/sh -c \"test -e DIR/go || exit 75; cat\"", "DIR/go/file"] {
        let long = Duration::from_secs(1000);
        let world = World::new(Config { retry: BackOff::new(long, long), ..Config::default() });
        let transport = transport.replace("DIR", world.path("").to_str().unwrap().trim_end_matches('/'));
        let id = world.send(&[(&transport, "a@example.org")], b"BAD text\r\n");
        assert!(matches!(world.event(), TransportEvent::Failed { .. } | TransportEvent::Unavailable { .. }));
        damage(&world.path("spool"), "BAD text");
        std::fs::create_dir(world.path("go")).unwrap();
        world.transports.retry();
        let TransportEvent::Lost(lost) = world.event() else { panic!("not given up") };
        assert_eq!((lost.target.message.get(), &*lost.target.recipient, lost.bytes), (id, "a@example.org", 10));
        assert_eq!(read(lost.kept.expect("a copy")), "CAD text\r\n");
        world.until("nothing waits", || world.transports.stats().messages == 0);
        assert_eq!(world.transports.stats().delivered, 0);
        let world = world.again(quick());
        assert_eq!(world.transports.stats().messages, 0, "it is given up for good");
    }
}
