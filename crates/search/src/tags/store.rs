//! The open store of tags and saved queries.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use crate::disk;
use crate::query::SavedQueries;

use super::all::{ANY_CONTENT, AllTags, Tags};
use super::error::{TagError, check_query_name, check_tag};
use super::file::StoreFile;
use super::kept;

const TABLE: TableDefinition<'_, (&str, u128), &str> = TableDefinition::new("tags");
const QUERIES: TableDefinition<'_, &str, &str> = TableDefinition::new("queries");
pub(crate) const FILE: &str = "tags.redb";
const NEW_FILE: &str = "tags.redb.new";
const DAMAGED_FILE: &str = "tags.redb.damaged";

/// The open store. Only the holder of the index's lock opens it.
pub struct TagStore {
    pub(super) dir: PathBuf,
    pub(super) database: Database,
}

impl TagStore {
    /// Opens or makes the store in the index's directory. Reads all of it and verifies its checksums, so that altered
    /// data is never taken for the user's, nor copied into the dump.
    ///
    /// # Errors
    /// [`TagError::Damaged`], [`TagError::Store`].
    pub fn open(dir: &Path) -> Result<Self, TagError> {
        let opened = if Self::exists(dir) { Self::try_open(&dir.join(FILE)) } else { Self::create(dir) };
        let store = Self { dir: dir.to_owned(), database: opened.map_err(|error| failed(dir, error))? };
        if !kept::path(dir).exists() {
            store.write_dump()?;
        }
        Ok(store)
    }

    /// Creates the database under a temporary name: a file half made by a kill could not be opened again.
    fn create(dir: &Path) -> Result<Database, redb::Error> {
        let path = dir.join(FILE);
        let temporary = dir.join(NEW_FILE);
        let database = Builder::new().create_with_backend(StoreFile::create(&temporary)?)?;
        make_tables(&database)?;
        drop(database);
        disk::rename(&temporary, &path)?;
        disk::sync_dir(dir)?;
        Self::try_open(&path)
    }

    fn try_open(path: &Path) -> Result<Database, redb::Error> {
        let file = StoreFile::open(path)?;
        Ok(Builder::new().set_check_integrity_on_open(true).create_with_backend(file)?)
    }

    /// Renames a damaged store and its dump to `tags.redb.damaged` and `tags.dump.before`, so that a new one can be
    /// made.
    ///
    /// # Errors
    /// [`TagError::Store`].
    pub(crate) fn set_aside(dir: &Path) -> Result<(), TagError> {
        let aside = || {
            let dump = kept::path(dir);
            disk::rename(&dir.join(FILE), &dir.join(DAMAGED_FILE))?;
            if dump.exists() {
                disk::rename(&dump, &dump.with_extension("dump.before"))?;
            }
            disk::sync_dir(dir)
        };
        aside().map_err(|error: io::Error| failed(dir, error.into()))
    }

    /// Writes the dump beside the store, whole.
    ///
    /// # Errors
    /// [`TagError::Store`].
    pub(crate) fn write_dump(&self) -> Result<(), TagError> {
        let written = kept::write_whole(&self.dir, &self.all()?, &self.queries()?);
        written.map_err(|error| self.error(error.into()))
    }

    /// True if the index's directory has a store. Without one, nothing is tagged or saved.
    pub fn exists(dir: &Path) -> bool {
        dir.join(FILE).exists()
    }

    /// All tags, by Message-ID and digest.
    ///
    /// # Errors
    /// [`TagError::Store`].
    pub fn all(&self) -> Result<AllTags, TagError> {
        self.try_all().map_err(|error| self.error(error))
    }

    fn try_all(&self) -> Result<AllTags, redb::Error> {
        let mut all = AllTags::default();
        let read = self.database.begin_read()?;
        for entry in read.open_table(TABLE)?.iter()? {
            let (key, value) = entry?;
            let (id, digest) = key.value();
            all.insert(id, digest, value.value());
        }
        Ok(all)
    }

    /// The tags of these Message-IDs, like [`all`](Self::all).
    ///
    /// # Errors
    /// [`TagError::Store`].
    pub fn about<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Result<AllTags, TagError> {
        self.try_about(ids).map_err(|error| self.error(error))
    }

    fn try_about<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Result<AllTags, redb::Error> {
        let mut all = AllTags::default();
        let table = self.database.begin_read()?.open_table(TABLE)?;
        if table.is_empty()? {
            return Ok(all);
        }
        for id in ids {
            for entry in table.range((id, u128::MIN)..=(id, u128::MAX))? {
                let (key, value) = entry?;
                all.insert(id, key.value().1, value.value());
            }
        }
        Ok(all)
    }

    /// All saved queries, by name.
    ///
    /// # Errors
    /// [`TagError::Store`].
    pub fn queries(&self) -> Result<SavedQueries, TagError> {
        self.try_queries().map_err(|error| self.error(error))
    }

    fn try_queries(&self) -> Result<SavedQueries, redb::Error> {
        let read = self.database.begin_read()?;
        let mut all = SavedQueries::new();
        for entry in read.open_table(QUERIES)?.iter()? {
            let (name, text) = entry?;
            all.insert(name.value().to_owned(), text.value().to_owned());
        }
        Ok(all)
    }

    /// Sets the tags of messages, and saves queries or deletes those without a text, in one durable transaction.
    ///
    /// # Errors
    /// [`TagError::Name`], [`TagError::QueryName`], [`TagError::Store`]: nothing was changed.
    pub fn set<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, u128, &'a Tags)>,
        queries: &[(&str, Option<&str>)],
    ) -> Result<(), TagError> {
        let mut rows = Vec::new();
        for (id, digest, tags) in changes {
            tags.iter().try_for_each(|tag| check_tag(tag))?;
            rows.push((id, digest, tags.iter().cloned().collect::<Vec<_>>().join("\n")));
        }
        queries.iter().try_for_each(|(name, _)| check_query_name(name))?;
        self.try_set(&rows, queries).map_err(|error| self.error(error))?;
        let ids: BTreeSet<&str> = rows.iter().map(|(id, ..)| *id).collect();
        let tags = self.about(ids.iter().copied())?;
        // notmuch forgets a setting by giving it nothing for its value.
        let queries = queries.iter().map(|(name, text)| (*name, text.unwrap_or_default()));
        let appended = kept::append(&self.dir, &ids, &tags, queries).map_err(|error| self.error(error.into()))?;
        if appended { Ok(()) } else { self.write_dump() }
    }

    fn try_set(&self, rows: &[(&str, u128, String)], queries: &[(&str, Option<&str>)]) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(TABLE)?;
            for (id, digest, tags) in rows {
                set_row(&mut table, id, *digest, tags)?;
            }
            let mut table = write.open_table(QUERIES)?;
            for (name, text) in queries {
                match text {
                    Some(text) => table.insert(*name, *text)?,
                    None => table.remove(*name)?,
                };
            }
        }
        Ok(write.commit()?)
    }

    fn error(&self, error: redb::Error) -> TagError {
        failed(&self.dir, error)
    }
}

fn make_tables(database: &Database) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write.open_table(TABLE)?;
    write.open_table(QUERIES)?;
    Ok(write.commit()?)
}

fn failed(dir: &Path, error: redb::Error) -> TagError {
    let path = dir.join(FILE);
    match &error {
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) => {
            TagError::Damaged { path, dump: kept::path(dir) }
        }
        // No database, or one that ends too soon.
        redb::Error::Io(io) if matches!(io.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
            TagError::Damaged { path, dump: kept::path(dir) }
        }
        _ => TagError::Store { path, error: Box::new(error) },
    }
}

fn set_row(
    table: &mut redb::Table<'_, (&'static str, u128), &'static str>,
    id: &str,
    digest: u128,
    tags: &str,
) -> Result<(), redb::Error> {
    let mut others = Vec::new();
    let mut is_other_tagged = false;
    for entry in table.range((id, u128::MIN)..=(id, u128::MAX))? {
        let (key, value) = entry?;
        let other = key.value().1;
        // What was restored before a message came becomes the message's own, and what is restored counts for every content.
        let is_replaced = (other == ANY_CONTENT) != (digest == ANY_CONTENT);
        if other != digest {
            others.push((other, is_replaced));
            is_other_tagged |= !is_replaced && !value.value().is_empty();
        }
    }
    // "No tags" must be said only where the tags of another content would be taken otherwise.
    let is_nobody_tagged = tags.is_empty() && !is_other_tagged;
    for (other, _) in others.into_iter().filter(|(_, is_replaced)| *is_replaced || is_nobody_tagged) {
        table.remove((id, other))?;
    }
    if is_nobody_tagged {
        table.remove((id, digest))?;
    } else {
        table.insert((id, digest), tags)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::tags::dump;

    pub(in crate::tags) fn tags(names: &[&str]) -> Tags {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_content_decides_and_without_it_the_id() {
        let dir = tempfile::tempdir().unwrap();
        let store = TagStore::open(dir.path()).unwrap();
        store.set([("id", ANY_CONTENT, &tags(&["early"]))], &[]).unwrap();
        assert_eq!(store.all().unwrap().of("id", 5), tags(&["early"]));
        store.set([("id", 5, &tags(&["five"])), ("id", 6, &tags(&["six"]))], &[]).unwrap();
        let all = store.all().unwrap();
        assert_eq!((all.of("id", 5), all.of("id", 6)), (tags(&["five"]), tags(&["six"])));
        assert!(!all.of("id", 7).is_empty(), "changed on the way");
        assert!(all.of("other", 5).is_empty());
        store.set([("id", 5, &Tags::new()), ("id", 6, &Tags::new())], &[]).unwrap();
        assert!(store.all().unwrap().is_empty());
    }

    #[test]
    fn no_tags_are_kept_apart_from_those_of_another_content() {
        let dir = tempfile::tempdir().unwrap();
        let store = TagStore::open(dir.path()).unwrap();
        let none = Tags::new();
        store.set([("id", 5, &tags(&["todo"])), ("id", 6, &tags(&["todo"]))], &[]).unwrap();
        store.set([("id", 6, &none)], &[]).unwrap();
        for all in [store.all().unwrap(), store.about(["other", "id"]).unwrap()] {
            assert_eq!((all.of("id", 5), all.of("id", 6)), (tags(&["todo"]), none.clone()));
            assert_eq!(all.of("id", 7), tags(&["todo"]), "changed on the way");
        }
        assert_eq!(dump(&store.all().unwrap(), &SavedQueries::new()).lines().nth(1), Some("+todo -- id:id"));
        store.set([("id", 5, &none)], &[]).unwrap();
        assert_eq!(store.all().unwrap(), AllTags::default(), "nothing is left to be told apart");
        store.set([("id", 5, &tags(&["old"]))], &[]).unwrap();
        store.set([("id", ANY_CONTENT, &tags(&["restored"]))], &[]).unwrap();
        assert_eq!(store.all().unwrap().of("id", 5), tags(&["restored"]));
    }

    #[test]
    fn saved_queries_are_replaced_forgotten_and_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = TagStore::open(dir.path()).unwrap();
        store.set([("id", 5, &tags(&["todo"]))], &[]).unwrap();
        store.set([], &[("mine", Some("from:ann")), ("other", Some("x"))]).unwrap();
        store.set([], &[("mine", None), ("other", Some("y"))]).unwrap();
        assert_eq!(store.queries().unwrap(), SavedQueries::from([("other".to_owned(), "y".to_owned())]));
        let refused = store.set([("id", 5, &Tags::new())], &[("a\"b", Some("x"))]);
        assert!(matches!(refused, Err(TagError::QueryName(_))));
        assert_eq!(store.all().unwrap().of("id", 5), tags(&["todo"]), "nothing was changed");
    }
}
