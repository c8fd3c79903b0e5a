//! COMPRESS=DEFLATE (RFC 4978): both directions of a connection as raw DEFLATE (RFC 1951).
//!
//! At most [`UNPACKED_AT_ONCE`] octets are decompressed before the session has consumed the previous ones. So a client
//! that sends zeros costs as much memory as one without compression.

use bytes::BytesMut;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Maximum decompressed octets that the session has not consumed.
pub(super) const UNPACKED_AT_ONCE: usize = 8 << 10;
/// Size of the pieces of compressed output.
const PACKED_AT_ONCE: usize = 16 << 10;

/// The state of both directions.
pub(super) struct Deflated {
    inflate: Decompress,
    /// Compressed input that is not decompressed yet.
    pub packed: BytesMut,
    /// True if the last step stopped because its output buffer was full.
    is_full: bool,
    /// The client's stream has ended with its final block.
    has_ended: bool,
    /// `None` if nothing was compressed since the last complete flush. Then a new compressor can continue.
    deflate: Option<Compress>,
    /// True if output was compressed that the client cannot decompress before a flush.
    is_dirty: bool,
}

/// The client's octets are invalid DEFLATE, or its stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotDeflated;

impl Deflated {
    pub fn new() -> Self {
        let inflate = Decompress::new(false);
        Self { inflate, packed: BytesMut::new(), is_full: false, has_ended: false, deflate: None, is_dirty: false }
    }

    /// True if more can be decompressed without further input, or the stream has ended.
    pub fn has_input(&self) -> bool {
        self.is_full || self.has_ended || !self.packed.is_empty()
    }

    /// Decompresses some input and appends it to `input`. After a final block, the next call reports the end of the
    /// stream.
    pub fn unpack(&mut self, input: &mut BytesMut) -> Result<(), NotDeflated> {
        if self.has_ended {
            return Err(NotDeflated);
        }
        let start = input.len();
        input.resize(start + UNPACKED_AT_ONCE, 0);
        let taken = self.inflate.total_in();
        let given = self.inflate.total_out();
        let status = self.inflate.decompress(&self.packed, &mut input[start..], FlushDecompress::Sync);
        let taken = (self.inflate.total_in() - taken) as usize;
        let given = (self.inflate.total_out() - given) as usize;
        input.truncate(start + given);
        let _ = self.packed.split_to(taken);
        self.is_full = given == UNPACKED_AT_ONCE;
        if self.packed.is_empty() {
            self.packed = BytesMut::new();
        }
        match status {
            Ok(Status::Ok) => Ok(()),
            // It can do nothing without more octets.
            Ok(Status::BufError) if self.packed.is_empty() => {
                self.is_full = false;
                Ok(())
            }
            Ok(Status::StreamEnd) => {
                self.has_ended = true;
                Ok(())
            }
            Ok(Status::BufError) | Err(_) => Err(NotDeflated),
        }
    }

    /// Compresses octets of the session and appends them to `out`.
    pub fn pack(&mut self, octets: &[u8], out: &mut Vec<u8>) {
        self.is_dirty |= !octets.is_empty();
        self.run(octets, FlushCompress::None, out);
    }

    /// Flushes the compressor, so that the client can decompress everything.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_dirty) {
            self.run(b"", FlushCompress::Sync, out);
        }
    }

    /// Flushes in the middle of an answer, and frees the compressor's memory.
    pub fn break_off(&mut self, out: &mut Vec<u8>) {
        self.flush(out);
        self.rest();
    }

    /// Frees memory while the session waits. Later output does not refer to earlier output.
    pub fn rest(&mut self) {
        self.deflate = self.deflate.take().filter(|_| self.is_dirty);
    }

    fn run(&mut self, mut octets: &[u8], flush: FlushCompress, out: &mut Vec<u8>) {
        let deflate = self.deflate.get_or_insert_with(|| Compress::new(Compression::fast(), false));
        loop {
            out.reserve(PACKED_AT_ONCE);
            let taken = deflate.total_in();
            let before = out.len();
            // It fails only on a compressor that was finished.
            let status = deflate.compress_vec(octets, out, flush);
            octets = &octets[(deflate.total_in() - taken) as usize..];
            let has_room = out.len() < out.capacity();
            if octets.is_empty() && has_room || status.is_err() || out.len() == before && octets.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(octets: &[u8]) -> Vec<u8> {
        let (mut one, mut out) = (Deflated::new(), Vec::new());
        one.pack(octets, &mut out);
        one.flush(&mut out);
        out
    }

    fn unpacked(octets: &[u8], at_once: usize) -> Vec<u8> {
        let (mut one, mut all, mut input) = (Deflated::new(), Vec::new(), BytesMut::new());
        for piece in octets.chunks(at_once) {
            one.packed.extend_from_slice(piece);
            while one.has_input() {
                one.unpack(&mut input).unwrap();
                assert!(input.len() <= UNPACKED_AT_ONCE);
                all.extend_from_slice(&input.split());
            }
        }
        all
    }

    #[test]
    fn octets_come_out_as_they_went_in_wherever_they_are_cut() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| (n.wrapping_mul(n) / 7).to_le_bytes()).collect();
        for octets in [&b"x"[..], b"a1 NOOP\r\n", &text, &[0; 300_000]] {
            let packed = packed(octets);
            for at_once in [1, 7, 8192] {
                assert!(unpacked(&packed, at_once) == octets, "{} octets, {at_once} at once", octets.len());
            }
        }
    }

    #[test]
    fn what_is_packed_after_a_rest_goes_on() {
        let (mut one, mut out) = (Deflated::new(), Vec::new());
        let lines = ["* 1 EXISTS\r\n", "* OK Still here\r\n", "* 2 EXISTS\r\n"];
        for line in lines {
            one.pack(line.as_bytes(), &mut out);
            one.flush(&mut out);
            let len = out.len();
            one.flush(&mut out);
            assert_eq!(out.len(), len, "nothing to flush");
            one.rest();
            assert!(one.deflate.is_none());
        }
        assert_eq!(unpacked(&out, 5), lines.concat().as_bytes());
    }

    #[test]
    fn an_answer_goes_on_after_it_was_broken_off() {
        let text: Vec<u8> = (0..60_000u32).flat_map(|n| (n.wrapping_mul(n) / 7).to_le_bytes()).collect();
        let (mut one, mut out) = (Deflated::new(), Vec::new());
        for piece in text.chunks(16_000) {
            one.pack(piece, &mut out);
            one.break_off(&mut out);
            assert!(one.deflate.is_none());
        }
        assert!(unpacked(&out, 777) == text);
    }

    #[test]
    fn zeros_without_end_are_unpacked_in_small_pieces() {
        let packed = packed(&vec![0; 64 << 20]);
        assert!(packed.len() < 512 << 10, "{}", packed.len());
        let (mut one, mut input, mut all) = (Deflated::new(), BytesMut::new(), 0);
        one.packed.extend_from_slice(&packed);
        while one.has_input() {
            one.unpack(&mut input).unwrap();
            assert!(input.len() <= UNPACKED_AT_ONCE && input.capacity() <= 2 * UNPACKED_AT_ONCE);
            all += input.split().len();
        }
        assert_eq!(all, 64 << 20);
    }

    #[test]
    fn a_final_block_is_unpacked_and_nothing_after_it() {
        let mut last = Vec::with_capacity(1 << 10);
        Compress::new(Compression::fast(), false)
            .compress_vec(b"a NOOP\r\n", &mut last, FlushCompress::Finish)
            .unwrap();
        for after in [&b""[..], b"more", &packed(b"b NOOP\r\n")] {
            let (mut one, mut input) = (Deflated::new(), BytesMut::new());
            one.packed.extend_from_slice(&[&last[..], after].concat());
            assert_eq!(one.unpack(&mut input), Ok(()));
            assert_eq!(&input[..], b"a NOOP\r\n");
            assert!(one.has_input(), "the session learns of the end");
            assert_eq!((one.unpack(&mut input), input.len()), (Err(NotDeflated), 8));
        }
    }

    #[test]
    fn what_is_no_deflate_ends_it() {
        let mut one = Deflated::new();
        one.packed.extend_from_slice(&[7; 20]);
        let mut input = BytesMut::new();
        while one.has_input() {
            if one.unpack(&mut input).is_err() {
                return;
            }
        }
        panic!("{input:?}");
    }
}
