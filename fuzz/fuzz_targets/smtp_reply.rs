//! Any octets from a server, split anywhere, give the same replies; what was read is written and read as the same.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use posthaste_smtp::Reply;
use posthaste_smtp::reply::ReplyParser;

fuzz_target!(|data: &[u8]| {
    let [cut, wire @ ..] = data else { return };
    let whole = read(&[wire]);
    let pieces: Vec<&[u8]> = wire.chunks(usize::from(*cut).max(1)).collect();
    assert_eq!(whole, read(&pieces));
    for reply in whole.0 {
        let mut out = Vec::new();
        reply.write(&mut out);
        // Long lines are folded, so those of one reply may become more than a reader takes.
        if out.iter().filter(|&&octet| octet == b'\n').count() > ReplyParser::LINES_MAX {
            continue;
        }
        let (again, failed) = read(&[&out]);
        assert!(!failed && again.len() == 1, "{reply:?} became {again:?}");
        assert_eq!(again[0].code(), reply.code());
    }
});

fn read(pieces: &[&[u8]]) -> (Vec<Reply>, bool) {
    let (mut parser, mut input, mut replies) = (ReplyParser::default(), BytesMut::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match parser.next(&mut input) {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(_) => return (replies, true),
            }
        }
    }
    (replies, false)
}
