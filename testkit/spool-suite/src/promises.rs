//! The promises of a spool, one by one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_spool::{
    AppendError, Batch, Body, Cancelled, Consumer, FrontFields, Lsn, Published, PublishedBody, ReadError, Released,
    SnapshotName, Spool, SpoolAdmin, StreamError,
};

use crate::SpoolKind;
use crate::world::{Keeps, append, append_body, note, release_all, replayed, start};

pub fn a_consumer_is_shown_each_entry_once_and_in_order<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let (one, other) = (spool.stream("one").unwrap(), spool.stream("other").unwrap());
    let first = append(&spool, &[one, other], b"first").unwrap();
    let shown = spool.replay(one, &mut |_| ()).unwrap();
    assert_eq!(shown, first);
    let second = append(&spool, &[one], b"second").unwrap();
    append(&spool, &[other], b"not for it").unwrap();
    let keeps = Arc::new(Keeps::default());
    spool.attach(one, shown, keeps.clone()).unwrap();
    assert!(spool.attach(one, shown, keeps.clone()).is_err(), "one at a time");
    let third = append(&spool, &[one], b"third").unwrap();
    spool.detach(one);
    append(&spool, &[one], b"nobody is there").unwrap();
    assert_eq!(keeps.lsns(), [second, third]);
    let seen = keeps.seen.lock().unwrap();
    assert!(matches!(seen[0].body, PublishedBody::Stored { len: 6 }), "{:?}", seen[0].body);
    assert!(matches!(&seen[1].body, PublishedBody::Memory(parts) if parts[0] == "third"));
    assert_eq!(replayed(&spool, one).len(), 4);
}

/// Callback of a release; records if the release waited.
struct Called {
    spool: Mutex<Option<Arc<dyn Spool>>>,
    inside: Mutex<Sender<()>>,
    detached: Mutex<Receiver<()>>,
    waited: AtomicU64,
}

impl Consumer for Called {
    fn published(&self, _: Published) {
        self.inside.lock().unwrap().send(()).unwrap();
        // With nothing to wait for it would come at once.
        let detached = self.detached.lock().unwrap().recv_timeout(Duration::from_millis(300));
        self.waited.store(u64::from(detached.is_err()), Ordering::Relaxed);
    }

    fn advance_wanted(&self, _: Lsn) {}
}

pub fn a_detached_consumer_is_neither_called_nor_held<K: SpoolKind>() {
    let mut place = K::new();
    let spool = Arc::new(place.open());
    let stream = spool.stream("one").unwrap();
    let (inside, is_inside) = channel();
    let (tell_detached, detached) = channel();
    let called = Arc::new(Called {
        spool: Mutex::new(Some(spool.clone())),
        inside: Mutex::new(inside),
        detached: Mutex::new(detached),
        waited: AtomicU64::new(0),
    });
    spool.attach(stream, Lsn::ZERO, called.clone()).unwrap();
    spool.append(note(stream, "entry"), Box::new(|_| ()));
    is_inside.recv().unwrap();
    spool.detach(stream);
    // The call may have ended by itself.
    let _ = tell_detached.send(());
    assert_eq!(called.waited.load(Ordering::Relaxed), 1, "a call was under way when detaching had ended");
    assert_eq!(Arc::strong_count(&called), 1);
    drop(called.spool.lock().unwrap().take());
    // Nobody has it any more, so it can be opened again.
    drop(Arc::into_inner(spool).expect("the last one"));
    place.open();
}

pub fn a_stream_id_is_durable_and_belongs_to_one_name<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let ids = ["a", "b", "c"].map(|name| spool.stream(name).unwrap());
    let lsn = append(&spool, &[ids[1]], b"x").unwrap();
    place.kill(spool);
    let spool = place.open();
    assert_eq!(["c", "b", "a", "d"].map(|name| spool.stream(name).unwrap())[..3], [ids[2], ids[1], ids[0]]);
    assert!(!ids.contains(&spool.stream("d").unwrap()));
    assert_eq!(replayed(&spool, ids[1]), [lsn.get()]);
    assert!(spool.stream("").is_err() && spool.stream("a\nb").is_err());
}

pub fn a_forgotten_stream_is_gone_and_its_id_is_not_used_again<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let [goes, stays] = ["goes", "stays"].map(|name| spool.stream(name).unwrap());
    let own = append(&spool, &[goes], b"own").unwrap();
    let both = append(&spool, &[goes, stays], b"both").unwrap();
    assert!(matches!(spool.forget_stream("nobody"), Err(StreamError::Unknown(_))));
    let keeps = Arc::new(Keeps::default());
    spool.attach(goes, Lsn::ZERO, keeps).unwrap();
    assert!(matches!(spool.forget_stream("goes"), Err(StreamError::Attached(_))));
    spool.detach(goes);
    let stats = spool.forget_stream("goes").unwrap();
    assert_eq!((stats.id, stats.entries, stats.bodies), (goes, 2, 2));
    place.kill(spool);
    let spool = place.open();
    assert!(matches!(spool.read(own, 0..1), Err(ReadError::NotFound(_))));
    assert_eq!((replayed(&spool, stays), &spool.read(both, 0..4).unwrap()[..]), (vec![both.get()], &b"both"[..]));
    assert_ne!(spool.stream("goes").unwrap(), goes, "its entries are not shown to another of the same name");
}

pub fn batches_that_cannot_be_are_refused_at_once<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let stream = spool.stream("a").unwrap();
    let mut other = K::new();
    let elsewhere = other.open();
    let [.., unknown] = ["a", "b", "c"].map(|name| elsewhere.stream(name).unwrap());
    assert!(matches!(start(&spool, Batch::default()).recv().unwrap(), Err(AppendError::Entries(0))));
    assert!(matches!(start(&spool, note(unknown, "")).recv().unwrap(), Err(AppendError::NoStream(_))));
    let refused = spool.append(Batch::default(), Box::new(|_| ()));
    assert_eq!(refused.cancel(), Cancelled::TooLate);
    assert_eq!(replayed(&spool, stream), [0; 0]);
}

pub fn then_is_called_in_order_and_after_the_consumers<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let stream = spool.stream("a").unwrap();
    let keeps = Arc::new(Keeps::default());
    spool.attach(stream, Lsn::ZERO, keeps.clone()).unwrap();
    let (tell, told) = channel();
    for _ in 0..200 {
        let (tell, keeps) = (tell.clone(), keeps.clone());
        let then = move |outcome: Result<Lsn, AppendError>| {
            let lsn = outcome.unwrap();
            tell.send((lsn, keeps.lsns().last() == Some(&lsn))).unwrap();
        };
        spool.append(note(stream, "x"), Box::new(then));
    }
    let told: Vec<(Lsn, bool)> = told.iter().take(200).collect();
    assert!(told.is_sorted_by(|(before, _), (after, _)| before < after), "{told:?}");
    assert!(told.iter().all(|(_, is_shown)| *is_shown), "{told:?}");
    spool.detach(stream);
}

pub fn a_batch_is_cancelled_or_told_and_never_both<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let stream = spool.stream("a").unwrap();
    let mut told = Vec::new();
    for _ in 0..100 {
        let (tell, outcome) = channel();
        let ticket = spool.append(note(stream, "x"), Box::new(move |outcome| tell.send(outcome).unwrap()));
        match ticket.cancel() {
            Cancelled::TooLate => told.push(outcome.recv().unwrap().unwrap().get()),
            _ => assert!(outcome.recv().is_err(), "a cancelled batch is not told"),
        }
    }
    told.push(append(&spool, &[stream], b"last").unwrap().get());
    assert_eq!(replayed(&spool, stream), told);
    drop(spool);
    assert_eq!(replayed(&place.open(), stream), told);
}

pub fn entries_can_be_read_while_their_body_is_needed<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let (stream, other) = (spool.stream("a").unwrap(), spool.stream("b").unwrap());
    let lsn = append(&spool, &[stream, other, stream], b"x").unwrap();
    let passed = |released| {
        let last = spool.stats().published;
        for stream in [stream, other] {
            spool.advance(stream, last, None, Released { below: released, also: vec![] });
        }
        spool.checkpoint().unwrap();
    };
    passed(Lsn::ZERO);
    assert!(spool.needs_body(stream, lsn));
    assert!(!replayed(&spool, stream).contains(&lsn.get()));
    assert_eq!(spool.entries(stream, lsn).unwrap(), ["for you", "for you"]);
    assert_eq!(spool.entries(other, lsn).unwrap(), ["for you"]);
    passed(Lsn::new(spool.stats().published.get() + 1));
    assert!(matches!(spool.entries(stream, lsn), Err(ReadError::NotFound(gone)) if gone == lsn));
    assert!(!spool.needs_body(stream, lsn));
}

pub fn front_fields_are_read_in_front_of_their_body<K: SpoolKind>() {
    const FRONT: &[u8] = b"Received: from the place where it was\r\n by the place where it is\r\n";
    let mut place = K::new();
    let spool = place.open();
    let stream = spool.stream("a").unwrap();
    let front = || FrontFields::new(FRONT).unwrap();
    let text: Vec<u8> = (0..5000u32).map(|at| (at * 7 + at / 251) as u8).collect();
    let inline = append_body(&spool, &[stream], Body::Inline(front(), vec![text.clone().into()])).unwrap();
    let mut upload = spool.upload(0).unwrap();
    upload.write(&text).unwrap();
    let large = append_body(&spool, &[stream], Body::File(front(), upload.finish().unwrap())).unwrap();
    let whole = [FRONT, &text].concat();
    let (edge, len) = (FRONT.len() as u64, whole.len() as u64);
    let check = |spool: &K::Spool| {
        for lsn in [inline, large] {
            for (from, to) in [(0, len), (0, edge), (edge, len), (edge - 3, edge + 3), (edge, edge), (len - 1, len)] {
                assert!(spool.read(lsn, from..to).unwrap() == whole[from as usize..to as usize], "{from}-{to}");
            }
            let beyond = spool.read(lsn, len..len + 1);
            assert!(matches!(beyond, Err(ReadError::OutOfRange { len: told, .. }) if told == len), "{beyond:?}");
        }
    };
    check(&spool);
    place.kill(spool);
    check(&place.open());
}

pub fn a_large_body_is_read_like_any_other<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let stream = spool.stream("a").unwrap();
    let text: Vec<u8> = (0..3_000_000u32).map(|at| (at * 31 + at / 256) as u8).collect();
    let mut upload = spool.upload(text.len() as u64).unwrap();
    text.chunks(70_000).for_each(|part| upload.write(part).unwrap());
    let keeps = Arc::new(Keeps::default());
    spool.attach(stream, Lsn::ZERO, keeps.clone()).unwrap();
    let lsn = append_body(&spool, &[stream], Body::file(upload.finish().unwrap())).unwrap();
    assert!(matches!(keeps.seen.lock().unwrap()[0].body, PublishedBody::Stored { len } if len == text.len() as u64));
    spool.detach(stream);
    place.kill(spool);
    let spool = place.open();
    assert!(spool.read(lsn, 0..text.len() as u64).unwrap() == text);
    assert!(spool.read(lsn, 2_999_999..3_000_000).unwrap() == text[2_999_999..]);
    assert_eq!((spool.stats().large_bodies, spool.stats().large_bytes), (1, text.len() as u64));
    release_all(&spool, stream);
    spool.checkpoint().unwrap();
    assert!(matches!(spool.read(lsn, 0..1), Err(ReadError::NotFound(_))));
    assert_eq!(spool.stats().large_bodies, 0);
}

pub fn a_snapshot_takes_effect_with_the_advance_that_names_it<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let stream = spool.stream("a").unwrap();
    let lsn = append(&spool, &[stream], b"x").unwrap();
    let names = ["s.1", "s.2", "s.3"].map(|name| SnapshotName::new(name).unwrap());
    for name in &names[..2] {
        spool.write_snapshot(name, &mut |out| out.write_all(name.as_str().as_bytes())).unwrap();
        spool.advance(stream, lsn, Some(name.clone()), Released::default());
        spool.checkpoint().unwrap();
    }
    // Nothing names it: after a kill the one before counts.
    spool.write_snapshot(&names[2], &mut |out| out.write_all(b"too late")).unwrap();
    place.kill(spool);
    let spool = place.open();
    assert_eq!(spool.position(stream), (lsn, Some(names[1].clone())));
    let content = |from| std::io::read_to_string(from).unwrap();
    assert_eq!(content(spool.read_snapshot(&names[1]).unwrap()), "s.2");
    let restored = spool.restore(stream).unwrap();
    assert_eq!((content(restored.snapshot.expect("the last")), restored.unreadable), ("s.2".to_owned(), vec![]));
    assert_eq!(replayed(&spool, stream), [0; 0], "its position is behind the entry");
}

pub fn an_advance_is_forgotten_without_a_checkpoint<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let stream = spool.stream("a").unwrap();
    let first = append(&spool, &[stream], b"first").unwrap();
    release_all(&spool, stream);
    spool.checkpoint().unwrap();
    let second = append(&spool, &[stream], b"second").unwrap();
    release_all(&spool, stream);
    assert_eq!(replayed(&spool, stream), [0; 0]);
    place.kill(spool);
    let spool = place.open();
    assert_eq!((spool.position(stream).0, replayed(&spool, stream)), (first, vec![second.get()]));
    assert_eq!(spool.read(second, 0..6).unwrap(), "second");
}

pub fn consumers_are_told_of_checkpoints<K: SpoolKind>() {
    let mut place = K::new();
    let spool = place.open();
    let (one, other) = (spool.stream("one").unwrap(), spool.stream("other").unwrap());
    let (of_one, of_other) = (Arc::new(Keeps::default()), Arc::new(Keeps::default()));
    spool.attach(one, Lsn::ZERO, of_one.clone()).unwrap();
    spool.attach(other, Lsn::ZERO, of_other.clone()).unwrap();
    let lsn = append(&spool, &[one, other], b"x").unwrap();
    let before = spool.position(other).0.get();
    release_all(&spool, one);
    let told = |keeps: &Keeps| std::mem::take(&mut *keeps.checkpoints.lock().unwrap());
    assert_eq!((told(&of_one), told(&of_other)), (vec![], vec![]), "a stream that is known costs no checkpoint");
    spool.checkpoint().unwrap();
    assert_eq!((told(&of_one), told(&of_other)), (vec![0, lsn.get()], vec![0, before]));
    spool.detach(one);
    spool.checkpoint().unwrap();
    assert_eq!(told(&of_one), [0; 0]);
    spool.detach(other);
}
