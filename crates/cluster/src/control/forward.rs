//! Brings entries of a queue shard to the control shard: addresses to suppress, for one.
//!
//! Entries wait in a stream of the queue shard, so they survive its owner. Each is sent until the control shard's owner has stored it; then the stream advances.
//! What is sent twice is stored twice, and changes nothing the second time.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use posthaste_spool::Lsn;

/// The owner's part of a queue shard. Times are those of one clock, which never goes back.
#[derive(Debug)]
pub struct ControlForwarder {
    waiting: VecDeque<Forwarded>,
    /// Bytes of payloads that wait here. Beyond [`FORWARD_BYTES_MAX`] entries are read again later.
    bytes: usize,
    /// Entries from here on were not taken for want of room.
    more_from: Option<Lsn>,
    has_asked: bool,
    advanced: Lsn,
    effects: VecDeque<ForwardEffect>,
}

#[derive(Debug)]
struct Forwarded {
    lsn: Lsn,
    payload: Bytes,
    is_stored: bool,
    /// Without an answer until then it is sent again.
    again_at: Option<Duration>,
}

/// An act that the forwarder asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardEffect {
    /// Send it to the control shard's owner, and call [`ControlForwarder::stored`] once that has it in the log.
    Send(Lsn, Bytes),
    /// The stream needs nothing up to this batch any more.
    Advance(Lsn),
    /// There is room again: read entries from this batch on.
    Read(Lsn),
}

impl ControlForwarder {
    /// Of an ownership that has just begun: entries of the stream come after `advanced`.
    pub fn new(advanced: Lsn) -> Self {
        let (waiting, effects) = Default::default();
        ControlForwarder { waiting, bytes: 0, more_from: None, has_asked: false, advanced, effects }
    }

    /// The next act.
    pub fn effect(&mut self) -> Option<ForwardEffect> {
        self.effects.pop_front()
    }

    /// The stream has an entry, in the order of the batches. One that was shown before is left out.
    pub fn entry(&mut self, lsn: Lsn, payload: Bytes) {
        let last = self.waiting.back().map_or(self.advanced, |it| it.lsn);
        if lsn <= last || self.more_from.is_some_and(|from| lsn > from) {
            return;
        }
        if self.bytes + payload.len() > FORWARD_BYTES_MAX && !self.waiting.is_empty() {
            (self.more_from, self.has_asked) = (Some(lsn), false);
            return;
        }
        self.more_from = None;
        self.bytes += payload.len();
        self.waiting.push_back(Forwarded { lsn, payload, is_stored: false, again_at: None });
    }

    /// Sends what is due. To be called after entries, and once a second.
    pub fn tick(&mut self, now: Duration) {
        let in_flight = self.waiting.iter_mut().filter(|it| !it.is_stored).take(FORWARDS_MAX);
        for it in in_flight.filter(|it| it.again_at.is_none_or(|at| now >= at)) {
            it.again_at = Some(now + AGAIN);
            self.effects.push_back(ForwardEffect::Send(it.lsn, it.payload.clone()));
        }
    }

    /// Another node owns the control shard, or the connection to it is new: what has no answer is sent to it at the next tick.
    pub fn reset(&mut self) {
        self.waiting.iter_mut().for_each(|it| it.again_at = None);
    }

    /// The control shard's log has the entry. An answer may come twice, and after the stream has advanced.
    pub fn stored(&mut self, lsn: Lsn) {
        let Ok(at) = self.waiting.binary_search_by_key(&lsn, |it| it.lsn) else { return };
        self.waiting[at].is_stored = true;
        let before = self.advanced;
        while let Some(first) = self.waiting.pop_front_if(|it| it.is_stored) {
            self.bytes -= first.payload.len();
            self.advanced = first.lsn;
        }
        if self.advanced > before {
            self.effects.push_back(ForwardEffect::Advance(self.advanced));
            let has_room = self.bytes <= FORWARD_BYTES_MAX / 2;
            if let Some(from) = self.more_from.filter(|_| has_room && !self.has_asked) {
                self.has_asked = true;
                self.effects.push_back(ForwardEffect::Read(from));
            }
        }
    }
}

/// Entries without an answer at a time.
const FORWARDS_MAX: usize = 64;
const FORWARD_BYTES_MAX: usize = 1 << 20;
/// Time until an unanswered entry is sent again.
const AGAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn sent(forwarder: &mut ControlForwarder, now: u64) -> Vec<u64> {
        forwarder.tick(secs(now));
        let effects = std::iter::from_fn(|| forwarder.effect());
        effects.filter_map(|it| if let ForwardEffect::Send(lsn, _) = it { Some(lsn.get()) } else { None }).collect()
    }

    fn with(count: u64) -> ControlForwarder {
        let mut forwarder = ControlForwarder::new(Lsn::new(9));
        (10..10 + count).for_each(|lsn| forwarder.entry(Lsn::new(lsn), Bytes::from("a@b.example")));
        forwarder
    }

    #[test]
    fn an_entry_is_sent_until_it_is_stored() {
        let mut forwarder = with(1);
        assert_eq!(sent(&mut forwarder, 0), [10]);
        assert_eq!(sent(&mut forwarder, 4), [0; 0]);
        assert_eq!(sent(&mut forwarder, 5), [10]);
        // The control shard's next owner may not have it.
        forwarder.reset();
        assert_eq!(sent(&mut forwarder, 6), [10]);
        forwarder.stored(Lsn::new(10));
        assert_eq!(forwarder.effect(), Some(ForwardEffect::Advance(Lsn::new(10))));
        forwarder.stored(Lsn::new(10));
        forwarder.reset();
        assert_eq!((forwarder.effect(), sent(&mut forwarder, 60)), (None, vec![]));
    }

    #[test]
    fn the_stream_advances_over_stored_entries_alone() {
        let mut forwarder = with(3);
        assert_eq!(sent(&mut forwarder, 0), [10, 11, 12]);
        forwarder.stored(Lsn::new(12));
        forwarder.stored(Lsn::new(11));
        assert_eq!(forwarder.effect(), None, "a crash now sends the first again");
        forwarder.stored(Lsn::new(10));
        assert_eq!(forwarder.effect(), Some(ForwardEffect::Advance(Lsn::new(12))));
    }

    #[test]
    fn few_are_in_flight_and_the_rest_follows() {
        let mut forwarder = with(100);
        assert_eq!(sent(&mut forwarder, 0), (10..74).collect::<Vec<_>>());
        (10..20).for_each(|lsn| forwarder.stored(Lsn::new(lsn)));
        assert_eq!(sent(&mut forwarder, 1), (74..84).collect::<Vec<_>>());
    }

    #[test]
    fn memory_is_bounded_and_no_entry_is_left_out() {
        let mut forwarder = ControlForwarder::new(Lsn::new(0));
        let (payload, all) = (Bytes::from(vec![7; 100_000]), 30);
        let show = |forwarder: &mut ControlForwarder, from: u64| {
            (from..=all).for_each(|lsn| forwarder.entry(Lsn::new(lsn), payload.clone()));
        };
        show(&mut forwarder, 1);
        let (mut advanced, mut now) = (0, 0);
        while advanced < all {
            now += 1;
            forwarder.tick(secs(now));
            assert!(forwarder.bytes <= FORWARD_BYTES_MAX);
            while let Some(effect) = forwarder.effect() {
                match effect {
                    ForwardEffect::Send(lsn, _) => forwarder.stored(lsn),
                    ForwardEffect::Advance(lsn) => advanced = lsn.get(),
                    ForwardEffect::Read(from) => show(&mut forwarder, from.get()),
                }
            }
            assert!(now < 100, "it stands still at {advanced}");
        }
    }
}
