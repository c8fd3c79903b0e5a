//! Rules for replies of the next hop.

use posthaste_queue::QueueEntry;
use posthaste_relay::sender::Originator;
use posthaste_shaping::ShapingRules;
use posthaste_shaping::{DomainOrSite, Label, MailScope};

use super::*;

/// `a.example` and `x.a.example` have one mail host, `b.example` another name of it.
fn zone() -> Zone {
    let zone = Zone::default().a("mx.a.example", LOOPBACK).a("mx.b.example", LOOPBACK);
    zone.mx("a.example", 10, "mx.a.example").mx("x.a.example", 10, "mx.a.example").mx("b.example", 10, "mx.b.example")
}

fn with_rule(config: &mut Config, rule: &str) {
    let text = format!("[[default.automation]]\nfor = '1 hour'\n{rule}\n");
    config.shaping = Arc::new(ShapingRules::parse("shaping.toml", &text).unwrap());
    config.schedules = schedules(3600, 86_400);
}

fn scopes(rig: &Rig) -> Vec<MailScope> {
    let scope = |entry| match entry {
        QueueEntry::Suspended { scope, .. } | QueueEntry::Slowed { scope, .. } => scope,
        other => panic!("{other:?}"),
    };
    rig.relay.suspensions().into_iter().map(scope).collect()
}

#[test]
fn a_reply_suspends_a_site_for_a_time_also_behind_a_restart() {
    let sink = Sink::start();
    let rule = |config: &mut Config| with_rule(config, "patterns = ['4\\.2\\.0 later$']\naction = 'suspend'");
    let rig = rig_with(zone(), sink.port(), rule);
    rig.send("ann@here.example", &["later@a.example"], "x\r\n");
    wait("it is suspended", || !scopes(&rig).is_empty());
    let site = MailScope::Site(format!("10 mx.a.example :{}", sink.port()).into());
    assert_eq!(scopes(&rig), std::slice::from_ref(&site));
    rig.send("ann@here.example", &["bob@x.a.example"], "x\r\n");
    rig.send("ann@here.example", &["bob@b.example"], "x\r\n");
    sink.wait_taken(1);
    let rig = rig_in(rig.end(), zone(), sink.port(), rule);
    assert_eq!(scopes(&rig), std::slice::from_ref(&site));
    rig.send("ann@here.example", &["eve@b.example"], "x\r\n");
    let taken = sink.wait_taken(2);
    assert!(taken.iter().all(|taken| taken.recipients[0].ends_with("@b.example")), "{taken:?}");
    rig.relay.resume(site, &Originator::default()).unwrap();
    sink.wait_taken(3);
    wait("one is left", || rig.relay.stats().recipients == 1);
}

#[test]
fn so_many_replies_are_waited_for() {
    let sink = Sink::start();
    let rule = "patterns = ['later']\nafter = '3/hour'\naction = 'suspend'\nof = 'domain'";
    let rig = rig_with(zone(), sink.port(), |config| with_rule(config, rule));
    for number in 1..=2 {
        rig.send("ann@here.example", &[&format!("later{number}@a.example")], "x\r\n");
        sink.wait_rcpts(&format!("later{number}@a.example"), 1);
    }
    wait("both are put off", || rig.relay.stats().deferred == 2);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    sink.wait_taken(1);
    assert_eq!(scopes(&rig), []);
    rig.send("ann@here.example", &["later3@a.example"], "x\r\n");
    wait("it is suspended", || scopes(&rig) == [MailScope::Domain("a.example".into())]);
}

#[test]
fn a_reply_slows_a_domain_down_also_behind_a_restart() {
    let sink = Sink::start();
    let rule = "patterns = ['later']\naction = 'slow'\nof = 'domain'\nmessage_rate = '1/day'";
    let rule = |config: &mut Config| with_rule(config, rule);
    let rig = rig_with(zone(), sink.port(), rule);
    rig.send("ann@here.example", &["later@a.example"], "x\r\n");
    wait("it is slowed down", || scopes(&rig) == [MailScope::Domain("a.example".into())]);
    let rig = rig_in(rig.end(), zone(), sink.port(), rule);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    rig.send("ann@here.example", &["bob@x.a.example"], "x\r\n");
    assert_eq!(sink.wait_taken(1)[0].recipients, ["bob@x.a.example"]);
    wait("the others wait", || rig.relay.stats().recipients == 2);
    rig.relay.resume(MailScope::Domain("a.example".into()), &Originator::default()).unwrap();
    assert_eq!(sink.wait_taken(2)[1].recipients, ["bob@a.example"]);
}

#[test]
fn a_reply_has_mail_of_a_domain_given_up_for_a_time() {
    let sink = Sink::start();
    let rule = "patterns = ['no such user']\naction = 'bounce'\nof = 'domain'";
    let rig = rig_with(zone(), sink.port(), |config| with_rule(config, rule));
    rig.send("", &["no@a.example"], "x\r\n");
    wait("it is given up", || rig.relay.diversions().len() == 1);
    rig.send("", &["bob@a.example"], "x\r\n");
    rig.send("", &["bob@x.a.example"], "x\r\n");
    wait("what comes is given up", || rig.relay.stats().failed == 2 && rig.relay.stats().recipients == 0);
    assert_eq!((sink.rcpts("bob@a.example"), sink.rcpts("bob@x.a.example")), (0, 1));
    let given_up = "bob@a.example failed 550".to_owned();
    assert!(rig.log().contains(&given_up), "{:?}", rig.log());
    rig.relay.end_diversion(MailScope::Domain("a.example".into()), &Originator::default()).unwrap();
    rig.send("", &["eve@a.example"], "x\r\n");
    sink.wait_taken(2);
}

#[test]
fn a_reply_suspends_a_tenant_at_one_site_across_restarts() {
    let sink = Sink::start();
    let rule = |config: &mut Config| with_rule(config, "patterns = ['later$']\naction = 'suspend'\nof = 'tenant'");
    let rig = rig_with(zone(), sink.port(), rule);
    let send = |rig: &Rig, tenant: &str, to: &str| rig.send_for(tenant, "ann@here.example", &[to]);
    send(&rig, "loud", "later@a.example");
    let site = format!("10 mx.a.example :{}", sink.port());
    let scope = MailScope::At(Label::Tenant("loud".into()), DomainOrSite::Site(site.into()));
    wait("it is suspended", || scopes(&rig) == std::slice::from_ref(&scope));
    let rig = rig_in(rig.end(), zone(), sink.port(), rule);
    assert_eq!(scopes(&rig), std::slice::from_ref(&scope));
    send(&rig, "loud", "bob@x.a.example");
    send(&rig, "loud", "bob@b.example");
    send(&rig, "calm", "eve@a.example");
    send(&rig, "", "ann@a.example");
    let mut taken: Vec<String> = sink.wait_taken(3).into_iter().map(|taken| taken.recipients[0].clone()).collect();
    taken.sort();
    assert_eq!(taken, ["ann@a.example", "bob@b.example", "eve@a.example"]);
    assert!(rig.relay.resume(scope, &Originator::default()).unwrap());
    assert_eq!(sink.wait_taken(4)[3].recipients, ["bob@x.a.example"]);
}

#[test]
fn a_reply_slows_a_campaign_at_one_site_across_restarts() {
    let sink = Sink::start();
    let rule = "patterns = ['later']\naction = 'slow'\nof = 'campaign'\nmessage_rate = '1/day'";
    let rule = |config: &mut Config| with_rule(config, rule);
    let rig = rig_with(zone(), sink.port(), rule);
    let send = |rig: &Rig, campaign: &str, to: &str| {
        let message = Queued { campaign: Arc::from(campaign), ..outgoing("ann@here.example", &[to], 0) };
        rig.append(message, "x\r\n");
    };
    send(&rig, "spring", "later@a.example");
    let site = format!("10 mx.a.example :{}", sink.port());
    let scope = MailScope::At(Label::Campaign("spring".into()), DomainOrSite::Site(site.into()));
    wait("it is slowed down", || scopes(&rig) == std::slice::from_ref(&scope));
    let rig = rig_in(rig.end(), zone(), sink.port(), rule);
    send(&rig, "spring", "bob@a.example");
    send(&rig, "spring", "bob@b.example");
    send(&rig, "autumn", "eve@a.example");
    let mut taken: Vec<String> = sink.wait_taken(2).into_iter().map(|taken| taken.recipients[0].clone()).collect();
    taken.sort();
    assert_eq!(taken, ["bob@b.example", "eve@a.example"]);
    wait("the others wait", || rig.relay.stats().recipients == 2);
    assert!(rig.relay.resume(scope, &Originator::default()).unwrap());
    assert_eq!(sink.wait_taken(3)[2].recipients, ["bob@a.example"]);
}

#[test]
fn a_reply_has_mail_of_a_tenant_to_a_domain_given_up() {
    let sink = Sink::start();
    let rule = "patterns = ['no such user']\naction = 'bounce'\nof = 'tenant'";
    let rig = rig_with(zone(), sink.port(), |config| with_rule(config, rule));
    rig.send_for("loud", "", &["no@a.example"]);
    wait("it is given up", || rig.relay.diversions().len() == 1);
    rig.send_for("loud", "", &["bob@a.example"]);
    wait("what comes is given up", || rig.relay.stats().failed == 2 && rig.relay.stats().recipients == 0);
    rig.send_for("calm", "", &["bob@a.example"]);
    rig.send_for("loud", "", &["bob@x.a.example"]);
    sink.wait_taken(2);
    assert_eq!(sink.rcpts("bob@a.example"), 1);
}
