//! The trees that an index covers, and detection of absent ones: an unmounted disk shows no mail, which does not mean
//! that mail is gone.

use std::io;
use std::path::{Path, PathBuf};

use posthaste_maildir::tree::{MailTree, TreeError, TreeOptions, walk};

use super::indexer::Indexer;
use super::report::UpdateOptions;
use crate::error::IndexError;

impl Indexer {
    /// Lists all trees, in the order of the directory's roots. An absent tree is reported as trouble; in a rebuild,
    /// which would lose its messages, it is an error.
    pub(super) fn walk(&mut self, roots: &[PathBuf], options: &UpdateOptions) -> Result<Vec<MailTree>, IndexError> {
        let named: Vec<PathBuf> =
            roots.iter().map(|root| std::path::absolute(root).unwrap_or_else(|_| root.clone())).collect();
        named.iter().try_for_each(|root| self.add_root(root))?;
        if self.state.directory.roots.is_empty() {
            return Err(IndexError::NoRoot);
        }
        let tree_options = TreeOptions { into_noupdate: options.into_noupdate };
        let mut trees = Vec::new();
        for (index, root) in self.state.directory.roots.clone().into_iter().enumerate() {
            let had_folders = self.state.directory.has_folders(index) || self.inhabited.contains(&root);
            let tree = match walk(&root, &tree_options) {
                // A newly named tree must exist; an earlier one without messages loses nothing.
                Err(TreeError::Root { error, .. }) if !named.contains(&root) => {
                    if had_folders && !options.believe_missing {
                        away(&is_not_there(&error))
                    } else {
                        MailTree::default()
                    }
                }
                walked => walked?,
            };
            let device = device(&root);
            let is_away = had_folders && !options.believe_missing && self.is_away(index, &tree, device);
            let tree = if is_away { away(EMPTY) } else { tree };
            let trouble = tree.troubles.iter().find(|(path, _)| path.is_empty());
            match trouble {
                Some((_, why)) if self.is_rebuilding() => {
                    // The error reports everything else.
                    let why = why.to_string();
                    return Err(IndexError::Away { root, why: why.split(';').next().unwrap_or("").to_owned() });
                }
                Some(_) => {}
                None => self.state.directory.devices[index] = device,
            }
            trees.push(tree);
        }
        Ok(trees)
    }

    /// True for a tree that had folders and has none: an empty mount point. Also true for a tree on another device that
    /// lacks some folders. The device alone proves nothing, since its number may change with every boot.
    fn is_away(&self, root: usize, tree: &MailTree, device: u64) -> bool {
        if !tree.troubles.is_empty() || !tree.frozen.is_empty() {
            return false;
        }
        let directory = &self.state.directory;
        let is_there = |path: &String| tree.folders.iter().any(|folder| folder.path == *path);
        let mut known = directory.folders.iter().filter(|folder| folder.present && folder.root as usize == root);
        let is_elsewhere = !matches!(directory.devices[root], 0) && directory.devices[root] != device;
        tree.folders.is_empty() || is_elsewhere && known.any(|folder| !is_there(&folder.path))
    }

    /// Leaves a tree out of a rebuild ([`rebuild`](Self::rebuild)); call it before the update. False if the index does
    /// not cover it.
    pub fn forget(&mut self, root: &Path) -> bool {
        let directory = &mut self.state.directory;
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        // Folders name their tree by its place in the list.
        let place = directory.roots.iter().position(|known| *known == root).filter(|_| directory.folders.is_empty());
        if let Some(place) = place {
            directory.roots.remove(place);
            directory.devices.remove(place);
        }
        place.is_some()
    }

    /// Adds a root, unless a known one contains it.
    fn add_root(&mut self, root: &Path) -> Result<(), IndexError> {
        let directory = &mut self.state.directory;
        if directory.roots.iter().any(|known| root.starts_with(known)) {
            return Ok(());
        }
        match directory.roots.iter().find(|known| known.starts_with(root)) {
            Some(known) => Err(IndexError::Overlap { above: root.to_owned(), below: known.clone() }),
            None => {
                directory.roots.push(root.to_owned());
                directory.devices.push(0);
                Ok(())
            }
        }
    }
}

const EMPTY: &str = "its folders are gone, as if a disk were not mounted; its messages stay in the index. If they are gone for good, run \
                     `posthaste index --believe-missing`";

fn is_not_there(error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "is not there".to_owned(),
        _ => format!("cannot be read ({error})"),
    };
    format!(
        "{why}; its messages stay in the index. If it is gone for good or was renamed, run `posthaste index --believe-missing [NEW NAME]`"
    )
}

fn away(why: &str) -> MailTree {
    MailTree { troubles: vec![(String::new(), io::Error::other(why))], ..MailTree::default() }
}

/// Returns the roots without any Maildir. A root that could not be read whole is not among them.
pub(super) fn without_maildirs(roots: &[PathBuf], trees: &[MailTree]) -> Vec<PathBuf> {
    let is_empty = |tree: &MailTree| tree.folders.is_empty() && tree.troubles.is_empty() && tree.frozen.is_empty();
    roots.iter().zip(trees).filter(|(_, tree)| is_empty(tree)).map(|(root, _)| root.clone()).collect()
}

fn device(root: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(root).map_or(0, |metadata| metadata.dev())
}
