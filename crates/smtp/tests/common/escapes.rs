//! Escapes of octets in traces and matrices.

/// Decodes `\r`, `\n`, `\t`, `\0`, `\\` and `\xNN`; keeps everything else.
pub fn unescape(text: &str) -> Vec<u8> {
    let mut octets = Vec::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('\\') {
        octets.extend_from_slice(before.as_bytes());
        let (octet, used) = match behind.as_bytes().first() {
            Some(b'r') => (b'\r', 1),
            Some(b'n') => (b'\n', 1),
            Some(b't') => (b'\t', 1),
            Some(b'0') => (0, 1),
            Some(b'\\') => (b'\\', 1),
            Some(b'x') => (u8::from_str_radix(&behind[1..3], 16).unwrap(), 3),
            other => panic!("escape {other:?} in {text}"),
        };
        octets.push(octet);
        rest = &behind[used..];
    }
    octets.extend_from_slice(rest.as_bytes());
    octets
}
