//! Damaged bodies: copies the readable rest to a directory where it survives the release of the batch.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Lsn, SetAside};
use bytes::Bytes;

use crate::bodies::BodyFile;
use crate::files;
use crate::replay::Found;
use crate::shared::{MOVES_MAX, Shared, moves_too_often};
use crate::store::RecordError;

/// A body after another read.
enum Reread {
    Whole,
    Damaged(Bytes),
    DamagedFile(BodyFile),
    Gone(String),
}

/// Directory of damaged bodies.
pub(crate) fn kept_dir(spool: &Path) -> PathBuf {
    spool.join("kept")
}

impl Shared {
    pub fn set_aside(&self, lsn: Lsn) -> io::Result<SetAside> {
        let dir = kept_dir(&self.dir);
        let kept = dir.join(format!("{lsn}.body"));
        if kept.exists() {
            // An earlier run may have been killed between the copy and the sync of the file's name.
            files::sync_dir(&dir)?;
            return Ok(SetAside::Kept(kept));
        }
        let again = self.read_again(lsn)?;
        let len = match &again {
            Reread::Whole => return Ok(SetAside::Whole),
            Reread::Gone(why) => return Ok(SetAside::Gone { why: why.clone() }),
            Reread::Damaged(bytes) => bytes.len() as u64,
            Reread::DamagedFile(body) => body.whole_len(),
        };
        self.bodies.room().check(len)?;
        let written = (|| {
            posthaste_fsops::make_dir(&dir)?;
            // Under a temporary name until it is complete. Two concurrent writers write the same bytes.
            let unfinished = dir.join(format!(".{lsn}.{:016x}", files::random()));
            let copied = match again {
                Reread::DamagedFile(body) => self.copy(lsn, body, &unfinished),
                Reread::Damaged(bytes) => files::write_new(&unfinished, &bytes),
                Reread::Whole | Reread::Gone(_) => unreachable!("there is nothing to write"),
            };
            let named = copied.and_then(|()| Ok(posthaste_fsops::rename(&unfinished, &kept)?));
            if named.is_err() {
                let _ = files::remove(&unfinished);
            }
            named?;
            files::sync_dir(&dir)
        })();
        written?;
        Ok(SetAside::Kept(kept))
    }

    fn read_again(&self, lsn: Lsn) -> io::Result<Reread> {
        // Without the head nobody knows whose message this is.
        let has_head = !matches!(self.find(lsn.get()), Ok(Found::Damaged(_)));
        let of = |(bytes, is_whole): (Bytes, bool)| {
            if is_whole && has_head { Reread::Whole } else { Reread::Damaged(bytes) }
        };
        let large = self.core.state().large.get(&lsn.get()).copied();
        if let Some(body) = large {
            return Ok(match self.bodies.verify_again(body)? {
                Ok(()) if has_head => Reread::Whole,
                Ok(()) => Reread::DamagedFile(body),
                Err(_) if self.bodies.path(body.upload).exists() => Reread::DamagedFile(body),
                Err(what) => Reread::Gone(what.to_owned()),
            });
        }
        for _ in 0..MOVES_MAX {
            let place = {
                let state = self.core.state();
                if lsn.get() > state.packed_through { None } else { Some(state.pack_of(lsn.get())) }
            };
            let again = match place {
                None => match self.store.read_body_again(lsn) {
                    Ok(read) => Ok(of(read)),
                    Err(RecordError::Io(_, error)) => Err(error),
                    Err(error) => Ok(Reread::Gone(error.to_string())),
                },
                Some(None) => Ok(Reread::Gone("its batch lies nowhere".to_owned())),
                Some(Some(pack)) => self.read_pack_again(pack, lsn.get()).map(|read| match read {
                    Ok(read) => of(read),
                    Err(what) => Reread::Gone(what.to_owned()),
                }),
            };
            let state = self.core.state();
            let is_there_still = match place {
                None => lsn.get() > state.packed_through,
                Some(pack) => state.pack_of(lsn.get()) == pack,
            };
            if is_there_still {
                return again;
            }
        }
        Err(moves_too_often())
    }

    fn read_pack_again(&self, pack: u64, lsn: u64) -> io::Result<Result<(Bytes, bool), &'static str>> {
        use crate::pack::PackError::{Damaged, Io};
        let found = self.packs.get(pack).and_then(|reader| Ok((reader.find(lsn)?, reader)));
        match found {
            Ok((Some(entry), reader)) => reader.body_again(&entry).map(Ok),
            Ok((None, _)) => Ok(Err("its pack does not have it")),
            Err(Damaged(what)) => Ok(Err(what)),
            Err(Io(error)) => Err(error),
        }
    }

    /// Copies the remains of a large body, its front fields first.
    fn copy(&self, lsn: Lsn, body: BodyFile, to: &Path) -> io::Result<()> {
        let front = self.front_of(lsn, body).map_err(io::Error::other)?;
        let from = File::open(self.bodies.path(body.upload))?;
        let to = files::create(to)?;
        posthaste_fsops::write_all(&to, &front)?;
        let mut at = 0;
        while at < body.len {
            let piece = files::read_again(&from, at, PIECE_BYTES.min(body.len - at))?;
            if piece.is_empty() {
                break;
            }
            posthaste_fsops::write_all(&to, &piece)?;
            at += piece.len() as u64;
        }
        Ok(posthaste_fsops::fsync(&to)?)
    }
}

/// Bytes of a large body held in memory while it is copied.
const PIECE_BYTES: u64 = 1 << 20;
