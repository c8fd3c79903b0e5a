//! ENVELOPE (RFC 3501 section 7.4.2): header fields as written, without folding.

use std::borrow::Cow;

use posthaste_message::mime::{Header, RawAddress, RawAddresses, unfold};

use crate::answer::Answer;

/// Names of text fields, then of address fields.
const FIELDS: [&str; 10] =
    ["Date", "Subject", "In-Reply-To", "Message-ID", "From", "Sender", "Reply-To", "To", "Cc", "Bcc"];
const TEXTS: usize = 4;

/// Writes the envelope of a header section. Octets above ASCII are sent unchanged, in literals.
pub(crate) fn write(out: &mut Answer<'_>, header: &Header<'_>) {
    let [date, subject, in_reply_to, message_id, from, sender, reply_to, to, cc, bcc] = fields(header);
    out.raw(b"(");
    text(out, date);
    text(out, subject);
    let begin = out.len();
    addresses(out, from);
    let author = begin..out.len();
    // What is not there is the author (RFC 3501 section 7.4.2).
    for other in [sender, reply_to] {
        if other.is_some() || !out.repeat(author.clone()) {
            addresses(out, other.or(from));
        }
    }
    for list in [to, cc, bcc] {
        addresses(out, list);
    }
    text(out, in_reply_to);
    text(out, message_id);
    // In place of the space after the last value.
    out.close();
}

/// The first field of each name; for addresses the first that contains any.
fn fields<'h>(header: &Header<'h>) -> [Option<&'h [u8]>; FIELDS.len()] {
    let mut found = [None; FIELDS.len()];
    for field in header.fields() {
        let Some(at) = FIELDS.iter().position(|name| field.is(name)) else { continue };
        if found[at].is_none() && (at < TEXTS || !field.value.trim_ascii().is_empty()) {
            found[at] = Some(field.value);
        }
    }
    found
}

fn text(out: &mut Answer<'_>, value: Option<&[u8]>) {
    let value = value.map(unfold);
    out.nstring(value.as_deref().map(<[u8]>::trim_ascii));
    out.raw(b" ");
}

/// A substitute domain for addresses without one: NIL would begin or end a group.
const NO_DOMAIN: &[u8] = b"MISSING_DOMAIN";
const NO_MAILBOX: &[u8] = b"MISSING_MAILBOX";

fn addresses(out: &mut Answer<'_>, value: Option<&[u8]>) {
    let mut any = false;
    for item in value.into_iter().flat_map(RawAddresses::new) {
        if out.is_full() {
            break;
        }
        out.raw(if any { b"(" } else { b"((" });
        any = true;
        match &item {
            RawAddress::Mailbox { name, address } => {
                let (mailbox, domain) = address.as_deref().map_or((NO_MAILBOX, NO_DOMAIN), split);
                out.nstring(name.as_deref());
                out.raw(b" NIL ");
                out.string(&unquoted(mailbox));
                out.raw(b" ");
                out.string(domain);
            }
            RawAddress::Group(name) => {
                out.raw(b"NIL NIL ");
                out.string(name);
                out.raw(b" NIL");
            }
            RawAddress::GroupEnd => out.raw(b"NIL NIL NIL NIL"),
        }
        out.raw(b")");
    }
    out.raw(if any { b") " } else { b"NIL " });
}

fn split(address: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memrchr(b'@', address) {
        Some(at) => (&address[..at], &address[at + 1..]),
        None => (address, NO_DOMAIN),
    }
}

/// A local part without its quotes (RFC 3501 section 9, `addr-mailbox`).
fn unquoted(local: &[u8]) -> Cow<'_, [u8]> {
    let Some(quoted) = local.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else { return local.into() };
    let mut is_escaped = false;
    let kept = quoted.iter().copied().filter(|octet| {
        is_escaped = *octet == b'\\' && !is_escaped;
        !is_escaped
    });
    kept.collect::<Vec<u8>>().into()
}

#[cfg(test)]
mod tests {
    use posthaste_message::author_domains;
    use proptest::prelude::*;

    use super::*;

    fn check(header: &[u8], expected: &str) {
        let mut out = Vec::new();
        write(&mut Answer::new(&mut out), &Header::new(header));
        assert_eq!(out.escape_ascii().to_string().replace("\\\"", "\""), expected);
    }

    #[test]
    fn the_example_of_the_standard() {
        check(
            b"Date: Wed, 17 Jul 1996 02:23:25 -0700 (PDT)\r\nFrom: Terry Gray <gray@cac.washington.edu>\r\n\
              Subject: IMAP4rev1 WG mtg summary and minutes\r\nTo: imap@cac.washington.edu\r\n\
              cc: minutes@CNRI.Reston.VA.US, John Klensin <KLENSIN@MIT.EDU>\r\nMessage-Id: <B27397-0100000@cac.washington.edu>\r\n\r\n",
            "(\"Wed, 17 Jul 1996 02:23:25 -0700 (PDT)\" \"IMAP4rev1 WG mtg summary and minutes\" \
             ((\"Terry Gray\" NIL \"gray\" \"cac.washington.edu\")) ((\"Terry Gray\" NIL \"gray\" \"cac.washington.edu\")) \
             ((\"Terry Gray\" NIL \"gray\" \"cac.washington.edu\")) ((NIL NIL \"imap\" \"cac.washington.edu\")) \
             ((NIL NIL \"minutes\" \"CNRI.Reston.VA.US\")(\"John Klensin\" NIL \"KLENSIN\" \"MIT.EDU\")) NIL NIL \
             \"<B27397-0100000@cac.washington.edu>\")",
        );
    }

    #[test]
    fn groups_octets_and_nothing_at_all() {
        check(b"", "(NIL NIL NIL NIL NIL NIL NIL NIL NIL NIL)");
        check(
            b"To: undisclosed-recipients:;\r\nSubject:\r\n",
            "(NIL \"\" NIL NIL NIL ((NIL NIL \"undisclosed-recipients\" NIL)(NIL NIL NIL NIL)) NIL NIL NIL NIL)",
        );
        check(
            b"Subject: caf\xe9\r\n\tau\r\n lait\r\nFrom: root\r\nReply-To: \r\n",
            "(NIL {12}\\r\\ncaf\\xe9\\tau lait ((NIL NIL \"root\" \"MISSING_DOMAIN\")) ((NIL NIL \"root\" \"MISSING_DOMAIN\")) \
             ((NIL NIL \"root\" \"MISSING_DOMAIN\")) NIL NIL NIL NIL NIL)",
        );
        check(
            b"Cc: \"Only, a name\"\r\n",
            "(NIL NIL NIL NIL NIL NIL ((\"Only, a name\" NIL \"MISSING_MAILBOX\" \"MISSING_DOMAIN\")) NIL NIL NIL)",
        );
    }

    #[test]
    fn a_local_part_stands_without_its_quotes() {
        check(
            b"To: \"two words\"@b, \"a b\"@b, a@b, \"\"@b\r\n",
            "(NIL NIL NIL NIL NIL ((NIL NIL \"two words\" \"b\")(NIL NIL \"a b\" \"b\")(NIL NIL \"a\" \"b\")(NIL NIL \"\" \"b\")) \
             NIL NIL NIL NIL)",
        );
        assert_eq!(&*unquoted(b"\"a\\\\b\\\"c\""), b"a\\b\"c");
        assert_eq!(&*unquoted(b"\"a"), b"\"a");
    }

    #[test]
    fn a_million_recipients_are_cut() {
        let header = [&b"To: "[..], &b"a@b, ".repeat(1_000_000)[..], b"\r\nCc: c@d\r\n"].concat();
        let mut out = Vec::new();
        write(&mut Answer::new(&mut out), &Header::new(&header));
        assert!(out.len() < (1 << 20) + 1000 && out.ends_with(b" NIL NIL NIL NIL)"), "{}", out.len());
    }

    /// Pieces of odd From fields: comments, quotes, folding, groups, brackets, obsolete domains.
    const PIECES: &[&str] = &[
        "ceo",
        "@",
        "bank",
        ".",
        "example",
        "<",
        ">",
        "(",
        ")",
        "\"",
        " ",
        "\\",
        ",",
        ";",
        ":",
        "a@x.example",
        "ceo@bank.example",
        "<a@x.example>",
        "<ceo@bank.example>",
        "\"q\"",
        "(c)",
        "\r\n ",
        "=?utf-8?q?a?=",
        "Boss ",
        "\"a@x.example\"",
        "[1]",
    ];

    proptest! {
        /// The domain that DMARC asks for is the one that mail programs show.
        #[test]
        fn the_checked_author_is_the_one_that_is_shown(pieces in prop::collection::vec(prop::sample::select(PIECES), 1..8)) {
            let value = pieces.concat();
            let (checked, mut shown) = (author_domains(value.as_bytes()), Vec::new());
            for item in RawAddresses::new(value.as_bytes()) {
                if let RawAddress::Mailbox { address: Some(address), .. } = item
                    && address.contains(&b'@')
                {
                    let domain = String::from_utf8_lossy(split(&address).1).trim_end_matches('.').to_lowercase();
                    if !domain.is_empty() && !shown.contains(&domain) {
                        shown.push(domain);
                    }
                }
            }
            prop_assert!(checked.is_empty() || checked == shown, "{value:?}: {checked:?}, {shown:?}");
        }
    }
}
