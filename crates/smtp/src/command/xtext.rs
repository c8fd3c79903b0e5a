//! xtext (RFC 3461 section 4), for octets that a parameter cannot hold directly.

pub(super) fn checked_xtext(value: &str) -> Option<String> {
    (!value.is_empty() && is_xtext(value)).then(|| value.to_owned())
}

/// True if `text` is xtext (RFC 3461 section 4): printable ASCII except `+` and `=`, or `+` and two upper-case hex
/// digits.
pub fn is_xtext(text: &str) -> bool {
    let mut bytes = text.bytes();
    let hex = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
    while let Some(byte) = bytes.next() {
        let fits = match byte {
            b'+' => hex(bytes.next()) && hex(bytes.next()),
            b'=' => false,
            _ => byte.is_ascii_graphic(),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// Encodes bytes as xtext.
pub fn encode_xtext(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'+' | b'=' => out.push_str(&format!("+{byte:02X}")),
            _ if byte.is_ascii_graphic() => out.push(char::from(byte)),
            _ => out.push_str(&format!("+{byte:02X}")),
        }
    }
    out
}

/// Decodes xtext; `None` when it is not xtext.
pub fn decode_xtext(text: &str) -> Option<Vec<u8>> {
    if !is_xtext(text) {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('+') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        out.push(u8::from_str_radix(&rest[at + 1..at + 3], 16).ok()?);
        rest = &rest[at + 3..];
    }
    out.extend_from_slice(rest.as_bytes());
    Some(out)
}
