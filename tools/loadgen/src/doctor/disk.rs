//! The data directory: file system, free space, sync latency.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_maildir::MountFacts;

use super::Finding;
use crate::measure::Latencies;

/// Free space below which a finding is reported.
const FREE_BYTES_WANTED: u64 = 10 << 30;
const FREE_BYTES_NEEDED: u64 = 1 << 30;
const FREE_INODES_WANTED: u64 = 1_000_000;

pub(super) fn directory(data: &Path) -> Vec<Finding> {
    let facts = || -> io::Result<_> {
        let dir = File::open(data)?;
        Ok((MountFacts::of(&dir)?, rustix::fs::fstatvfs(&dir)?))
    };
    let (facts, room) = match facts() {
        Ok(found) => found,
        Err(error) => {
            let why = "the data directory must exist and be readable".to_owned();
            return vec![Finding::serious("file system", format!("{}: {error}", data.display()), why)];
        }
    };
    vec![
        file_system(facts.fs_type, facts.lacks_journal),
        sync_trust(facts.syncfs_trusted),
        free_bytes(room.f_bavail.saturating_mul(room.f_frsize)),
        free_inodes(room.f_files, room.f_favail),
    ]
}

fn file_system(fs_type: u64, lacks_journal: bool) -> Finding {
    const NAME: &str = "file system";
    // statfs(2) lists the numbers.
    let name = match fs_type {
        0xEF53 if lacks_journal => {
            return Finding::advice(
                NAME,
                "ext4, apparently without a journal",
                "after a power cut it needs fsck, which may lose recent writes; `tune2fs -j` adds a journal",
            );
        }
        0xEF53 => "ext4",
        0x5846_5342 => "XFS",
        0x9123_683E => "btrfs",
        0x2FC1_2FC1 => "ZFS",
        0x0102_1994 | 0x8584_58F6 => {
            return Finding::serious(
                NAME,
                "tmpfs",
                "this is memory: nothing survives a restart, and syncs cost nothing",
            );
        }
        0x794C_7630 => {
            return Finding::advice(
                NAME,
                "overlayfs",
                "a container's own layer: slow for new files; mount a volume for data",
            );
        }
        0x6969 => {
            return Finding::advice(NAME, "NFS", "durability after a sync depends on the NFS server and its options");
        }
        _ => {
            let why = "not tested; ext4, XFS and btrfs are";
            return Finding::advice(NAME, format!("type {fs_type:#x}"), why);
        }
    };
    Finding::good(NAME, name)
}

fn sync_trust(trusted: bool) -> Finding {
    const NAME: &str = "syncfs";
    if trusted {
        return Finding::good(NAME, "trusted");
    }
    let why = "each file and directory is fsynced instead, which is slower; ext4, XFS or btrfs on Linux 5.17 or later can do better";
    Finding::advice(NAME, "not trusted", why)
}

fn free_bytes(free: u64) -> Finding {
    const NAME: &str = "free space";
    let value = format!("{:.1} GiB", free as f64 / f64::from(1 << 30));
    match free {
        FREE_BYTES_WANTED.. => Finding::good(NAME, value),
        FREE_BYTES_NEEDED.. => Finding::advice(NAME, value, "mail and spool need room; 10 GiB or more is comfortable"),
        _ => Finding::serious(NAME, value, "too little for a few minutes of load: mail will be refused with 452"),
    }
}

fn free_inodes(all: u64, free: u64) -> Finding {
    const NAME: &str = "free inodes";
    match free {
        // btrfs and others make them as they are needed.
        _ if all == 0 => Finding::good(NAME, "unlimited"),
        FREE_INODES_WANTED.. => Finding::good(NAME, free),
        _ => Finding::advice(NAME, free, "each message in a Maildir needs one inode"),
    }
}

/// Overwrites one block of a file and syncs it repeatedly, like a log with recycled segments.
pub(super) fn sync_latency(data: &Path, rounds: usize) -> Option<Finding> {
    const NAME: &str = "fdatasync";
    if rounds == 0 {
        return None;
    }
    Some(match measure(data, rounds) {
        Err(error) => Finding::serious(NAME, error.to_string(), "the data directory must be writable"),
        Ok(times) => {
            let percentile = |share| Duration::from_micros(times.percentile_us(share));
            judge_sync(percentile(0.5), percentile(0.99), rounds)
        }
    })
}

fn judge_sync(p50: Duration, p99: Duration, rounds: usize) -> Finding {
    const NAME: &str = "fdatasync";
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let value = format!("p50 {:.2} ms, p99 {:.2} ms ({rounds} times)", ms(p50), ms(p99));
    if p50 < Duration::from_micros(5) {
        // No device answers that fast: nothing was sent to one.
        return Finding::serious(
            NAME,
            value,
            "implausibly fast: the disk ignores syncs, so mail does not survive a power cut",
        );
    }
    if p99 > Duration::from_millis(100) {
        return Finding::serious(
            NAME,
            value,
            "every acknowledgement waits for a sync: this disk is very slow or very busy",
        );
    }
    if p50 > Duration::from_millis(10) {
        return Finding::advice(
            NAME,
            value,
            "every acknowledgement waits for a sync: a single client gets less than 100 messages/s",
        );
    }
    Finding::good(NAME, value)
}

fn measure(data: &Path, rounds: usize) -> io::Result<Latencies> {
    const BLOCK_BYTES: usize = 4096;
    const BLOCKS: usize = 256;
    let path = data.join(format!(".posthaste-doctor-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    // Without a name it is gone whatever happens next.
    std::fs::remove_file(&path)?;
    file.write_all_at(&vec![0; BLOCKS * BLOCK_BYTES], 0)?;
    file.sync_all()?;
    let mut times = Latencies::default();
    for round in 0..rounds {
        let block = [round as u8 | 1; BLOCK_BYTES];
        let started = Instant::now();
        file.write_all_at(&block, (round % BLOCKS * BLOCK_BYTES) as u64)?;
        file.sync_data()?;
        times.record(started.elapsed());
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{Advice, Good, Serious};

    #[test]
    fn memory_is_not_taken_for_a_disk() {
        let severity = |fs_type, lacks_journal| file_system(fs_type, lacks_journal).severity;
        assert_eq!((severity(0x0102_1994, false), severity(0x794C_7630, false)), (Serious, Advice));
        assert_eq!((severity(0xEF53, false), severity(0xEF53, true)), (Good, Advice));
    }

    #[test]
    fn syncs_are_judged_by_what_they_would_cost() {
        let judge = |p50: u64, p99: u64| judge_sync(Duration::from_micros(p50), Duration::from_micros(p99), 9).severity;
        assert_eq!(
            (judge(200, 900), judge(2, 3), judge(200, 200_000), judge(15_000, 16_000)),
            (Good, Serious, Serious, Advice)
        );
    }

    #[test]
    fn room_is_judged_by_its_bounds() {
        assert_eq!([10 << 30, (10 << 30) - 1, 1 << 20].map(|free| free_bytes(free).severity), [Good, Advice, Serious]);
        assert_eq!(
            [(0, 0), (9, 9), (1 << 30, 1 << 30)].map(|(all, free)| free_inodes(all, free).severity),
            [Good, Advice, Good]
        );
    }

    #[test]
    fn a_directory_that_is_not_there_is_serious() {
        let findings = directory(Path::new("/nowhere/at/all"));
        assert_eq!((findings.len(), findings[0].severity), (1, Serious));
        assert_eq!(sync_latency(Path::new("/nowhere/at/all"), 1).expect("measured").severity, Serious);
    }
}
