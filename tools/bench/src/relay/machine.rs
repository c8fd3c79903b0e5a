//! CPU time of the whole machine, in the kernel and outside of it.

/// Processor time of all cores since the machine started (proc_stat(5)).
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine {
    /// Work, software interrupts included, in microseconds.
    pub busy_us: f64,
    /// Time that the hypervisor gave to other machines, in microseconds (steal).
    pub steal_us: f64,
    /// All time, idle time included, in microseconds.
    pub all_us: f64,
}

/// A tick of `/proc/stat`: `USER_HZ` is 100 on every supported architecture.
const TICK_US: f64 = 10_000.0;

impl Machine {
    /// Counters now; zeros if they cannot be read.
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = line.split_ascii_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guests are part of user.
        let sum = |places: &[usize]| places.iter().filter_map(|at| ticks.get(*at)).sum::<f64>() * TICK_US;
        Self { busy_us: sum(&[0, 1, 2, 5, 6]), steal_us: sum(&[7]), all_us: sum(&[0, 1, 2, 3, 4, 5, 6, 7]) }
    }

    /// Difference to `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            busy_us: self.busy_us - before.busy_us,
            steal_us: self.steal_us - before.steal_us,
            all_us: self.all_us - before.all_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_work_and_waiting_is_none() {
        let machine = Machine::parse("cpu  10 1 20 400 50 3 6 7 9 0\ncpu0 1 1 1 1 1 1 1 1\n");
        assert_eq!((machine.busy_us, machine.steal_us, machine.all_us), (400_000.0, 70_000.0, 4_970_000.0));
    }
}
