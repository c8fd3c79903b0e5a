//! Addresses that a stranger may have us connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// True if an address belongs to the public Internet: global unicast (the registries of RFC 6890), and no form that
/// embeds another address.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !NOT_PUBLIC_V4.iter().any(|(network, bits)| {
        let mask = u32::MAX << (32 - bits);
        u32::from(address) & mask == u32::from(Ipv4Addr::from(*network))
    })
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let is_in = |(network, bits): &([u16; 3], u32)| {
        let network = u128::from(Ipv6Addr::new(network[0], network[1], network[2], 0, 0, 0, 0, 0));
        u128::from(address) & (u128::MAX << (128 - bits)) == network
    };
    is_in(&([0x2000, 0, 0], 3)) && !NOT_PUBLIC_V6.iter().any(is_in)
}

const NOT_PUBLIC_V4: [([u8; 4], u32); 15] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    // Relays of 6to4.
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Within 2000::/3.
const NOT_PUBLIC_V6: [([u16; 3], u32); 5] = [
    // Protocols of the IETF, Teredo among them.
    ([0x2001, 0, 0], 23),
    ([0x2001, 0xdb8, 0], 32),
    // 6to4.
    ([0x2002, 0, 0], 16),
    ([0x3ffe, 0, 0], 16),
    ([0x3fff, 0, 0], 20),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_global_unicast_is_public() {
        let is_public = |text: &str| is_public(text.parse().unwrap());
        for text in
            ["1.1.1.1", "9.9.9.9", "100.63.255.255", "100.128.0.0", "172.32.0.1", "198.20.0.1", "223.255.255.255"]
        {
            assert!(is_public(text), "{text}");
        }
        for text in ["2606:4700::1111", "2001:200::1", "2a00:1450::1", "3fff:1000::1"] {
            assert!(is_public(text), "{text}");
        }
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            assert!(!is_public(text), "{text}");
        }
        for text in [
            "::",
            "::1",
            "::ffff:1.1.1.1",
            "::1.1.1.1",
            "64:ff9b::101:101",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:0:4136:e378::",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:101:101::1",
            "3ffe::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text), "{text}");
        }
    }
}
