//! Keeps the log of the control shard short.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use posthaste_cluster::{
    BootTime, CONTROL_SHARD, ControlPlace, ControlShard, ControlShardError, LeaseClock, LogError, LogPosition,
    NodeCell, NodeName,
};

use super::nodes::{NodeList, is_silent};

/// Restates the log when it has grown, and cuts it when all nodes have read on.
pub(super) struct LogCutter {
    me: NodeName,
    shard: Arc<ControlShard>,
    nodes: NodeList,
    /// Size at which the log is restated.
    limit_bytes: u64,
}

impl LogCutter {
    /// Looks each minute, on a thread that ends once the answer is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(me: NodeName, shard: Arc<ControlShard>, nodes: NodeList) -> std::io::Result<Sender<()>> {
        let mut cutter = Self { me, shard, nodes, limit_bytes: RESTATED_BYTES };
        let (end, ended) = channel();
        let work = move || {
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                cutter.look();
            }
        };
        // A call under way may wait for the engine: nobody waits for that at the end.
        std::thread::Builder::new().name("cluster-cut".to_owned()).spawn(work)?;
        Ok(end)
    }

    fn look(&mut self) {
        // Without an answer of the engine nothing is cut.
        let Ok(listed) = self.nodes.listed() else { return };
        if let Err(error) = self.cut(&listed) {
            tracing::debug!(%error, "cannot cut the control shard's log");
        }
        if let Err(error) = self.restate(&listed) {
            tracing::warn!(%error, "the control shard's log is long, and its values cannot be restated now");
        }
    }

    fn cut(&self, listed: &[(NodeName, NodeCell)]) -> Result<(), LogError> {
        let Some(lowest) = lowest(listed, &self.me, self.shard.place()) else { return Ok(()) };
        if self.shard.cut(lowest)? {
            tracing::info!("the control shard's log was cut: all its values are at its start");
        }
        Ok(())
    }

    /// Restates the log, on one node only: the first that runs.
    fn restate(&mut self, listed: &[(NodeName, NodeCell)]) -> Result<(), ControlShardError> {
        let now = BootTime.wall();
        let first = listed.iter().find(|(_, cell)| !is_silent(cell, now));
        if first.is_none_or(|(name, _)| *name != self.me) {
            return Ok(());
        }
        let used = || self.shard.used_bytes().map_err(|error| ControlShardError::Offline(error.to_string()));
        let used_now = used()?;
        // Any node may have cut the log: then the limit falls with its size.
        self.limit_bytes = self.limit_bytes.min(limit(used_now));
        if used_now >= self.limit_bytes {
            self.shard.restate(RESTATE_PATIENCE)?;
            // Until it can be cut it is not done again.
            self.limit_bytes = limit(used()?);
        }
        Ok(())
    }
}

fn limit(used: u64) -> u64 {
    RESTATED_BYTES.max(used.saturating_mul(2))
}

/// The position up to which all nodes on the list have applied the log. `None` if the position of one is unknown.
fn lowest(listed: &[(NodeName, NodeCell)], me: &NodeName, own: ControlPlace) -> Option<LogPosition> {
    // One that has never run begins with the first record that is there.
    let known = listed.iter().filter(|(name, cell)| name == me || cell.wall_ms > 0);
    let applied = known.map(|(name, cell)| match cell.reports.get(&CONTROL_SHARD) {
        _ if name == me => Some(own.position),
        Some(report) => Some(report.applied).filter(|_| report.log == own.log),
        None => None,
    });
    applied.collect::<Option<Vec<_>>>()?.into_iter().min()
}

const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A restatement holds all values in memory, and takes seconds: some hundred thousand changes are kept before.
const RESTATED_BYTES: u64 = 64 << 20;
/// Timeout of a restatement: millions of values, some thousand each second.
const RESTATE_PATIENCE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use posthaste_cluster::memory::{LogFaults, MemoryCells, MemoryLog};
    use posthaste_cluster::{
        Cells, ControlEntry, ControlFollower, ControlKind, ControlRules, ControlTable, MemberReport, ShardLog,
    };

    use super::*;

    /// Keeps nothing, and restates all.
    struct Plain;

    impl ControlFollower for Plain {
        fn apply(&mut self, _: ControlPlace, _: &[ControlEntry]) -> Result<(), String> {
            Ok(())
        }

        fn replace(&mut self, _: &ControlTable) -> Result<(), String> {
            Ok(())
        }

        fn trouble(&mut self, _: Option<&str>) {}

        fn tick(&mut self) {}
    }

    impl ControlRules for Plain {
        fn stays(&self, _: ControlKind, _: &Bytes, _: &Bytes) -> bool {
            false
        }

        fn restated(&self, _: ControlKind, value: &Bytes) -> Option<Bytes> {
            Some(value.clone())
        }
    }

    /// A control shard that the nodes `a` and `b` read.
    struct Rig {
        log: MemoryLog,
        shard: Arc<ControlShard>,
        cells: MemoryCells,
    }

    impl Rig {
        fn new() -> Self {
            let log = MemoryLog::new(1, LogFaults::default());
            let parts = (Arc::new(log.clone()) as Arc<dyn ShardLog>, Arc::new(Plain) as Arc<dyn ControlRules>);
            let shard = ControlShard::start(parts, ControlPlace::default(), 1, Box::new(Plain)).unwrap();
            let rig = Self { log, shard: Arc::new(shard), cells: MemoryCells::default() };
            rig.put();
            ["a", "b"].into_iter().for_each(|node| rig.write(node, true));
            rig
        }

        /// Stores a value that this node has applied then.
        fn put(&self) {
            let (kind, value) = (ControlKind::Suspension, Some(Bytes::from("until")));
            let entry = ControlEntry { kind, key: Bytes::from("news"), value };
            self.shard.put(&[entry], Duration::from_secs(60)).unwrap();
        }

        /// Writes the cell of a node that has read all.
        fn write(&self, node: &str, is_running: bool) {
            let place = self.shard.place();
            let report = MemberReport { spool: 0, log: place.log, applied: place.position, digest: None };
            let ago = if is_running { Duration::ZERO } else { Duration::from_secs(60) };
            let wall_ms = u64::try_from((BootTime.wall() - ago).as_millis()).unwrap();
            let cell = NodeCell { wall_ms, reports: BTreeMap::from([(CONTROL_SHARD, report)]), ..NodeCell::default() };
            let key = NodeName::new(node).unwrap().key();
            self.cells.swap(&key, self.cells.get(&key).unwrap().1, cell.encode()).unwrap();
        }

        fn cutter(&self, node: &str, limit_bytes: u64) -> LogCutter {
            let nodes = NodeList::new(["a", "b"].into_iter(), Arc::new(self.cells.clone()));
            LogCutter { me: NodeName::new(node).unwrap(), shard: self.shard.clone(), nodes, limit_bytes }
        }

        /// Records that a look of this node appends.
        fn appended(&self, cutter: &mut LogCutter) -> u64 {
            let before = self.log.end().unwrap().get();
            cutter.look();
            self.log.end().unwrap().get() - before
        }
    }

    #[test]
    fn a_log_is_restated_once_when_it_has_its_limit() {
        let rig = Rig::new();
        let used = rig.shard.used_bytes().unwrap();
        assert_eq!(rig.appended(&mut rig.cutter("a", used + 1)), 0);
        let mut cutter = rig.cutter("a", used);
        assert_eq!(rig.appended(&mut cutter), 1);
        assert_eq!((cutter.limit_bytes, rig.appended(&mut cutter)), (RESTATED_BYTES, 0));
        // One that stays long until it can be cut is left alone until it has doubled.
        assert_eq!([0, RESTATED_BYTES / 2, RESTATED_BYTES].map(limit), [1, 1, 2].map(|by| by * RESTATED_BYTES));
    }

    #[test]
    fn the_first_node_that_runs_restates() {
        let rig = Rig::new();
        assert_eq!(rig.appended(&mut rig.cutter("b", 0)), 0);
        rig.write("a", false);
        assert_eq!(rig.appended(&mut rig.cutter("a", 0)), 0);
        assert_eq!(rig.appended(&mut rig.cutter("b", 0)), 1);
    }

    #[test]
    fn the_limit_falls_with_a_log_that_was_cut() {
        let rig = Rig::new();
        rig.put();
        let mut cutter = rig.cutter("a", 0);
        assert_eq!(rig.appended(&mut cutter), 1);
        rig.put();
        cutter.look();
        assert_eq!(rig.log.first().unwrap(), LogPosition::new(1), "b has not read what comes before");
        rig.write("b", true);
        // As long as the log was when another node restated it.
        cutter.limit_bytes = 3 * RESTATED_BYTES;
        cutter.look();
        assert_eq!((rig.log.first().unwrap(), cutter.limit_bytes), (LogPosition::new(3), RESTATED_BYTES));
    }

    #[test]
    fn a_node_on_the_list_keeps_what_it_has_not_read() {
        let names = ["a", "b", "c"].map(|name| NodeName::new(name).unwrap());
        let report = |log, applied| MemberReport { spool: 0, log, applied: LogPosition::new(applied), digest: None };
        let cell = |report: Option<MemberReport>| {
            let reports = report.map(|report| BTreeMap::from([(CONTROL_SHARD, report)])).unwrap_or_default();
            NodeCell { wall_ms: 1, reports, ..NodeCell::default() }
        };
        let own = ControlPlace { log: 7, position: LogPosition::new(20), crc: 0 };
        let lowest = |second: NodeCell| {
            let cells = [cell(None), cell(Some(report(7, 30))), second];
            let listed: Vec<_> = names.iter().cloned().zip(cells).collect();
            super::lowest(&listed, &names[0], own).map(LogPosition::get)
        };
        assert_eq!(lowest(cell(Some(report(7, 9)))), Some(9));
        assert_eq!(lowest(cell(Some(report(7, 99)))), Some(20), "its own place counts, and not its cell");
        assert_eq!(lowest(cell(Some(report(8, 99)))), None, "of another log");
        assert_eq!(lowest(cell(None)), None);
        assert_eq!(lowest(NodeCell::default()), Some(20), "it has never run");
    }
}
