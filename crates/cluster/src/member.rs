//! The state of a member, updated on the ring's thread, and the mapping of its local numbers to those of the cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use posthaste_spool::{Consumer, Lsn, Published, StreamId};

use crate::LogPosition;
use crate::entry::{Applied, Place};

/// Consumes the private stream `log`. Its entry is the first of each batch, so a batch's number is known before other
/// consumers see it.
pub(crate) struct Member {
    shard: u16,
    state: Mutex<State>,
    changed: Condvar,
    /// Asks for a snapshot.
    wanted: Box<dyn Fn() + Send + Sync>,
    /// Called for each `digest` record.
    digests: Mutex<Option<DigestHook>>,
}

/// See [`ReplicatedSpool::on_digest`](crate::ReplicatedSpool::on_digest).
pub(crate) type DigestHook = Box<dyn Fn(LogPosition) + Send + Sync>;

#[derive(Default)]
struct State {
    applied: Applied,
    /// The cluster numbers of local batches up to this one are known.
    covered: u64,
    /// Local ids by the numbers of streams that were not forgotten.
    ids: BTreeMap<u16, StreamId>,
    next_stream: u16,
    /// Batches since the last snapshot.
    since_snapshot: u64,
    /// Local ids of streams that are being forgotten.
    leaving: Vec<StreamId>,
}

impl Member {
    pub fn new(shard: u16, applied: Applied, covered: u64, wanted: Box<dyn Fn() + Send + Sync>) -> Self {
        let next_stream = applied.streams.last_key_value().map_or(1, |(last, _)| last.saturating_add(1));
        let state = State { applied, covered, next_stream, ..State::default() };
        Member { shard, state: Mutex::new(state), changed: Condvar::new(), wanted, digests: Mutex::default() }
    }

    /// Waits for a running call of the previous callback.
    pub fn on_digest(&self, hook: Option<DigestHook>) {
        let before = std::mem::replace(&mut *self.digests(), hook);
        drop(before);
    }

    fn digests(&self) -> MutexGuard<'_, Option<DigestHook>> {
        self.digests.lock().expect("nothing panics while it is held")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    /// A copy of the state.
    pub fn applied(&self) -> Applied {
        let mut state = self.state();
        state.since_snapshot = 0;
        state.applied.clone()
    }

    /// Position of the last batch.
    pub fn last(&self) -> Option<Place> {
        self.state().applied.last.clone()
    }

    /// Sets the local id of a numbered stream; `None` if it was forgotten.
    pub fn set_id(&self, number: u16, id: Option<StreamId>) {
        let mut state = self.state();
        state.next_stream = state.next_stream.max(number.saturating_add(1));
        match id {
            Some(id) => drop(state.ids.insert(number, id)),
            None => {
                if let Some(id) = state.ids.remove(&number) {
                    state.leaving.retain(|leaving| *leaving != id);
                }
            }
        }
    }

    /// A number that no stream has used. `None` if there is none left.
    pub fn take_number(&self) -> Option<u16> {
        let mut state = self.state();
        let number = state.next_stream;
        state.next_stream = number.checked_add(1)?;
        Some(number)
    }

    /// The number of an active stream.
    pub fn number_of(&self, id: StreamId) -> Option<u16> {
        let state = self.state();
        let known = state.ids.iter().find(|(_, known)| **known == id).map(|(number, _)| *number);
        known.filter(|_| !state.leaving.contains(&id))
    }

    /// The name of a number.
    pub fn name_of(&self, number: u16) -> Option<String> {
        self.state().applied.streams.get(&number).cloned().flatten()
    }

    /// The local id of a stream.
    pub fn id_named(&self, name: &str) -> Option<StreamId> {
        let state = self.state();
        let number = state.applied.streams.iter().find(|(_, named)| named.as_deref() == Some(name))?.0;
        state.ids.get(number).copied()
    }

    /// Stops the stream from taking entries.
    pub fn begin_to_forget(&self, id: StreamId) {
        self.state().leaving.push(id);
    }

    /// The local id of a number. `Err` if the number is unknown, `None` if its stream was forgotten.
    pub fn id_of(&self, number: u16) -> Result<Option<StreamId>, u16> {
        let state = self.state();
        match state.ids.get(&number) {
            Some(id) => Ok(Some(*id)),
            None if state.applied.streams.contains_key(&number) => Ok(None),
            None => Err(number),
        }
    }

    pub fn lsn(&self, number: u64) -> Lsn {
        Lsn::of_shard(self.shard, number)
    }

    /// The number of a cluster LSN. LSNs of other shards sort below or above all.
    fn number(&self, lsn: Lsn) -> u64 {
        match lsn.shard().cmp(&self.shard) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => lsn.number(),
            std::cmp::Ordering::Greater => u64::MAX,
        }
    }

    /// The cluster LSN of the last batch.
    pub fn published(&self) -> Lsn {
        self.state().applied.last.as_ref().map_or(Lsn::ZERO, |last| self.lsn(last.number))
    }

    /// The local LSN of a batch, if this member has had it.
    pub fn local(&self, lsn: Lsn) -> Option<Lsn> {
        self.state().applied.runs.local_of(self.number(lsn)).map(Lsn::new)
    }

    /// The local LSN of the last batch up to this cluster LSN.
    pub fn local_up_to(&self, lsn: Lsn) -> Lsn {
        Lsn::new(self.state().applied.runs.local_up_to(self.number(lsn)).unwrap_or(0))
    }

    /// See [`Runs::local_from`](crate::runs::Runs::local_from).
    pub fn local_from(&self, lsn: Lsn) -> Lsn {
        Lsn::new(self.state().applied.runs.local_from(self.number(lsn)))
    }

    /// The cluster LSN of the last batch up to a local LSN, as far as known.
    pub fn up_to(&self, local: Lsn) -> Lsn {
        self.up_to_in(&self.state(), local)
    }

    /// Like [`up_to`](Self::up_to), of a local batch that may be published at this moment.
    pub fn shown(&self, local: Lsn) -> Lsn {
        self.up_to_in(&self.covering(local), local)
    }

    fn up_to_in(&self, state: &State, local: Lsn) -> Lsn {
        state.applied.runs.number_up_to(local.get()).map_or(Lsn::ZERO, |number| self.lsn(number))
    }

    /// The cluster LSN of a local batch that is just being published. `None` if it was cancelled on the disk.
    pub fn of_local(&self, local: Lsn) -> Option<Lsn> {
        let state = self.covering(local);
        state.applied.runs.number_of(local.get()).map(|number| self.lsn(number))
    }

    /// The ring's thread notes each batch right after it has become durable.
    fn covering(&self, local: Lsn) -> MutexGuard<'_, State> {
        let state = self.state();
        let waited = self.changed.wait_while(state, |state| state.covered < local.get());
        waited.expect("nothing panics while it is held")
    }
}

impl Consumer for Member {
    fn published(&self, entry: Published) {
        let place = Place::decode(&entry.payload).expect("an entry of our own");
        let mut state = self.state();
        let number = place.number;
        let digest_at = place.is_digest.then_some(place.position);
        let is_next = state.applied.push(place, entry.lsn.get());
        assert!(is_next, "batch {number} at {} does not follow {:?}", entry.lsn, state.applied.last);
        state.covered = entry.lsn.get();
        state.since_snapshot += 1;
        let is_wanted = state.since_snapshot.is_multiple_of(SNAPSHOT_EVERY);
        self.changed.notify_all();
        drop(state);
        if let Some(position) = digest_at
            && let Some(tell) = &*self.digests()
        {
            // Under the lock: whoever takes it away may end the spool, which this thread cannot.
            tell(position);
        }
        if is_wanted {
            (self.wanted)();
        }
    }

    fn advance_wanted(&self, _: Lsn) {
        (self.wanted)();
    }
}

/// Batches that an opening replays, at most about.
const SNAPSHOT_EVERY: u64 = 1 << 16;

/// A consumer that sees cluster numbers.
pub(crate) struct Translated {
    pub inner: Arc<dyn Consumer>,
    pub member: Arc<Member>,
}

impl Consumer for Translated {
    fn published(&self, entry: Published) {
        if let Some(lsn) = self.member.of_local(entry.lsn) {
            self.inner.published(Published { lsn, ..entry });
        }
    }

    fn advance_wanted(&self, through: Lsn) {
        self.inner.advance_wanted(self.member.up_to(through));
    }

    fn checkpoint_begins(&self) {
        self.inner.checkpoint_begins();
    }

    fn checkpoint_durable(&self, through: Lsn) {
        self.inner.checkpoint_durable(self.member.up_to(through));
    }
}
