//! Commands: one line in, one [`Command`] out (RFC 5321 section 4.1.1 and the extensions this crate speaks).

mod envelope;
mod error;
mod hold;
mod params;
mod xtext;

use posthaste_message::address::{AddressDomain, AddressError, DOMAIN_BYTES_MAX, ForwardPath, ReversePath};

pub use envelope::{BodyType, MailFrom, Notify, RcptTo, Ret};
pub use error::CommandError;
use hold::parse_secs;
pub use hold::{Hold, date_time, parse_date_time};
pub(crate) use params::is_orcpt;
use params::{Param, Params, parse_body, parse_notify, parse_number, parse_orcpt, parse_ret, parse_size, set};
use xtext::checked_xtext;
pub use xtext::{decode_xtext, encode_xtext, is_xtext};

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// HELO with the client's name.
    Helo(&'a str),
    /// EHLO with the client's name.
    Ehlo(&'a str),
    /// LHLO with the client's name (RFC 2033).
    Lhlo(&'a str),
    /// MAIL FROM with its parameters.
    Mail(MailFrom),
    /// RCPT TO with its parameters.
    Rcpt(RcptTo),
    /// DATA.
    Data,
    /// BDAT: octets follow the line (RFC 3030).
    Bdat {
        /// Octets in the chunk.
        size: u64,
        /// True if the chunk ends the message.
        last: bool,
    },
    /// RSET.
    Rset,
    /// NOOP; its argument is ignored.
    Noop,
    /// QUIT.
    Quit,
    /// VRFY with its argument.
    Vrfy(&'a str),
    /// EXPN.
    Expn,
    /// HELP.
    Help,
    /// STARTTLS (RFC 3207).
    StartTls,
    /// AUTH with mechanism and initial response, still in base64 (RFC 4954).
    Auth {
        /// Mechanism as written by the client.
        mechanism: &'a str,
        /// `None` when the client waits for a challenge; `Some("=")` means empty.
        initial: Option<&'a str>,
    },
}

/// Longest line for `line`'s verb, CRLF included, given the base limit of
/// [`Limits::command_line_bytes`](crate::Limits::command_line_bytes). The first four octets decide. AUTH may be long
/// only where it is offered (`auth`): elsewhere a client could make us keep 12 KiB for nothing.
pub fn line_bytes_max(line: &[u8], base: usize, auth: bool) -> usize {
    // Longest parameters, each with its leading space.
    const SIZE: usize = 26; // RFC 1870
    const BODY: usize = 17; // RFC 6152
    const SMTPUTF8: usize = 10; // RFC 6531
    const RET: usize = 9; // RFC 3461
    const ENVID: usize = 107; // RFC 3461
    const AUTH: usize = 500; // RFC 4954
    const HOLD: usize = 51; // RFC 4865
    const XEXPIRES: usize = 50;
    const NOTIFY: usize = 29; // RFC 3461
    const ORCPT: usize = 507; // RFC 3461
    let mut verb = *line.first_chunk::<4>().unwrap_or(&[0; 4]);
    verb.make_ascii_uppercase();
    match &verb {
        b"MAIL" => base + SIZE + BODY + SMTPUTF8 + RET + ENVID + AUTH + HOLD + XEXPIRES,
        b"RCPT" => base + SMTPUTF8 + NOTIFY + ORCPT,
        b"AUTH" if auth => base.max(AUTH_LINE_BYTES_MAX),
        _ => base,
    }
}

/// True if `line` is meant as BDAT, well formed or not: octets follow it that are not commands. Blanks and control
/// characters before it make it a bad command, but its octets are still part of a message.
pub(crate) fn begins_chunk(line: &[u8]) -> bool {
    let begin = line.iter().position(|&b| b > b' ' && b != 127).unwrap_or(line.len());
    let Some((verb, rest)) = line[begin..].split_first_chunk::<4>() else { return false };
    verb.eq_ignore_ascii_case(b"BDAT") && !rest.first().is_some_and(u8::is_ascii_alphabetic)
}

/// True if `line` is from a client of another protocol: one of the `forbidden` commands, or a header field like HTTP's
/// (`Host: x`). Without any forbidden command, always false.
pub(crate) fn is_foreign(line: &[u8], forbidden: &[String]) -> bool {
    const LABEL_BYTES_MAX: usize = 64;
    let end = line.iter().position(|&b| b <= b' ' || b == b':').unwrap_or(line.len());
    let (verb, rest) = line.split_at(end);
    if forbidden.is_empty() || verb.is_empty() || verb.len() > LABEL_BYTES_MAX {
        return false;
    }
    let is_label =
        || rest.first() == Some(&b':') && verb.iter().all(|&b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    forbidden.iter().any(|command| command.as_bytes().eq_ignore_ascii_case(verb)) || is_label()
}

/// True if `verb` is a command of SMTP or LMTP that [`parse`] knows.
pub fn is_known(verb: &str) -> bool {
    const KNOWN: [&str; 15] = [
        "HELO", "EHLO", "LHLO", "MAIL", "RCPT", "DATA", "BDAT", "RSET", "NOOP", "QUIT", "VRFY", "EXPN", "HELP",
        "STARTTLS", "AUTH",
    ];
    KNOWN.iter().any(|known| known.eq_ignore_ascii_case(verb))
}

/// Longest AUTH command or response line, CRLF included (RFC 4954 section 4).
pub const AUTH_LINE_BYTES_MAX: usize = 12_288;

/// Parses one command line, given without its line end.
///
/// # Errors
/// See [`CommandError`]; each has a reply.
pub fn parse(line: &[u8]) -> Result<Command<'_>, CommandError> {
    if line.iter().any(|&b| (b < b' ' && b != b'\t') || b == 127) {
        return Err(CommandError::Characters);
    }
    let line = std::str::from_utf8(line).map_err(|_| CommandError::Characters)?.trim_end_matches([' ', '\t']);
    let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let rest = rest.trim_start_matches([' ', '\t']);
    let bare =
        |command| if rest.is_empty() { Ok(command) } else { Err(CommandError::Argument("no argument is allowed")) };
    let mut upper = [0_u8; 8];
    let Some(upper) = upper.get_mut(..verb.len()) else { return Err(CommandError::Unknown) };
    upper.copy_from_slice(verb.as_bytes());
    upper.make_ascii_uppercase();
    match &*upper {
        b"HELO" => Ok(Command::Helo(helo_name(rest)?)),
        b"EHLO" => Ok(Command::Ehlo(helo_name(rest)?)),
        b"LHLO" => Ok(Command::Lhlo(helo_name(rest)?)),
        b"MAIL" => parse_mail(rest).map(Command::Mail),
        b"RCPT" => parse_rcpt(rest).map(Command::Rcpt),
        b"DATA" => bare(Command::Data),
        b"BDAT" => parse_bdat(rest),
        b"RSET" => bare(Command::Rset),
        b"NOOP" => Ok(Command::Noop),
        b"QUIT" => bare(Command::Quit),
        b"VRFY" if rest.is_empty() => Err(CommandError::Argument("VRFY needs a name")),
        b"VRFY" => Ok(Command::Vrfy(rest)),
        b"EXPN" => Ok(Command::Expn),
        b"HELP" => Ok(Command::Help),
        b"STARTTLS" => bare(Command::StartTls),
        b"AUTH" => parse_auth(rest),
        _ => Err(CommandError::Unknown),
    }
}

/// Checks a name for use in a Received field: a domain (leniently), or an address literal.
fn helo_name(text: &str) -> Result<&str, CommandError> {
    const BAD: CommandError = CommandError::Argument("a host name or address literal is needed");
    if text.is_empty() || text.len() > DOMAIN_BYTES_MAX {
        return Err(BAD);
    }
    if let Some(literal) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return AddressDomain::parse_literal(literal).map(|_| text).map_err(|_| BAD);
    }
    if text.contains(is_unfit_for_name) { Err(BAD) } else { Ok(text) }
}

fn is_unfit_for_name(c: char) -> bool {
    c.is_whitespace() || c.is_control() || "()<>[]\\,;:@\"".contains(c)
}

/// The command that a device meant and [`parse`] refuses. Adds missing brackets around a path, and replaces a missing
/// name, or one with blanks, by a valid one for a Received field. `None`: the line has no such fault.
pub(crate) fn mended(line: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(line).ok()?.trim_end_matches([' ', '\t']);
    let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let rest = rest.trim_start_matches([' ', '\t']);
    let is = |command: &str| verb.eq_ignore_ascii_case(command);
    match () {
        () if line.contains(|c: char| c.is_control() && c != '\t') => None,
        () if is("HELO") || is("EHLO") || is("LHLO") => Some(format!("{verb} {}", mended_name(rest))),
        () if is("MAIL") => Some(format!("{verb} FROM:{}", in_brackets(after_keyword(rest, "FROM:")?)?)),
        () if is("RCPT") => Some(format!("{verb} TO:{}", in_brackets(after_keyword(rest, "TO:")?)?)),
        () => None,
    }
}

fn mended_name(text: &str) -> String {
    let name: String = text.chars().map(|c| if is_unfit_for_name(c) { '-' } else { c }).collect();
    let name = &name[..name.floor_char_boundary(DOMAIN_BYTES_MAX)];
    match name.trim_matches('-') {
        "" => "unknown".to_owned(),
        name => name.to_owned(),
    }
}

fn in_brackets(text: &str) -> Option<String> {
    let (path, params) = text.split_at(text.find([' ', '\t']).unwrap_or(text.len()));
    (!path.is_empty() && !path.contains(['<', '>'])).then(|| format!("<{path}>{params}"))
}

fn parse_mail(rest: &str) -> Result<MailFrom, CommandError> {
    let path = after_keyword(rest, "FROM:").ok_or(CommandError::Argument("MAIL needs FROM:<address>"))?;
    let (reverse_path, params) = ReversePath::split(path).map_err(CommandError::Sender)?;
    let mut mail = MailFrom::new(reverse_path);
    let mut body = None;
    for param in Params::new(params).map_err(|()| CommandError::Sender(AddressError::Trailing))? {
        match param {
            Param("SIZE", value) => set(&mut mail.size, "SIZE", value.and_then(parse_size))?,
            Param("BODY", value) => set(&mut body, "BODY", value.and_then(parse_body))?,
            Param("RET", value) => set(&mut mail.ret, "RET", value.and_then(parse_ret))?,
            Param("ENVID", value) => {
                set(&mut mail.envid, "ENVID", value.filter(|v| v.len() <= 100).and_then(checked_xtext))?
            }
            Param("AUTH", value) => set(&mut mail.auth, "AUTH", value.and_then(checked_xtext))?,
            Param("HOLDFOR", value) => set(&mut mail.hold, "HOLDFOR", value.and_then(parse_secs).map(Hold::For))?,
            Param("HOLDUNTIL", value) => {
                set(&mut mail.hold, "HOLDUNTIL", value.and_then(parse_date_time).map(Hold::Until))?
            }
            Param("XEXPIRES", value) => set(&mut mail.expires, "XEXPIRES", value.and_then(parse_date_time))?,
            Param("SMTPUTF8", None) if !mail.smtputf8 => mail.smtputf8 = true,
            Param("SMTPUTF8", _) => return Err(CommandError::Parameter("SMTPUTF8")),
            Param(..) => return Err(CommandError::UnknownParameter),
        }
    }
    mail.body = body.unwrap_or_default();
    Ok(mail)
}

fn parse_rcpt(rest: &str) -> Result<RcptTo, CommandError> {
    let path = after_keyword(rest, "TO:").ok_or(CommandError::Argument("RCPT needs TO:<address>"))?;
    let (forward_path, params) = ForwardPath::split(path).map_err(CommandError::Recipient)?;
    let mut rcpt = RcptTo::new(forward_path);
    for param in Params::new(params).map_err(|()| CommandError::Recipient(AddressError::Trailing))? {
        match param {
            Param("NOTIFY", value) => set(&mut rcpt.notify, "NOTIFY", value.and_then(parse_notify))?,
            Param("ORCPT", value) => set(&mut rcpt.orcpt, "ORCPT", value.and_then(parse_orcpt))?,
            Param(..) => return Err(CommandError::UnknownParameter),
        }
    }
    Ok(rcpt)
}

/// Blanks after the colon are tolerated, as some clients write `MAIL FROM: <a@b>`.
fn after_keyword<'a>(text: &'a str, keyword: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(keyword.len())?;
    head.eq_ignore_ascii_case(keyword).then(|| rest.trim_start_matches([' ', '\t']))
}

fn parse_bdat(rest: &str) -> Result<Command<'static>, CommandError> {
    let mut words = rest.split_ascii_whitespace();
    let size = words.next().and_then(parse_number).ok_or(CommandError::BdatSize)?;
    let last = match words.next() {
        None => false,
        Some(word) if word.eq_ignore_ascii_case("LAST") => true,
        Some(_) => return Err(CommandError::BdatSize),
    };
    if words.next().is_some() { Err(CommandError::BdatSize) } else { Ok(Command::Bdat { size, last }) }
}

fn parse_auth(rest: &str) -> Result<Command<'_>, CommandError> {
    let mut words = rest.split_ascii_whitespace();
    let mechanism = words.next().filter(|m| m.len() <= 20).ok_or(CommandError::Argument("AUTH needs a mechanism"))?;
    let initial = words.next();
    match words.next() {
        None => Ok(Command::Auth { mechanism, initial }),
        Some(_) => Err(CommandError::Argument("AUTH takes a mechanism and one response")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(line: &str) -> Result<MailFrom, CommandError> {
        match parse(line.as_bytes())? {
            Command::Mail(mail) => Ok(mail),
            other => panic!("{other:?}"),
        }
    }

    fn check_reply(line: &str, code: u16) {
        assert_eq!(parse(line.as_bytes()).map_err(|e| e.reply().code()), Err(code), "{line}");
    }

    #[test]
    fn what_devices_say_is_mended() {
        for (line, expected) in [
            ("HELO", Some("HELO unknown")),
            ("EHLO  ", Some("EHLO unknown")),
            ("HELO RAID Controller (1)", Some("HELO RAID-Controller--1")),
            ("ehlo [192.0.2]", Some("ehlo 192.0.2")),
            ("HELO ()", Some("HELO unknown")),
            ("MAIL FROM:raid@here.example", Some("MAIL FROM:<raid@here.example>")),
            ("MAIL FROM: raid@here.example SIZE=5", Some("MAIL FROM:<raid@here.example> SIZE=5")),
            ("rcpt to:root", Some("rcpt TO:<root>")),
            ("MAIL FROM:<raid@here.example", None),
            ("MAIL FROM:", None),
            ("MAIL raid@here.example", None),
            ("RCPT TO:Root <root@here.example>", Some("RCPT TO:<Root> <root@here.example>")),
            ("HELO a\u{1}b", None),
            ("NOOP", None),
        ] {
            assert_eq!(mended(line.as_bytes()).as_deref(), expected, "{line}");
        }
        let long = mended(format!("HELO {}", "\u{e9}".repeat(300)).as_bytes()).unwrap();
        assert!(parse(long.as_bytes()).is_ok(), "{long}");
        assert!(parse(b"RCPT TO:<Root> <root@here.example>").is_err());
    }

    #[test]
    fn a_hello_name_has_255_octets_at_most() {
        let name = |octets: usize| format!("EHLO {}{}", "\u{e9}".repeat(octets / 2), "x".repeat(octets % 2));
        assert!(matches!(parse(name(255).as_bytes()), Ok(Command::Ehlo(name)) if name.len() == 255));
        for octets in [256, 257, 10_000] {
            check_reply(&name(octets), 501);
            let mended = mended(name(octets).as_bytes()).unwrap();
            assert!(mended.len() <= "EHLO ".len() + 255, "{octets}: {mended}");
        }
    }

    #[test]
    fn parameters_are_not_part_of_the_address() {
        let mail = mail("MAIL FROM:<a@b> SIZE=1").unwrap();
        assert_eq!(mail.reverse_path.to_string(), "<a@b>");
        assert_eq!(mail.size, Some(1));
    }

    #[test]
    fn a_sender_without_a_domain_is_an_address() {
        let mail = mail("MAIL FROM:<a> SIZE=1").unwrap();
        assert_eq!(mail.to_string(), "MAIL FROM:<a> SIZE=1");
        assert!(matches!(mail.reverse_path, ReversePath::Local(a) if a.as_str() == "a"));
    }

    #[test]
    fn every_parameter_is_kept() {
        let line = "MAIL FROM:<a@b> SIZE=10 BODY=8BITMIME SMTPUTF8 RET=HDRS ENVID=a+2Bb";
        assert_eq!(mail(line).unwrap().to_string(), line);
        let line = "RCPT TO:<a@b> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;a@b";
        let Ok(Command::Rcpt(rcpt)) = parse(line.as_bytes()) else { panic!() };
        assert_eq!(rcpt.to_string(), line);
        assert!(mail("mail from: <a@b> body=8bitmime").is_ok_and(|m| m.body == BodyType::EightBitMime));
    }

    #[test]
    fn bad_parameters() {
        check_reply("MAIL FROM:<a@b> SIZE=1 SIZE=2", 501);
        check_reply("MAIL FROM:<a@b> SIZE=-1", 501);
        check_reply("MAIL FROM:<a@b> SIZE=999999999999999999999", 501);
        check_reply("MAIL FROM:<a@b> SIZE=", 501);
        check_reply("MAIL FROM:<a@b> BODY=BINARYMIME", 501);
        check_reply("MAIL FROM:<a@b> ENVID=a+2x", 501);
        check_reply("MAIL FROM:<a@b> SMTPUTF8=1", 501);
        check_reply("MAIL FROM:<a@b> FOO=1", 555);
        // Not offered: whoever needs it must not believe that it is obeyed (RFC 8689 section 4.1).
        check_reply("MAIL FROM:<a@b> REQUIRETLS", 555);
        check_reply("MAIL FROM:<a@b>SIZE=1", 501);
        check_reply("RCPT TO:<a@b> NOTIFY=NEVER,FAILURE", 501);
        check_reply("RCPT TO:<a@b> NOTIFY=", 501);
        check_reply("RCPT TO:<a@b> ORCPT=a@b", 501);
        check_reply("RCPT TO:<a@b> SIZE=1", 555);
    }

    #[test]
    fn bad_lines() {
        check_reply("", 500);
        check_reply("FOO", 500);
        check_reply("MAILFROM:<a@b>", 500);
        check_reply("NOOP\rx", 500);
        check_reply("MAIL", 501);
        check_reply("MAIL TO:<a@b>", 501);
        check_reply("DATA x", 501);
        check_reply("VRFY", 501);
        check_reply(" NOOP", 500);
        check_reply("BDAT", 501);
        check_reply("BDAT 1x", 501);
        check_reply("BDAT 1 FIRST", 501);
        check_reply("BDAT +1", 501);
        check_reply("HELO", 501);
        check_reply("HELO a b", 501);
        check_reply("EHLO x)(y", 501);
        check_reply("EHLO [1.2.3]", 501);
        assert!(parse(b"NOOP \xff").is_err());
    }

    #[test]
    fn a_size_that_no_number_holds_is_the_largest() {
        assert_eq!(mail("MAIL FROM:<a@b> SIZE=18446744073709551616").unwrap().size, Some(u64::MAX));
        assert_eq!(mail("MAIL FROM:<a@b> SIZE=99999999999999999999").unwrap().size, Some(u64::MAX));
    }

    #[test]
    fn other_protocols_are_known_by_their_first_word() {
        let forbidden = ["GET".to_owned()];
        for line in ["GET / HTTP/1.1", "get", "Host: x", "User-Agent:y", "X_1:"] {
            assert!(is_foreign(line.as_bytes(), &forbidden), "{line}");
            assert!(!is_foreign(line.as_bytes(), &[]), "{line}");
        }
        for line in ["", ":", " GET /", "GETS /", "MAIL FROM:<a@b>", "a b:", "\u{e9}t\u{e9}: x", "!:"] {
            assert!(!is_foreign(line.as_bytes(), &forbidden), "{line}");
        }
    }

    #[test]
    fn every_known_command_is_parsed() {
        for verb in
            ["HELO", "ehlo", "LHLO", "MAIL", "RCPT", "DATA", "BDAT", "RSET", "NOOP", "QUIT", "VRFY", "EXPN", "HELP"]
        {
            assert!(is_known(verb) && parse(verb.as_bytes()) != Err(CommandError::Unknown), "{verb}");
        }
        assert!(is_known("STARTTLS") && is_known("AUTH") && !is_known("GET") && !is_known(""));
    }

    #[test]
    fn xtext_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode_xtext(&encode_xtext(&all)), Some(all));
        assert_eq!(decode_xtext("a=b"), None);
    }
}
