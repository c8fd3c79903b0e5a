//! Reads bodies and entries from the store, packs and files.

use std::ops::Range;

use crate::Lsn;
use bytes::Bytes;

use crate::batch::Head;
use crate::bodies::{BodyError, BodyFile};
use crate::events::{Damage, SpoolEvent};
use crate::pack::PackError;
use crate::replay::Found;
use crate::shared::{MOVES_MAX, Shared, moves_too_often};
use crate::store::RecordError;
use crate::{ReadError, ReplayError, StreamId};

impl Shared {
    pub fn read(&self, lsn: Lsn, range: Range<u64>) -> Result<Bytes, ReadError> {
        let large = {
            let state = self.core.state();
            if !state.is_body_needed(lsn.get()) {
                return Err(ReadError::NotFound(lsn));
            }
            state.large.get(&lsn.get()).copied()
        };
        match large {
            Some(body) => self.read_large(lsn, body, range),
            None => self.read_record(lsn, &range),
        }
    }

    /// Reads front fields and body from the record; for a large body only its front fields.
    fn read_record(&self, lsn: Lsn, range: &Range<u64>) -> Result<Bytes, ReadError> {
        // Between the look-up and the reading a batch may have moved from the ring into a pack, or from one pack into another.
        for _ in 0..MOVES_MAX {
            let place = {
                let state = self.core.state();
                if lsn.get() > state.packed_through { None } else { Some(state.pack_of(lsn.get())) }
            };
            let read = match place {
                None => self.read_store(lsn, range),
                Some(None) => Err(self.missing(lsn, "it lies nowhere")),
                Some(Some(pack)) => self.read_pack(pack, lsn, range),
            };
            let is_there_still = {
                let state = self.core.state();
                match place {
                    None => lsn.get() > state.packed_through,
                    Some(pack) => state.pack_of(lsn.get()) == pack,
                }
            };
            if read.is_ok() || is_there_still {
                return read;
            }
        }
        Err(ReadError::Io { lsn, error: moves_too_often() })
    }

    pub fn entries(&self, stream: StreamId, batch: Lsn) -> Result<Vec<Bytes>, ReadError> {
        if !self.core.state().is_any_needed(batch.get()..=batch.get()) {
            return Err(ReadError::NotFound(batch));
        }
        let found = self.find(batch.get()).map_err(|error| match error {
            ReplayError::Io { lsn, error } => ReadError::Io { lsn, error },
            error => ReadError::Io { lsn: batch, error: std::io::Error::other(error) },
        })?;
        match found {
            Found::Batch { head } => {
                let of_stream = head.entries.into_iter().filter(|entry| entry.stream == stream.0);
                Ok(of_stream.map(|entry| entry.payload).collect())
            }
            Found::Damaged(what) => Err(ReadError::Unreachable { lsn: batch, what }),
            Found::Gone => Err(ReadError::NotFound(batch)),
        }
    }

    fn read_large(&self, lsn: Lsn, body: BodyFile, range: Range<u64>) -> Result<Bytes, ReadError> {
        check_range(lsn, &range, body.whole_len())?;
        let front_len = u64::from(body.front.len);
        let within_front = range.start.min(front_len)..range.end.min(front_len);
        let within_file = range.start.saturating_sub(front_len)..range.end.saturating_sub(front_len);
        let read = self.bodies.read(body, within_file).map_err(|error| match error {
            BodyError::Damaged(what) => ReadError::Damaged { lsn, what: what.to_owned() },
            BodyError::Missing => ReadError::Unreachable { lsn, what: "its file is missing".to_owned() },
            BodyError::Io(error) => ReadError::Io { lsn, error },
        })?;
        if within_front.is_empty() {
            return Ok(read);
        }
        let front = self.front_of(lsn, body)?;
        let front = front.slice(within_front.start as usize..within_front.end as usize);
        Ok(if read.is_empty() { front } else { [front, read].concat().into() })
    }

    /// The front fields of a large body. If they are lost, the body is still intact.
    pub fn front_of(&self, lsn: Lsn, body: BodyFile) -> Result<Bytes, ReadError> {
        let len = u64::from(body.front.len);
        if len == 0 {
            return Ok(Bytes::new());
        }
        match self.read_record(lsn, &(0..len)) {
            Ok(front) => Ok(front),
            Err(ReadError::Io { lsn, error }) if !posthaste_fsops::is_of_disk(&error) => {
                Err(ReadError::Io { lsn, error })
            }
            // The batch was released meanwhile: its record is gone, or was packed without the fields. Nothing is lost.
            Err(_) if !self.core.state().is_body_needed(lsn.get()) => Err(ReadError::NotFound(lsn)),
            Err(error) => {
                self.tell_lost_front(lsn, &error.to_string());
                Ok(body.front.substitute())
            }
        }
    }

    /// The record's body region, with placeholders for its front fields if only these are damaged.
    pub fn mended_in_store(&self, lsn: Lsn) -> Option<Bytes> {
        let head = Head::decode(self.store.read_head(lsn).ok()?)?;
        let (raw, _) = self.store.read_body_again(lsn).ok()?;
        head.front().mended(&raw, self.store.body_crc(lsn).ok()?)
    }

    fn tell_lost_front(&self, lsn: Lsn, what: &str) {
        let is_new = self.lost_fronts.lock().expect("nothing panics while it is held").insert(lsn.get());
        if is_new {
            let what = format!("{LOST_FRONT}: {what}");
            self.config.events.tell(SpoolEvent::Damage(Damage {
                lsn: Some(lsn),
                place: "front fields".to_owned(),
                what,
            }));
        }
    }

    /// The error for a needed but missing body. It is never given up, as an operator may restore it.
    fn missing(&self, lsn: Lsn, what: &str) -> ReadError {
        if self.core.state().is_body_needed(lsn.get()) {
            ReadError::Unreachable { lsn, what: what.to_owned() }
        } else {
            // The batch was released meanwhile.
            ReadError::NotFound(lsn)
        }
    }

    fn read_pack(&self, pack: u64, lsn: Lsn, range: &Range<u64>) -> Result<Bytes, ReadError> {
        // The index of a pack can be rebuilt.
        let unreachable = |error: PackError| match error {
            PackError::Damaged(what) => ReadError::Unreachable { lsn, what: what.to_owned() },
            PackError::Io(error) => ReadError::Io { lsn, error },
        };
        let reader = self.packs.get(pack).map_err(unreachable)?;
        let entry = reader.find(lsn.get()).map_err(unreachable)?;
        let entry = entry.ok_or_else(|| self.missing(lsn, "its pack does not have it"))?;
        let whole = match reader.body(&entry) {
            Ok(whole) => whole,
            Err(PackError::Io(error)) => return Err(ReadError::Io { lsn, error }),
            Err(PackError::Damaged(what)) => match reader.mended(&entry) {
                Some(mended) => {
                    self.tell_lost_front(lsn, what);
                    mended
                }
                None => return Err(ReadError::Damaged { lsn, what: what.to_owned() }),
            },
        };
        part(lsn, &whole, range)
    }

    pub fn find_in_store(&self, lsn: u64) -> Result<Found, ReplayError> {
        match self.store.read_head(Lsn::new(lsn)) {
            Ok(head) => Ok(match Head::decode(head) {
                Some(head) => Found::Batch { head },
                None => Found::Damaged("its head has an unknown format".to_owned()),
            }),
            Err(RecordError::Io(lsn, error)) => Err(ReplayError::Io { lsn, error }),
            // A scan skips a record whose header or head is damaged.
            Err(RecordError::NotFound(_)) => Ok(Found::Damaged("its record is damaged or missing".to_owned())),
            Err(error) => Ok(Found::Damaged(error.to_string())),
        }
    }

    fn read_store(&self, lsn: Lsn, range: &Range<u64>) -> Result<Bytes, ReadError> {
        // The store cuts off the part of the range beyond the body.
        let cut = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
        let bytes = match self.store.read_body(lsn, cut(range.start)..cut(range.end)) {
            Ok(bytes) => bytes,
            Err(RecordError::NotFound(lsn)) => return Err(ReadError::NotFound(lsn)),
            Err(RecordError::Io(lsn, error)) => return Err(ReadError::Io { lsn, error }),
            Err(RecordError::HeadDamaged(_)) => {
                return Err(self.missing(lsn, "the header of its record is damaged"));
            }
            Err(error) => match self.mended_in_store(lsn) {
                Some(mended) => {
                    self.tell_lost_front(lsn, &error.to_string());
                    return part(lsn, &mended, range);
                }
                None => return Err(ReadError::Damaged { lsn, what: error.to_string() }),
            },
        };
        if range.start <= range.end && bytes.len() as u64 == range.end - range.start {
            return Ok(bytes);
        }
        let len = self.store.read_body(lsn, 0..u32::MAX).map_or(0, |body| body.len() as u64);
        Err(ReadError::OutOfRange { lsn, len })
    }
}

fn part(lsn: Lsn, whole: &Bytes, range: &Range<u64>) -> Result<Bytes, ReadError> {
    check_range(lsn, range, whole.len() as u64)?;
    Ok(whole.slice(range.start as usize..range.end as usize))
}

/// Description of the damage if only front fields are lost.
pub(crate) const LOST_FRONT: &str = "the fields in front of a message are damaged, the message is whole";

fn check_range(lsn: Lsn, range: &Range<u64>, len: u64) -> Result<(), ReadError> {
    if range.start <= range.end && range.end <= len { Ok(()) } else { Err(ReadError::OutOfRange { lsn, len }) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::{Batch, Body, Config, Entry, Events, FileSpool, FrontFields, Released, Spool};

    #[test]
    fn front_fields_released_during_a_read_are_not_lost() {
        for is_entry_needed in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (tell, told) = channel();
            let events = Events::new(move |event| drop(tell.send(event)));
            let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
            let config = Config { ring, keeper: false, events, ..Config::default() };
            let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
            let (one, other) = (spool.stream("one").unwrap(), spool.stream("other").unwrap());
            let append = |body: Body| {
                let (tell, told) = channel();
                let entry = |stream, needs_body| Entry { stream, needs_body, payload: Bytes::new() };
                let batch = Batch { entries: vec![entry(one, true), entry(other, false)], body };
                spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
                told.recv().unwrap().unwrap()
            };
            let mut upload = spool.upload(0).unwrap();
            upload.write(&[7; 5000]).unwrap();
            let front = FrontFields::new("Received: x\r\n").unwrap();
            let lsn = append(Body::File(front, upload.finish().unwrap()));
            let others: Vec<Lsn> = (0..30).map(|_| append(Body::inline(vec![vec![1; 7000].into()]))).collect();
            let body = spool.shared.core.state().large[&lsn.get()];
            // A reader has looked by now whether the body is needed. One other body has its segment copied.
            let also = [&[lsn], &others[1..]].concat();
            spool.advance(one, others[29], None, Released { below: Lsn::ZERO, also });
            if !is_entry_needed {
                spool.advance(other, others[29], None, Released::default());
            }
            spool.checkpoint().unwrap();
            assert_eq!(spool.pack_oldest(1).unwrap(), 1);
            assert!(matches!(spool.shared.front_of(lsn, body), Err(ReadError::NotFound(_))));
            assert!(!told.try_iter().any(|event| matches!(event, SpoolEvent::Damage(_))), "{is_entry_needed}");
        }
    }
}
