//! Recognises files that another program, such as mutt or a shell script, gave another key: each stays the same
//! message.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use posthaste_maildir::MaildirReader;

use super::body::sends_alike;
use super::file::MailFile;
use super::known_files::KnownFiles;
use crate::message_list::Message;

/// A file counts as made before a listing if it was by this time. The kernel's coarse clock may be late by a tick.
const MADE_BEFORE_NS: i64 = 20_000_000;

/// Takes the pairs of a missing message and a found file that are the same file, and returns their UIDs and new files.
///
/// An inode alone proves little: ext4 reuses the number of a deleted file. But a file made before a listing had its
/// inode at that time, and in that listing the inode was the message's.
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

/// The message under the new name, if this is its file and its wire form is unchanged.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::super::locks::lock;
    use super::super::state::Messages;
    use super::super::tests::{Place, uids};
    use crate::flags::MessageFlags;

    fn flags(messages: &Messages) -> Vec<MessageFlags> {
        messages.messages.iter().map(|message| message.flags).collect()
    }

    #[tokio::test]
    async fn a_file_under_another_key_stays_the_message() {
        let mut place = Place::new();
        let names = ["new/1.a", "cur/2.b:2,S", "cur/3.J1fRabT0.mx,S=3,W=3:2,"];
        for name in names {
            fs::write(place.path(name), "a\0\n").unwrap();
        }
        let made = fs::metadata(place.path(names[2])).unwrap().created().unwrap();
        while SystemTime::now() < made + Duration::from_millis(40) {
            std::thread::yield_now();
        }
        assert_eq!(uids(&place.settled_look().await), [1, 2, 3]);
        fs::rename(place.path(names[0]), place.path("cur/other:2,F")).unwrap();
        fs::rename(place.path(names[1]), place.path("cur/msg.b:2,S")).unwrap();
        // Of this one the name says that its NUL is sent as it is.
        fs::rename(place.path(names[2]), place.path("cur/msg.c:2,S")).unwrap();
        // Such a listing is not quiet.
        place.look().await;
        let messages = place.settled_look().await;
        assert_eq!(uids(&messages), [1, 2, 4]);
        assert_eq!(flags(&messages), [MessageFlags::FLAGGED, MessageFlags::SEEN, MessageFlags::SEEN]);
        assert_eq!(place.read(&messages, 2).await.unwrap(), b"a\x80\r\n");
        place.reopen();
        let reopened = place.settled_look().await;
        assert_eq!((uids(&reopened), flags(&reopened)), (uids(&messages), flags(&messages)));
        assert_eq!(place.read(&reopened, 1).await.unwrap(), b"a\x80\r\n");
    }
    /// Its inode may have been another file's when the message was listed: ext4 gives it to the next file at once.
    #[tokio::test]
    async fn a_file_too_new_to_tell_is_another_message() {
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let later = SystemTime::now() + Duration::from_secs(3600);
        let tick = Duration::from_millis(20);
        // The time of its octets, and of the listing after it was made.
        for (modified, listed_after, expected) in
            [(long_ago, 3 * tick, 1), (long_ago, tick / 2, 2), (long_ago, Duration::ZERO, 2), (later, 3 * tick, 2)]
        {
            let mut place = Place::new();
            fs::write(place.path("cur/1.a:2,"), "a").unwrap();
            let file = fs::File::options().write(true).open(place.path("cur/1.a:2,")).unwrap();
            file.set_modified(modified).unwrap();
            assert_eq!(uids(&place.settled_look().await), [1]);
            let made = file.metadata().unwrap().created().unwrap();
            let core = place.mailbox().core();
            lock(&core.looks).known.as_mut().unwrap().listed_at = Some(made + listed_after);
            fs::rename(place.path("cur/1.a:2,"), place.path("cur/other:2,")).unwrap();
            assert_eq!(uids(&place.settled_look().await), [expected], "{modified:?}, listed {listed_after:?} after");
        }
    }
}
