//! No text is taken for a signed return path but what was signed, whatever its case, while it is valid; what was signed is an address.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::DateTime;
use posthaste_notify::return_path::ReturnPaths;
use posthaste_notify::secrets::Secrets;
use posthaste_queue::RecipientKey;
use posthaste_smtp::ReversePath;
use posthaste_spool::Lsn;

fuzz_target!(|data: &[u8]| {
    let Some((stated, rest)) = data.split_first_chunk::<14>() else { return };
    let paths = ReturnPaths::new(&Secrets::new(["twenty-four random octets"]).expect("a secret"), "bounce");
    let paths = paths.expect("a prefix");
    let (message, rest_of) = stated.split_at(8);
    let (number, minutes) = rest_of.split_at(2);
    let message = Lsn::new(u64::from_be_bytes(message.try_into().expect("eight")));
    let key = RecipientKey { message, number: u16::from_be_bytes(number.try_into().expect("two")) };
    let minutes = u32::from_be_bytes(minutes.try_into().expect("four"));
    let now = DateTime::from_unix(i64::from(minutes) * 60);
    let signed = paths.sign(key, now);
    assert_eq!(paths.verify(&signed, now).map(|bounced| bounced.key), Ok(key));
    ReversePath::parse(&format!("<{signed}@example.org>")).expect("an address");
    // Any text, and the signed one with some of its octets changed: position and octet.
    if let Ok(text) = std::str::from_utf8(rest) {
        assert!(paths.verify(text, now).is_err() || text.eq_ignore_ascii_case(&signed), "{text}");
        assert!(
            paths.verify(&format!("bounce+{text}"), now).is_err() || signed[7..].eq_ignore_ascii_case(text),
            "{text}"
        );
    }
    let mut altered = signed.clone().into_bytes();
    for [at, octet] in rest.as_chunks::<2>().0 {
        let at = usize::from(*at) % altered.len();
        altered[at] = *octet;
    }
    if let Ok(altered) = std::str::from_utf8(&altered) {
        assert_eq!(paths.verify(altered, now).is_ok(), altered.eq_ignore_ascii_case(&signed), "{altered}");
    }
});
