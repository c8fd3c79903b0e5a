//! The grammar of commands (RFC 1939 section 3).

/// A command.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "RFC 1939 says what the fields are")]
pub enum Pop3Command {
    /// CAPA (RFC 2449).
    Capa,
    /// STLS (RFC 2595).
    Stls,
    /// UTF8 (RFC 6856).
    Utf8,
    /// USER: the rest of the line.
    User(Vec<u8>),
    /// PASS: the rest of the line, blanks included.
    Pass(Vec<u8>),
    /// AUTH (RFC 5034). Without a mechanism it asks for their list.
    Auth { mechanism: Option<String>, initial: Option<Vec<u8>> },
    /// STAT.
    Stat,
    /// LIST; `None`: all messages.
    List(Option<u32>),
    /// UIDL; `None`: all messages.
    Uidl(Option<u32>),
    /// RETR.
    Retr(u32),
    /// TOP: the header and this many lines of the body.
    Top { message: u32, lines: u64 },
    /// DELE.
    Dele(u32),
    /// RSET.
    Rset,
    /// NOOP.
    Noop,
    /// QUIT.
    Quit,
}

/// Only the name: arguments may contain a password.
impl std::fmt::Debug for Pop3Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Capa => "CAPA",
            Self::Stls => "STLS",
            Self::Utf8 => "UTF8",
            Self::User(_) => "USER",
            Self::Pass(_) => "PASS",
            Self::Auth { .. } => "AUTH",
            Self::Stat => "STAT",
            Self::List(_) => "LIST",
            Self::Uidl(_) => "UIDL",
            Self::Retr(_) => "RETR",
            Self::Top { .. } => "TOP",
            Self::Dele(_) => "DELE",
            Self::Rset => "RSET",
            Self::Noop => "NOOP",
            Self::Quit => "QUIT",
        })
    }
}

/// The reason why a line is not a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Pop3CommandError {
    /// An unknown command.
    #[error("Unknown command")]
    Unknown,
    /// Invalid arguments; names the right ones.
    #[error("{0}")]
    Arguments(&'static str),
}

use Pop3CommandError::{Arguments, Unknown};

/// Parses a line without its end. Message numbers beyond 32 bits become the maximum, which no message has.
///
/// # Errors
/// [`Pop3CommandError`].
pub fn parse(line: &[u8]) -> Result<Pop3Command, Pop3CommandError> {
    let (name, rest) = match memchr::memchr(b' ', line) {
        Some(at) => (&line[..at], Some(&line[at + 1..])),
        None => (line, None),
    };
    let name = name.to_ascii_uppercase();
    if let (b"USER" | b"PASS", None | Some(b"")) = (&name[..], rest) {
        return Err(Arguments("An argument is missing"));
    }
    match (&name[..], rest) {
        (b"USER" | b"PASS", Some(rest)) if rest.contains(&0) => Err(Arguments("NUL is not allowed")),
        (b"USER", Some(rest)) => Ok(Pop3Command::User(rest.to_vec())),
        (b"PASS", Some(rest)) => Ok(Pop3Command::Pass(rest.to_vec())),
        _ => {
            // Some clients send a blank too many.
            let words = rest.unwrap_or_default().split(|octet| *octet == b' ').filter(|word| !word.is_empty());
            with_words(&name, &words.take(WORDS_MAX + 1).collect::<Vec<_>>())
        }
    }
}

/// Arguments of any command.
const WORDS_MAX: usize = 2;

fn with_words(name: &[u8], words: &[&[u8]]) -> Result<Pop3Command, Pop3CommandError> {
    match (name, words) {
        (b"CAPA", []) => Ok(Pop3Command::Capa),
        (b"STLS", []) => Ok(Pop3Command::Stls),
        (b"UTF8", []) => Ok(Pop3Command::Utf8),
        (b"STAT", []) => Ok(Pop3Command::Stat),
        (b"RSET", []) => Ok(Pop3Command::Rset),
        (b"NOOP", []) => Ok(Pop3Command::Noop),
        (b"QUIT", []) => Ok(Pop3Command::Quit),
        (b"CAPA" | b"STLS" | b"UTF8" | b"STAT" | b"RSET" | b"NOOP" | b"QUIT", _) => {
            Err(Arguments("That command takes no arguments"))
        }
        (b"LIST", []) => Ok(Pop3Command::List(None)),
        (b"LIST", [message]) => number(message).map(|message| Pop3Command::List(Some(message))),
        (b"UIDL", []) => Ok(Pop3Command::Uidl(None)),
        (b"UIDL", [message]) => number(message).map(|message| Pop3Command::Uidl(Some(message))),
        (b"RETR", [message]) => number(message).map(Pop3Command::Retr),
        (b"DELE", [message]) => number(message).map(Pop3Command::Dele),
        (b"LIST" | b"UIDL" | b"RETR" | b"DELE", _) => Err(Arguments("That command takes one message number")),
        (b"TOP", [message, lines]) => {
            Ok(Pop3Command::Top { message: number(message)?, lines: digits(lines).ok_or(NO_NUMBER)? })
        }
        (b"TOP", _) => Err(Arguments("TOP takes a message number and a number of lines")),
        (b"AUTH", []) => Ok(Pop3Command::Auth { mechanism: None, initial: None }),
        (b"AUTH", [mechanism]) => auth(mechanism, None),
        (b"AUTH", [mechanism, initial]) => auth(mechanism, Some(initial)),
        (b"AUTH", _) => Err(Arguments("AUTH takes a mechanism and an initial response")),
        _ => Err(Unknown),
    }
}

const NO_NUMBER: Pop3CommandError = Arguments("That is not a number");

fn number(word: &[u8]) -> Result<u32, Pop3CommandError> {
    digits(word).map(|number| u32::try_from(number).unwrap_or(u32::MAX)).ok_or(NO_NUMBER)
}

/// A number, saturating.
fn digits(word: &[u8]) -> Option<u64> {
    let digit = |octet: &u8| octet.is_ascii_digit().then(|| u64::from(octet - b'0'));
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0u64, |number, octet| Some(number.saturating_mul(10).saturating_add(digit(octet)?)))
}

fn auth(mechanism: &[u8], initial: Option<&[u8]>) -> Result<Pop3Command, Pop3CommandError> {
    let mechanism = mechanism.to_ascii_uppercase();
    let known = |octet: &u8| octet.is_ascii_uppercase() || octet.is_ascii_digit() || b"-_".contains(octet);
    if !mechanism.iter().all(known) {
        return Err(Arguments("That is not a mechanism"));
    }
    let mechanism = String::from_utf8(mechanism).map_err(|_| Arguments("That is not a mechanism"))?;
    Ok(Pop3Command::Auth { mechanism: Some(mechanism), initial: initial.map(<[u8]>::to_vec) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<Pop3Command, Pop3CommandError>) {
        assert_eq!(parse(line.as_bytes()), expected, "{line:?}");
    }

    #[test]
    fn commands_are_read_in_any_case() {
        check("quit", Ok(Pop3Command::Quit));
        check("Stat ", Ok(Pop3Command::Stat));
        check("RETR  12", Ok(Pop3Command::Retr(12)));
        check("list 007", Ok(Pop3Command::List(Some(7))));
        check("UIDL", Ok(Pop3Command::Uidl(None)));
        check("TOP 1 0", Ok(Pop3Command::Top { message: 1, lines: 0 }));
        check("auth plain =", Ok(Pop3Command::Auth { mechanism: Some("PLAIN".into()), initial: Some(b"=".to_vec()) }));
        check("AUTH", Ok(Pop3Command::Auth { mechanism: None, initial: None }));
    }

    #[test]
    fn a_password_is_the_rest_of_its_line() {
        check("PASS  two words ", Ok(Pop3Command::Pass(b" two words ".to_vec())));
        check("pass \tx", Ok(Pop3Command::Pass(b"\tx".to_vec())));
        check("PASS", Err(Arguments("An argument is missing")));
        check("USER ", Err(Arguments("An argument is missing")));
        check("PASS a\0b", Err(Arguments("NUL is not allowed")));
        assert_eq!(format!("{:?}", parse(b"PASS secret")), "Ok(PASS)");
    }

    #[test]
    fn numbers_have_digits_only_and_never_wrap() {
        for line in ["RETR 99999999999999999999999", "RETR 4294967296", "RETR 4294967295"] {
            check(line, Ok(Pop3Command::Retr(u32::MAX)));
        }
        check("TOP 1 18446744073709551616", Ok(Pop3Command::Top { message: 1, lines: u64::MAX }));
        for line in ["RETR -1", "RETR +1", "RETR 1a", "TOP 1 -1", "DELE 0x1", "LIST \u{661}"] {
            check(line, Err(NO_NUMBER));
        }
    }

    #[test]
    fn lines_that_are_no_commands_say_why() {
        for line in ["", " STAT", "APOP ann 00", "LANG", "STAT\t", "XTND XMIT", "retrieve 1", "\0"] {
            check(line, Err(Unknown));
        }
        check("NOOP x", Err(Arguments("That command takes no arguments")));
        check("RETR", Err(Arguments("That command takes one message number")));
        check("RETR 1 2", Err(Arguments("That command takes one message number")));
        check("TOP 1", Err(Arguments("TOP takes a message number and a number of lines")));
        check("TOP 1 2 3 4 5", Err(Arguments("TOP takes a message number and a number of lines")));
        check("AUTH PL\u{c4}IN", Err(Arguments("That is not a mechanism")));
    }
}
