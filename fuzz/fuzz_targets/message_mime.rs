//! Any octets are read as a message: places in bounds and within each other, limits kept, every decoder ends with bounded output.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::mime::{Message, ScanLimits, in_reply_to, message_id, references, unflow};

fuzz_target!(|bytes: &[u8]| {
    check(bytes, &ScanLimits::default());
    // Small limits are met by small inputs.
    check(bytes, &ScanLimits { depth: 3, parts: 7 });
});

fn check(bytes: &[u8], limits: &ScanLimits) {
    let message = Message::parse_within(bytes, limits);
    assert_eq!(message.root().range(), 0..bytes.len());
    assert!(message.parts().count() <= limits.parts);
    let charset = message.header_charset();
    for part in message.parts() {
        let (all, header, body) = (part.range(), part.header_range(), part.body_range());
        assert!(all.start == header.start && header.end == body.start && body.start <= body.end && body.end == all.end);
        let mut at = body.start;
        for child in part.children() {
            assert!(at <= child.range().start && child.range().end <= body.end);
            at = child.range().end;
        }
        // Quoted-printable and base64 shrink; a uuencoded line may stand for 63 octets whatever is left of it.
        assert!(part.decoded().len() <= 64 * (part.body().len() + 1));
        // A character of four octets for each octet, or a group of them.
        let (text, footer) = part.text_and_footer();
        assert!(text.len() + footer.map_or(0, |footer| footer.len()) <= 4 * 64 * (part.body().len() + 2));
        assert!(unflow(&text, true).len() <= 2 * text.len() + 2);
        part.file_name();
        assert!(part.lines() <= part.body().len());
        for field in part.header().fields() {
            assert!(header.start <= field.start && field.end <= header.end);
            assert!(field.text(charset).len() <= 4 * field.value.len() + 4);
            assert!(field.addresses(charset).count() <= field.value.len() + 2);
            field.date();
            message_id(field.value);
            references(field.value);
            in_reply_to(field.value);
        }
    }
}
