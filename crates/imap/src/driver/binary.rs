//! Parts of messages without their transfer encoding: read and decoded piece by piece.

use std::ops::Range;

use posthaste_mailstore::{BODY_READ_MAX, MailBody, MailstoreError};
use posthaste_message::mime::{Encoding, TransferDecoder};

use super::mail::refusal;
use crate::session::{DecodedLength, MailRefusal};

/// Octets of a message, decoded.
pub(super) struct DecodedReader<'a> {
    body: &'a dyn MailBody,
    left: Range<u64>,
    /// Decoder of the part; `None` once it has ended.
    decoder: Option<TransferDecoder>,
    piece: Vec<u8>,
}

/// Why a part cannot be decoded.
#[derive(Debug)]
pub(super) enum DecodeFailure {
    /// The octets are invalid in the declared encoding.
    Broken,
    Unread(MailstoreError),
}

impl<'a> DecodedReader<'a> {
    pub fn new(body: &'a dyn MailBody, range: Range<u64>, encoding: Encoding) -> Result<Self, DecodeFailure> {
        let decoder = TransferDecoder::new(encoding).ok_or(DecodeFailure::Broken)?;
        Ok(Self { body, left: range, decoder: Some(decoder), piece: Vec::new() })
    }

    /// The next octets, possibly empty; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, DecodeFailure> {
        let Some(decoder) = &mut self.decoder else { return Ok(None) };
        self.piece.clear();
        if self.left.is_empty() {
            self.decoder.take().into_iter().for_each(|decoder| decoder.finish(&mut self.piece));
            return Ok(Some(&self.piece));
        }
        let up_to = self.left.end.min(self.left.start + BODY_READ_MAX as u64);
        let octets = self.body.read(self.left.start, up_to).await.map_err(DecodeFailure::Unread)?;
        if octets.is_empty() {
            return Err(DecodeFailure::Unread(MailstoreError::Damaged("a message became shorter".to_owned())));
        }
        self.left.start += octets.len() as u64;
        decoder.push(&octets, &mut self.piece).map_err(|_| DecodeFailure::Broken)?;
        Ok(Some(&self.piece))
    }
}

/// The decoded length of a part; `None` if it cannot be decoded.
pub(super) async fn measure(
    body: &dyn MailBody,
    range: Range<u64>,
    encoding: Encoding,
) -> Result<Option<DecodedLength>, MailRefusal> {
    match count(body, range, encoding).await {
        Ok(length) => Ok(Some(length)),
        Err(DecodeFailure::Broken) => Ok(None),
        Err(DecodeFailure::Unread(error)) => Err(refusal(&error)),
    }
}

async fn count(body: &dyn MailBody, range: Range<u64>, encoding: Encoding) -> Result<DecodedLength, DecodeFailure> {
    let mut reader = DecodedReader::new(body, range, encoding)?;
    let mut length = DecodedLength::default();
    while let Some(piece) = reader.next().await? {
        length.octets += piece.len() as u64;
        length.has_nul |= memchr::memchr(0, piece).is_some();
    }
    Ok(length)
}

/// The octets of a piece that lie in a range of the whole. `at`: the start of the piece, then its end.
pub(super) fn within<'p>(piece: &'p [u8], wanted: &Range<u64>, at: &mut u64) -> &'p [u8] {
    let start = *at;
    *at += piece.len() as u64;
    let from = wanted.start.clamp(start, *at) - start;
    let up_to = wanted.end.clamp(start, *at) - start;
    &piece[from as usize..(up_to.max(from)) as usize]
}
