//! Kinds of differences from Python's `email`, and messages of kinds missing in the project's corpus.

use posthaste_message::mime::{Header, Kind};

use super::kinds::{charsets, contains, encodings, replaced, zones};
use super::readers::KindOf;

pub(super) const PYTHON_KINDS: [KindOf; 13] = [
    ("lines that end in CR", "a bare CR is not a line end: who can write one would write fields", |case| {
        case.bytes.iter().zip(case.bytes.iter().skip(1).chain([&0])).any(|(one, next)| *one == b'\r' && *next != b'\n')
            && case.what != "leaves"
            || !case.bytes.contains(&b'\n')
    }),
    (
        "lines that are not fields",
        "passed over, blanks before a colon are read; theirs ends the header there",
        |case| {
            let header = Header::new(case.bytes);
            let fields: usize = header.fields().map(|field| field.end - field.start).sum();
            let end = header.fields().last().map_or(0, |field| field.end);
            fields != end || header.fields().any(|field| case.bytes[field.start + field.name.len()] != b':')
        },
    ),
    ("bare octets in a header", "read in the charset of the body or windows-1252; theirs has U+FFFD", replaced),
    ("encoded words", "an address is not decoded, a word may hold bare octets and cut characters", |case| {
        ["subject", "addresses"].contains(&case.what) && contains(case.bytes, b"=?")
    }),
    ("obsolete addresses", "without blanks, routes and comments", |case| {
        let bare = |text: &String| text.split_whitespace().collect::<String>();
        case.what == "addresses"
            && case
                .theirs
                .addresses
                .iter()
                .filter(|one| !one.starts_with('@'))
                .all(|address| case.ours.addresses.iter().any(|one| bare(one) == bare(address)))
    }),
    ("a word after quotes", "the quotes are a name; theirs makes one address of both", |case| {
        case.what == "addresses" && case.theirs.addresses.iter().any(|address| address.starts_with('"'))
    }),
    ("a date in another form", "read; theirs has none", |case| case.what == "date" && case.theirs.date.is_none()),
    ("a zone in another form", "a comment does not hide it, GMT+0100 is one hour; what is not a zone is UTC", zones),
    ("parts of message/*", "only rfc822, global and news hold messages; theirs takes every one apart", |case| {
        case.what == "leaves"
            && case.any_part(|part| part.kind() == Kind::Leaf && part.media_type().starts_with("message/"))
    }),
    (
        "an encoding that is damaged",
        "decoded as far as it goes; theirs stops earlier, or drops what it cannot pad",
        encodings,
    ),
    ("charsets", "more labels, UTF-7's shifts, a guess where there is no label or a wrong one", charsets),
    ("an empty multipart", "has no part that could be a leaf", |case| {
        case.what == "leaves"
            && case.theirs.leaves.iter().any(|(kind, _)| kind.starts_with("multipart/"))
            && case.any_part(|part| part.kind() == Kind::Multipart)
    }),
    (
        "where parts begin and end",
        "a boundary is a whole line, the likely one is found where none is named, and depth has a limit",
        |case| {
            case.what == "leaves"
                && case.any_part(|part| part.kind() != Kind::Leaf || part.media_type().starts_with("multipart/"))
        },
    ),
];

/// Messages of kinds missing in the project's corpus.
pub(super) const OWN: [&[u8]; 20] = [
    b"From: root\n\nx\n",
    b"Subject: x\nCc: a@x.example, \"b@x.example\"@y.example\n\nx\n",
    b"Subject: x\nFrom: root\nTo: somebody\n\nx\n",
    b"From: J\xfcrgen <j\xf6rg@x.example>\nSubject: Gr\xfc\xdfe\n\nx\n",
    b"Subject: x\nFrom: \"a@x.example\"b@x.example\n\nx\n",
    b"Subject: x\nDate: Thursday, April 09, 2003 9:00 AM\n\nx\n",
    b"Date: Wed, 11 Feb 98 11:51 CST\nSubject: x\n\nx\n",
    b"Subject: x\nDate: 2003-04-09T09:00:00Z\n\nx\n",
    b"Date: 4 Mar 2025 10:00:00 -600\n\nx\n",
    b"Date: 4 Mar 2025 10:00:00 (here) GMT+0100\n\nx\n",
    b"Content-Type: text/plain; charset=utf-7\n\n10 +-1 +AOQ-\n",
    b"Content-Type: multipart/mixed\n\nno boundary at all\n",
    b"Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; x.example\n\nAction: failed\n--b--\n",
    b"Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: multipart/alternative; boundary=i\n\n--b\n\nx\n--b--\n",
    b"Subject: x\nno empty line\n",
    b"Subject: =?utf-8?Q?caf\xe9?=\n\nx\n",
    b"From: =?utf-8?Q?a=40b?= <c@x.example>\nTo: =?utf-8?Q?ann=40x.example?=\n\nx\n",
    b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b-- a footer\n--b\n\ntwo\n",
    b"\nFrom: a@x.example\n",
    b"Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: multipart/digest; boundary=i\n--i\n\nSubject: in\n\nx\n--i--\n--b--\n",
];
