//! A session up to its recipients, and its replies however the input is cut.

use posthaste_smtp::server::Config;
use posthaste_smtp::{BareNewlines, NulOctets};

use crate::common::Host;

pub const OPEN: &str = "EHLO client.example\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\n";

pub fn config(bare: BareNewlines, nul: NulOctets) -> Config {
    Config { bare_newlines: bare, nul_octets: nul, ..Config::new("mx.example.org") }
}

/// The replies so far as codes, one for each reply.
pub fn codes(host: &Host) -> Vec<String> {
    let text = String::from_utf8(host.output.clone()).unwrap();
    text.lines().filter(|line| line.as_bytes()[3] == b' ').map(|line| line[..3].to_owned()).collect()
}

/// Replays `wire` cut at every octet and demands the same result each time.
pub fn at_every_cut(config: &Config, wire: &[u8], check: impl Fn(&Host, usize)) {
    for cut in 0..=wire.len() {
        let mut host = Host::new(config.clone());
        host.read(&wire[..cut]);
        host.read(&wire[cut..]);
        check(&host, cut);
    }
    let mut host = Host::new(config.clone());
    for octet in wire {
        host.read(&[*octet]);
    }
    check(&host, usize::MAX);
}
