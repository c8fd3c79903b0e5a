//! The live files: for each stream the entries that it has not passed and the bodies that it has not released.
//!
//! The LSNs are cut into windows of [`WINDOW`]. A window in which anything is needed has a file `live/<window>.<generation>`; the checkpoint names the generation.
//! A change writes a new generation, durable before the checkpoint that names it: so a cut between leaves the old pair.

use std::io;
use std::path::{Path, PathBuf};

use bytes::BufMut;

use crate::codec::{seal, unseal};
use crate::fields::Fields;
use crate::files;
use crate::lsn_set::LsnSet;

/// LSNs in a window. A stream that needs every one of them takes 64 KiB.
pub(crate) const WINDOW: u64 = 1 << 18;

pub(crate) fn window_of(lsn: u64) -> u64 {
    lsn / WINDOW
}

pub(crate) fn lsns_of(window: u64) -> std::ops::RangeInclusive<u64> {
    window * WINDOW..=window * WINDOW + (WINDOW - 1)
}

/// The content of one window's file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// Stream, true for a word of bodies (else of entries), number of the word, word.
    pub words: Vec<(u16, bool, u64, u64)>,
    /// Bodies in files of their own, by LSN.
    pub large: Vec<(u64, crate::bodies::BodyFile)>,
}

impl Window {
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Adds a stream's needs in this window.
    pub fn add(&mut self, window: u64, stream: u16, is_body: bool, set: &LsnSet) {
        self.words.extend(set.words_in(lsns_of(window)).map(|(key, word)| (stream, is_body, key, word)));
    }

    fn encode(&self, window: u64) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.put_u64_le(window);
        out.put_u32_le(self.words.len() as u32);
        out.put_u32_le(self.large.len() as u32);
        for &(stream, is_body, key, word) in &self.words {
            out.put_u16_le(stream);
            out.put_u8(is_body.into());
            // A window has at most 4096 words, so the number fits.
            out.put_u16_le((key % (WINDOW / 64)) as u16);
            out.put_u64_le(word);
        }
        for &(lsn, body) in &self.large {
            out.put_u64_le(lsn);
            body.encode(&mut out);
        }
        seal(out)
    }

    fn decode(window: u64, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(unseal(bytes)?);
        if fields.array()? != MAGIC || fields.u64()? != window {
            return None;
        }
        let words = fields.u32()?;
        let large = fields.u32()?;
        let mut decoded = Window::default();
        for _ in 0..words {
            let stream = fields.u16()?;
            let is_body = fields.u8()? != 0;
            let key = u64::from(fields.u16()?);
            decoded.words.push((stream, is_body, window * (WINDOW / 64) + key, fields.u64()?));
        }
        for _ in 0..large {
            let lsn = fields.u64()?;
            decoded.large.push((lsn, crate::bodies::BodyFile::decode(&mut fields)?));
        }
        fields.end()?;
        Some(decoded)
    }
}

const MAGIC: [u8; 8] = *b"PHLIVE\x00\x01";

/// The directory of live files.
#[derive(Debug)]
pub(crate) struct LiveFiles {
    dir: PathBuf,
}

impl LiveFiles {
    pub fn open(spool: &Path) -> io::Result<Self> {
        let files = Self::at(spool);
        posthaste_fsops::make_dir(&files.dir)?;
        Ok(files)
    }

    /// Opens read-only, without creating a directory.
    pub fn at(spool: &Path) -> Self {
        LiveFiles { dir: spool.join("live") }
    }

    /// Writes an unused generation; its name is durable after [`sync`](Self::sync).
    pub fn write(&self, window: u64, generation: u64, content: &Window) -> io::Result<()> {
        files::write_new(&self.path(window, generation), &content.encode(window))
    }

    pub fn sync(&self) -> io::Result<()> {
        files::sync_dir(&self.dir)
    }

    /// Reads a window's file. `None` if it is damaged, missing or unreadable.
    pub fn read(&self, window: u64, generation: u64) -> io::Result<Option<Window>> {
        match std::fs::read(self.path(window, generation)) {
            Err(error) if posthaste_fsops::is_of_disk(&error) => Ok(None),
            read => Ok(Window::decode(window, &read?)),
        }
    }

    pub fn remove(&self, window: u64, generation: u64) -> io::Result<()> {
        files::remove(&self.path(window, generation))
    }

    /// Every existing generation, named by a checkpoint or not.
    pub fn list(&self) -> io::Result<Vec<(u64, u64)>> {
        let parse = |name: String| {
            let (window, generation) = name.split_once('.')?;
            Some((u64::from_str_radix(window, 16).ok()?, u64::from_str_radix(generation, 16).ok()?))
        };
        Ok(files::list(&self.dir)?.into_iter().filter_map(parse).collect())
    }

    fn path(&self, window: u64, generation: u64) -> PathBuf {
        self.dir.join(format!("{window:x}.{generation:x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrontFields;
    use crate::bodies::BodyFile;
    use crate::front::FrontRegion;

    fn sample() -> Window {
        let mut set = LsnSet::default();
        [0, 5, WINDOW - 1, WINDOW, WINDOW + 9, 2 * WINDOW - 1, 2 * WINDOW].into_iter().for_each(|lsn| {
            set.insert(lsn);
        });
        let mut window = Window::default();
        window.add(1, 3, true, &set);
        window.add(1, 4, false, &set);
        let front = FrontRegion::of(&FrontFields::new("A: b\r\n").unwrap());
        window.large.push((WINDOW + 9, BodyFile { upload: 77, len: 1 << 40, table_crc: 9, front }));
        window
    }

    #[test]
    fn a_window_reads_back_and_holds_nothing_of_its_neighbours() {
        let dir = tempfile::tempdir().unwrap();
        let files = LiveFiles::open(dir.path()).unwrap();
        files.write(1, 12, &sample()).unwrap();
        let read = files.read(1, 12).unwrap().unwrap();
        assert_eq!(read, sample());
        let mut set = LsnSet::default();
        read.words.iter().filter(|word| word.0 == 3 && word.1).for_each(|word| set.insert_word(word.2, word.3));
        assert_eq!(set.iter(0..=u64::MAX).collect::<Vec<_>>(), [WINDOW, WINDOW + 9, 2 * WINDOW - 1]);
        assert_eq!(files.list().unwrap(), [(1, 12)]);
        assert_eq!(files.read(1, 13).unwrap(), None);
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let bytes = sample().encode(1);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert_eq!(Window::decode(1, &changed), None, "byte {at}");
        }
        assert_eq!(Window::decode(2, &bytes), None, "another window's");
    }
}
