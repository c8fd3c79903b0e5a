//! Compares the names in all directories with the index, without looking up each name.
//!
//! For each directory, the hashes of its file names are added and those of the indexed names are subtracted. A balance
//! of zero means equal sets: with 128-bit hashes, other names practically never have the same sum.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste_maildir::Subdir;
use posthaste_maildir::tree::{Folder, MailTree};
use xxhash_rust::xxh3::xxh3_128;

use crate::parallel::on_threads;
use crate::state::{Snapshot, bits};

/// Count and hash sum of one directory's names, minus those of the index.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Balance {
    count: u64,
    sum: u128,
}

impl Balance {
    fn add(&mut self, name: &[u8]) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(xxh3_128(name));
    }

    fn take_off(&mut self, name: &[u8]) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(xxh3_128(name));
    }

    fn join(&mut self, other: Self) {
        self.count = self.count.wrapping_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Lists all folders of `trees`, which are known. True if exactly the indexed files exist. `threads`: 0 means one
/// thread per core.
///
/// # Errors
/// Errors from listing a directory and reading the side store.
pub(super) fn are_same(snapshot: &Snapshot, trees: &[MailTree], threads: usize) -> io::Result<bool> {
    let folders = &snapshot.directory().folders;
    let index_of: HashMap<(u32, &str), usize> =
        folders.iter().enumerate().map(|(index, folder)| ((folder.root, folder.path.as_str()), index)).collect();
    let mut jobs: Vec<Job<'_>> = (0..snapshot.chunks()).map(Job::Known).collect();
    for (root, tree) in (0u32..).zip(trees) {
        for folder in &tree.folders {
            let Some(&index) = index_of.get(&(root, folder.path.as_str())) else { return Ok(false) };
            jobs.extend([Subdir::New, Subdir::Cur].map(|subdir| Job::There(index, folder, subdir)));
        }
    }
    let taken = AtomicUsize::new(0);
    let work = || -> io::Result<Vec<Balance>> {
        let mut balances = vec![Balance::default(); 2 * folders.len()];
        while let Some(job) = jobs.get(taken.fetch_add(1, Ordering::Relaxed)) {
            job.run(snapshot, &mut balances)?;
        }
        Ok(balances)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads }.min(jobs.len());
    let mut all = vec![Balance::default(); 2 * folders.len()];
    for part in on_threads(threads, work) {
        all.iter_mut().zip(part?).for_each(|(balance, part)| balance.join(part));
    }
    Ok(all.iter().all(|balance| *balance == Balance::default()))
}

enum Job<'a> {
    /// The names in one chunk of the side store.
    Known(usize),
    /// The names in one directory.
    There(usize, &'a Folder, Subdir),
}

impl Job<'_> {
    fn run(&self, snapshot: &Snapshot, balances: &mut [Balance]) -> io::Result<()> {
        match self {
            Self::There(index, folder, subdir) => {
                let balance = &mut balances[2 * index + usize::from(*subdir == Subdir::New)];
                folder.for_each_name(*subdir, |name, _| balance.add(name.as_bytes()))
            }
            Self::Known(chunk) => {
                let each = |folder: u32, flags: u64, name: &[u8]| {
                    if flags & bits::GONE == 0
                        && let Some(balance) =
                            balances.get_mut(2 * folder as usize + usize::from(flags & bits::NEW != 0))
                    {
                        balance.take_off(name);
                    }
                };
                snapshot.for_each_name(*chunk, each).map_err(io::Error::other)
            }
        }
    }
}
