//! The private stream `log` of a member: one entry for each batch that it appended to its local spool, and the snapshot
//! of all of them.
//!
//! | bytes | an entry |
//! | --- | --- |
//! | 1 | version: 1 |
//! | 8, 8, 4 | log id, position and CRC of the record |
//! | 8 | cluster number of the batch |
//! | 4, 4 | index of the batch in its record, and how many numbers the record takes |
//! | 8, 8 | epoch, and lowest valid send number, after the record |
//! | 8 | position to read from after a restart |
//! | 1 | 0; 1: a stream's number (2) and name follow, without a name it was forgotten; 2: a `digest` record |
//!
//! The snapshot has the last entry, the streams and the runs. All numbers are little-endian.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};
use posthaste_spool::{Fields, put_text};

use crate::reader::History;
use crate::runs::{Run, Runs};
use crate::{Content, LogPosition, LogRecord};

/// A batch's place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub log: u64,
    pub position: LogPosition,
    pub crc: u32,
    pub number: u64,
    pub index: u32,
    pub numbers: u32,
    pub epoch: u64,
    pub valid_from: u64,
    pub resume: LogPosition,
    /// The new name of a stream's number; no name if it was forgotten.
    pub stream: Option<(u16, Option<String>)>,
    /// Members compare their digests here.
    pub is_digest: bool,
}

impl Place {
    /// The place of the batch `index` of a record.
    pub fn of(record: &LogRecord, history: &History, index: u32, resume: LogPosition) -> Self {
        Place {
            log: history.log,
            position: history.position,
            crc: record.crc,
            number: record.header.first + u64::from(index),
            index,
            numbers: record.numbers() as u32,
            epoch: history.epoch,
            valid_from: history.valid_from,
            resume,
            stream: None,
            is_digest: record.content == Content::Digest,
        }
    }

    /// History after the record.
    pub fn history(&self) -> History {
        let next = self.number - u64::from(self.index) + u64::from(self.numbers);
        let log = self.log;
        let position = self.position;
        let epoch = self.epoch;
        let valid_from = self.valid_from;
        let crc = self.crc;
        History { log, position, epoch, valid_from, next, crc }
    }

    /// True if this is the last batch of its record.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.numbers
    }

    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(80);
        self.put(&mut out);
        out.into()
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        out.put_u64_le(self.log);
        out.put_u64_le(self.position.get());
        out.put_u32_le(self.crc);
        out.put_u64_le(self.number);
        out.put_u32_le(self.index);
        out.put_u32_le(self.numbers);
        out.put_u64_le(self.epoch);
        out.put_u64_le(self.valid_from);
        out.put_u64_le(self.resume.get());
        out.put_u8(if self.is_digest { 2 } else { self.stream.is_some().into() });
        if let Some((number, name)) = &self.stream {
            out.put_u16_le(*number);
            put_text(out, name.as_deref().unwrap_or_default());
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let place = Self::get(&mut fields)?;
        fields.end()?;
        Some(place)
    }

    fn get(fields: &mut Fields<'_>) -> Option<Self> {
        if fields.u8()? != VERSION {
            return None;
        }
        let mut place = Place {
            log: fields.u64()?,
            position: LogPosition::new(fields.u64()?),
            crc: fields.u32()?,
            number: fields.u64()?,
            index: fields.u32()?,
            numbers: fields.u32()?,
            epoch: fields.u64()?,
            valid_from: fields.u64()?,
            resume: LogPosition::new(fields.u64()?),
            stream: None,
            is_digest: false,
        };
        match fields.u8()? {
            0 => {}
            1 => {
                let number = fields.u16()?;
                let name: String = fields.text()?;
                place.stream = Some((number, Some(name).filter(|name| !name.is_empty())));
            }
            2 => place.is_digest = true,
            _ => return None,
        }
        let first = place.number.checked_sub(place.index.into())?;
        first.checked_add(place.numbers.into())?;
        (place.index < place.numbers).then_some(place)
    }
}

const VERSION: u8 = 1;

/// Everything a member knows about the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Place of the last batch.
    pub last: Option<Place>,
    /// Names by number; no name if it was forgotten.
    pub streams: BTreeMap<u16, Option<String>>,
    pub runs: Runs,
}

impl Applied {
    /// The next batch, with its local LSN. False if batches are missing before it.
    pub fn push(&mut self, place: Place, local: u64) -> bool {
        let expected = self.last.as_ref().map_or(place.number, |last| last.number + 1);
        if place.number != expected {
            return false;
        }
        self.runs.push(place.number, local);
        if let Some((number, name)) = place.stream.clone() {
            self.streams.insert(number, name);
        }
        self.last = Some(place);
        true
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_u8(self.last.is_some().into());
        if let Some(last) = &self.last {
            last.put(&mut out);
        }
        out.put_u16_le(self.streams.len() as u16);
        for (number, name) in &self.streams {
            out.put_u16_le(*number);
            put_text(&mut out, name.as_deref().unwrap_or_default());
        }
        out.put_u32_le(self.runs.iter().len() as u32);
        for run in self.runs.iter() {
            out.put_u64_le(run.number);
            out.put_u64_le(run.local);
            out.put_u64_le(run.len);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let last = match fields.u8()? {
            0 => None,
            1 => Some(Place::get(&mut fields)?),
            _ => return None,
        };
        let mut streams = BTreeMap::new();
        for _ in 0..fields.u16()? {
            let number = fields.u16()?;
            let name: String = fields.text()?;
            if streams.last_key_value().is_some_and(|(last, _)| number <= *last) {
                return None;
            }
            streams.insert(number, Some(name).filter(|name| !name.is_empty()));
        }
        let mut runs = Vec::new();
        for _ in 0..fields.u32()? {
            runs.push(Run { number: fields.u64()?, local: fields.u64()?, len: fields.u64()? });
        }
        fields.end()?;
        let runs = Runs::of(runs)?;
        let is_right = runs.last().map(|last| last.0) == last.as_ref().map(|last| last.number);
        is_right.then_some(Applied { last, streams, runs })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places() -> impl Strategy<Value = Place> {
        let stream = prop_oneof![
            Just(None),
            (any::<u16>(), prop_oneof![Just(None), "[a-z]{1,5}".prop_map(Some)]).prop_map(Some)
        ];
        let numbers = (any::<(u64, u64, u32, u64, u64, u64)>(), 1_000u64..1 << 48, 0u32..9, 1u32..9);
        (numbers, stream).prop_map(|((it, number, index, more), stream)| Place {
            log: it.0,
            position: LogPosition::new(it.1),
            crc: it.2,
            number,
            index,
            numbers: index + more,
            epoch: it.3,
            valid_from: it.4,
            resume: LogPosition::new(it.5),
            is_digest: stream.is_none() && it.2 % 2 == 0,
            stream,
        })
    }

    proptest! {
        #[test]
        fn a_place_reads_back_and_no_part_of_it_is_one(place in places()) {
            let bytes = place.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(Place::decode(&bytes[..len]), None);
            }
            prop_assert_eq!(Place::decode(&bytes), Some(place));
        }

        #[test]
        fn a_snapshot_reads_back_and_no_part_of_it_is_one(mut places in prop::collection::vec(places(), 0..6)) {
            let mut applied = Applied::default();
            for (nth, place) in (0u64..).zip(&mut places) {
                (place.number, place.index) = (70 + nth, 0);
                prop_assert!(applied.push(place.clone(), 5 + nth + nth / 3 * 9));
            }
            let bytes = applied.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(Applied::decode(&bytes[..len]), None);
            }
            prop_assert_eq!(Applied::decode(&bytes), Some(applied));
        }

        #[test]
        fn any_bytes_are_no_snapshot_or_the_bytes_of_one(bytes in prop::collection::vec(0u8..3, 0..90)) {
            if let Some(applied) = Applied::decode(&bytes) {
                prop_assert_eq!(applied.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_missing_batch_is_noticed() {
        let place = |number| Place {
            log: 1,
            position: LogPosition::new(2),
            crc: 3,
            number,
            index: 0,
            numbers: 1,
            epoch: 1,
            valid_from: 0,
            resume: LogPosition::new(2),
            stream: None,
            is_digest: false,
        };
        let mut applied = Applied::default();
        assert!(applied.push(place(5), 1) && applied.push(place(6), 2));
        assert!(!applied.push(place(8), 3) && !applied.push(place(6), 3));
        assert_eq!(applied.runs.last(), Some((6, 2)));
    }
}
