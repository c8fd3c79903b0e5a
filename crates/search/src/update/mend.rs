//! Repairs the index on open after a crash between the commits of its two halves.

use super::indexer::Indexer;
use crate::bitmap::Bitmap;
use crate::error::IndexError;
use crate::state::{Record, bits};

impl Indexer {
    /// The text index commits first. So after a crash it may hold texts without a record, and lack texts whose removal
    /// is not recorded yet. The numbers of the former are never reused; messages of the latter are treated as new.
    pub(super) fn mend(&mut self) -> Result<(), IndexError> {
        let mark = self.text.mark().map_err(|error| self.text_error(error))?;
        let known = u32::try_from(self.state.records().len()).unwrap_or(u32::MAX);
        if mark.commit == self.state.directory.text_commit && mark.next_number <= known {
            return Ok(());
        }
        for _ in known..mark.next_number {
            self.state.push(Record { flags: bits::GONE, ..Record::default() });
        }
        let all = known.max(mark.next_number);
        let texts = self.text.numbers(all).map_err(|error| self.text_error(error))?;
        let mut orphans = texts.clone();
        for (number, record) in (0..all).zip(self.state.records()) {
            if record.flags & bits::GONE == 0 {
                orphans.clear(number);
            }
        }
        for number in 0..known {
            let record = &self.state.records()[number as usize];
            if record.flags & bits::GONE == 0 && !texts.get(number) {
                let folder = record.folder as usize;
                let folder = &mut self.state.directory.folders[folder];
                (folder.new, folder.cur) = (None, None);
                self.bury(number);
            }
        }
        self.commit_text(Vec::new(), orphans)
    }

    /// Removes a message from the side store. Only its number stays in use.
    pub(super) fn bury(&mut self, number: u32) {
        let gone = Record { flags: bits::GONE, ..Record::default() };
        let record = std::mem::replace(self.state.change(number), gone);
        self.state.directory.problems.remove(&number);
        self.unthreaded.gone.push(record);
    }

    /// `numbers` as a set, all of them known.
    pub(super) fn set_of(&self, numbers: &[u32]) -> Bitmap {
        let mut set = Bitmap::empty(u32::try_from(self.state.records().len()).unwrap_or(u32::MAX));
        numbers.iter().for_each(|&number| set.set(number));
        set
    }
}
