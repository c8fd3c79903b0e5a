//! Kept structures: answers are those of the messages, which are not parsed again.

use posthaste_imap::session::ImapConfig;

use crate::common::Host;

fn selected() -> Host {
    let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
    host.read(b"x LOGIN ann secret\r\ny EXAMINE INBOX\r\n");
    host
}

/// The answer, and messages that were parsed for it.
fn fetched(host: &mut Host, items: &str) -> (String, usize) {
    host.output.clear();
    host.parsed = 0;
    host.read(format!("a FETCH 1:* {items}\r\n").as_bytes());
    (String::from_utf8_lossy(&host.output).into_owned(), host.parsed)
}

#[test]
fn parts_of_a_known_structure_are_not_parsed_again() {
    for items in [
        "BODYSTRUCTURE",
        "BODY.PEEK[1]",
        "BODY.PEEK[1]<2.3>",
        "BODY.PEEK[2.MIME]",
        "BODY.PEEK[2.HEADER]",
        "BODY.PEEK[2.TEXT]",
        "BODY.PEEK[2.1]",
        "BODY.PEEK[9.9]",
        "BINARY.PEEK[1]",
        "BINARY.SIZE[2]",
        "(ENVELOPE BODYSTRUCTURE BODY.PEEK[1])",
        "(BODY.PEEK[HEADER] BODYSTRUCTURE BODY.PEEK[TEXT])",
        "(BODY.PEEK[HEADER.FIELDS (SUBJECT)] BODYSTRUCTURE)",
    ] {
        let mut host = selected();
        let first = fetched(&mut host, items);
        assert!(first.0.ends_with("a OK FETCH completed\r\n") && first.1 == 3, "{first:?}");
        assert_eq!(fetched(&mut host, items), (first.0, 0), "{items}");
    }
}

#[test]
fn what_a_structure_lacks_is_read() {
    for items in ["BODY", "BODY.PEEK[2.HEADER.FIELDS (SUBJECT)]", "(BODYSTRUCTURE BODY.PEEK[2.HEADER.FIELDS.NOT (TO)])"]
    {
        let mut host = selected();
        let first = fetched(&mut host, items);
        fetched(&mut host, "BODYSTRUCTURE");
        assert_eq!(fetched(&mut host, items), first, "{items}");
        assert_eq!(first.1, 3);
    }
}

/// A file may have been written to since.
#[test]
fn a_structure_of_other_octets_finds_no_part() {
    let mut host = selected();
    let (expected, _) = fetched(&mut host, "BODY.PEEK[1]");
    host.mix_up_structures(2, 1);
    assert_eq!(fetched(&mut host, "BODY.PEEK[1]"), (expected.clone(), 1));
    assert_eq!(fetched(&mut host, "BODY.PEEK[1]"), (expected, 0), "it is kept anew");
}
