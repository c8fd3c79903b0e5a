//! Heads of requests: each is read completely and checked before hyper sees an octet of it.
//!
//! A server in front may see another end of a request than this one: then the rest is taken for a request that its
//! client never sent. So a head that can be read in two ways is refused, and nothing after it is read.

use bytes::{Buf, BytesMut};
use hyper::{StatusCode, Uri};

/// Maximum octets of a head.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum fields of a head.
pub(crate) const FIELDS_MAX: usize = 64;

/// Why a head is refused. The connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeadRefusal {
    /// The head has too many octets or fields.
    #[error("the head of the request is larger than {HEAD_BYTES_MAX} bytes, or has more than {FIELDS_MAX} fields")]
    TooLarge,
    /// A line ends in LF alone.
    #[error("each line of a request's head must end in CRLF")]
    BareNewline,
    /// The octets are not a head.
    #[error("not a request of HTTP/1")]
    Malformed,
    /// `Content-Length` and `Transfer-Encoding` contradict each other.
    #[error("the length of the request's body is ambiguous")]
    TwoEnds,
}

impl HeadRefusal {
    /// HTTP status of the answer.
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BareNewline | Self::Malformed | Self::TwoEnds => StatusCode::BAD_REQUEST,
        }
    }
}

/// End of a request's body, according to its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    /// After this many octets.
    After(u64),
    /// Chunked. The request is the last one on its connection, so its end is not searched.
    Chunked,
}

/// Takes octets of a connection, and returns complete heads and their bodies.
#[derive(Debug, Default)]
pub struct Heads {
    /// Octets of an incomplete head.
    pending: BytesMut,
    /// Octets of `pending` searched without finding the end of a head.
    scanned: usize,
    /// Octets ready to be returned.
    ready: BytesMut,
    body: Option<BodyEnd>,
    had_any: bool,
    refusal: Option<HeadRefusal>,
}

impl Heads {
    /// Adds octets that were read.
    ///
    /// # Errors
    /// A head is refused: it is not returned, and no more octets are accepted.
    pub fn push(&mut self, octets: &[u8]) -> Result<(), HeadRefusal> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        self.pending.extend_from_slice(octets);
        self.sort().inspect_err(|refusal| self.refusal = Some(*refusal))
    }

    /// Number of newly read octets that belong to a body. They need no check and no [`push`](Self::push).
    pub fn pass(&mut self, octets: &[u8]) -> usize {
        let Some(BodyEnd::After(left)) = &mut self.body else { return 0 };
        if !self.pending.is_empty() || !self.ready.is_empty() {
            return 0;
        }
        let part = octets.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= part as u64;
        if *left == 0 {
            self.body = None;
        }
        part
    }

    /// Checked octets, for hyper to take.
    pub fn ready(&mut self) -> &mut BytesMut {
        &mut self.ready
    }

    /// True once a head has been returned.
    pub fn had_any(&self) -> bool {
        self.had_any
    }

    /// Why a head was refused, if one was.
    pub fn refusal(&self) -> Option<HeadRefusal> {
        self.refusal
    }

    fn sort(&mut self) -> Result<(), HeadRefusal> {
        loop {
            match &mut self.body {
                Some(BodyEnd::After(left)) => {
                    let part = self.pending.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= part as u64;
                    let is_over = *left == 0;
                    self.ready.unsplit(self.pending.split_to(part));
                    if !is_over {
                        return Ok(());
                    }
                    self.body = None;
                }
                Some(BodyEnd::Chunked) => {
                    self.ready.unsplit(self.pending.split());
                    return Ok(());
                }
                None => match self.head_end()? {
                    Some(end) => {
                        let head = self.pending.split_to(end);
                        self.scanned = 0;
                        self.body = body_end(&head)?;
                        self.had_any = true;
                        self.ready.unsplit(head);
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    /// Length of the first head in `pending`; `None` while it is incomplete.
    fn head_end(&mut self) -> Result<Option<usize>, HeadRefusal> {
        // A server should ignore empty lines before a request (RFC 9112 section 2.2).
        while self.scanned == 0 && self.pending.starts_with(b"\r\n") {
            self.pending.advance(2);
        }
        while let Some(at) = self.pending[self.scanned..].iter().position(|&octet| octet == b'\n') {
            let line_end = self.scanned + at;
            if line_end == 0 || self.pending[line_end - 1] != b'\r' {
                return Err(HeadRefusal::BareNewline);
            }
            self.scanned = line_end + 1;
            if self.pending[..line_end - 1].ends_with(b"\r\n") {
                return if self.scanned > HEAD_BYTES_MAX { Err(HeadRefusal::TooLarge) } else { Ok(Some(self.scanned)) };
            }
        }
        if self.pending.len() > HEAD_BYTES_MAX { Err(HeadRefusal::TooLarge) } else { Ok(None) }
    }
}

/// Checks a complete head and returns the end of its body. `None`: no body.
fn body_end(head: &[u8]) -> Result<Option<BodyEnd>, HeadRefusal> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(HeadRefusal::TooLarge),
        Ok(httparse::Status::Partial) | Err(_) => return Err(HeadRefusal::Malformed),
    }
    if request.path.is_none_or(|target| target.parse::<Uri>().is_err()) {
        return Err(HeadRefusal::Malformed);
    }
    let all = |name: &'static str| request.headers.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    let (mut lengths, mut codings) = (all("content-length"), all("transfer-encoding"));
    match (lengths.next(), codings.next()) {
        _ if lengths.next().is_some() || codings.next().is_some() => Err(HeadRefusal::TwoEnds),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(HeadRefusal::TwoEnds),
        // HTTP/1.0 has no chunks (RFC 9112 section 6.1).
        (None, Some(coding)) if request.version == Some(1) && coding.value.eq_ignore_ascii_case(b"chunked") => {
            Ok(Some(BodyEnd::Chunked))
        }
        (None, Some(_)) => Err(HeadRefusal::TwoEnds),
        (Some(length), None) => match length_of(length.value) {
            Some(0) => Ok(None),
            Some(length) => Ok(Some(BodyEnd::After(length))),
            None => Err(HeadRefusal::TwoEnds),
        },
    }
}

fn length_of(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// Cuts octets that come in pieces into requests: the output, and the end. Taken out at once or at the end, it is the same.
    fn sorted(octets: &[u8], piece: usize) -> (Vec<u8>, Option<HeadRefusal>) {
        let sort = |is_taken_at_once: bool| {
            let (mut heads, mut out) = (Heads::default(), Vec::new());
            for piece in octets.chunks(piece) {
                let passed = heads.pass(piece);
                out.extend_from_slice(&piece[..passed]);
                let pushed = heads.push(&piece[passed..]);
                if is_taken_at_once {
                    out.extend_from_slice(&heads.ready().split());
                }
                if pushed.is_err() {
                    break;
                }
            }
            out.extend_from_slice(heads.ready());
            (out, heads.refusal())
        };
        let sorted = sort(true);
        assert_eq!(sort(false), sorted);
        sorted
    }

    #[test]
    fn whole_heads_and_bodies_come_out_however_they_are_cut() {
        let post = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\na\nb\n\nGET";
        let all = format!("\r\n{GET}\r\n{post} / HTTP/1.1\r\n\r\nGET /half");
        let expected = format!("{GET}{post} / HTTP/1.1\r\n\r\n");
        for piece in 1..=all.len() {
            assert_eq!(sorted(all.as_bytes(), piece), (expected.clone().into_bytes(), None), "{piece}");
        }
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nanything\n";
        assert_eq!(sorted(chunked.as_bytes(), 7), (chunked.into(), None));
    }

    #[test]
    fn an_ambiguous_request_head_is_refused_with_the_rest() {
        use HeadRefusal::{BareNewline, Malformed, TooLarge, TwoEnds};
        let check = |head: &str, expected: HeadRefusal| {
            for piece in [1, 3, usize::MAX] {
                let all = format!("{GET}{head}\r\n\r\n{GET}");
                assert_eq!(sorted(all.as_bytes(), piece), (GET.into(), Some(expected)), "{head:?}");
            }
        };
        let fields = |fields: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}");
        check("GET / HTTP/1.1\nHost: x", BareNewline);
        check(&fields("X: y\nContent-Length: 3"), BareNewline);
        check("\nGET / HTTP/1.1", BareNewline);
        check(&fields("Content-Length: 3\r\nTransfer-Encoding: chunked"), TwoEnds);
        check(&fields("Transfer-Encoding: chunked\r\nContent-Length: 3"), TwoEnds);
        check(&fields("Content-Length: 3\r\nContent-Length: 3"), TwoEnds);
        check(&fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), TwoEnds);
        for value in ["gzip", "gzip, chunked", "chunked, chunked", "xchunked", "chunked;q=1", ""] {
            check(&fields(&format!("Transfer-Encoding: {value}")), TwoEnds);
        }
        for value in ["", "+3", "-3", "3, 3", "0x3", "3.0", "99999999999999999999", "3 3"] {
            check(&fields(&format!("Content-Length: {value}")), TwoEnds);
        }
        check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked", TwoEnds);
        check("MAIL FROM:<a@example.org>", Malformed);
        check(&fields("X : y"), Malformed);
        check(&fields("X: y\r\n folded"), Malformed);
        check(&fields("X: y\rZ: z"), Malformed);
        check(&fields("no field"), Malformed);
        check("PRI * HTTP/2.0", Malformed);
        check("GET http://[::1/ HTTP/1.1", Malformed);
        check(&fields(&"X: y\r\n".repeat(FIELDS_MAX)), TooLarge);
        check(&fields(&format!("X: {}", "y".repeat(HEAD_BYTES_MAX))), TooLarge);
    }

    #[test]
    fn a_head_without_an_end_takes_a_bounded_memory() {
        let mut heads = Heads::default();
        let refused = (0..1000).find_map(|_| heads.push(&[b'x'; 1000]).err());
        assert_eq!(refused, Some(HeadRefusal::TooLarge));
        assert!(heads.pending.len() <= HEAD_BYTES_MAX + 1000);
    }
}
