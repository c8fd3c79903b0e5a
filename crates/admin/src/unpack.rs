//! Compressed bodies, decompressed piece by piece within the same bounds as others.

use std::io::{self, Cursor, Read};

use flate2::bufread::GzDecoder;
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use tokio::task::spawn_blocking;

use crate::body::{BodyReadError, BodyRoom, ReadBody};

/// A coding of a body (RFC 9110 section 8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    /// gzip (RFC 1952).
    Gzip,
    /// Zstandard (RFC 8878).
    Zstd,
}

/// An unsupported coding, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OtherCoding;

impl ContentCoding {
    /// The coding of a request's body; `None` if it is not compressed.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, OtherCoding> {
        let mut fields = headers.get_all(CONTENT_ENCODING).iter();
        let Some(field) = fields.next() else { return Ok(None) };
        let field = field.to_str().ok().filter(|_| fields.next().is_none()).ok_or(OtherCoding)?;
        match field.trim().to_ascii_lowercase().as_str() {
            "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "zstd" => Ok(Some(Self::Zstd)),
            _ => Err(OtherCoding),
        }
    }
}

/// A decoder for one gzip member or zstd frame: millions of empty ones would keep a thread busy and yield nothing.
enum Decoder {
    Gzip(GzDecoder<Cursor<Vec<u8>>>),
    Zstd(Box<StreamingDecoder<Cursor<Vec<u8>>, FrameDecoder>>),
}

impl Decoder {
    fn new(coding: ContentCoding, packed: Vec<u8>) -> io::Result<Self> {
        let window = window_of(&packed);
        let packed = Cursor::new(packed);
        Ok(match coding {
            ContentCoding::Gzip => Self::Gzip(GzDecoder::new(packed)),
            ContentCoding::Zstd if window > WINDOW_BYTES_MAX => return Err(io::ErrorKind::Unsupported.into()),
            ContentCoding::Zstd => Self::Zstd(Box::new(StreamingDecoder::new(packed).map_err(io::Error::other)?)),
        })
    }

    /// True if nothing follows the member or frame.
    fn is_at_end(&self) -> bool {
        let packed = match self {
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.get_ref(),
        };
        packed.position() == packed.get_ref().len() as u64
    }
}

impl Read for Decoder {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(to),
            Self::Zstd(decoder) => decoder.read(to),
        }
    }
}

/// Decompresses a body.
///
/// # Errors
/// The body is larger than [`UNPACKED_BYTES_MAX`] or [`RATIO_MAX`] times its packed size; it is not exactly one member
/// or frame; or there is no memory for it.
pub(crate) async fn unpack(
    coding: ContentCoding,
    packed: ReadBody,
    room: &BodyRoom,
) -> Result<ReadBody, BodyReadError> {
    let ReadBody { octets: packed, mut share } = packed;
    let bytes_max = (packed.len() * RATIO_MAX).min(UNPACKED_BYTES_MAX);
    // With the window of zstd.
    let held = packed.len() + bytes_max.min(WINDOW_BYTES_MAX as usize);
    let opened = spawn_blocking(move || Decoder::new(coding, packed)).await;
    let mut decoder = opened.map_err(io::Error::from).flatten().map_err(|_| BodyReadError::NotPacked)?;
    let mut octets = Vec::new();
    loop {
        room.grow(&mut share, held + octets.len() + STEP_BYTES).await?;
        let before = octets.len();
        let step = move || {
            let read = decoder.by_ref().take(STEP_BYTES as u64).read_to_end(&mut octets);
            read.map(|_| (decoder, octets))
        };
        let done = spawn_blocking(step).await.map_err(io::Error::from).flatten();
        (decoder, octets) = done.map_err(|_| BodyReadError::NotPacked)?;
        if octets.len() > bytes_max {
            return Err(BodyReadError::TooLargeUnpacked);
        }
        if octets.len() == before {
            return if decoder.is_at_end() { Ok(ReadBody { octets, share }) } else { Err(BodyReadError::NotPacked) };
        }
    }
}

/// Window of a zstd frame in octets (RFC 8878 section 3.1.1.1): the decoder outputs nothing before it has stored as
/// many. 0 if the frame is cut off.
fn window_of(frame: &[u8]) -> u64 {
    let Some((descriptor, rest)) = frame.get(4..).and_then(<[u8]>::split_first) else { return 0 };
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let window = rest.first().copied().unwrap_or_default();
        let base = 1_u64 << (10 + (window >> 3));
        return base + base / 8 * u64::from(window & 7);
    }
    // The window is the whole content, whose size follows the number of a dictionary.
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_bytes = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let size = rest.get(dictionary..dictionary + size_bytes).unwrap_or_default();
    let number = size.iter().rev().fold(0_u64, |number, octet| number << 8 | u64::from(*octet));
    if size_bytes == 2 { number + 256 } else { number }
}

/// Maximum window of a decoder (RFC 8878 section 3.1.1.1.2). Larger ones are refused.
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// Maximum octets of a decompressed body.
const UNPACKED_BYTES_MAX: usize = 128 << 20;
/// Largest unpacked size, as a multiple of the packed size.
const RATIO_MAX: usize = 100;
/// Octets decompressed at a time.
const STEP_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    async fn unpacked(coding: ContentCoding, packed: Vec<u8>) -> Result<Vec<u8>, BodyReadError> {
        let room = BodyRoom::new(64 << 20);
        let body = ReadBody { octets: packed, share: Default::default() };
        unpack(coding, body, &room).await.map(|body| body.octets)
    }

    #[tokio::test]
    async fn a_frame_with_a_large_window_is_refused() {
        let head = |rest: &[u8]| [&[0x28, 0xb5, 0x2f, 0xfd][..], rest].concat();
        for (frame, window) in [
            (head(&[0, 0]), 1 << 10),
            (head(&[0, 13 << 3]), 8 << 20),
            (head(&[0, 13 << 3 | 1]), 9 << 20),
            (head(&[0, 0xff]), (1 << 41) + (1 << 41) / 8 * 7),
            (head(&[0x20, 7]), 7),
            (head(&[0x60, 1, 0]), 257),
            (head(&[0xa2, 9, 9, 0, 0, 0, 1]), 1 << 24),
            (head(&[0xe0, 0, 0, 0, 0, 0, 0, 0, 1]), 1 << 56),
            (head(&[]), 0),
        ] {
            assert_eq!(window_of(&frame), window, "{frame:?}");
        }
        // A window of 2 GiB, and blocks of 128 KiB of one octet each (RFC 8878 section 3.1.1.2).
        let mut bomb = head(&[0, 21 << 3]);
        (0..8192).for_each(|_| bomb.extend_from_slice(&[0x02, 0x00, 0x10, b'x']));
        assert!(matches!(unpacked(ContentCoding::Zstd, bomb).await, Err(BodyReadError::NotPacked)));
    }

    #[tokio::test]
    async fn bodies_of_one_part_are_unpacked() {
        use ContentCoding::{Gzip, Zstd};
        // More than one step, and hard to pack.
        let mut octet = 1_u32;
        let noise = std::iter::repeat_with(|| {
            octet = octet.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (octet >> 24) as u8
        });
        let noise = noise.take(STEP_BYTES * 2 + 7).collect::<Vec<u8>>();
        for text in [&b"{}"[..], &noise] {
            assert_eq!(unpacked(Gzip, gzip(text)).await.as_deref(), Ok(text));
            assert_eq!(unpacked(Zstd, zstd(text)).await.as_deref(), Ok(text));
            // Empty parts would cost time without end.
            for more in [text, b""] {
                for (coding, pack) in [(Gzip, gzip as fn(&[u8]) -> Vec<u8>), (Zstd, zstd)] {
                    let parts = unpacked(coding, [pack(more), pack(text)].concat()).await;
                    assert_eq!(parts, Err(BodyReadError::NotPacked));
                }
            }
        }
    }

    #[tokio::test]
    async fn bombs_and_what_is_not_packed_are_refused() {
        use BodyReadError::{NotPacked, TooLargeUnpacked};
        use ContentCoding::{Gzip, Zstd};
        let spaces = vec![b' '; 20 << 20];
        assert_eq!(unpacked(Gzip, gzip(&spaces)).await, Err(TooLargeUnpacked));
        assert_eq!(unpacked(Zstd, zstd(&spaces)).await, Err(TooLargeUnpacked));
        for (coding, packed) in [(Gzip, gzip(b"hello")), (Zstd, zstd(b"hello"))] {
            let other = if coding == Gzip { Zstd } else { Gzip };
            assert_eq!(unpacked(other, packed.clone()).await, Err(NotPacked));
            for end in 1..packed.len() {
                assert_eq!(unpacked(coding, packed[..end].to_vec()).await, Err(NotPacked), "{coding:?} {end}");
            }
            assert_eq!(unpacked(coding, [&packed[..], b"x"].concat()).await, Err(NotPacked));
        }
    }

    #[test]
    fn one_coding_is_taken_and_others_are_not() {
        let of = |fields: &[&str]| {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(CONTENT_ENCODING, field.parse().unwrap());
            }
            ContentCoding::of(&headers)
        };
        assert_eq!([of(&[]), of(&["Identity"])], [Ok(None); 2]);
        assert_eq!(of(&["GZip"]), Ok(Some(ContentCoding::Gzip)));
        assert_eq!(of(&["zstd"]), Ok(Some(ContentCoding::Zstd)));
        for other in [&["br"][..], &["gzip, zstd"], &["gzip", "gzip"], &[""]] {
            assert_eq!(of(other), Err(OtherCoding), "{other:?}");
        }
    }
}
