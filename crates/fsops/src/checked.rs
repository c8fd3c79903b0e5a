//! Text of a small file with its checksum in the last line: without one a flipped digit would go unnoticed.

/// Appends a line with the CRC-32C of the text: `crc32c XXXXXXXX`.
pub fn with_checksum(text: String) -> String {
    let line = line_of(&text);
    text + &line
}

/// The text given to [`with_checksum`]. `None` if it is damaged.
pub fn checked(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (content, line) = text.split_at_checked(text.len().checked_sub(LINE_BYTES)?)?;
    // Compared as text: digits in capitals are a change, too.
    (line == line_of(content)).then_some(content)
}

fn line_of(text: &str) -> String {
    format!("{LABEL}{:08x}\n", crc32c::crc32c(text.as_bytes()))
}

const LABEL: &str = "crc32c ";
/// Bytes of the last line: label, digits and line end.
const LINE_BYTES: usize = LABEL.len() + 8 + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_changed_or_cut_off_anywhere_is_none() {
        for text in ["", "{\"file\":1}\n", "ü\nno line end"] {
            let whole = with_checksum(text.to_owned()).into_bytes();
            assert_eq!(checked(&whole), Some(text));
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(checked(&bytes), None, "{text:?} bit {bit}");
            }
            (0..whole.len()).for_each(|len| assert_eq!(checked(&whole[..len]), None, "{text:?} {len}"));
            assert_eq!(checked(&[&whole[..], b"\n"].concat()), None);
        }
        assert!(checked(&[0; 64]).is_none() && checked("ü".repeat(8).as_bytes()).is_none());
    }
}
