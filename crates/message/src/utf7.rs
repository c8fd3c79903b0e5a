//! Modified UTF-7: the encoding of mailbox names in IMAP, and of folders in many Maildirs (RFC 3501 section 5.1.3).

/// Encodes a name. Printable ASCII stays, `&` becomes `&-`, and the rest is UTF-16 in base64 between `&` and `-`.
///
/// ```
/// assert_eq!(posthaste_message::utf7::encode("Entwürfe & more"), "Entw&APw-rfe &- more");
/// ```
pub fn encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut shifted = Shifted::default();
    for character in name.chars() {
        match character {
            ' '..='~' => {
                shifted.close(&mut out);
                out.push(character);
                if character == '&' {
                    out.push('-');
                }
            }
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    shifted.push(*unit, &mut out);
                }
            }
        }
    }
    shifted.close(&mut out);
    out
}

/// Decodes a name. Every name has exactly one encoding: any other spelling than that of [`encode`] is refused, since
/// two spellings of one name could evade each other's checks.
///
/// # Errors
/// [`Utf7Error`]: octets outside printable ASCII, an unclosed or needless shift, base64 that is not UTF-16, lone
/// surrogates, printable ASCII within a shift, bits left over.
pub fn decode(text: &[u8]) -> Result<String, Utf7Error> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((&octet, after)) = rest.split_first() {
        match octet {
            b'&' => {
                let end = memchr::memchr(b'-', after).ok_or(Utf7Error)?;
                let encoded = &after[..end];
                let behind = &after[end + 1..];
                if encoded.is_empty() {
                    out.push('&');
                } else {
                    unshift(encoded, &mut out)?;
                    // Two shifts without text in between are one; `&-` after a shift is an ampersand.
                    if behind.first() == Some(&b'&') && behind.get(1) != Some(&b'-') {
                        return Err(Utf7Error);
                    }
                }
                rest = behind;
            }
            b' '..=b'~' => {
                out.push(char::from(octet));
                rest = after;
            }
            _ => return Err(Utf7Error),
        }
    }
    Ok(out)
}

/// A mailbox name that is not modified UTF-7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utf7Error;

impl std::error::Error for Utf7Error {}

impl std::fmt::Display for Utf7Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not modified UTF-7")
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+,";

/// An open shift: bits of an incomplete digit.
#[derive(Default)]
struct Shifted {
    is_open: bool,
    bits: u32,
    count: u32,
}

impl Shifted {
    fn push(&mut self, unit: u16, out: &mut String) {
        if !self.is_open {
            out.push('&');
            self.is_open = true;
        }
        self.bits = self.bits << 16 | u32::from(unit);
        self.count += 16;
        while self.count >= 6 {
            self.count -= 6;
            self.digit(self.bits >> self.count, out);
        }
        self.bits &= (1 << self.count) - 1;
    }

    fn close(&mut self, out: &mut String) {
        if !self.is_open {
            return;
        }
        if self.count > 0 {
            self.digit(self.bits << (6 - self.count), out);
        }
        out.push('-');
        *self = Self::default();
    }

    fn digit(&self, value: u32, out: &mut String) {
        out.push(char::from(ALPHABET[value as usize & 63]));
    }
}

fn unshift(encoded: &[u8], out: &mut String) -> Result<(), Utf7Error> {
    let mut bits = 0u32;
    let mut count = 0u32;
    let mut units = Vec::with_capacity(encoded.len() * 6 / 16);
    for &digit in encoded {
        bits = bits << 6 | u32::from(value_of(digit).ok_or(Utf7Error)?);
        count += 6;
        if count >= 16 {
            count -= 16;
            units.push((bits >> count & 0xffff) as u16);
            bits &= (1 << count) - 1;
        }
    }
    // A whole needless digit, or bits that are not padding.
    if count >= 6 || bits != 0 {
        return Err(Utf7Error);
    }
    for character in char::decode_utf16(units) {
        match character {
            Ok(' '..='~') | Err(_) => return Err(Utf7Error),
            Ok(character) => out.push(character),
        }
    }
    Ok(())
}

fn value_of(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b',' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, encoded: &str) {
        assert_eq!(encode(name), encoded);
        assert_eq!(decode(encoded.as_bytes()).as_deref(), Ok(name));
    }

    #[test]
    fn names_of_the_standard_are_encoded() {
        check("~peter/mail/台北/日本語", "~peter/mail/&U,BTFw-/&ZeVnLIqe-");
        check("Entwürfe", "Entw&APw-rfe");
        check("", "");
        check("a&b", "a&-b");
        check("&", "&-");
        check("ü&", "&APw-&-");
        check("\u{1f4e7}", "&2D3c5w-");
        check("a\r\nb\0", "a&AA0ACg-b&AAA-");
        check("Отправленные", "&BB4EQgQ,BEAEMAQyBDsENQQ9BD0ESwQ1-");
    }

    #[test]
    fn hostile_encodings_are_refused() {
        for text in [
            "&",
            "&AP",
            "a&APw",
            // Printable ASCII within a shift: `a` and `&`.
            "&AGE-",
            "&ACY-",
            // Lone surrogates, in both orders.
            "&2D0-",
            "&3Oc-",
            "&3OfYPQ-",
            // Two shifts that are one.
            "&APw-&APw-",
            // Bits left over, a digit left over, too few digits.
            "&APx-",
            "&APwA-",
            "&A-",
            // Other base64.
            "&AP/-",
            "&APw=-",
            "&AP w-",
            "a\u{7f}",
            "caf\u{e9}",
            "a\tb",
        ] {
            assert_eq!(decode(text.as_bytes()), Err(Utf7Error), "{text:?}");
        }
        assert_eq!(decode(&b"&".repeat(100_000)), Err(Utf7Error));
    }
}
