//! Damage of the text index. The engine trusts its files, so what they say may make it panic.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;

use tantivy::TantivyError;

use crate::error::{Result, text_error};
use crate::state::Snapshot;
use crate::text_index::{TextIndex, check_files};

thread_local! {
    /// True within [`guarded`].
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    /// The message of the last panic within it.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs work on the text index of `snapshot`. A panic becomes an error if one of its files is damaged. If none is, it is
/// a bug, and goes on.
///
/// The files are compared with their checksums only then: reading all of them takes longer than most searches.
///
/// # Errors
/// Errors of the work, and [`IndexError::Text`](crate::IndexError::Text), which names the command that rebuilds the
/// index.
pub(super) fn guarded<T>(snapshot: &Snapshot, work: impl FnOnce() -> Result<T>) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(keep_messages);
    let is_outermost = !GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    if !is_outermost {
        return done.unwrap_or_else(|panic| resume_unwind(panic));
    }
    let said = SAID.take();
    // The check itself may panic on damaged data, too.
    let is_damaged = done.is_err() && catch_unwind(AssertUnwindSafe(|| is_text_damaged(snapshot))).unwrap_or(true);
    GUARDED.set(false);
    match done {
        Ok(done) => done,
        Err(_) if is_damaged => Err(text_error(&snapshot.text_dir(), TantivyError::InternalError(said))),
        // Another thread has already reported it.
        Err(panic) if said.is_empty() => resume_unwind(panic),
        Err(_) => panic!("{said}"),
    }
}

/// True if a file differs from what was written. `meta.json`, which has no checksum of its own, may be of a later
/// commit.
fn is_text_damaged(snapshot: &Snapshot) -> bool {
    let dir = snapshot.text_dir();
    let written = snapshot.directory();
    if !check_files(&dir).is_empty() {
        return true;
    }
    let found = TextIndex::open(&dir).and_then(|text| Ok((text.mark()?.commit, text.meta_crc()?)));
    found.map_or(true, |(commit, crc)| {
        commit == written.text_commit && written.text_crc.is_some_and(|written| written != crc)
    })
}

/// Suppresses the messages of panics within [`guarded`], which are not meant for users.
fn keep_messages() {
    let before = take_hook();
    set_hook(Box::new(move |panic| if GUARDED.get() { SAID.set(panic.to_string()) } else { before(panic) }));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::query::parse;
    use crate::update::kills::{World, tag, update};
    use crate::{AddressFields, IndexError, Searcher, Sort};
    use posthaste_text::{Needle, SearchedField};

    const QUERIES: [&str; 9] = [
        "*",
        "rye",
        "\"rye bread\"",
        "subject:m*",
        "body:/ne[wx]/",
        "from:/x/",
        "flag:flagged or tag:todo",
        "thread:{subject:m7}",
        "id:4@x",
    ];

    /// Asks an index for everything.
    fn ask_all(index: &Path) -> std::result::Result<(), IndexError> {
        let searcher = Searcher::open(index)?;
        for query in QUERIES {
            let query = parse(query, &jiff::Zoned::now()).unwrap();
            let found = searcher.find(&query)?;
            for sort in [Sort::Date, Sort::Size, Sort::Subject, Sort::From] {
                let page = searcher.page(&found, sort, false, 0, 100)?;
                searcher.messages(&page)?;
            }
            searcher.page_by_relevance(&query, &found, false, 0, 100)?;
            searcher.addresses(&found, AddressFields::All)?;
            searcher.without_duplicates(&searcher.whole_threads(&found)?)?;
        }
        for field in [SearchedField::Body, SearchedField::Anywhere, SearchedField::Header("Subject".to_owned())] {
            searcher.containing(&field, &Needle::new("ye brea"))?;
        }
        searcher.numbers_with_text()?;
        searcher.tag_counts().map(drop)
    }

    /// All files but locks.
    fn files(dir: &Path) -> Vec<PathBuf> {
        let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let of = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
        let mut all: Vec<PathBuf> = paths.flat_map(of).collect();
        all.retain(|path| !path.to_string_lossy().ends_with("lock"));
        all.sort();
        all
    }

    #[test]
    fn a_flipped_bit_of_any_file_makes_no_search_panic() {
        let world = World::new();
        let index = world.index();
        update(&index, &world.mail()).unwrap();
        tag(&index, "subject:m4", "todo").unwrap();
        world.change();
        update(&index, &world.mail()).unwrap();
        ask_all(&index).unwrap();
        let mut errors = 0;
        for path in files(&index) {
            let bytes = fs::read(&path).unwrap();
            let step = bytes.len() / 250 + 1;
            for (nth, at) in (0..bytes.len()).step_by(step).enumerate() {
                let mut altered = bytes.clone();
                altered[at] ^= 1 << (nth % 8);
                fs::write(&path, altered).unwrap();
                if let Err(error) = ask_all(&index) {
                    let said = error.to_string();
                    assert!(said.contains("`posthaste index"), "{} at {at}: {said}", path.display());
                    errors += 1;
                }
            }
            fs::write(&path, &bytes).unwrap();
        }
        assert!(errors > 100, "{errors}");
        ask_all(&index).unwrap();
    }

    #[test]
    fn a_panic_over_a_sound_index_goes_on_with_its_message() {
        let world = World::new();
        update(&world.index(), &world.mail()).unwrap();
        let searcher = Searcher::open(&world.index()).unwrap();
        let (snapshot, meta) = (searcher.snapshot(), searcher.snapshot().text_dir().join("meta.json"));
        let panic = || -> Result<()> { panic!("a bug of the tests") };
        let nested = || guarded(snapshot, || guarded(snapshot, panic));
        let message = catch_unwind(AssertUnwindSafe(nested)).unwrap_err();
        let message = message.downcast_ref::<String>().unwrap();
        assert!(message.contains("guard.rs:") && message.contains("a bug of the tests"), "{message}");
        // It still says the same, in other octets.
        let text = fs::read_to_string(&meta).unwrap();
        fs::write(&meta, format!("{text} ")).unwrap();
        let said = guarded(snapshot, panic).unwrap_err().to_string();
        assert!(said.contains("`posthaste index rebuild`"), "{said}");
        fs::remove_file(meta).unwrap();
        let said = guarded(snapshot, panic).unwrap_err().to_string();
        assert!(said.contains("`posthaste index rebuild`"), "{said}");
    }
}
