//! Laws over generated input, and a second opinion on what is read and written.

use imap_codec::ResponseCodec;
use imap_codec::decode::{Decoder, ResponseDecodeError};
use posthaste_imap::session::ImapConfig;
use proptest::prelude::*;

use crate::common::Host;

fn session(octets: &[u8], cuts: &[usize]) -> (Vec<u8>, bool) {
    let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (octets.len() + 1)).collect();
    cuts.sort_unstable();
    cuts.push(octets.len());
    let mut from = 0;
    for cut in cuts {
        host.read(&octets[from..cut]);
        assert!(host.closed || host.input.len() <= 64 << 10, "{} octets wait", host.input.len());
        from = cut;
    }
    assert!(host.piece_bytes_max <= 128 << 10, "{} octets of a message at once", host.piece_bytes_max);
    (host.output, host.closed)
}

const LINES: &[&[u8]] = &[
    b"a LOGIN ann secret\r\n",
    b"b LOGIN {3}\r\nann {6+}\r\nsecret\r\n",
    b"c AUTHENTICATE PLAIN\r\nAGFubgBzZWNyZXQ=\r\n",
    b"d EXAMINE INBOX\r\n",
    b"\r\n",
    b"e UID FETCH 1:* (FLAGS BODY[] ENVELOPE BODYSTRUCTURE BODY[1]<2.5>)\r\n",
    b"f SEARCH TEXT {4+}\r\nnoon UNSEEN\r\n",
    b"g IDLE\r\nDONE\r\n",
    b"h APPEND INBOX {5+}\r\nhello\r\n",
    b"i APPEND x {70000+}\r\n",
    b"h1 APPEND INBOX {6}\r\na\nb\r\nc\r\n",
    b"h2 APPEND INBOX (\\Seen k) {3+}\r\nabc {2+}\r\nxy\r\n",
    b"h3 APPEND INBOX {2+}\r\n\x00\r\r\n",
    b"h4 APPEND INBOX {3+}\r\nabc (\\Seen) ~{2+}\r\nxy {1}\r\nz\r\n",
    b"h5 FETCH 1:* (BINARY.SIZE[1] BINARY[1]<2.3> BINARY.PEEK[2.1] BINARY[])\r\n",
    b"r1 STORE 1:2 +FLAGS.SILENT (\\Deleted new)\r\n",
    b"r2 UID STORE 1:* (UNCHANGEDSINCE 5) -FLAGS \\Seen\r\n",
    b"r3 EXPUNGE\r\n",
    b"r4 UID MOVE 2 Sent\r\n",
    b"r5 COPY 1:* INBOX\r\n",
    b"r6 RENAME Sent Drafts/x\r\n",
    b"r7 DELETE INBOX\r\n",
    b"r8 SELECT Drafts (CONDSTORE)\r\n",
    b"r9 CREATE {3+}\r\na/b\r\n",
    b"j NOOP {3+}\r\n\r\n\r\n",
    b"k {9000+}\r\n",
    b"l LIST \"\" %*%\n",
    b"m LOGIN {100000}\r\n",
    b"n NOOP (((((\r\n",
    b"\x00\xff{1}\r\n",
    b"o LOGOUT\r\n",
    b"p CLOSE\r\n",
    b"q STATUS Entw&APw-rfe (MESSAGES)\r\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_answers(
        lines in prop::collection::vec((0..LINES.len(), prop::collection::vec(any::<u8>(), 0..3)), 1..12),
        logged_in in any::<bool>(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut octets = if logged_in { b"x LOGIN ann secret\r\ny SELECT INBOX\r\n".to_vec() } else { Vec::new() };
        for (line, noise) in lines {
            octets.extend_from_slice(LINES[line]);
            if noise.len() == 2 {
                octets.extend_from_slice(&noise);
            }
        }
        prop_assert_eq!(session(&octets, &[]), session(&octets, &cuts));
    }

    #[test]
    fn any_octets_are_answered_without_a_panic(octets in prop::collection::vec(any::<u8>(), 0..300)) {
        let all = [b"x LOGIN ann secret\r\ny SELECT INBOX\r\nz FETCH 1 ", &octets[..], b"\r\n"].concat();
        session(&all, &[]);
        session(&octets, &[7, 50]);
    }
}

/// Every answer that imap-codec knows the grammar of is decoded by it.
#[test]
fn answers_are_decoded_by_another_codec() {
    let commands = [
        "a LOGIN ann secret",
        "b CAPABILITY",
        "c LIST \"\" * RETURN (STATUS (MESSAGES UIDNEXT UIDVALIDITY UNSEEN RECENT))",
        "d LSUB \"\" *",
        "e STATUS INBOX (MESSAGES UIDNEXT UIDVALIDITY UNSEEN RECENT)",
        "f SELECT INBOX",
        "g FETCH 1:* FULL",
        "h UID FETCH 1:* (BODYSTRUCTURE RFC822 RFC822.HEADER RFC822.TEXT BODY[] BODY[1] BODY[2.MIME] BODY[2.HEADER] BODY[TEXT])",
        "i FETCH 1:* (BODY[HEADER.FIELDS (From To)] BODY[HEADER.FIELDS.NOT (From)]<3.5> BODY[9]<0.1>)",
        "j SEARCH ALL",
        "k SEARCH FROM nobody",
        "l STORE 1 +FLAGS (\\Seen new)",
        "l1 UID STORE 1:* -FLAGS (\\Flagged)",
        "l2 COPY 1:2 Sent",
        "l3 UID MOVE 2 Sent",
        "l4 APPEND INBOX (\\Seen) {5+}\r\nhello",
        "l5 STORE 1 +FLAGS (\\Deleted)",
        "l6 EXPUNGE",
        "l7 CREATE Junk (USE (\\Junk))",
        "l8 CREATE Junk",
        "l9 FETCH 1 BODY[]",
        "m SEARCH CHARSET x ALL",
        "n FETCH 9 FLAGS",
        "o LOGOUT",
    ];
    let octets = commands.map(|command| format!("{command}\r\n")).concat();
    let (output, closed) = session(octets.as_bytes(), &[]);
    assert!(closed);
    let (mut rest, mut count) = (&output[..], 0);
    while !rest.is_empty() {
        let shown = || rest[..rest.len().min(600)].escape_ascii().to_string();
        match ResponseCodec::default().decode(rest) {
            Ok((after, _)) => rest = after,
            Err(ResponseDecodeError::LiteralFound { length }) => {
                panic!("cut off at a literal of {length}: {}", shown())
            }
            Err(error) => panic!("{error:?}: {}", shown()),
        }
        count += 1;
    }
    assert!(count > 50, "only {count} answers");
}

/// MAILBOXES' list of hostile input, as far as it concerns commands: an answer or BYE for each, and never more memory than a command may have.
#[test]
fn hostile_commands_are_answered() {
    let login = "x LOGIN ann secret\r\ny SELECT INBOX\r\n";
    let literals = format!("a SEARCH {}\r\n", "{1+}\r\nx ".repeat(10_000));
    let long = |start: &str, piece: &str, count: usize, end: &str| format!("{start}{}{end}\r\n", piece.repeat(count));
    for (octets, expected) in [
        (literals, "a NO [TOOBIG]"),
        ("a LOGIN {4294967296}\r\n".into(), "a NO [TOOBIG]"),
        ("a LOGIN {-1}\r\n".into(), "a BAD"),
        ("a SEARCH SUBJECT {0010+}\r\n0123456789\r\n".into(), "* SEARCH\r\na OK"),
        (long("a SEARCH ", "NOT ", 10_000, "ALL"), "a NO [LIMIT]"),
        (long("a SEARCH ", "OR ALL ", 5000, "ALL"), "a NO [LIMIT]"),
        (long("a SEARCH ", "ALL ", 2000, "ALL"), "a NO [LIMIT]"),
        (long("a SEARCH ", "(", 30_000, ""), "a NO [LIMIT]"),
        ("a SEARCH 1:4294967295\r\n".into(), "* SEARCH 1 2 3\r\na OK"),
        ("a UID SEARCH UID *:1\r\n".into(), "* SEARCH 1 2 7\r\na OK"),
        (long("a SEARCH ", "1,", 30_000, "2"), "* SEARCH 1 2\r\na OK"),
        (long("a FETCH 1 BODY[1", ".1", 1000, "]"), "a NO [LIMIT]"),
        (long("a FETCH 1 (", "UID ", 5000, "UID)"), "a NO [LIMIT]"),
        (long("a FETCH 3 BODY[HEADER.FIELDS (", "x ", 10_000, "x)]"), "* 3 FETCH (BODY[HEADER.FIELDS (x x"),
        (long("a LIST \"\" \"", "%*", 900, "\""), "* LIST"),
        (long("a LIST \"\" \"", "%*", 2000, "\""), "a NO [LIMIT]"),
        ("a STATUS & (MESSAGES)\r\n".into(), "a NO [NONEXISTENT]"),
        ("a STATUS \"&AGE-\" (MESSAGES)\r\n".into(), "a NO [NONEXISTENT]"),
        ("a STATUS .. (MESSAGES)\r\n".into(), "a NO [NONEXISTENT]"),
        ("a STATUS / (MESSAGES)\r\n".into(), "a NO [NONEXISTENT]"),
        ("a NOOP \0\r\n".into(), "a BAD"),
        (long("a", "x", 70_000, ""), "* BAD"),
        ("a APPEND INBOX {4294967296}\r\n".into(), "a NO [TOOBIG]"),
        ("a APPEND INBOX {18446744073709551616}\r\n".into(), "a NO [TOOBIG]"),
        ("a APPEND INBOX {10000000000+}\r\nx".into(), "* BYE [TOOBIG]"),
        ("a APPEND INBOX {-1}\r\n".into(), "a BAD"),
        (format!("a APPEND Nowhere {{2000000+}}\r\n{}", "x".repeat(2_000_000) + "\r\n"), "a NO [TRYCREATE]"),
        (format!("a APPEND INBOX {{2000000+}}\r\n{}", "\0".repeat(2_000_000) + "\r\n"), "a NO [UNKNOWN-CTE]"),
        (format!("a APPEND INBOX {{300000+}}\r\n{}", "\n".repeat(300_000) + "\r\n"), "* 4 EXISTS"),
        (long("a STORE 1 +FLAGS (", "x", 201, ")"), "a NO [LIMIT]"),
        (long("a APPEND INBOX (", "x", 201, ") {3}"), "a NO [LIMIT]"),
        ("a APPEND INBOX {3+}\r\nabc {10000000000+}\r\nx".into(), "* BYE [TOOBIG]"),
        ("a APPEND INBOX {3+}\r\nabc {10000000000}\r\n".into(), "a NO [TOOBIG]"),
        (long("a APPEND INBOX", " {1+}\r\nx", 10_001, ""), "a NO [LIMIT]"),
        (long("a APPEND INBOX {1+}\r\nx (", "k ", 40_000, "k) {1+}\r\nx"), "a BAD"),
        (long("a FETCH 1 (", "BINARY[1]<0.1> ", 100, "BINARY[1])"), "a NO [LIMIT]"),
        (long("a FETCH 1 BINARY[1", ".1", 1000, "]"), "a NO [LIMIT]"),
        (long("a FETCH 1 (", "ENVELOPE ", 999, "ENVELOPE)"), "* 1 FETCH (ENVELOPE (\"Tue"),
        ("a STORE 1 +FLAGS (\0)\r\n".into(), "a BAD"),
        (
            format!("a STORE 1 FLAGS ({})\r\n", (0..56).map(|n| format!("k{n}")).collect::<Vec<_>>().join(" ")),
            "a NO [LIMIT]",
        ),
        (
            long("a STORE 1 FLAGS (", "k ", 20_000, "k)"),
            "* FLAGS (\\Answered \\Flagged \\Deleted \\Seen \\Draft k $Junk)",
        ),
        ("a UID STORE 1:4294967295,*:1 +FLAGS.SILENT (\\Seen)\r\n".into(), "a OK"),
        ("a STORE 1 (UNCHANGEDSINCE 18446744073709551616) FLAGS ()\r\n".into(), "a BAD"),
        ("a FETCH 1 FLAGS (CHANGEDSINCE -1)\r\n".into(), "a BAD"),
        (long("a COPY ", "1,", 30_000, "1 Sent"), "a OK [COPYUID 1003 1 1]"),
        (long("a CREATE ", "x/", 11, "x"), "a NO [CANNOT]"),
        (long("a CREATE ", "x", 60_000, ""), "a NO [CANNOT]"),
        ("a CREATE \"\"\r\n".into(), "a NO [CANNOT]"),
        ("a CREATE /\r\n".into(), "a NO [CANNOT]"),
        ("a CREATE &AAA-\r\n".into(), "a NO [CANNOT]"),
        ("a SUBSCRIBE #news\r\n".into(), "a NO [CANNOT]"),
        (long("a CREATE x (USE (", "\\Junk ", 5000, "\\Junk))"), "a NO [USEATTR]"),
    ] {
        let (output, _) = session(format!("{login}{octets}").as_bytes(), &[]);
        let output = String::from_utf8_lossy(&output);
        let answer = output.split_once("SELECT completed\r\n").unwrap().1;
        let shown = (&octets[..octets.len().min(60)], &answer[..answer.len().min(100)]);
        assert!(answer.starts_with(expected), "{shown:?}");
    }
}

#[test]
fn commands_before_login_are_smaller() {
    let (output, closed) =
        session(format!("a LOGIN ann {{9000+}}\r\n{}\r\nb NOOP\r\n", "x".repeat(9000)).as_bytes(), &[]);
    assert_eq!(String::from_utf8(output).unwrap(), "a NO [TOOBIG] That command is too long\r\nb OK NOOP completed\r\n");
    assert!(!closed);
    let (output, closed) = session(b"a LOGIN ann {10000000000+}\r\n", &[]);
    assert_eq!(String::from_utf8(output).unwrap(), "* BYE [TOOBIG] That command is too long\r\n");
    assert!(closed);
}

/// Decision 29: a command has 64 KiB with its literals; what is more is read and dropped, 1 MiB of it.
#[test]
fn commands_after_login_have_a_limit() {
    let login = b"a LOGIN ann secret\r\nb SELECT INBOX\r\n";
    for (octets, wait, expected, ends) in [
        (65_000, "+", "* SEARCH\r\nc OK", false),
        (66_000, "+", "c NO [TOOBIG]", false),
        (66_000, "", "c NO [TOOBIG]", false),
        (1_000_000, "+", "c NO [TOOBIG]", false),
        (1_100_000, "+", "* BYE [TOOBIG]", true),
    ] {
        let text = if wait.is_empty() { String::new() } else { "x".repeat(octets) + "\r\n" };
        let command = format!("c SEARCH SUBJECT {{{octets}{wait}}}\r\n{text}");
        let (output, closed) = session(&[login, command.as_bytes()].concat(), &[]);
        let output = String::from_utf8(output).unwrap();
        let answer = output.split_once("SELECT completed\r\n").unwrap().1;
        assert!(answer.starts_with(expected), "{octets}{wait}: {answer}");
        assert_eq!(closed, ends, "{octets}{wait}");
    }
}

/// Decision 34.
#[test]
fn a_search_has_a_limit_of_keys_and_depth() {
    let nested = |depth: usize| format!("{}ALL{}", "(".repeat(depth), ")".repeat(depth));
    for (keys, expected) in [
        ("ALL ".repeat(990) + "ALL", "* SEARCH 1 2 3\r\nc OK"),
        ("ALL ".repeat(1010) + "ALL", "c NO [LIMIT]"),
        ("NOT NOT ".repeat(14) + "ALL", "* SEARCH 1 2 3\r\nc OK"),
        ("NOT NOT ".repeat(17) + "ALL", "c NO [LIMIT]"),
        (nested(28), "* SEARCH 1 2 3\r\nc OK"),
        (nested(34), "c NO [LIMIT]"),
    ] {
        let octets = format!("a LOGIN ann secret\r\nb SELECT INBOX\r\nc SEARCH {keys}\r\n");
        let (output, _) = session(octets.as_bytes(), &[]);
        let output = String::from_utf8(output).unwrap();
        let answer = output.split_once("SELECT completed\r\n").unwrap().1;
        assert!(answer.starts_with(expected), "{} octets of keys: {answer}", keys.len());
    }
}

/// Decision 25: each login sees the names of its account alone.
#[test]
fn nothing_is_shared() {
    let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
    let mut ask = |command: &str| {
        host.output.clear();
        host.read(format!("{command}\r\n").as_bytes());
        String::from_utf8(host.output.clone()).unwrap()
    };
    let has_acl = |said: &str| said.split([' ', ']', '\r']).any(|word| word == "ACL" || word.starts_with("RIGHTS="));
    for command in ["a CAPABILITY", "b LOGIN ann secret", "c CAPABILITY"] {
        let said = ask(command);
        assert!(said.contains("IMAP4rev1") && !has_acl(&said), "{said}");
    }
    assert_eq!(ask("d NAMESPACE"), "* NAMESPACE ((\"\" \"/\")) NIL NIL\r\nd OK NAMESPACE completed\r\n");
    for command in ["GETACL INBOX", "SETACL INBOX bob lr", "MYRIGHTS INBOX", "LISTRIGHTS INBOX bob"] {
        assert!(ask(&format!("e {command}")).starts_with("e BAD"), "{command}");
    }
    for name in
        ["user/bob", "\"Other Users/bob\"", "bob/INBOX", "../bob", "#shared/bob", "~bob/INBOX", "bob@example.org"]
    {
        assert!(ask(&format!("f STATUS {name} (MESSAGES)")).starts_with("f NO "), "{name}");
        assert!(ask(&format!("g SELECT {name}")).starts_with("g NO "), "{name}");
        assert!(!ask(&format!("h LIST \"\" {name}")).contains("* LIST"), "{name}");
    }
}

#[test]
fn octets_after_starttls_end_the_session() {
    let mut config = ImapConfig::new("mail.example.org");
    config.starttls = true;
    let mut host = Host::new(config, false);
    host.read(b"a STARTTLS\r\nb LOGIN ann secret\r\n");
    assert_eq!(host.output, b"* BYE Octets after STARTTLS\r\n");
    assert!(host.closed);
}

/// A look lists the whole directory, which the command itself has changed.
#[test]
fn own_changes_ask_for_no_look_at_others() {
    let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
    host.read(b"x LOGIN ann secret\r\nw APPEND INBOX {3+}\r\nabc\r\ny SELECT INBOX\r\n");
    for (command, looks) in [
        (&b"a NOOP"[..], 1),
        (b"b APPEND INBOX {3+}\r\nabc", 0),
        (b"c STORE 1:2 +FLAGS (\\Deleted)", 0),
        (b"d UID STORE 1 -FLAGS.SILENT (\\Seen)", 0),
        (b"e COPY 1 Sent", 0),
        (b"f MOVE 2 Sent", 0),
        (b"g FETCH 2 BODY[]", 0),
        (b"h FETCH 2 BODY[]", 1),
        (b"i EXPUNGE", 0),
        (b"j CHECK", 1),
        (b"k APPEND Nowhere {3+}\r\nabc", 1),
        (b"l IDLE\r\nDONE", 2),
    ] {
        host.looks = 0;
        host.output.clear();
        host.read(&[command, b"\r\n"].concat());
        let output = String::from_utf8_lossy(&host.output);
        assert_eq!(host.looks, looks, "{}: {output}", command.escape_ascii());
    }
}
