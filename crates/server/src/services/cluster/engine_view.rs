//! The engine's view of shards and nodes, for the operator. All calls are made at once with one deadline: an
//! unreachable engine answers none.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use posthaste_cluster::{CellKey, Cells, LogPosition, NodeCell, NodeName, ShardCell, ShardLog};

/// Cells and logs, as far as the engine has answered.
pub(super) struct EngineView {
    shards: BTreeMap<u16, ShardView>,
    /// The cell of each node reported by the engine; `None` for one that has never written it.
    pub nodes: BTreeMap<NodeName, Option<NodeCell>>,
}

/// A shard according to the engine.
#[derive(Default)]
pub(super) struct ShardView {
    /// Empty for a shard that never had an owner.
    pub cell: ShardCell,
    pub end: Option<LogPosition>,
    /// Bytes used, and the limit.
    pub room: Option<(u64, u64)>,
    /// Queries without an answer.
    pub troubles: Vec<String>,
}

enum Seen {
    Shard(u16, ShardView),
    Node(NodeName, Option<NodeCell>),
    Nothing,
}

/// A call that may take long.
pub(super) type Call<T> = Box<dyn FnOnce() -> T + Send>;

impl EngineView {
    /// Asks for shards and nodes. Blocks, but not for longer than `patience`.
    pub fn ask(
        cells: &Arc<dyn Cells>,
        logs: Vec<(u16, Arc<dyn ShardLog>)>,
        nodes: Vec<NodeName>,
        patience: Duration,
    ) -> Self {
        let mut calls: Vec<Call<Seen>> = Vec::new();
        for (shard, log) in logs {
            let cells = cells.clone();
            calls.push(Box::new(move || Seen::Shard(shard, ShardView::of(&*cells, shard, &*log))));
        }
        for node in nodes {
            let cells = cells.clone();
            calls.push(Box::new(move || {
                let answer = cells.get(&node.key());
                answer.map_or(Seen::Nothing, |(value, _)| Seen::Node(node, NodeCell::decode(&value)))
            }));
        }
        let mut view = Self { shards: BTreeMap::new(), nodes: BTreeMap::new() };
        for seen in ask_all(calls, patience).into_iter().flatten() {
            match seen {
                Seen::Shard(number, shard) => drop(view.shards.insert(number, shard)),
                Seen::Node(node, cell) => drop(view.nodes.insert(node, cell)),
                Seen::Nothing => {}
            }
        }
        view
    }

    /// Takes a shard's answer, once.
    pub fn take_shard(&mut self, shard: u16) -> ShardView {
        self.shards.remove(&shard).unwrap_or_else(|| ShardView {
            troubles: vec!["the engine has not answered in time".to_owned()],
            ..ShardView::default()
        })
    }

    /// The position that a node's member has applied, by its last report.
    pub fn applied(&self, shard: u16, node: &NodeName) -> Option<LogPosition> {
        Some(self.nodes.get(node)?.as_ref()?.reports.get(&shard)?.applied)
    }
}

impl ShardView {
    fn of(cells: &dyn Cells, shard: u16, log: &dyn ShardLog) -> Self {
        let (cell, end, room) = (cell(cells, shard), log.end(), log.room());
        let mut troubles: Vec<String> = cell.as_ref().err().cloned().into_iter().collect();
        troubles.extend(end.as_ref().err().map(ToString::to_string));
        Self { cell: cell.unwrap_or_default(), end: end.ok(), room: room.ok(), troubles }
    }
}

fn cell(cells: &dyn Cells, shard: u16) -> Result<ShardCell, String> {
    let (value, _) = cells.get(&CellKey::Shard(shard).to_string()).map_err(|error| error.to_string())?;
    if value.is_empty() {
        Ok(ShardCell::default())
    } else {
        ShardCell::decode(&value).ok_or_else(|| "the shard's cell cannot be read".to_owned())
    }
}

/// Makes all calls concurrently, and returns their answers in order. `None` on a timeout; a thread stays behind until
/// the answer.
pub(super) fn ask_all<T: Send + 'static>(calls: Vec<Call<T>>, patience: Duration) -> Vec<Option<T>> {
    let deadline = Instant::now() + patience;
    let mut answers: Vec<Option<T>> = calls.iter().map(|_| None).collect();
    let threads = calls.len().min(THREADS_MAX);
    let left = Arc::new(Mutex::new(calls.into_iter().enumerate()));
    let (tell, told) = channel();
    for _ in 0..threads {
        let (left, tell) = (left.clone(), tell.clone());
        let next = move || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = move || {
            while let Some((number, call)) = next().filter(|_| Instant::now() < deadline) {
                let _ = tell.send((number, call()));
            }
        };
        // Without it there are fewer answers.
        drop(std::thread::Builder::new().name("cluster-ask".to_owned()).spawn(work));
    }
    drop(tell);
    while let Ok((number, answer)) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        answers[number] = Some(answer);
    }
    answers
}

/// Concurrent calls.
const THREADS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use posthaste_cluster::MemberReport;
    use posthaste_cluster::memory::{LogFaults, MemoryCells, MemoryLog};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_are_asked_at_once() {
        let both = Arc::new(std::sync::Barrier::new(2));
        let call = |number: u32| -> Call<u32> {
            let both = both.clone();
            Box::new(move || {
                // One after the other would wait for ever.
                both.wait();
                number
            })
        };
        assert_eq!(ask_all(vec![call(1), call(2)], LONG), [Some(1), Some(2)]);
        assert!(ask_all(Vec::<Call<u32>>::new(), LONG).is_empty());
    }

    #[test]
    fn calls_without_an_answer_have_one_deadline() {
        let (_held, never) = channel::<()>();
        let never = Arc::new(Mutex::new(never));
        let calls = (0..100).map(|_| -> Call<()> {
            let never = never.clone();
            Box::new(move || drop(never.lock().map(|never| never.recv())))
        });
        let begun = Instant::now();
        assert!(ask_all(calls.collect(), Duration::from_millis(50)).iter().all(Option::is_none));
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_view_has_shards_and_the_reports_of_nodes() {
        let cells = MemoryCells::default();
        let node = NodeName::new("a").unwrap();
        let applied = LogPosition::new(7);
        let report = MemberReport { spool: 1, log: 2, applied, digest: None };
        let cell = NodeCell { reports: BTreeMap::from([(3, report)]), ..NodeCell::default() };
        cells.swap(&node.key(), 0, cell.encode()).unwrap();
        cells.swap("shard.3", 0, ShardCell { epoch: 9, ..ShardCell::default() }.encode()).unwrap();
        cells.swap("shard.4", 0, Bytes::from_static(b"no cell")).unwrap();
        let log: Arc<dyn ShardLog> = Arc::new(MemoryLog::new(7, LogFaults::default()));
        let logs = [3, 4, 5].map(|shard| (shard, log.clone())).to_vec();
        let mut view = EngineView::ask(&(Arc::new(cells) as Arc<dyn Cells>), logs, vec![node.clone()], LONG);
        let shard = view.take_shard(3);
        assert_eq!((shard.cell.epoch, shard.end, shard.troubles.len()), (9, Some(LogPosition::START), 0));
        assert_eq!((view.applied(3, &node), view.applied(4, &node)), (Some(applied), None));
        assert!(view.take_shard(4).troubles[0].contains("cannot be read"));
        assert!(view.take_shard(5).troubles.is_empty(), "it never had an owner");
        assert!(view.take_shard(6).troubles[0].contains("not answered"));
    }
}
