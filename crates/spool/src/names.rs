//! A second copy of the streams' names beside the checkpoint: without it a spool that has lost both checkpoint files
//! could not be rebuilt.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bytes::BufMut;

use crate::codec::{seal, unseal};
use crate::fields::{Fields, put_text};
use crate::files;

/// Streams by their ids, and the next id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub next: u16,
    pub streams: BTreeMap<u16, String>,
}

const MAGIC: [u8; 8] = *b"PHNAMES\x01";
const FILE: &str = "streams";

impl Names {
    /// Writes both files. Durable on return.
    pub fn write(&self, spool: &Path) -> io::Result<()> {
        let mut out = MAGIC.to_vec();
        out.put_u16_le(self.next);
        out.put_u16_le(self.streams.len() as u16);
        for (id, name) in &self.streams {
            out.put_u16_le(*id);
            put_text(&mut out, name);
        }
        Ok(posthaste_fsops::replace_file(&spool.join(FILE), files::OWNER, &seal(out))?)
    }

    /// `None` if they are missing, damaged or unreadable.
    pub fn read(spool: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(spool.join(FILE)) {
            Err(error) if posthaste_fsops::is_of_disk(&error) => Ok(None),
            read => Ok(Self::decode(&read?)),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(unseal(bytes)?);
        if fields.array()? != MAGIC {
            return None;
        }
        let mut names = Names { next: fields.u16()?, streams: BTreeMap::new() };
        for _ in 0..fields.u16()? {
            names.streams.insert(fields.u16()?, fields.text()?);
        }
        fields.end()?;
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use posthaste_fsops::{Choice, Cut, Machine};

    use super::*;

    #[test]
    fn names_of_which_a_bit_is_flipped_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names { next: 3, streams: [(1, "queue".to_owned()), (2, "events".to_owned())].into() };
        names.write(dir.path()).unwrap();
        assert_eq!(Names::read(dir.path()).unwrap(), Some(names));
        let whole = std::fs::read(dir.path().join(FILE)).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(dir.path().join(FILE), bytes).unwrap();
            assert_eq!(Names::read(dir.path()).unwrap(), None, "bit {bit}");
        }
    }

    #[test]
    fn a_cut_leaves_the_old_or_new_names_and_needs_each_sync() {
        let machine = Machine::new().unwrap();
        let names = |count: u16| Names { next: count, streams: (1..count).map(|id| (id, format!("s{id}"))).collect() };
        for count in 1..6 {
            names(count).write(machine.path()).unwrap();
            machine.acknowledge(count.into());
        }
        let recording = machine.recording();
        let is_held = |recording: &posthaste_fsops::Recording, position, seed| {
            let durable = recording.acknowledged_before(position).max().unwrap_or(0);
            let left =
                Machine::boot(&recording.cut(Cut { position, choice: Choice::Seed(seed) }), true, false).unwrap();
            let count = Names::read(left.path()).unwrap().map_or(0, |names| u64::from(names.next));
            count == durable || count == durable + 1
        };
        let all = (0..=recording.events.len()).flat_map(|position| (0..20).map(move |seed| (position, seed)));
        assert_eq!(all.clone().find(|&(position, seed)| !is_held(&recording, position, seed)), None);
        let syncs: Vec<usize> = (0..recording.events.len()).filter(|at| recording.events[*at].is_sync()).collect();
        // Of the file and of the directory.
        for nth in 0..2 {
            let without =
                recording.without_syncs(|at| syncs.iter().position(|sync| *sync == at).is_some_and(|is| is % 2 == nth));
            assert!(all.clone().any(|(position, seed)| !is_held(&without, position, seed)), "sync {nth}");
        }
    }
}
