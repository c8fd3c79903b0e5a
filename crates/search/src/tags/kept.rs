//! `tags.dump`: the same as the tag store in notmuch's text format, to build the store from should it be damaged (`posthaste tag --restore`).
//!
//! A change appends a line for each message that it changed; later lines replace earlier ones, as `restore` reads them. The second line says
//! how long the file was when it was written whole; when it has grown to more than twice that, it is written whole again.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::dump::{HEADER, query_line, tags_line};
use super::{AllTags, SavedQueries, dump};
use crate::disk;

const FILE: &str = "tags.dump";
const WHOLE: &str = "# whole at bytes: ";
/// It may grow by this much in any case.
const GROWTH_BYTES_MIN: u64 = 64 << 10;

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Puts a whole dump in the file's place.
pub(super) fn write_whole(dir: &Path, tags: &AllTags, queries: &SavedQueries) -> io::Result<()> {
    let text = dump(tags, queries);
    let rest = text.strip_prefix(HEADER).unwrap_or(&text);
    // Of a fixed width, so that it counts itself.
    let length = HEADER.len() + WHOLE.len() + 21 + rest.len();
    disk::replace(&path(dir), format!("{HEADER}{WHOLE}{length:020}\n{rest}").as_bytes())?;
    disk::sync_dir(dir)
}

/// Appends what these messages and queries have now. `false` if the file has to be written whole instead.
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

/// Its length, and what it was when it was written whole. `None` if it is not there or not whole.
fn lengths(path: &Path) -> Option<(u64, u64)> {
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let second = BufReader::new(file).lines().nth(1)?.ok()?;
    let whole = second.strip_prefix(WHOLE)?.parse().ok()?;
    (length >= whole).then_some((length, whole))
}

/// The text; nothing if there is none.
pub(crate) fn read(dir: &Path) -> io::Result<Option<String>> {
    match fs::read(path(dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => String::from_utf8(read?).map(Some).map_err(|_| io::ErrorKind::InvalidData.into()),
    }
}
