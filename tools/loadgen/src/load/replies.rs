//! Finds replies in the server's output. Only the code is parsed: a generator that builds a string for each reply
//! spends more on them than on its messages. Texts are looked at in error replies only.

/// One whole reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reply<'a> {
    pub code: u16,
    /// All its lines with their line ends.
    pub wire: &'a [u8],
}

/// The input is not a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Garbage;

/// The reply at the start of `input` (RFC 5321 section 4.2), or `None` while it is incomplete. The caller bounds `input`.
pub(super) fn next(input: &[u8]) -> Result<Option<Reply<'_>>, Garbage> {
    let mut start = 0;
    let mut first_code = None;
    while let Some(length) = memchr::memchr(b'\n', &input[start..]) {
        let line = &input[start..start + length];
        let code = code(line).ok_or(Garbage)?;
        if *first_code.get_or_insert(code) != code {
            return Err(Garbage);
        }
        start += length + 1;
        match line.get(3) {
            Some(b'-') => {}
            None | Some(b' ' | b'\r') => return Ok(Some(Reply { code, wire: &input[..start] })),
            Some(_) => return Err(Garbage),
        }
    }
    Ok(None)
}

fn code(line: &[u8]) -> Option<u16> {
    let digits = line.get(..3)?;
    let is_code = matches!(digits[0], b'2'..=b'5') && digits.iter().all(u8::is_ascii_digit);
    is_code.then(|| digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_found_one_by_one_however_many_have_come() {
        let input = b"250-mx\r\n250-SIZE\r\n250 DSN\r\n354\r\n250 2.0.0 ok\n5";
        let mut at = 0;
        for (code, length) in [(250, 27), (354, 5), (250, 13)] {
            let reply = next(&input[at..]).unwrap().unwrap();
            assert_eq!((reply.code, reply.wire.len()), (code, length));
            at += length;
        }
        assert_eq!(next(&input[at..]), Ok(None));
    }

    #[test]
    fn a_reply_cut_anywhere_is_waited_for() {
        let input = b"250-a\r\n250 b\r\n";
        for cut in 0..input.len() {
            assert_eq!(next(&input[..cut]), Ok(None), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bad in [&b"HTTP/1.1 200 OK\r\n"[..], b"25\r\n", b"250-a\r\n550 b\r\n", b"150 a\r\n", b"250x\r\n", b"\r\n"] {
            assert_eq!(next(bad), Err(Garbage), "{bad:?}");
        }
    }
}
