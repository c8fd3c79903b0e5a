//! The subset of DER (ITU-T X.690) that keys need.

pub const SEQUENCE: u8 = 0x30;
pub const INTEGER: u8 = 0x02;
pub const BIT_STRING: u8 = 0x03;
/// rsaEncryption (RFC 8017) without parameters, as an AlgorithmIdentifier.
pub const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

/// Appends an element.
pub fn write(out: &mut Vec<u8>, tag: u8, content: &[u8]) {
    out.push(tag);
    match content.len() {
        len @ 0..=0x7f => out.push(len as u8),
        len => {
            let octets = len.to_be_bytes();
            let octets = &octets[octets.iter().position(|octet| *octet != 0).unwrap_or(0)..];
            out.push(0x80 | octets.len() as u8);
            out.extend_from_slice(octets);
        }
    }
    out.extend_from_slice(content);
}

/// Takes the content of the next element with this tag. `None` if there is none, or it is truncated.
pub fn read<'a>(octets: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&[found, len], rest) = octets.split_first_chunk::<2>()?;
    let (len, rest) = match len {
        0..=0x7f => (usize::from(len), rest),
        // Keys have at most 64 KiB.
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (len, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*len)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    *octets = rest;
    (found == tag).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_as_short_as_can_be() {
        let check = |len: usize, head: &[u8]| {
            let mut out = Vec::new();
            write(&mut out, BIT_STRING, &vec![7; len]);
            assert_eq!((&out[..head.len()], out.len()), (head, head.len() + len));
        };
        check(0, &[3, 0]);
        check(127, &[3, 127]);
        check(128, &[3, 0x81, 128]);
        check(255, &[3, 0x81, 255]);
        check(256, &[3, 0x82, 1, 0]);
    }

    #[test]
    fn elements_are_read_as_they_are_written() {
        for len in [0, 1, 127, 128, 255, 256, 5000] {
            let mut out = Vec::new();
            write(&mut out, BIT_STRING, &vec![7; len]);
            for end in 0..out.len() {
                assert_eq!(read(&mut &out[..end], BIT_STRING), None, "{end} of {len}");
            }
            assert_eq!(read(&mut &out[..], SEQUENCE), None);
            assert_eq!(read(&mut &out[..], BIT_STRING), Some(&vec![7; len][..]));
        }
    }
}
