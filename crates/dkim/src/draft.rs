//! A message in transit: keeps only what a signature needs.

use aws_lc_rs::digest::Digest;

use crate::canon::{BodyHasher, relaxed_field};

/// Number of times that a signature lists a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signed {
    /// One more than the number of occurrences, so that nobody can add one (RFC 6376 section 8.15).
    Always,
    /// Oversigned only if present: a list may add its own.
    OnceMoreIfThere,
    /// Signed once for each occurrence.
    IfThere,
}

/// The signed fields, in the order of `h=`. Fields that change on the way are left out: Resent-*, Received,
/// Return-Path, Authentication-Results, Bcc, Delivered-To.
const FIELDS: [(&str, Signed); 19] = [
    ("From", Signed::Always),
    ("To", Signed::Always),
    ("Cc", Signed::Always),
    ("Subject", Signed::Always),
    ("Date", Signed::Always),
    ("Message-ID", Signed::Always),
    ("Reply-To", Signed::Always),
    ("Sender", Signed::OnceMoreIfThere),
    ("MIME-Version", Signed::OnceMoreIfThere),
    ("Content-Type", Signed::OnceMoreIfThere),
    ("List-Id", Signed::OnceMoreIfThere),
    ("List-Unsubscribe", Signed::OnceMoreIfThere),
    ("List-Unsubscribe-Post", Signed::OnceMoreIfThere),
    ("List-Post", Signed::OnceMoreIfThere),
    ("In-Reply-To", Signed::IfThere),
    ("References", Signed::IfThere),
    ("Content-Transfer-Encoding", Signed::IfThere),
    ("Auto-Submitted", Signed::IfThere),
    ("Feedback-ID", Signed::IfThere),
];

/// Maximum octets of signed fields in a draft.
pub const HEADER_BYTES_MAX: usize = 256 << 10;
/// Signed fields of a message at most: `h=` names each.
pub const SIGNED_FIELDS_MAX: usize = 200;

/// Why a message cannot be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// More than [`HEADER_BYTES_MAX`], or an incomplete field.
    #[error("its header is too large to be signed")]
    TooLarge,
    /// More than [`SIGNED_FIELDS_MAX`].
    #[error("its header has too many fields to be signed")]
    TooMany,
}

/// A message as its signatures see it.
#[derive(Debug, Default)]
pub struct Draft {
    /// Indexes of [`FIELDS`] and relaxed forms, in the order of the message.
    fields: Vec<(u8, Vec<u8>)>,
    bytes: usize,
    failed: Option<DraftError>,
    body: BodyHasher,
}

/// True for a field that is signed, by its name in any case.
pub fn is_signed(name: &[u8]) -> bool {
    index_of(name).is_some()
}

fn index_of(name: &[u8]) -> Option<u8> {
    let at = FIELDS.iter().position(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))?;
    Some(at as u8)
}

impl Draft {
    /// Takes the next field of the header, all of its lines; keeps it if it will be signed.
    pub fn field(&mut self, field: &[u8]) {
        let colon = field.iter().position(|octet| *octet == b':').unwrap_or(field.len());
        let Some(index) = index_of(field[..colon].trim_ascii_end()) else { return };
        if colon == field.len() || self.failed.is_some() {
            return;
        }
        let relaxed = relaxed_field(field);
        self.bytes += relaxed.len();
        if self.bytes > HEADER_BYTES_MAX {
            return self.fail(DraftError::TooLarge);
        }
        if self.fields.len() == SIGNED_FIELDS_MAX {
            return self.fail(DraftError::TooMany);
        }
        self.fields.push((index, relaxed));
    }

    /// Notes a signed field that is too large to keep: the message gets no signature.
    pub fn field_too_large(&mut self) {
        self.fail(DraftError::TooLarge);
    }

    fn fail(&mut self, error: DraftError) {
        self.failed = Some(error);
        self.fields = Vec::new();
    }

    /// Takes the next octets of the body, which begins after the empty line.
    pub fn body(&mut self, piece: &[u8]) {
        self.body.push(piece);
    }

    /// The names of `h=` in their order.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for (index, (name, signed)) in FIELDS.iter().enumerate() {
            let there = self.count(index);
            let more = match signed {
                Signed::Always => 1,
                Signed::OnceMoreIfThere => usize::from(there > 0),
                Signed::IfThere => 0,
            };
            names.extend(std::iter::repeat_n(*name, there + more));
        }
        names
    }

    fn count(&self, index: usize) -> usize {
        self.fields.iter().filter(|(of, _)| usize::from(*of) == index).count()
    }

    /// The fields in the order of [`names`](Self::names), each ended by CRLF; fields of the same name from the last to
    /// the first (RFC 6376 section 5.4.2).
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes + 2 * self.fields.len());
        for index in 0..FIELDS.len() {
            for (_, field) in self.fields.iter().rev().filter(|(of, _)| usize::from(*of) == index) {
                out.extend_from_slice(field);
                out.extend_from_slice(b"\r\n");
            }
        }
        out
    }

    /// The hash of the body so far.
    pub(crate) fn body_hash(&self) -> Digest {
        self.body.clone().finish()
    }

    /// The reason why it cannot be signed.
    pub(crate) fn check(&self) -> Result<(), DraftError> {
        self.failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(fields: &[&str]) -> Draft {
        let mut draft = Draft::default();
        fields.iter().for_each(|field| draft.field(field.as_bytes()));
        draft
    }

    #[test]
    fn fields_are_listed_once_more_where_nobody_may_add_one() {
        let always = ["From", "To", "Cc", "Subject", "Date", "Message-ID", "Reply-To"];
        assert_eq!(draft(&[]).names(), always);
        let names = draft(&[
            "from: a\r\n",
            "To: b\r\n",
            "TO : c\r\n",
            "Received: x\r\n",
            "Bcc: x\r\n",
            "References: y\r\n",
            "Content-Type: z\r\n",
            "Resent-From: x\r\n",
            "Authentication-Results: x\r\n",
            "Return-Path: x\r\n",
            "Delivered-To: x\r\n",
            "Sender\r\n",
        ])
        .names();
        let expected = "From From To To To Cc Subject Date Message-ID Reply-To Content-Type Content-Type References";
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn of_a_field_that_is_there_twice_the_last_comes_first() {
        let draft = draft(&["To: 1\r\n", "From: a\r\n", "to:\r\n 2\r\n"]);
        assert_eq!(draft.header(), b"from:a\r\nto:2\r\nto:1\r\n");
    }

    #[test]
    fn a_draft_has_bounds() {
        let many = "To: a\r\n".to_owned();
        let mut of_many = Draft::default();
        (0..SIGNED_FIELDS_MAX).for_each(|_| of_many.field(many.as_bytes()));
        assert_eq!(of_many.check(), Ok(()));
        of_many.field(many.as_bytes());
        assert_eq!(of_many.check(), Err(DraftError::TooMany));
        let mut large = Draft::default();
        for _ in 0..5 {
            large.field(format!("X: {}\r\n", "x".repeat(64 << 10)).as_bytes());
            assert_eq!(large.check(), Ok(()), "nothing is kept of others");
        }
        for _ in 0..5 {
            large.field(format!("To: {}\r\n", "x".repeat(64 << 10)).as_bytes());
        }
        assert_eq!((large.check(), large.fields.len()), (Err(DraftError::TooLarge), 0));
    }
}
