//! Kinds of differences, each judged once. The first that fits counts.

use posthaste_message::mime::{Encoding, Header, Kind, Part};

use super::readers::{Case, KindOf, Read};

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
    ("a zone in another form", "-600 is six hours, JST nine; what is not a zone is UTC", zones),
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

pub(super) fn replaced(case: &Case<'_>) -> bool {
    let shown = match case.what {
        "subject" => case.theirs.subject.contains('\u{fffd}'),
        "addresses" => case.theirs.addresses.iter().any(|address| address.contains('\u{fffd}')),
        "message_id" => case.theirs.message_id.contains('\u{fffd}'),
        _ => false,
    };
    shown && !Header::new(case.bytes).as_bytes().is_ascii()
}

pub(super) fn encodings(case: &Case<'_>) -> bool {
    case.what == "leaves"
        && case.any_part(|part| part.kind() == Kind::Leaf && part.encoding() != Encoding::Identity)
        && same_shape(case)
}

pub(super) fn charsets(case: &Case<'_>) -> bool {
    case.what == "leaves" && same_shape(case) && case.any_part(is_text)
}

pub(super) fn zones(case: &Case<'_>) -> bool {
    case.what == "date"
        && matches!((case.ours.date, case.theirs.date), (Some(ours), Some(theirs)) if (ours - theirs).abs() <= 24 * 3600)
}

/// True if both found the same types in the same order.
fn same_shape(case: &Case<'_>) -> bool {
    let kinds = |read: &Read| read.leaves.iter().map(|(kind, _)| kind.clone()).collect::<Vec<_>>();
    kinds(case.ours) == kinds(case.theirs)
}

fn is_text(part: &Part<'_, '_>) -> bool {
    part.kind() == Kind::Leaf && part.media_type().starts_with("text")
}

pub(super) fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
