//! A server that stands still for a second: an open loop sees it, a closed one hides it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::support::{TestServer, Treat, go};

const STALL: Duration = Duration::from_secs(1);

/// From message `number` on every message waits until one second has passed since then.
fn stalls_at(number: usize) -> TestServer {
    let stalled = Mutex::new(None::<Instant>);
    TestServer::start(move |received| {
        let mut stalled = stalled.lock().unwrap();
        if received == number {
            *stalled = Some(Instant::now());
        }
        match *stalled {
            Some(since) => Treat::Wait(STALL.saturating_sub(since.elapsed())),
            None => Treat::Keep,
        }
    })
}

#[test]
fn a_stall_shows_in_an_open_loop_and_hides_in_a_closed_one() {
    let server = stalls_at(500);
    let mut plan = server.plan(1500);
    plan.connections = 8;
    plan.pace.rate = Some(500.0);
    let open = go(plan).total;
    assert_eq!((open.acked, open.missed), (1500, 0));

    let server = stalls_at(500);
    let mut plan = server.plan(3000);
    plan.connections = 8;
    let closed = go(plan).total;
    assert_eq!(closed.acked, 3000);

    // Five hundred messages were due while the server stood still, the first of them a second before it went on.
    assert!(open.latency.p99_us >= 900_000, "{:?}", open.latency);
    assert!(open.latency.p90_us >= 400_000, "{:?}", open.latency);
    // Eight of three thousand were under way: the longest tells, the percentile does not.
    assert!(closed.latency.max_us >= 900_000, "{:?}", closed.latency);
    // Less than the stall; where a machine is so busy that all are late, half of what the open loop tells.
    let hidden_us = (open.latency.p99_us / 2).max(900_000);
    assert!(closed.latency.p99_us < hidden_us, "{:?}", closed.latency);
}
