//! Intake must wait while sendable mail leaves memory before it is sent, and for no other reason.

use std::time::Duration;

use crate::shaping::{rules, two_sites};
use crate::sink::Sink;
use crate::{Rig, rig_with, wait, zone};

/// Three times the memory for messages, together.
const MESSAGES: usize = 150;

impl Rig {
    fn send_large(&self, to: &str) {
        self.send("ann@here.example", &[to], &format!("{}\r\n", "x".repeat(78)).repeat(256));
    }

    /// The pause of mail for the queue.
    fn pause(&self) -> Duration {
        assert_eq!(self.spool.pressure().pause(false), Duration::ZERO, "other mail waits for nothing");
        self.spool.pressure().pause(true)
    }
}

#[test]
fn intake_waits_while_sent_mail_is_late_and_no_longer() {
    // The pause lasts for two seconds after the last message. A thread that stands still for longer looks again.
    wait("intake is to wait", || {
        let sink = Sink::start();
        let rig = rig_with(zone(), sink.port(), |_| ());
        (0..MESSAGES).for_each(|_| rig.send_large("slow@a.example"));
        sink.wait_slow(1);
        sink.release();
        let mut waits = false;
        let mut looks = 0;
        wait("it is sent, or intake waits", || {
            waits = !rig.pause().is_zero();
            looks += u32::from(rig.relay.stats().recipients == 0);
            waits || looks > 500
        });
        rig.wait_empty();
        wait("it need not any more", || rig.pause().is_zero());
        waits
    });
}

#[test]
fn a_destination_that_takes_nothing_slows_nobody() {
    let sink = Sink::start();
    let rig = rig_with(two_sites(), sink.port(), |_| ());
    (0..MESSAGES).for_each(|_| rig.send_large("slow@b.example"));
    // On all connections allowed. The first may have been late.
    sink.wait_slow(4);
    wait("that is forgotten", || rig.pause().is_zero());
    for count in 1..=100 {
        rig.send_large("bob@a.example");
        sink.wait_taken(count);
        assert_eq!(rig.pause(), Duration::ZERO, "after {count}");
    }
    sink.release();
    rig.wait_empty();
}

#[test]
fn mail_that_waits_for_a_limit_slows_no_intake() {
    for limit in ["message_rate = '40/s, burst 3'", "connections = 2"] {
        let sink = Sink::start();
        let limits = rules(&format!("[default]\n{limit}\n"));
        let rig = rig_with(zone(), sink.port(), |config| config.shaping = limits);
        (0..MESSAGES).for_each(|_| rig.send_large("slow@a.example"));
        sink.wait_slow(1);
        sink.release();
        wait("they are sent", || {
            assert_eq!(rig.pause(), Duration::ZERO, "{limit}");
            sink.taken().len() == MESSAGES
        });
    }
}
