//! Memory for arriving messages.
//!
//! The budget is cut in four. One part is for small bodies and large envelopes while they arrive, one for the buffers
//! of large bodies that go to files. Two are for accepted mail that is not yet in its mailboxes, which the store
//! counts. Nothing waits for memory: a body without room goes to a file. A limited number of bodies write to files at a
//! time; others wait for a slot, with a timeout. If slots are short, a body whose client pauses gives its slot back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A body that grows beyond this is written to its own file while it arrives.
pub const LARGE_BODY_BYTES: usize = 1 << 20;

/// Default budget in octets: a sixteenth of the machine's memory, or of its cgroup's limit. At least 256 MiB and at
/// most 4 GiB.
pub fn default_memory_bytes() -> u64 {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    share_of(&read("/proc/meminfo"), &read("/sys/fs/cgroup/memory.max"))
}

fn share_of(meminfo: &str, cgroup_max: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let machine = line.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10;
    // "max" where there is no limit (Documentation/admin-guide/cgroup-v2.rst).
    let most = cgroup_max.trim().parse().map_or(machine, |limit: u64| limit.min(machine));
    (most / 16).clamp(256 << 20, 4 << 30)
}

/// Memory budget shared by all bodies.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    spools: Arc<Semaphore>,
    spools_max: usize,
}

/// A part of the budget, initially empty; given back on drop.
#[derive(Debug, Default)]
pub struct Reservation(Option<OwnedSemaphorePermit>);

impl MemoryBudget {
    /// A budget of `bytes` octets, in steps of 4 KiB.
    pub fn new(bytes: u64) -> Self {
        let part = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        let units = (part / UNIT_BYTES).clamp(units_of(2 * LARGE_BODY_BYTES), Semaphore::MAX_PERMITS);
        let spools = (part / SPOOL_BYTES).clamp(SPOOLS_MIN, Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(units)), spools: Arc::new(Semaphore::new(spools)), spools_max: spools }
    }

    /// The store's part of a budget of `bytes` octets.
    pub fn of_store(bytes: u64) -> u32 {
        u32::try_from(bytes / 2).unwrap_or(u32::MAX).max(8 * LARGE_BODY_BYTES as u32)
    }

    /// Extends `reservation` to `bytes` octets if there is room right now.
    pub fn try_grow(&self, reservation: &mut Reservation, bytes: usize) -> bool {
        let held = reservation.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = units_of(bytes).saturating_sub(held);
        if missing == 0 {
            return true;
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        match Arc::clone(&self.units).try_acquire_many_owned(missing) {
            Ok(more) => {
                match &mut reservation.0 {
                    Some(permit) => permit.merge(more),
                    none => *none = Some(more),
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Waits for a slot to write a body to a file; `None` after a timeout.
    pub async fn place_to_spool(&self) -> Option<OwnedSemaphorePermit> {
        let place = timeout(SPOOL_PATIENCE, Arc::clone(&self.spools).acquire_owned()).await.ok()?;
        Some(place.expect("the semaphore is never closed"))
    }

    /// True if more than half of the slots are taken. Then sessions that only wait for their clients give theirs back.
    pub fn places_are_scarce(&self) -> bool {
        2 * self.spools.available_permits() < self.spools_max
    }

    /// Octets that nobody has reserved.
    pub fn available_bytes(&self) -> usize {
        self.units.available_permits() * UNIT_BYTES
    }
}

impl Reservation {
    /// Returns the part beyond `bytes` octets.
    pub fn shrink(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.0 {
            drop(permit.split(permit.num_permits().saturating_sub(units_of(bytes))));
        }
    }

    /// Returns the whole reservation.
    pub fn release(&mut self) {
        self.0 = None;
    }
}

fn units_of(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES)
}

const UNIT_BYTES: usize = 4096;
/// Buffers of a body on its way to a file: one to read, one to write.
const SPOOL_BYTES: usize = 512 << 10;
const SPOOLS_MIN: usize = 16;
/// Long enough for others to finish, short enough for the client, who waits ten minutes (RFC 5321 section 4.5.3.2.6).
const SPOOL_PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_returns_on_drop() {
        let budget = MemoryBudget::new(8 << 20);
        let all = budget.available_bytes();
        let mut held = Reservation::default();
        assert!(budget.try_grow(&mut held, 1) && budget.try_grow(&mut held, 5000));
        assert_eq!(budget.available_bytes(), all - 8192);
        held.shrink(5000);
        assert_eq!(budget.available_bytes(), all - 8192);
        held.shrink(4096);
        assert_eq!(budget.available_bytes(), all - 4096);
        held.release();
        assert_eq!(budget.available_bytes(), all);
        assert!(budget.try_grow(&mut held, 5000));
        drop(held);
        assert_eq!(budget.available_bytes(), all);
    }

    #[test]
    fn the_default_is_a_share_of_what_there_is() {
        let machine = "MemTotal:       24684116 kB\nMemFree: 1 kB\n";
        assert_eq!(share_of(machine, "max\n"), (24_684_116 << 10) / 16);
        assert_eq!(share_of(machine, "8589934592\n"), 512 << 20);
        assert_eq!(share_of("MemTotal: 999999999 kB", ""), 4 << 30);
        assert_eq!((share_of(machine, "1048576"), share_of("", "")), (256 << 20, 256 << 20));
    }

    #[test]
    fn growth_never_waits() {
        let budget = MemoryBudget::new(0);
        let (mut first, mut second) = (Reservation::default(), Reservation::default());
        assert!(budget.try_grow(&mut first, LARGE_BODY_BYTES + 1));
        assert!(budget.try_grow(&mut second, LARGE_BODY_BYTES - UNIT_BYTES));
        assert!(!budget.try_grow(&mut second, LARGE_BODY_BYTES));
        assert!(!budget.try_grow(&mut second, usize::MAX));
        drop(first);
        assert!(budget.try_grow(&mut second, LARGE_BODY_BYTES));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_to_spool_is_waited_for_but_not_for_ever() {
        let budget = MemoryBudget::new(0);
        let mut places = Vec::new();
        for _ in 0..SPOOLS_MIN {
            places.push(budget.place_to_spool().await.expect("a free place"));
        }
        assert!(budget.place_to_spool().await.is_none());
        places.pop();
        assert!(budget.place_to_spool().await.is_some());
    }
}
