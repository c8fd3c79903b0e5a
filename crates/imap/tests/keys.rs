//! Kept values of headers: SORT, THREAD and SEARCH of common fields read no header again, and their answers stay the same.

use posthaste_imap::session::ImapConfig;

use crate::common::Host;

fn selected() -> Host {
    let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
    host.read(b"x LOGIN ann secret\r\ny EXAMINE INBOX\r\n");
    host
}

/// The answer, and messages that were read for it.
fn answered(host: &mut Host, command: &str) -> (String, usize) {
    host.output.clear();
    host.reads = 0;
    host.read(format!("a {command}\r\n").as_bytes());
    (String::from_utf8_lossy(&host.output).into_owned(), host.reads)
}

/// Commands, and how often they read known messages. The header of one of the three has octets that only its body may
/// explain: a text is looked for in both.
const COMMANDS: [(&str, usize); 12] = [
    ("SORT (DATE) UTF-8 ALL", 0),
    ("SORT (REVERSE SUBJECT FROM) UTF-8 ALL", 0),
    ("UID SORT (TO CC) UTF-8 NOT SUBJECT nowhere", 2),
    ("SORT (DISPLAYFROM DISPLAYTO) UTF-8 ALL", 0),
    ("THREAD REFERENCES UTF-8 ALL", 0),
    ("THREAD ORDEREDSUBJECT UTF-8 ALL", 0),
    ("SEARCH SUBJECT e", 2),
    ("SEARCH SUBJECT \"\"", 2),
    ("SEARCH FROM a", 2),
    ("UID SEARCH RETURN (ALL COUNT) TO a", 2),
    ("SEARCH NOT CC nowhere", 2),
    ("SEARCH OR SUBJECT e SEEN", 2),
];

#[test]
fn headers_are_read_once_for_all_that_compares_them() {
    for (first, again) in COMMANDS {
        let mut host = selected();
        let (expected, read) = answered(&mut host, first);
        assert!(expected.contains("\r\na OK ") && read > again, "{first}: {expected} {read}");
        assert_eq!(answered(&mut host, first), (expected, again), "{first}");
        for (command, again) in COMMANDS {
            let fresh = answered(&mut selected(), command).0;
            let (told, read) = answered(&mut host, command);
            assert_eq!(told, fresh, "{command} after {first}");
            // The one that a flag has decided is read now, once.
            assert!(read == again || first.contains("SEEN") && read == again + 1, "{command} after {first}: {read}");
        }
    }
}

#[test]
fn what_is_not_kept_is_read() {
    for command in [
        "SEARCH SENTSINCE 1-Jan-1990",
        "SEARCH BCC a",
        "SEARCH HEADER X-Other a",
        "SEARCH BODY e",
        "SORT (SUBJECT) UTF-8 SENTSINCE 1-Jan-1990",
    ] {
        let mut host = selected();
        let first = answered(&mut host, command);
        answered(&mut host, "SORT (DATE) UTF-8 ALL");
        assert!(first.1 > 0, "{command}");
        assert_eq!(answered(&mut host, command), first, "{command}");
    }
}
