//! Tokens of answers (RFC 3501 section 9).

/// Longer strings are sent as literals, so that a single value does not make a line long.
const QUOTED_BYTES_MAX: usize = 1000;

/// `string`: quoted if possible, otherwise a literal with the octets unchanged.
pub(crate) fn string(out: &mut Vec<u8>, text: &[u8]) {
    if text.len() <= QUOTED_BYTES_MAX && text.iter().all(|octet| (b' '..=b'~').contains(octet)) {
        quoted(out, text);
        return;
    }
    out.extend_from_slice(format!("{{{}}}\r\n", text.len()).as_bytes());
    // A literal has no NUL (RFC 3501 section 4.3); a message shows it as 0x80, too.
    out.extend(text.iter().map(|&octet| if octet == 0 { 0x80 } else { octet }));
}

fn quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &octet in text {
        if matches!(octet, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(octet);
    }
    out.push(b'"');
}

/// Writes a number. An answer can have a hundred thousand numbers, where `format!` would take longer than the search.
pub(crate) fn number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A string of IMAP4rev2: quoted, unchanged.
pub(crate) fn utf8(out: &mut Vec<u8>, text: &str) {
    if text.len() <= QUOTED_BYTES_MAX && !text.contains(|letter: char| letter.is_control()) {
        quoted(out, text.as_bytes())
    } else {
        string(out, text.as_bytes())
    }
}

/// A mailbox name in modified UTF-7.
pub(crate) fn mailbox(out: &mut Vec<u8>, name: &str) {
    string(out, posthaste_message::utf7::encode(name).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_digits() {
        for wanted in [0, 1, 9, 10, 99, 100, 4_294_967_295, u64::MAX - 1, u64::MAX] {
            let mut out = b"UID ".to_vec();
            number(&mut out, wanted);
            assert_eq!(out, format!("UID {wanted}").as_bytes());
        }
    }

    #[test]
    fn strings_are_quoted_where_they_can_be() {
        let written = |text: &[u8]| {
            let mut out = Vec::new();
            string(&mut out, text);
            out
        };
        assert_eq!(written(b"a \"b\" \\"), br#""a \"b\" \\""#);
        assert_eq!(written(b""), b"\"\"");
        assert_eq!(written(b"caf\xe9"), b"{4}\r\ncaf\xe9");
        assert_eq!(written(b"a\0\r\n"), b"{4}\r\na\x80\r\n");
        assert!(written(&[b'x'; 1001]).starts_with(b"{1001}\r\nx"));
    }
}
