//! A PROXY header is the same however little of it or much behind it has come, and what it says can be said again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_net::{HEADER_BYTES_MAX, ProxyHeader};

fuzz_target!(|data: &[u8]| {
    let whole = ProxyHeader::parse(data);
    for cut in 0..data.len().min(200) {
        let part = ProxyHeader::parse(&data[..cut]);
        // More is asked for, or nothing changes any more.
        assert!(part == Ok(None) || part == whole, "{part:?} became {whole:?} behind {cut}");
    }
    if data.len() >= HEADER_BYTES_MAX {
        assert_ne!(whole, Ok(None), "nothing longer is waited for");
    }
    let Ok(Some(header)) = whole else { return };
    assert!(header.bytes <= data.len().min(HEADER_BYTES_MAX));
    let Some((client, to)) = header.addresses else { return };
    assert_eq!(client.is_ipv4(), to.is_ipv4());
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let line = format!("PROXY {family} {} {} {} {}\r\n", client.ip(), to.ip(), client.port(), to.port());
    let again = ProxyHeader::parse(line.as_bytes()).unwrap().unwrap();
    assert_eq!((again.addresses, again.bytes), (header.addresses, line.len()));
});
