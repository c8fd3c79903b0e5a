//! Replays a stream from its position, and attaches it to new entries.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::Lsn;

use crate::batch::{BodyPlace, Head};
use crate::events::{Damage, SpoolEvent};
use crate::pack::PackError;
use crate::shared::{MOVES_MAX, Shared};
use crate::{Consumer, Published, PublishedBody, ReplayError, Replayed, StreamId};

/// A replayed batch.
pub(crate) enum Found {
    Batch {
        head: Head,
    },
    Damaged(String),
    /// No stream needs it any more.
    Gone,
}

/// Steps of a replay.
const STEPS: &[&str] = &["", "reading batches", "showing an entry to its consumer"];
/// Maximum time of one step of a replay; a longer one is reported.
const PATIENCE: Duration = Duration::from_secs(60);

impl Shared {
    pub fn replay(&self, stream: StreamId, visitor: &mut dyn FnMut(Replayed<'_>)) -> Result<Lsn, ReplayError> {
        let worker = self.config.watch.worker("replay of the spool", STEPS, PATIENCE);
        let mut visitor = |replayed: Replayed<'_>| {
            worker.pulse().step(2);
            visitor(replayed);
            worker.pulse().step(1);
        };
        worker.pulse().step(1);
        let (mut after, position, mut uncertain, lost) = {
            let state = self.core.state();
            let found = state.streams.get(&stream.0).ok_or(ReplayError::NoStream(stream))?;
            worker.within(format!("stream {}", found.name));
            (found.base(), found.position, found.uncertain, found.lost)
        };
        if after < position {
            let is_whole = self.replay_gap(stream, after, position, &mut visitor)?;
            uncertain = if is_whole { 0 } else { position };
            after = position;
        }
        uncertain = uncertain.max(lost);
        loop {
            worker.pulse().step(1);
            let (some, published) = {
                let state = self.core.state();
                let found = state.streams.get(&stream.0).ok_or(ReplayError::NoStream(stream))?;
                if found.consumer.is_some() {
                    return Err(ReplayError::Attached(stream));
                }
                (found.entries.iter(after + 1..=u64::MAX).take(SHOWN_AT_ONCE).collect::<Vec<_>>(), state.published)
            };
            self.find_all(&some, &mut |lsn, found| {
                if uncertain > 0 && lsn > uncertain {
                    visitor(Replayed::Uncertain { through: Lsn::new(std::mem::take(&mut uncertain)) });
                }
                show(stream, lsn, found, &mut visitor);
            })?;
            match some.last() {
                Some(last) => after = *last,
                None => {
                    if uncertain > 0 {
                        visitor(Replayed::Uncertain { through: Lsn::new(uncertain) });
                    }
                    return Ok(Lsn::new(published));
                }
            }
        }
    }

    /// For a stream that starts from an older snapshot, or from none. Replays the remaining entries between that
    /// snapshot and the stream's position, except those with a released body, and every entry with an unreleased body.
    /// True if nothing was missing.
    fn replay_gap(
        &self,
        stream: StreamId,
        after: u64,
        position: u64,
        visitor: &mut dyn FnMut(Replayed<'_>),
    ) -> Result<bool, ReplayError> {
        let (needed, mut cancelled): (Vec<u64>, BTreeSet<u64>) = {
            let state = self.core.state();
            let found = state.streams.get(&stream.0).ok_or(ReplayError::NoStream(stream))?;
            (found.bodies.iter(after + 1..=position).collect(), state.cancelled.keys().copied().collect())
        };
        let all_read = self.store.visit(Lsn::new(after + 1), &mut |record| {
            cancelled.extend(Head::decode(record.head).iter().flat_map(Head::cancels));
            ControlFlow::Continue(())
        });
        let mut is_whole = all_read.is_ok();
        let mut needed = needed.into_iter().peekable();
        let mut failed = None;
        let mut find = |lsn: u64, visitor: &mut dyn FnMut(Replayed<'_>)| match self.find(lsn) {
            Ok(found) => show(stream, lsn, found, visitor),
            Err(error) => drop(failed.get_or_insert(error)),
        };
        let visited = self.store.visit(Lsn::new(after + 1), &mut |record| {
            let lsn = record.lsn.get();
            if lsn > position {
                return ControlFlow::Break(());
            }
            while let Some(before) = needed.next_if(|needed| *needed < lsn) {
                find(before, visitor);
            }
            match Head::decode(record.head) {
                Some(mut head) => {
                    // A released body belongs to a message whose processing has ended.
                    let is_needed = needed.next_if_eq(&lsn).is_some();
                    head.entries.retain(|entry| is_needed || !entry.needs_body);
                    if !cancelled.contains(&lsn) {
                        show(stream, lsn, Found::Batch { head }, visitor);
                    }
                }
                None => is_whole = false,
            }
            ControlFlow::Continue(())
        });
        needed.for_each(|lsn| find(lsn, visitor));
        // Checked at the end, because records may be removed meanwhile.
        is_whole &= visited.is_ok() && self.has_all_since(after);
        failed.map_or(Ok(is_whole), Err)
    }

    /// True if the store still has every record after an LSN.
    fn has_all_since(&self, after: u64) -> bool {
        let state = self.core.state();
        state.freed.max(state.lost_through) <= after
    }

    pub fn attach(&self, stream: StreamId, after: Lsn, consumer: Arc<dyn Consumer>) -> Result<(), ReplayError> {
        let mut after = after.get();
        loop {
            let some = {
                let mut state = self.core.state();
                let found = state.streams.get_mut(&stream.0).ok_or(ReplayError::NoStream(stream))?;
                if found.consumer.is_some() {
                    return Err(ReplayError::Attached(stream));
                }
                let some: Vec<_> = found.entries.iter(after + 1..=u64::MAX).take(AT_ONCE).collect();
                if some.is_empty() {
                    // Both under one lock: the consumer gets everything published later.
                    found.consumer = Some(consumer);
                    return Ok(());
                }
                some
            };
            for lsn in some {
                match self.find(lsn)? {
                    Found::Batch { head } => {
                        let body_len = head.body_len();
                        let body = match head.body {
                            BodyPlace::None => PublishedBody::None,
                            _ => PublishedBody::Stored { len: body_len },
                        };
                        for entry in head.entries.into_iter().filter(|entry| entry.stream == stream.0) {
                            let lsn = Lsn::new(lsn);
                            let body = body.clone();
                            consumer.published(Published { lsn, payload: entry.payload, body });
                        }
                    }
                    // The look-up has reported it.
                    Found::Damaged(_) | Found::Gone => {}
                }
                after = lsn;
            }
        }
    }

    /// Finds needed batches, in order. Neighbours in the store are read together.
    fn find_all(&self, lsns: &[u64], each: &mut dyn FnMut(u64, Found)) -> Result<(), ReplayError> {
        let packed_through = self.core.state().packed_through;
        let (packed, in_store) = lsns.split_at(lsns.partition_point(|lsn| *lsn <= packed_through));
        packed.iter().try_for_each(|lsn| self.find(*lsn).map(|found| each(*lsn, found)))?;
        let mut left = in_store.iter().copied().peekable();
        let is_dense = |(first, last): (&u64, &u64)| last - first < SPARSE * in_store.len() as u64;
        if let Some(first) =
            in_store.first().zip(in_store.last()).filter(|ends| is_dense(*ends)).map(|(first, _)| *first)
        {
            // The scan shows only intact records. A skipped record is looked up on its own, which yields the reason;
            // after a failure so are all that follow.
            let _ = self.store.visit(Lsn::new(first), &mut |record| {
                match (left.peek(), Head::decode(record.head)) {
                    (Some(lsn), Some(head)) if *lsn == record.lsn.get() => {
                        each(*lsn, Found::Batch { head });
                        left.next();
                    }
                    (Some(lsn), _) if *lsn > record.lsn.get() => {}
                    _ => return ControlFlow::Break(()),
                }
                ControlFlow::Continue(())
            });
        }
        left.try_for_each(|lsn| self.find(lsn).map(|found| each(lsn, found)))
    }

    /// A needed batch, from the store or a pack.
    pub fn find(&self, lsn: u64) -> Result<Found, ReplayError> {
        for _ in 0..MOVES_MAX {
            let place = {
                let state = self.core.state();
                if lsn > state.packed_through { None } else { Some(state.pack_of(lsn)) }
            };
            let found = match place {
                None => self.find_in_store(lsn),
                Some(None) => Ok(Found::Damaged("it lies nowhere".to_owned())),
                Some(Some(pack)) => self.find_in_pack(pack, lsn),
            };
            if matches!(found, Ok(Found::Batch { .. })) {
                return found;
            }
            let (is_there_still, is_needed) = {
                let state = self.core.state();
                let is_there_still = match place {
                    None => lsn > state.packed_through,
                    Some(pack) => state.pack_of(lsn) == pack,
                };
                (is_there_still, state.is_any_needed(lsn..=lsn))
            };
            if !is_needed {
                return Ok(Found::Gone);
            }
            if is_there_still {
                if let Ok(Found::Damaged(what)) = &found {
                    self.tell_lost_head(lsn, what);
                }
                return found;
            }
        }
        Ok(Found::Gone)
    }

    /// Reports a lost head once per process.
    fn tell_lost_head(&self, lsn: u64, what: &str) {
        if self.lost_heads.lock().expect("nothing panics while it is held").insert(lsn) {
            let place = self.store.name().to_owned();
            let what = what.to_owned();
            self.config.events.tell(SpoolEvent::Damage(Damage { lsn: Some(Lsn::new(lsn)), place, what }));
        }
    }

    fn find_in_pack(&self, pack: u64, lsn: u64) -> Result<Found, ReplayError> {
        let outcome = (|| {
            let reader = self.packs.get(pack)?;
            let entry = reader.find(lsn)?.ok_or(PackError::Damaged("its pack does not have it"))?;
            let head = Head::decode(reader.head(&entry)?).ok_or(PackError::Damaged("its head cannot be read"))?;
            Ok(Found::Batch { head })
        })();
        outcome.or_else(|error| match error {
            PackError::Damaged(what) => Ok(Found::Damaged(what.to_owned())),
            PackError::Io(error) => Err(ReplayError::Io { lsn: Lsn::new(lsn), error }),
        })
    }
}

/// Shows a stream its entries of a batch.
fn show(stream: StreamId, lsn: u64, found: Found, visitor: &mut dyn FnMut(Replayed<'_>)) {
    match found {
        Found::Batch { head } => {
            let lsn = Lsn::new(lsn);
            let body_len = head.body_len();
            for entry in head.entries.iter().filter(|entry| entry.stream == stream.0) {
                let payload = &entry.payload;
                let needs_body = entry.needs_body;
                visitor(Replayed::Entry { lsn, payload, needs_body, body_len });
            }
        }
        Found::Damaged(_) => visitor(Replayed::Damaged { lsn: Lsn::new(lsn) }),
        Found::Gone => {}
    }
}

/// Number of heads whose skipping costs as much as one look-up in the store.
const SPARSE: u64 = 16;
/// Batches that a replay takes from the state under one lock; a few MiB of records are read for them.
const SHOWN_AT_ONCE: usize = 16 << 10;
/// Like [`SHOWN_AT_ONCE`], for an attachment, which looks up each batch on its own.
const AT_ONCE: usize = 1024;
