//! Files that another program gave another key, such as `mutt` and shell scripts do: each stays the message that it was.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use posthaste_maildir::MaildirReader;

use super::body::sends_alike;
use super::file::MailFile;
use super::scan::KnownFiles;
use crate::message_list::Message;

/// A file counts as made before a listing if it was by this time. The kernel's coarse clock may be late by a tick.
const MADE_BEFORE_NS: i64 = 20_000_000;

/// Takes the pairs of a missing message and a found file that are the same file, and returns their UIDs and new files.
///
/// An inode alone says little: ext4 gives the number of a deleted file to the next one. But a file that was made before a
/// listing had its inode at that time, and there this was the inode of the message.
pub(super) fn take_rekeyed(
    known: &KnownFiles<'_>,
    reader: &MaildirReader,
    missing: &mut Vec<usize>,
    found: &mut Vec<Arc<MailFile>>,
) -> Vec<(u32, Arc<MailFile>)> {
    let Some(listed_at) = known.listed_at.filter(|_| !missing.is_empty()) else { return Vec::new() };
    let listed_ns = listed_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64) - MADE_BEFORE_NS;
    let messages = &known.now.messages;
    let by_inode = |at: &usize| Some((messages[*at].file.inode()?, *at));
    let mut by_inode: HashMap<u64, usize> = missing.iter().filter_map(by_inode).collect();
    let (mut taken, mut rekeyed) = (HashSet::new(), Vec::new());
    found.retain(|file| {
        let inode = file.known_facts().inode;
        let Some(at) = by_inode.get(&inode).copied() else { return true };
        let message = &messages[at];
        let Ok(Some(renamed)) = renamed(reader, message, file, listed_ns) else { return true };
        by_inode.remove(&inode);
        taken.insert(at);
        rekeyed.push((message.uid, Arc::new(renamed)));
        false
    });
    missing.retain(|at| !taken.contains(at));
    rekeyed
}

/// The message under the found name, if this is its file, and is sent as it was.
fn renamed(
    reader: &MaildirReader,
    message: &Message<Arc<MailFile>>,
    found: &MailFile,
    listed_ns: i64,
) -> io::Result<Option<MailFile>> {
    let (file, facts) = (&message.file, found.known_facts());
    if facts.mtime_ns >= listed_ns || !file.is(&facts) {
        return Ok(None);
    }
    // A listing during changes may have missed the old name.
    if reader.made_at(found.subdir, &found.name)?.is_none_or(|made| made >= listed_ns)
        || reader.facts(file.subdir, &file.name)?.is_some()
    {
        return Ok(None);
    }
    let renamed = file.renamed(found.subdir, found.name.clone(), facts.inode);
    let forms = (file.form(facts.size), renamed.form(facts.size));
    if forms.0 != forms.1 {
        let Some((opened, now)) = reader.open(found.subdir, &found.name)? else { return Ok(None) };
        if now != facts || !sends_alike(&opened, facts.size, forms)? {
            return Ok(None);
        }
    }
    Ok(Some(renamed))
}
