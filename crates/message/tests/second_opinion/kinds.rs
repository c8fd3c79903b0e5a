//! The kinds of differences, each judged once. The first that fits counts.

use super::{Case, KindOf, Read};
use posthaste_message::mime::{Encoding, Header, Kind, Part};

pub(super) const KINDS: [KindOf; 14] = [
    (
        "repeated fields",
        "every To and Cc counts and of others the first, as in most programs; theirs takes the last",
        |case| {
            case.what != "leaves"
                && ["From", "To", "Cc", "Subject", "Date", "Message-ID"].iter().any(|name| case.count(name) > 1)
        },
    ),
    (
        "nothing of a header",
        "a damaged header is read as far as it goes, and a name alone counts; theirs has nothing",
        |case| {
            case.what != "leaves"
                && *case.theirs
                    == Read {
                        leaves: case
                            .theirs
                            .leaves
                            .iter()
                            .map(|(kind, octets)| (kind.clone(), octets.clone()))
                            .collect(),
                        ..Read::default()
                    }
        },
    ),
    ("local names", "a word without an @ is somebody", |case| {
        case.what == "addresses"
            && case.theirs.addresses.is_subset(&case.ours.addresses)
            && case.ours.addresses.difference(&case.theirs.addresses).all(|address| !address.contains('@'))
    }),
    ("bare octets in a header", "read in the charset of the body or windows-1252; theirs has U+FFFD", replaced),
    ("encoded words", "read wherever they stand, joined, with any charset label", |case| {
        case.what == "subject" && contains(&case.value("Subject"), b"=?")
    }),
    ("obsolete addresses", "without blanks, routes and comments; a literal may hold colons", |case| {
        let bare = |text: &String| text.split_whitespace().collect::<String>();
        let bare = |text: &String| {
            bare(text)
                .rsplit_once(':')
                .filter(|(route, _)| route.starts_with('@'))
                .map_or_else(|| bare(text), |(_, one)| one.to_owned())
        };
        case.what == "addresses"
            && case
                .theirs
                .addresses
                .iter()
                .all(|address| case.ours.addresses.iter().any(|one| bare(one) == bare(address)))
    }),
    ("a quoted local part with an @", "belongs to the address; theirs drops it", |case| {
        case.what == "addresses" && case.theirs.addresses.iter().any(|address| address.starts_with('@'))
    }),
    ("the last line", "counts without a line end too", |case| {
        case.what == "message_id" && case.theirs.message_id.is_empty() && !case.bytes.ends_with(b"\n")
    }),
    ("a date in another form", "read; theirs has none", |case| case.what == "date" && case.theirs.date.is_none()),
    ("a zone in another form", "-600 is six hours, JST nine; what is no zone is UTC", zones),
    (
        "an encoding that is damaged",
        "decoded as far as it goes, uuencode too; theirs leaves such a part as it stands",
        encodings,
    ),
    ("charsets", "more labels, UTF-7's shifts, a guess where there is no label or a wrong one", charsets),
    ("a multipart without boundaries", "a text; where the name is missing, the likely one is found", |case| {
        case.what == "leaves"
            && case.any_part(|part| {
                part.content_type().is_some_and(|kind| contains(&kind.to_ascii_lowercase(), b"multipart"))
                    && part.type_parameter("boundary").is_none()
            })
    }),
    (
        "where parts begin and end",
        "a boundary is a whole line, the outer one ends all within, a header without an empty line ends at its last field, and news is a message",
        |case| {
            case.what == "leaves"
                && (case.any_part(|part| part.kind() != Kind::Leaf || part.media_type().starts_with("multipart/"))
                    || !contains(case.bytes, b"\n\n"))
        },
    ),
];

pub(super) const PYTHON_KINDS: [KindOf; 13] = [
    ("lines that end in CR", "a bare CR is no line end: who can write one would write fields", |case| {
        case.bytes.iter().zip(case.bytes.iter().skip(1).chain([&0])).any(|(one, next)| *one == b'\r' && *next != b'\n')
            && case.what != "leaves"
            || !case.bytes.contains(&b'\n')
    }),
    ("lines that are no fields", "passed over, blanks before a colon are read; theirs ends the header there", |case| {
        let header = Header::new(case.bytes);
        let fields: usize = header.fields().map(|field| field.end - field.start).sum();
        let end = header.fields().last().map_or(0, |field| field.end);
        fields != end || header.fields().any(|field| case.bytes[field.start + field.name.len()] != b':')
    }),
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
    ("a word behind quotes", "the quotes are a name; theirs makes one address of both", |case| {
        case.what == "addresses" && case.theirs.addresses.iter().any(|address| address.starts_with('"'))
    }),
    ("a date in another form", "read; theirs has none", |case| case.what == "date" && case.theirs.date.is_none()),
    ("a zone in another form", "a comment does not hide it, GMT+0100 is one hour; what is no zone is UTC", zones),
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

/// Messages of the kinds that the project's corpus does not have.
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

fn replaced(case: &Case<'_>) -> bool {
    let shown = match case.what {
        "subject" => case.theirs.subject.contains('\u{fffd}'),
        "addresses" => case.theirs.addresses.iter().any(|address| address.contains('\u{fffd}')),
        "message_id" => case.theirs.message_id.contains('\u{fffd}'),
        _ => false,
    };
    shown && !Header::new(case.bytes).as_bytes().is_ascii()
}

fn encodings(case: &Case<'_>) -> bool {
    case.what == "leaves"
        && case.any_part(|part| part.kind() == Kind::Leaf && part.encoding() != Encoding::Identity)
        && same_shape(case)
}

fn charsets(case: &Case<'_>) -> bool {
    case.what == "leaves" && same_shape(case) && case.any_part(is_text)
}

fn zones(case: &Case<'_>) -> bool {
    case.what == "date"
        && matches!((case.ours.date, case.theirs.date), (Some(ours), Some(theirs)) if (ours - theirs).abs() <= 24 * 3600)
}

/// Whether both found the same types in the same order.
fn same_shape(case: &Case<'_>) -> bool {
    let kinds = |read: &Read| read.leaves.iter().map(|(kind, _)| kind.clone()).collect::<Vec<_>>();
    kinds(case.ours) == kinds(case.theirs)
}

fn is_text(part: &Part<'_, '_>) -> bool {
    part.kind() == Kind::Leaf && part.media_type().starts_with("text")
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
