//! Any interleaving of appends, cancels, frees and openings leaves what a list would.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_ring::{Config, Lsn, OnRecord, Ring, RingAppendError, RingCancelled, RingReadError};
use proptest::prelude::*;

const SEGMENT: u64 = 64 << 10;

#[derive(Debug, Clone)]
enum Act {
    /// Records of these lengths of head and body, all at once; with `true` one is cancelled as soon as it is appended.
    Append(Vec<(u16, u16, bool)>),
    /// So many of the oldest segments.
    Free(u8),
    /// Sizes may change from one opening to the next.
    Reopen {
        segment_blocks: u8,
        max_batch: u8,
    },
    Visit(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let len = prop_oneof![0..50u16, 0..5000u16, 4000..4100u16];
    let body = prop_oneof![2 => Just(0), 2 => 1..50u16, 3 => 1..12_000u16, 1 => 4000..4100u16];
    let record = (len, body, prop::bool::weighted(0.2));
    let act = prop_oneof![
        6 => prop::collection::vec(record, 1..12).prop_map(Act::Append),
        3 => (0..6u8).prop_map(Act::Free),
        2 => (16..24u8, 1..20u8).prop_map(|(segment_blocks, max_batch)| Act::Reopen { segment_blocks, max_batch }),
        2 => any::<u8>().prop_map(Act::Visit),
    ];
    prop::collection::vec(act, 1..25)
}

type Record = (Lsn, Bytes, Bytes);

/// The ring and the list that it is compared with.
struct Both {
    dir: tempfile::TempDir,
    ring: Option<Ring>,
    low: u64,
    model: Vec<Record>,
    appended: u8,
}

impl Both {
    fn open(&mut self, segment_blocks: u8, max_batch: u8) {
        self.ring = None;
        let config = Config {
            segment_bytes: u64::from(segment_blocks) * 4096,
            max_segments: 6,
            max_batch: max_batch.into(),
            ..Config::default()
        };
        let (ring, recovery) =
            Ring::open(self.dir.path(), config, OnRecord { low: self.low, ..OnRecord::default() }).expect("ring opens");
        assert_eq!(recovery.damage, []);
        assert_eq!(recovery.records, self.model.len() as u64);
        assert_eq!(recovery.last, self.model.last().map_or(Lsn::ZERO, |record| record.0));
        self.ring = Some(ring);
    }

    fn ring(&self) -> &Ring {
        self.ring.as_ref().expect("open")
    }

    fn append(&mut self, records: &[(u16, u16, bool)]) {
        let ring = self.ring().clone();
        let mut under_way = Vec::new();
        for (head, body, cancels) in records {
            self.appended = self.appended.wrapping_add(1);
            let filled = |len: u16| Bytes::from(vec![self.appended; len.into()]);
            let (head, body) = (filled(*head), filled(*body));
            let (tell, told) = channel();
            let parts = vec![head.slice(..head.len() / 3), head.slice(head.len() / 3..)];
            let ticket = ring.append(parts, vec![body.clone()], move |outcome| tell.send(outcome).unwrap());
            let cancelled = cancels.then(|| ticket.cancel());
            under_way.push((head, body, told, cancelled));
        }
        ring.flush().expect("nothing fails");
        for (head, body, told, cancelled) in under_way {
            let lsn = match (told.try_recv(), cancelled) {
                (Ok(Ok(lsn)), None | Some(RingCancelled::TooLate)) => lsn,
                // Written all the same; the caller that cancelled it must record that it does not count.
                (Err(_), Some(RingCancelled::Written(lsn))) => lsn,
                (Err(_), Some(RingCancelled::NotWritten)) => continue,
                (Ok(Err(RingAppendError::Full(_))), None | Some(RingCancelled::TooLate)) => {
                    let in_service = ring.segments().len();
                    assert!(in_service >= 4, "full with {in_service} segments of six in service");
                    continue;
                }
                other => panic!("{other:?}"),
            };
            assert!(self.model.last().is_none_or(|(last, ..)| *last < lsn));
            self.model.push((lsn, head, body));
        }
    }

    fn free(&mut self, count: u8) {
        let segments = self.ring().segments();
        let Some(segment) = segments.get(usize::from(count)).filter(|segment| segment.first > Lsn::ZERO) else {
            return;
        };
        self.low = segment.number;
        self.ring().free_below(segment.number);
        self.model.retain(|(lsn, ..)| *lsn >= segment.first);
    }

    fn check(&self, from: Lsn) {
        let ring = self.ring();
        let mut shown = Vec::new();
        ring.visit(from, &mut |record| {
            assert_eq!(ring.read_head(record.lsn).unwrap(), record.head);
            let body = ring.read_body(record.lsn, 0..u32::MAX).unwrap();
            assert_eq!(body.len(), record.body_len as usize);
            shown.push((record.lsn, record.head, body));
            ControlFlow::Continue(())
        })
        .expect("all can be read");
        let expected: Vec<Record> = self.model.iter().filter(|(lsn, ..)| *lsn >= from).cloned().collect();
        assert_eq!(shown, expected);
        let segments = ring.segments();
        assert!(segments.len() <= 6 && segments.iter().all(|info| info.first <= info.last));
        let by_segment: BTreeMap<u64, (Lsn, Lsn)> =
            segments.iter().map(|info| (info.number, (info.first, info.last))).collect();
        let firsts: Vec<_> = by_segment.values().filter(|(first, _)| *first > Lsn::ZERO).collect();
        assert!(firsts.windows(2).all(|pair| pair[0].1 < pair[1].0), "{by_segment:?}");
        if let Some((first, ..)) = self.model.first() {
            let before = Lsn::new(first.get() - 1);
            assert!(matches!(ring.read_head(before), Err(RingReadError::NotFound(_))));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_leaves_what_a_list_would(acts in acts()) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut both = Both { dir, ring: None, low: 0, model: Vec::new(), appended: 0 };
        both.open((SEGMENT / 4096) as u8, 20);
        for act in acts {
            match act {
                Act::Append(records) => both.append(&records),
                Act::Free(count) => both.free(count),
                Act::Reopen { segment_blocks, max_batch } => both.open(segment_blocks, max_batch),
                Act::Visit(part) => {
                    let nth = both.model.len() * usize::from(part) / 256;
                    both.check(both.model.get(nth).map_or(Lsn::ZERO, |record| record.0));
                }
            }
        }
        both.check(Lsn::ZERO);
        both.open(16, 20);
        both.check(Lsn::ZERO);
    }
}
