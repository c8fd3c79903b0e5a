//! Dovecot's list of UIDs, the file `dovecot-uidlist` in a Maildir, for a server that continues its UIDs.
//!
//! Version 3: a head `3 V<validity> N<next UID> G<guid>`, then a line for each message, `<uid> [<field> ...] :<file
//! name>`, in ascending order of UIDs. The name is without flags. Field `P` is the message's UIDL of POP3.

use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroU32;

/// The list's name in a Maildir.
pub const UIDLIST_FILE: &str = "dovecot-uidlist";
/// This server's own list, for people and for restoring a mailbox.
///
/// Its head is `1 V<validity> N<next UID>`. A line `<uid> <key>` for each message follows, in ascending order of UIDs. A key with a line end is left out. It may be older than its mailbox.
pub const OWN_UIDLIST_FILE: &str = "posthaste-uids";
/// A longer line is invalid: a name has at most 255 octets, and fields are short.
const LINE_BYTES_MAX: u64 = 4096;

/// A list, read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UidList {
    /// UIDVALIDITY.
    pub validity: NonZeroU32,
    /// The next UID, above all listed ones. It is that of the head, unless messages were appended since.
    pub next: NonZeroU32,
    /// Messages, ascending by UID.
    pub messages: Vec<ListedUid>,
}

/// A message of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedUid {
    /// UID of the message.
    pub uid: NonZeroU32,
    /// File name without flags.
    pub name: Box<[u8]>,
    /// UIDL, if it is not Dovecot's default.
    pub uidl: Option<Box<[u8]>>,
}

/// Error of reading a list.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UidListError {
    /// The list cannot be read.
    #[error("cannot read {UIDLIST_FILE}: {0}")]
    Io(#[from] io::Error),
    /// A malformed line.
    #[error("line {line} of {UIDLIST_FILE}: {why}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// The mistake.
        why: &'static str,
    },
}

impl UidList {
    /// Reads a list of at most `messages_max` messages.
    ///
    /// # Errors
    /// [`UidListError`]: a malformed line rejects the whole list. Otherwise messages would get other UIDs without need.
    pub fn read(from: impl Read, messages_max: usize) -> Result<Self, UidListError> {
        Self::read_lines(from, messages_max, b"3", message)
    }

    /// Reads a list written by this server: names are keys.
    ///
    /// # Errors
    /// [`UidListError`].
    pub fn read_own(from: impl Read, messages_max: usize) -> Result<Self, UidListError> {
        Self::read_lines(from, messages_max, b"1", own_message)
    }

    /// The text of a list in this server's format.
    pub fn own_text<'a>(validity: u32, next: u32, messages: impl Iterator<Item = (u32, &'a str)>) -> String {
        use std::fmt::Write as _;
        let mut text = format!("1 V{validity} N{next}\n");
        for (uid, key) in messages.filter(|(_, key)| !key.is_empty() && !key.contains(['\n', '\r'])) {
            // A `String` takes everything.
            let _ = writeln!(text, "{uid} {key}");
        }
        text
    }

    fn read_lines(
        from: impl Read,
        messages_max: usize,
        version: &[u8],
        message: ReadLine,
    ) -> Result<Self, UidListError> {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        if !next_line(&mut from, &mut line, 1)? {
            return Err(UidListError::Line { line: 1, why: "it is empty" });
        }
        let (validity, mut next) = head(&line, version).map_err(|why| UidListError::Line { line: 1, why })?;
        let mut messages: Vec<ListedUid> = Vec::new();
        let mut number = 1;
        loop {
            number += 1;
            if !next_line(&mut from, &mut line, number)? {
                return Ok(Self { validity, next, messages });
            }
            let failed = |why| UidListError::Line { line: number, why };
            let message = message(&line).map_err(failed)?;
            if messages.last().is_some_and(|last| last.uid >= message.uid) {
                return Err(failed("its UID is not above the last one"));
            }
            // The head is of the last time that the whole list was written: Dovecot appends new messages and leaves it as it is.
            next = next.max(message.uid.checked_add(1).ok_or_else(|| failed("no UID is left above it"))?);
            if messages.len() == messages_max {
                return Err(failed("too many messages"));
            }
            messages.push(message);
        }
    }
}

/// Parses the line of a message, or returns the mistake.
type ReadLine = fn(&[u8]) -> Result<ListedUid, &'static str>;

/// Reads the next line without its end; false after the last one.
fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>, number: u64) -> Result<bool, UidListError> {
    line.clear();
    from.take(LINE_BYTES_MAX).read_until(b'\n', line)?;
    match line.pop() {
        None => Ok(false),
        Some(b'\n') => {
            // A copy that went through another system. Dovecot's names do not end so.
            line.pop_if(|last| *last == b'\r');
            Ok(true)
        }
        // Dovecot appends whole lines: a line without its end is being written, or its file was cut short.
        Some(_) => Err(UidListError::Line { line: number, why: "it is too long or incomplete" }),
    }
}

fn head(line: &[u8], version: &[u8]) -> Result<(NonZeroU32, NonZeroU32), &'static str> {
    let mut fields = line.split(|octet| *octet == b' ');
    if fields.next() != Some(version) {
        return Err("this version is unknown");
    }
    let mut validity = None;
    let mut next = None;
    for field in fields.filter(|field| !field.is_empty()) {
        match field[0] {
            b'V' if validity.is_none() => validity = Some(uid(&field[1..]).ok_or("V is not a UIDVALIDITY")?),
            b'N' if next.is_none() => next = Some(uid(&field[1..]).ok_or("N is not a UID")?),
            b'V' | b'N' => return Err("a field comes twice"),
            // The GUID of the mailbox, and what a later version adds.
            _ => {}
        }
    }
    Ok((validity.ok_or("UIDVALIDITY is missing")?, next.ok_or("the next UID is missing")?))
}

fn message(line: &[u8]) -> Result<ListedUid, &'static str> {
    // No field has a colon after a blank; a name may.
    let colon = line.windows(2).position(|two| two == b" :").ok_or("it has no file name")?;
    let mut fields = line[..colon].split(|octet| *octet == b' ');
    let uid = fields.next().and_then(uid).ok_or("it has no UID")?;
    let name = name(&line[colon + 2..])?;
    let uidl = fields.find_map(|field| field.strip_prefix(b"P")).filter(|uidl| !uidl.is_empty());
    Ok(ListedUid { uid, name, uidl: uidl.map(Into::into) })
}

fn own_message(line: &[u8]) -> Result<ListedUid, &'static str> {
    let blank = line.iter().position(|octet| *octet == b' ').ok_or("it has no key")?;
    let uid = uid(&line[..blank]).ok_or("it has no UID")?;
    Ok(ListedUid { uid, name: name(&line[blank + 1..])?, uidl: None })
}

fn name(name: &[u8]) -> Result<Box<[u8]>, &'static str> {
    if name.is_empty() || name.len() > 255 || name.iter().any(|octet| matches!(octet, b'/' | 0)) {
        Err("that is not a file name")
    } else {
        Ok(name.into())
    }
}

/// Parses decimal digits without a sign.
fn uid(digits: &[u8]) -> Option<NonZeroU32> {
    let digits = str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|octet| octet.is_ascii_digit()))?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Result<UidList, UidListError> {
        UidList::read(text, 1000)
    }

    fn failing_line(text: &[u8]) -> u64 {
        match read(text) {
            Err(UidListError::Line { line, .. }) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_list_of_dovecot_is_read() {
        let text = b"3 V1275660208 N25022 G3085f01b7f11094c501100008c4a11c1\n\
            25006 :1276528487.M364837P9451.kurkku,S=1355,W=1394\n\
            25017 W2481 P4c0a-1 :1276533073.M242911P3632.kurkku:odd\n";
        let list = read(text).unwrap();
        assert_eq!((list.validity.get(), list.next.get()), (1_275_660_208, 25_022));
        let message = |uid: u32, name: &str, uidl: Option<&str>| ListedUid {
            uid: NonZeroU32::new(uid).unwrap(),
            name: name.as_bytes().into(),
            uidl: uidl.map(|uidl| uidl.as_bytes().into()),
        };
        let first = message(25_006, "1276528487.M364837P9451.kurkku,S=1355,W=1394", None);
        let second = message(25_017, "1276533073.M242911P3632.kurkku:odd", Some("4c0a-1"));
        assert_eq!(list.messages, [first, second]);
        assert_eq!(read(b"3 V1 N1\n").unwrap().messages, []);
        let with_crlf = text.to_vec().escape_ascii().to_string().replace("\\n", "\r\n");
        assert_eq!(read(with_crlf.as_bytes()).unwrap(), list);
    }

    /// Dovecot rewrites the head only with the whole list, such as after an expunge.
    #[test]
    fn messages_that_were_appended_move_the_next_uid() {
        let list = read(b"3 V1795804824 N5 G63f1\n1 :a\n4 :b\n5 :c\n9 :d\n").unwrap();
        assert_eq!((list.next.get(), list.messages.len()), (10, 4));
        assert_eq!(read(b"3 V1 N1\n1 :a\n").unwrap().next.get(), 2);
    }

    #[test]
    fn lines_that_make_no_sense_are_named() {
        for text in [
            &b""[..],
            b"1 1275660208 25022\n",
            b"3 V1\n",
            b"3 N1\n",
            b"3 V0 N1\n",
            b"3 V1 N0\n",
            b"3 V4294967296 N1\n",
            b"3 V1 V2 N1\n",
            b"3 V+1 N1\n",
            b"3 V1 N9",
        ] {
            assert_eq!(failing_line(text), 1, "{}", text.escape_ascii());
        }
        for line in ["0 :a", "4294967295 :a", "5", "5 :", "5 :a/b", "-5 :a", "4294967296 :a", ":a", "", "5 :a\0"] {
            assert_eq!(failing_line(format!("3 V1 N9\n{line}\n").as_bytes()), 2, "{line:?}");
        }
        assert_eq!(failing_line(b"3 V1 N9\n5 :a\n5 :b\n"), 3, "the same UID twice");
        assert_eq!(failing_line(b"3 V1 N9\n5 :a\n4 :b\n"), 3, "a lower one");
        assert_eq!(failing_line(b"3 V1 N9\n5 :a\n6 :b"), 3, "cut short");
    }

    #[test]
    fn endless_lines_and_lists_end() {
        assert_eq!(failing_line(&[b'3'; 10_000]), 1);
        let endless = (&b"3 V1 N9\n5 :"[..]).chain(io::repeat(b'x').take(4 << 30));
        assert!(matches!(UidList::read(endless, 10), Err(UidListError::Line { line: 2, .. })));
        let many: String = (1..=11).map(|uid| format!("{uid} :m{uid}\n")).collect();
        let list = UidList::read(format!("3 V1 N99\n{many}").as_bytes(), 10);
        assert!(matches!(list, Err(UidListError::Line { line: 12, .. })), "{list:?}");
    }

    #[test]
    fn an_own_list_is_read_as_it_was_written() {
        let messages = [(2, "1.a.h"), (3, "two words"), (4, "no\nline"), (9, "J5R0000002aT0")];
        let text = UidList::own_text(7, 12, messages.into_iter());
        assert_eq!(text, "1 V7 N12\n2 1.a.h\n3 two words\n9 J5R0000002aT0\n");
        let list = UidList::read_own(text.as_bytes(), 10).unwrap();
        assert_eq!((list.validity.get(), list.next.get(), list.messages.len()), (7, 12, 3));
        assert_eq!((list.messages[1].uid.get(), &*list.messages[1].name), (3, &b"two words"[..]));
        for line in ["0 a", "x a", "5", "5 ", "5 a/b", " a", ""] {
            let read = UidList::read_own(format!("1 V1 N9\n{line}\n").as_bytes(), 10);
            assert!(matches!(read, Err(UidListError::Line { line: 2, .. })), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_was_written(
            uids in prop::collection::btree_set(1u32..5000, 0..20),
            name in "[a-zA-Z0-9.:,= ]{1,30}",
            more in 1u32..100,
        ) {
            let next = uids.last().copied().unwrap_or(0) + more;
            let lines: String = uids.iter().map(|uid| format!("{uid} W7 :{name}{uid}\n")).collect();
            let list = read(format!("3 V7 N{next} Gx\n{lines}").as_bytes()).unwrap();
            prop_assert_eq!(list.messages.len(), uids.len());
            for (message, uid) in list.messages.iter().zip(uids) {
                prop_assert_eq!(message.uid.get(), uid);
                let expected = format!("{name}{uid}");
                prop_assert_eq!(&*message.name, expected.as_bytes());
            }
        }

        #[test]
        fn hostile_octets_are_errors_or_lists(octets in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(list) = read(&[b"3 V1 N99\n", &octets[..]].concat()) {
                prop_assert!(list.messages.is_sorted_by(|one, next| one.uid < next.uid));
                prop_assert!(list.messages.last().is_none_or(|last| last.uid < list.next));
            }
        }
    }
}
