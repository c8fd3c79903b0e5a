//! `tags.dump`: a copy of the tag store in notmuch's text format, to rebuild a damaged store from (`posthaste tag
//! --restore`).
//!
//! A change appends a line for each changed message; later lines replace earlier ones when `restore` reads them. The
//! second line holds the file's length when it was last written whole. Once the file exceeds twice that, it is written
//! whole again.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::all::AllTags;
use super::dump::{HEADER, dump, query_line, tags_line};
use crate::disk;
use crate::query::SavedQueries;

const FILE: &str = "tags.dump";
const WHOLE: &str = "# whole at bytes: ";
/// Growth allowed in any case.
const GROWTH_BYTES_MIN: u64 = 64 << 10;

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Replaces the file by a whole dump.
pub(super) fn write_whole(dir: &Path, tags: &AllTags, queries: &SavedQueries) -> io::Result<()> {
    let text = dump(tags, queries);
    let rest = text.strip_prefix(HEADER).unwrap_or(&text);
    // Of a fixed width, so that it counts itself.
    let length = HEADER.len() + WHOLE.len() + 21 + rest.len();
    disk::replace(&path(dir), format!("{HEADER}{WHOLE}{length:020}\n{rest}").as_bytes())?;
    disk::sync_dir(dir)
}

/// Appends the current state of these messages and queries. False if the file has to be written whole instead.
pub(super) fn append<'a>(
    dir: &Path,
    ids: &BTreeSet<&str>,
    tags: &AllTags,
    queries: impl Iterator<Item = (&'a str, &'a str)>,
) -> io::Result<bool> {
    let path = path(dir);
    let Some((length, whole)) = lengths(&path) else { return Ok(false) };
    let mut lines = String::new();
    queries.for_each(|(name, text)| query_line(&mut lines, name, text));
    ids.iter().for_each(|id| tags_line(&mut lines, id, &tags.together(id)));
    if length + lines.len() as u64 > 2 * whole + GROWTH_BYTES_MIN {
        return Ok(false);
    }
    let file = disk::open(&path, false)?;
    disk::write_all_at(&file, &path, lines.as_bytes(), length)?;
    disk::sync(&file, &path)?;
    Ok(true)
}

/// Present length, and length when last written completely. `None` if the file is missing or incomplete.
fn lengths(path: &Path) -> Option<(u64, u64)> {
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let second = BufReader::new(file).lines().nth(1)?.ok()?;
    let whole = second.strip_prefix(WHOLE)?.parse().ok()?;
    (length >= whole).then_some((length, whole))
}

/// The text; `None` if there is no file.
pub(crate) fn read(dir: &Path) -> io::Result<Option<String>> {
    match fs::read(path(dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => String::from_utf8(read?).map(Some).map_err(|_| io::ErrorKind::InvalidData.into()),
    }
}
