//! The command line of `sendmail`: letters that may be combined, with values that may be attached, as programs have
//! used them for decades.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_pickup::Submission;
use posthaste_smtp::command::{encode_xtext, parse_date_time};
use posthaste_smtp::{Notify, Ret};

/// Mode of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A message from standard input.
    #[default]
    Message,
    /// `-bs`: SMTP on standard input and output.
    Smtp,
    /// `-bp`: list waiting mail.
    Queue,
    /// `-bi`, `-I`: build the alias database.
    Aliases,
    /// `-q`: retry waiting mail.
    Flush,
}

/// A parsed command line.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub mode: Mode,
    /// `-C`: the configuration.
    pub config: Option<PathBuf>,
    /// `-f`, `-r`: the sender; `None`: the user.
    pub sender: Option<String>,
    /// The other data; its sender is empty.
    pub submission: Submission,
}

/// Options without a value. Those not matched below have no effect here, as in Postfix.
const FLAGS: &str = "GIUcimnstv";
/// Options with a value, which is attached or the next word.
const WITH_VALUE: &str = "ABCFLNORVXbefhopr";
/// Options with a value that is attached or left out.
const WITH_ATTACHED: &str = "dq";

/// Parses the words after the program's name.
///
/// # Errors
/// The mistake, as a sentence without a full stop.
pub fn parse(words: &[OsString]) -> Result<Options, String> {
    let mut options = Options { submission: Submission::default(), ..Options::default() };
    let mut words = words.iter().map(|word| word.to_str().ok_or_else(|| format!("{} is not UTF-8", word.display())));
    let mut flushes = false;
    while let Some(word) = words.next() {
        let word = word?;
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            // As in Postfix: what follows the first recipient are recipients.
            options.submission.recipients.push(word.to_owned());
            break;
        };
        if letters == "-" {
            break;
        }
        if let Some(name) = letters.strip_prefix('-') {
            let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
            if !["config", "not-before", "expires"].contains(&name) {
                return Err(format!("there is no option --{name}"));
            }
            let value = match value {
                Some(value) => value,
                None => words.next().ok_or_else(|| format!("--{name} needs a value"))??,
            };
            match name {
                "config" => options.config = Some(value.into()),
                "expires" => options.submission.expires = Some(time_of(name, value)?),
                _ => options.submission.not_before = Some(time_of(name, value)?),
            }
            continue;
        }
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            if FLAGS.contains(letter) {
                options.flag(letter);
                continue;
            }
            let attached = std::mem::take(&mut rest);
            if WITH_ATTACHED.contains(letter) {
                flushes |= letter == 'q';
                continue;
            }
            if !WITH_VALUE.contains(letter) {
                return Err(format!("there is no option -{letter}"));
            }
            let value = match attached {
                "" => words.next().ok_or_else(|| format!("-{letter} needs a value"))??,
                attached => attached,
            };
            options.value(letter, value)?;
        }
    }
    for word in words {
        options.submission.recipients.push(word?.to_owned());
    }
    let has_message = options.submission.from_header || !options.submission.recipients.is_empty();
    if flushes && options.mode == Mode::Message && !has_message {
        options.mode = Mode::Flush;
    }
    Ok(options)
}

impl Options {
    fn flag(&mut self, letter: char) {
        match letter {
            'I' => self.mode = Mode::Aliases,
            'i' => self.submission.dot_is_text = true,
            't' => self.submission.from_header = true,
            _ => {}
        }
    }

    fn value(&mut self, letter: char, value: &str) -> Result<(), String> {
        let submission = &mut self.submission;
        match letter {
            'C' => self.config = Some(value.into()),
            'F' => submission.full_name = Some(value.to_owned()),
            'f' | 'r' => self.sender = Some(value.to_owned()),
            'o' if value == "i" => submission.dot_is_text = true,
            'b' => self.mode = mode(value)?,
            'B' if value.eq_ignore_ascii_case("8BITMIME") => submission.is_8bit = true,
            'B' if value.eq_ignore_ascii_case("7BIT") => submission.is_8bit = false,
            'B' => return Err(format!("-B is 7BIT or 8BITMIME, not `{value}`")),
            'N' => submission.notify = Some(notify(value)?),
            'R' if value.eq_ignore_ascii_case("full") => submission.ret = Some(Ret::Full),
            'R' if value.eq_ignore_ascii_case("hdrs") => submission.ret = Some(Ret::Headers),
            'R' => return Err(format!("-R is full or hdrs, not `{value}`")),
            'V' => submission.envid = Some(envid(value)?),
            _ => {}
        }
        Ok(())
    }
}

fn mode(value: &str) -> Result<Mode, String> {
    Ok(match value {
        "m" | "a" => Mode::Message,
        "s" => Mode::Smtp,
        "p" => Mode::Queue,
        "i" => Mode::Aliases,
        "d" | "D" | "l" => return Err(format!("-b{value}: the server is started by `posthaste serve`")),
        "v" => return Err("-bv: `posthaste route ADDRESS` shows where mail for an address goes".to_owned()),
        _ => return Err(format!("-b{value} is not supported")),
    })
}

/// Parses NOTIFY (RFC 3461 section 4.1).
fn notify(value: &str) -> Result<Notify, String> {
    if value.eq_ignore_ascii_case("never") {
        return Ok(Notify::default());
    }
    let mut notify = Notify::default();
    for word in value.split(',').map(str::trim) {
        match word.to_ascii_lowercase().as_str() {
            "success" => notify.success = true,
            "failure" => notify.failure = true,
            "delay" => notify.delay = true,
            _ => return Err(format!("-N is never, or a list of success, failure and delay, not `{value}`")),
        }
    }
    Ok(notify)
}

/// Parses a date and time, or a duration from now.
fn time_of(name: &str, value: &str) -> Result<i64, String> {
    if let Some(time) = parse_date_time(value) {
        return Ok(time);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let secs = posthaste_units::duration(value).map(|time| time.as_secs());
    let time = secs.ok().and_then(|secs| i64::try_from(now.saturating_add(secs)).ok());
    time.ok_or_else(|| format!("--{name} is a time such as 2h or 2027-01-02T03:04:05Z, not `{value}`"))
}

/// Parses ENVID (RFC 3461 section 4.4).
fn envid(value: &str) -> Result<String, String> {
    let fits = (1..=100).contains(&value.len()) && value.bytes().all(|b| matches!(b, b' '..=b'~'));
    if fits { Ok(encode_xtext(value.as_bytes())) } else { Err("-V is 1 to 100 letters of ASCII".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(|word| word.replace('_', " ").into()).collect::<Vec<OsString>>())
    }

    #[test]
    fn the_lines_of_well_known_programs() {
        // PHP, cron, mailx, git send-email, mutt, a daemon of the eighties.
        for (line, from_header, dot_is_text, sender, recipients) in [
            ("-t -i", true, true, None, vec![]),
            ("-FCronDaemon -i -B8BITMIME -oem root", false, true, None, vec!["root"]),
            ("-i -- ann -x", false, true, None, vec!["ann", "-x"]),
            ("-i -f ann@x.example bob@x.example", false, true, Some("ann@x.example"), vec!["bob@x.example"]),
            ("-oi -oem -fann@x.example -- bob", false, true, Some("ann@x.example"), vec!["bob"]),
            ("-odb -om -oeq -h 3 -d -q15m -v -ti", true, true, None, vec![]),
            ("-O DeliveryMode=b -Ac -U -G -n -r <> ann", false, false, Some("<>"), vec!["ann"]),
            ("ann -t bob", false, false, None, vec!["ann", "-t", "bob"]),
            ("-", false, false, None, vec!["-"]),
        ] {
            let options = read(line).unwrap_or_else(|why| panic!("{line}: {why}"));
            let submission = options.submission;
            assert_eq!((submission.from_header, submission.dot_is_text), (from_header, dot_is_text), "{line}");
            assert_eq!(
                (options.sender.as_deref(), submission.recipients),
                (sender, recipients.iter().map(|r| (*r).to_owned()).collect()),
                "{line}"
            );
            assert_eq!(options.mode, Mode::Message, "{line}");
        }
    }

    #[test]
    fn modes() {
        for (line, mode) in [
            ("-bm a", Mode::Message),
            ("-bs", Mode::Smtp),
            ("-bp", Mode::Queue),
            ("-bi", Mode::Aliases),
            ("-I", Mode::Aliases),
            ("-q", Mode::Flush),
            ("-q30m", Mode::Flush),
            ("-q a", Mode::Message),
            ("-q -t", Mode::Message),
        ] {
            assert_eq!(read(line).unwrap().mode, mode, "{line}");
        }
    }

    #[test]
    fn what_a_notification_says() {
        let options = read("-N success,DELAY -R hdrs -V a_b+c -F Ann_Lee a").unwrap();
        let submission = options.submission;
        assert_eq!(submission.notify.unwrap().to_string(), "SUCCESS,DELAY");
        assert_eq!((submission.ret, submission.envid.as_deref()), (Some(Ret::Headers), Some("a+20b+2Bc")));
        assert_eq!(submission.full_name.as_deref(), Some("Ann Lee"));
        assert_eq!(read("-Nnever a").unwrap().submission.notify, Some(Notify::default()));
    }

    #[test]
    fn times_are_dates_or_counted_from_now() {
        let submission = |line: &str| read(line).unwrap().submission;
        let dates = submission("--not-before=2027-01-02T03:04:05Z --expires 2027-01-03T00:00:00+01:00 -t");
        assert_eq!(
            (dates.not_before, dates.expires, dates.from_header),
            (Some(1_798_859_045), Some(1_798_930_800), true)
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
        let hours = submission("--expires 2h a").expires.unwrap() - now;
        assert!((7200..7210).contains(&hours), "{hours}");
    }

    #[test]
    fn mistakes() {
        for (line, expected) in [
            ("-z", "there is no option -z"),
            ("--version", "there is no option --"),
            ("--expires", "--expires needs a value"),
            ("--not-before soon a", "--not-before is a time"),
            ("-f", "-f needs a value"),
            ("-bd", "-bd: the server is started by"),
            ("-bv a", "-bv: `posthaste route"),
            ("-bz", "-bz is not supported"),
            ("-N sometimes", "-N is never"),
            ("-R some", "-R is full"),
            ("-B BINARYMIME", "-B is 7BIT"),
        ] {
            let why = read(line).unwrap_err();
            assert!(why.starts_with(expected), "{line}: {why}");
        }
    }
}
