//! `posthaste reply`: a template for a reply, as `notmuch reply` prints it.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use posthaste_message::mime::{Header, Kind, Message as Mail, Part};
use posthaste_search::settings::{SearchSettings, User};
use posthaste_search::text::extract_whole;
use serde_json::{Value, json};

use crate::chosen::{Choice, files};
use crate::mail_json::{Contents, address_field, addresses, body, date, full, headers, text};
use crate::notmuch_form::sexp;
use crate::search_common::{Failure, IndexDir, nothing_found};
use crate::terminal::{complain, harmless, print, print_json};

#[derive(Args)]
#[command(
    after_help = "From is your address that received the message: one of `[user] addresses` in config.toml in the index's directory, or $EMAIL."
)]
pub struct Reply {
    /// A message file, or a query for the newest match
    #[arg(value_name = "FILE|QUERY", required = true, trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Output format
    #[arg(long, value_enum, default_value = "default")]
    format: Format,
    /// Ignored: there is one version of each form
    #[arg(long, hide = true)]
    format_version: Option<u32>,
    /// Reply to everybody, or only to the sender
    #[arg(long, value_enum, default_value = "all")]
    reply_to: ReplyTo,
    /// The From address
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Default,
    Json,
    Sexp,
    HeadersOnly,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReplyTo {
    All,
    Sender,
}

/// Exit status 1: no match.
pub fn run(args: Reply) -> Result<ExitCode, Failure> {
    let files = files(&args.query, &args.index, Choice::ONE)?;
    let file = match files.as_slice() {
        [] => return Ok(nothing_found()),
        [file] => file,
        _ => return Err("one message at a time".into()),
    };
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mail = Mail::parse(&bytes);
    let user = SearchSettings::load(&args.index.path()?)?.user;
    let fields = answer(&mail, &bytes, &user, &args);
    match args.format {
        Format::Json | Format::Sexp => {
            let value = json_of(&mail, &bytes, file, &fields);
            match args.format {
                Format::Json => print_json(&(value.to_string() + "\n"))?,
                _ => print(&(sexp(&value) + "\n"))?,
            }
        }
        Format::HeadersOnly => print(&lines(&fields))?,
        Format::Default => print(&format!("{}\n{}", lines(&fields), quoted(&mail, &bytes)))?,
    }
    if !fields.iter().any(|(name, _)| *name == "From") {
        let settings = args.index.path()?.join("config.toml");
        complain(&format!("no From field: set $EMAIL, or `[user] addresses` in {}", settings.display()));
    }
    Ok(ExitCode::SUCCESS)
}

type Fields = Vec<(&'static str, String)>;

/// Header fields of a reply (RFC 5322 section 3.6.4); empty ones are left out.
fn answer(mail: &Mail<'_>, bytes: &[u8], user: &User, args: &Reply) -> Fields {
    let root = mail.root();
    let header = root.header();
    let message = extract_whole(bytes);
    let env = std::env::var("EMAIL").ok().filter(|address| !address.is_empty());
    let mut own: Vec<String> = user.addresses.clone();
    own.extend(env);
    own.extend(args.from.clone());
    let is_own = |address: &str| own.iter().any(|own| own.eq_ignore_ascii_case(address));
    // A name without an address gets no answer.
    let list = |name: &str| -> Vec<(String, String)> {
        let all = addresses(mail, &header, name);
        let all = if ["From", "Reply-To"].contains(&name) { joined_names(all) } else { all };
        all.into_iter().filter(|(_, address)| is_usable(address)).collect()
    };
    // To the address for answers, and where that is one's own, to the recipients.
    let mut to = list("Reply-To");
    // A list that puts itself there would keep the answer from who wrote: it is among To and Cc anyway.
    let went_to =
        |wanted: &str| list("To").iter().chain(&list("Cc")).any(|(_, address)| address.eq_ignore_ascii_case(wanted));
    if let [(_, address)] = to.as_slice()
        && went_to(address)
    {
        to.clear();
    }
    if to.is_empty() {
        to = list("From");
        if args.reply_to == ReplyTo::Sender && to.iter().all(|(_, address)| is_own(address)) {
            to = list("To");
        }
    }
    let mut cc = Vec::new();
    if args.reply_to == ReplyTo::All {
        to.extend(list("To"));
        cc = list("Cc");
    }
    let others = to.iter().chain(&cc).any(|(_, address)| !is_own(address));
    let mut seen = HashSet::new();
    let mut joined = |all: Vec<(String, String)>| -> String {
        let wanted = all.into_iter().filter(|(_, address)| !others || !is_own(address));
        let wanted = wanted.filter(|(_, address)| seen.insert(address.to_lowercase()));
        wanted.map(|(name, address)| full(&name, &address)).collect::<Vec<_>>().join(", ")
    };
    let to = joined(to);
    let cc = joined(cc);
    let subject = match message.subject.get(..3) {
        Some(start) if start.eq_ignore_ascii_case("re:") => message.subject.clone(),
        _ => format!("Re: {}", message.subject),
    };
    let id = if message.message_id.is_empty() { String::new() } else { format!("<{}>", message.message_id) };
    let mut references: Vec<String> = message.references.iter().map(|id| format!("<{id}>")).collect();
    references.extend(Some(id.clone()).filter(|id| !id.is_empty()));
    let fields = [
        ("From", sender(mail, &header, user, &own, args)),
        ("Subject", subject),
        ("To", to),
        ("Cc", cc),
        ("In-Reply-To", id),
        ("References", references.join(" ")),
    ];
    fields.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}

/// Joins a name that was split at an unquoted comma. Otherwise `Doe, Joe <joe@example.org>` would be two recipients,
/// one of them local.
fn joined_names(all: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut joined = Vec::new();
    let mut before: Vec<(String, String)> = Vec::new();
    for (name, address) in all {
        let is_word = name.is_empty() && !address.contains('@') || address.is_empty();
        if is_word {
            before.push((name, address));
            continue;
        }
        if name.is_empty() {
            // It has no name that theirs could be a part of.
            joined.append(&mut before);
            joined.push((name, address));
            continue;
        }
        let words = before.drain(..).map(|(name, address)| if name.is_empty() { address } else { name });
        joined.push((words.chain([name]).collect::<Vec<_>>().join(", "), address));
    }
    joined.append(&mut before);
    joined
}

/// True if an address may be copied into a reply. An unparsable one may contain any characters.
fn is_usable(address: &str) -> bool {
    let local = address.rsplit_once('@').map_or(address, |(local, _)| local);
    let is_quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let mut outside = if is_quoted { address[local.len()..].chars() } else { address.chars() };
    !address.is_empty() && outside.all(|c| !c.is_whitespace() && !"\"<>(),;".contains(c))
}

/// The user's own address that the message was sent to, or else the first one.
fn sender(mail: &Mail<'_>, header: &Header<'_>, user: &User, own: &[String], args: &Reply) -> String {
    if let Some(from) = &args.from {
        return full(&user.name, from);
    }
    let names = ["To", "Cc", "Delivered-To", "X-Original-To", "Envelope-To", "From"];
    let went_to = names.into_iter().flat_map(|name| addresses(mail, header, name));
    let mut mine = went_to.filter_map(|(_, address)| own.iter().find(|own| own.eq_ignore_ascii_case(&address)));
    mine.next().or(own.first()).map(|address| full(&user.name, address)).unwrap_or_default()
}

fn lines(fields: &Fields) -> String {
    fields.iter().map(|(name, text)| folded(&format!("{name}: {}", harmless(text))) + "\n").collect()
}

/// Folds at blanks a line that servers would not accept (RFC 5322 section 2.1.1).
fn folded(line: &str) -> String {
    const LINE_BYTES_MAX: usize = 998;
    const WANTED: usize = 78;
    if line.len() <= LINE_BYTES_MAX {
        return line.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for word in line.split(' ') {
        if used > 0 && used + 1 + word.len() > WANTED {
            out.push('\n');
            used = 0;
        }
        if !out.is_empty() {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += word.len();
    }
    out
}

/// `On ... wrote:` and the text with `>` in front.
fn quoted(mail: &Mail<'_>, bytes: &[u8]) -> String {
    let root = mail.root();
    let header = root.header();
    let is_text = |part: &Part<'_, '_>| {
        let is_attachment = part.disposition().is_some_and(|word| word == "attachment");
        part.kind() == Kind::Leaf && part.media_type() == "text/plain" && !is_attachment && !is_enclosed(*part)
    };
    let plain = mail.parts().filter(is_text);
    let mut body: String = plain.map(|part| text(part).trim_end().to_owned() + "\n").collect();
    if body.trim().is_empty() {
        // HTML alone, as text.
        body = extract_whole(bytes).body;
    }
    let when = date(&header);
    let from = address_field(mail, &header, "From");
    let from = if from.is_empty() { "somebody" } else { &from };
    let mut out = match when.as_str() {
        "" => format!("{} wrote:\n", harmless(from)),
        when => format!("On {}, {} wrote:\n", harmless(when), harmless(from)),
    };
    for line in body.trim_end().lines() {
        let line = line.split('\t').map(harmless).collect::<Vec<_>>().join("\t");
        out.push_str(if line.is_empty() { ">" } else { "> " });
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// True if the part belongs to a message within the message.
fn is_enclosed(part: Part<'_, '_>) -> bool {
    std::iter::successors(part.parent(), |part| part.parent()).any(|around| around.kind() == Kind::Message)
}

fn json_of(mail: &Mail<'_>, bytes: &[u8], file: &Path, fields: &Fields) -> Value {
    let message = extract_whole(bytes);
    // notmuch's spelling.
    let name = |name: &&str| if *name == "In-Reply-To" { "In-reply-to".to_owned() } else { (*name).to_owned() };
    let fields: serde_json::Map<String, Value> =
        fields.iter().map(|(key, text)| (name(key), text.as_str().into())).collect();
    json!({
        "reply-headers": fields,
        "original": {
            "id": message.message_id, "match": false, "excluded": false, "filename": [file.to_string_lossy()], "timestamp": message.date,
            "duplicate": 1, "crypto": {}, "headers": headers(mail, &mail.root().header()), "body": body(mail, Contents { html: false }),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_to(header: &str, reply_to: ReplyTo) -> Fields {
        let bytes = format!("{header}\n\nx\n").into_bytes();
        let user = User { name: "Me".to_owned(), addresses: vec!["me@example.org".to_owned()] };
        let args = Reply {
            query: Vec::new(),
            index: crate::search_common::IndexDir::default(),
            format: Format::Default,
            format_version: None,
            reply_to,
            from: None,
        };
        answer(&Mail::parse(&bytes), &bytes, &user, &args)
    }

    fn field(fields: &Fields, name: &str) -> String {
        fields.iter().find(|(known, _)| *known == name).map(|(_, text)| text.clone()).unwrap_or_default()
    }

    #[test]
    fn reply_to_of_a_list_does_not_hide_the_author() {
        let header = "From: Ann <ann@example.org>\nTo: list@example.org\nReply-To: List <LIST@example.org>\nSubject: x";
        let all = answer_to(header, ReplyTo::All);
        assert_eq!(field(&all, "To"), "Ann <ann@example.org>, list@example.org");
        assert_eq!(field(&answer_to(header, ReplyTo::Sender), "To"), "Ann <ann@example.org>");
        let elsewhere = header.replace("LIST@", "other@");
        assert_eq!(field(&answer_to(&elsewhere, ReplyTo::Sender), "To"), "List <other@example.org>");
    }

    #[test]
    fn who_has_a_name_alone_gets_no_answer() {
        let all = answer_to("From: ann@example.org\nTo: John Doe, me@example.org\nSubject: x", ReplyTo::All);
        assert_eq!(field(&all, "To"), "ann@example.org");
    }

    #[test]
    fn a_name_that_cannot_be_parsed_is_no_second_recipient() {
        for (from, to) in [
            ("Doe, Joe <joe@a.example>", "\"Doe, Joe\" <joe@a.example>"),
            ("\"Doe, Joe <joe@a.example>", "\"Doe, Joe\" <joe@a.example>"),
            ("van der Doe, Joe <joe@a.example>", "\"van der Doe, Joe\" <joe@a.example>"),
            ("Doe, Joe, Dr. <joe@a.example>", "\"Doe, Joe, Dr.\" <joe@a.example>"),
            (
                "Doe, Joe <joe@a.example>, Roe, R <r@b.example>",
                "\"Doe, Joe\" <joe@a.example>, \"Roe, R\" <r@b.example>",
            ),
            ("root, joe@a.example", "root, joe@a.example"),
            ("root", "root"),
            ("\"Doe", ""),
            ("joe@a.example, \"Doe", "joe@a.example"),
            ("\"a b\"@c.example", "\"a b\"@c.example"),
        ] {
            for header in [format!("From: {from}"), format!("From: x@x.example\nReply-To: {from}")] {
                let fields = answer_to(&format!("{header}\nTo: me@example.org\nSubject: x"), ReplyTo::Sender);
                let expected = if to.is_empty() && header.contains("Reply-To") { "x@x.example" } else { to };
                let expected = if expected.is_empty() { "me@example.org" } else { expected };
                assert_eq!(field(&fields, "To"), expected, "{header}");
            }
        }
    }

    #[test]
    fn no_line_is_longer_than_servers_take() {
        let ids: Vec<String> = (0..200).map(|n| format!("<{n}.of.many@example.org>")).collect();
        let references = ids.join(" ");
        let header = format!("From: ann@example.org\nSubject: x\nReferences: {}", ids.join("\n "));
        let text = lines(&answer_to(&header, ReplyTo::All));
        assert!(text.lines().all(|line| line.len() <= 998), "{text}");
        assert!(text.replace('\n', "").contains(&references), "{text}");
    }
}
