//! Classifies damage: acknowledged data is lost, or a torn tail as a power cut leaves it.

use std::collections::BTreeMap;

use crate::layout::RecordHeader;
use crate::scan::Scan;
use crate::segment::{Damage, SEQ_GAP, Segment};

/// Tells damage to promised records from a torn tail: within one epoch, what a later record's mark calls durable was promised, and so was
/// what the next epoch found; what follows was still being written when the power went.
///
/// Segments up to sequence number `through` may have been put to new use wherever they lay, so that nothing is left of them: that is no
/// damage. What is damaged within a segment is told even so, for it may have been live.
pub(crate) fn judge(segments: &BTreeMap<u64, Segment>, scans: &BTreeMap<u64, Scan>, through: u64) -> Vec<Damage> {
    let epochs = epochs(segments, scans);
    let mut damage: Vec<Damage> = epochs.values().flat_map(|epoch| epoch.damage(through)).collect();
    let nowhere = End { seq: 0, segment: "", offset: 0 };
    let whole_epoch_missing = |found| nowhere.missing_behind((found, found), true);
    let found_elsewhere = epochs.values().filter_map(|epoch| epoch.found_elsewhere);
    damage.extend(found_elsewhere.filter(|&found| found > through).map(whole_epoch_missing));
    damage
}

/// What one opening of the journal, an epoch, has left.
#[derive(Default)]
struct Epoch<'a> {
    /// Its segments, those with a record or the remains of one, in the order of the log.
    segments: Vec<(&'a Segment, &'a Scan)>,
    /// The highest number of any record, also a damaged one.
    last: u64,
    /// Everything up to here was durable.
    mark: u64,
    /// What it found of the epoch before it, without a break, and made durable.
    found: u64,
    /// The same if nothing is left of that epoch: a checkpoint has freed it, or it is lost.
    found_elsewhere: Option<u64>,
}

/// The end of what is left of some segments.
struct End<'a> {
    /// The highest sequence number so far.
    seq: u64,
    segment: &'a str,
    offset: u64,
}

impl End<'_> {
    fn missing_behind(&self, seqs: (u64, u64), promised: bool) -> Damage {
        let (segment, what) = (self.segment.to_owned(), "records missing");
        Damage { segment, offset: self.offset, seqs: Some(seqs), promised, what }
    }
}

impl Epoch<'_> {
    /// What is damaged of it, and what is missing after `through`, in the order of the log.
    fn damage(&self, through: u64) -> Vec<Damage> {
        let mut damage = Vec::new();
        let mut end: Option<End<'_>> = None;
        for &(segment, scanned) in &self.segments {
            let seqs = scanned.seqs();
            let mut within = self.damage_within(segment, scanned).peekable();
            // Of damage at the beginning the segment itself does not tell which records it hit.
            let at_the_beginning = within.next_if(|damage| damage.seqs.is_none());
            match (&end, seqs) {
                (Some(end), Some((first, _))) if first > end.seq + 1 => {
                    let (missing, promised) = ((end.seq + 1, first - 1), end.seq < self.mark);
                    match at_the_beginning {
                        Some(here) => damage.push(Damage { seqs: Some(missing), promised, ..here }),
                        None if missing.1 > through => damage.push(end.missing_behind(missing, promised)),
                        None => {}
                    }
                }
                (Some(_), Some(_)) => {}
                _ => damage.extend(at_the_beginning),
            }
            damage.extend(within.filter(|damage| damage.seqs.is_some()));
            if let Some((_, seq)) = seqs {
                end = Some(End { seq, segment: &segment.name, offset: scanned.end });
            }
        }
        // What the next epoch found after the last record that is still there.
        let cut_off = end.filter(|end| end.seq < self.mark && through < self.mark);
        damage.extend(cut_off.map(|end| end.missing_behind((end.seq + 1, self.mark), true)));
        damage
    }

    fn damage_within<'a>(&self, segment: &'a Segment, scanned: &'a Scan) -> impl Iterator<Item = Damage> + use<'a> {
        let mark = self.mark;
        scanned.gaps.iter().map(move |gap| Damage {
            segment: segment.name.clone(),
            offset: gap.range.0,
            seqs: gap.seqs,
            promised: gap.seqs.map_or(mark > 0, |(first, _)| first <= mark),
            what: gap.what,
        })
    }
}

fn epochs<'a>(segments: &'a BTreeMap<u64, Segment>, scans: &'a BTreeMap<u64, Scan>) -> BTreeMap<u64, Epoch<'a>> {
    let mut epochs: BTreeMap<u64, Epoch<'a>> = BTreeMap::new();
    for (number, scanned) in scans.iter().filter(|(_, scanned)| scanned.has_any()) {
        let segment = &segments[number];
        let epoch = epochs.entry(segment.header.epoch).or_default();
        epoch.segments.push((segment, scanned));
        for RecordHeader { seq, durable, .. } in scanned.records.iter().map(|record| record.header) {
            // Before its first sync an epoch tells what it found.
            let known = if seq.saturating_sub(durable) > SEQ_GAP { &mut epoch.found } else { &mut epoch.mark };
            *known = (*known).max(durable);
        }
        epoch.last = epoch.last.max(scanned.seqs().map_or(0, |(_, last)| last));
    }
    let mut before: Option<&mut Epoch<'_>> = None;
    for epoch in epochs.values_mut() {
        match before.filter(|before| epoch.found <= before.last + SEQ_GAP) {
            Some(before) => before.mark = before.mark.max(epoch.found),
            None => epoch.found_elsewhere = Some(epoch.found).filter(|&found| found > 0),
        }
        before = Some(epoch);
    }
    epochs
}
