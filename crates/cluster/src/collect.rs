//! Reassembles large batches from their parts, for a member that did not send them.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use posthaste_spool::{Batch, Body, Spool, Upload};

use crate::batch::{LoggedBatch, LoggedBody};

/// Unfinished uploads of a log.
#[derive(Default)]
pub(crate) struct Collector(BTreeMap<u64, Collected>);

/// A batch with some received parts.
struct Collected {
    /// Bytes received so far.
    len: u64,
    crc: u32,
    /// The head, until it is complete.
    head: Vec<u8>,
    batch: Option<(LoggedBatch, Content)>,
}

enum Content {
    Memory(Vec<Bytes>),
    File(Upload),
}

/// Why a large batch cannot be reassembled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    /// The local disk failed; retry.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The log lacks a part that the `commit` names.
    #[error("the parts of upload {0:#x} do not match its commit")]
    Damaged(u64),
}

impl Collector {
    /// Adds a part. Duplicates and parts after a gap are ignored: among re-read parts some are void, and their repeats
    /// follow. `finish` detects damage.
    pub fn add(&mut self, local: &dyn Spool, upload: u64, offset: u64, bytes: &Bytes) -> Result<(), CollectError> {
        let new = || Collected { len: 0, crc: 0, head: Vec::new(), batch: None };
        let collected = self.0.entry(upload).or_insert_with(new);
        if offset != collected.len {
            return Ok(());
        }
        collected.add(local, upload, bytes.clone())
    }

    /// All parts of a batch.
    pub fn finish(&mut self, upload: u64, len: u64, crc: u32) -> Result<(LoggedBatch, Body), CollectError> {
        let damaged = || CollectError::Damaged(upload);
        let collected = self.0.remove(&upload).filter(|it| (it.len, it.crc) == (len, crc)).ok_or_else(damaged)?;
        let (mut batch, content) = collected.batch.ok_or_else(damaged)?;
        let front = std::mem::take(&mut batch.front);
        let body_len = batch.body_len;
        let body = match content {
            Content::Memory(parts) if batch.body == LoggedBody::None && parts.is_empty() => Body::None,
            Content::Memory(parts) => Body::Inline(front.clone(), parts),
            Content::File(upload) => Body::File(front.clone(), upload.finish()?),
        };
        if body.len() != front.len() as u64 + body_len {
            return Err(damaged());
        }
        Ok((batch, body))
    }

    pub fn abort(&mut self, upload: u64) {
        self.0.remove(&upload);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Collected {
    fn add(&mut self, local: &dyn Spool, upload: u64, bytes: Bytes) -> Result<(), CollectError> {
        let rest = match &self.batch {
            Some(_) => bytes.clone(),
            None => {
                self.head.extend_from_slice(&bytes);
                let is_whole = LoggedBatch::head_len(&self.head).is_some_and(|len| len <= self.head.len());
                if !is_whole {
                    self.note(&bytes);
                    return Ok(());
                }
                let head = Bytes::from(std::mem::take(&mut self.head));
                let (batch, rest) = LoggedBatch::decode_head(&head).ok_or(CollectError::Damaged(upload))?;
                let content = match batch.body {
                    LoggedBody::File => Content::File(local.upload(batch.body_len)?),
                    LoggedBody::None | LoggedBody::Inline => Content::Memory(Vec::new()),
                };
                self.batch = Some((batch, content));
                rest
            }
        };
        match &mut self.batch {
            Some((_, Content::File(upload))) => upload.write(&rest)?,
            Some((_, Content::Memory(parts))) if !rest.is_empty() => parts.push(rest),
            _ => {}
        }
        self.note(&bytes);
        Ok(())
    }

    fn note(&mut self, bytes: &Bytes) {
        self.len += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }
}

/// The batch for the local spool, without the entry of the log.
pub(crate) fn batch_of(
    logged: &LoggedBatch,
    body: Body,
    id_of: impl Fn(u16) -> Result<Option<posthaste_spool::StreamId>, u16>,
) -> Result<Batch, u16> {
    let mut entries = Vec::with_capacity(logged.entries.len() + 1);
    for entry in &logged.entries {
        // A stream that was forgotten takes none.
        if let Some(stream) = id_of(entry.stream)? {
            let needs_body = entry.needs_body;
            let payload = entry.payload.clone();
            entries.push(posthaste_spool::Entry { stream, needs_body, payload });
        }
    }
    Ok(Batch { entries, body })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use posthaste_spool::{Config, FileSpool, FrontFields};

    use super::*;
    use crate::batch::LoggedEntry;

    /// The octets of a large batch, cut into parts of `len`.
    fn parts(body: LoggedBody, bytes: &[u8], len: usize) -> (LoggedBatch, Vec<(u64, Bytes)>, u32) {
        let entry = LoggedEntry { stream: 1, needs_body: true, payload: Bytes::from(vec![b'r'; 3000]) };
        let front = FrontFields::new("A: b\r\n").unwrap();
        let batch = LoggedBatch { entries: vec![entry], front, body, body_len: bytes.len() as u64 };
        let whole = [&batch.encode_head()[..], bytes].concat();
        let part = |(nth, part): (usize, &[u8])| ((nth * len) as u64, Bytes::copy_from_slice(part));
        (batch, whole.chunks(len).enumerate().map(part).collect(), crc32c::crc32c(&whole))
    }

    fn with_spool(test: impl Fn(&FileSpool, &Path)) {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _) = FileSpool::open(dir.path(), Config { keeper: false, ..Config::default() }).unwrap();
        test(&spool, dir.path());
    }

    fn content(body: &Body) -> Vec<u8> {
        match body {
            Body::None => Vec::new(),
            Body::Inline(_, parts) => parts.concat(),
            Body::File(_, upload) => {
                let mut bytes = Vec::new();
                io::Read::read_to_end(&mut upload.reader().unwrap(), &mut bytes).unwrap();
                bytes
            }
        }
    }

    #[test]
    fn parts_of_any_length_make_the_batch_again() {
        with_spool(|spool, _| {
            let text: Vec<u8> = (0..9000u32).map(|at| (at * 7) as u8).collect();
            for (kind, len) in [(LoggedBody::Inline, 1), (LoggedBody::File, 700), (LoggedBody::File, 20_000)] {
                let (batch, parts, crc) = parts(kind, &text, len);
                let mut collector = Collector::default();
                let whole = parts.last().map(|(offset, part)| offset + part.len() as u64).unwrap();
                for (offset, part) in &parts {
                    collector.add(spool, 5, *offset, part).unwrap();
                    // It was sent again after a barrier.
                    collector.add(spool, 5, *offset, part).unwrap();
                }
                let (logged, body) = collector.finish(5, whole, crc).unwrap();
                assert_eq!((logged.entries, body.len()), (batch.entries, 6 + text.len() as u64));
                assert!(content(&body) == text, "{kind:?} {len}");
            }
        });
    }

    #[test]
    fn missing_and_aborted_parts_are_noticed() {
        with_spool(|spool, dir| {
            let (_, parts, crc) = parts(LoggedBody::File, &[7; 5000], 1000);
            let mut collector = Collector::default();
            let damaged = |outcome: Result<_, CollectError>| matches!(outcome, Err(CollectError::Damaged(5)));
            collector.add(spool, 5, 0, &parts[0].1).unwrap();
            collector.add(spool, 5, 2000, &parts[2].1).unwrap();
            assert!(damaged(collector.finish(5, 3000, crc).map(|_| ())), "a part is missing");
            collector.add(spool, 5, 0, &parts[0].1).unwrap();
            assert!(damaged(collector.finish(5, 1000, crc).map(|_| ())), "a part of it is not all");
            for (offset, part) in &parts {
                collector.add(spool, 5, *offset, part).unwrap();
            }
            collector.abort(5);
            assert!(damaged(collector.finish(5, 5000, crc).map(|_| ())));
            assert_eq!(std::fs::read_dir(dir.join("bodies")).unwrap().count(), 0, "an upload leaves nothing");
        });
    }
}
