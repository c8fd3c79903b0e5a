//! Classes, the suppression list and signed return paths.

use std::sync::Arc;

use posthaste_relay::sender::Bounces;
use posthaste_relay::suppression::{Source, Suppressed, Suppressions};

use super::*;

fn suppressing(dir: &std::path::Path) -> Bounces {
    let list = Suppressions::open(&dir.join("list"), 0).unwrap();
    Bounces { suppressions: Some(Arc::new(list)), suppress_bounces: true, ..Bounces::default() }
}

#[test]
fn a_bad_address_is_suppressed_and_then_not_connected_to() {
    let (sink, own) = (Sink::start(), tempfile::tempdir().unwrap());
    let rig = rig_with(zone(), sink.port(), |config| config.bounces = suppressing(own.path()));
    rig.send("", &["no1@a.example", "later@a.example"], "x\r\n");
    rig.wait_empty();
    let list = rig.relay.bounces().suppressions.clone().unwrap();
    let found = list.find("", "NO1@a.example", 1).unwrap().expect("a bad address");
    assert_eq!((found.source, &*found.reason), (Source::Bounce, "bad-address: 550 5.1.1 no such user"));
    assert!(list.find("", "later@a.example", 1).unwrap().is_none(), "it was refused for a time alone");
    wait("the connection ends", || rig.relay.stats().connections == 0);
    let connections = sink.connections();
    rig.send("ann@here.example", &["no1@a.example"], "x\r\n");
    rig.wait_empty();
    assert_eq!((sink.connections(), sink.rcpts("no1@a.example")), (connections, 1), "no connection for it");
    assert!(rig.log().contains(&"no1@a.example suppressed 550".to_owned()), "{:?}", rig.log());
    assert_eq!(rig.back.written.lock().unwrap().len(), 0, "no notification");
    // Beside others only these are sent to.
    rig.send("ann@here.example", &["bob@a.example", "no1@a.example", "eve@a.example"], "both\r\n");
    let taken = sink.wait_taken(2).pop().unwrap();
    assert_eq!(taken.recipients, ["bob@a.example", "eve@a.example"]);
    rig.wait_empty();
    assert_eq!(sink.rcpts("no1@a.example"), 1);
    // Durable with the end of the relay at the latest.
    drop(list);
    rig.end();
    assert_eq!(Suppressions::open(&own.path().join("list"), 0).unwrap().len(), 1);
}

#[test]
fn entries_are_for_their_tenant_alone() {
    let (sink, own) = (Sink::start(), tempfile::tempdir().unwrap());
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
    let (sink, own) = (Sink::start(), tempfile::tempdir().unwrap());
    let rules = own.path().join("classes.toml");
    std::fs::write(&rules, "[[class]]\nname = 'policy'\npatterns = ['no such user']\n").unwrap();
    let bounces = suppressing(own.path());
    bounces.classes.load(Some(&rules)).unwrap();
    let rig = rig_with(zone(), sink.port(), |config| config.bounces = bounces);
    rig.send("", &["no1@a.example"], "x\r\n");
    rig.wait_empty();
    assert!(rig.relay.bounces().suppressions.as_ref().unwrap().is_empty(), "another class, by the operator's rules");
}
