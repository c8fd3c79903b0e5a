//! The cached structure of a message: BODYSTRUCTURE, and the positions of its parts.

use bytes::BufMut;
use posthaste_message::mime::Message;

use crate::answer::Answer;
use crate::part_tree::PartTree;
use crate::structure;

/// The structure of a message of `len` octets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptStructure {
    /// BODYSTRUCTURE in wire form.
    pub text: Vec<u8>,
    pub parts: PartTree,
    pub len: u32,
}

/// First octet of the encoding. A change of the encoding, or of BODYSTRUCTURE, needs another number.
const VERSION: u8 = 1;

impl KeptStructure {
    /// The structure of a whole message; `None` if it is too long to be cached.
    pub fn of(message: &Message<'_>, octets: &[u8]) -> Option<Self> {
        let mut text = Vec::new();
        structure::write(&mut Answer::new(&mut text), message.root(), true);
        Some(Self { text, parts: PartTree::of(message.root()), len: u32::try_from(octets.len()).ok()? })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_u32_le(self.len);
        self.parts.encode(&mut out);
        out.extend_from_slice(&self.text);
        out
    }

    /// `None` if it is of another version, or damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.strip_prefix(&[VERSION])?.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*len);
        let (parts, text) = PartTree::decode(rest, len)?;
        (!text.is_empty()).then(|| Self { text: text.to_vec(), parts, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_read_as_it_was_kept() {
        let mail = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\none\r\n--b--\r\n";
        let kept = KeptStructure::of(&Message::parse(mail), mail).unwrap();
        assert!(kept.text.starts_with(b"((\"text\" ") && kept.len as usize == mail.len());
        let encoded = kept.encode();
        assert_eq!(KeptStructure::decode(&encoded), Some(kept));
        let other_version = [&[VERSION + 1][..], &encoded[1..]].concat();
        for damaged in [&b""[..], b"\x01", &other_version[..], &encoded[..20]] {
            assert_eq!(KeptStructure::decode(damaged), None);
        }
    }
}
