//! The public key of a certificate of any version. webpki reads only version 3.

/// A public key with its algorithm (RFC 5280 section 4.1.2.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKeyInfo<'a> {
    /// The complete key in DER, which selector 1 compares.
    pub whole: &'a [u8],
    /// The content of its AlgorithmIdentifier.
    pub algorithm: &'a [u8],
    /// The octets of the key.
    pub key: &'a [u8],
}

impl<'a> PublicKeyInfo<'a> {
    /// Reads the key of a certificate (RFC 5280 section 4.1). `None` if the DER is malformed. Nothing else is checked.
    pub fn of_certificate(certificate: &'a [u8]) -> Option<Self> {
        let signed = Element::only(certificate, SEQUENCE)?;
        let mut fields = Element::read(signed.content)?.0.is(SEQUENCE)?.content;
        let (first, rest) = Element::read(fields)?;
        if first.tag == VERSION {
            fields = rest;
        }
        let serial = take(&mut fields, INTEGER)?;
        // Signature algorithm, issuer, validity, subject.
        for _ in 0..4 {
            take(&mut fields, SEQUENCE)?;
        }
        Self::of_element(take(&mut fields, SEQUENCE)?).filter(|_| !serial.content.is_empty())
    }

    /// Reads a key. `None` if the DER is malformed.
    pub fn read(octets: &'a [u8]) -> Option<Self> {
        Self::of_element(Element::only(octets, SEQUENCE)?)
    }

    fn of_element(info: Element<'a>) -> Option<Self> {
        let mut fields = info.content;
        let algorithm = take(&mut fields, SEQUENCE)?.content;
        let bits = take(&mut fields, BIT_STRING)?.content;
        // Keys are whole octets.
        let (0, key) = bits.split_first().map(|(unused, key)| (*unused, key))? else { return None };
        fields.is_empty().then_some(Self { whole: info.whole, algorithm, key })
    }
}

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const SEQUENCE: u8 = 0x30;
/// `[0] EXPLICIT`: absent in version 1.
const VERSION: u8 = 0xa0;

#[derive(Clone, Copy)]
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// The element with tag and length.
    whole: &'a [u8],
}

impl<'a> Element<'a> {
    /// The first element, and the octets after it.
    fn read(input: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&tag, rest) = input.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (octets, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
                (octets.iter().fold(0, |length, octet| length << 8 | usize::from(*octet)), rest)
            }
            // Indefinite, or of more than 16 MiB.
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        Some((Self { tag, content, whole: &input[..input.len() - rest.len()] }, rest))
    }

    /// An element without anything after it.
    fn only(input: &'a [u8], tag: u8) -> Option<Self> {
        let (element, rest) = Self::read(input)?;
        element.is(tag).filter(|_| rest.is_empty())
    }

    fn is(self, tag: u8) -> Option<Self> {
        (self.tag == tag).then_some(self)
    }
}

fn take<'a>(fields: &mut &'a [u8], tag: u8) -> Option<Element<'a>> {
    let (element, rest) = Element::read(fields)?;
    *fields = rest;
    element.is(tag)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verifier::tests::{self_signed, version_1};

    #[test]
    fn the_key_is_found_in_certificates_of_both_versions() {
        let (certificate, key) = self_signed("mx.example");
        let info = PublicKeyInfo::of_certificate(&certificate).unwrap();
        assert_eq!(info.whole, rcgen::PublicKeyData::subject_public_key_info(&key));
        assert_eq!(PublicKeyInfo::read(info.whole), Some(info));
        assert_eq!(PublicKeyInfo::of_certificate(&version_1(&key)).unwrap(), info);
    }

    #[test]
    fn what_is_cut_off_or_has_more_is_none() {
        let (certificate, _) = self_signed("mx.example");
        assert!((0..certificate.len()).all(|end| PublicKeyInfo::of_certificate(&certificate[..end]).is_none()));
        let longer = [&certificate[..], &[0]].concat();
        assert_eq!(PublicKeyInfo::of_certificate(&longer), None);
        for octets in [&[0x30, 0x80, 0, 0][..], &[0x30, 0x84, 0, 0, 0, 0], &[0x30, 0x83, 0xff, 0xff, 0xff]] {
            assert_eq!(PublicKeyInfo::of_certificate(octets), None, "{octets:?}");
        }
    }

    proptest! {
        #[test]
        fn a_key_that_is_found_is_a_part_of_the_certificate(change in any::<(prop::sample::Index, u8)>()) {
            let (mut certificate, _) = self_signed("mx.example");
            let at = change.0.index(certificate.len());
            certificate[at] = change.1;
            if let Some(info) = PublicKeyInfo::of_certificate(&certificate) {
                prop_assert!(certificate.windows(info.whole.len()).any(|part| part == info.whole));
                prop_assert!(info.key.len() + info.algorithm.len() < info.whole.len());
            }
        }
    }
}
