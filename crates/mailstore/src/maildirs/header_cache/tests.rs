use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use posthaste_message::mime::{Header, is_listed_field};

use posthaste_maildir::MailboxPath;

use super::database::STATE;
use super::*;
use crate::ledger::MailLedger;
use crate::maildirs::MaildirStore;
use crate::maildirs::locks::lock;
use crate::maildirs::tests::open_ledger;
use crate::name::MailboxName;
use crate::row::Uid;
use crate::snapshot::SnapshotView;
use crate::store::{KeptKind, MailboxView, SelectMode};

const HEADER: &[u8] = b"Received: x\r\nSubject: one\r\n two\r\nX-Other: y\r\nTo: a@b\r\nto: c@d\r\n\r\n";
const FIELDS: &[u8] = b"Subject: one\r\n two\r\nTo: a@b\r\nto: c@d\r\n\r\n";
const FACTS: FileFacts = FileFacts { inode: 7, size: 100, mtime_ns: 5 };

const MAIL: u64 = 40_000;

fn cache_of(path: &Path, bytes_min: u64) -> HeaderCache {
    HeaderCache::open_with(CacheFile { path: path.to_owned(), bytes_min, mail_bytes: Box::new(|| MAIL) })
}

fn get(cache: &HeaderCache, body: (u64, u16), facts: &FileFacts) -> Option<Bytes> {
    cache.reader().get(body, facts)
}

/// Puts an entry as a session does.
fn put(cache: &HeaderCache, body: (u64, u16), header: Bytes) {
    cache.put(body, &FACTS, header);
    if cache.takes_commit() {
        cache.commit();
    }
}

fn header_of(octets: usize) -> Bytes {
    [b"Subject: ", &b"x".repeat(octets)[..], b"\r\n\r\n"].concat().into()
}

#[test]
fn fields_are_those_of_the_very_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(HEADER_CACHE_FILE);
    let cache = HeaderCache::open(path.clone(), Box::new(|| 0));
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap()) & 0o777, 0o600);
    assert_eq!(get(&cache, (1, 2), &FACTS), None);
    assert_eq!(cache.put((1, 2), &FACTS, Bytes::from_static(HEADER)), FIELDS);
    let check = |cache: &HeaderCache| {
        assert_eq!(get(cache, (1, 2), &FACTS).as_deref(), Some(FIELDS));
        assert_eq!(get(cache, (1, 3), &FACTS), None);
        for other in
            [FileFacts { inode: 8, ..FACTS }, FileFacts { size: 99, ..FACTS }, FileFacts { mtime_ns: 6, ..FACTS }]
        {
            assert_eq!(get(cache, (1, 2), &other), None, "{other:?}");
        }
    };
    check(&cache);
    drop(cache);
    check(&cache_of(&path, CACHE_BYTES_MIN));
}

/// Fields and structure of a message do not get in each other's way.
#[test]
fn a_structure_is_that_of_the_very_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(HEADER_CACHE_FILE);
    let cache = cache_of(&path, CACHE_BYTES_MIN);
    cache.keep(KeptKind::Structure, (1, 2), &FACTS, b"(parts)");
    assert_eq!(get(&cache, (1, 2), &FACTS), None);
    cache.put((1, 2), &FACTS, Bytes::from_static(HEADER));
    cache.keep(KeptKind::Structure, (1, 3), &FACTS, &[b'x'; ENTRY_BYTES_MAX + 1]);
    let check = |cache: &HeaderCache| {
        let structure = |body, facts: &FileFacts| cache.reader().kept(KeptKind::Structure, body, facts);
        assert_eq!(structure((1, 2), &FACTS).as_deref(), Some(&b"(parts)"[..]));
        assert_eq!(get(cache, (1, 2), &FACTS).as_deref(), Some(FIELDS));
        assert_eq!(structure((1, 2), &FileFacts { mtime_ns: 6, ..FACTS }), None);
        assert_eq!(structure((1, 3), &FACTS), None, "it is too long");
    };
    check(&cache);
    drop(cache);
    check(&cache_of(&path, CACHE_BYTES_MIN));
    let none = HeaderCache::none();
    none.keep(KeptKind::Structure, (1, 2), &FACTS, b"(parts)");
    assert_eq!(none.reader().kept(KeptKind::Structure, (1, 2), &FACTS), None);
}

#[test]
fn a_header_in_bad_form_is_given_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(&dir.path().join(HEADER_CACHE_FILE), CACHE_BYTES_MIN);
    for header in [
        &b""[..],
        b"\r\n",
        b"no field\r\nSubject: one\r\n\r\n",
        b"Subject: one\r\nno field\r\nTo: a@b\r\n\r\n",
        b" Subject: one\r\n\r\n",
        b"Subject: one\r\n",
        b"Subject: one",
        b"Subject: one\n\n",
    ] {
        assert_eq!(cache.put((1, 1), &FACTS, Bytes::from_static(header)), header);
        assert_eq!(get(&cache, (1, 1), &FACTS), None);
    }
}

proptest::proptest! {
    #[test]
    fn listed_fields_say_what_they_say_in_the_header(
        lines in proptest::collection::vec("(Subject|X-A|to|From |Date)?:? ?[a-c:]{0,3}(\r\n|\n|\r\n )", 0..6),
    ) {
        let header = Bytes::from(lines.concat() + "\r\n");
        if let Some(listed) = listed_fields(&header) {
            let of = |header: &Bytes| -> Vec<(Vec<u8>, Vec<u8>)> {
                let fields = Header::new(header).fields().filter(|field| is_listed_field(field.name));
                fields.map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
            };
            proptest::prop_assert_eq!(of(&listed), of(&header));
        }
    }
}

#[test]
fn a_file_that_is_damaged_or_of_another_boot_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(HEADER_CACHE_FILE);
    for damage in [&b"no database"[..], b""] {
        std::fs::write(&path, damage).unwrap();
        cache_of(&path, CACHE_BYTES_MIN).put((1, 1), &FACTS, Bytes::from_static(HEADER));
        assert!(get(&cache_of(&path, CACHE_BYTES_MIN), (1, 1), &FACTS).is_some());
    }
    let (database, _) = CacheDatabase::open(&path).unwrap();
    let transaction = database.redb().begin_write().unwrap();
    transaction.open_table(STATE).unwrap().insert("boot", &b"another"[..]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    assert_eq!(get(&cache_of(&path, CACHE_BYTES_MIN), (1, 1), &FACTS), None);
}

#[test]
fn what_was_committed_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (path, killed) = (dir.path().join(HEADER_CACHE_FILE), dir.path().join("killed"));
    let cache = cache_of(&path, CACHE_BYTES_MIN);
    (0..300).for_each(|n| put(&cache, (n, 0), header_of(10_000)));
    // As a kill leaves it: nobody has closed it.
    std::fs::copy(&path, &killed).unwrap();
    let after = cache_of(&killed, CACHE_BYTES_MIN);
    assert_eq!(after.lock().bytes, cache.lock().bytes);
    let found = (0..300).filter(|n| get(&after, (*n, 0), &FACTS).is_some()).count();
    assert_eq!(found, 300 - cache.lock().waiting.len());
}

#[test]
fn damage_anywhere_costs_entries_and_gives_no_other_fields() {
    let dir = tempfile::tempdir().unwrap();
    let (path, damaged) = (dir.path().join(HEADER_CACHE_FILE), dir.path().join("damaged"));
    let cache = cache_of(&path, CACHE_BYTES_MIN);
    let header = |n: u64| Bytes::from(format!("Subject: {n} {}\r\n\r\n", "x".repeat(200)));
    (0..200).for_each(|n| drop(cache.put((n, 0), &FACTS, header(n))));
    drop(cache);
    let whole = std::fs::read(&path).unwrap();
    let used = whole.iter().rposition(|octet| *octet != 0).unwrap();
    for seed in 0..300_u64 {
        let mut random = posthaste_random::Random::new(seed);
        let mut octets = whole.clone();
        for _ in 0..1 + seed % 4 {
            // Half of them in the pages that say where others are.
            let within = if seed % 2 == 0 { used.min(16 << 10) } else { used };
            octets[usize::try_from(random.below(within as u64)).unwrap()] ^= 1 << random.below(8);
        }
        std::fs::write(&damaged, octets).unwrap();
        let cache = cache_of(&damaged, CACHE_BYTES_MIN);
        for n in 0..200 {
            let found = get(&cache, (n, 0), &FACTS);
            assert!(found.is_none_or(|found| found == header(n)), "seed {seed}: message {n}");
        }
        assert_eq!(cache.put((1, 0), &FACTS, header(1)), header(1), "seed {seed}");
    }
}

#[test]
fn many_entries_wait_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(&dir.path().join(HEADER_CACHE_FILE), CACHE_BYTES_MIN);
    for n in 0..500 {
        put(&cache, (n, 0), header_of(10_000));
        assert!(cache.lock().waiting_bytes <= COMMIT_BYTES);
    }
    assert!((0..500).all(|n| get(&cache, (n, 0), &FACTS).is_some()));
    assert_eq!(cache.put((1000, 0), &FACTS, header_of(ENTRY_BYTES_MAX)), header_of(ENTRY_BYTES_MAX));
    assert_eq!(get(&cache, (1000, 0), &FACTS), None);
}

#[test]
fn the_oldest_mail_goes_when_there_are_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(HEADER_CACHE_FILE);
    // The least may be less than one in twenty of the mail, or more.
    for (bytes_min, bytes_max) in [(1000, MAIL / MAIL_BYTES_FOR_ONE), (5000, 5000)] {
        let _ = std::fs::remove_file(&path);
        let cache = cache_of(&path, bytes_min);
        (0..100).for_each(|n| drop(cache.put((n, 0), &FACTS, header_of(100))));
        drop(cache);
        let cache = cache_of(&path, bytes_min);
        let found: Vec<u64> = (0..100).filter(|n| get(&cache, (*n, 0), &FACTS).is_some()).collect();
        let entry = entry_of(&key_of((0, 0), CachedKind::Fields), &FACTS, &header_of(100)).len() as u64;
        assert_eq!(found, (100 - bytes_max / entry..100).collect::<Vec<_>>());
        assert!(cache.lock().bytes <= bytes_max);
    }
}

#[test]
fn a_batch_is_read_in_one_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(HEADER_CACHE_FILE);
    let cache = cache_of(&path, CACHE_BYTES_MIN);
    (0..1000).for_each(|n| drop(cache.put((n, 0), &FACTS, header_of(100))));
    let mut reader = cache.reader();
    assert!((0..1000).all(|n| reader.get((n, 0), &FACTS).is_some()));
    assert_eq!(cache.reads.load(Ordering::Relaxed), 0, "nothing is committed");
    cache.commit();
    let mut reader = cache.reader();
    assert!((0..1000).all(|n| reader.get((n, 0), &FACTS).is_some()));
    assert_eq!(cache.reads.load(Ordering::Relaxed), 1);
}

/// The commit asks how much mail there is, and is answered when other threads have used the cache.
#[test]
fn readers_and_writers_do_not_wait_for_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (at_commit, used) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let (committing, go_on) = (Mutex::new(at_commit.0), Mutex::new(used.1));
    let first = OnceLock::new();
    let mail_bytes = move || {
        if first.set(()).is_ok() {
            committing.lock().unwrap().send(()).unwrap();
            // Only a commit that holds the cache locked waits in vain.
            go_on.lock().unwrap().recv_timeout(Duration::from_secs(120)).expect("the cache is locked over a commit");
        }
        u64::MAX
    };
    let path = dir.path().join(HEADER_CACHE_FILE);
    let cache = HeaderCache::open_with(CacheFile { path, bytes_min: 0, mail_bytes: Box::new(mail_bytes) });
    cache.put((1, 0), &FACTS, header_of(100));
    thread::scope(|scope| {
        scope.spawn(|| cache.commit());
        at_commit.1.recv().unwrap();
        assert!(get(&cache, (1, 0), &FACTS).is_some(), "it is being committed");
        cache.put((2, 0), &FACTS, header_of(100));
        assert!(get(&cache, (2, 0), &FACTS).is_some(), "it waits for the next commit");
        // A look into the database, beside its commit.
        assert_eq!(get(&cache, (3, 0), &FACTS), None);
        // More than may wait is not kept, and does not wait.
        (10..600).for_each(|n| put(&cache, (n, 0), header_of(10_000)));
        assert!(cache.lock().waiting_bytes <= WAITING_BYTES_MAX + 20_000);
        used.0.send(()).unwrap();
    });
    put(&cache, (4, 0), header_of(100));
    assert!(cache.lock().waiting.is_empty(), "the next one commits what waited");
    assert!((1..3).all(|n| get(&cache, (n, 0), &FACTS).is_some()));
}

/// A session with the Maildir in `dir`, and the store that has its cache.
async fn view_of(dir: &Path, ledger: Arc<MailLedger>) -> (MaildirStore, Box<dyn MailboxView>) {
    let store = MaildirStore::open_cached(dir, ledger, Box::new(|_| false), &dir.join("mailstore")).unwrap();
    let account = store.account(&MailboxPath::parse("Maildir").unwrap());
    let owner = account.load().unwrap();
    let (name, path) = (MailboxName::inbox(), account.inbox.clone());
    let id = account.id_of(&mut lock(&account.mailboxes), owner, name, path);
    let view = SnapshotView::select(account.mailbox(id).unwrap(), SelectMode::ReadOnly).await.unwrap();
    (store, Box::new(view))
}

/// ENVELOPE of 1:1000, in the batches that an IMAP session asks for.
#[tokio::test]
async fn a_list_of_a_thousand_takes_a_transaction_a_batch() {
    const BATCH: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    let maildir = posthaste_maildir::Maildir::open_or_create(dir.path().join("Maildir")).unwrap();
    drop(maildir);
    for n in 0..1000 {
        let name = format!("Maildir/cur/{n}.a.h:2,S");
        std::fs::write(dir.path().join(name), format!("Subject: {n}\n\nbody\n")).unwrap();
    }
    let (store, view) = view_of(dir.path(), open_ledger(dir.path())).await;
    let uids: Vec<Uid> = (1..=1000).map(|uid| Uid::new(uid).unwrap()).collect();
    let list = || async {
        for uids in uids.chunks(BATCH) {
            let found = view.fields(uids).await.unwrap();
            assert!(found.iter().all(Result::is_ok) && found.len() == uids.len());
        }
    };
    list().await;
    let cache = &store.shared.header_cache;
    cache.commit();
    let before = cache.reads.load(Ordering::Relaxed);
    list().await;
    // One for each half of a batch.
    assert_eq!(cache.reads.load(Ordering::Relaxed) - before, 2 * 1000_u32.div_ceil(BATCH as u32));
}

/// Of a message that was opened, until its file is another one.
#[tokio::test]
async fn a_structure_goes_with_the_file_that_it_was_made_of() {
    let dir = tempfile::tempdir().unwrap();
    drop(posthaste_maildir::Maildir::open_or_create(dir.path().join("Maildir")).unwrap());
    let path = |n: u32| dir.path().join(format!("Maildir/cur/{n}.a.h:2,S"));
    (1..=3).for_each(|n| std::fs::write(path(n), format!("Subject: {n}\n\nbody\n")).unwrap());
    let (_store, mut view) = view_of(dir.path(), open_ledger(dir.path())).await;
    let uids: Vec<Uid> = (1..=4).map(|uid| Uid::new(uid).unwrap()).collect();
    let known = async |view: &dyn MailboxView| {
        let found = view.kept(KeptKind::Structure, &uids).await.unwrap().into_iter();
        found.map(|found| found.map(|kept| kept.map(|kept| kept.to_vec()))).collect::<Vec<_>>()
    };
    let gone = Err(crate::MailstoreError::Gone);
    view.keep(KeptKind::Structure, uids[3], b"gone");
    assert_eq!(known(&*view).await, [Ok(None), Ok(None), Ok(None), gone.clone()]);
    for uid in &uids[..3] {
        view.body(*uid).await.unwrap();
        view.keep(KeptKind::Structure, *uid, format!("({})", uid.get()).as_bytes());
    }
    let kept = |uid: u32| Ok(Some(format!("({uid})").into_bytes()));
    assert_eq!(known(&*view).await, [kept(1), kept(2), kept(3), gone]);
    // Renamed: the same file. Written to: another one, also with the same length.
    std::fs::rename(path(1), dir.path().join("Maildir/cur/1.a.h:2,FS")).unwrap();
    std::fs::write(path(2), "Subject: 9\n\nbody\n").unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(5);
    std::fs::File::options().write(true).open(path(2)).unwrap().set_modified(later).unwrap();
    view.advance(true).await.unwrap();
    assert_eq!(known(&*view).await[..3], [kept(1), Ok(None), kept(3)]);
}

/// A pass over all messages meets entries in their order, and sometimes none, or one of long before.
#[test]
fn entries_are_found_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(&dir.path().join(HEADER_CACHE_FILE), CACHE_BYTES_MIN);
    let is_there = |n: u64| n < 1000 && !n.is_multiple_of(3) && !(400..600).contains(&n);
    let value = |n: u64| format!("value {n}").into_bytes();
    for n in (0..1000).filter(|n| is_there(*n)) {
        cache.keep(KeptKind::Keys, (n, 1), &FACTS, &value(n));
        cache.keep(KeptKind::Structure, (n, 1), &FACTS, b"(parts)");
    }
    cache.commit();
    let check = |numbers: &mut dyn Iterator<Item = u64>| {
        let mut reader = cache.reader();
        for n in numbers {
            let found = reader.kept(KeptKind::Keys, (n, 1), &FACTS);
            assert_eq!(found.as_deref(), is_there(n).then(|| value(n)).as_deref(), "{n}");
            assert_eq!(reader.kept(KeptKind::Keys, (n, 0), &FACTS), None);
        }
    };
    check(&mut (0..1100));
    check(&mut (0..1100).rev());
    check(&mut (0..1100).step_by(7));
    let mut random = posthaste_random::Random::new(1);
    check(&mut std::iter::repeat_with(|| random.below(1100)).take(2000));
    check(&mut [5, 5, 4, 5, 999, 1, 401, 401, 599, 601].into_iter());
}

#[test]
fn mail_goes_with_all_that_is_kept_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(HEADER_CACHE_FILE);
    let cache = cache_of(&path, 5000);
    for n in 0..100 {
        cache.put((n, 0), &FACTS, header_of(100));
        cache.keep(KeptKind::Structure, (n, 0), &FACTS, &[b'x'; 100]);
        cache.keep(KeptKind::Keys, (n, 0), &FACTS, &[b'x'; 100]);
    }
    cache.commit();
    let mut reader = cache.reader();
    let mut left = |n| {
        let kept = [KeptKind::Structure, KeptKind::Keys].map(|kind| reader.kept(kind, (n, 0), &FACTS).is_some());
        [reader.get((n, 0), &FACTS).is_some(), kept[0], kept[1]]
    };
    let whole: Vec<u64> = (0..100).filter(|n| left(*n) == [true; 3]).collect();
    assert!((10..20).contains(&whole.len()) && *whole.last().unwrap() == 99, "{whole:?}");
    // Of one message at most a part is left.
    assert!((0..whole[0].saturating_sub(1)).all(|n| left(n) == [false; 3]), "{whole:?}");
}

/// Values of headers need no look at files: what was looked at is the content that the UID belongs to.
#[tokio::test]
async fn values_of_a_header_are_had_without_its_file() {
    let dir = tempfile::tempdir().unwrap();
    drop(posthaste_maildir::Maildir::open_or_create(dir.path().join("Maildir")).unwrap());
    let path = |n: u32| dir.path().join(format!("Maildir/cur/{n}.a.h:2,S"));
    (1..=2).for_each(|n| std::fs::write(path(n), format!("Subject: {n}\n\nbody\n")).unwrap());
    let (store, view) = view_of(dir.path(), open_ledger(dir.path())).await;
    let uids: Vec<Uid> = (1..=2).map(|uid| Uid::new(uid).unwrap()).collect();
    let known = async |view: &dyn MailboxView, kind: KeptKind| {
        let found = view.kept(kind, &uids).await.unwrap().into_iter();
        found.map(|found| found.unwrap().map(|kept| kept.to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(known(&*view, KeptKind::Keys).await, [None, None]);
    for uid in &uids {
        view.keep(KeptKind::Structure, *uid, b"(parts)");
        view.keep(KeptKind::Keys, *uid, b"values");
    }
    let (parts, values) = (|| Some(b"(parts)".to_vec()), || Some(b"values".to_vec()));
    assert_eq!(known(&*view, KeptKind::Structure).await, [parts(), parts()]);
    std::fs::remove_file(path(1)).unwrap();
    assert_eq!(known(&*view, KeptKind::Structure).await, [None, parts()]);
    assert_eq!(known(&*view, KeptKind::Keys).await, [values(), values()]);
    drop(store);
}
