//! A message in the form for transports: front fields, line ends, loss.

use std::io;

use bytes::Bytes;
use posthaste_message::{write_delivered_to, write_return_path};
use posthaste_spool::{LostMessage, MessageReader};

use crate::entry::{Deliver, Target};
use crate::work::Outcome;

/// The outcome of an attempt with a failed read or write. Blocks.
pub(crate) fn failed(reader: &MessageReader, failed: io::Error, what: &str) -> Outcome {
    match reader.give_up(failed) {
        Ok(LostMessage { why, kept }) => Outcome::Lost(why.into(), kept),
        Err(retry) => Outcome::Failed(format!("{what}{retry}").into()),
    }
}

/// Return-Path and Delivered-To, as the receiving side writes them in front of a message.
pub(crate) fn prefix(deliver: &Deliver, target: &Target) -> Bytes {
    let mut fields = Vec::with_capacity(128);
    write_return_path(&mut fields, &deliver.sender);
    write_delivered_to(&mut fields, &target.recipient);
    fields.into()
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

/// Maximum bytes in memory at a time.
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
