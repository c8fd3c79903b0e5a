//! Free memory, made really present by touching it.

use std::fs::File;
use std::io::Write as _;

/// Limit on the memory to touch.
const OCTETS_MAX: u64 = 8 << 30;
/// Copies of a message in memory on its way: sockets, spool, file.
const COPIES: u64 = 3;
static BLOCK: [u8; 1 << 20] = [0; 1 << 20];

/// Touches as much free memory as writing `writes_octets` may need, at most half of the free memory, and releases it.
pub(crate) fn warm(writes_octets: u64) {
    let octets = octets(writes_octets, free_octets());
    let touch = || -> std::io::Result<()> {
        // In memory alone; gone with its descriptor.
        let mut file = File::from(rustix::fs::memfd_create("warm", rustix::fs::MemfdFlags::CLOEXEC)?);
        (0..octets / BLOCK.len() as u64).try_for_each(|_| file.write_all(&BLOCK))
    };
    // Where it cannot be done the figures are what they are.
    let _ = touch();
}

fn octets(writes: u64, free: u64) -> u64 {
    writes.saturating_mul(COPIES).min(free / 2).min(OCTETS_MAX)
}

/// Octets that can be allocated without swapping or the OOM killer; 0 if unknown.
fn free_octets() -> u64 {
    let number = |file: &str| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"));
    let machine = kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10;
    // A container may have a limit of its own (Documentation/admin-guide/cgroup-v2.rst).
    let limit = number("/sys/fs/cgroup/memory.max").zip(number("/sys/fs/cgroup/memory.current"));
    limit.map_or(machine, |(most, used)| machine.min(most.saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_bounded_three_times() {
        assert_eq!(octets(1 << 20, 1 << 40), 3 << 20);
        assert_eq!(octets(1 << 40, 1 << 30), 1 << 29);
        assert_eq!(octets(u64::MAX, u64::MAX), OCTETS_MAX);
    }
}
