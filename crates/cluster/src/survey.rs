//! Reads the cells of nodes for an operator: which nodes are alive, and how their clocks differ.

use std::time::Duration;

use crate::cell::{CellKey, NodeCell, NodeName};
use crate::{Cells, LogError};

/// A node by its cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedNode {
    /// Name of the node.
    pub node: NodeName,
    /// Last value of its cell; `None` if it was never written or cannot be read.
    pub cell: Option<NodeCell>,
    /// Its clock minus the local clock, in milliseconds, accurate to a fifth of a second. `None` if it has not written
    /// for [`SURVEY`].
    pub clock_ms: Option<i64>,
}

/// A node writes its cell each second. One that has not written for this time is down.
pub const SURVEY: Duration = Duration::from_secs(4);

/// Reads the cells until each node has written, or for [`SURVEY`]. `wall` is the machine's clock, in time since 1970;
/// `pause` waits.
///
/// # Errors
/// [`LogError::Unreachable`]: the engine cannot be asked.
pub fn survey(
    cells: &dyn Cells,
    nodes: &[NodeName],
    wall: &dyn Fn() -> Duration,
    pause: &dyn Fn(Duration),
) -> Result<Vec<SurveyedNode>, LogError> {
    let read = |node: &NodeName| cells.get(&CellKey::Node(node.clone()).to_string());
    let mut found = Vec::new();
    for node in nodes {
        let (value, revision) = read(node)?;
        let cell = NodeCell::decode(&value);
        found.push((revision, SurveyedNode { node: node.clone(), cell, clock_ms: None }));
    }
    for _ in 0..SURVEY.as_millis() / EVERY.as_millis() {
        if found.iter().all(|(_, it)| it.clock_ms.is_some()) {
            break;
        }
        pause(EVERY);
        for (first, it) in found.iter_mut().filter(|(_, it)| it.clock_ms.is_none()) {
            let (value, revision) = read(&it.node)?;
            if revision == *first {
                continue;
            }
            it.cell = NodeCell::decode(&value);
            let here = i64::try_from(wall().as_millis()).unwrap_or(i64::MAX);
            it.clock_ms = it.cell.as_ref().map(|cell| cell.wall_ms.cast_signed().saturating_sub(here));
        }
    }
    Ok(found.into_iter().map(|(_, it)| it).collect())
}

/// Interval between two reads of a cell.
const EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::memory::MemoryCells;

    #[test]
    fn silent_nodes_and_clocks_that_differ_are_found() {
        let cells = MemoryCells::default();
        let names = ["a", "b", "silent", "never"].map(|name| NodeName::new(name).unwrap());
        let write = |node: &NodeName, wall_ms: u64| {
            let key = node.key();
            let revision = cells.get(&key).unwrap().1;
            let cell = NodeCell { wall_ms, version: "0.1.0".to_owned(), ..NodeCell::default() };
            cells.swap(&key, revision, cell.encode()).unwrap();
        };
        names[..3].iter().for_each(|node| write(node, 1000));
        let now = Cell::new(Duration::from_secs(100));
        let pause = |time| {
            now.set(now.get() + time);
            // Each second, and the other half a second later, by a clock that is 5 s behind.
            let ms = now.get().as_millis() as u64;
            match ms % 1000 {
                0 => write(&names[0], ms),
                500 => write(&names[1], ms - 5000),
                _ => {}
            }
        };
        let found = survey(&cells, &names, &|| now.get(), &pause).unwrap();
        let clocks: Vec<_> = found.iter().map(|it| it.clock_ms).collect();
        assert_eq!(clocks, [Some(0), Some(-5000), None, None]);
        assert_eq!(now.get(), Duration::from_secs(100) + SURVEY);
        let is_known: Vec<_> = found.iter().map(|it| it.cell.is_some()).collect();
        assert_eq!(is_known, [true, true, true, false]);
        assert_eq!(found[0].cell.as_ref().unwrap().version, "0.1.0");
    }

    #[test]
    fn a_survey_ends_once_all_have_written() {
        let cells = MemoryCells::default();
        let node = NodeName::new("a").unwrap();
        let pauses = Cell::new(0);
        let pause = |_| {
            pauses.set(pauses.get() + 1);
            let revision = cells.get(&node.key()).unwrap().1;
            cells.swap(&node.key(), revision, NodeCell::default().encode()).unwrap();
        };
        survey(&cells, std::slice::from_ref(&node), &|| Duration::ZERO, &pause).unwrap();
        assert_eq!(pauses.get(), 1);
    }
}
