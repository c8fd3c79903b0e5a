//! Recognises a message of an mbox file after a mail program has added its own fields.

use aws_lc_rs::digest::{Context, SHA256};

/// Fields that mail programs write and change in messages of an mbox file.
const PROGRAM_FIELDS: [&str; 8] = [
    "content-length",
    "lines",
    "x-uid",
    "x-imap",
    "x-imapbase",
    "x-mozilla-status",
    "x-mozilla-status2",
    "x-mozilla-keys",
];
/// Octets at the start of a line that suffice to recognise the field.
const START_BYTES: usize = 24;

/// Digest of a message without such fields.
pub struct MboxDigest {
    digest: Context,
    in_header: bool,
    /// Start of a header line, until its field is recognised.
    held: Option<Vec<u8>>,
    passes_over: bool,
}

impl Default for MboxDigest {
    fn default() -> Self {
        Self { digest: Context::new(&SHA256), in_header: true, held: Some(Vec::new()), passes_over: false }
    }
}

impl MboxDigest {
    /// Adds the next octets, cut anywhere.
    pub fn push(&mut self, mut octets: &[u8]) {
        while self.in_header && !octets.is_empty() {
            let len = octets.iter().position(|octet| *octet == b'\n').map_or(octets.len(), |at| at + 1);
            let (line, rest) = octets.split_at(len);
            self.push_line(line);
            octets = rest;
        }
        self.digest.update(octets);
    }

    /// Adds octets of one line of the header.
    fn push_line(&mut self, part: &[u8]) {
        let ends = part.ends_with(b"\n");
        match &mut self.held {
            Some(held) => {
                held.extend_from_slice(part);
                if ends || held.len() >= START_BYTES {
                    self.decide();
                }
            }
            None if !self.passes_over => self.digest.update(part),
            None => {}
        }
        if ends {
            self.held = Some(Vec::new());
        }
    }

    fn decide(&mut self) {
        let line = self.held.take().unwrap_or_default();
        let goes_on = line.starts_with(b" ") || line.starts_with(b"\t");
        if !goes_on {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            self.passes_over = name.len() < line.len()
                && PROGRAM_FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field.as_bytes()));
        }
        self.in_header = !matches!(&line[..], b"\n" | b"\r\n");
        if !self.passes_over {
            self.digest.update(&line);
        }
    }

    /// Returns the SHA-256.
    pub fn end(mut self) -> Vec<u8> {
        if self.in_header && self.held.as_ref().is_some_and(|held| !held.is_empty()) {
            self.decide();
        }
        self.digest.finish().as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &str, expected: &str) {
        let expected = aws_lc_rs::digest::digest(&SHA256, expected.as_bytes());
        for cut in 0..=message.len() {
            let mut digest = MboxDigest::default();
            digest.push(&message.as_bytes()[..cut]);
            digest.push(&message.as_bytes()[cut..]);
            assert_eq!(digest.end(), expected.as_ref(), "{message:?} {cut}");
        }
    }

    #[test]
    fn fields_of_mail_programs_are_left_out_of_headers_alone() {
        for field in PROGRAM_FIELDS {
            let upper = field.to_uppercase();
            check(
                &format!("Subject: a\r\n{upper}: 1\r\n 2\r\n\t3\r\nTo: b\r\n c\r\n\r\n{field}: 1\r\n"),
                &format!("Subject: a\r\nTo: b\r\n c\r\n\r\n{field}: 1\r\n"),
            );
            check(&format!("{field}: 1"), "");
            check(&format!("{field}s: 1\r\n\r\n"), &format!("{field}s: 1\r\n\r\n"));
            check(&format!("{field}\r\n"), &format!("{field}\r\n"));
        }
        check("", "");
        check("\r\nLines: 1\r\n", "\r\nLines: 1\r\n");
        check("a field that is long enough to be cut: b", "a field that is long enough to be cut: b");
    }
}
