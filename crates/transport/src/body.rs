//! The bytes of a message, read from the spool piece by piece.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_message::{write_delivered_to, write_return_path};
use posthaste_spool::{Lsn, ReadError, SetAside, Spool};

use crate::entry::{Deliver, Target};
use crate::work::Outcome;

/// Where a body's bytes come from. Reading blocks.
#[derive(Clone)]
pub(crate) struct Source {
    pub spool: Arc<dyn Spool>,
    pub lsn: Lsn,
    pub len: u64,
}

impl Source {
    /// A part of the body, checked.
    pub fn read(&self, from: u64, len: u64) -> io::Result<Bytes> {
        let read = self.spool.read(self.lsn, from..from + len);
        let piece = read.map_err(|error| match error {
            // All else may be put right: a missing file put back, an index repaired, a disk.
            ReadError::Damaged { .. } | ReadError::NotFound(_) => {
                io::Error::new(io::ErrorKind::InvalidData, Unreadable(error))
            }
            error => io::Error::other(format!("its body cannot be read: {error}")),
        })?;
        match piece.len() as u64 == len {
            true => Ok(piece),
            false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its body in the spool is too short")),
        }
    }

    /// The outcome of an attempt whose reading or writing has failed. If the body is lost, what is left of it is kept before that is said. Blocks.
    pub fn failed(&self, failed: &io::Error, what: &str) -> Outcome {
        let again = |why: &dyn std::fmt::Display| Outcome::Failed(format!("{what}{failed}{why}").into());
        let unreadable = failed.get_ref().and_then(|error| error.downcast_ref());
        let Some(Unreadable(error)) = unreadable else { return again(&"") };
        let lost = |kept| Outcome::Lost(error.to_string().into(), kept);
        if matches!(error, ReadError::NotFound(_)) {
            return lost(None);
        }
        match self.spool.set_aside(self.lsn) {
            Ok(SetAside::Kept(path)) => lost(Some(path)),
            Ok(SetAside::Whole) => again(&""),
            Ok(SetAside::Gone { why }) => again(&format_args!("; {why}")),
            Err(kept) => again(&format_args!("; what is left of it cannot be kept: {kept}")),
        }
    }

    /// The next part from `at` on; empty at the end.
    pub fn piece(&self, at: u64) -> io::Result<Bytes> {
        self.read(at, PIECE_BYTES.min(self.len - at))
    }
}

/// A body that will never be read, as an [`io::Error`] carries it.
#[derive(Debug, thiserror::Error)]
#[error("its body cannot be read: {0}")]
struct Unreadable(ReadError);

/// Return-Path and Delivered-To, as the receiving side writes them in front of a message. Lines end in LF.
pub(crate) fn prefix(deliver: &Deliver, target: &Target) -> Vec<u8> {
    let mut fields = Vec::with_capacity(128);
    write_return_path(&mut fields, &deliver.sender);
    write_delivered_to(&mut fields, &target.recipient);
    let mut out = Vec::with_capacity(fields.len());
    ToLf::default().push(&fields, &mut out);
    out
}

/// Makes CRLF LF, wherever pieces are cut. A CR without LF stays.
#[derive(Debug, Default)]
pub(crate) struct ToLf {
    has_cr: bool,
}

impl ToLf {
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for &byte in piece {
            if self.has_cr && byte != b'\n' {
                out.push(b'\r');
            }
            self.has_cr = byte == b'\r';
            if !self.has_cr {
                out.push(byte);
            }
        }
    }

    pub fn end(self, out: &mut Vec<u8>) {
        if self.has_cr {
            out.push(b'\r');
        }
    }
}

/// Bytes that are in memory at a time.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_the_same_however_the_pieces_are_cut() {
        let text = b"a\r\n\r\nb\rc\r\r\nd\n\r";
        for cut in 0..=text.len() {
            let (mut to_lf, mut out) = (ToLf::default(), Vec::new());
            to_lf.push(&text[..cut], &mut out);
            to_lf.push(&text[cut..], &mut out);
            to_lf.end(&mut out);
            assert_eq!(out, b"a\n\nb\rc\r\nd\n\r", "{cut}");
        }
    }
}
