//! Templates of the human-readable part of notifications, built in or from files.
//!
//! A template is `Subject: …`, an empty line, and a text. `${host}` and other names are replaced; [`RECIPIENTS`] is on
//! a line of its own. A replacement cannot add a line to a header.

use std::fs;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The templates of all notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wording {
    /// At least one recipient has failed.
    pub failed: Template,
    /// No recipient has failed, some are late.
    pub delayed: Template,
    /// All were delivered, or passed on.
    pub delivered: Template,
    /// At least one has failed, and the message's sender cannot be notified.
    pub double_bounced: Template,
}

/// A validated subject and text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub(super) subject: String,
    /// Ends with a line feed.
    pub(super) text: String,
}

/// Error in a directory of templates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WordingError {
    /// A file or the directory cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A file's name is not that of a template.
    #[error("{}: no such template; the names are {}", path.display(), NAMES.join(", "))]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// A malformed template.
    #[error("{}:{}: {}", path.display(), error.line, error.what)]
    Template {
        /// The file.
        path: PathBuf,
        /// The mistake and its line.
        error: TemplateError,
    },
}

/// A mistake in a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TemplateError {
    /// Line number, from 1.
    pub line: usize,
    /// The mistake, in words.
    pub what: String,
}

impl Default for Wording {
    fn default() -> Self {
        let built_in = |text: &str| Template::parse(text).expect("it is built in");
        Wording {
            failed: built_in(FAILED),
            delayed: built_in(DELAYED),
            delivered: built_in(DELIVERED),
            double_bounced: built_in(DOUBLE_BOUNCED),
        }
    }
}

impl Wording {
    /// Reads the templates of a directory. Missing ones are the built-in templates. Blocks.
    ///
    /// # Errors
    /// See [`WordingError`]. Hidden files, and names that do not end with `.txt`, are ignored.
    pub fn read(dir: &Path) -> Result<Self, WordingError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| WordingError::Read { path, error }
        };
        let mut wording = Wording::default();
        for entry in fs::read_dir(dir).map_err(failed(dir))? {
            let path = entry.map_err(failed(dir))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.starts_with('.') || !name.ends_with(".txt") {
                continue;
            }
            let template = match name {
                "failure.txt" => &mut wording.failed,
                "delay.txt" => &mut wording.delayed,
                "success.txt" => &mut wording.delivered,
                "double-bounce.txt" => &mut wording.double_bounced,
                _ => return Err(WordingError::Name { path }),
            };
            let text = read(&path).map_err(failed(&path))?;
            *template = Template::parse(&text).map_err(|error| WordingError::Template { path, error })?;
        }
        Ok(wording)
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let at = |line: usize, what: &str| TemplateError { line, what: what.to_owned() };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(at(1, "a template has at most 16 KiB"));
        }
        // Some editors put this in front.
        let mut lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines();
        let subject = lines.next().and_then(|line| line.strip_prefix("Subject:")).map(str::trim);
        let subject = subject.filter(|subject| !subject.is_empty());
        let subject = subject.ok_or_else(|| at(1, "the first line is `Subject: ` and a subject"))?;
        if lines.next().is_none_or(|line| !line.trim().is_empty()) {
            return Err(at(2, "put an empty line between subject and text"));
        }
        if subject.len() > SUBJECT_BYTES_MAX {
            return Err(at(1, "a subject has at most 200 bytes"));
        }
        if let Some(what) = mistake(subject) {
            return Err(TemplateError { line: 1, what });
        }
        let mut text = String::new();
        let mut lists = 0;
        for (number, line) in (3..).zip(lines) {
            let line = line.trim_end();
            if line.trim_start() == RECIPIENTS {
                lists += 1;
                text.push_str(RECIPIENTS);
            } else if let Some(what) = mistake(line) {
                return Err(TemplateError { line: number, what });
            } else if line.len() > LINE_BYTES_MAX {
                return Err(at(number, "a line has at most 900 bytes"));
            } else {
                text.push_str(line);
            }
            text.push('\n');
        }
        if lists != 1 {
            let what = format!("`{RECIPIENTS}` stands once, on a line of its own; here it does {lists} times");
            return Err(TemplateError { line: text.lines().count() + 2, what });
        }
        Ok(Template { subject: subject.to_owned(), text })
    }
}

/// Replaces the names in a text. Unknown names stay; a validated template has none.
pub(super) fn filled(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        out.push_str(before);
        let name = behind.strip_prefix('{').and_then(|name| name.split_once('}'));
        rest = match name.and_then(|(name, behind)| Some((value(name)?, behind))) {
            Some((value, behind)) => {
                out.push_str(&value);
                behind
            }
            None => {
                out.push('$');
                behind.strip_prefix('$').unwrap_or(behind)
            }
        };
    }
    out.push_str(rest);
    out
}

/// Returns the mistake in a line without a list of recipients.
fn mistake(line: &str) -> Option<String> {
    if let Some(letter) = line.chars().find(|letter| letter.is_control() || is_line_or_direction(*letter)) {
        return Some(format!("the control character {}", letter.escape_unicode()));
    }
    let mut rest = line;
    while let Some((_, behind)) = rest.split_once('$') {
        if let Some(behind) = behind.strip_prefix('$') {
            rest = behind;
            continue;
        }
        let name = behind.strip_prefix('{').and_then(|name| name.split_once('}'));
        let Some((name, behind)) = name else {
            return Some("write `$$` for a `$` that begins no `${name}`".to_owned());
        };
        if !VALUES.contains(&name) {
            let known = VALUES.map(|name| format!("${{{name}}}")).join(", ");
            return Some(format!("`${{{name}}}` cannot stand here; known are {known}, and {RECIPIENTS} as a line"));
        }
        rest = behind;
    }
    None
}

/// True for characters that some programs take for a line end, and for those that change the direction of text.
pub(super) fn is_line_or_direction(letter: char) -> bool {
    matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // A device has no end.
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Placeholder line for the recipients.
pub(super) const RECIPIENTS: &str = "${recipients}";
/// The other placeholders.
const VALUES: [&str; 3] = ["host", "to", "received"];
const NAMES: [&str; 4] = ["failure.txt", "delay.txt", "success.txt", "double-bounce.txt"];
const FILE_BYTES_MAX: u64 = 16 << 10;
const SUBJECT_BYTES_MAX: usize = 200;
const LINE_BYTES_MAX: usize = 900;

const FAILED: &str = "Subject: Your message could not be delivered

This is the mail server ${host}.

Your message could not be delivered to the recipients below. It will not be tried again.

${recipients}
";
const DELAYED: &str = "Subject: Your message is delayed

This is the mail server ${host}.

Your message has not been delivered to the recipients below yet. You need not send it again: it is still being tried.

${recipients}
";
const DELIVERED: &str = "Subject: Your message was delivered

This is the mail server ${host}.

Your message was delivered to the recipients below.

${recipients}
";
const DOUBLE_BOUNCED: &str = "Subject: A notification could not be delivered

This is the mail server ${host}.

The message below could not be delivered to these recipients. It has no sender, or one that does not exist: nobody but you is told.

${recipients}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_a_subject_and_a_text_with_the_recipients() {
        let template = Template::parse("Subject:  Rück \r\n\r\nHi,\r\n  ${recipients}  \r\n$$5 ${host}\r\n").unwrap();
        assert_eq!((&*template.subject, &*template.text), ("Rück", "Hi,\n${recipients}\n$$5 ${host}\n"));
        let list = "${recipients}\n";
        for (bad, line, what) in [
            ("".to_owned(), 1, "`Subject: `"),
            ("Subject: \n\nx\n".to_owned(), 1, "`Subject: `"),
            (format!("Subject: x\n{list}"), 2, "an empty line"),
            ("Subject: x\n\nnobody\n".to_owned(), 3, "0 times"),
            (format!("Subject: x\n\n{list}\n{list}"), 5, "2 times"),
            (format!("Subject: ${{recipients}}\n\n{list}"), 1, "cannot stand here"),
            (format!("Subject: x\n\n{list}See ${{recipients}}\n"), 4, "cannot stand here"),
            (format!("Subject: x\n\n{list}${{sender}}\n"), 4, "`${sender}` cannot stand here"),
            (format!("Subject: x\n\n{list}5 $\n"), 4, "`$$`"),
            (format!("Subject: x\rBcc: y\n\n{list}"), 1, "control character"),
            (format!("Subject: x\n\n{list}a\u{0}b\n"), 4, "control character"),
            (format!("Subject: x\n\n{list}a\u{202e}b\n"), 4, "control character"),
            (format!("Subject: {}\n\n{list}", "x".repeat(201)), 1, "200 bytes"),
            (format!("Subject: x\n\n{list}{}\n", "x".repeat(901)), 4, "900 bytes"),
            (format!("Subject: x\n\n{list}{}", "x\n".repeat(8193)), 1, "16 KiB"),
        ] {
            let error = Template::parse(&bad).expect_err(&bad);
            assert!(error.line == line && error.what.contains(what), "{bad:?}: {error}");
        }
    }

    #[test]
    fn names_are_filled_in_once() {
        let value = |name: &str| (name == "host").then(|| "${host}$$".to_owned());
        assert_eq!(filled("a ${host} $$ ${x} $", value), "a ${host}$$ $ ${x} $");
    }

    #[test]
    fn a_directory_replaces_what_it_has_files_for() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(place.path().join(name), text).unwrap();
        assert_eq!(Wording::read(place.path()).unwrap(), Wording::default());
        write("failure.txt", "Subject: x\n\nBad luck.\n${recipients}\n");
        write("README", "no template");
        write(".failure.txt.swp", "\0");
        let wording = Wording::read(place.path()).unwrap();
        assert_eq!(&*wording.failed.text, "Bad luck.\n${recipients}\n");
        assert_eq!(wording.delayed, Wording::default().delayed);
        write("delay.txt", "Subject: x\n\n");
        let said = Wording::read(place.path()).unwrap_err().to_string();
        assert!(said.contains("delay.txt:2: `${recipients}` stands once"), "{said}");
        write("delay.txt", "Subject: x\n\n${recipients}\n");
        write("failures.txt", "");
        let said = Wording::read(place.path()).unwrap_err().to_string();
        assert!(said.contains("failures.txt: no such template; the names are"), "{said}");
        fs::remove_file(place.path().join("failures.txt")).unwrap();
        fs::write(place.path().join("success.txt"), b"Subject: \xff\n\n").unwrap();
        assert!(matches!(Wording::read(place.path()), Err(WordingError::Read { .. })));
        assert!(matches!(Wording::read(&place.path().join("none")), Err(WordingError::Read { .. })));
    }
}
