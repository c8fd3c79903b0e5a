//! Output of a client, with a count of written octets.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Octets to write, in order and in pieces: a [`Buf`] for `write_buf` or vectored writes.
///
/// [`Buf::advance`] says that the kernel has taken octets. It decides the fate of a message when its connection is
/// lost, so advance only over written octets.
#[derive(Debug, Default)]
pub struct Output {
    /// Pieces, none empty.
    pieces: VecDeque<Bytes>,
    /// Octets in `pieces`.
    remaining: usize,
    /// Commands, after the pieces.
    text: BytesMut,
    written: u64,
}

impl Output {
    pub(super) fn text(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
    }

    pub(super) fn piece(&mut self, piece: Bytes) {
        self.settle();
        self.push(piece);
    }

    /// Octets written since the session began.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The value of [`Output::written`] once everything is written.
    pub(super) fn end(&self) -> u64 {
        self.written + (self.remaining + self.text.len()) as u64
    }

    /// Turns the commands into a piece.
    pub(super) fn settle(&mut self) {
        if !self.text.is_empty() {
            let text = self.text.split().freeze();
            self.push(text);
        }
    }

    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.settle();
        self.written = self.end();
        self.remaining = 0;
        self.pieces.drain(..).collect()
    }

    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.remaining += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl Buf for Output {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.pieces).map(|(slice, piece)| *slice = IoSlice::new(piece));
        filled.count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "{count} octets written of {}", self.remaining);
        self.remaining -= count;
        self.written += count as u64;
        while let Some(first) = self.pieces.front_mut().filter(|_| count > 0) {
            let taken = count.min(first.len());
            first.advance(taken);
            count -= taken;
            if first.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_commands_come_in_order_however_they_are_written() {
        for step in 1..12 {
            let mut output = Output::default();
            output.text(b"one ");
            output.piece(Bytes::from_static(b"two "));
            output.piece(Bytes::new());
            output.text(b"three");
            output.settle();
            assert_eq!((output.remaining(), output.written(), output.end()), (13, 0, 13));
            let mut wire = Vec::new();
            while output.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let count = output.chunks_vectored(&mut slices);
                let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = step.min(all.len());
                wire.extend_from_slice(&all[..taken]);
                output.advance(taken);
            }
            assert_eq!((&wire[..], output.written()), (&b"one two three"[..], 13));
        }
    }
}
