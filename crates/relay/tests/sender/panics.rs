//! No reply ends a task, however long; and a task that panics loses no recipient.

use std::sync::atomic::Ordering;

use super::failing::{Act, At, Ending};
use super::shaping::rules;
use super::*;

const RULE: &str = "[default]\nfailures_before_pause = 2\n[[default.automation]]\npatterns = ['4\\.2\\.0 ']\naction = 'suspend'\nof = 'domain'\nfor = '1 hour'\n";

/// A reply with `count` lines of `octets` octets of text.
fn lines(count: usize, octets: usize) -> &'static str {
    let line = |separator| format!("450{separator}4.2.0 {}\r\n", "x".repeat(octets));
    (line('-').repeat(count - 1) + &line(' ')).leak()
}

fn rig(ending: &Ending) -> Rig {
    rig_with(zone(), ending.address.port(), |config| {
        (config.schedules, config.shaping) = (schedules(3600, 86_400), rules(RULE));
        config.site_pause_secs = 3600;
    })
}

#[test]
fn replies_of_any_size_are_kept_in_part_and_match_rules() {
    let replies: [Act; 4] = [
        |_| (At::Rcpt, lines(120, 4000)),
        // With the line feeds between them.
        |_| (At::Rcpt, lines(17, 3854)),
        |_| (At::Mail, lines(128, 4000)),
        |_| (At::Data, lines(100, 4080)),
    ];
    for act in replies {
        let what = format!("{:?} {}", act(0).0, act(0).1.len());
        let ending = Ending::start(act);
        let rig = rig(&ending);
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
        wait(&what, || rig.relay.suspensions().len() == 1);
        let suspended = rig.relay.suspensions();
        let [QueueEntry::Suspended { reason, .. }] = &suspended[..] else { panic!("{what}: {suspended:?}") };
        assert!(reason.len() <= 1000 && reason.contains("450-4.2.0 xxx"), "{what}: {}", reason.len());
        wait(&what, || {
            let mut kept = Vec::new();
            rig.relay.waiting(&Filter::default(), &mut |waiting| {
                kept.push((waiting.state.attempts, waiting.why.is_some_and(|why| why.len() <= 1000)));
                true
            });
            kept == [(1, true)]
        });
    }
}

#[test]
fn replies_without_an_end_end_the_session_alone() {
    let replies: [(Act, &str); 3] = [
        (|_| (At::Rcpt, lines(10_000, 1)), "too many lines"),
        (|_| (At::Greeting, lines(10_000, 40)), "too many lines"),
        (|_| (At::Rcpt, lines(1, 480_000)), "too long"),
    ];
    for (act, reason) in replies {
        let ending = Ending::start(act);
        let rig = rig(&ending);
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
        wait(reason, || rig.unreachable().is_some());
        assert!(rig.unreachable().unwrap().contains(reason), "{:?}", rig.unreachable());
        wait(reason, || rig.attempts() == [0]);
    }
}

#[test]
fn a_task_that_panics_gives_its_recipients_back() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| {
        (config.schedules, config.shaping) = (schedules(3600, 86_400), rules(RULE));
    });
    rig.log.panics.store(1, Ordering::Relaxed);
    // One that is delivered, one whose reply meets the rule that panics, and one after it.
    rig.send("ann@here.example", &["bob@a.example", "later@a.example", "no@a.example"], "x\r\n");
    sink.wait_rcpts("later@a.example", 2);
    sink.wait_rcpts("no@a.example", 2);
    rig.wait_empty();
    assert_eq!(rig.log.panics.load(Ordering::Relaxed), 0, "it has panicked");
    let taken: Vec<Vec<String>> = sink.taken().into_iter().map(|taken| taken.recipients).collect();
    assert!(taken.contains(&vec!["bob@a.example".to_owned()]), "{taken:?}");
    assert_eq!((sink.rcpts("bob@a.example"), sink.rcpts("later@a.example"), sink.rcpts("no@a.example")), (1, 2, 2));
    assert_eq!(rig.relay.stats().deferred, 0, "no attempt is counted");
}

#[test]
fn a_second_panic_with_a_message_costs_an_attempt() {
    let ending = Ending::start(|_| (At::Rcpt, "450 4.2.0 later\r\n"));
    let rig = rig(&ending);
    rig.log.panics.store(3, Ordering::Relaxed);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    let attempts = || {
        let mut attempts = 0;
        rig.relay.waiting(&Filter::default(), &mut |waiting| {
            attempts = waiting.state.attempts;
            true
        });
        attempts
    };
    wait("it is deferred", || attempts() == 1);
    assert_eq!((ending.connections(), rig.log.panics.load(Ordering::Relaxed)), (2, 1));
}
