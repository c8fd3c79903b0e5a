//! The mbox format (RFC 4155): messages one after the other in a file, each after a line that begins with `From `.
//!
//! Lines of a message that look like such a line get a leading `>`, one more if they have some (mboxrd). Also reads
//! files with the older quoting (mboxo), with CRLF, or with missing empty lines. Other programs keep flags in the
//! fields `Status`, `X-Status` and `X-Keywords`.

use std::io::{self, BufRead};

use memchr::memchr;

use crate::DateTime;

const FROM: &[u8] = b"From ";
/// Longest piece of a line.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Kept octets of a field with flags.
const FIELD_BYTES_MAX: usize = 8 << 10;
const FIELDS: [&str; 3] = ["status", "x-status", "x-keywords"];
/// Index of the one that may have several lines.
const KEYWORDS: usize = 2;
/// Field of a pseudo-message in which other programs keep data.
const INTERNAL: &[u8] = b"x-imap:";
const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The `From ` line of a message, with its line end. A blank in `sender` becomes `_`; an empty one becomes
/// `MAILER-DAEMON`.
pub fn from_line(sender: &str, unix_secs: u64) -> String {
    let sender = if sender.is_empty() { "MAILER-DAEMON" } else { sender };
    // As `asctime` writes it, in UTC: `Sun Nov  6 08:49:37 1994`.
    let date = DateTime::from_unix(i64::try_from(unix_secs).unwrap_or(i64::MAX)).to_string();
    let words: Vec<&str> = date.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let day = words[1].trim_start_matches('0');
    format!("From {} {} {} {day:>2} {} {}\n", sender.replace(' ', "_"), words[0], words[2], words[4], words[3])
}

/// Quotes the text of a message in pieces, however it is cut.
#[derive(Debug)]
pub struct MboxQuoting {
    /// Held bytes of a `From ` at the start of the line; `None`: the line begins otherwise.
    held: Option<usize>,
}

impl Default for MboxQuoting {
    fn default() -> Self {
        Self { held: Some(0) }
    }
}

impl MboxQuoting {
    /// Appends the next piece, quoted.
    pub fn push(&mut self, text: &[u8], out: &mut Vec<u8>) {
        for &byte in text {
            match self.held {
                // Another `>` has the same effect at any place among them.
                Some(0) if byte == b'>' => out.push(byte),
                Some(held) if byte == FROM[held] => {
                    self.held = Some(held + 1);
                    if held + 1 == FROM.len() {
                        out.push(b'>');
                        out.extend_from_slice(FROM);
                        self.held = None;
                    }
                }
                held => {
                    out.extend_from_slice(&FROM[..held.unwrap_or(0)]);
                    out.push(byte);
                    self.held = (byte == b'\n').then_some(0);
                }
            }
        }
    }

    /// Appends the empty line after a message, and a missing end of its last line.
    pub fn end(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&FROM[..self.held.unwrap_or(0)]);
        let is_whole_line = self.held == Some(0);
        out.extend_from_slice(if is_whole_line { b"\n" } else { b"\n\n" });
    }
}

/// A message of an mbox file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MboxMessage {
    /// Octets before its `From ` line.
    pub offset: u64,
    /// The date of this line, in UTC unless the line has a zone.
    pub date: Option<DateTime>,
}

/// Values of the fields with flags. Complete once the message's text was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MboxFields {
    /// Values of `Status`, `X-Status` and `X-Keywords`.
    values: [Option<Vec<u8>>; 3],
    /// True for a pseudo-message with another program's data.
    pub is_internal: bool,
}

impl MboxFields {
    /// IMAP's names of the flags: `R` seen, `A` answered, `F` flagged, `D` deleted, `T` draft; keywords unchanged.
    pub fn flags(&self) -> Vec<String> {
        let text = |at: usize| self.values[at].as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let letters = text(0).into_owned() + &text(1);
        let system = [('R', "\\Seen"), ('A', "\\Answered"), ('F', "\\Flagged"), ('D', "\\Deleted"), ('T', "\\Draft")];
        let system = system.iter().filter(|(letter, _)| letters.contains(*letter)).map(|(_, name)| (*name).to_owned());
        system.chain(text(2).split_whitespace().map(str::to_owned)).collect()
    }

    /// Writes the three fields for these flags, so that a reader uses them instead of any in the message. X-Keywords is
    /// not the last, as the message may begin with a blank.
    pub fn write(flags: &[String]) -> String {
        let has = |name: &str| flags.iter().any(|flag| flag.eq_ignore_ascii_case(name));
        let letter = |name: &str, letter: &'static str| if has(name) { letter } else { "" };
        let keywords: Vec<&str> = flags.iter().map(String::as_str).filter(|flag| !flag.starts_with('\\')).collect();
        format!(
            "X-Keywords: {}\nStatus: {}O\nX-Status: {}{}{}{}\n",
            keywords.join(" "),
            letter("\\Seen", "R"),
            letter("\\Answered", "A"),
            letter("\\Flagged", "F"),
            letter("\\Deleted", "D"),
            letter("\\Draft", "T")
        )
    }
}

/// Reads an mbox file message by message, each in pieces, in bounded memory.
#[derive(Debug)]
pub struct MboxReader<R> {
    reader: R,
    /// Offset of the next octet to read.
    offset: u64,
    /// A line, or a piece of a long one.
    line: Vec<u8>,
    /// True if `line` begins a line.
    starts: bool,
    /// An empty line, which belongs to the message unless another follows.
    blank: Vec<u8>,
    /// The message begun by the last line.
    next: Option<MboxMessage>,
    fields: MboxFields,
    /// The header field being taken out.
    taken: Option<usize>,
    in_header: bool,
    has_begun: bool,
}

impl<R: BufRead> MboxReader<R> {
    /// A reader from the offset of a `From ` line on.
    pub fn new(reader: R, offset: u64) -> Self {
        Self {
            reader,
            offset,
            line: Vec::new(),
            starts: true,
            blank: Vec::new(),
            next: None,
            fields: MboxFields::default(),
            taken: None,
            in_header: false,
            has_begun: false,
        }
    }

    /// The next message; skips the rest of the last one. `None` at the end.
    ///
    /// # Errors
    /// `InvalidData` if the file does not begin with a `From ` line; errors of the reader.
    pub fn next_message(&mut self) -> io::Result<Option<MboxMessage>> {
        if !self.has_begun {
            self.has_begun = true;
            while self.read_line()? {
                if self.line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let Some(date) = separator(&self.line, true) else {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not begin with a line `From …`"));
                };
                let offset = self.offset - self.line.len() as u64;
                self.next = Some(MboxMessage { offset, date });
                break;
            }
        }
        let mut rest = Vec::new();
        while self.next.is_none() && self.piece(&mut rest)? {
            rest.clear();
        }
        let next = self.next.take();
        (self.fields, self.taken, self.in_header) = (MboxFields::default(), None, next.is_some());
        Ok(next)
    }

    /// Appends a piece of the message's text, unquoted and without the fields with flags. False at its end.
    ///
    /// # Errors
    /// Errors of the reader.
    pub fn piece(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let begun = out.len();
        while out.len() == begun {
            if self.next.is_some() || !self.read_line()? {
                // The rest is the empty line after the last message.
                self.blank.clear();
                return Ok(false);
            }
            if !self.starts {
                if self.taken.is_none() {
                    out.extend_from_slice(&self.line);
                }
                continue;
            }
            if let Some(date) = separator(&self.line, !self.blank.is_empty()) {
                let offset = self.offset - self.line.len() as u64;
                self.next = Some(MboxMessage { offset, date });
                continue;
            }
            out.append(&mut self.blank);
            if matches!(&self.line[..], b"\n" | b"\r\n") {
                (self.in_header, self.taken) = (false, None);
                self.blank.extend_from_slice(&self.line);
                continue;
            }
            if !self.in_header || !self.takes_field() {
                self.taken = None;
                out.extend_from_slice(unquoted(&self.line));
            }
        }
        Ok(true)
    }

    /// Fields of the message just read.
    pub fn fields(&self) -> &MboxFields {
        &self.fields
    }

    /// Takes the first field of each kind. Lines that begin with a blank continue X-Keywords only: the others are a few
    /// letters.
    fn takes_field(&mut self) -> bool {
        let goes_on = self.line.starts_with(b" ") || self.line.starts_with(b"\t");
        if goes_on {
            let of_keywords = self.taken.filter(|at| *at == KEYWORDS);
            if let Some(at) = of_keywords {
                self.keep(at, 0);
            }
            return of_keywords.is_some();
        }
        let is = |name: &[u8]| self.line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        self.fields.is_internal |= is(INTERNAL);
        let of = |name: &&str| is(name.as_bytes()) && self.line.get(name.len()) == Some(&b':');
        self.taken = FIELDS.iter().position(of).filter(|at| self.fields.values[*at].is_none());
        if let Some(at) = self.taken {
            self.keep(at, FIELDS[at].len() + 1);
        }
        self.taken.is_some()
    }

    fn keep(&mut self, at: usize, from: usize) {
        let value = self.fields.values[at].get_or_insert_default();
        let room = FIELD_BYTES_MAX.saturating_sub(value.len());
        value.extend(self.line[from..].iter().take(room));
    }

    /// Reads a line, or a piece of one. False at the end.
    fn read_line(&mut self) -> io::Result<bool> {
        self.starts = self.line.is_empty() || self.line.ends_with(b"\n");
        self.line.clear();
        while self.line.len() < PIECE_BYTES_MAX {
            let some = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                some => some?,
            };
            let some = &some[..some.len().min(PIECE_BYTES_MAX - self.line.len())];
            let end = memchr(b'\n', some).map(|at| at + 1);
            let len = end.unwrap_or(some.len());
            self.line.extend_from_slice(&some[..len]);
            self.reader.consume(len);
            self.offset += len as u64;
            if end.is_some() || len == 0 {
                break;
            }
        }
        Ok(!self.line.is_empty())
    }
}

/// The date of a line that begins a message. A line without a date begins one only if nothing else is possible: some
/// programs write `From -` or nothing, after an empty line.
#[allow(clippy::option_option, reason = "a line that begins a message may have no date")]
fn separator(line: &[u8], is_after_blank: bool) -> Option<Option<DateTime>> {
    let rest = line.strip_prefix(FROM)?;
    let text = String::from_utf8_lossy(rest.get(..rest.len().min(1000))?);
    if is_after_blank && matches!(text.trim(), "" | "-") {
        return Some(None);
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.windows(4).position(|words| {
        let is_weekday = WEEKDAYS.contains(&words[0]);
        is_weekday && words[2].parse::<u8>().is_ok() && words[3].contains(':')
    })?;
    // A host may follow, as in `remote from host`.
    let words = &words[at..words.len().min(at + 7)];
    let words = words.iter().position(|word| *word == "remote").map_or(words, |end| &words[..end]);
    DateTime::parse(words.join(" ").as_bytes()).map(Some)
}

fn unquoted(line: &[u8]) -> &[u8] {
    let quotes = line.iter().take_while(|byte| **byte == b'>').count();
    if quotes > 0 && line[quotes..].starts_with(FROM) { &line[1..] } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = (Option<i64>, Vec<String>, Vec<u8>);

    fn read(file: &[u8], buffer: usize) -> io::Result<Vec<Read>> {
        let mut reader = MboxReader::new(io::BufReader::with_capacity(buffer, file), 0);
        let mut all = Vec::new();
        while let Some(message) = reader.next_message()? {
            let mut text = Vec::new();
            while reader.piece(&mut text)? {}
            let date = message.date.map(DateTime::unix_secs);
            all.push((date, reader.fields().flags(), text));
            assert!(file[message.offset as usize..].starts_with(FROM));
        }
        Ok(all)
    }

    fn texts(file: &[u8]) -> Vec<String> {
        let whole = read(file, 8192).unwrap();
        assert_eq!(read(file, 1).unwrap(), whole, "a piece at a time");
        whole.into_iter().map(|(_, _, text)| String::from_utf8_lossy(&text).into_owned()).collect()
    }

    #[test]
    fn messages_are_told_apart_in_all_dialects() {
        let check = |file: &str, expected: &[&str]| assert_eq!(texts(file.as_bytes()), expected, "{file:?}");
        let a = "From a@b Sun Nov  6 08:49:37 1994\n";
        check("", &[]);
        check(a, &[""]);
        check(&format!("{a}S: x\n\none\n\n{a}S: y\n\ntwo\n\n"), &["S: x\n\none\n", "S: y\n\ntwo\n"]);
        // The last line end and the empty lines are missing.
        check(&format!("\n\n{a}S: x\n\none\n{a}two"), &["S: x\n\none\n", "two"]);
        check(&format!("{a}x\n\n>From a\n>>From b\n> From\n\n"), &["x\n\nFrom a\n>From b\n> From\n"]);
        // Without a date it is text; after an empty line and alone it begins a message.
        check(&format!("{a}x\n\nFrom here on\nFrom \n\nFrom \ny\n"), &["x\n\nFrom here on\nFrom \n", "y\n"]);
        check(
            "From - Sun Nov 06 08:49:37 1994\r\nS: x\r\n\r\ny\r\n\r\nFrom - Sun Nov 06 08:49:37 1994\r\n\r\n",
            &["S: x\r\n\r\ny\r\n", ""],
        );
        check("From a b c Sun Nov  6 08:49 PST 1994 remote from x\ny\n", &["y\n"]);
        check(&format!("{a}\n\n\n\n"), &["\n\n\n"]);
    }

    #[test]
    fn dates_of_from_lines_are_read() {
        let check = |line: &str, expected: Option<i64>| {
            assert_eq!(read(format!("From {line}\n").as_bytes(), 8192).unwrap()[0].0, expected, "{line}");
        };
        check("x Sun Nov  6 08:49:37 1994", Some(784_111_777));
        check("x Sun Nov  6 09:49:37 +0100 1994", Some(784_111_777));
        check("x Sun Nov  6 08:49:37 1994 +0000", Some(784_111_777));
        check("", None);
        let line = from_line("a b", 784_111_777);
        assert_eq!(line, "From a_b Sun Nov  6 08:49:37 1994\n");
        assert_eq!(read(line.as_bytes(), 8192).unwrap()[0].0, Some(784_111_777));
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        for file in ["Subject: x\n\ny\n", "From \0nobody\n", "\u{7f}ELF"] {
            assert_eq!(read(file.as_bytes(), 8192).unwrap_err().kind(), io::ErrorKind::InvalidData, "{file:?}");
        }
    }

    #[test]
    fn the_first_fields_with_flags_are_taken_out() {
        let file = "From x Sun Nov  6 08:49:37 1994\nSTATUS: RO\nX-Keywords: a\n $b\nSubject: x\nStatus: none\nX-Status: AFDT\n\nStatus: R\n";
        let [(_, flags, text)] = &read(file.as_bytes(), 8192).unwrap()[..] else { panic!("one") };
        assert_eq!(flags.join(" "), "\\Seen \\Answered \\Flagged \\Deleted \\Draft a $b");
        assert_eq!(String::from_utf8_lossy(text), "Subject: x\nStatus: none\n\nStatus: R\n");
        let file = "From x Sun Nov  6 08:49:37 1994\nX-Keywords: a\nStatus: RO\n text of a message without a header\n";
        let [(_, flags, text)] = &read(file.as_bytes(), 8192).unwrap()[..] else { panic!("one") };
        assert_eq!(
            (flags.join(" "), &text[..]),
            ("\\Seen a".to_owned(), &b" text of a message without a header\n"[..])
        );
        let internal = read(b"From x Sun Nov  6 08:49:37 1994\nX-IMAP: 1 2\n\n", 8192).unwrap();
        assert_eq!(internal.len(), 1);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let message = b"Status: mine\nFrom here\n\n>From there\nFrom x Sun Nov  6 08:49:37 1994\n\n\n";
        let flags: Vec<String> = ["\\Seen", "\\Draft", "$Junk", "b"].map(str::to_owned).into();
        for len in 0..=message.len() {
            for cut in 0..=len {
                let mut file = (from_line("", 5) + &MboxFields::write(&flags)).into_bytes();
                let mut quoting = MboxQuoting::default();
                quoting.push(&message[..cut], &mut file);
                quoting.push(&message[cut..len], &mut file);
                quoting.end(&mut file);
                let twice = [&file[..], &file].concat();
                let all = read(&twice, 8192).unwrap();
                assert_eq!(all.len(), 2, "{len} {cut}");
                let mut expected = message[..len].to_vec();
                if expected.last().is_some_and(|last| *last != b'\n') {
                    expected.push(b'\n');
                }
                for (date, read_flags, text) in all {
                    assert_eq!((date, &read_flags), (Some(5), &flags));
                    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&expected), "{len} {cut}");
                }
            }
        }
    }

    #[test]
    fn a_line_without_end_takes_little_memory() {
        let head = b"From x Sun Nov  6 08:49:37 1994\nX-Status: ".to_vec();
        let file = [head, vec![b'A'; 3 << 20], b"\n\n".to_vec(), vec![b'y'; 5 << 20]].concat();
        let mut reader = MboxReader::new(&file[..], 0);
        reader.next_message().unwrap().unwrap();
        let (mut piece, mut octets) = (Vec::new(), 0);
        while reader.piece(&mut piece).unwrap() {
            assert!(piece.len() <= 2 * PIECE_BYTES_MAX, "{}", piece.len());
            octets += piece.len();
            piece.clear();
        }
        assert_eq!((octets, reader.fields().values[1].as_ref().unwrap().len()), ((5 << 20) + 1, FIELD_BYTES_MAX));
    }

    #[test]
    fn quoting_is_the_same_however_the_text_is_cut() {
        let text = b"From a\n>From b\n>>> From c\nFrom\nFro\n\nFFrom d\n>>From ";
        let expected = b">From a\n>>From b\n>>> From c\nFrom\nFro\n\nFFrom d\n>>>From \n\n";
        for cut in 0..=text.len() {
            let (mut quoting, mut out) = (MboxQuoting::default(), Vec::new());
            quoting.push(&text[..cut], &mut out);
            quoting.push(&text[cut..], &mut out);
            quoting.end(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(expected), "{cut}");
        }
    }
}
