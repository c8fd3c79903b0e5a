//! Settings of the kernel, limits of the process, and other load on the machine.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::Finding;

/// The settings under `proc`/sys, for a server of so many connections.
pub(super) fn settings(proc: &Path, connections: u64) -> Vec<Finding> {
    let number = |name: &str| read_number(proc, name);
    let mut findings = Vec::new();
    let mut at_least = |name: &'static str, wanted: u64, why: &str| {
        findings.push(match number(name) {
            Some(value) if value >= wanted => Finding::good(name, value),
            Some(value) => Finding::advice(name, value, format!("{why}; sysctl -w {name}={wanted}")),
            None => unreadable(name),
        });
    };
    at_least(
        "net.core.somaxconn",
        connections.min(4096),
        "queue of connections waiting for accept; in larger bursts clients silently wait a second or more",
    );
    at_least(
        "net.ipv4.tcp_max_syn_backlog",
        connections.min(4096),
        "above it half-open connections are dropped or need SYN cookies, which lose TCP options",
    );
    at_least("fs.file-max", connections * 4, "file descriptors of the whole machine, for sockets and mail files");
    findings.push(port_range(proc));
    findings.push(match number("net.ipv4.tcp_tw_reuse") {
        // 1: everywhere, 2: on loopback only.
        Some(value @ (1 | 2)) => Finding::good("net.ipv4.tcp_tw_reuse", value),
        Some(value) => Finding::advice(
            "net.ipv4.tcp_tw_reuse",
            value,
            "a port stays unusable for a minute after each connection, so one message for each connection runs out of \
             ports at some 470 a second to one address; sysctl -w net.ipv4.tcp_tw_reuse=1",
        ),
        None => unreadable("net.ipv4.tcp_tw_reuse"),
    });
    findings.extend(dirty_pages(proc));
    findings
}

fn read(proc: &Path, name: &str) -> Option<String> {
    let path = name.replace('.', "/");
    std::fs::read_to_string(proc.join("sys").join(path)).ok()
}

fn read_number(proc: &Path, name: &str) -> Option<u64> {
    read(proc, name)?.trim().parse().ok()
}

fn unreadable(name: &'static str) -> Finding {
    Finding::advice(name, "not readable", "hidden here, perhaps by a container: check it on the host")
}

fn port_range(proc: &Path) -> Finding {
    const NAME: &str = "net.ipv4.ip_local_port_range";
    const WANTED: u64 = 40_000;
    let range = read(proc, NAME).and_then(|text| {
        let (from, to) = text.trim().split_once(char::is_whitespace)?;
        Some((from.parse::<u64>().ok()?, to.trim().parse::<u64>().ok()?))
    });
    match range {
        Some((from, to)) if to.saturating_sub(from) >= WANTED => Finding::good(NAME, format!("{from} {to}")),
        Some((from, to)) => Finding::advice(
            NAME,
            format!("{from} {to}"),
            format!(
                "ports for outgoing connections: a load generator soon uses up {} of them; sysctl -w {NAME}=\"1024 65535\"",
                to.saturating_sub(from)
            ),
        ),
        None => unreadable(NAME),
    }
}

/// Amounts of dirty memory at which writeback begins, and at which writers wait for the disk.
fn dirty_pages(proc: &Path) -> Option<Finding> {
    const NAME: &str = "vm.dirty_background_bytes";
    /// Writers stall at the limit, and a writeback of a gigabyte at once stalls syncs for seconds on a slow disk.
    const LARGE: u64 = 1 << 30;
    let memory_bytes = memory_bytes(proc)?;
    let share = |bytes: &str, ratio: &str| match read_number(proc, bytes)? {
        0 => Some(memory_bytes / 100 * read_number(proc, ratio)?),
        bytes => Some(bytes),
    };
    let background = share("vm.dirty_background_bytes", "vm.dirty_background_ratio")?;
    let limit = share("vm.dirty_bytes", "vm.dirty_ratio")?;
    let value = format!("{} MiB, writers wait at {} MiB", background >> 20, limit >> 20);
    Some(if background <= LARGE {
        Finding::good("vm.dirty_*", value)
    } else {
        let why = "writeback starts so late that a checkpoint must write much at once, which delays syncs";
        Finding::advice("vm.dirty_*", value, format!("{why}; sysctl -w {NAME}={}", LARGE / 4))
    })
}

fn memory_bytes(proc: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// Limit on open files of this process.
pub(super) fn descriptors(connections: u64) -> Vec<Finding> {
    const NAME: &str = "open files";
    let limit = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let value = format!("{} now, {} at most", text(limit.current), text(limit.maximum));
    // Sockets, and files beside them.
    let wanted = connections + connections / 4;
    vec![match limit.maximum {
        Some(maximum) if maximum < connections / 10 => Finding::serious(
            NAME,
            value,
            format!(
                "far too few for {connections} connections; raise the hard limit (ulimit -Hn, LimitNOFILE=) to {wanted}"
            ),
        ),
        Some(maximum) if maximum < wanted => Finding::advice(
            NAME,
            value,
            format!(
                "too few for {connections} connections; raise the hard limit (ulimit -Hn, LimitNOFILE=) to {wanted}"
            ),
        ),
        // The soft limit is raised by every program here.
        _ => Finding::good(NAME, value),
    }]
}

/// Availability of io_uring.
pub(super) fn io_uring() -> Finding {
    const NAME: &str = "io_uring";
    let disabled = read_number(Path::new("/proc"), "kernel.io_uring_disabled");
    let is_there = std::fs::read_to_string("/proc/kallsyms").map(|text| text.contains("io_uring_setup"));
    match (disabled, is_there) {
        (Some(0), _) => Finding::good(NAME, "available"),
        (Some(value), _) => Finding::advice(
            NAME,
            format!("disabled ({value})"),
            "scans of cold Maildirs are slower without it; sysctl -w kernel.io_uring_disabled=0",
        ),
        (None, Ok(true)) => Finding::good(NAME, "available"),
        (None, _) => Finding::advice(
            NAME,
            "not available",
            "scans of cold Maildirs are slower without it; Linux 5.6 or newer has it",
        ),
    }
}

/// Load of the machine, and the share that the hypervisor gives to others.
pub(super) fn neighbours(proc: &Path, watch: Duration) -> Vec<Finding> {
    let before = CpuTimes::read(proc);
    std::thread::sleep(watch);
    let after = CpuTimes::read(proc);
    let (Some(before), Some(after)) = (before, after) else { return vec![unreadable("stolen time")] };
    vec![judge_stolen(after.since(&before)), judge_busy(after.since(&before))]
}

fn judge_stolen(times: CpuTimes) -> Finding {
    let percent = times.share(times.stolen);
    let value = format!("{percent:.1} %");
    match percent {
        0.0..2.0 => Finding::good("stolen time", value),
        2.0..10.0 => Finding::advice(
            "stolen time",
            value,
            "the hypervisor gives CPU time to other guests: compare only in alternating rounds (A B A B)",
        ),
        _ => Finding::serious(
            "stolen time",
            value,
            "the hypervisor gives much CPU time to other guests: measurements made now are meaningless",
        ),
    }
}

fn judge_busy(times: CpuTimes) -> Finding {
    let percent = times.share(times.busy);
    let value = format!("{percent:.0} % of all processors");
    match percent {
        0.0..15.0 => Finding::good("other load", value),
        15.0..50.0 => Finding::advice(
            "other load",
            value,
            "other processes are running: compare only in alternating rounds (A B A B)",
        ),
        _ => {
            Finding::serious("other load", value, "other processes use the CPUs: measurements made now are meaningless")
        }
    }
}

/// CPU time since the start of the machine, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    stolen: u64,
    total: u64,
}

impl CpuTimes {
    /// The first line of `/proc/stat`: user nice system idle iowait irq softirq steal (proc(5)).
    fn read(proc: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(proc.join("stat")).ok()?;
        let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks[..] else { return None };
        let busy = user + nice + system + irq + softirq;
        Some(Self { busy, stolen, total: busy + idle + iowait + stolen })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            stolen: self.stolen.saturating_sub(before.stolen),
            total: self.total.saturating_sub(before.total),
        }
    }

    fn share(&self, part: u64) -> f64 {
        if self.total == 0 { 0.0 } else { part as f64 * 100.0 / self.total as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    /// A machine with these settings.
    fn machine(settings: &[(&str, &str)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().expect("a directory");
        for (name, value) in settings {
            let path = proc.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, value).expect("written");
        }
        proc
    }

    fn severities(settings_of: &[(&str, &str)]) -> Vec<(&'static str, Severity)> {
        let machine = machine(settings_of);
        settings(machine.path(), 10_000).into_iter().map(|f| (f.name, f.severity)).collect()
    }

    #[test]
    fn a_small_machine_is_advised_and_a_large_one_is_not() {
        let common = ("meminfo", "MemTotal:       16384000 kB\nMemFree: 1 kB\n");
        let small = severities(&[
            common,
            ("sys/net/core/somaxconn", "128\n"),
            ("sys/net/ipv4/tcp_max_syn_backlog", "512\n"),
            ("sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("sys/net/ipv4/tcp_tw_reuse", "0\n"),
            ("sys/fs/file-max", "1000\n"),
            ("sys/vm/dirty_background_bytes", "0\n"),
            ("sys/vm/dirty_background_ratio", "10\n"),
            ("sys/vm/dirty_bytes", "0\n"),
            ("sys/vm/dirty_ratio", "20\n"),
        ]);
        assert_eq!(small.len(), 6);
        assert!(small.iter().all(|(_, severity)| *severity == Severity::Advice), "{small:?}");
        let large = severities(&[
            common,
            ("sys/net/core/somaxconn", "4096\n"),
            ("sys/net/ipv4/tcp_max_syn_backlog", "4096\n"),
            ("sys/net/ipv4/ip_local_port_range", "1024 65535\n"),
            ("sys/net/ipv4/tcp_tw_reuse", "2\n"),
            ("sys/fs/file-max", "9223372036854775807\n"),
            ("sys/vm/dirty_background_bytes", "268435456\n"),
            ("sys/vm/dirty_background_ratio", "0\n"),
            ("sys/vm/dirty_bytes", "536870912\n"),
            ("sys/vm/dirty_ratio", "0\n"),
        ]);
        assert!(large.iter().all(|(_, severity)| *severity == Severity::Good), "{large:?}");
    }

    #[test]
    fn what_is_hidden_is_said_to_be_hidden() {
        let hidden = machine(&[]);
        let findings = settings(hidden.path(), 10_000);
        assert!(findings.iter().all(|f| f.value == "not readable"), "{findings:?}");
        assert_eq!(neighbours(hidden.path(), Duration::ZERO)[0].value, "not readable");
    }

    #[test]
    fn stolen_and_busy_time_are_judged_by_their_share() {
        let at = |stat: &str| CpuTimes::read(machine(&[("stat", stat)]).path()).expect("a stat line");
        let before = at("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1\n");
        let idle = at("cpu  101 0 101 998 0 0 0 0 0 0\n").since(&before);
        assert_eq!((judge_stolen(idle).severity, judge_busy(idle).severity), (Severity::Good, Severity::Good));
        let noisy = at("cpu  130 0 110 860 0 0 0 20 0 0\n").since(&before);
        assert_eq!((judge_stolen(noisy).severity, judge_busy(noisy).severity), (Severity::Serious, Severity::Advice));
    }
}
