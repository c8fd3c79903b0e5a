//! Streaming decoders of transfer encodings.

use super::transfer::{Encoding, base64_value, hex};

/// Decodes a transfer encoding piece by piece, however the body is cut. Holds at most [`BLANKS_MAX`] octets.
///
/// The result is that of [`Encoding::decode`], except that octets skipped there in base64 are an error here: a reader
/// of a file cannot use a damaged one.
#[derive(Debug, Clone)]
pub struct TransferDecoder(Form);

/// Most blanks at the end of a quoted-printable line.
pub const BLANKS_MAX: usize = 64 << 10;

/// The body is invalid in its encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokenEncoding;

#[derive(Debug, Clone)]
enum Form {
    Identity,
    Base64 { held: u32, count: u32 },
    QuotedPrintable(Quoted),
}

#[derive(Debug, Clone, Default)]
struct Quoted {
    /// Blanks that are kept if more follows on the line.
    blanks: Vec<u8>,
    escape: Escape,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    /// After `=`.
    Begun,
    /// After `=` and this digit.
    Half(u8),
}

impl TransferDecoder {
    /// A decoder; `None` for an encoding that only [`Encoding::decode`] supports.
    pub fn new(encoding: Encoding) -> Option<Self> {
        Some(Self(match encoding {
            Encoding::Identity => Form::Identity,
            Encoding::Base64 => Form::Base64 { held: 0, count: 0 },
            Encoding::QuotedPrintable => Form::QuotedPrintable(Quoted::default()),
            Encoding::Uuencode => return None,
        }))
    }

    /// Appends the octets of the next piece to `out`.
    ///
    /// # Errors
    /// An octet outside base64, or a line that ends in more than [`BLANKS_MAX`] blanks.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BrokenEncoding> {
        match &mut self.0 {
            Form::Identity => out.extend_from_slice(piece),
            Form::Base64 { held, count } => {
                for &octet in piece {
                    match base64_value(octet) {
                        Some(value) => {
                            *held = *held << 6 | u32::from(value);
                            *count += 6;
                            if *count >= 8 {
                                *count -= 8;
                                out.push((*held >> *count) as u8);
                                *held &= (1 << *count) - 1;
                            }
                        }
                        None if octet == b'=' => (*held, *count) = (0, 0),
                        None if matches!(octet, b'\r' | b'\n' | b' ' | b'\t') => {}
                        None => return Err(BrokenEncoding),
                    }
                }
            }
            Form::QuotedPrintable(quoted) => quoted.push(piece, out)?,
        }
        Ok(())
    }

    /// Appends the held octets at the end of the body.
    pub fn finish(self, out: &mut Vec<u8>) {
        if let Form::QuotedPrintable(mut quoted) = self.0 {
            match quoted.escape {
                // A soft line break.
                Escape::Begun if quoted.blanks.is_empty() => {}
                _ => quoted.settle(out),
            }
        }
    }
}

impl Quoted {
    fn push(&mut self, mut piece: &[u8], out: &mut Vec<u8>) -> Result<(), BrokenEncoding> {
        while let Some((&octet, rest)) = piece.split_first() {
            piece = rest;
            match octet {
                b'\n' => self.end_line(out),
                _ if octet.is_ascii_whitespace() => {
                    self.give_up_half(out);
                    if self.blanks.len() >= BLANKS_MAX {
                        return Err(BrokenEncoding);
                    }
                    self.blanks.push(octet);
                }
                b'=' => {
                    self.settle(out);
                    self.escape = Escape::Begun;
                }
                _ => match (self.escape, hex(octet)) {
                    (Escape::Begun, Some(_)) if self.blanks.is_empty() => self.escape = Escape::Half(octet),
                    (Escape::Half(first), Some(low)) => {
                        out.push(hex(first).unwrap_or_default() << 4 | low);
                        self.escape = Escape::None;
                    }
                    _ => {
                        self.settle(out);
                        out.push(octet);
                        // The rest of the line is mostly plain.
                        let is_plain = |octet: &u8| *octet != b'=' && !octet.is_ascii_whitespace();
                        let plain = rest.iter().position(|octet| !is_plain(octet)).unwrap_or(rest.len());
                        out.extend_from_slice(&rest[..plain]);
                        piece = &rest[plain..];
                    }
                },
            }
        }
        Ok(())
    }

    /// Drops blanks before the line end (RFC 2045 section 6.7 rule 3), and the line end after `=`.
    fn end_line(&mut self, out: &mut Vec<u8>) {
        let is_soft = self.escape == Escape::Begun;
        let line_end: &[u8] = if self.blanks.last() == Some(&b'\r') { b"\r\n" } else { b"\n" };
        self.blanks.clear();
        if is_soft {
            self.escape = Escape::None;
            return;
        }
        self.settle(out);
        out.extend_from_slice(line_end);
    }

    /// Keeps an invalid escape, and blanks within the line, unchanged.
    fn settle(&mut self, out: &mut Vec<u8>) {
        match std::mem::take(&mut self.escape) {
            Escape::None => {}
            Escape::Begun => out.push(b'='),
            Escape::Half(first) => out.extend_from_slice(&[b'=', first]),
        }
        out.append(&mut self.blanks);
    }

    fn give_up_half(&mut self, out: &mut Vec<u8>) {
        if matches!(self.escape, Escape::Half(_)) {
            self.settle(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(encoding: Encoding, body: &[u8], piece: usize) -> Result<Vec<u8>, BrokenEncoding> {
        let (mut decoder, mut out) = (TransferDecoder::new(encoding).unwrap(), Vec::new());
        for octets in body.chunks(piece) {
            decoder.push(octets, &mut out)?;
        }
        decoder.finish(&mut out);
        Ok(out)
    }

    #[test]
    fn pieces_of_any_size_decode_alike() {
        for (encoding, body) in [
            (Encoding::Base64, &b"SGVs bG8g\r\n  d29y\tbGQ=\r\nIQ"[..]),
            (Encoding::Base64, b"YQ==\nYg==\n"),
            (Encoding::Base64, b"aGVs\nbG\n8h\nS"),
            (Encoding::Base64, b"==="),
            (Encoding::QuotedPrintable, b"caf=C3=a9 =\r\nau lait  \r\nend"),
            (Encoding::QuotedPrintable, b"a = b =3 =ZZ =3D == =4= =\t=41 =4 1\n=4\n= x\n"),
            (Encoding::QuotedPrintable, b"soft =  \nline"),
            (Encoding::QuotedPrintable, b"end="),
            (Encoding::QuotedPrintable, b"end=\r"),
            (Encoding::QuotedPrintable, b"end=4"),
            (Encoding::QuotedPrintable, b"end= \t"),
            (Encoding::QuotedPrintable, b"trailing \n \n\r\r\n\x0c\r\nx\t\n"),
            (Encoding::QuotedPrintable, b"raw \xe9\0 \n\n\r\n  "),
            (Encoding::Identity, b"as = it \r\n stands"),
        ] {
            let whole = encoding.decode(body);
            for piece in 1..=body.len() {
                let found = decode(encoding, body, piece).unwrap();
                assert_eq!(found.escape_ascii().to_string(), whole.escape_ascii().to_string(), "{encoding:?} {piece}");
            }
        }
    }

    #[test]
    fn octets_that_base64_does_not_have_are_an_error() {
        for broken in [&b"SGVs!bG8g"[..], b"aGVs\nbG8h\n____\n", b"\xff", b"aGVs\x0c", b"[removed]"] {
            assert_eq!(decode(Encoding::Base64, broken, 1), Err(BrokenEncoding), "{}", broken.escape_ascii());
        }
        assert!(TransferDecoder::new(Encoding::Uuencode).is_none());
    }

    #[test]
    fn blanks_that_are_held_have_a_bound() {
        let line = |blanks: usize| [&b" ".repeat(blanks)[..], b"x"].concat();
        assert_eq!(decode(Encoding::QuotedPrintable, &line(BLANKS_MAX), 1000), Ok(line(BLANKS_MAX)));
        assert_eq!(decode(Encoding::QuotedPrintable, &line(BLANKS_MAX + 1), 1000), Err(BrokenEncoding));
    }
}
