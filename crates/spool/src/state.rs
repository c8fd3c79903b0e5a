//! The spool's state in memory: the needs of each stream, and the pack of each batch.
//!
//! Memory is ahead of the disk: it has the content of the next checkpoint. Irreversible steps (reuse of a segment,
//! removal of a file) are noted here and done only after a later checkpoint has become durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::Lsn;

use crate::batch::{BodyPlace, Head};
use crate::bodies::BodyFile;
use crate::checkpoint::{Checkpoint, PackRow, SnapshotRow, StreamRow};
use crate::live::{Window, window_of};
use crate::lsn_set::LsnSet;
use crate::snapshots::SnapshotName;
use crate::{Consumer, Released, StreamId, StreamStats};

#[derive(Default)]
pub(crate) struct State {
    /// Every batch up to here is published or cancelled.
    pub published: u64,
    pub streams: BTreeMap<u16, Stream>,
    pub next_stream: u16,
    /// Packs in order of their LSNs, which do not overlap.
    pub packs: Vec<PackRow>,
    pub next_pack: u64,
    /// Batches up to this LSN are read from packs, later ones from the ring.
    pub packed_through: u64,
    /// Needed bodies in their own files.
    pub large: BTreeMap<u64, BodyFile>,
    /// Generations of the live files that the last checkpoint names.
    pub windows: BTreeMap<u64, u64>,
    /// Windows that changed since the last checkpoint.
    pub dirty: BTreeSet<u64>,
    /// Cancelled batches without a durable cancel entry. `true`: it is being written.
    pub cancelled: BTreeMap<u64, bool>,
    /// Body files of refused or cancelled batches: the next checkpoint marks them, and they are removed after the
    /// following one.
    pub unripe_uploads: Vec<u64>,
    /// Streams unknown to every durable checkpoint.
    pub undurable_streams: BTreeSet<u16>,
    /// Set by changes that [`is_changed`](Self::is_changed) would not see otherwise.
    pub is_changed_otherwise: bool,
    /// The ring contains no batch up to this LSN any more.
    pub freed: u64,
    /// The last acknowledged batch that the opening found lost.
    pub lost_through: u64,
    /// The last batch that the last checkpoint covers.
    pub through: u64,
    pub doomed: Doomed,
}

/// Files to remove once the next checkpoint is durable.
#[derive(Debug, Default)]
pub(crate) struct Doomed {
    pub packs: Vec<u64>,
    pub uploads: Vec<u64>,
    pub snapshots: Vec<SnapshotName>,
    /// Live files of a failed checkpoint, which may still be on the disk.
    pub live: Vec<(u64, u64)>,
}

impl Doomed {
    fn is_empty(&self) -> bool {
        self.packs.is_empty() && self.uploads.is_empty() && self.snapshots.is_empty() && self.live.is_empty()
    }

    pub fn extend(&mut self, other: Doomed) {
        self.packs.extend(other.packs);
        self.uploads.extend(other.uploads);
        self.snapshots.extend(other.snapshots);
        self.live.extend(other.live);
    }
}

/// Position and needs of one registered stream.
#[derive(Default)]
pub(crate) struct Stream {
    pub name: String,
    /// LSN of its last advance: it has processed everything up to there.
    pub position: u64,
    pub snapshot: Option<SnapshotRow>,
    /// Snapshots in the last durable checkpoint: the stream's own, and the previous one.
    durable: [Option<SnapshotRow>; 2],
    /// The LSN up to which entries are unknown.
    pub uncertain: u64,
    /// See [`StreamRow::lost`].
    pub lost: u64,
    /// Batches after the position with an entry for the stream.
    pub entries: LsnSet,
    /// Batches whose body the stream has not released.
    pub bodies: LsnSet,
    /// Bodies released ahead of the position: a release takes effect once the position has passed its batch.
    early: BTreeSet<u64>,
    early_below: u64,
    pub consumer: Option<Arc<dyn Consumer>>,
    /// The last position to which the stream was asked to advance.
    pub asked: u64,
}

impl Stream {
    /// A new stream whose position is `position`.
    pub fn new(name: &str, position: u64) -> Self {
        Stream { name: name.to_owned(), position, ..Stream::default() }
    }

    pub fn stats(&self, id: StreamId) -> StreamStats {
        StreamStats {
            id,
            name: self.name.clone(),
            position: Lsn::new(self.position),
            is_attached: self.consumer.is_some(),
            entries: self.entries.len(),
            first: self.entries.first().map(Lsn::new),
            bodies: self.bodies.len(),
        }
    }

    /// Start of its replay: after the position of its snapshot, or the beginning without a readable one.
    pub fn base(&self) -> u64 {
        match &self.snapshot {
            Some(snapshot) if snapshot.name.is_file() => snapshot.position.min(self.position),
            None if self.uncertain > 0 => 0,
            _ => self.position,
        }
    }

    /// The stream's snapshots, latest first: the previous one is used if the last one is unreadable.
    pub fn snapshots(&self) -> Vec<SnapshotRow> {
        let Some(last) = &self.snapshot else { return Vec::new() };
        let is_other = |row: &&SnapshotRow| last.name.is_file() && row.name.is_file() && row.name != last.name;
        let before = self.durable.iter().flatten().find(is_other);
        std::iter::once(last).chain(before).cloned().collect()
    }

    /// True if another snapshot at the same position is useful: the last content exists only once, or the last one
    /// starts from an older snapshot.
    pub fn wants_snapshot(&self) -> bool {
        let Some(last) = &self.snapshot else { return self.uncertain > 0 };
        let is_behind = last.position < self.position;
        let is_durable = self.durable[0].as_ref() == Some(last);
        last.name.is_file()
            && (is_behind || is_durable && self.durable[1].as_ref().is_none_or(|it| it.position < last.position))
    }

    /// Moves the snapshots of a stream without later entries up to the next entry, as if written just before it. So the
    /// ring need not keep batches of others to prove that there was none.
    fn keep_up(&mut self, published: u64) {
        let through = self.entries.first().map_or(published, |first| first - 1);
        let position = self.position;
        let rows = self.snapshot.iter_mut().chain(self.durable.iter_mut().flatten());
        for row in rows.filter(|row| row.name.is_file() && row.position >= position) {
            row.position = row.position.max(through);
        }
    }

    /// Handles a durable checkpoint with these snapshots. Returns the snapshots that are no longer needed.
    fn made_durable(&mut self, rows: &[SnapshotRow]) -> Vec<SnapshotName> {
        let named = [0, 1].map(|nth| rows.get(nth).cloned());
        let before = std::mem::replace(&mut self.durable, named);
        before.into_iter().flatten().map(|row| row.name).filter(|name| !self.names(name)).collect()
    }

    /// True if the last checkpoint or the next one refers to this file.
    fn names(&self, name: &SnapshotName) -> bool {
        self.durable.iter().flatten().chain(&self.snapshot).any(|row| row.name == *name)
    }

    /// Drops unreadable snapshots. If none is left, the state up to the position is unknown.
    pub fn leave_out(&mut self, unreadable: &[SnapshotName]) {
        let left = self.snapshots().into_iter().filter(|row| !unreadable.contains(&row.name));
        let mut left = left.collect::<Vec<_>>().into_iter();
        if self.snapshot.as_ref().is_some_and(|last| unreadable.contains(&last.name)) {
            self.snapshot = left.next();
            if self.snapshot.is_none() {
                self.uncertain = self.position;
            }
        }
        for durable in &mut self.durable {
            *durable = durable.take().filter(|row| !unreadable.contains(&row.name));
        }
        if self.durable[0].is_none() {
            self.durable.swap(0, 1);
        }
    }

    /// The first batch in a range of which the stream needs any part.
    fn first_needed(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let entry = self.entries.first_in(range.clone());
        let body = self.bodies.first_in(range);
        entry.into_iter().chain(body).min()
    }
}

impl State {
    /// Notes a durable batch with an entry for `stream`.
    pub fn add_entry(&mut self, lsn: u64, stream: u16, needs_body: bool) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        stream.entries.insert(lsn);
        if needs_body {
            stream.bodies.insert(lsn);
        }
        self.dirty.insert(window_of(lsn));
    }

    /// Notes a batch whose body is in a file; if no stream needs it, the file is removed.
    pub fn add_large(&mut self, lsn: u64, body: BodyFile) {
        if self.is_body_needed(lsn) {
            self.large.insert(lsn, body);
        } else {
            self.doomed.uploads.push(body.upload);
        }
    }

    /// Handles the loss of batches up to `through`: later numbers are new, and streams do not know their entries after
    /// the checkpoint.
    pub fn lose(&mut self, through: u64) {
        self.lost_through = through;
        if through <= self.through {
            // The live files say who needs anything of these batches.
            return;
        }
        self.published = self.published.max(through);
        self.streams.values_mut().for_each(|stream| stream.lost = stream.lost.max(through));
    }

    /// Rebuilds the needs of a batch with a lost live file: entries after each stream's position are needed, and no
    /// body counts as released.
    pub fn find_again(&mut self, lsn: u64, head: &Head) {
        for entry in &head.entries {
            let Some(stream) = self.streams.get_mut(&entry.stream) else { continue };
            if lsn > stream.position {
                stream.entries.insert(lsn);
            }
            if entry.needs_body {
                stream.bodies.insert(lsn);
            }
        }
        if let BodyPlace::File(body) = head.body {
            self.add_large(lsn, body);
        }
    }

    pub fn advance(&mut self, stream: u16, position: u64, snapshot: Option<SnapshotName>, released: &Released) {
        let published = self.published;
        self.is_changed_otherwise = true;
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        // No entry before the stream's first position.
        stream.position = stream.position.max(position.min(published));
        let passed = stream.entries.take(0..=stream.position);
        stream.uncertain = 0;
        if stream.position >= stream.lost {
            stream.lost = 0;
        }
        let snapshot = snapshot.map(|name| SnapshotRow { position: stream.position, name });
        let before = std::mem::replace(&mut stream.snapshot, snapshot).map(|row| row.name);
        self.doomed.snapshots.extend(before.filter(|name| !stream.names(name)));
        stream.early.extend(released.also.iter().map(|lsn| lsn.get()));
        stream.early_below = stream.early_below.max(released.below.get());
        // After a power cut an entry may be seen again, and must find its body: so nothing is released before the
        // position has passed it.
        let mut freed = match stream.early_below.min(stream.position + 1).checked_sub(1) {
            Some(last) => stream.bodies.take(0..=last),
            None => LsnSet::default(),
        };
        let behind = stream.early.split_off(&(stream.position + 1));
        for lsn in std::mem::replace(&mut stream.early, behind) {
            if stream.bodies.remove(lsn) {
                freed.insert(lsn);
            }
        }
        for set in [&passed, &freed] {
            self.dirty.extend(set.words_in(0..=u64::MAX).map(|(word, _)| window_of(word * 64)));
        }
        // Iterates over the large bodies or the released ones, whichever are fewer.
        let gone: Vec<u64> = if freed.len() < self.large.len() as u64 {
            freed.iter(0..=u64::MAX).filter(|lsn| self.large.contains_key(lsn)).collect()
        } else {
            self.large.keys().copied().filter(|lsn| freed.contains(*lsn)).collect()
        };
        for lsn in gone {
            if !self.is_body_needed(lsn) {
                self.doomed.uploads.extend(self.large.remove(&lsn).map(|body| body.upload));
            }
        }
    }

    /// Releases the body for all streams.
    pub fn give_up_body(&mut self, lsn: u64) {
        for stream in self.streams.values_mut() {
            stream.bodies.remove(lsn);
        }
        self.dirty.insert(window_of(lsn));
        self.doomed.uploads.extend(self.large.remove(&lsn).map(|body| body.upload));
    }

    /// Gives up a batch with a lost head, and its entries. A stream that waited for an entry without a body is
    /// uncertain up to there, as it reported outcomes of other batches.
    pub fn give_up_batch(&mut self, lsn: u64) {
        for stream in self.streams.values_mut() {
            let is_message = stream.bodies.contains(lsn);
            if stream.entries.remove(lsn) && !is_message {
                stream.lost = stream.lost.max(lsn);
            }
        }
        self.give_up_body(lsn);
    }

    /// Removes a stream. Releases the data that only it needed.
    pub fn forget_stream(&mut self, id: u16) {
        let Some(stream) = self.streams.remove(&id) else { return };
        self.is_changed_otherwise = true;
        self.undurable_streams.remove(&id);
        let snapshots = stream.durable.iter().flatten().chain(&stream.snapshot);
        self.doomed.snapshots.extend(snapshots.map(|row| row.name.clone()));
        for set in [&stream.entries, &stream.bodies] {
            self.dirty.extend(set.words_in(0..=u64::MAX).map(|(word, _)| window_of(word * 64)));
        }
        let of_it: Vec<u64> = self.large.keys().copied().filter(|lsn| stream.bodies.contains(*lsn)).collect();
        for lsn in of_it.into_iter().filter(|lsn| !self.is_body_needed(*lsn)).collect::<Vec<_>>() {
            self.doomed.uploads.extend(self.large.remove(&lsn).map(|body| body.upload));
        }
    }

    /// Drops unreadable snapshots, see [`Stream::leave_out`]. The next checkpoint removes their files.
    pub fn leave_out_snapshots(&mut self, stream: u16, unreadable: &[SnapshotName]) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        stream.leave_out(unreadable);
        self.doomed.snapshots.extend(unreadable.iter().cloned());
        self.is_changed_otherwise = true;
    }

    /// Handles a durable checkpoint. Returns the snapshots that are no longer needed.
    pub fn made_durable(&mut self, checkpoint: &Checkpoint) -> Vec<SnapshotName> {
        self.through = checkpoint.through;
        let mut useless = Vec::new();
        for row in &checkpoint.streams {
            useless.extend(self.streams.get_mut(&row.id).into_iter().flat_map(|it| it.made_durable(&row.snapshots)));
        }
        useless
    }

    /// The streams by their ids.
    pub fn names(&self) -> BTreeMap<u16, String> {
        self.streams.iter().map(|(id, stream)| (*id, stream.name.clone())).collect()
    }

    /// True if a checkpoint would differ from the last one.
    pub fn is_changed(&self) -> bool {
        let has_doomed = !self.unripe_uploads.is_empty() || !self.doomed.is_empty();
        self.is_changed_otherwise || self.published != self.through || !self.dirty.is_empty() || has_doomed
    }

    pub fn is_body_needed(&self, lsn: u64) -> bool {
        self.streams.values().any(|stream| stream.bodies.contains(lsn))
    }

    /// True if any stream needs any part of these batches.
    pub fn is_any_needed(&self, range: RangeInclusive<u64>) -> bool {
        self.streams.values().any(|stream| stream.first_needed(range.clone()).is_some())
    }

    /// The needed batches of a range, in order; true if the body is needed.
    pub fn needed(&self, range: RangeInclusive<u64>) -> Vec<(u64, bool)> {
        let mut all = LsnSet::default();
        let mut bodies = LsnSet::default();
        for stream in self.streams.values() {
            stream.entries.words_in(range.clone()).for_each(|(key, word)| all.insert_word(key, word));
            stream.bodies.words_in(range.clone()).for_each(|(key, word)| bodies.insert_word(key, word));
        }
        bodies.words_in(range.clone()).for_each(|(key, word)| all.insert_word(key, word));
        all.iter(range).map(|lsn| (lsn, bodies.contains(lsn))).collect()
    }

    /// The batches of which some stream needs any part.
    pub fn all_needed(&self) -> LsnSet {
        let mut all = LsnSet::default();
        for set in self.streams.values().flat_map(|stream| [&stream.entries, &stream.bodies]) {
            set.words_in(0..=u64::MAX).for_each(|(key, word)| all.insert_word(key, word));
        }
        all
    }

    /// The published LSNs in `held` that no stream needs.
    pub fn unneeded(&self, held: &LsnSet) -> LsnSet {
        held.without(&self.all_needed(), 0..=self.published)
    }

    /// Number of needed batches in a range.
    pub fn needed_count(&self, range: RangeInclusive<u64>) -> u64 {
        let mut all = LsnSet::default();
        for stream in self.streams.values() {
            for set in [&stream.entries, &stream.bodies] {
                set.words_in(range.clone()).for_each(|(key, word)| all.insert_word(key, word));
            }
        }
        all.len()
    }

    /// Number of batches in a range whose body is needed.
    pub fn needed_bodies(&self, range: RangeInclusive<u64>) -> u64 {
        let mut bodies = LsnSet::default();
        for stream in self.streams.values() {
            stream.bodies.words_in(range.clone()).for_each(|(key, word)| bodies.insert_word(key, word));
        }
        bodies.len()
    }

    /// The pack that contains a batch, if any.
    pub fn pack_of(&self, lsn: u64) -> Option<u64> {
        let at = self.packs.partition_point(|pack| pack.first <= lsn).checked_sub(1)?;
        Some(&self.packs[at]).filter(|pack| lsn <= pack.last).map(|pack| pack.id)
    }

    /// Content for the live file of a window.
    pub fn window(&self, window: u64) -> Window {
        let mut content = Window::default();
        for (id, stream) in &self.streams {
            content.add(window, *id, false, &stream.entries);
            content.add(window, *id, true, &stream.bodies);
        }
        content.large = self.large.range(crate::live::lsns_of(window)).map(|(lsn, body)| (*lsn, *body)).collect();
        content
    }

    /// Merges the content of a live file.
    pub fn add_window(&mut self, content: Window) {
        for (id, is_body, key, word) in content.words {
            if let Some(stream) = self.streams.get_mut(&id) {
                if is_body { &mut stream.bodies } else { &mut stream.entries }.insert_word(key, word);
            }
        }
        self.large.extend(content.large);
    }

    /// Moves the snapshots of idle streams forward; see [`Stream::keep_up`].
    pub fn keep_up(&mut self) {
        let published = self.published;
        self.streams.values_mut().for_each(|stream| stream.keep_up(published));
    }

    /// The rows of a checkpoint taken now: all except its counter, its kind, the ring and the windows.
    pub fn rows(&self) -> Checkpoint {
        let row = |(&id, stream): (&u16, &Stream)| StreamRow {
            id,
            name: stream.name.clone(),
            position: stream.position,
            uncertain: stream.uncertain,
            lost: stream.lost,
            snapshots: stream.snapshots(),
        };
        Checkpoint {
            through: self.published,
            next_stream: self.next_stream,
            next_pack: self.next_pack,
            freed: self.freed,
            streams: self.streams.iter().map(row).collect(),
            packs: self.packs.clone(),
            cancelled: self.cancelled.keys().copied().collect(),
            ..Checkpoint::default()
        }
    }

    /// The state in a checkpoint: streams, packs and numbers. The needs come from its live files.
    pub fn of_rows(checkpoint: &Checkpoint) -> Self {
        let stream = |row: &StreamRow| Stream {
            name: row.name.clone(),
            position: row.position,
            uncertain: row.uncertain,
            lost: row.lost,
            snapshot: row.snapshots.first().cloned(),
            durable: [0, 1].map(|nth| row.snapshots.get(nth).cloned()),
            ..Stream::default()
        };
        State {
            published: checkpoint.through,
            through: checkpoint.through,
            freed: checkpoint.freed,
            streams: checkpoint.streams.iter().map(|row| (row.id, stream(row))).collect(),
            next_stream: checkpoint.next_stream.max(1),
            packs: checkpoint.packs.clone(),
            next_pack: checkpoint.next_pack,
            windows: checkpoint.windows.iter().copied().collect(),
            cancelled: checkpoint.cancelled.iter().map(|lsn| (*lsn, false)).collect(),
            ..State::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::FrontRegion;

    fn released(below: u64, also: &[u64]) -> Released {
        Released { below: Lsn::new(below), also: also.iter().copied().map(Lsn::new).collect() }
    }

    fn state() -> State {
        let mut state = State { published: 10, next_stream: 3, ..State::default() };
        for id in [1, 2] {
            state.streams.insert(id, Stream::default());
        }
        for lsn in 1..=10 {
            state.add_entry(lsn, 1, true);
            state.add_entry(lsn, 2, lsn % 2 == 0);
        }
        state
    }

    #[test]
    fn a_body_is_needed_until_the_last_stream_has_released_it() {
        let mut state = state();
        state.advance(1, 10, None, &released(11, &[]));
        assert_eq!(
            state.needed(1..=4),
            [(1, false), (2, true), (3, false), (4, true)],
            "stream 2's entries and bodies"
        );
        state.advance(2, 4, None, &released(0, &[4]));
        assert_eq!(state.needed(0..=6), [(2, true), (5, false), (6, true)]);
        assert_eq!(state.needed_count(0..=6), 3);
        assert!(!state.is_any_needed(3..=4) && state.is_any_needed(2..=2));
    }

    #[test]
    fn a_release_behind_the_position_waits_for_it() {
        let mut state = state();
        state.advance(1, 3, None, &released(6, &[8]));
        let bodies = |state: &State| state.streams[&1].bodies.iter(0..=99).collect::<Vec<_>>();
        assert_eq!(bodies(&state), [4, 5, 6, 7, 8, 9, 10], "an entry that is replayed finds its body");
        state.advance(1, 9, None, &released(0, &[]));
        assert_eq!(bodies(&state), [6, 7, 9, 10]);
    }

    #[test]
    fn a_position_moves_forward_up_to_what_was_published() {
        let mut state = state();
        state.advance(1, 99, None, &released(0, &[]));
        state.advance(1, 5, None, &released(0, &[]));
        assert_eq!(state.streams[&1].position, 10);
    }

    #[test]
    fn large_bodies_and_old_snapshots_are_doomed_once() {
        let mut state = state();
        let body = |upload| BodyFile { upload, len: 5, table_crc: 6, front: FrontRegion::default() };
        state.add_large(2, body(20));
        state.add_large(3, body(30));
        state.add_large(99, body(40));
        assert_eq!(std::mem::take(&mut state.doomed.uploads), [40], "nobody needs it");
        let name = |name| SnapshotName::new(name);
        state.advance(1, 10, name("a"), &released(11, &[]));
        assert_eq!(std::mem::take(&mut state.doomed.uploads), [30]);
        state.advance(1, 10, name("b"), &released(11, &[]));
        state.advance(1, 10, name("b"), &released(11, &[]));
        assert_eq!(state.doomed.snapshots, [name("a").unwrap()]);
        state.advance(2, 10, None, &released(0, &[2]));
        assert_eq!(state.doomed.uploads, [20]);
        assert!(state.large.is_empty());
    }
}
