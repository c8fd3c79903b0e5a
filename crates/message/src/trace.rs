//! Trace fields that a server puts in front of a message: Received, Return-Path, Delivered-To.
//!
//! Values from the network are reduced to visible characters before they are written, so no input can end a line early
//! and begin a field of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::DateTime;

/// The Received field of one message (RFC 5321 section 4.4).
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The client's name in HELO, EHLO or LHLO. If it is neither a domain nor an address literal, the peer's address
    /// replaces it.
    pub helo: &'a str,
    /// Address of the client; `None` on a UNIX socket.
    pub peer: Option<IpAddr>,
    /// Our own host name.
    pub by: &'a str,
    /// The registered name of the protocol, such as `ESMTPS` (RFC 3848, RFC 6531 section 4.3). Trace fields may hold UTF-8
    /// when it begins with `UTF8` (RFC 6531 section 3.7.3).
    pub with: &'a str,
    /// The message's id in our log.
    pub id: &'a str,
    /// The recipient, only if it is the only one: more would reveal blind copies (RFC 5321 section 7.2).
    pub recipient: Option<&'a str>,
    /// Encryption of the session, if any.
    pub tls: Option<Encryption<'a>>,
    /// Time of reception.
    pub date: DateTime,
}

/// Encryption of a session, for the clause `tls` of a Received field (RFC 8314 section 4.3).
#[derive(Debug, Clone, Copy)]
pub struct Encryption<'a> {
    /// The registered name of the cipher suite, such as `TLS_AES_256_GCM_SHA384`.
    pub cipher: &'a str,
    /// The version, such as `TLSv1.3`; follows the suite as a comment.
    pub version: &'a str,
}

impl Received<'_> {
    /// Appends the field, folded over three lines, each ended by CRLF.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Received: from ");
        self.write_from(out);
        out.extend_from_slice(b"\r\n\tby ");
        push_atom(out, self.by, MAX_DOMAIN);
        out.extend_from_slice(b" with ");
        push_atom(out, self.with, MAX_ID);
        out.extend_from_slice(b" id ");
        push_atom(out, self.id, MAX_ID);
        let path_max = if self.tls.is_some() { MAX_PATH - MAX_TLS } else { MAX_PATH };
        let is_visible = |path: &&str| path.len() <= path_max && is_visible_path(path, self.with.starts_with("UTF8"));
        let path = self.recipient.filter(is_visible);
        if let Some(path) = path {
            out.extend_from_slice(b"\r\n\tfor <");
            out.extend_from_slice(path.as_bytes());
            out.push(b'>');
        }
        if let Some(tls) = &self.tls {
            out.extend_from_slice(if path.is_some() { b" tls " } else { b"\r\n\ttls " });
            push_atom(out, tls.cipher, MAX_CIPHER);
            out.extend_from_slice(b" (");
            push_atom(out, tls.version, MAX_VERSION);
            out.push(b')');
        }
        let is_folded = path.is_some() || self.tls.is_some();
        out.extend_from_slice(if is_folded { b"; " } else { b";\r\n\t" });
        out.extend_from_slice(self.date.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Writes `domain ([192.0.2.7])`: the name by the client, the address as we saw it.
    fn write_from(&self, out: &mut Vec<u8>) {
        let named = is_domain_or_literal(self.helo);
        if named {
            out.extend_from_slice(self.helo.as_bytes());
        }
        let Some(peer) = self.peer else {
            if !named {
                out.extend_from_slice(b"unknown");
            }
            return;
        };
        let literal = match peer.to_canonical() {
            IpAddr::V4(address) => format!("[{address}]"),
            IpAddr::V6(address) => format!("[IPv6:{address}]"),
        };
        if !named {
            out.extend_from_slice(literal.as_bytes());
        }
        out.extend_from_slice(b" (");
        out.extend_from_slice(literal.as_bytes());
        out.extend_from_slice(b")");
    }
}

/// The Received field of a message that came by no protocol registered for `with`. It names no client.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedLocally<'a> {
    /// Our own host name.
    pub by: &'a str,
    /// The program that submitted it.
    pub source: LocalSource,
    /// The message's id in our log.
    pub id: &'a str,
    /// Like [`Received::recipient`].
    pub recipient: Option<&'a str>,
    /// True if the field may hold UTF-8 (RFC 6531 section 3.7.3).
    pub utf8: bool,
    /// Time of reception.
    pub date: DateTime,
}

/// The program that submitted a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalSource {
    /// A program of the user with this number, on this machine.
    User(u32),
    /// An HTTP client, with its address if known.
    Http(Option<IpAddr>),
}

impl ReceivedLocally<'_> {
    /// Appends the field, folded over two or three lines, each ended by CRLF.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Received: by ");
        push_atom(out, self.by, MAX_DOMAIN);
        let source = match self.source {
            LocalSource::User(uid) => format!("from userid {uid}"),
            LocalSource::Http(None) => "by HTTP".to_owned(),
            LocalSource::Http(Some(client)) => format!("by HTTP from [{client}]"),
        };
        out.extend_from_slice(format!(" (Posthaste, {source})\r\n\tid ").as_bytes());
        push_atom(out, self.id, MAX_ID);
        match self.recipient {
            Some(path) if is_visible_path(path, self.utf8) => {
                out.extend_from_slice(b"\r\n\tfor <");
                out.extend_from_slice(path.as_bytes());
                out.extend_from_slice(b">; ");
            }
            _ => out.extend_from_slice(b"; "),
        }
        out.extend_from_slice(self.date.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends `Return-Path: <path>` and CRLF, as final delivery does (RFC 5321 section 4.4). The null path is `""`.
///
/// Control characters in `path` become `?`; cut at 900 octets, so that the line stays within 998.
pub fn write_return_path(out: &mut Vec<u8>, path: &str) {
    out.extend_from_slice(b"Return-Path: <");
    push_visible(out, path, MAX_PATH);
    out.extend_from_slice(b">\r\n");
}

/// Appends `Delivered-To: address` and CRLF: the address that the message was delivered for, aliases expanded.
///
/// Control characters in `address` become `?`; cut at 900 octets.
pub fn write_delivered_to(out: &mut Vec<u8>, address: &str) {
    out.extend_from_slice(b"Delivered-To: ");
    push_visible(out, address, MAX_PATH);
    out.extend_from_slice(b"\r\n");
}

fn is_domain_or_literal(name: &str) -> bool {
    name.len() <= MAX_DOMAIN
        && match name.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').is_some_and(is_literal),
            None => name.split('.').all(is_label),
        }
}

/// RFC 5321 section 4.1.2 `sub-domain`; inner underscores are allowed, as many hosts have them.
fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// RFC 5321 section 4.1.3, without the brackets. No tag but `IPv6` was ever registered.
fn is_literal(inner: &str) -> bool {
    match inner.split_once(':') {
        None => inner.parse::<Ipv4Addr>().is_ok(),
        Some((tag, address)) => tag.eq_ignore_ascii_case("IPv6") && address.parse::<Ipv6Addr>().is_ok(),
    }
}

fn is_visible_path(path: &str, utf8: bool) -> bool {
    !path.is_empty() && path.len() <= MAX_PATH && !path.chars().any(char::is_control) && (utf8 || path.is_ascii())
}

/// Appends the characters of a domain or an identifier; others become `?`.
fn push_atom(out: &mut Vec<u8>, text: &str, max: usize) {
    let safe = |b: u8| {
        if b.is_ascii_alphanumeric() || b"-._:[]".contains(&b) { b } else { b'?' }
    };
    out.extend(text.bytes().take(max).map(safe));
}

/// Appends at most `max` octets of whole characters, control characters replaced.
fn push_visible(out: &mut Vec<u8>, text: &str, max: usize) {
    let mut buffer = [0; 4];
    let end = out.len() + max;
    for c in text.chars() {
        let c = if c.is_control() { '?' } else { c };
        let encoded = c.encode_utf8(&mut buffer).as_bytes();
        if out.len() + encoded.len() > end {
            break;
        }
        out.extend_from_slice(encoded);
    }
}

/// RFC 5321 section 4.5.3.1.2.
const MAX_DOMAIN: usize = 255;
/// RFC 1035 section 2.3.4.
const MAX_LABEL: usize = 63;
const MAX_ID: usize = 128;
/// More than any path of RFC 5321 section 4.5.3.1.3, less than a line of RFC 5322 section 2.1.1.
const MAX_PATH: usize = 900;
/// More than any registered name.
const MAX_CIPHER: usize = 60;
const MAX_VERSION: usize = 10;
/// Longest clause `tls`, with its punctuation.
const MAX_TLS: usize = MAX_CIPHER + MAX_VERSION + 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Received<'static> {
        Received {
            helo: "client.example",
            peer: Some("192.0.2.7".parse().unwrap()),
            by: "mx.example",
            with: "ESMTP",
            id: "1f3a",
            recipient: Some("bob@mx.example"),
            tls: None,
            date: DateTime::from_unix(0),
        }
    }

    fn check(received: Received<'_>, expected: &str) {
        let mut out = Vec::new();
        received.write_to(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn received_names_client_server_protocol_and_recipient() {
        check(
            sample(),
            "Received: from client.example ([192.0.2.7])\r\n\tby mx.example with ESMTP id 1f3a\r\n\t\
             for <bob@mx.example>; Thu, 01 Jan 1970 00:00:00 +0000\r\n",
        );
    }

    #[test]
    fn received_tells_of_tls() {
        let tls = Some(Encryption { cipher: "TLS_AES_256_GCM_SHA384", version: "TLSv1.3" });
        check(
            Received { tls, with: "ESMTPS", ..sample() },
            "Received: from client.example ([192.0.2.7])\r\n\tby mx.example with ESMTPS id 1f3a\r\n\t\
             for <bob@mx.example> tls TLS_AES_256_GCM_SHA384 (TLSv1.3); Thu, 01 Jan 1970 00:00:00 +0000\r\n",
        );
        let long = "x".repeat(MAX_PATH);
        for recipient in [None, Some(long.as_str())] {
            check(
                Received { tls, recipient, with: "ESMTPS", ..sample() },
                "Received: from client.example ([192.0.2.7])\r\n\tby mx.example with ESMTPS id 1f3a\r\n\t\
                 tls TLS_AES_256_GCM_SHA384 (TLSv1.3); Thu, 01 Jan 1970 00:00:00 +0000\r\n",
            );
        }
    }

    #[test]
    fn received_leaves_the_recipient_out_when_there_are_several() {
        check(
            Received { recipient: None, ..sample() },
            "Received: from client.example ([192.0.2.7])\r\n\tby mx.example with ESMTP id 1f3a;\r\n\t\
             Thu, 01 Jan 1970 00:00:00 +0000\r\n",
        );
    }

    #[test]
    fn received_writes_ipv6_as_a_tagged_literal() {
        let peer = Some("2001:db8::1".parse().unwrap());
        check(
            Received { helo: "[IPv6:2001:db8::1]", peer, recipient: None, ..sample() },
            "Received: from [IPv6:2001:db8::1] ([IPv6:2001:db8::1])\r\n\tby mx.example with ESMTP id 1f3a;\r\n\t\
             Thu, 01 Jan 1970 00:00:00 +0000\r\n",
        );
    }

    #[test]
    fn a_mapped_ipv4_address_is_written_as_ipv4() {
        let mut out = Vec::new();
        Received { peer: Some("::ffff:192.0.2.7".parse().unwrap()), ..sample() }.write_to(&mut out);
        assert!(String::from_utf8(out).unwrap().contains("([192.0.2.7])"));
    }

    #[test]
    fn a_helo_that_is_no_name_gives_way_to_the_address() {
        check(
            Received { helo: "x (evil)\r\nSubject: hi", recipient: None, ..sample() },
            "Received: from [192.0.2.7] ([192.0.2.7])\r\n\tby mx.example with ESMTP id 1f3a;\r\n\t\
             Thu, 01 Jan 1970 00:00:00 +0000\r\n",
        );
    }

    #[test]
    fn a_helo_is_copied_when_it_is_a_domain_or_an_address_literal() {
        let check = |helo: &str, copied: bool| {
            let mut out = Vec::new();
            Received { helo, ..sample() }.write_to(&mut out);
            let name = if copied { helo } else { "[192.0.2.7]" };
            let expected = format!("Received: from {name} ([192.0.2.7])\r\n");
            assert!(out.starts_with(expected.as_bytes()), "{helo}: {}", String::from_utf8_lossy(&out));
        };
        for good in ["localhost", "a_b.example", "x-1.example", "xn--bcher-kva.example", "[192.0.2.1]", "[ipv6:::1]"] {
            check(good, true);
        }
        check(&"l".repeat(63), true);
        for bad in [
            "",
            ".",
            "..",
            "-a",
            "a-",
            "sub..bad",
            "a.example.",
            ".a",
            "-",
            "a:b",
            "2001:db8::1",
            "[",
            "[]",
            "[.]",
            "[1.2.3]",
            "[2001:db8::1]",
            "[IPv6:1.2.3.4]",
            "[IPv6:]",
            "[x:]",
            "[:x]",
            "[192.0.2.1",
            "192.0.2.1]",
            "[x-tag:a]",
            "a b",
        ] {
            check(bad, false);
        }
        check(&"l".repeat(64), false);
    }

    #[test]
    fn a_unix_peer_has_no_address() {
        let mut out = Vec::new();
        Received { peer: None, helo: "", ..sample() }.write_to(&mut out);
        assert!(out.starts_with(b"Received: from unknown\r\n\tby "));
    }

    #[test]
    fn a_message_of_a_local_program_names_its_user() {
        let field = |recipient| {
            let mut out = Vec::new();
            let date = DateTime::from_unix(0);
            ReceivedLocally {
                by: "mx\r\nX: y",
                source: LocalSource::User(33),
                id: "1f3a",
                recipient,
                utf8: false,
                date,
            }
            .write_to(&mut out);
            String::from_utf8(out).unwrap()
        };
        let begin = "Received: by mx??X:?y (Posthaste, from userid 33)\r\n\tid 1f3a";
        let date = "; Thu, 01 Jan 1970 00:00:00 +0000\r\n";
        assert_eq!(field(Some("a@x")), format!("{begin}\r\n\tfor <a@x>{date}"));
        assert_eq!(field(None), format!("{begin}{date}"));
        assert_eq!(field(Some("jörg@x")), format!("{begin}{date}"));
    }

    #[test]
    fn a_client_of_http_is_named_only_where_it_is_given() {
        let field = |client: Option<&str>| {
            let mut out = Vec::new();
            let source = LocalSource::Http(client.map(|ip| ip.parse().unwrap()));
            let date = DateTime::from_unix(0);
            ReceivedLocally { by: "mx", source, id: "1", recipient: None, utf8: false, date }.write_to(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert!(field(None).starts_with("Received: by mx (Posthaste, by HTTP)\r\n"));
        assert!(field(Some("2001:db8::1")).starts_with("Received: by mx (Posthaste, by HTTP from [2001:db8::1])\r\n"));
    }

    #[test]
    fn a_utf8_recipient_shows_only_in_a_utf8_message() {
        for (with, shown) in [("ESMTP", false), ("UTF8SMTP", true)] {
            let mut out = Vec::new();
            Received { recipient: Some("jörg@mx.example"), with, ..sample() }.write_to(&mut out);
            assert_eq!(String::from_utf8(out).unwrap().contains("jörg"), shown);
        }
    }

    #[test]
    fn return_path_and_delivered_to() {
        let mut out = Vec::new();
        write_return_path(&mut out, "");
        write_return_path(&mut out, "a@example.org");
        write_delivered_to(&mut out, "b@example\r\nX: y");
        assert_eq!(out, b"Return-Path: <>\r\nReturn-Path: <a@example.org>\r\nDelivered-To: b@example??X: y\r\n");
    }
}
