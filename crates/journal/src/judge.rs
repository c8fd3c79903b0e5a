//! Tells damage that breaks a promise from what a power cut may leave.

use std::collections::BTreeMap;

use crate::layout::RecordHeader;
use crate::pool::Segment;
use crate::recovery::{Damage, SEQ_GAP, Scan};

/// What one opening of the journal, an epoch, has left.
#[derive(Default)]
struct Epoch {
    /// The highest number of a whole record, and of any, also a damaged one.
    whole: u64,
    last: u64,
    /// Everything up to here was durable.
    mark: u64,
    /// What it found of the epoch before it, without a break, and made durable.
    found: u64,
    /// The same if nothing is left of that epoch: a checkpoint has freed it, or it is lost.
    found_elsewhere: Option<u64>,
}

/// Tells damage to promised records from a torn tail: within one epoch, what a later record's mark calls durable was promised, and so was
/// what the next epoch found; what lies behind was still being written when the power went.
///
/// Returns the damage, and up to which number everything has been found that the last epoch can have promised.
pub(crate) fn judge(segments: &BTreeMap<u64, Segment>, scans: &BTreeMap<u64, Scan>) -> (Vec<Damage>, u64) {
    let epochs = epochs(segments, scans);
    let mut damage = Vec::new();
    // Of the last epoch, the first number that is damaged and was not promised.
    let mut torn: Option<u64> = None;
    // The last sequence number seen in the epoch so far, and where it ended.
    let mut last: Option<(u64, u64, String, u64)> = None;
    for (number, scanned) in scans.iter().filter(|(_, scanned)| scanned.has_any()) {
        let segment = &segments[number];
        let epoch = segment.header.epoch;
        let mark = epochs[&epoch].mark;
        if last.as_ref().is_none_or(|(before, ..)| *before != epoch) {
            damage.extend(last.take().and_then(|last| missing_at_the_end(&epochs, last)));
            torn = None;
        }
        let mut tell = |offset, seqs: Option<(u64, u64)>, promised: bool, what, name: &String| {
            if !promised {
                torn = torn.into_iter().chain([seqs.map_or(0, |(first, _)| first)]).min();
            }
            damage.push(Damage { segment: name.clone(), offset, seqs, promised, what });
        };
        let first_seen = scanned.records.iter().map(|record| record.header.seq);
        let first_gap = scanned.gaps.iter().filter_map(|gap| gap.seqs.map(|seqs| seqs.0));
        if let Some(first) = first_seen.clone().chain(first_gap).min()
            && let Some((_, seq, name, end)) = &last
        {
            if first > seq + 1 {
                tell(*end, Some((seq + 1, first - 1)), *seq < mark, "records missing", name);
            }
        } else if let Some(gap) = scanned.gaps.first().filter(|gap| gap.seqs.is_none()) {
            tell(gap.range.0, None, mark > 0, gap.what, &segment.name);
        }
        for gap in &scanned.gaps {
            if let Some((first, _)) = gap.seqs {
                tell(gap.range.0, gap.seqs, first <= mark, gap.what, &segment.name);
            }
        }
        let last_gap = scanned.gaps.iter().filter_map(|gap| gap.seqs.map(|seqs| seqs.1));
        if let Some(seq) = first_seen.chain(last_gap).max() {
            last = Some((epoch, seq, segment.name.clone(), scanned.end));
        }
    }
    damage.extend(last.and_then(|last| missing_at_the_end(&epochs, last)));
    let whole_epoch_missing = |found| Damage {
        segment: String::new(),
        offset: 0,
        seqs: Some((found, found)),
        promised: true,
        what: "records missing",
    };
    damage.extend(epochs.values().filter_map(|epoch| epoch.found_elsewhere).map(whole_epoch_missing));
    let whole = epochs.values().next_back().map_or(0, |epoch| epoch.whole);
    (damage, torn.map_or(whole, |torn| whole.min(torn.saturating_sub(1))))
}

fn epochs(segments: &BTreeMap<u64, Segment>, scans: &BTreeMap<u64, Scan>) -> BTreeMap<u64, Epoch> {
    let mut epochs: BTreeMap<u64, Epoch> = BTreeMap::new();
    for (number, scanned) in scans.iter().filter(|(_, scanned)| scanned.has_any()) {
        let epoch = epochs.entry(segments[number].header.epoch).or_default();
        for RecordHeader { seq, durable, .. } in scanned.records.iter().map(|record| record.header) {
            epoch.whole = epoch.whole.max(seq);
            // Before its first sync an epoch tells what it found.
            let known = if seq.saturating_sub(durable) > SEQ_GAP { &mut epoch.found } else { &mut epoch.mark };
            *known = (*known).max(durable);
        }
        let last_gap = scanned.gaps.iter().filter_map(|gap| gap.seqs.map(|seqs| seqs.1)).max();
        epoch.last = epoch.last.max(epoch.whole).max(last_gap.unwrap_or(0));
    }
    let mut before: Option<&mut Epoch> = None;
    for epoch in epochs.values_mut() {
        match before.filter(|before| epoch.found <= before.last + SEQ_GAP) {
            Some(before) => before.mark = before.mark.max(epoch.found),
            None => epoch.found_elsewhere = Some(epoch.found).filter(|&found| found > 0),
        }
        before = Some(epoch);
    }
    epochs
}

/// What the next epoch found behind the last record that is still there.
fn missing_at_the_end(epochs: &BTreeMap<u64, Epoch>, last: (u64, u64, String, u64)) -> Option<Damage> {
    let (epoch, seq, segment, offset) = last;
    let mark = epochs[&epoch].mark;
    let seqs = Some((seq + 1, mark));
    (seq < mark).then_some(Damage { segment, offset, seqs, promised: true, what: "records missing" })
}
