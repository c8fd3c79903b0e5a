//! Checks that the rig finds losses: a rig that never finds one proves nothing.

use std::fs::File;
use std::io::BufWriter;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use posthaste_random::Random;

use crate::account::Account;
use crate::campaign::{record, recover};
use crate::load::message_of;
use crate::log::{Cutter, Event, Unflushed};
use crate::mount::{FileSystem, run};
use crate::recorded::{Plan, Recorded, RecoveryError, Waiting};
use crate::relay::known::Known;
use crate::rig::{Environment, Rig, RigError};

/// Result of the self-test.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SelfTest {
    /// Requests to a loop device that it did not pass on.
    pub not_passed_on: Vec<String>,
    /// Cuts right after an acknowledgement with one flush removed. It is the only flush between the first write with
    /// the message's stamp and its 250, so that nothing else can have made the message durable. Messages with several
    /// flushes are left out: another thread's flush came between, and the last one alone is not needed.
    pub dropped_flushes: u64,
    /// Such cuts after which the message was found to be lost: must be all.
    pub dropped_flushes_found: u64,
    /// True if a disk that ignores every flush from the middle of the run on was found to lose mail, or its file
    /// system.
    pub lying_disk_found: bool,
    /// True if the recording of such a disk, kept in a file, loses mail again in `powercut replay`.
    pub replay_finds_it_again: bool,
    /// True if such a disk under a relaying server was found to lose mail, and to have recorded mail sent again.
    pub lying_disk_found_relaying: bool,
    /// Repetitions of these cuts, with all flushes honoured, that still had findings: the server's own losses, or a
    /// failed start.
    pub honest_cuts_bad: u64,
}

impl SelfTest {
    /// True if the rig finds every injected loss, and no other.
    pub fn is_passed(&self) -> bool {
        self.not_passed_on.is_empty()
            && self.dropped_flushes == DROPPED_FLUSHES
            && self.all_dropped_flushes_found()
            && self.lying_disk_found
            && self.replay_finds_it_again
            && self.lying_disk_found_relaying
            && self.honest_cuts_bad == 0
    }

    /// True if each removed flush has lost the message that waited for it.
    pub fn all_dropped_flushes_found(&self) -> bool {
        self.dropped_flushes > 0 && self.dropped_flushes_found == self.dropped_flushes
    }
}

/// Runs the self-test on a file system of its own.
///
/// # Errors
/// See [`RigError`].
pub fn self_test(environment: &Environment, seed: u64) -> Result<SelfTest, RigError> {
    let rig = Rig::new(environment, FileSystem::Ext4, 0)?;
    let not_passed_on = passes_on(&rig)?;
    FileSystem::Ext4.make(&rig.device_file())?;
    let plan = Plan {
        file_system: FileSystem::Ext4,
        messages: 160,
        connections: 3,
        cuts: 0,
        seed,
        sector: 4096,
        is_relayed: false,
    };
    let recorded = record(&rig, &plan, environment)?;
    let mut test = SelfTest {
        not_passed_on,
        dropped_flushes: 0,
        dropped_flushes_found: 0,
        lying_disk_found: false,
        replay_finds_it_again: false,
        lying_disk_found_relaying: false,
        honest_cuts_bad: 0,
    };
    let events = &recorded.recording.events;
    let mut marks: Vec<usize> = (0..events.len()).filter(|&at| matches!(events[at], Event::Mark(_))).collect();
    let mut rng = Random::new(seed);
    while test.dropped_flushes < DROPPED_FLUSHES && !marks.is_empty() {
        environment.go_on()?;
        let mark = marks.swap_remove(rng.below(marks.len() as u64) as usize);
        let Some((message, flush)) = only_flush(&recorded, mark) else { continue };
        test.dropped_flushes += 1;
        let forgotten = cut(&rig, &recorded, mark + 1, flush);
        let is_lost = |found: Account| found.lost.iter().any(|entry| entry.message == message);
        test.dropped_flushes_found += u64::from(forgotten.is_ok_and(is_lost));
        let honest = cut(&rig, &recorded, mark + 1, usize::MAX);
        test.honest_cuts_bad += u64::from(!honest.is_ok_and(|found| found.is_clean()));
    }
    test.lying_disk_found = match cut(&rig, &recorded, events.len(), events.len() / 2) {
        Ok(found) => !found.lost.is_empty(),
        // It may take the file system with it.
        Err(RecoveryError::Unmountable(_)) => true,
        Err(RecoveryError::Server(_)) => false,
    };
    test.replay_finds_it_again = replay_finds(&rig, recorded, environment)?;
    FileSystem::Ext4.make(&rig.device_file())?;
    test.lying_disk_found_relaying = found_relaying(&rig, &plan, environment)?;
    Ok(test)
}

/// The message of the mark at `mark`, and the flush that made it durable, if there is only one between its first write
/// and the mark.
fn only_flush(recorded: &Recorded, mark: usize) -> Option<(u64, usize)> {
    let before = &recorded.recording.events[..mark];
    let Event::Mark(promise) = recorded.recording.events[mark] else { return None };
    let message = message_of(promise);
    let octets = recorded.load.letter(message).octets;
    let stamp = &octets[..memchr::memchr(b'\r', &octets)?];
    let has_it =
        |event: &Event| matches!(event, Event::Write { data, .. } if memchr::memmem::find(data, stamp).is_some());
    // Where the stamp lies across two writes there is none.
    let written = before.iter().position(has_it)?;
    let mut flushes = (written..mark).filter(|&at| matches!(before[at], Event::Flush));
    Some((message, flushes.next()?)).filter(|_| flushes.next().is_none())
}

/// Keeps a recording with a loss, as `cuts --keep` does, and runs `powercut replay` on a cut that loses mail.
fn replay_finds(rig: &Rig, recorded: Recorded, environment: &Environment) -> Result<bool, RigError> {
    let middle = recorded.recording.events.len() / 2;
    let Recorded { recording, load, is_relayed, .. } = recorded;
    let recording = recording.without_flushes_from(middle);
    let lying = Recorded { recording, load, waiting: Waiting::default(), is_relayed };
    let position = lying.recording.events.len();
    let known = Known::after(&lying.load, &lying.recording.events);
    let loses = |seed: &u64| {
        let image = Cutter::new(&lying.recording).sectors_of(SECTOR).cut(position, *seed);
        recover(rig, &lying, image, &known).is_ok_and(|(_, found)| !found.lost.is_empty())
    };
    let Some(seed) = (0..SEEDS_TRIED).find(loses) else { return Ok(false) };
    let file = rig.scratch().join("lying.powercut");
    lying.recording.save(&mut BufWriter::new(File::create(&file)?))?;
    let output = Command::new(std::env::current_exe()?)
        .args(["replay", "--fs", "ext4"])
        .args(["--seed", &lying.load.seed.to_string(), "--position", &position.to_string()])
        .args(["--cut-seed", &seed.to_string(), "--sector", &SECTOR.to_string(), "--json", "-"])
        .arg("--server")
        .arg(&environment.program)
        .arg("--scratch")
        .arg(&environment.scratch)
        .arg(&file)
        .output()?;
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let lost = outcome["cuts"]["lost"].as_u64().unwrap_or(0);
    if output.status.code() != Some(1) || lost == 0 {
        eprintln!("powercut: replay: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        return Ok(false);
    }
    Ok(true)
}

/// True if both are found: loss of mail acknowledged while the next hop was closed, and recorded mail sent again.
fn found_relaying(rig: &Rig, plan: &Plan, environment: &Environment) -> Result<bool, RigError> {
    let recorded = record(rig, &Plan { is_relayed: true, ..plan.clone() }, environment)?;
    let events = &recorded.recording.events;
    // The most that is promised and has not come.
    let owed = events.iter().enumerate().scan(0_i64, |owed, (at, event)| {
        *owed += match event {
            Event::Mark(number) => recorded.load.promised(*number).len() as i64,
            Event::Taken(_) => -1,
            _ => 0,
        };
        Some((*owed, at + 1))
    });
    let (_, position) = owed.max().unwrap_or_default();
    let finds = |position: usize, wanted: fn(&Account) -> usize| match cut(rig, &recorded, position, position / 2) {
        Ok(found) => wanted(&found) > 0,
        Err(RecoveryError::Unmountable(_)) => true,
        Err(RecoveryError::Server(_)) => false,
    };
    Ok(finds(position, |found| found.lost.len()) && finds(events.len(), |found| found.duplicated.len()))
}

/// Account after a cut at `position` of a disk that ignores flushes from `lies_from` on and drops all unflushed writes.
fn cut(rig: &Rig, recorded: &Recorded, position: usize, lies_from: usize) -> Result<Account, RecoveryError> {
    let mut cutter = Cutter::new(&recorded.recording).lying_from(lies_from);
    let image = cutter.cut_with(position, Unflushed::Dropped, &mut Random::new(0));
    let known = Known::after(&recorded.load, &recorded.recording.events[..position]);
    recover(rig, recorded, image, &known).map(|(_, found)| found)
}

/// Writes, flushes and discards through a loop device, and checks that each request arrives at the disk.
fn passes_on(rig: &Rig) -> Result<Vec<String>, RigError> {
    let device = LoopDevice::new(rig)?;
    rig.disk.record();
    let file = File::options().write(true).open(&device.0)?;
    file.write_all_at(&[0xA5; 8192], PLACE)?;
    file.sync_all()?;
    let written = rig.disk.recorded();
    run(Command::new("blkdiscard").args(["-o", "2097152", "-l", "65536"]).arg(&device.0))?;
    drop(file);
    rig.disk.record();
    run(Command::new("blkdiscard").args(["-o", "2097152", "-l", "65536"]).arg(&device.0))?;
    let discarded = rig.disk.recorded();
    rig.disk.record();
    write_with_fua(&device)?;
    let with_fua = rig.disk.recorded();
    let mut missing = Vec::new();
    for (how, length, recorded) in [("and an fsync", 8192, &written), ("with FUA", BLOCK, &with_fua)] {
        let covered = octets_at_place(&recorded.events, length);
        if covered != length {
            missing.push(format!("a write of {length} bytes {how} came through as {covered}"));
        }
        if !matches!(recorded.events.last(), Some(Event::Flush)) {
            missing.push(format!("a write {how} came through without a flush after it"));
        }
    }
    if !discarded.events.iter().any(|event| matches!(event, Event::Discard { offset: 2_097_152, len: 65_536 })) {
        missing.push("a discard did not come through".to_owned());
    }
    // FUA is a flag of a request, which a file cannot be given: without it the kernel flushes after the request, which is on record.
    missing.extend(device.has_fua()?.then(|| "the loop device says that it can do FUA by itself".to_owned()));
    Ok(missing)
}

/// A direct write for which the kernel sends FUA.
fn write_with_fua(device: &LoopDevice) -> Result<(), RigError> {
    let flags = rustix::fs::OFlags::DIRECT | rustix::fs::OFlags::DSYNC;
    let file = File::options().write(true).custom_flags(flags.bits() as i32).open(&device.0)?;
    let octets = vec![0x5A; 2 * BLOCK];
    let aligned = octets.as_ptr().align_offset(BLOCK);
    Ok(file.write_all_at(&octets[aligned..aligned + BLOCK], PLACE)?)
}

/// Octets of the writes among the first `length` at [`PLACE`].
fn octets_at_place(events: &[Event], length: usize) -> usize {
    let place = PLACE..PLACE + length as u64;
    let here = events.iter().filter_map(|event| match event {
        Event::Write { offset, data } if place.contains(offset) => Some(data.len()),
        _ => None,
    });
    here.sum()
}

/// A loop device without a file system; freed when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(rig: &Rig) -> Result<Self, RigError> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(rig.device_file()).output()?;
        if output.status.success() {
            Ok(LoopDevice(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
        } else {
            Err(RigError::Unavailable(format!("no loop device: {}", String::from_utf8_lossy(&output.stderr).trim())))
        }
    }

    fn has_fua(&self) -> std::io::Result<bool> {
        let name = self.0.trim_start_matches("/dev/");
        let path = Path::new("/sys/block").join(name).join("queue/fua");
        Ok(std::fs::read_to_string(path)?.trim() != "0")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("losetup").arg("--detach").arg(&self.0)) {
            eprintln!("powercut: {} stays attached: {error}", self.0);
        }
    }
}

const DROPPED_FLUSHES: u64 = 6;
const SECTOR: usize = 4096;
/// Offset of the writes.
const PLACE: u64 = 1 << 20;
const BLOCK: usize = 4096;
const SEEDS_TRIED: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::load::mark;
    use crate::log::Recording;

    #[test]
    fn a_flush_is_needed_where_nothing_else_made_mail_durable() {
        let of = |events: &[Event]| Recorded::of(Recording { base: Image::zeros(0), events: events.to_vec() }, 7);
        let letter = Recorded::of(Recording { base: Image::zeros(0), events: Vec::new() }, 7).load.letter(3).octets;
        let write = Event::Write { offset: 0, data: [b"record", &letter[..]].concat().into() };
        let (flush, promised) = (Event::Flush, Event::Mark(mark(3, Some(0))));
        let once = [flush.clone(), write.clone(), flush.clone(), promised.clone()];
        assert_eq!(only_flush(&of(&once), 3), Some((3, 2)));
        let twice = [write.clone(), flush.clone(), flush.clone(), promised.clone()];
        assert_eq!(only_flush(&of(&twice), 3), None, "another thread's came between");
        let never_written = [flush.clone(), promised.clone()];
        assert_eq!(only_flush(&of(&never_written), 1), None);
    }

    #[test]
    fn one_dropped_flush_that_is_not_found_fails_the_test() {
        let test = SelfTest {
            not_passed_on: Vec::new(),
            dropped_flushes: DROPPED_FLUSHES,
            dropped_flushes_found: DROPPED_FLUSHES,
            lying_disk_found: true,
            replay_finds_it_again: true,
            lying_disk_found_relaying: true,
            honest_cuts_bad: 0,
        };
        assert!(test.is_passed());
        assert!(!SelfTest { dropped_flushes_found: DROPPED_FLUSHES - 1, ..test.clone() }.is_passed());
        assert!(!SelfTest { dropped_flushes: 1, dropped_flushes_found: 1, ..test }.is_passed());
    }
}
