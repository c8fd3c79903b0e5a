//! The outgoing message body: dot-stuffing for DATA, and whole lines always.

use bytes::Bytes;

use crate::scan::{At, CRLF_DOT, fix_newlines, is_clean};

/// Prepares a message for DATA: a dot before each line that starts with one, and a CRLF for every bare CR or LF. The
/// next server may treat bare ones as line ends where we did not ("SMTP smuggling").
///
/// A clean chunk passes unchanged; one that needs dots is cut into slices around them.
#[derive(Debug)]
pub struct Stuffer {
    at: At,
}

impl Default for Stuffer {
    fn default() -> Self {
        Self { at: At::LineStart }
    }
}

impl Stuffer {
    /// Takes the next chunk of the message and puts out its wire form.
    pub fn push(&mut self, mut chunk: Bytes, out: &mut impl FnMut(Bytes)) {
        if self.at == At::AfterCr && !chunk.is_empty() {
            if chunk[0] == b'\n' {
                out(chunk.split_to(1));
            } else {
                out(Bytes::from_static(b"\n"));
            }
            self.at = At::LineStart;
        }
        if !is_clean_text(&chunk) {
            chunk = fix_newlines(&chunk, false);
        }
        let Some(&last) = chunk.last() else { return };
        if self.at == At::LineStart && chunk[0] == b'.' {
            out(Bytes::from_static(b"."));
        }
        while let Some(found) = CRLF_DOT.find(&chunk) {
            out(chunk.split_to(found + 2));
            out(Bytes::from_static(b"."));
            // The dot itself goes with the next slice; it cannot be found again without the CRLF before it.
        }
        out(chunk);
        self.at = match last {
            b'\n' => At::LineStart,
            b'\r' => At::AfterCr,
            _ => At::Middle,
        };
    }

    /// Ends the message: completes its last line, then writes the end of data.
    pub fn finish(self, out: &mut impl FnMut(Bytes)) {
        out(Bytes::from_static(match self.at {
            At::LineStart => b".\r\n",
            At::Middle => b"\r\n.\r\n",
            At::AfterCr => b"\n.\r\n",
        }));
    }
}

/// True without bare newlines; NUL passes.
fn is_clean_text(bytes: &[u8]) -> bool {
    is_clean(bytes, false)
}

/// Prepares a message for BDAT: bare CR and LF become CRLF, as without BINARYMIME (RFC 3030 section 3) the message is
/// text there too. Returns the chunks to send, the given ones unless something had to be fixed.
pub(super) fn whole_lines(chunks: Vec<Bytes>) -> Vec<Bytes> {
    let seams_fit = chunks.windows(2).all(|pair| {
        let before = pair[0].last();
        let after = pair[1].first();
        before != Some(&b'\r') && after != Some(&b'\n')
    });
    let ends_open = chunks.last().and_then(|chunk| chunk.last()) == Some(&b'\r');
    if seams_fit && !ends_open && chunks.iter().all(|chunk| is_clean_text(chunk)) {
        return chunks;
    }
    let mut whole = fix_newlines(&chunks.concat(), false);
    if whole.last() == Some(&b'\r') {
        whole = [&whole[..], b"\n"].concat().into();
    }
    vec![whole]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chunks: &[&[u8]], expected: &[u8]) {
        let mut wire = Vec::new();
        let mut stuffer = Stuffer::default();
        for chunk in chunks {
            stuffer.push(Bytes::copy_from_slice(chunk), &mut |piece| wire.extend_from_slice(&piece));
        }
        stuffer.finish(&mut |piece| wire.extend_from_slice(&piece));
        assert_eq!(wire.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn dots_are_stuffed_at_line_starts_only() {
        check(&[], b".\r\n");
        check(&[b".\r\n"], b"..\r\n.\r\n");
        check(&[b"a.\r\n.b\r\n..\r\n"], b"a.\r\n..b\r\n...\r\n.\r\n");
        check(&[b"a\r\n", b".", b"\r", b"\n.", b"b"], b"a\r\n..\r\n..b\r\n.\r\n");
        check(&[b"a"], b"a\r\n.\r\n");
    }

    #[test]
    fn bare_newlines_become_whole_ones() {
        check(&[b"a\n.\nb\r.\rc"], b"a\r\n..\r\nb\r\n..\r\nc\r\n.\r\n");
        check(&[b"a\r", b".", b"\r"], b"a\r\n..\r\n.\r\n");
        check(&[b"\r", b"\r", b"\n", b"\n", b"."], b"\r\n\r\n\r\n..\r\n.\r\n");
    }

    #[test]
    fn clean_chunks_are_not_copied() {
        let chunk = Bytes::from_static(b"a: b\r\n\r\nc\r\n");
        let mut same = false;
        Stuffer::default().push(chunk.clone(), &mut |piece| same = piece.as_ptr() == chunk.as_ptr());
        assert!(same);
    }

    #[test]
    fn bdat_sends_whole_lines() {
        let lines = |chunks: &[&'static [u8]]| {
            whole_lines(chunks.iter().map(|c| Bytes::from_static(c)).collect()).concat().escape_ascii().to_string()
        };
        assert_eq!(lines(&[b"a\r\n", b".b\r", b"\n"]), "a\\r\\n.b\\r\\n");
        assert_eq!(lines(&[b"a\n", b"b\r"]), "a\\r\\nb\\r\\n");
        assert_eq!(lines(&[b"a\r", b"b"]), "a\\r\\nb");
    }
}
