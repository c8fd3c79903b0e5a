//! Resource usage of processes during a run, from /proc; there are no figures on systems other than Linux.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Counters of a process and all its descendants at one moment, summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the run began.
    pub at_s: f64,
    /// CPU seconds since the processes began, user and system; children that have ended are included.
    pub cpu_s: f64,
    /// Resident memory.
    pub memory_octets: u64,
    /// Octets handed to the file system for writing to a device; 0 if we may not read the counter.
    pub written_octets: u64,
    /// System calls that write.
    pub write_calls: u64,
    /// Context switches of all threads since the run began, voluntary or not; those of a thread between its last sample
    /// and its end are not counted.
    pub context_switches: u64,
    /// Flushes completed by all block devices of the machine (syncs), for any process.
    pub device_flushes: u64,
}

/// Resources used over the whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_s: f64,
    pub memory_octets_max: u64,
    pub written_octets: u64,
    pub write_calls: u64,
    pub context_switches: u64,
    pub device_flushes: u64,
    /// Samples over time.
    pub samples: Vec<Sample>,
    /// True if all processes ended before the run was over.
    #[serde(default)]
    pub has_ended: bool,
}

/// Samples the usage of processes.
#[derive(Debug)]
pub struct Sampler {
    roots: Vec<u32>,
    /// True if descendants count too.
    follows: bool,
    begun: Instant,
    samples: Vec<Sample>,
    /// Counters of each thread at its last sample, and the sum over all threads since the beginning.
    threads: HashMap<u32, OfThread>,
    threads_sum: OfThread,
    stride: usize,
    skipped: usize,
    memory_octets_max: u64,
    has_ended: bool,
    /// The last sample, even if it was not kept.
    last: Sample,
    /// Resources used by earlier processes that others have replaced.
    before: Sample,
}

/// Counters that the kernel keeps for each thread.
#[derive(Debug, Clone, Copy, Default)]
struct OfThread {
    switches: u64,
    written_octets: u64,
    write_calls: u64,
}

impl OfThread {
    /// Adds the difference between two samples of a thread.
    fn add(&mut self, now: Self, before: Self) {
        self.switches += now.switches.saturating_sub(before.switches);
        self.written_octets += now.written_octets.saturating_sub(before.written_octets);
        self.write_calls += now.write_calls.saturating_sub(before.write_calls);
    }
}

/// Limit on samples kept; at the limit every other one is dropped, and from then on they are taken less often.
const SAMPLES_MAX: usize = 720;

impl Sampler {
    /// Watches `roots` and their descendants; times count from `begun`.
    pub fn new(roots: &[u32], begun: Instant) -> Self {
        Self::begin(roots.to_vec(), true, begun)
    }

    /// Watches this process without the processes that it started, such as a server under test.
    pub fn of_ourselves(begun: Instant) -> Self {
        Self::begin(vec![std::process::id()], false, begun)
    }

    fn begin(roots: Vec<u32>, follows: bool, begun: Instant) -> Self {
        let mut sampler = Self {
            roots,
            follows,
            begun,
            samples: Vec::new(),
            threads: HashMap::new(),
            threads_sum: OfThread::default(),
            stride: 1,
            skipped: 0,
            memory_octets_max: 0,
            has_ended: false,
            last: Sample::default(),
            before: Sample::default(),
        };
        sampler.sample();
        sampler
    }

    /// Watches `root` from now on, which replaces the earlier processes; their figures stay. Their usage after the last
    /// sample is lost.
    pub fn follow(&mut self, root: u32) {
        if self.roots == [root] {
            return;
        }
        self.roots = vec![root];
        self.has_ended = false;
        self.before = self.last;
    }

    /// Takes a sample, and returns it: the last one if the processes are gone.
    pub fn sample(&mut self) -> Sample {
        let Some((mut sample, threads)) = read_all(&self.roots, self.follows) else {
            self.has_ended = true;
            return self.samples.last().copied().unwrap_or_default();
        };
        // A thread takes its count with it when it ends, so the sum is kept here.
        let is_first = self.samples.is_empty();
        for (thread, now) in threads {
            let before = self.threads.insert(thread, now).unwrap_or(if is_first { now } else { OfThread::default() });
            self.threads_sum.add(now, before);
        }
        sample.at_s = self.begun.elapsed().as_secs_f64();
        sample.context_switches = self.threads_sum.switches;
        sample.cpu_s += self.before.cpu_s;
        sample.written_octets += self.before.written_octets + self.threads_sum.written_octets;
        sample.write_calls += self.before.write_calls + self.threads_sum.write_calls;
        self.last = sample;
        self.memory_octets_max = self.memory_octets_max.max(sample.memory_octets);
        if self.skipped + 1 < self.stride && !self.samples.is_empty() {
            self.skipped += 1;
            return sample;
        }
        self.skipped = 0;
        self.samples.push(sample);
        if self.samples.len() >= SAMPLES_MAX {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
        sample
    }

    /// Takes a last sample and computes the totals.
    pub fn finish(mut self) -> Usage {
        self.skipped = self.stride;
        self.sample();
        let first = self.samples.first().copied().unwrap_or_default();
        let last = self.samples.last().copied().unwrap_or_default();
        let since = |counter: fn(&Sample) -> u64| counter(&last).saturating_sub(counter(&first));
        Usage {
            cpu_s: (last.cpu_s - first.cpu_s).max(0.0),
            memory_octets_max: self.memory_octets_max,
            written_octets: since(|sample| sample.written_octets),
            write_calls: since(|sample| sample.write_calls),
            context_switches: since(|sample| sample.context_switches),
            device_flushes: since(|sample| sample.device_flushes),
            samples: self.samples,
            has_ended: self.has_ended,
        }
    }
}

/// True if a process with this id exists.
pub fn process_exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}/stat")).is_ok()
}

/// Octets of anonymous memory of a process (proc_pid_smaps(5)); `None` if that cannot be read. Its share of the program
/// file is left out, as it changes whenever another process of the same program begins or ends.
pub fn anonymous_octets(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Anonymous:")?.trim().strip_suffix("kB"))?;
    kib.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Raises the limit on open files to `files` as far as the system allows. Returns true if it is that high now.
pub fn raise_file_limit(files: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let has_room = |limit: Option<u64>| limit.is_none_or(|limit| limit >= files);
    if has_room(limit.current) {
        return true;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).is_ok() && has_room(limit.maximum)
}

/// The sums, without the counters that the kernel has for each thread only (context switches); `None` if none of the
/// processes exists.
///
/// Linux adds the writes of a child to its parent's counters once the child was waited for. If children are to be left
/// out, writes are therefore summed over threads, whose counters contain none of them.
fn read_all(roots: &[u32], follows: bool) -> Option<(Sample, Vec<(u32, OfThread)>)> {
    let mut pids: BTreeSet<u32> = BTreeSet::new();
    let mut to_visit = roots.to_vec();
    while let Some(pid) = to_visit.pop() {
        if pids.insert(pid) && follows {
            to_visit.extend(children(pid));
        }
    }
    let mut sum = Sample { device_flushes: device_flushes(), ..Sample::default() };
    let (mut is_there, mut threads) = (false, Vec::new());
    for pid in pids {
        let Some(cpu_s) = cpu_seconds(pid, follows) else { continue };
        let memory_octets = counter(&format!("/proc/{pid}/status"), "VmRSS:") * 1024;
        if memory_octets == 0 {
            // It has ended, or is ending, and was not waited for.
            continue;
        }
        is_there = true;
        sum.cpu_s += cpu_s;
        sum.memory_octets += memory_octets;
        if follows {
            sum.written_octets += counter(&format!("/proc/{pid}/io"), "write_bytes:");
            sum.write_calls += counter(&format!("/proc/{pid}/io"), "syscw:");
        }
        for thread in numbers_in(&format!("/proc/{pid}/task")) {
            let status = format!("/proc/{pid}/task/{thread}/status");
            let switches =
                ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|name| counter(&status, name));
            let mut of_thread = OfThread { switches: switches.iter().sum(), ..OfThread::default() };
            if !follows {
                let io = format!("/proc/{pid}/task/{thread}/io");
                of_thread.written_octets = counter(&io, "write_bytes:");
                of_thread.write_calls = counter(&io, "syscw:");
            }
            threads.push((thread, of_thread));
        }
    }
    is_there.then_some((sum, threads))
}

fn children(pid: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for thread in numbers_in(&format!("/proc/{pid}/task")) {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
        children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    children
}

fn numbers_in(dir: &str) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// CPU seconds of a process (proc_pid_stat(5), fields 14 and 15). With `with_children`, also those of its children that
/// ended and were waited for (fields 16 and 17).
fn cpu_seconds(pid: u32, with_children: bool) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in field 2 may hold blanks and parentheses, so the fields are counted from the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields
        .split_ascii_whitespace()
        .skip(11)
        .take(if with_children { 4 } else { 2 })
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The number after `name` in a file of lines; 0 if it is missing.
fn counter(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Field 16 of each whole device's statistics (Documentation/block/stat.rst, Linux 5.5 and later).
fn device_flushes() -> u64 {
    let flushes = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        stat.split_ascii_whitespace().nth(15)?.parse::<u64>().ok()
    };
    fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(flushes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_work_and_that_of_a_child_is_seen() {
        let mut sampler = Sampler::new(&[std::process::id()], Instant::now());
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("sh").args(["-c", script]).status().unwrap();
        assert!(status.success());
        sampler.sample();
        let usage = sampler.finish();
        assert!(usage.cpu_s > 0.0, "the child's CPU time counts once it has ended");
        assert!(usage.memory_octets_max > 100_000);
        assert!(usage.context_switches > 0);
        assert!(usage.samples.len() >= 3 && !usage.has_ended);
    }

    #[test]
    fn what_we_have_started_is_left_out_where_it_is_measured_apart() {
        let busy = "while :; do :; done";
        let mut child = std::process::Command::new("sh").args(["-c", busy]).spawn().unwrap();
        // Other tests run in this process, so its own work has to be in both figures: the whole is watched for longer.
        let whole = Sampler::new(&[std::process::id()], Instant::now());
        let alone = Sampler::of_ourselves(Instant::now());
        let mut of_child = Sampler::new(&[child.id()], Instant::now());
        while of_child.sample().cpu_s < 0.2 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let (alone, whole) = (alone.finish(), whole.finish());
        assert!(whole.cpu_s - alone.cpu_s > 0.1, "{} s with the child, {} s without", whole.cpu_s, alone.cpu_s);
    }

    #[test]
    fn a_process_that_takes_anothers_place_adds_to_its_figures() {
        let start = || std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let work = |sampler: &mut Sampler, until: f64| {
            while sampler.sample().cpu_s < until {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        };
        let mut first = start();
        let mut sampler = Sampler::new(&[first.id()], Instant::now());
        work(&mut sampler, 0.2);
        first.kill().unwrap();
        // It has no memory any more, and is not taken for one that is there.
        while sampler.sample().memory_octets == 0 || !sampler.has_ended {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        first.wait().unwrap();
        let mut second = start();
        sampler.follow(second.id());
        work(&mut sampler, 0.4);
        second.kill().unwrap();
        second.wait().unwrap();
        sampler.follow(second.id());
        let usage = sampler.samples.clone();
        assert!(!sampler.has_ended && usage.windows(2).all(|pair| pair[0].cpu_s <= pair[1].cpu_s), "{usage:?}");
        assert!(usage.iter().all(|sample| sample.memory_octets > 0), "{usage:?}");
        assert!(sampler.finish().cpu_s >= 0.3);
    }

    #[test]
    fn a_process_that_is_not_there_has_ended() {
        // Above the largest number that Linux gives out.
        let usage = Sampler::new(&[u32::MAX], Instant::now()).finish();
        assert!(usage.has_ended && usage.samples.is_empty());
    }
}
