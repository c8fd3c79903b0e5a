//! Measures records/s of 10 KiB made durable by 1 to 256 callers at once, against each caller writing and syncing a file
//! of its own making (plain write + fdatasync, appended or overwritten in place).
//! Leaves out everything above the journal. `cargo test` runs it tiny so it cannot rot; `cargo bench` runs it whole.
//! Files lie in `$POSTHASTE_BENCH_DIR` or the target directory, never on tmpfs. `--json` prints one object a line.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_journal::{Config, Journal, KIND_USER};

const BODY_BYTES: usize = 10 * 1024;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let json = args.iter().any(|arg| arg == "--json");
    // `cargo bench` passes --bench; without it this is a test of the benchmark.
    let whole = args.iter().any(|arg| arg == "--bench");
    let (time, rounds) = if whole { (Duration::from_millis(1500), 5) } else { (Duration::from_millis(20), 1) };
    let dir = scratch();
    if !json {
        println!(
            "durable records/s of 10 KiB, median (min-max) of {rounds} rounds; every side synced before it says yes"
        );
        println!("{:>7}  {:>26}  {:>26}  {:>26}", "callers", "journal", "overwrite + fdatasync", "append + fdatasync");
    }
    for callers in [1, 4, 16, 64, 256] {
        let sides: [(&str, &dyn Fn() -> f64); 3] = [
            ("journal", &|| journal(&dir, callers, time)),
            ("overwrite_fdatasync", &|| plain(&dir, time, true)),
            ("append_fdatasync", &|| plain(&dir, time, false)),
        ];
        let mut rates = [const { Vec::new() }; 3];
        // In turns, so that a noisy minute hits all sides.
        for _ in 0..rounds {
            for (side, rates) in sides.iter().zip(&mut rates) {
                rates.push(side.1());
            }
        }
        let cells = rates.each_mut().map(|rates| {
            rates.sort_by(f64::total_cmp);
            (rates[rates.len() / 2], rates[0], rates[rates.len() - 1])
        });
        if json {
            for ((name, _), (median, min, max)) in sides.iter().zip(cells) {
                println!(
                    r#"{{"bench":"journal","side":"{name}","callers":{callers},"median":{median:.0},"min":{min:.0},"max":{max:.0}}}"#
                );
            }
        } else {
            let cells = cells.map(|(median, min, max)| format!("{median:.0} ({min:.0}-{max:.0})"));
            println!("{callers:>7}  {:>26}  {:>26}  {:>26}", cells[0], cells[1], cells[2]);
        }
    }
    std::fs::remove_dir_all(&dir).expect("remove scratch");
}

/// Records a second with this many appends in flight.
fn journal(dir: &Path, callers: usize, time: Duration) -> f64 {
    let path = dir.join("journal");
    let (journal, _) = Journal::open(&path, Config { max_segments: 16, ..Config::default() }).expect("open");
    let body = text();
    let begun = Instant::now();
    let mut records = 0;
    let mut flight = std::collections::VecDeque::new();
    let mut unsettled = Vec::new();
    while begun.elapsed() < time {
        while flight.len() < callers {
            flight.push_back(journal.append(KIND_USER, vec![body.clone()]));
        }
        // Groups resolve together; the first that is done says that its group is.
        unsettled.push(flight.pop_front().expect("callers > 0").wait().expect("durable"));
        records += 1;
        if unsettled.len() == 8192 {
            unsettled.drain(..).for_each(|id| journal.settle(id));
            journal.checkpoint(|| Ok(())).expect("checkpoint");
        }
    }
    let rate = f64::from(records) / begun.elapsed().as_secs_f64();
    drop(flight);
    drop(journal);
    std::fs::remove_dir_all(&path).expect("remove journal");
    rate
}

fn plain(dir: &Path, time: Duration, overwrite: bool) -> f64 {
    let path = dir.join("plain");
    let file: File = OpenOptions::new().create(true).write(true).truncate(true).open(&path).expect("create");
    const SPAN: u64 = 64 << 20;
    if overwrite {
        (0..SPAN >> 20).for_each(|n| file.write_all_at(&[0; 1 << 20], n << 20).expect("fill"));
        file.sync_all().expect("sync");
    }
    let body = text();
    let begun = Instant::now();
    let mut records = 0u64;
    while begun.elapsed() < time {
        let at = records * BODY_BYTES as u64;
        let at = if overwrite { at % (SPAN - BODY_BYTES as u64) / 4096 * 4096 } else { at };
        file.write_all_at(&body, at).expect("write");
        file.sync_data().expect("sync");
        records += 1;
    }
    let rate = records as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path).expect("remove");
    rate
}

fn text() -> Bytes {
    let words = ["promise", "of", "the", "mail", "kept", "before", "anyone", "says", "yes"];
    let mut state = 7u32;
    let mut text = String::new();
    while text.len() < BODY_BYTES {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.push_str(words[(state >> 16) as usize % words.len()]);
        text.push(' ');
    }
    text.truncate(BODY_BYTES);
    text.into()
}

fn scratch() -> PathBuf {
    let base = std::env::var_os("POSTHASTE_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let dir = base.join(format!("bench-journal-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("scratch directory");
    let kind = rustix::fs::statfs(&dir).expect("statfs").f_type;
    const TMPFS: i64 = 0x0102_1994;
    assert_ne!(kind as i64, TMPFS, "{} is on tmpfs, where syncs cost nothing", dir.display());
    dir
}
