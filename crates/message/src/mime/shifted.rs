//! Seven-bit charsets with shifts between alphabets: UTF-7, the ISO-2022 encodings of mail, HZ.

use encoding_rs::{EUC_JP, EUC_KR, Encoding, GBK};

use super::transfer::base64_value;

/// Decodes UTF-7 (RFC 2152). A shift ends at the first octet outside base64; a `-` there belongs to it.
pub(super) fn utf7(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = memchr::memchr(b'+', rest) {
        push_octets(&rest[..at], &mut text);
        rest = &rest[at + 1..];
        let end = rest.iter().position(|&byte| base64_value(byte).is_none()).unwrap_or(rest.len());
        let is_closed = rest.get(end) == Some(&b'-');
        if end == 0 {
            text.push('+');
        } else {
            push_utf16(&rest[..end], &mut text);
        }
        rest = &rest[end + usize::from(is_closed)..];
    }
    push_octets(rest, &mut text);
    text
}

/// Appends unshifted octets: ASCII, or others that should not be there.
fn push_octets(bytes: &[u8], text: &mut String) {
    text.push_str(&String::from_utf8_lossy(bytes));
}

fn push_utf16(encoded: &[u8], text: &mut String) {
    let mut bits = 0u32;
    let mut count = 0;
    let mut units = Vec::with_capacity(encoded.len() / 2);
    for value in encoded.iter().filter_map(|&byte| base64_value(byte)) {
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 16 {
            count -= 16;
            units.push((bits >> count) as u16);
            bits &= (1 << count) - 1;
        }
    }
    text.extend(char::decode_utf16(units).map(|unit| unit.unwrap_or('\u{fffd}')));
}

/// Decodes HZ (RFC 1843): `~{` and `~}` around GB 2312. A line end closes every shift.
pub(super) fn hz(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut pairs = Vec::new();
    let mut is_shifted = false;
    let mut octets = bytes.iter().copied().peekable();
    while let Some(octet) = octets.next() {
        let escape =
            if octet == b'~' { octets.next_if(|next| matches!(next, b'{' | b'}' | b'~' | b'\n')) } else { None };
        match (escape, octet) {
            (Some(b'{'), _) => is_shifted = true,
            (None, b'\n') | (Some(b'}'), _) => {
                flush(&mut pairs, GBK, &mut text);
                is_shifted = false;
                if escape.is_none() {
                    text.push('\n');
                }
            }
            (Some(b'~'), _) => text.push('~'),
            (Some(_), _) => {}
            (None, 0x21..0x7f) if is_shifted => pairs.push(octet | 0x80),
            (None, _) => {
                flush(&mut pairs, GBK, &mut text);
                text.push(char::from(octet));
            }
        }
    }
    flush(&mut pairs, GBK, &mut text);
    text
}

fn flush(pairs: &mut Vec<u8>, encoding: &'static Encoding, text: &mut String) {
    if !pairs.is_empty() {
        text.push_str(&encoding.decode_without_bom_handling(pairs).0);
        pairs.clear();
    }
}

/// The character set of the octets 0x21 to 0x7e.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    Ascii,
    /// Half-width katakana, one octet each.
    Katakana,
    Jis0208,
    Jis0212,
    Gb2312,
    KsX1001,
    /// A two-octet set without a table here.
    Unknown,
}

impl Set {
    /// The set of an escape, true if SO shifts to it, and the escape's length: RFC 1468, 1554, 1557 and 1922.
    fn of(escape: &[u8]) -> Option<(Self, bool, usize)> {
        let (set, shifts, len) = match escape {
            [b'(', b'B' | b'J', ..] => (Self::Ascii, false, 2),
            [b'(', b'I', ..] => (Self::Katakana, false, 2),
            [b')', b'I', ..] => (Self::Katakana, true, 2),
            [b'(', _, ..] => (Self::Ascii, false, 2),
            [b'$', b'@' | b'B', ..] => (Self::Jis0208, false, 2),
            [b'$', b'A', ..] => (Self::Gb2312, false, 2),
            [b'$', b'(', b'@' | b'B' | b'O' | b'Q', ..] => (Self::Jis0208, false, 3),
            [b'$', b'(', b'D', ..] => (Self::Jis0212, false, 3),
            [b'$', b'(', b'A', ..] => (Self::Gb2312, false, 3),
            [b'$', b'(', b'C', ..] => (Self::KsX1001, false, 3),
            [b'$', b')', b'A', ..] => (Self::Gb2312, true, 3),
            [b'$', b')', b'C', ..] => (Self::KsX1001, true, 3),
            [b'$', b'(', _, ..] => (Self::Unknown, false, 3),
            [b'$', b')' | b'*', _, ..] => (Self::Unknown, true, 3),
            _ => return None,
        };
        Some((set, shifts, len))
    }

    fn flush(self, octets: &mut Vec<u8>, text: &mut String) {
        let encoding = match self {
            Self::Ascii => {
                text.push_str(&String::from_utf8_lossy(octets));
                octets.clear();
                return;
            }
            Self::Unknown => {
                text.extend(std::iter::repeat_n('\u{fffd}', octets.len().div_ceil(2)));
                octets.clear();
                return;
            }
            Self::Katakana => {
                text.extend(octets.iter().map(|&octet| match octet {
                    0x21..0x60 => char::from_u32(0xff61 + u32::from(octet) - 0x21).unwrap_or('\u{fffd}'),
                    _ => '\u{fffd}',
                }));
                octets.clear();
                return;
            }
            Self::Jis0208 | Self::Jis0212 => EUC_JP,
            Self::Gb2312 => GBK,
            Self::KsX1001 => EUC_KR,
        };
        octets.iter_mut().for_each(|octet| *octet |= 0x80);
        if self == Self::Jis0212 {
            *octets = octets.chunks(2).flat_map(|pair| [&[0x8f], pair].concat()).collect();
        }
        flush(octets, encoding, text);
    }
}

/// Decodes ISO-2022-JP with its extensions, ISO-2022-KR and ISO-2022-CN: their escapes do not conflict. A line end
/// closes every shift.
pub(super) fn iso_2022(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    // The set in use, the set for SO, and octets yet to be decoded.
    let mut direct = Set::Ascii;
    let mut other = Set::KsX1001;
    let mut is_shifted = false;
    let mut run = Vec::new();
    let mut rest = bytes;
    while let Some((&octet, after)) = rest.split_first() {
        rest = after;
        let set = if is_shifted { other } else { direct };
        match octet {
            0x1b => {
                set.flush(&mut run, &mut text);
                if let Some((named, shifts, len)) = Set::of(rest) {
                    *(if shifts { &mut other } else { &mut direct }) = named;
                    rest = &rest[len..];
                }
            }
            0x0e | 0x0f => {
                set.flush(&mut run, &mut text);
                is_shifted = octet == 0x0e;
            }
            b'\n' => {
                set.flush(&mut run, &mut text);
                text.push('\n');
                (direct, is_shifted) = (Set::Ascii, false);
            }
            0x21..0x7f => run.push(octet),
            _ => {
                set.flush(&mut run, &mut text);
                text.push(char::from(octet));
            }
        }
    }
    let set = if is_shifted { other } else { direct };
    set.flush(&mut run, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf7_shifts_and_returns() {
        let check = |bytes: &[u8], expected: &str| assert_eq!(utf7(bytes), expected);
        check(b"Hi Mom -+Jjo--!", "Hi Mom -\u{263a}-!");
        check(b"A+ImIDkQ.", "A\u{2262}\u{391}.");
        check(b"+ZeVnLIqe-", "日本語");
        check(b"1 +- 1 = 2", "1 + 1 = 2");
        check(b"Gr+APwA3w-e", "Grüße");
        check(b"+AGEAYg then", "ab then");
        check(b"+2AA-", "\u{fffd}");
        check(b"end+", "end+");
        check(b"a + b", "a + b");
    }

    #[test]
    fn iso_2022_of_three_languages() {
        let check = |bytes: &[u8], expected: &str| assert_eq!(iso_2022(bytes), expected);
        check(b"\x1b$BF|K\\8l\x1b(B text", "日本語 text");
        check(b"\x1b$BF|K\\\nplain\n", "日本\nplain\n");
        check(b"\x1b$)C\x0e\x47\x51\x31\x5b\x0f ok", "한글 ok");
        check(b"\x1b$)A\x0eVPND\x0f ok", "中文 ok");
        check(b"\x1b(I1\x1b(B", "ｱ");
        check(b"\x1b$(D\x30\x21\x1b(B", "丂");
        check(b"\x1b$(C\x47\x51\x1b(B", "한");
        check(b"\x1b$*H!!\x0f", "!!");
        check(b"\x1b", "");
        check(b"\x1b$B0", "\u{fffd}");
    }

    #[test]
    fn hz_has_tildes_and_lines() {
        let check = |bytes: &[u8], expected: &str| assert_eq!(hz(bytes), expected);
        check(b"This ~{VPND~}.", "This 中文.");
        check(b"~~ ~{VP\nplain", "~ 中\nplain");
        check(b"a~\nb ~x ~", "ab ~x ~");
    }
}
