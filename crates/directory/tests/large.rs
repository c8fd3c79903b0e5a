//! Tables of many aliases, and tables that are made to take for ever.
#![allow(unsafe_code, reason = "a global allocator counts bytes")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste_directory::{Directory, DirectoryRefusal, Domain, Route, Targets, Users};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory is counted for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A little more than fills hash tables of 2^17 buckets to seven eighths, so each alias costs the most: as a million does of 2^20.
const MANY: usize = 125_000;
/// Enough to see what grows too fast.
const SOME: usize = 20_000;

fn domain(aliases: impl IntoIterator<Item = (String, Vec<String>)>) -> Domain {
    let mut domain = Domain::named("a.example");
    domain.users = Users::Listed((0..1000).map(|user| format!("user{user}")).collect());
    domain.aliases = aliases.into_iter().map(|(name, targets)| (name, Targets::To(targets))).collect();
    domain
}

fn count(directory: &Directory, name: &str) -> Result<usize, DirectoryRefusal> {
    match directory.resolve(name, Some("a.example")) {
        Route::Local(mailboxes) => Ok(mailboxes.len()),
        Route::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

fn message(domain: Domain) -> String {
    Directory::new(&[domain], "Maildir").unwrap_err().message
}

#[test]
fn many_aliases_take_a_bounded_room() {
    let _alone = ONE_AT_A_TIME.lock();
    let table = domain((0..MANY).map(|number| (format!("first.last{number}"), vec![format!("user{}", number % 1000)])));
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let directory = Directory::new(&[table], "Maildir").unwrap();
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before) / MANY;
    assert!(peak < 400, "{peak} bytes for each alias");
    for number in [0, 1, MANY - 1] {
        assert_eq!(count(&directory, &format!("First.Last{number}+x")), Ok(1));
    }
    assert_eq!(count(&directory, &format!("first.last{MANY}")), Err(DirectoryRefusal::UnknownUser));
}

#[test]
fn what_each_of_many_leads_to_is_not_written_out() {
    let _alone = ONE_AT_A_TIME.lock();
    // Written out: twenty million mailboxes.
    let all: Vec<String> = (0..1000).map(|user| format!("user{user}")).collect();
    let aliases = (0..SOME).map(|number| (format!("a{number}"), vec!["all".to_owned()]));
    let table = domain(aliases.chain([("all".to_owned(), all)]));
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let directory = Directory::new(&[table], "Maildir").unwrap();
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before) / SOME;
    assert!(peak < 400, "{peak} bytes for each alias");
    assert_eq!(count(&directory, &format!("a{}", SOME - 1)), Ok(1000));
}

#[test]
fn tables_that_grow_without_end_are_refused() {
    let _alone = ONE_AT_A_TIME.lock();
    // Each twice the one before: 2^60 ways.
    let twice = |number: usize| vec![format!("a{}", number + 1); 2];
    let mut aliases: Vec<_> = (0..60).map(|number| (format!("a{number}"), twice(number))).collect();
    aliases.push(("a60".to_owned(), vec!["user1".to_owned()]));
    assert_eq!(message(domain(aliases)), "`a50` leads to more than 1000 mailboxes");
    // A chain, from either end: the names are visited in their order.
    for step in [1, -1] {
        let next = |number: i64| match number + step {
            end if end < 0 || end == SOME as i64 => "user1".to_owned(),
            next => format!("a{next:07}"),
        };
        let chain = (0..SOME as i64).map(|number| (format!("a{number:07}"), vec![next(number)]));
        assert_eq!(message(domain(chain)), "leads through more than 100 aliases");
    }
    // One loop through all of them.
    let ring = (0..SOME).map(|number| (format!("a{number}"), vec![format!("a{}", (number + 1) % SOME)]));
    assert_eq!(message(domain(ring)), "leads through more than 100 aliases");
    let list: Vec<String> = (0..1001).map(|user| format!("user{}", user % 1000)).collect();
    assert_eq!(message(domain([("a".to_owned(), list)])), "`a` leads to more than 1000 mailboxes");
    // A chain of a hundred is not too long.
    let chain = (0..100).map(|number| {
        (format!("a{number}"), vec![if number == 99 { "user1".to_owned() } else { format!("a{}", number + 1) }])
    });
    assert_eq!(count(&Directory::new(&[domain(chain)], "Maildir").unwrap(), "a0"), Ok(1));
}
