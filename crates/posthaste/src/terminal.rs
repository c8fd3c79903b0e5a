//! Output to a terminal. All of it goes through this module, so that foreign text cannot control the terminal.
//!
//! On a terminal a control character is shown as U+FFFD, and characters that change the direction of text are removed.
//! Line ends, tabs and our own colours pass. A pipe or a file gets the octets unchanged, as its reader may want them.

use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;

/// All escape sequences that the program prints, only through [`paint`].
const COLOURS: [&str; 7] = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"];

/// `text` in one of our colours, by its number (SGR of ECMA-48).
pub fn paint(colour: &str, text: &str) -> String {
    debug_assert!(COLOURS.contains(&format!("\x1b[{colour}m").as_str()), "the door would not let {colour} through");
    if text.is_empty() { String::new() } else { format!("\x1b[{colour}m{text}\x1b[0m") }
}

/// True if standard output is a terminal and NO_COLOR is unset: then colours are used.
pub fn is_colourful() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// True for invisible characters that reorder adjacent text (`Bidi_Control`, Unicode Standard Annex #9).
fn turns_about(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn is_harmful(c: char) -> bool {
    c.is_control() || turns_about(c)
}

/// A value for one line, on a terminal or not: without control characters and line ends.
pub fn harmless(text: &str) -> String {
    text.chars().filter(|&c| !turns_about(c)).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A path as one word of a shell's command.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,=".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Escapes harmful characters in JSON; its data stay the same.
pub fn harmless_json(json: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_harmful(c) && c != '\n';
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    // Such a character stands in a string, where an escape means the same (RFC 8259 section 7). All of them are of the basic plane.
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_escaped(c) { out.push_str(&format!("\\u{:04x}", u32::from(c))) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Replaces characters that would control the terminal. Our own colours pass if `ours` is true, for text that we made.
fn tamed(text: &str, ours: bool) -> Cow<'_, str> {
    if !text.contains(|c: char| is_harmful(c) && c != '\n' && c != '\t') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = COLOURS.iter().find(|colour| ours && c == '\x1b' && rest.starts_with(**colour));
        let (shown, length) = match (c, colour) {
            (_, Some(colour)) => (*colour, colour.len()),
            ('\n' | '\t', _) => (&rest[..1], 1),
            ('\r', _) if rest[1..].starts_with('\n') => ("", 1),
            (c, _) if turns_about(c) => ("", c.len_utf8()),
            (c, _) if c.is_control() => ("\u{fffd}", c.len_utf8()),
            (c, _) => (&rest[..c.len_utf8()], c.len_utf8()),
        };
        out.push_str(shown);
        rest = &rest[length..];
    }
    Cow::Owned(out)
}

/// Origin of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This program, with colours where they belong.
    Program,
    /// A message, verbatim: not even colours pass.
    Message,
}

/// Writes to a terminal, or to anything else. False if the reader has gone, which is no error.
pub fn write_to(out: &mut dyn Write, is_terminal: bool, bytes: &[u8], origin: Origin) -> io::Result<bool> {
    let written = if is_terminal {
        out.write_all(tamed(&String::from_utf8_lossy(bytes), origin == Origin::Program).as_bytes())
    } else {
        out.write_all(bytes)
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true),
    }
}

/// Prints to standard output.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    let is_terminal = out.is_terminal();
    write_to(&mut out, is_terminal, text.as_bytes(), Origin::Program).map(drop)
}

/// Prints to standard output, on a terminal over the previous output. False if the reader has gone.
pub fn print_again(text: &str) -> io::Result<bool> {
    let mut out = io::stdout();
    let is_terminal = out.is_terminal();
    if is_terminal {
        out.write_all(b"\x1b[H\x1b[2J")?;
    }
    write_to(&mut out, is_terminal, text.as_bytes(), Origin::Program)
}

/// Prints octets of messages to standard output. False if the reader has gone.
pub fn print_foreign(bytes: &[u8]) -> io::Result<bool> {
    let mut out = io::stdout();
    let is_terminal = out.is_terminal();
    write_to(&mut out, is_terminal, bytes, Origin::Message)
}

/// Prints JSON to standard output.
pub fn print_json(json: &str) -> io::Result<()> {
    print(&harmless_json(json))
}

/// Prints a line on standard error, after the program's name. Write errors are ignored.
pub fn complain(text: &str) {
    let mut out = io::stderr();
    let is_terminal = out.is_terminal();
    let text = format!("posthaste: {}\n", without_error_numbers(text));
    let _ = write_to(&mut out, is_terminal, text.as_bytes(), Origin::Message);
}

/// Asks for confirmation on a terminal; elsewhere the answer is no.
pub fn confirmed(question: &str) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut err = io::stderr();
    if !stdin.is_terminal() || !err.is_terminal() {
        return Ok(false);
    }
    let question = format!("{question} [y/N] ");
    write_to(&mut err, true, question.as_bytes(), Origin::Message)?;
    let mut answer = String::new();
    stdin.lock().take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

const ANSWER_BYTES_MAX: u64 = 256;

/// Formats an error of the system without the ` (os error 2)` at its end.
pub fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |said, part| {
        let digits = part.trim_start_matches(|digit: char| digit.is_ascii_digit());
        match digits.strip_prefix(')') {
            Some(rest) => said + rest,
            None => said + " (os error " + part,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_without_numbers() {
        let said = "a: No such file or directory (os error 2); (os error x) (os error 13): b";
        assert_eq!(without_error_numbers(said), "a: No such file or directory; (os error x): b");
    }

    /// Every character that affects a terminal instead of being shown.
    fn all_harmful() -> String {
        ('\0'..=char::MAX).filter(|&c| is_harmful(c)).collect()
    }

    #[test]
    fn strangers_text_cannot_command_or_reverse_the_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(harmless("\u{202e}exe.fdp\u{2066}"), "exe.fdp");
        assert_eq!(harmless("שלום, 梁礼学"), "שלום, 梁礼学");
        // It looks at one character at a time, so these are all that there are.
        let all: String = ('\0'..=char::MAX).collect();
        let shown = harmless(&all);
        assert!(!shown.contains(is_harmful));
        assert_eq!(all.chars().count() - shown.chars().count(), 12);
        assert_eq!(all_harmful().chars().count(), 65 + 12);
    }

    #[test]
    fn a_terminal_gets_lines_and_our_colours_and_nothing_else() {
        let all = all_harmful();
        let check = |origin, bytes: &[u8], expected: &str| {
            let mut out = Vec::new();
            assert!(write_to(&mut out, true, bytes, origin).unwrap());
            assert_eq!(String::from_utf8(out).unwrap(), expected);
            let mut out = Vec::new();
            write_to(&mut out, false, bytes, origin).unwrap();
            assert_eq!(out, bytes, "into a pipe as it is");
        };
        check(Origin::Program, b"a\tb\n\x1b[36mDate\x1b[0m: c\r\nd\re\n", "a\tb\n\x1b[36mDate\x1b[0m: c\nd\u{fffd}e\n");
        check(
            Origin::Program,
            b"\x1b[36;5m \x1b[8m \x1b]52;c;eA==\x07",
            "\u{fffd}[36;5m \u{fffd}[8m \u{fffd}]52;c;eA==\u{fffd}",
        );
        check(
            Origin::Message,
            b"\x1b[36mDate\x1b[0m \x9b2J \xc2\x9b2J",
            "\u{fffd}[36mDate\u{fffd}[0m \u{fffd}2J \u{fffd}2J",
        );
        for origin in [Origin::Program, Origin::Message] {
            let mut out = Vec::new();
            write_to(&mut out, true, all.as_bytes(), origin).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.replace(['\n', '\t'], "").chars().find(|&c| is_harmful(c)), None);
        }
    }

    #[test]
    fn json_is_the_same_data_without_harm() {
        let all = all_harmful();
        let json = serde_json::to_string_pretty(&[&all, "x\n"]).unwrap();
        let shown = harmless_json(&json);
        assert!(!shown.replace('\n', "").contains(is_harmful), "{shown}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), [all, "x\n".to_owned()]);
        assert!(matches!(harmless_json("[\"a\",\n\"ü\"]"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        let check = |path: &str, expected: &str| assert_eq!(shell_word(Path::new(path)), expected);
        check("/etc/posthaste/posthaste.toml", "/etc/posthaste/posthaste.toml");
        check("/my files/x", "'/my files/x'");
        check("a'b$(c)", "'a'\\''b$(c)'");
    }

    #[test]
    fn every_colour_passes() {
        for colour in ["1", "2", "31", "32", "33", "36"] {
            let painted = paint(colour, "x");
            assert_eq!(tamed(&painted, true), painted);
        }
    }
}
