//! Any TLSA record and any certificate (RFC 6698): never a panic, and nothing but the very octets of the record matches.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_dane::{Association, PublicKeyInfo, SentCertificate};
use posthaste_dns::TlsaRecord;

fuzz_target!(|data: &[u8]| {
    let Some((&[usage, selector, matching, length], rest)) = data.split_first_chunk() else { return };
    let (of_record, certificate) = rest.split_at(usize::from(length).min(rest.len()));
    let record =
        TlsaRecord { usage: usage % 5, selector: selector % 3, matching: matching % 4, data: of_record.into() };
    let info = PublicKeyInfo::of_certificate(certificate);
    let sent = SentCertificate::new(certificate);
    if let Some(info) = info {
        assert!(certificate.windows(info.whole.len()).any(|part| part == info.whole));
        assert_eq!(PublicKeyInfo::read(info.whole), Some(info));
    }
    for usable in Association::usable(std::slice::from_ref(&record)) {
        assert!(matches!(record.usage, 2 | 3));
        let is_named = usable.names_server(&sent) || usable.names_anchor(&sent);
        if is_named && record.matching == 0 {
            let selected = if record.selector == 0 { certificate } else { info.expect("it has matched").whole };
            assert_eq!(selected, of_record);
        }
    }
    // The certificate as its own record.
    let whole = TlsaRecord { usage: 3, selector: 0, matching: 0, data: certificate.into() };
    let usable = Association::usable(&[whole]);
    assert_eq!(usable.len(), usize::from(info.is_some()));
    assert!(usable.iter().all(|of| of.names_server(&sent)));
});
