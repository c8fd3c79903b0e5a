//! Records the changes of a file system, and builds the trees that a power cut may leave.
//!
//! The model, for every call that had returned when the power went and that no sync has covered:
//!
//! - A write is kept, dropped, or torn: each sector of [`SECTOR`] bytes separately. A change of a file's length is kept
//!   or dropped. The file may have grown all the same; then zeros or old garbage lie where nothing was written.
//! - A change of names (creating, removing, linking, renaming, exchanging) is kept or dropped as a whole, in any
//!   order; with [`Recording::ordered_log`], none is kept after a dropped one. A name whose directory is gone is
//!   gone, and none is made while another file still has it. A file that is renamed durably exists under its new
//!   name, whatever became of its old one. A file that is renamed twice without a sync never has both its first name
//!   and its last, since a rename is one change. Nor does it have the second alone where an exchange was to give it
//!   the name that it was renamed from.
//! - fsync of a file makes its bytes durable and no name. fsync of a directory makes the changes of names in it durable; a rename becomes durable
//!   with either of its directories. Where the log is ordered, any fsync makes all earlier changes of names durable.
//! - syncfs makes everything on that file system durable. Each has its own log of names.
//! - A sync that fails has forgotten the writes that it should have covered: they read well, no later sync writes them, and the disk may
//!   have any of them or not.

use std::collections::{BTreeMap, BTreeSet};

pub use crate::chooser::SECTOR;
use crate::chooser::{Chooser, Fate, write};
pub use crate::event::{Choice, Cut, FsEvent, SyncScope};
use crate::tree::{Mounts, NodeId, Tree};

/// A run: the initial tree, and all events.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The durable tree before the first event.
    pub base: Tree,
    /// The events, in order.
    pub events: Vec<FsEvent>,
    /// The file system of each directory.
    pub mounts: Mounts,
    /// True if the changes of names on a file system reach the disk in their order.
    pub ordered_log: bool,
}

/// State of an event at the cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Durable,
    Pending,
    Nothing,
}

impl Recording {
    /// The tree that a program sees at the end: every change is kept.
    pub fn cached(&self) -> Tree {
        let mut tree = self.base.clone();
        for event in &self.events {
            apply(&mut tree, event);
        }
        tree.prune();
        tree
    }

    /// Messages acknowledged as durable before `position`.
    pub fn acknowledged_before(&self, position: usize) -> impl Iterator<Item = u64> {
        self.events[..position].iter().filter_map(|event| match event {
            FsEvent::Acknowledged(number) => Some(*number),
            _ => None,
        })
    }

    /// Number of changes that are not durable before `position`: [`Choice::Bits`] has a bit for each.
    pub fn pending_before(&self, position: usize) -> usize {
        self.reached(position).iter().filter(|reached| **reached == Reached::Pending).count()
    }

    /// Repeats the run on a disk with ineffective syncs: the tree that a program without syncs would leave.
    pub fn without_syncs(&self, forgotten: impl Fn(usize) -> bool) -> Self {
        let kept = |(index, event): (usize, &FsEvent)| {
            if event.is_sync() && forgotten(index) {
                // Stays an event, so that positions keep their meaning.
                FsEvent::SyncFailed(SyncScope::Node(NodeId::MAX))
            } else {
                event.clone()
            }
        };
        Recording { events: self.events.iter().enumerate().map(kept).collect(), ..self.clone() }
    }

    /// The tree after a power cut.
    pub fn cut(&self, cut: Cut) -> Tree {
        let reached = self.reached(cut.position);
        let pending = reached.iter().filter(|reached| **reached == Reached::Pending).count();
        let mut chooser = Chooser::new(cut, pending);
        let mut tree = self.base.clone();
        // Of the file systems on which a change of names was dropped.
        let mut ended = BTreeSet::new();
        for (event, reached) in self.events.iter().zip(reached) {
            match reached {
                Reached::Nothing => {}
                Reached::Durable => apply(&mut tree, event),
                Reached::Pending => {
                    exist(&mut tree, event);
                    let mut fate = chooser.next(event);
                    if is_impossible(&mut tree, event) {
                        fate = Fate::Dropped;
                    }
                    if let (true, Some(dir)) = (self.ordered_log, event.dir()) {
                        let mount = self.mounts.of(dir);
                        if !matches!(fate, Fate::Kept) {
                            ended.insert(mount);
                        } else if ended.contains(&mount) {
                            fate = Fate::Dropped;
                        }
                    }
                    match (fate, event) {
                        (Fate::Kept, _) => apply(&mut tree, event),
                        (Fate::Torn, FsEvent::Write { node, offset, bytes }) => {
                            chooser.tear(tree.bytes(*node), *offset as usize, bytes);
                        }
                        (Fate::Dropped, FsEvent::Write { node, offset, bytes }) => {
                            chooser.grow(tree.bytes(*node), *offset as usize + bytes.len());
                        }
                        _ => {}
                    }
                }
            }
        }
        tree.prune();
        tree
    }

    fn covers_name(&self, scope: &SyncScope, event: &FsEvent) -> bool {
        let is_on = |mount| event.dir().is_some_and(|dir| self.mounts.of(dir) == mount);
        match *scope {
            SyncScope::Node(node) => event.changes_names_in(node) || self.ordered_log && is_on(self.mounts.of(node)),
            SyncScope::FileSystem(mount) => is_on(mount),
        }
    }

    fn reached(&self, position: usize) -> Vec<Reached> {
        let events = &self.events[..position];
        let mut reached = vec![Reached::Nothing; events.len()];
        let mut names: Vec<usize> = Vec::new();
        let mut writes: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            if event.dir().is_some() {
                reached[index] = Reached::Pending;
                names.push(index);
            } else if let Some(node) = event.writes_to() {
                reached[index] = Reached::Pending;
                writes.entry(node).or_default().push(index);
            }
            let (FsEvent::Sync(scope) | FsEvent::SyncFailed(scope)) = event else { continue };
            let is_written = |node: &NodeId| match scope {
                SyncScope::Node(synced) => node == synced,
                SyncScope::FileSystem(mount) => self.mounts.of(*node) == *mount,
            };
            let covered: Vec<usize> =
                writes.extract_if(.., |node, _| is_written(node)).flat_map(|(_, at)| at).collect();
            // After a failure they stay pending for ever: no later sync finds them.
            if event.is_sync() {
                covered.into_iter().for_each(|at| reached[at] = Reached::Durable);
                names.retain(|&at| {
                    let is_covered = self.covers_name(scope, &events[at]);
                    if is_covered {
                        reached[at] = Reached::Durable;
                    }
                    !is_covered
                });
            }
        }
        reached
    }
}

/// A file that was made, even unnamed, exists for a rename although its first name may be lost.
fn exist(tree: &mut Tree, event: &FsEvent) {
    match event {
        FsEvent::Create { node, is_dir: true, .. } => drop(tree.entries(*node)),
        // What is linked may be a file that has had no name before.
        FsEvent::Create { node, .. } | FsEvent::Link { node, .. } => drop(tree.bytes(*node)),
        _ => {}
    }
}

/// True if the change depends on a dropped one: its new name is still in use, or the renamed file lacks the old name.
fn is_impossible(tree: &mut Tree, event: &FsEvent) -> bool {
    match event {
        FsEvent::Create { dir, name, node, .. } | FsEvent::Link { dir, name, node } => {
            tree.entries(*dir).get(name).is_some_and(|other| other != node)
        }
        FsEvent::Rename { from, node, .. } => match tree.entries(from.0).get(&from.1) {
            Some(other) => other != node,
            None => tree.has_name(*node),
        },
        _ => false,
    }
}

fn apply(tree: &mut Tree, event: &FsEvent) {
    exist(tree, event);
    match event {
        FsEvent::Create { dir, name, node, .. } | FsEvent::Link { dir, name, node } => {
            tree.entries(*dir).insert(name.clone(), *node);
        }
        FsEvent::Remove { dir, name, node } => {
            let entries = tree.entries(*dir);
            if entries.get(name) == Some(node) {
                entries.remove(name);
            }
        }
        FsEvent::Rename { from, to, node } => {
            let entries = tree.entries(from.0);
            if entries.get(&from.1) == Some(node) {
                entries.remove(&from.1);
            }
            tree.entries(to.0).insert(to.1.clone(), *node);
        }
        FsEvent::Exchange { first, second } => {
            tree.entries(first.0).insert(first.1.clone(), second.2);
            tree.entries(second.0).insert(second.1.clone(), first.2);
        }
        FsEvent::Truncate { node, len } => tree.bytes(*node).resize(*len as usize, 0),
        FsEvent::Write { node, offset, bytes } => write(tree.bytes(*node), *offset as usize, bytes),
        FsEvent::Sync(_) | FsEvent::SyncFailed(_) | FsEvent::Acknowledged(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chooser::GARBAGE;
    use crate::tree::ROOT;

    const ALL: FsEvent = FsEvent::Sync(SyncScope::FileSystem(ROOT));

    fn recording(events: Vec<FsEvent>) -> Recording {
        Recording { base: Tree::default(), events, mounts: Mounts::default(), ordered_log: false }
    }

    fn create(name: &str, node: NodeId) -> FsEvent {
        FsEvent::Create { dir: ROOT, name: name.into(), node, is_dir: false }
    }

    fn write(node: NodeId, byte: u8) -> FsEvent {
        FsEvent::Write { node, offset: 0, bytes: vec![byte; 2 * SECTOR] }
    }

    /// Everything that a cut at the end may leave of a file: its sectors' first bytes, or nothing if it has no name.
    fn outcomes(recording: &Recording, name: &str) -> std::collections::BTreeSet<Option<Vec<u8>>> {
        let position = recording.events.len();
        let of = |seed| {
            let tree = recording.cut(Cut { position, choice: Choice::Seed(seed) });
            let files = tree.files();
            files.get(std::path::Path::new(name)).map(|file| file.unwrap().chunks(SECTOR).map(|s| s[0]).collect())
        };
        (0..3000).map(of).collect()
    }

    #[test]
    fn what_is_synced_stays_and_all_else_may_be_anything() {
        let unsynced = outcomes(&recording(vec![create("a", 1), write(1, 7)]), "a");
        for expected in
            [None, Some(vec![]), Some(vec![7, 7]), Some(vec![0, 7]), Some(vec![7, GARBAGE]), Some(vec![0, 0])]
        {
            assert!(unsynced.contains(&expected), "{expected:?} in {unsynced:?}");
        }
        let bytes_only = vec![create("a", 1), write(1, 7), FsEvent::Sync(SyncScope::Node(1))];
        assert_eq!(
            outcomes(&recording(bytes_only.clone()), "a").into_iter().collect::<Vec<_>>(),
            [None, Some(vec![7, 7])]
        );
        let ordered = Recording { ordered_log: true, ..recording(bytes_only) };
        assert_eq!(outcomes(&ordered, "a").into_iter().collect::<Vec<_>>(), [Some(vec![7, 7])]);
        let names_only = vec![create("a", 1), write(1, 7), FsEvent::Sync(SyncScope::Node(ROOT))];
        assert!(!outcomes(&recording(names_only), "a").contains(&None));
        let both = vec![create("a", 1), write(1, 7), ALL];
        assert_eq!(outcomes(&recording(both), "a").into_iter().collect::<Vec<_>>(), [Some(vec![7, 7])]);
    }

    #[test]
    fn a_rename_is_lost_or_made_as_a_whole() {
        let events = vec![
            create("a", 1),
            write(1, 7),
            ALL,
            FsEvent::Rename { from: (ROOT, "a".into()), to: (ROOT, "b".into()), node: 1 },
        ];
        let recording = recording(events);
        for bits in 0..2 {
            let tree = recording.cut(Cut { position: 4, choice: Choice::Bits(bits) });
            let names: Vec<_> = tree.files().into_keys().collect();
            assert_eq!(names, [std::path::Path::new(if bits == 1 { "b" } else { "a" })]);
        }
        assert_eq!(recording.pending_before(4), 1);
    }

    #[test]
    fn no_name_is_made_while_another_file_has_it() {
        let away = FsEvent::Rename { from: (ROOT, "a".into()), to: (ROOT, "b".into()), node: 1 };
        let recording = recording(vec![create("a", 1), write(1, 7), ALL, away, create("a", 2)]);
        let lengths = |bits| {
            let tree = recording.cut(Cut { position: 5, choice: Choice::Bits(bits) });
            let files = tree.files();
            ["a", "b"].map(|name| files.get(std::path::Path::new(name)).map(|file| file.unwrap().len()))
        };
        let whole = Some(2 * SECTOR);
        assert_eq!([0, 1, 2, 3].map(lengths), [[whole, None], [None, whole], [whole, None], [Some(0), whole]]);
    }

    #[test]
    fn what_is_renamed_twice_has_one_name() {
        let renamed =
            |from: &str, to: &str| FsEvent::Rename { from: (ROOT, from.into()), to: (ROOT, to.into()), node: 1 };
        let names = |events| -> Vec<String> {
            let recording = recording(events);
            let position = recording.events.len();
            let cut = |bits| recording.cut(Cut { position, choice: Choice::Bits(bits) });
            (0..4).map(|bits| cut(bits).files().into_keys().map(|name| name.display().to_string()).collect()).collect()
        };
        let there = vec![create("a", 1), ALL, renamed("a", "b"), renamed("b", "c")];
        assert_eq!(names(there), ["a", "b", "a", "c"]);
        assert_eq!(
            names(vec![create("a", 1), renamed("a", "b")]),
            ["", "a", "b", "b"],
            "it may never have had its first"
        );
        let first_for_second = FsEvent::Exchange { first: (ROOT, "a".into(), 1), second: (ROOT, "b".into(), 2) };
        let moved = [create("a", 1), create("b", 2), ALL, first_for_second, renamed("b", "c")];
        assert_eq!(names(moved.into()), ["ab", "ab", "ab", "ac"], "nor without the exchange that gave it the name");
    }

    #[test]
    fn names_are_kept_in_any_order_or_in_theirs() {
        let two = recording(vec![create("a", 1), create("b", 2)]);
        let names = |recording: &Recording| -> Vec<usize> {
            (0..4)
                .map(|bits| {
                    let tree = recording.cut(Cut { position: 2, choice: Choice::Bits(bits) });
                    tree.files().into_keys().map(|name| if name.ends_with("a") { 1 } else { 2 }).sum()
                })
                .collect()
        };
        assert_eq!(names(&two), [0, 1, 2, 3]);
        assert_eq!(names(&Recording { ordered_log: true, ..two.clone() }), [0, 1, 0, 3]);
        let base = Tree::with_mounts(&["m"]);
        let there = FsEvent::Create { dir: 1, name: "c".into(), node: 3, is_dir: false };
        let apart = Recording { mounts: base.mounts(), base, events: vec![create("a", 2), there], ordered_log: true };
        let tree = apart.cut(Cut { position: 2, choice: Choice::Bits(0b10) });
        let names: Vec<_> = tree.files().into_keys().collect();
        assert_eq!(names, ["m", "m/c"].map(std::path::PathBuf::from), "each file system has its own order");
    }

    #[test]
    fn what_a_failed_sync_has_forgotten_no_later_one_writes() {
        let events = vec![create("a", 1), write(1, 7), FsEvent::SyncFailed(SyncScope::FileSystem(ROOT)), ALL];
        let some = outcomes(&recording(events.clone()), "a");
        assert!(some.contains(&Some(vec![])) && some.contains(&Some(vec![7, 7])) && !some.contains(&None), "{some:?}");
        let anew = [events, vec![write(1, 8), ALL]].concat();
        assert_eq!(outcomes(&recording(anew), "a").into_iter().collect::<Vec<_>>(), [Some(vec![8, 8])]);
    }

    #[test]
    fn a_cut_is_read_as_it_is_written() {
        for text in ["17:s4", "0:b5"] {
            assert_eq!(text.parse::<Cut>().unwrap().to_string(), text);
        }
        assert!("17".parse::<Cut>().is_err() && "1:x4".parse::<Cut>().is_err());
    }
}
