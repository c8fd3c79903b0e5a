//! First attempts and later ones at the same site.

use posthaste_queue::Waits;
use posthaste_relay::sender::Originator;
use posthaste_shaping::MailScope;

use crate::sink::Sink;
use crate::{rig_with, schedules, wait, zone};

/// Has `first` and `later` messages wait for `connections`; checks how many of either kind are served first.
fn check(connections: usize, first: usize, later: usize, expected: [usize; 2]) {
    let what = format!("{connections} connections, {first} first attempts, {later} later ones");
    // Without PIPELINING, so that no connection takes a message after one that hangs.
    let sink = Sink::offering(&["8BITMIME"]);
    let rig = rig_with(zone(), sink.port(), |config| {
        config.site_connections_max = connections;
        config.schedules = schedules(3600, 86_400);
    });
    let later: Vec<String> = (0..later).map(|number| format!("laterhang{number}@a.example")).collect();
    let first: Vec<String> = (0..first).map(|number| format!("hang{number}@a.example")).collect();
    later.iter().for_each(|to| rig.send("ann@here.example", &[to], "x\r\n"));
    wait(&what, || rig.relay.stats().deferred == later.len() as u64);
    let scope = MailScope::Domain("a.example".into());
    rig.relay.suspend(scope.clone(), None, &Originator::default()).unwrap();
    rig.flush();
    first.iter().for_each(|to| rig.send("ann@here.example", &[to], "x\r\n"));
    let all_wait = || {
        let mut due = 0;
        rig.relay.waiting(&Default::default(), &mut |waiting| {
            due += usize::from(matches!(waiting.state.waits, Waits::Suspended(_)));
            true
        });
        due == first.len() + later.len()
    };
    wait(&what, all_wait);
    rig.relay.resume(scope, &Originator::default()).unwrap();
    sink.wait_hanging(connections);
    let asked = |of: &[String], times: usize| of.iter().filter(|to| sink.rcpts(to) == times).count();
    assert_eq!([asked(&first, 1), asked(&later, 2)], expected, "{what}");
    sink.release();
    let taken = sink.wait_taken(first.len() + later.len());
    rig.wait_empty();
    if connections == 1 {
        let is_later = taken.iter().map(|taken| taken.recipients[0].starts_with("later")).collect::<Vec<_>>();
        let both = 2 * first.len().min(later.len());
        assert!(is_later[..both].windows(2).all(|two| two[0] != two[1]), "{what}: not in turn: {is_later:?}");
    }
}

#[test]
fn half_of_the_connections_serve_first_attempts_that_wait() {
    check(4, 8, 8, [2, 2]);
    check(5, 8, 8, [3, 2]);
    check(4, 8, 1, [3, 1]);
    check(4, 1, 8, [1, 3]);
    check(4, 8, 0, [4, 0]);
    check(4, 0, 8, [0, 4]);
    check(1, 6, 6, [1, 0]);
}
