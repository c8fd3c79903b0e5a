//! Whatever a request for injection has, its messages are mail: one kind of line end, no NUL, a size that counts CRLF, and recipients with a domain.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_inject::InjectRequest;

/// Messages of a request that are looked at.
const MESSAGES_MAX: usize = 3;

fuzz_target!(|data: &[u8]| {
    let Ok(request) = InjectRequest::parse(data) else { return };
    assert!((1..=request.recipients() as usize).contains(&request.messages()));
    for number in 0..request.messages().min(MESSAGES_MAX) {
        let recipients = request.indexes_of(number);
        assert!(!recipients.is_empty() && recipients.end <= request.recipients());
        assert!(recipients.clone().all(|index| request.recipient(index).address().is_some()));
        // Templates have a target of time, not of octets: they are compiled, and not rendered.
        let Ok(message) = request.message(number, &|| false) else { continue };
        let content = &*message.content;
        let crlf = content.windows(2).filter(|pair| pair == b"\r\n").count();
        let count = |octet: u8| content.iter().filter(|found| **found == octet).count();
        let bare = count(b'\n') - crlf;
        assert_eq!((count(0), count(b'\r')), (0, crlf));
        assert!(bare == 0 || crlf == 0);
        assert_eq!(message.wire_bytes as usize, content.len() + bare);
    }
});
