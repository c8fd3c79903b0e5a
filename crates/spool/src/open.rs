//! Opening: the checkpoint, the live files it names, and what the ring holds after it.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use crate::Lsn;
use posthaste_fsops::Space;
use posthaste_ring::{OnRecord, Recovery, Ring};
use rustix::fs::{FlockOperation, OFlags};

use crate::batch::{BodyPlace, Head};
use crate::bodies::{self, Bodies};
use crate::checkpoint::{Checkpoint, CheckpointFiles, Found, PackRow};
use crate::core::{Core, Wanted};
use crate::events::{Damage, Event};
use crate::keeper::Keeper;
use crate::live::{LiveFiles, lsns_of};
use crate::pack::{self, PackCache, PackError};
use crate::pressure::Pressure;
use crate::scrub::Scrubber;
use crate::shared::{Shared, Work, usable_bytes};
use crate::snapshots::{SnapshotName, Snapshots};
use crate::state::{State, Stream};
use crate::{Config, FileSpool, OpenError, files};

/// The findings of an opening.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct OpenReport {
    /// Damage to stored data, each with what it cost; everything else is whole.
    pub damage: Vec<Damage>,
    /// Unfinished writes of the last process, which were cut off, and damage with a whole second copy. Nothing of it had been acknowledged.
    pub cut_off: Vec<Damage>,
    /// Files that could not be read and of which a second copy or the batches tell the same. They were written anew, or will be with the next checkpoint.
    pub mended: Vec<Damage>,
    /// Batches after the last checkpoint.
    pub batches_behind_checkpoint: u64,
    /// The last batch.
    pub last: Lsn,
    /// Body files that no batch names. They stay where they are, because something could not be read that may have named them.
    pub unnamed_bodies: Vec<String>,
}

impl FileSpool {
    /// Opens the spool in `dir`, making one if there is none, and finds what every stream still needs. Streams see nothing before
    /// [`Spool::replay`](crate::Spool::replay).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(dir: &Path, config: Config) -> Result<(FileSpool, OpenReport), OpenError> {
        posthaste_fsops::make_dir(dir)?;
        let lock = lock(dir)?;
        let mut report = OpenReport::default();
        let (files, checkpoint) = first_checkpoint(dir, &mut report)?;
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
        let (ring, recovery) = open_ring(dir, &config, &core, &bodies, &checkpoint)?;
        // A failed sync may have dropped writes of any file on the device, so no later sync there is trusted, whatever part of the program asked.
        let watch = posthaste_fsops::watch(&lock, {
            let ring = ring.clone();
            move |what| ring.poison(format!("the spool's device has failed: {what}"))
        });
        for found in &recovery.damage {
            let told = if found.promised { &mut damage } else { &mut report.cut_off };
            told.push(damage_of(found));
        }
        let packs = PackCache::new(pack::dir_of(dir));
        let first_in_ring = ring.segments().iter().map(|segment| segment.first.get()).find(|first| *first > 0);
        state.packed_through = first_in_ring.map_or(checkpoint.through, |first| first - 1);
        state.published = checkpoint.through.max(recovery.last.get());
        state.lose(recovery.lost_through.get());
        report.last = Lsn::new(state.published);
        report.batches_behind_checkpoint = read_ring(&ring, &mut state, checkpoint.through, &mut damage)?;
        for window in &lost {
            find_again(&ring, &packs, &mut state, *window, checkpoint.through, &mut damage)?;
        }
        report.unnamed_bodies = remove_bodies(&bodies, &state, damage.is_empty() && lost.is_empty())?;
        damage.iter().for_each(|damage| config.events.tell(Event::Damage(damage.clone())));
        report.damage = damage;

        *core.state() = state;
        let has_keeper = config.keeper;
        let usable = usable_bytes(config.ring.max_segments, config.ring.segment_bytes);
        let pressure = Pressure::new(ring.bytes_used(), usable);
        let (counter, ring_low) = (checkpoint.counter, checkpoint.ring_low);
        let work = Work { files, live, counter, ring_low, durable_ring_low: ring_low, damaged_packs: HashMap::new() };
        let shared = Arc::new(Shared {
            config,
            ring,
            core,
            bodies,
            snapshots,
            packs,
            dir: dir.to_owned(),
            work: Mutex::new(work),
            is_short_of_space: AtomicBool::new(false),
            lost_fronts: Mutex::default(),
            pressure,
            checkpoints: AtomicU64::new(0),
            checkpoints_failed: AtomicU64::new(0),
            checkpoint_since: Mutex::default(),
            _watch: watch,
            _lock: lock,
        });
        shared.look_at_space();
        let keeper = if has_keeper { Some(Keeper::start(shared.clone())?) } else { None };
        let scrubs = has_keeper && shared.config.scrub_bytes_per_sec > 0;
        let scrubber = if scrubs { Some(Scrubber::start(shared.clone())?) } else { None };
        Ok((FileSpool { shared, keeper, scrubber, is_abandoned: false }, report))
    }
}

/// Opens the ring with what else is known of it: the checkpoint, and LSNs on record elsewhere.
fn open_ring(
    dir: &Path,
    config: &Config,
    core: &Arc<Core>,
    bodies: &Bodies,
    checkpoint: &Checkpoint,
) -> Result<(Ring, Recovery), OpenError> {
    let room = bodies.room().clone();
    let ring_config = posthaste_ring::Config {
        events: ring_events(core, config),
        room: Arc::new(move || room.free()),
        roster: Some(dir.join(ROSTER)),
        ..config.ring.clone()
    };
    let on_record = OnRecord { seen: config.lsns_above.into(), ..checkpoint.on_record() };
    Ring::open(&dir.join(RING), ring_config, on_record).map_err(|error| match error {
        posthaste_ring::OpenError::Locked { .. } => OpenError::Locked,
        missing @ posthaste_ring::OpenError::Missing { .. } => OpenError::Missing(missing.into()),
        other => OpenError::Log(other.into()),
    })
}

/// The ring's damage as the spool's.
pub(crate) fn damage_of(found: &posthaste_ring::Damage) -> Damage {
    let what = match found.lsns {
        Some((first, last)) if first == last => found.what.to_owned(),
        Some((first, last)) => format!("{} (batches {first} to {last})", found.what),
        None => found.what.to_owned(),
    };
    let place = format!("{RING}/{} at {}", found.segment, found.offset);
    Damage { lsn: found.lsns.map(|(first, _)| first.into()), place, what }
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let lock = posthaste_fsops::open(dir.join(LOCK), flags, files::OWNER).map_err(io::Error::from)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked),
        locked => Ok(locked.map(|()| lock.into()).map_err(io::Error::from)?),
    }
}

/// The checkpoint to start from. A new spool gets one before anything else is made in it, so that one without any has lost it.
fn first_checkpoint(dir: &Path, report: &mut OpenReport) -> Result<(CheckpointFiles, Checkpoint), OpenError> {
    let (mut files, found, spoiled) = CheckpointFiles::open(dir)?;
    if let (Found::Valid(_), Some(spoiled)) = (&found, &spoiled) {
        let told = if spoiled.is_unreadable() { &mut report.mended } else { &mut report.cut_off };
        told.push(spoiled.told());
    }
    let checkpoint = match found {
        Found::Valid(checkpoint) => {
            // Before anything is removed or used again that only an older one names.
            files.make_durable(&checkpoint)?;
            checkpoint
        }
        Found::Nothing if !dir.join(RING).exists() => {
            let first = Checkpoint { counter: 1, next_stream: 1, ..Checkpoint::default() };
            files.write(&first)?;
            first
        }
        Found::Nothing | Found::Damaged => return Err(OpenError::NoCheckpoint),
    };
    Ok((files, checkpoint))
}

/// Reads the live files. Returns the windows whose files are damaged: no batch is lost with them.
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

/// Removes what the checkpoint does not name: it was written for a later one that is not there, or was to be removed.
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

/// Events of the ring, told on its own thread.
fn ring_events(core: &Arc<Core>, config: &Config) -> posthaste_ring::Events {
    let (core, events) = (core.clone(), config.events.clone());
    Arc::new(move |event| match event {
        posthaste_ring::Event::Cancelled(lsn) => core.cancelled(lsn.into()),
        posthaste_ring::Event::RoomWanted => core.bell.ring(Wanted::Room),
        posthaste_ring::Event::SegmentFailed(error) => events.tell(Event::SegmentFailed { error: error.to_string() }),
        posthaste_ring::Event::Poisoned(why) => events.tell(Event::Poisoned { why: why.to_string() }),
        _ => {}
    })
}

/// Takes in every batch after the checkpoint; says how many.
fn read_ring(ring: &Ring, state: &mut State, through: u64, damage: &mut Vec<Damage>) -> io::Result<u64> {
    let (mut batches, mut cancelled) = (Vec::new(), BTreeSet::new());
    visit(ring, through + 1, damage, &mut |lsn, head| {
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
    // What was not needed at once is removed below, with all that no batch names.
    state.doomed.uploads.clear();
    Ok(count)
}

/// The streams that need a batch, without the payloads: the ring may hold hundreds of thousands of batches.
struct Needs {
    entries: Vec<(u16, bool)>,
    body: BodyPlace,
}

/// Shows the heads in the ring from an LSN on, until `each` says no.
fn visit(ring: &Ring, from: u64, damage: &mut Vec<Damage>, each: &mut dyn FnMut(u64, Head) -> bool) -> io::Result<()> {
    let mut unknown = None;
    let visited = ring.visit(Lsn::new(from).into(), &mut |record| match Head::decode(record.head) {
        Some(head) => match each(record.lsn.get(), head) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        },
        None => {
            unknown.get_or_insert(record.lsn);
            ControlFlow::Continue(())
        }
    });
    damage.extend(unknown.map(|lsn| Damage {
        lsn: Some(lsn.into()),
        place: RING.to_owned(),
        what: "its head has a format that is not known".to_owned(),
    }));
    match visited {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            damage.push(Damage { lsn: None, place: RING.to_owned(), what: error.to_string() });
            Ok(())
        }
        visited => visited,
    }
}

/// Restores a lost live file, as far as the batches tell: a stream needs the entries after its position, and of the bodies none is let go.
fn find_again(
    ring: &Ring,
    packs: &PackCache,
    state: &mut State,
    window: u64,
    through: u64,
    damage: &mut Vec<Damage>,
) -> io::Result<()> {
    let (first, last) = lsns_of(window).into_inner();
    let last = last.min(through);
    let (mut found, mut cancelled) = (Vec::new(), state.cancelled.keys().copied().collect::<BTreeSet<_>>());
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
    visit(ring, state.packed_through + 1, damage, &mut |lsn, head| {
        cancelled.extend(head.cancels());
        if (first..=last).contains(&lsn) {
            found.push((lsn, head));
        }
        true
    })?;
    for (lsn, head) in found.into_iter().filter(|(lsn, _)| !cancelled.contains(lsn)) {
        state.find_again(lsn, &head);
    }
    state.doomed.uploads.clear();
    state.dirty.insert(window);
    Ok(())
}

/// Removes body files that no batch names, if that is certain; else says which there are.
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

pub(crate) const RING: &str = "ring";
/// The file with the segments that must be there. Not in the directory of the ring: it tells when all of that is gone.
pub(crate) const ROSTER: &str = "segments";
pub(crate) const LOCK: &str = "lock";
