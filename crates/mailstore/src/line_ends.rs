//! Converts the octets of a file to their wire form, piece by piece.

use memchr::memchr2_iter;

/// The conversion from a file's octets to the wire form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileForm {
    /// No conversion: a file of this server that was stored verbatim.
    Verbatim,
    /// An LF without a CR becomes CRLF, and NUL becomes 0x80 (as in Dovecot). Files of this server with LF line ends
    /// contain no CR; they contain NUL only where a client sent it, and then it is kept.
    Lines {
        /// NUL becomes 0x80.
        replaces_nul: bool,
    },
}

impl FileForm {
    /// Appends a converted piece of a file to `out`. `after_cr`: true if the octet before the piece is a CR; updated
    /// for the next piece.
    pub fn convert(self, piece: &[u8], after_cr: &mut bool, out: &mut Vec<u8>) {
        let Self::Lines { replaces_nul } = self else { return out.extend_from_slice(piece) };
        let mut from = 0;
        // A file of ours may have NULs: searching for another LF in their place passes them over.
        let other = if replaces_nul { 0 } else { b'\n' };
        for at in memchr2_iter(b'\n', other, piece) {
            out.extend_from_slice(&piece[from..at]);
            from = at + 1;
            let has_cr = if at == 0 { *after_cr } else { piece[at - 1] == b'\r' };
            match piece[at] {
                b'\n' if has_cr => out.push(b'\n'),
                b'\n' => out.extend_from_slice(b"\r\n"),
                _ => out.push(0x80),
            }
        }
        out.extend_from_slice(&piece[from..]);
        if let Some(last) = piece.last() {
            *after_cr = *last == b'\r';
        }
    }

    /// Octets that [`convert`](Self::convert) would append.
    pub fn converted_len(self, piece: &[u8], after_cr: &mut bool) -> u64 {
        let mut lone = 0;
        if self != Self::Verbatim {
            let has_cr = |at: usize| if at == 0 { *after_cr } else { piece[at - 1] == b'\r' };
            lone = memchr::memchr_iter(b'\n', piece).filter(|at| !has_cr(*at)).count();
        }
        if let Some(last) = piece.last() {
            *after_cr = *last == b'\r';
        }
        (piece.len() + lone) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn whole(form: FileForm, file: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        form.convert(file, &mut false, &mut out);
        out
    }

    #[test]
    fn lines_end_in_crlf_whatever_the_file_has() {
        let foreign = FileForm::Lines { replaces_nul: true };
        let check = |form, file: &[u8], expected: &[u8]| assert_eq!(whole(form, file), expected, "{file:?}");
        check(foreign, b"a\nb\r\n\n\r\r\n\0c\r", b"a\r\nb\r\n\r\n\r\r\n\x80c\r");
        check(foreign, b"\n", b"\r\n");
        check(foreign, b"", b"");
        check(FileForm::Lines { replaces_nul: false }, b"a\n\0\n", b"a\r\n\0\r\n");
        check(FileForm::Verbatim, b"a\n\0\r\n", b"a\n\0\r\n");
    }

    #[test]
    fn pieces_make_the_same_as_the_whole() {
        let files: [&[u8]; 4] = [b"a\r\n\r\nb\n\n", b"\r\r\n\n\0", b"\n", b"x\ry\r\n"];
        let forms = [true, false].map(|replaces_nul| FileForm::Lines { replaces_nul });
        for (file, form) in files.into_iter().flat_map(|file| forms.map(|form| (file, form))) {
            let expected = whole(form, file);
            for size in 1..=file.len() {
                let (mut out, mut after_cr, mut counted_after_cr, mut counted) = (Vec::new(), false, false, 0);
                for piece in file.chunks(size) {
                    form.convert(piece, &mut after_cr, &mut out);
                    counted += form.converted_len(piece, &mut counted_after_cr);
                }
                assert_eq!((&out, counted), (&expected, expected.len() as u64), "{file:?} in pieces of {size}");
            }
        }
    }
}
