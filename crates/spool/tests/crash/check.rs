//! Batches that must, may and must not be in a spool after a cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use posthaste_spool::{ClosedFileSpool, FileSpool, Lsn, Released, Replayed, SnapshotName, Spool, SpoolAdmin, StreamId};

use crate::life::{Letter, Mark, STREAMS, config, content_of, left_over, number, streams};

/// Batches that a stream has released.
#[derive(Default, Clone)]
struct LetGo {
    position: u64,
    /// Positions that it has named since the last durable one, including that.
    snapshots: Vec<Option<SnapshotName>>,
    /// Up to where each counts (`None`: up to the position), everything below, and these.
    releases: Vec<(Option<u64>, Released)>,
}

impl LetGo {
    fn advance(&mut self, position: u64, released: &Released) {
        self.position = self.position.max(position);
        self.releases.push((None, released.clone()));
    }

    fn has_body(&self, lsn: u64) -> bool {
        let counts = |(through, released): &(Option<u64>, Released)| {
            let is_named = lsn < released.below.get() || released.also.contains(&Lsn::new(lsn));
            is_named && lsn <= through.unwrap_or(self.position)
        };
        self.releases.iter().any(counts)
    }

    /// A release after the position is forgotten when the process ends.
    fn begin(&mut self) {
        let position = self.position;
        for (through, _) in &mut self.releases {
            through.get_or_insert(position);
        }
    }
}

/// All that was promised before a cut.
pub struct Promised {
    letters: Vec<Arc<Letter>>,
    /// Letters by LSN, those that were acknowledged.
    acknowledged: BTreeMap<u64, usize>,
    /// Letters whose cancellation is durable.
    cancelled: BTreeSet<usize>,
    /// Of each stream: what it has asked for, and what of that a checkpoint holds.
    asked: Vec<LetGo>,
    durable: Vec<LetGo>,
    /// Where a stream was when it wrote a snapshot.
    positions: BTreeMap<SnapshotName, u64>,
}

impl Promised {
    pub fn new(letters: &[Arc<Letter>], marks: &[Mark]) -> Self {
        // A mark is durable if a checkpoint of the same process began after it.
        let is_durable = |index: usize| {
            let later = marks[index + 1..].iter().take_while(|mark| !matches!(mark, Mark::Begun));
            later.into_iter().any(|mark| matches!(mark, Mark::Durable { marks } if *marks > index))
        };
        let mut promised = Promised {
            letters: letters.to_vec(),
            acknowledged: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            asked: vec![LetGo::default(); STREAMS],
            durable: vec![LetGo::default(); STREAMS],
            positions: BTreeMap::new(),
        };
        for (index, mark) in marks.iter().enumerate() {
            match mark {
                Mark::Acknowledged { letter, lsn } => drop(promised.acknowledged.insert(*lsn, *letter)),
                Mark::Cancelled { letter } if is_durable(index) => drop(promised.cancelled.insert(*letter)),
                Mark::Advanced { stream, position, snapshot, released } => {
                    let snapshots = &mut promised.asked[*stream].snapshots;
                    if is_durable(index) || snapshots.is_empty() {
                        *snapshots = if is_durable(index) { Vec::new() } else { vec![None] };
                    }
                    snapshots.push(snapshot.clone());
                    promised.asked[*stream].advance(*position, released);
                    let reached = promised.asked[*stream].position;
                    if let Some(name) = snapshot {
                        promised.positions.entry(name.clone()).or_insert(reached);
                    }
                    if is_durable(index) {
                        promised.durable[*stream].advance(*position, released);
                    }
                }
                Mark::Begun => promised.durable.iter_mut().for_each(LetGo::begin),
                Mark::Cancelled { .. } | Mark::Durable { .. } => {}
            }
        }
        promised
    }

    /// Returns the batches that a stream is shown, by LSN, and the letter that each is.
    ///
    /// # Errors
    /// Says what is not as it was promised.
    pub fn check(&self, spool: &FileSpool) -> Result<BTreeMap<u64, usize>, String> {
        let Some(ids) = streams(spool) else { return Err("the streams are not there".into()) };
        // By LSN: the letter and the streams that it is shown to.
        let mut found: BTreeMap<u64, (usize, BTreeSet<usize>)> = BTreeMap::new();
        for (stream, id) in ids.iter().enumerate() {
            let mut wrong = None;
            let shown = spool.replay(*id, &mut |replayed| match replayed {
                Replayed::Entry { lsn, payload, .. } => {
                    let letter = number(payload);
                    let entry = found.entry(lsn.get()).or_insert((letter, BTreeSet::new()));
                    if entry.0 != letter || !entry.1.insert(stream) {
                        wrong = Some(format!("batch {lsn} is shown twice or as two letters"));
                    }
                }
                other => wrong = Some(format!("{other:?}")),
            });
            shown.map_err(|error| error.to_string())?;
            wrong.map_or(Ok(()), Err)?;
            let durable = self.durable[stream].position;
            if let Some((lsn, _)) = found.iter().find(|(lsn, (_, seen))| **lsn <= durable && seen.contains(&stream)) {
                return Err(format!("batch {lsn} comes back to stream {stream}, which had passed {durable}"));
            }
        }
        self.check_snapshots(spool, &ids)?;
        let shown = found.iter().map(|(lsn, (letter, _))| (*lsn, *letter)).collect();
        let mut letters_found = BTreeSet::new();
        for (lsn, (letter, _)) in &found {
            if self.cancelled.contains(letter) {
                return Err(format!("letter {letter} was cancelled and is shown"));
            }
            if !letters_found.insert(*letter) || self.acknowledged.get(lsn).is_some_and(|other| other != letter) {
                return Err(format!("letter {letter} is there twice, or under another LSN"));
            }
        }
        for (lsn, letter) in self.acknowledged.iter().map(|(lsn, letter)| (*lsn, *letter)) {
            found.entry(lsn).or_insert((letter, BTreeSet::new()));
        }
        for (lsn, (letter, seen)) in &found {
            self.check_letter(spool, *lsn, *letter, seen)?;
        }
        for (stream, stats) in spool.streams().iter().enumerate() {
            // Of letters that were never acknowledged nobody knows the LSN.
            let lsns: BTreeMap<usize, u64> = found.iter().map(|(lsn, (letter, _))| (*letter, *lsn)).collect();
            let may_need = |letter: &usize| {
                let needs = self.letters[*letter].entries.contains(&(stream, true));
                needs && lsns.get(letter).is_none_or(|lsn| !self.durable[stream].has_body(*lsn))
            };
            let most = (0..self.letters.len()).filter(may_need).count() as u64;
            if stats.bodies > most {
                return Err(format!("stream {stream} has {} bodies, and can need {most}", stats.bodies));
            }
        }
        Ok(shown)
    }

    /// The snapshot of a stream is what it said with its last durable position, or with a later one, and it is whole.
    fn check_snapshots(&self, spool: &FileSpool, ids: &[StreamId]) -> Result<(), String> {
        for (stream, id) in ids.iter().enumerate() {
            let (_, snapshot) = spool.position(*id);
            let asked = &self.asked[stream].snapshots;
            let may_be = asked.contains(&snapshot) || asked.is_empty() && snapshot.is_none();
            if !may_be {
                return Err(format!("stream {stream} has the snapshot {snapshot:?}, and asked for {asked:?}"));
            }
            if let Some(name) = snapshot {
                let mut content = Vec::new();
                match spool.read_snapshot(&name).map(|mut reader| reader.read_to_end(&mut content)) {
                    Ok(Ok(_)) if content == content_of(&name) => {}
                    read => return Err(format!("the snapshot {name:?} of stream {stream}: {read:?}")),
                }
            }
        }
        Ok(())
    }

    /// A stream whose last snapshot is lost starts from the one before: it is shown all that came since, or told that this is not all.
    pub fn check_older(&self, spool: &FileSpool, dir: &std::path::Path) -> Result<(), String> {
        for (stream, id) in streams(spool).ok_or("the streams are not there")?.into_iter().enumerate() {
            let (position, Some(last)) = spool.position(id) else { continue };
            std::fs::remove_file(dir.join("snapshots").join(last.as_str())).map_err(|error| error.to_string())?;
            let restored = spool.restore(id).map_err(|error| error.to_string())?;
            let base = match restored.snapshot.map(std::io::read_to_string) {
                Some(content) => {
                    let content = content.map_err(|error| error.to_string())?;
                    let name = SnapshotName::new(&content[..content.len() / 300]).ok_or("no name")?;
                    *self.positions.get(&name).ok_or_else(|| format!("{name:?} was never written"))?
                }
                None => 0,
            };
            let (mut shown, mut is_certain, mut wrong) = (BTreeSet::new(), true, None);
            let replayed = spool.replay(id, &mut |replayed| match replayed {
                Replayed::Entry { payload, needs_body: true, .. } if self.cancelled.contains(&number(payload)) => {
                    wrong = Some(format!("letter {} was cancelled and is shown to stream {stream}", number(payload)));
                }
                Replayed::Entry { lsn, .. } => drop(shown.insert(lsn.get())),
                Replayed::Damaged { lsn } => panic!("{lsn} is damaged"),
                Replayed::Uncertain { through } => {
                    assert_eq!(through, position);
                    is_certain = false;
                }
            });
            replayed.map_err(|error| error.to_string())?;
            wrong.map_or(Ok(()), Err)?;
            // Whose body it has let go is done with.
            let is_done = |lsn: u64, needs_body: bool| needs_body && self.asked[stream].has_body(lsn);
            let has_entry = |lsn: u64, letter: usize| {
                let mut entries = self.letters[letter].entries.iter();
                entries.any(|(to, needs_body)| *to == stream && !is_done(lsn, *needs_body))
            };
            let is_lost =
                |(lsn, letter): &(&u64, &usize)| **lsn > base && has_entry(**lsn, **letter) && !shown.contains(*lsn);
            let after = if is_certain { 0 } else { position.get() };
            if let Some((lsn, _)) = self.acknowledged.range(after + 1..).find(is_lost) {
                return Err(format!("stream {stream} starts from {base} and is not shown batch {lsn}"));
            }
        }
        Ok(())
    }

    /// All of a batch is there for every stream that has not let it go.
    fn check_letter(&self, spool: &FileSpool, lsn: u64, number: usize, seen: &BTreeSet<usize>) -> Result<(), String> {
        let letter = &self.letters[number];
        for &(stream, needs_body) in &letter.entries {
            let asked = &self.asked[stream];
            if lsn > asked.position && !seen.contains(&stream) {
                return Err(format!("stream {stream} has lost batch {lsn}, letter {number}"));
            }
            if needs_body && !asked.has_body(lsn) {
                match spool.read(Lsn::new(lsn), 0..letter.body.len() as u64) {
                    Ok(read) if read == letter.body => {}
                    Ok(_) => return Err(format!("batch {lsn}, letter {number}, has another body")),
                    Err(error) => return Err(format!("letter {number} for stream {stream}: {error}")),
                }
            }
        }
        Ok(())
    }
}

/// However often a process has begun, no batch is in two packs.
pub fn check_packs(spool: &FileSpool, dir: &std::path::Path) -> Result<(), String> {
    spool.pack_oldest(usize::MAX).map_err(|error| error.to_string())?;
    spool.checkpoint().map_err(|error| error.to_string())?;
    let closed = ClosedFileSpool::glance(dir).map_err(|error| error.to_string())?;
    let packs = closed.inspect().map_err(|error| error.to_string())?.packs;
    match packs.windows(2).find(|two| two[0].last >= two[1].first) {
        Some(two) => Err(format!("packs have batches in common: {two:?}")),
        None => Ok(()),
    }
}

/// A scrub finds nothing, and when nobody needs anything nothing is left.
pub fn check_end(spool: &FileSpool, dir: &std::path::Path) -> Result<(), String> {
    let scrubbed = spool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).map_err(|error| error.to_string())?;
    if let Some(damage) = scrubbed.damage.first() {
        return Err(format!("a scrub finds {damage}"));
    }
    let last = spool.stats().published;
    for id in streams(spool).ok_or("the streams are not there")? {
        let released = Released { below: Lsn::new(last.get() + 1), also: Vec::new() };
        spool.advance(id, last, None, released);
    }
    for _ in 0..3 {
        spool.clean_packs().map_err(|error| error.to_string())?;
        spool.checkpoint().map_err(|error| error.to_string())?;
    }
    match left_over(dir).first() {
        Some(left) => Err(format!("{left} is left")),
        None => Ok(()),
    }
}

/// Opens what a cut has left.
pub fn opened(dir: &std::path::Path) -> Result<FileSpool, String> {
    let (spool, report) = FileSpool::open(dir, config(false)).map_err(|error| format!("it does not open: {error}"))?;
    match report.damage.first() {
        Some(damage) => Err(format!("damage: {damage}")),
        None => Ok(spool),
    }
}
