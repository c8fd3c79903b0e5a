//! Checks an index against its checksums, and its two halves against each other.

use std::path::Path;

use crate::error::IndexError;
use crate::search::Searcher;
use crate::settings::SearchSettings;
use crate::state::{Lock, Snapshot, StateError, bits};
use crate::tags;
use crate::text_index::{TextIndex, check_files};
use crate::update::PENDING;

/// Result of a check.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct IndexVerdict {
    /// Messages that are in the index.
    pub messages: u64,
    /// Damaged files and messages, each with its damage. A rebuild ([`Indexer::rebuild`](crate::Indexer::rebuild))
    /// repairs all of it except the tags ([`are_tags_damaged`](Self::are_tags_damaged)).
    pub damage: Vec<(String, String)>,
    /// True if the tag store is damaged, which only its dump can restore.
    pub are_tags_damaged: bool,
    /// Work that an interrupted run left, in words. It is no damage: the next run
    /// ([`Indexer::open`](crate::Indexer::open)) finishes it.
    pub unfinished: Vec<String>,
}

/// Reads every byte of the index in `dir`: both halves, the tags and their dump. Takes about as long as reading its files.
///
/// A sound index is checked without the lock, so no writer waits. Apparent damage may be a write in progress, so the
/// check is repeated under the writer's lock; `waiting` is called before waiting for another writer.
///
/// # Errors
/// [`IndexError`] if there is no index, one of another version, or a file cannot be read. Damage is in the [`IndexVerdict`].
pub fn verify(dir: &Path, waiting: &dyn Fn()) -> Result<IndexVerdict, IndexError> {
    if !dir.join("current").exists() {
        return Err(StateError::Missing(dir.to_owned()).into());
    }
    if let Ok(verdict) = look(dir)
        && verdict.damage.is_empty()
        && verdict.unfinished.is_empty()
    {
        return Ok(verdict);
    }
    // On a read-only file system no writer can interfere.
    let _no_writer = match Lock::acquire(dir, Some(waiting)) {
        Err(StateError::Io { error, .. }) if is_read_only(&error) => None,
        lock => Some(lock?),
    };
    look(dir)
}

fn look(dir: &Path) -> Result<IndexVerdict, IndexError> {
    let mut verdict = IndexVerdict::default();
    if dir.join(PENDING).exists() {
        verdict.unfinished.push("a change of tags was interrupted".to_owned());
    } else {
        verdict.damage = tags::check(dir);
        verdict.are_tags_damaged = verdict.damage.iter().any(|(file, _)| file == tags::FILE);
    }
    match Snapshot::open(dir) {
        Ok(snapshot) => check(dir, &snapshot, &mut verdict)?,
        Err(StateError::Damaged { what, .. }) => verdict.damage.push(("current".to_owned(), what)),
        Err(error) => return Err(error.into()),
    }
    Ok(verdict)
}

fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem)
}

fn check(dir: &Path, snapshot: &Snapshot, verdict: &mut IndexVerdict) -> Result<(), IndexError> {
    let text_dir = snapshot.text_dir();
    let files = check_files(&text_dir);
    let is_text_whole = files.is_empty();
    let text_name = text_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    verdict.damage.extend(files.into_iter().map(|(file, what)| (format!("{text_name}/{file}"), what)));
    let records = match snapshot.records() {
        Err(StateError::Damaged { what, .. }) => {
            verdict.damage.push((snapshot.file_name().to_owned(), what));
            return Ok(());
        }
        records => records?,
    };
    let alive = || (0u32..).zip(&records).filter(|(_, record)| record.flags & bits::GONE == 0);
    verdict.messages = alive().count() as u64;
    if !is_text_whole {
        return Ok(());
    }
    let text = TextIndex::open(&text_dir).and_then(|text| Ok((text.mark()?.commit, text.meta_crc()?)));
    let Ok((commit, crc)) = text else {
        verdict.damage.push((format!("{text_name}/meta.json"), "cannot be understood".to_owned()));
        return Ok(());
    };
    if commit != snapshot.directory().text_commit {
        verdict.unfinished.push("a run was interrupted between the commits of the index's two halves".to_owned());
        return Ok(());
    }
    if snapshot.directory().text_crc.is_some_and(|written| written != crc) {
        verdict.damage.push((format!("{text_name}/meta.json"), "checksum is wrong".to_owned()));
        return Ok(());
    }
    let searcher = Searcher::open(dir)?;
    if SearchSettings::load(dir).is_ok_and(|settings| settings.headers != *searcher.headers()) {
        verdict.unfinished.push("the settings name other headers than the index has".to_owned());
    }
    let with_text = searcher.numbers_with_text()?;
    let without = alive().filter(|(number, _)| !with_text.get(*number));
    verdict.damage.extend(without.map(|(number, record)| {
        (format!("message {number} ({})", record.name), "is not in the text index".to_owned())
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Indexer;
    use crate::update::kills::{World, hits, tag, update};
    use std::fs;
    use std::path::PathBuf;

    /// An index with removed messages, tags, and a saved query.
    fn world() -> World {
        let world = World::new();
        update(&world.index(), &world.mail()).unwrap();
        tag(&world.index(), "rye", "invoice").unwrap();
        tag(&world.index(), "subject:m4", "todo").unwrap();
        Indexer::open(&world.index(), None).unwrap().save_query("mine", Some("tag:invoice")).unwrap();
        world.change();
        update(&world.index(), &world.mail()).unwrap();
        world
    }

    fn files(index: &Path) -> Vec<PathBuf> {
        let of = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let all = of(index).into_iter().flat_map(|path| if path.is_dir() { of(&path) } else { vec![path] });
        let mut all: Vec<_> = all
            .filter(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                !name.ends_with("lock") && name != "turn"
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_sound_index_is_looked_at_while_another_writes() {
        let world = world();
        let _writer = Lock::acquire(&world.index(), None).unwrap();
        let sound = verify(&world.index(), &|| panic!("it waits")).unwrap();
        assert_eq!((sound.messages, sound.damage, sound.unfinished), (11, Vec::new(), Vec::new()));
    }

    #[test]
    fn any_flipped_bit_but_of_the_tags_is_found_or_harmless() {
        alter_bits(|path| !path.ends_with(crate::tags::FILE));
    }

    #[test]
    fn an_altered_bit_of_the_tags_is_found_or_does_not_matter() {
        alter_bits(|path| path.ends_with(crate::tags::FILE));
    }

    fn alter_bits(is_altered: impl Fn(&Path) -> bool) {
        let world = world();
        let index = world.index();
        let sound = verify(&index, &|| {}).unwrap();
        assert_eq!((sound.messages, sound.damage, sound.unfinished), (11, Vec::new(), Vec::new()));
        let dump = || Indexer::open(&index, None).unwrap().dump_tags(&[]).unwrap();
        let expected = (hits(&index), dump());
        let mut altered_files = 0;
        for path in files(&index).into_iter().filter(|path| is_altered(path)) {
            altered_files += 1;
            let bytes = fs::read(&path).unwrap();
            let is_database = path.ends_with(crate::tags::FILE);
            let step = bytes.len() / if is_database { 400 } else { 60 } + 1;
            // All of what a person has written, wherever it stands.
            let words = bytes.windows(7).enumerate().filter(|(_, word)| *word == b"invoice").map(|(at, _)| at + 3);
            let places: Vec<usize> = (0..bytes.len()).step_by(step).chain(words).collect();
            let mut found = 0;
            for at in places {
                let mut altered = bytes.clone();
                altered[at] ^= 1;
                fs::write(&path, altered).unwrap();
                let verdict = match verify(&index, &|| {}) {
                    // The version's digit itself.
                    Err(IndexError::State(StateError::Format { .. })) if path.ends_with("current") => continue,
                    verified => verified.unwrap_or_else(|error| panic!("{} at {at}: {error}", path.display())),
                };
                if verdict.damage.is_empty() && verdict.unfinished.is_empty() {
                    assert_eq!((hits(&index), dump()), expected, "{} at {at}", path.display());
                } else {
                    found += 1;
                }
                fs::write(&path, &bytes).unwrap();
            }
            assert!(found > 0 || bytes.is_empty(), "{}", path.display());
        }
        assert!(altered_files > 0);
    }

    #[test]
    fn a_missing_or_shortened_file_is_named() {
        let world = world();
        let index = world.index();
        for path in files(&index) {
            let bytes = fs::read(&path).unwrap();
            let name = path.strip_prefix(&index).unwrap().to_str().unwrap();
            fs::remove_file(&path).unwrap();
            match verify(&index, &|| {}) {
                Err(IndexError::State(StateError::Missing(_))) => assert_eq!(name, "current"),
                // Made again by the next writer.
                Ok(verdict) if name == "tags.dump" => assert_eq!(verdict.damage, []),
                missing => {
                    let damage = missing.unwrap().damage;
                    let expected = if name.starts_with("state.") { "current" } else { name };
                    assert!(
                        damage.iter().any(|(file, what)| file == expected && what.contains("missing")),
                        "{name}: {damage:?}"
                    );
                }
            }
            fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            let verdict = verify(&index, &|| {}).unwrap();
            assert!(!verdict.damage.is_empty(), "{name}");
            fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(verify(&index, &|| {}).unwrap().damage, []);
    }

    #[test]
    fn a_damaged_tag_store_is_built_again_from_its_dump() {
        let world = world();
        let index = world.index();
        let before = hits(&index);
        let path = index.join(crate::tags::FILE);
        let mut bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() - 7 {
            if bytes[at..].starts_with(b"invoice") {
                bytes[at + 3] = b'x';
            }
        }
        fs::write(&path, bytes).unwrap();
        assert!(verify(&index, &|| {}).unwrap().are_tags_damaged);
        assert!(matches!(
            Indexer::open(&index, None).unwrap().dump_tags(&[]),
            Err(IndexError::Tags(crate::tags::TagError::Damaged { .. }))
        ));
        let dump = fs::read_to_string(index.join("tags.dump")).unwrap();
        let searcher = Searcher::open(&index).unwrap();
        let all: Vec<u32> = searcher.find(&crate::query::Query::All).unwrap().iter().collect();
        let ids = searcher.messages(&all).unwrap().into_iter().map(|message| (message.number, message.head.message_id));
        Indexer::open(&index, None)
            .unwrap()
            .restore_tags(&dump, &ids.collect::<Vec<_>>(), crate::tags::Restore::default())
            .unwrap();
        assert_eq!(verify(&index, &|| {}).unwrap().damage, []);
        assert_eq!(hits(&index), before);
        assert!(index.join("tags.redb.damaged").exists());
    }
}
