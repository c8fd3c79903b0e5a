//! Replies that end a session: rules, the observer and people see them, at every stage.

use posthaste_shaping::{DomainOrSite, Label, MailScope};

use super::failing::{Act, At, Ending};
use super::shaping::rules;
use super::*;

fn check(act: Act, stage: &str) {
    let said = act(0).1.trim_end();
    let ending = Ending::start(act);
    let rule = "[[default.automation]]\npatterns = ['^421 4\\.7\\.0', '^554 5\\.7\\.1']\nafter = '2/hour'\naction = 'suspend'\nof = 'tenant'\nfor = '1 hour'\n";
    let rig = rig_with(zone(), ending.address.port(), |config| {
        (config.schedules, config.shaping) = (schedules(3600, 86_400), rules(rule));
        config.site_connections_max = 1;
    });
    let to = ["bob@a.example", "eve@a.example", "joe@a.example"];
    rig.send_for("loud", "ann@here.example", &to);
    wait(stage, || !rig.relay.suspensions().is_empty());
    // Once for each session, not for each recipient.
    let QueueEntry::Suspended { scope, reason, .. } = rig.relay.suspensions().remove(0) else { panic!("{stage}") };
    let site = format!("10 mx.a.example :{}", ending.address.port());
    assert_eq!(scope, MailScope::At(Label::Tenant("loud".into()), DomainOrSite::Site(site.into())), "{stage}");
    assert!(reason.contains(said), "{stage}: {reason}");
    let told = || rig.log.interrupted.lock().unwrap().clone();
    let expected = format!("bob@a.example mx.a.example {stage}: {said}");
    wait(stage, || told().iter().filter(|line| **line == expected).count() >= 2);
    let mut whys = Vec::new();
    rig.relay.waiting(&Filter::default(), &mut |waiting| {
        whys.push((waiting.state.attempts, waiting.why.map(|why| why.to_string()).unwrap_or_default()));
        true
    });
    assert!(
        whys.len() == 3 && whys.iter().all(|(attempts, why)| *attempts == 0 && why.contains("slow down")),
        "{whys:?}"
    );
}

#[test]
fn a_greeting_that_refuses_is_seen_with_its_host() {
    check(|_| (At::Greeting, "554 5.7.1 blocked, slow down\r\n"), "greeting");
}

#[test]
fn a_421_at_any_stage_is_seen_with_its_stage_and_host() {
    const SAID: &str = "421 4.7.0 slow down\r\n";
    check(|_| (At::Greeting, SAID), "greeting");
    check(|_| (At::Ehlo, SAID), "EHLO");
    check(|_| (At::Hello, SAID), "idle");
    check(|_| (At::Mail, SAID), "MAIL");
    check(|_| (At::Rcpt, SAID), "RCPT");
    check(|_| (At::Data, SAID), "DATA");
}

#[test]
fn a_421_to_starttls_is_seen_though_the_next_session_works() {
    let ending = Ending::start(|_| (At::StartTls, "421 4.7.0 slow down\r\n"));
    let rig = rig_with(zone(), ending.address.port(), |config| config.tls = Some(opportunistic_tls().unwrap()));
    rig.send("", &["bob@a.example"], "x\r\n");
    rig.wait_empty();
    wait("it is told", || !rig.log.interrupted.lock().unwrap().is_empty());
    let told = rig.log.interrupted.lock().unwrap().clone();
    assert!(told.len() == 1 && told[0].ends_with("mx.a.example STARTTLS: 421 4.7.0 slow down"), "{told:?}");
    assert_eq!((ending.connections(), rig.relay.stats().delivered), (2, 1));
}

const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn two_hosts(first: Act, second: Act) -> (Rig, [Ending; 2]) {
    let zone = Zone::default().mx("a.example", 10, "mx1.example").mx("a.example", 20, "mx2.example");
    two_addresses(zone.a("mx1.example", LOOPBACK).a("mx2.example", OTHER), first, second)
}

/// The first is at [`LOOPBACK`], the second at [`OTHER`].
fn two_addresses(zone: Zone, first: Act, second: Act) -> (Rig, [Ending; 2]) {
    let first = Ending::start(first);
    let second = Ending::at((OTHER, first.address.port()).into(), second);
    let rig = rig_with(zone, first.address.port(), |config| {
        (config.schedules, config.site_pause_secs) = (schedules(3600, 86_400), 3600);
        config.shaping = rules("[default]\nfailures_before_pause = 1\n");
    });
    rig.append(outgoing("ann@here.example", &["bob@a.example"], notify::NEVER), "x\r\n");
    (rig, [first, second])
}

#[test]
fn the_last_words_of_each_host_are_kept() {
    let (rig, _) =
        two_hosts(|_| (At::Greeting, "421 4.7.0 too many\r\n"), |_| (At::Mail, "421 4.3.2 shutting down\r\n"));
    wait("it pauses", || rig.unreachable().is_some());
    let said = rig.unreachable().unwrap();
    for part in ["mx1.example", "too many", "mx2.example", "shutting down (MAIL)"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn the_last_words_of_each_address_of_a_host_are_kept() {
    let zone = zone().a("mx.a.example", OTHER);
    let (rig, _) =
        two_addresses(zone, |_| (At::Greeting, "421 4.7.0 too many\r\n"), |_| (At::Rcpt, "421 4.3.2 bye\r\n"));
    wait("it pauses", || rig.unreachable().is_some());
    let said = rig.unreachable().unwrap();
    for part in ["mx.a.example (127.0.0.1): ", "too many", "mx.a.example (127.0.0.2): ", "bye (RCPT)"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn mail_is_given_up_where_all_hosts_say_521_in_the_greeting() {
    const NO_MAIL: &str = "521 5.3.2 this host takes no mail\r\n";
    let (rig, hosts) = two_hosts(|_| (At::Greeting, NO_MAIL), |_| (At::Greeting, NO_MAIL));
    rig.wait_empty();
    assert_eq!(rig.log(), ["bob@a.example failed 521"]);
    assert_eq!(hosts.map(|host| host.connections()), [1, 1]);
    // A host that may take it later is waited for.
    let (rig, _) = two_hosts(|_| (At::Greeting, NO_MAIL), |_| (At::Greeting, "421 4.3.2 later\r\n"));
    wait("it pauses", || rig.unreachable().is_some());
    assert_eq!(rig.attempts(), [0]);
}

/// Messages that each need their own connection to the second host, as the first is dead.
fn beside_a_dead_host(second: Act, holds: impl Fn(&Rig) -> bool) {
    let (rig, [first, second]) = two_hosts(|_| (At::Accept, ""), second);
    (1..100).for_each(|_| rig.send("", &["bob@a.example"], "x\r\n"));
    wait("all have their outcome", || holds(&rig));
    // A failing site gets two in any second.
    let connected = second.connected.lock().unwrap().clone();
    assert!(connected.windows(3).any(|three| three[2] - three[0] < Duration::from_millis(500)), "{connected:?}");
    assert_eq!(first.connections(), 1);
    assert!(second.connections() >= 100 && rig.unreachable().is_none(), "{:?}", rig.log());
}

#[test]
fn a_dead_first_host_does_not_slow_down_the_second() {
    beside_a_dead_host(|_| (At::Dot, "250 2.0.0 taken\r\n"), |rig| rig.relay.stats().delivered == 100);
    // The second defers all, which does not count as success of the site.
    beside_a_dead_host(|_| (At::Rcpt, "450 4.7.1 greylisted\r\n"), |rig| rig.relay.stats().deferred == 100);
}

#[test]
fn words_of_a_421_survive_a_restart_that_says_nothing_new() {
    for at in [At::Greeting, At::Mail] {
        let act: Act = match at {
            At::Greeting => {
                |number| if number == 0 { (At::Greeting, "421 4.7.0 slow down\r\n") } else { (At::Accept, "") }
            }
            _ => |number| if number == 0 { (At::Mail, "421 4.7.0 slow down\r\n") } else { (At::Accept, "") },
        };
        let ending = Ending::start(act);
        let change = |config: &mut Config| {
            (config.schedules, config.site_pause_secs) = (schedules(3600, 86_400), 3600);
            config.shaping = rules("[default]\nfailures_before_pause = 1\n");
        };
        let rig = rig_with(zone(), ending.address.port(), change);
        rig.append(outgoing("ann@here.example", &["bob@a.example"], notify::NEVER), "x\r\n");
        let why = |rig: &Rig| {
            let mut why = String::new();
            rig.relay.waiting(&Filter::default(), &mut |waiting| {
                why = waiting.why.map(|why| why.to_string()).unwrap_or_default();
                true
            });
            why
        };
        wait("it is said", || why(&rig).contains("slow down") && rig.unreachable().is_some());
        let rig = rig_in(rig.end(), zone(), ending.address.port(), change);
        assert!(why(&rig).contains("slow down"), "{at:?}: {}", why(&rig));
    }
}

#[test]
fn a_421_that_nobody_waits_behind_is_seen_by_rules_and_log() {
    // The message is taken, and the session ends.
    let ending = Ending::start(|_| (At::Dot, "250 2.0.0 taken\r\n421 4.7.0 slow down\r\n"));
    let rule = "[[default.automation]]\npatterns = ['^421 4\\.7\\.0']\naction = 'suspend'\nfor = '1 hour'\n\
                [[default.automation]]\npatterns = ['^421']\naction = 'suspend'\nof = 'tenant'\nfor = '1 hour'\n";
    let rig = rig_with(zone(), ending.address.port(), |config| {
        (config.shaping, config.timeouts.idle) = (rules(rule), Duration::from_secs(30));
    });
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    wait("the site is suspended", || !rig.relay.suspensions().is_empty());
    rig.wait_empty();
    let suspended = rig.relay.suspensions();
    let [QueueEntry::Suspended { scope: MailScope::Site(_), reason, .. }] = &suspended[..] else {
        panic!("{suspended:?}")
    };
    assert!(reason.contains("slow down"), "{reason}");
    wait("it is told", || !rig.log.interrupted.lock().unwrap().is_empty());
    assert_eq!(*rig.log.interrupted.lock().unwrap(), [" mx.a.example idle: 421 4.7.0 slow down"]);
}
