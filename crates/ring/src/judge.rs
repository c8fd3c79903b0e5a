//! Classifies damage: lost acknowledged data, or a torn tail left by a power cut.

use std::collections::BTreeMap;

use crate::damage::{Read, RingDamage};
use crate::scan::LSN_GAP;
use crate::{Lsn, OnRecord, Proof};

/// The records of one opening of the ring, an epoch.
#[derive(Default)]
pub(crate) struct Epoch {
    /// Numbers of its segments that contain a record or a remnant of one.
    segments: Vec<u64>,
    /// LSN of its first known record; zero without any.
    first: Lsn,
    /// The last record with a whole header.
    last: Lsn,
    /// Everything up to here was durable.
    pub mark: Lsn,
    /// The last record of the previous epoch that it found, without a gap, and made durable.
    found: Lsn,
}

/// The epochs of these segments, in order, each with its last promised record: by its own records, by the next epoch,
/// and by the ring owner's notes.
pub(crate) fn epochs(segments: &BTreeMap<u64, Read>, proof: Proof) -> BTreeMap<u64, Epoch> {
    let mut epochs: BTreeMap<u64, Epoch> = BTreeMap::new();
    for (number, Read { segment, scan, .. }) in segments {
        let epoch = epochs.entry(segment.header.epoch).or_default();
        epoch.segments.push(*number);
        epoch.mark = epoch.mark.max(scan.mark);
        epoch.found = epoch.found.max(scan.found);
        if let Some((first, last)) = scan.lsns() {
            epoch.last = epoch.last.max(last);
            epoch.first = if epoch.first == Lsn::ZERO { first } else { epoch.first.min(first) };
        }
    }
    // Of no other epoch: what one has torn away the next does not promise.
    if let Some(epoch) = epochs.get_mut(&proof.epoch) {
        epoch.mark = epoch.mark.max(proof.through);
    }
    let mut before: Option<&mut Epoch> = None;
    for epoch in epochs.values_mut() {
        // Otherwise nothing is left of the epoch that it speaks of.
        if let Some(before) = before.filter(|before| epoch.found.get() <= before.last.get() + LSN_GAP) {
            before.mark = before.mark.max(epoch.found);
        }
        before = Some(epoch);
    }
    epochs
}

/// Segments that must exist in addition to the found ones.
pub(crate) struct Expected<'a> {
    /// Segments that are missing, in order.
    pub missing: &'a [u64],
    pub on_record: OnRecord,
    /// The highest LSN that may have been assigned.
    pub end: Lsn,
}

/// Classifies damage: lost promised records, or a torn tail. Within one epoch, records up to the mark of a later record
/// were promised, and so were those that the next epoch found. Later ones were still being written when the power
/// failed, unless a file is missing or truncated, which no power failure causes.
///
/// Returns the damage, and the last record up to which all possible promises of the last epoch were found.
pub(crate) fn judge(
    segments: &BTreeMap<u64, Read>,
    epochs: &mut BTreeMap<u64, Epoch>,
    expected: &Expected<'_>,
) -> (Vec<RingDamage>, Lsn) {
    let mut damage = expected.missing_between(segments);
    let mut found = Lsn::ZERO;
    let is_end_lost = expected.is_end_lost(segments);
    let last = epochs.keys().next_back().copied();
    for (number, epoch) in epochs {
        let durable = epoch.mark;
        if is_end_lost && Some(*number) == last {
            epoch.mark = expected.end;
        }
        let here = epoch.damage(segments, expected.on_record.freed);
        let whole = epoch.segments.iter().map(|number| segments[number].scan.whole).max().unwrap_or_default();
        let unpromised = here.iter().filter(|damage| !damage.promised);
        let torn = unpromised.map(|damage| damage.lsns.map_or(0, |(first, _)| first.get())).min();
        found = torn.map_or(whole, |torn| whole.min(Lsn::new(torn.saturating_sub(1)))).max(durable);
        damage.extend(here);
    }
    (damage, found)
}

impl Expected<'_> {
    /// True if no later record proves that the last one found was the last.
    fn is_end_lost(&self, segments: &BTreeMap<u64, Read>) -> bool {
        let Some((last, read)) = segments.last_key_value() else { return false };
        read.is_cut || self.missing.last().is_some_and(|missing| missing > last)
    }

    /// Reports missing segments between epochs. Those within an epoch, or at the end, show as gaps in the LSNs.
    fn missing_between(&self, segments: &BTreeMap<u64, Read>) -> Vec<RingDamage> {
        let freed = self.on_record.freed;
        let mut damage: Vec<RingDamage> = Vec::new();
        let mut note = |first: Lsn, last: Lsn| {
            let lsns = Some((Lsn::new(first.get() + 1), last)).filter(|(first, last)| first <= last);
            let what = "a segment is missing";
            let new = RingDamage { segment: String::new(), offset: 0, lsns, promised: true, what };
            if damage.last() != Some(&new) {
                damage.push(new);
            }
        };
        for number in self.missing {
            let before = segments.range(..number).next_back();
            let after = segments.range(number..).next();
            let last = before.and_then(|(_, read)| Some(read.scan.lsns()?.1)).unwrap_or(freed);
            match (before, after) {
                (None, None) => note(freed, self.end),
                (Some(_), None) => {}
                (Some((_, before)), Some((_, after))) if before.segment.header.epoch == after.segment.header.epoch => {}
                (_, Some((_, after))) => {
                    let first = after.scan.lsns().map_or(self.end, |(first, _)| Lsn::new(first.get() - 1));
                    note(last, first);
                }
            }
        }
        // The segments are there, and nothing is in them of an epoch that had got further than any that was freed.
        let Proof { epoch, through } = self.on_record.proof;
        let is_left = segments.values().any(|read| read.segment.header.epoch == epoch);
        if self.missing.is_empty() && through > freed && !is_left {
            let lsns = Some((Lsn::new(freed.get() + 1), through));
            damage.push(RingDamage {
                segment: String::new(),
                offset: 0,
                lsns,
                promised: true,
                what: "records missing",
            });
        }
        damage
    }
}

/// The end of the records in some segments.
struct End<'a> {
    /// The highest LSN so far.
    lsn: Lsn,
    segment: &'a str,
    offset: u64,
}

impl End<'_> {
    fn missing_behind(&self, last: Lsn, promised: bool) -> RingDamage {
        let segment = self.segment.to_owned();
        let what = "records missing";
        let lsns = Some((Lsn::new(self.lsn.get() + 1), last));
        RingDamage { segment, offset: self.offset, lsns, promised, what }
    }
}

impl Epoch {
    /// The damaged and missing parts, in the order of the log. `freed`: the last record that is no longer needed.
    fn damage(&self, segments: &BTreeMap<u64, Read>, freed: Lsn) -> Vec<RingDamage> {
        let mut damage = Vec::new();
        let mut end: Option<End<'_>> = None;
        for (number, read) in self.segments.iter().map(|number| (*number, &segments[number])) {
            let mut within = self.damage_within(read).peekable();
            // Of damage at the beginning the segment itself does not tell which records it hit.
            let at_the_beginning = within.next_if(|damage| damage.lsns.is_none());
            let lsns = read.scan.lsns();
            match (&end, lsns) {
                (Some(end), Some((first, _))) if first.get() > end.lsn.get() + 1 => {
                    let last = Lsn::new(first.get() - 1);
                    let missing = end.missing_behind(last, end.lsn < self.mark);
                    match at_the_beginning {
                        Some(here) => {
                            damage.push(RingDamage { lsns: missing.lsns, promised: missing.promised, ..here })
                        }
                        None => damage.push(missing),
                    }
                }
                (Some(_), Some(_)) => {}
                (Some(end), None) => {
                    let promised = end.lsn < self.mark;
                    damage.extend(at_the_beginning.map(|here| RingDamage { promised, ..here }));
                }
                // The segment before it was freed. If what is right before its first whole record was not durable, a cut has torn that.
                (None, Some((first, _))) if first.get() > self.mark.get() + 1 => {
                    let torn = (Lsn::new(self.mark.get() + 1), Lsn::new(first.get() - 1));
                    let lsns = Some(torn).filter(|_| self.mark > Lsn::ZERO);
                    damage.extend(at_the_beginning.map(|here| RingDamage { promised: false, lsns, ..here }));
                }
                // Others around it tell, or what was freed: else each opening would take all that may have followed for lost.
                (None, _) => damage.extend(at_the_beginning.map(|here| {
                    if here.promised { RingDamage { lsns: around(segments, number, freed), ..here } } else { here }
                })),
            }
            damage.extend(within.filter(|damage| damage.lsns.is_some()));
            if let Some((_, lsn)) = lsns {
                end = Some(End { lsn, segment: &read.segment.name, offset: read.scan.end });
            }
        }
        // What the next epoch found after the last record that is still there.
        let cut_off = end.filter(|end| end.lsn < self.mark);
        damage.extend(cut_off.map(|end| end.missing_behind(self.mark, true)));
        damage
    }

    fn damage_within<'a>(&self, read: &'a Read) -> impl Iterator<Item = RingDamage> + use<'a> {
        let mark = self.mark;
        read.scan.gaps.iter().map(move |gap| RingDamage {
            segment: read.segment.name.clone(),
            offset: gap.range.start,
            lsns: gap.lsns,
            promised: gap.lsns.map_or(mark > Lsn::ZERO, |(first, _)| first <= mark),
            what: gap.what,
        })
    }
}

/// The records that the beginning of a segment may have contained: between the last one before it and the first intact
/// one.
fn around(segments: &BTreeMap<u64, Read>, number: u64, freed: Lsn) -> Option<(Lsn, Lsn)> {
    let before = segments.range(..number).next_back().and_then(|(_, read)| Some(read.scan.lsns()?.1));
    let first = segments.range(number..).find_map(|(_, read)| read.scan.lsns())?.0;
    let lsns = (Lsn::new(before.unwrap_or(freed).get() + 1), Lsn::new(first.get() - 1));
    Some(lsns).filter(|(first, last)| first <= last)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::file::SegmentFile;
    use crate::layout::SegmentHeader;
    use crate::pool::Segment;
    use crate::scan::{Gap, Scan};

    /// A segment with records from `first` to `last` that says: durable up to `mark`, found up to `found`.
    fn segment(number: u64, epoch: u64, (first, last): (u64, u64), mark: u64, found: u64) -> (u64, Read) {
        let file = Arc::new(SegmentFile::open_to_read(std::path::Path::new("/dev/null")).unwrap());
        let header = SegmentHeader { number, epoch, salt: 0, bytes: 0 };
        let [first, last, mark, found] = [first, last, mark, found].map(Lsn::new);
        let scan = Scan { first, last, whole: last, mark, found, end: 9000, ..Scan::default() };
        (number, Read { segment: Segment { name: format!("{number}"), file, header }, scan, is_cut: false })
    }

    fn with_gap((number, mut read): (u64, Read), lsns: Option<(u64, u64)>) -> (u64, Read) {
        let lsns = lsns.map(|(first, last)| (Lsn::new(first), Lsn::new(last)));
        read.scan.gaps.push(Gap { range: 100..200, lsns, what: "a gap" });
        (number, read)
    }

    /// Segment, first and last LSN, whether it was promised.
    type Told = (&'static str, Option<(u64, u64)>, bool);

    #[track_caller]
    fn check<const N: usize>(low: u64, segments: [(u64, Read); N], expected: &[Told], found: u64) {
        check_proved(low, Proof::default(), BTreeMap::from(segments), expected, found);
    }

    #[track_caller]
    fn check_proved(low: u64, proof: Proof, segments: BTreeMap<u64, Read>, expected: &[Told], found: u64) {
        let high = segments.keys().next_back().map_or(0, |last| last + 1);
        let missing: Vec<u64> = (low..high).filter(|number| low > 0 && !segments.contains_key(number)).collect();
        let on_record = OnRecord { low, proof, freed: Lsn::new(9), ..OnRecord::default() };
        let expected_of = Expected { missing: &missing, on_record, end: Lsn::new(END) };
        check_expected(&expected_of, segments, expected, found);
    }

    #[track_caller]
    fn check_expected(of: &Expected<'_>, segments: BTreeMap<u64, Read>, expected: &[Told], found: u64) {
        let (damage, upto) = judge(&segments, &mut epochs(&segments, of.on_record.proof), of);
        let told: Vec<_> = damage
            .iter()
            .map(|damage| {
                let lsns = damage.lsns.map(|(first, last)| (first.get(), last.get()));
                (&damage.segment[..], lsns, damage.promised)
            })
            .collect();
        assert_eq!(told, expected);
        assert_eq!(upto, Lsn::new(found));
    }

    /// No record comes after it.
    const END: u64 = 9_000_000;
    /// LSNs of the second opening begin here.
    const SECOND: u64 = 3_000_000;

    #[test]
    fn what_is_whole_is_no_damage() {
        check(1, [segment(1, 1, (10, 20), 19, 0), segment(2, 1, (21, 30), 29, 0)], &[], 30);
        check(
            2,
            [segment(2, 1, (21, 30), 29, 0), segment(3, 2, (SECOND, SECOND + 5), SECOND + 4, 30)],
            &[],
            SECOND + 5,
        );
        // The epoch that it speaks of was freed, and so were its first segments.
        check(9, [segment(9, 2, (SECOND + 5, SECOND + 8), SECOND + 7, 0)], &[], SECOND + 8);
        check(0, [], &[], 0);
    }

    #[test]
    fn a_gap_is_promised_up_to_the_mark_of_its_epoch() {
        let whole = || segment(1, 1, (10, 20), 15, 0);
        check(1, [with_gap(whole(), Some((15, 15)))], &[("1", Some((15, 15)), true)], 20);
        check(1, [with_gap(whole(), Some((16, 16)))], &[("1", Some((16, 16)), false)], 15);
        // What the next opening has found is promised, too, and what it has not found is not.
        let next = |found| segment(2, 2, (SECOND, SECOND + 1), 0, found);
        check(1, [with_gap(whole(), Some((16, 16))), next(20)], &[("1", Some((16, 16)), true)], SECOND + 1);
        check(1, [with_gap(whole(), Some((16, 16))), next(15)], &[("1", Some((16, 16)), false)], SECOND + 1);
    }

    #[test]
    fn what_the_owner_has_on_record_is_promised_in_its_epoch_alone() {
        let first = || with_gap(segment(1, 1, (10, 20), 15, 0), Some((18, 18)));
        let second = || with_gap(segment(2, 2, (SECOND, SECOND + 9), SECOND + 2, 17), Some((SECOND + 5, SECOND + 5)));
        let check = |epoch, through, segments: Vec<(u64, Read)>, expected: &[Told], found| {
            let proof = Proof { epoch, through: Lsn::new(through) };
            check_proved(1, proof, segments.into_iter().collect(), expected, found);
        };
        check(1, 17, vec![first()], &[("1", Some((18, 18)), false)], 17);
        check(1, 18, vec![first()], &[("1", Some((18, 18)), true)], 20);
        // What the second epoch has not found of the first it does not promise either, however far it has come, and though all of it is gone.
        let lost = (SECOND + 5, SECOND + 5);
        let told = [("1", Some((18, 18)), false), ("2", Some(lost), false)];
        check(2, SECOND + 4, vec![first(), second()], &told, SECOND + 4);
        let told = [("1", Some((18, 18)), false), ("2", Some(lost), true)];
        check(2, SECOND + 5, vec![first(), second()], &told, SECOND + 9);
        // Of the second epoch nothing is left, and it had got further than what was freed.
        check(2, SECOND + 5, vec![first()], &[("", Some((10, SECOND + 5)), true), ("1", Some((18, 18)), false)], 17);
        // Records that are gone from the end.
        check(1, 25, vec![segment(1, 1, (10, 20), 15, 0)], &[("1", Some((21, 25)), true)], 25);
    }

    #[test]
    fn missing_records_are_told_by_those_around_them() {
        let first = || segment(1, 1, (10, 20), 19, 0);
        let third = || segment(3, 1, (31, 40), 39, 0);
        check(1, [first(), third()], &[("1", Some((21, 30)), true)], 40);
        // Damage at the beginning of a segment gets its name from the segment before it.
        let second = || with_gap(segment(2, 1, (23, 30), 29, 0), None);
        check(1, [first(), second()], &[("2", Some((21, 22)), true)], 30);
        // Without one before it, what was freed tells; without a whole record after it nothing does.
        check(2, [second()], &[("2", Some((10, 22)), true)], 30);
        let spoiled = || with_gap(segment(1, 1, (0, 0), 5, 0), None);
        check(1, [spoiled()], &[("1", None, true)], 5);
        let later = segment(2, 2, (SECOND, SECOND + 1), 0, 0);
        check(1, [spoiled(), later], &[("1", Some((10, SECOND - 1)), true)], SECOND + 1);
        // What was not durable when the first whole record was written a cut has torn, also where the segment before was freed.
        check(2, [with_gap(segment(2, 1, (23, 30), 20, 0), None)], &[("2", Some((21, 22)), false)], 20);
        check(2, [with_gap(segment(2, 1, (23, 30), 0, 0), None)], &[("2", None, false)], 0);
        // Nor is the remains of a first record that nothing follows more than a torn tail.
        let torn = || with_gap(segment(2, 1, (0, 0), 0, 0), None);
        check(1, [first(), torn()], &[("2", None, false)], 19);
        // The end of an epoch, by what the next one has found.
        let next = segment(2, 2, (SECOND, SECOND + 1), 0, 25);
        check(1, [first(), next], &[("1", Some((21, 25)), true)], SECOND + 1);
    }

    #[test]
    fn a_missing_segment_is_told_by_its_number() {
        check(1, [segment(2, 1, (21, 30), 29, 0)], &[("", Some((10, 20)), true)], 30);
        check(1, [segment(3, 1, (21, 30), 29, 0)], &[("", Some((10, 20)), true)], 30);
        check(0, [segment(2, 1, (21, 30), 29, 0)], &[], 30);
        let second_epoch = segment(3, 2, (SECOND + 9, SECOND + 10), SECOND + 9, 0);
        check(1, [segment(1, 1, (10, 20), 19, 0), second_epoch], &[("", Some((21, SECOND + 8)), true)], SECOND + 10);
    }

    #[test]
    fn whatever_may_have_followed_a_lost_end_is_missing() {
        let check = |missing: &[u64], segments: Vec<(u64, Read)>, expected: &[Told], found| {
            let proof = Proof { epoch: 1, through: Lsn::new(12) };
            let on_record = OnRecord { low: 1, proof, freed: Lsn::new(9), ..OnRecord::default() };
            let of = Expected { missing, on_record, end: Lsn::new(END) };
            check_expected(&of, segments.into_iter().collect(), expected, found);
        };
        let one = || segment(1, 1, (10, 20), 15, 0);
        check(&[2], vec![one()], &[("1", Some((21, END)), true)], 20);
        // All that is left was promised then, as no power cut takes a file away.
        let torn = with_gap(one(), Some((18, 18)));
        check(&[2, 3], vec![torn], &[("1", Some((18, 18)), true), ("1", Some((21, END)), true)], 20);
        check(&[1, 2], vec![], &[("", Some((10, END)), true)], 0);
        let (number, read) = one();
        check(&[], vec![(number, Read { is_cut: true, ..read })], &[("1", Some((21, END)), true)], 20);
        // One that was cut off after its last record has lost nothing, as the next one tells.
        let (number, read) = one();
        check(&[], vec![(number, Read { is_cut: true, ..read }), segment(2, 1, (21, 30), 29, 0)], &[], 30);
    }
}
