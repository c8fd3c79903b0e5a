//! Lists folders on all cores, ahead of the comparison: with a cold cache each directory costs a disk read.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use posthaste_maildir::Subdir;
use posthaste_maildir::tree::{FileFacts, Folder, stat_files_with};

use super::UpdateOptions;

/// Maximum listed folders that wait for comparison.
const AHEAD: usize = 8;

/// A file's name in `new/` or `cur/`.
pub(super) struct Name {
    pub subdir: Subdir,
    pub name: String,
    pub inode: u64,
    /// `None` unless requested.
    pub facts: Option<FileFacts>,
}

/// Calls `each` with every folder and its files, in any order.
pub(super) fn each<'f>(
    folders: &[(usize, &'f Folder)],
    options: &UpdateOptions,
    mut each: impl FnMut(usize, &'f Folder, io::Result<Vec<Name>>),
) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads == 0 { cores } else { options.threads }.min(folders.len());
    if threads <= 1 {
        folders.iter().for_each(|(index, folder)| each(*index, folder, list(folder, options)));
        return;
    }
    let taken = AtomicUsize::new(0);
    let (send, listed) = sync_channel(AHEAD);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let send = send.clone();
            let taken = &taken;
            scope.spawn(move || {
                while let Some((index, folder)) = folders.get(taken.fetch_add(1, Ordering::Relaxed)) {
                    // Nobody takes it only if `each` panicked, and then there is nothing more to do.
                    if send.send((*index, *folder, list(folder, options))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        listed.into_iter().for_each(|(index, folder, names)| each(index, folder, names));
    });
}

fn list(folder: &Folder, options: &UpdateOptions) -> io::Result<Vec<Name>> {
    let mut all = Vec::new();
    for subdir in [Subdir::New, Subdir::Cur] {
        if !options.check_files {
            folder.for_each_name(subdir, |name, inode| {
                all.push(Name { subdir, name: name.to_owned(), inode, facts: None });
            })?;
            continue;
        }
        let mut names = Vec::new();
        folder.for_each_name(subdir, |name, inode| names.push((name.to_owned(), inode)))?;
        if names.is_empty() {
            continue;
        }
        let facts = stat_files_with(options.io_method, &folder.dir.join(subdir.as_str()), &mut names)?;
        all.extend(names.into_iter().zip(facts).map(|((name, inode), facts)| Name { subdir, name, inode, facts }));
    }
    Ok(all)
}
