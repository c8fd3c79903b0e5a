//! Opening: reads the checkpoint, its live files, and the store's later records.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use crate::Lsn;
use posthaste_fsops::Space;

use crate::batch::{BodyPlace, Head};
use crate::bodies::{self, Bodies};
use crate::checkpoint::{Checkpoint, CheckpointFiles, Found, PackRow};
use crate::closed::RECORD_MISSING;
use crate::core::{CancelLog, Core};
use crate::events::{Damage, SpoolEvent};
use crate::keeper::Keeper;
use crate::live::{LiveFiles, lsns_of};
use crate::pack::{self, PackCache, PackError};
use crate::place::{has_been_imported, lock};
use crate::pressure::Pressure;
use crate::scrub::Scrubber;
use crate::shared::{Shared, Work};
use crate::snapshots::{SnapshotName, Snapshots};
use crate::state::{State, Stream};
use crate::store::{self, Store, Unneeded, VisitError};
use crate::{Config, FileSpool, OpenError, StoreKind, files};

/// Result of an opening.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct OpenReport {
    /// Damage to stored data, each with the resulting loss; everything else is intact.
    pub damage: Vec<Damage>,
    /// Truncated unfinished writes of the last process, and damage with an intact second copy. No acknowledged data are
    /// lost.
    pub cut_off: Vec<Damage>,
    /// Unreadable files whose content a second copy or the batches contain. They were rewritten, or will be with the
    /// next checkpoint.
    pub mended: Vec<Damage>,
    /// Number of batches after the last checkpoint.
    pub batches_behind_checkpoint: u64,
    /// LSN of the last batch.
    pub last: Lsn,
    /// Body files without a batch. They are kept, because an unreadable file may refer to them.
    pub unnamed_bodies: Vec<String>,
}

impl FileSpool {
    /// Opens or creates the spool in `dir`, and determines the needs of every stream. Streams see nothing before
    /// [`Spool::replay`](crate::Spool::replay).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(dir: &Path, config: Config) -> Result<(FileSpool, OpenReport), OpenError> {
        posthaste_fsops::make_dir(dir)?;
        let lock = lock(dir)?;
        has_been_imported(dir)?;
        config.kind.check(dir)?;
        let mut report = OpenReport::default();
        let (mut files, mut checkpoint) = first_checkpoint(dir, &mut report)?;
        let mut damage = Vec::new();
        let live = LiveFiles::open(dir)?;
        let snapshots = Snapshots::open(dir)?;
        posthaste_fsops::make_dir(&pack::dir_of(dir))?;
        let floor = Space { bytes: config.free_bytes_min, inodes: config.free_inodes_min };
        let bodies = Arc::new(Bodies::open(bodies::dir_of(dir), floor)?);
        let mut state = State::of_rows(&checkpoint);
        let lost = read_windows(&live, &mut state, &mut report.mended)?;
        remove_unnamed(dir, &live, &snapshots, &state)?;

        let core = Arc::new(Core::new(config.watch.clone()));
        core.bytes_wanted.store(config.checkpoint_bytes, std::sync::atomic::Ordering::Relaxed);
        let (store, reopened) = store::open(dir, &config, &core, bodies.room(), &checkpoint)?;
        let cancels: Arc<dyn CancelLog> = store.clone();
        core.opened(Arc::downgrade(&cancels));
        if checkpoint.kind.is_none() {
            checkpoint = Checkpoint { counter: checkpoint.counter + 1, kind: Some(config.kind), ..checkpoint };
            files.write(&checkpoint)?;
        }
        // A failed sync may have dropped writes of any file on the device, so no later sync there is trusted, whatever part of the program asked.
        let watch = posthaste_fsops::watch(&lock, {
            let store = store.clone();
            move |what| store.poison(format!("the spool's device has failed: {what}"))
        });
        damage.extend(reopened.damage);
        report.cut_off.extend(reopened.cut_off);
        let packs = PackCache::new(pack::dir_of(dir));
        forget_again(&*store, &state, &checkpoint, lost.is_empty(), &mut damage);
        state.packed_through = reopened.packed_through.unwrap_or(checkpoint.through);
        state.published = checkpoint.through.max(reopened.last.get());
        let taken_in = read_store(&*store, &mut state, checkpoint.through, &mut damage)?;
        report.batches_behind_checkpoint = taken_in.batches;
        state.lose(taken_in.lost_through.max(reopened.lost_through.get()));
        report.last = Lsn::new(state.published);
        for window in &lost {
            find_again(&*store, &packs, &mut state, *window, checkpoint.through, &mut damage)?;
        }
        report.unnamed_bodies = remove_bodies(&bodies, &state, damage.is_empty() && lost.is_empty())?;
        damage.iter().for_each(|damage| config.events.tell(SpoolEvent::Damage(damage.clone())));
        let told = damage.iter().filter_map(|damage| damage.lsn).map(Lsn::get).collect();
        report.damage = damage;

        *core.state() = state;
        let pressure = Pressure::new(reopened.bytes_used, reopened.usable_bytes);
        let work = Work::after(&checkpoint, files, live);
        let shared = Arc::new(Shared {
            config,
            store,
            core,
            bodies,
            snapshots,
            packs,
            dir: dir.to_owned(),
            work: Mutex::new(work),
            is_short_of_space: AtomicBool::new(false),
            lost_fronts: Mutex::default(),
            lost_heads: Mutex::new(told),
            pressure,
            checkpoints: AtomicU64::new(0),
            checkpoints_failed: AtomicU64::new(0),
            checkpoint_since: Mutex::default(),
            _watch: watch,
            _lock: lock,
        });
        Ok((FileSpool::begin(shared, checkpoint.through)?, report))
    }

    /// Starts the threads of an opened spool. `through`: the last batch that its checkpoint covers.
    fn begin(shared: Arc<Shared>, through: u64) -> io::Result<FileSpool> {
        shared.look_at_space();
        // A later opening may not find it any more: of a segment that was cut off nothing tells once a record follows it.
        if shared.core.state().lost_through > through {
            // A failure is told as an event; the next one has it, too.
            let _ = shared.checkpoint();
        }
        let Config { keeper: has_keeper, scrub_bytes_per_sec, .. } = shared.config;
        let keeper = if has_keeper { Some(Keeper::start(shared.clone())?) } else { None };
        let scrubs = has_keeper && scrub_bytes_per_sec > 0;
        let scrubber = if scrubs { Some(Scrubber::start(shared.clone())?) } else { None };
        Ok(FileSpool { shared, keeper, scrubber, is_abandoned: false })
    }
}

/// The checkpoint to start from. A new spool gets one first, so a spool without one has lost it.
fn first_checkpoint(dir: &Path, report: &mut OpenReport) -> Result<(CheckpointFiles, Checkpoint), OpenError> {
    let (mut files, found, spoiled) = CheckpointFiles::open(dir)?;
    if let (Found::Valid(_), Some(spoiled)) = (&found, &spoiled) {
        let told = if spoiled.is_unreadable() { &mut report.mended } else { &mut report.cut_off };
        told.push(spoiled.told());
    }
    let checkpoint = match found {
        Found::Valid(checkpoint) => {
            // Before any file is removed or reused that only an older checkpoint names.
            files.make_durable(&checkpoint)?;
            checkpoint
        }
        Found::Nothing if StoreKind::of(dir).is_none() => {
            let first = Checkpoint { counter: 1, next_stream: 1, ..Checkpoint::default() };
            files.write(&first)?;
            first
        }
        Found::Nothing | Found::Damaged => return Err(OpenError::NoCheckpoint),
    };
    Ok((files, checkpoint))
}

/// Reads the live files. Returns the windows with damaged files, which lose no batch.
fn read_windows(live: &LiveFiles, state: &mut State, mended: &mut Vec<Damage>) -> io::Result<Vec<u64>> {
    let mut lost = Vec::new();
    for (window, generation) in state.windows.clone() {
        match live.read(window, generation)? {
            Some(content) => state.add_window(content),
            None => {
                let (first, last) = lsns_of(window).into_inner();
                mended.push(Damage {
                    lsn: None,
                    place: format!("live/{window:x}.{generation:x}"),
                    what: format!(
                        "what is still needed of the batches {first} to {last} is found again from the batches; released bodies may come back"
                    ),
                });
                lost.push(window);
            }
        }
    }
    Ok(lost)
}

/// Removes files that the checkpoint does not name: written for a later checkpoint that does not exist, or due for
/// removal.
fn remove_unnamed(dir: &Path, live: &LiveFiles, snapshots: &Snapshots, state: &State) -> io::Result<()> {
    for (window, generation) in live.list()? {
        if state.windows.get(&window) != Some(&generation) {
            live.remove(window, generation)?;
        }
    }
    let packs = pack::dir_of(dir);
    let paths = |row: &PackRow| [pack::pack_path(&packs, row.id), pack::index_path(&packs, row.id)];
    let named: BTreeSet<PathBuf> = state.packs.iter().flat_map(paths).collect();
    for path in files::list(&packs)?.into_iter().map(|name| packs.join(name)) {
        if !named.contains(&path) {
            files::remove(&path)?;
        }
    }
    let named = state.streams.values().flat_map(Stream::snapshots).map(|row| row.name);
    snapshots.remove_others(&named.filter(SnapshotName::is_file).collect::<Vec<_>>())
}

/// Facts about the batches after the checkpoint.
struct TakenIn {
    batches: u64,
    /// LSN of the last damaged record with unknown content; 0 if none.
    lost_through: u64,
}

/// Reads every batch after the checkpoint into `state`.
fn read_store(store: &dyn Store, state: &mut State, through: u64, damage: &mut Vec<Damage>) -> io::Result<TakenIn> {
    let mut batches = Vec::new();
    let mut cancelled = BTreeSet::new();
    let mut damaged = Vec::new();
    visit(store, through + 1, &mut damaged, &mut |lsn, head| {
        cancelled.extend(head.cancels());
        let needs = head.entries.iter().map(|entry| (entry.stream, entry.needs_body)).collect();
        batches.push((lsn, Needs { entries: needs, body: head.body }));
        true
    })?;
    let count = batches.len() as u64;
    for (lsn, needs) in batches.into_iter().filter(|(lsn, _)| !cancelled.contains(lsn)) {
        for (stream, needs_body) in needs.entries {
            state.add_entry(lsn, stream, needs_body);
        }
        if let BodyPlace::File(body) = needs.body {
            state.add_large(lsn, body);
        }
    }
    // Unneeded body files are removed below, with those that no batch names.
    state.doomed.uploads.clear();
    damaged.retain(|damage| damage.lsn.is_none_or(|lsn| !cancelled.contains(&lsn.get())));
    let lost_through = damaged.iter().filter_map(|damage| damage.lsn).max().map_or(0, Lsn::get);
    damage.extend(damaged);
    Ok(TakenIn { batches: count, lost_through })
}

/// The streams that need a batch, without the payloads: the store may hold hundreds of thousands of batches.
struct Needs {
    entries: Vec<(u16, bool)>,
    body: BodyPlace,
}

/// Visits the heads in the store from an LSN on, until `each` returns false.
fn visit(
    store: &dyn Store,
    from: u64,
    damage: &mut Vec<Damage>,
    each: &mut dyn FnMut(u64, Head) -> bool,
) -> io::Result<()> {
    let mut unknown = Vec::new();
    let visited = store.visit(Lsn::new(from), &mut |record| match Head::decode(record.head) {
        Some(head) => {
            if each(record.lsn.get(), head) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        }
        None => {
            unknown.push(record.lsn);
            ControlFlow::Continue(())
        }
    });
    damage.extend(unknown.into_iter().map(|lsn| Damage {
        lsn: Some(lsn),
        place: store.name().to_owned(),
        what: "its head has an unknown format".to_owned(),
    }));
    match visited {
        Ok(()) => Ok(()),
        Err(VisitError::Damaged(found)) => {
            damage.extend(found);
            Ok(())
        }
        Err(VisitError::Io(error)) => Err(error),
    }
}

/// Reconstructs a lost live file from the batches: a stream needs the entries after its position, and no body counts as
/// released.
fn find_again(
    store: &dyn Store,
    packs: &PackCache,
    state: &mut State,
    window: u64,
    through: u64,
    damage: &mut Vec<Damage>,
) -> io::Result<()> {
    let (first, last) = lsns_of(window).into_inner();
    let last = last.min(through);
    let mut found = Vec::new();
    let mut cancelled = state.cancelled.keys().copied().collect::<BTreeSet<_>>();
    for row in state.packs.iter().filter(|row| row.first <= last && first <= row.last) {
        let read = packs.get(row.id).and_then(|reader| {
            reader.each(|entry| {
                if (first..=last).contains(&entry.lsn) {
                    found.extend(Head::decode(reader.head(&entry)?).map(|head| (entry.lsn, head)));
                }
                Ok::<_, PackError>(())
            })
        });
        match read {
            Err(PackError::Damaged(what)) => {
                damage.push(Damage { lsn: None, place: format!("pack {:x}", row.id), what: what.to_owned() });
            }
            read => read.map_err(io::Error::from)?,
        }
    }
    let mut damaged = Vec::new();
    visit(store, state.packed_through + 1, &mut damaged, &mut |lsn, head| {
        cancelled.extend(head.cancels());
        if (first..=last).contains(&lsn) {
            found.push((lsn, head));
        }
        true
    })?;
    // Entries of other batches are found elsewhere.
    damage.extend(damaged.into_iter().filter(|it| it.lsn.is_none_or(|lsn| (first..=last).contains(&lsn.get()))));
    for (lsn, head) in found.into_iter().filter(|(lsn, _)| !cancelled.contains(lsn)) {
        state.find_again(lsn, &head);
    }
    state.doomed.uploads.clear();
    state.dirty.insert(window);
    Ok(())
}

/// For a store that removes single records: removes those that reappeared after a power cut, and reports missing ones.
fn forget_again(store: &dyn Store, state: &State, checkpoint: &Checkpoint, is_certain: bool, damage: &mut Vec<Damage>) {
    let Some(held) = store.extent().held else { return };
    let needed = state.all_needed();
    for lsn in needed.without(&held, 0..=checkpoint.through).iter(0..=u64::MAX) {
        let what = RECORD_MISSING.to_owned();
        damage.push(Damage { lsn: Some(Lsn::new(lsn)), place: store.name().to_owned(), what });
    }
    if is_certain {
        // Later records may be kept for a stream that starts from an older snapshot.
        let lsns = held.without(&needed, 0..=checkpoint.freed.min(checkpoint.through));
        store.forget(&Unneeded { lsns, ..Unneeded::default() });
    }
}

/// Removes body files without a batch, if that is certain; else returns them.
fn remove_bodies(bodies: &Bodies, state: &State, is_certain: bool) -> io::Result<Vec<String>> {
    let named: BTreeSet<u64> = state.large.values().map(|body| body.upload).collect();
    let mut left = Vec::new();
    for upload in bodies.list()?.into_iter().filter(|upload| !named.contains(upload)) {
        if is_certain {
            bodies.remove(upload)?;
        } else {
            left.push(bodies.name(upload));
        }
    }
    Ok(left)
}
