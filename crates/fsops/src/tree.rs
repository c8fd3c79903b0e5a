//! A directory tree as values.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Identifies a file or directory, independent of its name: an inode number that is never reused.
pub type NodeId = u64;

/// The directory that everything lies in.
pub const ROOT: NodeId = 0;

/// Directories and files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// Directories at which other file systems are mounted.
    mounts: BTreeSet<NodeId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Dir(BTreeMap<String, NodeId>),
    File(Vec<u8>),
}

/// The file systems of files and directories that are not on the first one.
#[derive(Debug, Clone, Default)]
pub struct Mounts(BTreeMap<NodeId, NodeId>);

impl Mounts {
    /// Root of the file system that a file or directory is on.
    pub(crate) fn of(&self, node: NodeId) -> NodeId {
        self.0.get(&node).copied().unwrap_or(ROOT)
    }

    /// Notes that `node` was made in `dir`.
    pub(crate) fn made_in(&mut self, dir: NodeId, node: NodeId) {
        if let Some(mount) = self.0.get(&dir).copied() {
            self.0.insert(node, mount);
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        Tree { nodes: BTreeMap::from([(ROOT, Node::Dir(BTreeMap::new()))]), mounts: BTreeSet::new() }
    }
}

impl Tree {
    /// An empty tree with other file systems mounted at these directories, outer ones first.
    pub fn with_mounts(paths: &[&str]) -> Self {
        let mut tree = Tree::default();
        for path in paths {
            let dir = path.split('/').fold(ROOT, |dir, name| {
                let new = tree.highest() + 1;
                let node = *tree.entries(dir).entry(name.to_owned()).or_insert(new);
                tree.entries(node);
                node
            });
            tree.mounts.insert(dir);
        }
        tree
    }

    /// The mount points of other file systems.
    pub(crate) fn mount_points(&self) -> Vec<PathBuf> {
        let mut points = Vec::new();
        self.walk(ROOT, Path::new(""), &mut |path, id, _| {
            points.extend(self.mounts.contains(&id).then(|| path.to_owned()));
            Ok(())
        })
        .expect("the visitor has no error");
        points
    }

    /// The file system of each directory.
    pub(crate) fn mounts(&self) -> Mounts {
        let mut all = Mounts::default();
        for mount in &self.mounts {
            all.0.insert(*mount, *mount);
            self.walk(*mount, Path::new(""), &mut |_, id, _| {
                all.0.insert(id, *mount);
                Ok(())
            })
            .expect("the visitor has no error");
        }
        all
    }

    /// The bytes of every file by its path, and directories with no bytes.
    pub fn files(&self) -> BTreeMap<PathBuf, Option<&[u8]>> {
        let mut all = BTreeMap::new();
        self.walk(ROOT, Path::new(""), &mut |path, _, node| {
            let bytes = match node {
                Node::Dir(_) => None,
                Node::File(bytes) => Some(&bytes[..]),
            };
            all.insert(path.to_owned(), bytes);
            Ok(())
        })
        .expect("the visitor has no error");
        all
    }

    pub(crate) fn walk<'a>(
        &'a self,
        dir: NodeId,
        at: &Path,
        visit: &mut impl FnMut(&Path, NodeId, &'a Node) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(Node::Dir(entries)) = self.nodes.get(&dir) else { return Ok(()) };
        for (name, id) in entries {
            let path = at.join(name);
            let node = &self.nodes[id];
            visit(&path, *id, node)?;
            self.walk(*id, &path, visit)?;
        }
        Ok(())
    }

    /// The highest number of a file or directory.
    pub(crate) fn highest(&self) -> NodeId {
        self.nodes.keys().next_back().copied().unwrap_or(ROOT)
    }

    pub(crate) fn has_name(&self, id: NodeId) -> bool {
        let leads_there =
            |node: &Node| matches!(node, Node::Dir(entries) if entries.values().any(|other| *other == id));
        self.nodes.values().any(leads_there)
    }

    /// Removes files and directories without a name.
    pub(crate) fn prune(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        self.walk(ROOT, Path::new(""), &mut |_, id, _| {
            reached.insert(id);
            Ok(())
        })
        .expect("the visitor has no error");
        self.nodes.retain(|id, _| reached.contains(id));
    }

    pub(crate) fn entries(&mut self, dir: NodeId) -> &mut BTreeMap<String, NodeId> {
        match self.nodes.entry(dir).or_insert_with(|| Node::Dir(BTreeMap::new())) {
            Node::Dir(entries) => entries,
            Node::File(_) => panic!("node {dir} is used as a directory and is a file"),
        }
    }

    pub(crate) fn bytes(&mut self, file: NodeId) -> &mut Vec<u8> {
        match self.nodes.entry(file).or_insert_with(|| Node::File(Vec::new())) {
            Node::File(bytes) => bytes,
            Node::Dir(_) => panic!("node {file} is used as a file and is a directory"),
        }
    }
}
