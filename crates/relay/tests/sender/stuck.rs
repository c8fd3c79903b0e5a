//! Stuck workers are found, with their states.

use std::sync::{Condvar, Mutex};

use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_watch::{Became, StuckWorker};

use super::*;

/// Findings of a check so many seconds later.
fn look(relay: &Relay, begun: Instant, secs: u64) -> Vec<StuckWorker> {
    relay.look_for_stuck(begun + Duration::from_secs(secs))
}

/// Waits until a check finds a worker in these states with this result.
fn wait_found(relay: &Relay, begun: Instant, secs: u64, states: &str, became: &[Became]) {
    wait(states, || {
        let found = look(relay, begun, secs);
        found.iter().any(|found| found.states == states && became.contains(&found.what))
    });
}

#[test]
fn a_stuck_session_is_named_once_and_when_it_goes_on() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.send("ann@here.example", &["slow@a.example"], "x\r\n");
    sink.wait_slow(1);
    let port = sink.port();
    let states = format!(
        "site 10 mx.a.example :{port} from default > session to mx.a.example at 127.0.0.1:{port} > waiting for the verdict on the message"
    );
    // The host has all of it; the session may need a moment to begin its wait.
    let begun = Instant::now();
    let mut secs = 0;
    wait("it is stuck", || {
        secs += 301;
        look(&rig.relay, begun, secs).iter().any(|found| found.states == states && found.what == Became::Stuck)
    });
    for later in 1..10 {
        let found = look(&rig.relay, begun, secs + 1000 * later);
        assert!(!found.iter().any(|found| found.states == states), "once: {found:?}");
    }
    sink.release();
    rig.wait_empty();
    wait_found(&rig.relay, begun, secs + 10_000, &states, &[Became::WentOn, Became::Ended]);
    let found = look(&rig.relay, begun, secs + 10_001);
    assert!(!found.iter().any(|found| found.states == states), "{found:?}");
}

#[test]
fn a_search_for_hosts_that_does_not_end_is_named() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.dns.hold();
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    let begun = Instant::now();
    let mut secs = 0;
    let states = "routing of mail to a.example > finding its hosts";
    wait("it is stuck", || {
        secs += 301;
        look(&rig.relay, begun, secs).iter().any(|found| found.states == states && found.what == Became::Stuck)
    });
    rig.dns.release();
    sink.wait_taken(1);
    rig.wait_empty();
    wait_found(&rig.relay, begun, secs + 10_000, states, &[Became::Ended]);
}

/// A disk whose calls hang until it is released.
#[derive(Default)]
struct Hanging {
    /// True once released, and the number of waiting calls.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
    /// Bodies hang; otherwise snapshots do.
    is_of_bodies: bool,
}

impl Hanging {
    fn hang(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.0).unwrap());
    }

    fn wait_hanging(&self) {
        let (state, time) = self
            .changed
            .wait_timeout_while(self.state.lock().unwrap(), Duration::from_secs(60), |state| state.1 == 0)
            .unwrap();
        assert!(!time.timed_out(), "nothing hangs: {state:?}");
    }

    fn release(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }
}

struct Hung(Arc<Hanging>);

impl Hooks for Hung {
    fn read(&self, _: u64) {
        if self.0.is_of_bodies {
            self.0.hang();
        }
    }

    fn advance(&self) {
        if !self.0.is_of_bodies {
            self.0.hang();
        }
    }
}

#[test]
fn a_hanging_disk_is_seen_in_a_body_read_and_a_snapshot() {
    let sink = Sink::start();
    let port = sink.port();
    for (is_of_bodies, states, patience) in [
        (
            true,
            format!(
                "site 10 mx.a.example :{port} from default > session to mx.a.example at 127.0.0.1:{port} > reading a message from the spool"
            ),
            300,
        ),
        (false, "snapshots of the queue > writing one".to_owned(), 120),
    ] {
        let hanging = Arc::new(Hanging { is_of_bodies, ..Hanging::default() });
        let hooks = Hung(hanging.clone());
        let rig = rig_over(
            tempfile::tempdir().unwrap(),
            zone(),
            port,
            |spool| Arc::new(HookedSpool::new(spool, hooks)),
            |config| config.memory_bytes = 0,
        );
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
        hanging.wait_hanging();
        if !is_of_bodies {
            // It holds up nothing: not even unrouted mail.
            rig.send_for("another", "ann@here.example", &["eve@a.example"]);
            sink.wait_rcpts("eve@a.example", 1);
        }
        let begun = Instant::now();
        let mut secs = 0;
        wait(&states, || {
            secs += patience + 1;
            look(&rig.relay, begun, secs).iter().any(|found| found.states == states && found.what == Became::Stuck)
        });
        hanging.release();
        wait_found(&rig.relay, begun, secs + 1000, &states, &[Became::WentOn, Became::Ended]);
        rig.wait_empty();
    }
}
