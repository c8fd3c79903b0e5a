//! Output formats of `find`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use posthaste_search::state::bits;
use posthaste_search::{FoundMessage, split_addresses, tree};
use serde_json::json;

use crate::search_common::{Failure, Reader, local};
use crate::terminal::{print, print_foreign};

/// Columns of a line of output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Date,
    From,
    To,
    Cc,
    Subject,
    Size,
    Flags,
    Tags,
    Maildir,
    Path,
    MessageId,
    List,
    Thread,
    Priority,
}

/// Parses `date,from,subject`, `date from subject`, or mu's `dfs` and `d f s`.
pub fn fields(text: &str) -> Result<Vec<Field>, Failure> {
    let mut all = Vec::new();
    for name in text.split([',', ' ']).filter(|name| !name.is_empty()) {
        match long_name(name) {
            Some(field) => all.push(field),
            None => {
                let unknown = || format!("--fields: no field `{name}`");
                all.extend(name.chars().map(letter).collect::<Option<Vec<_>>>().ok_or_else(unknown)?);
            }
        }
    }
    Ok(all)
}

fn long_name(name: &str) -> Option<Field> {
    Some(match name {
        "date" => Field::Date,
        "from" => Field::From,
        "to" => Field::To,
        "cc" => Field::Cc,
        "subject" => Field::Subject,
        "size" => Field::Size,
        "flags" => Field::Flags,
        "tags" => Field::Tags,
        "maildir" | "folder" => Field::Maildir,
        "path" => Field::Path,
        "msgid" | "id" => Field::MessageId,
        "list" => Field::List,
        "thread" => Field::Thread,
        "prio" => Field::Priority,
        _ => return None,
    })
}

fn letter(letter: char) -> Option<Field> {
    Some(match letter {
        'd' => Field::Date,
        'f' => Field::From,
        't' => Field::To,
        'c' => Field::Cc,
        's' => Field::Subject,
        'z' => Field::Size,
        'g' => Field::Flags,
        'x' => Field::Tags,
        'm' => Field::Maildir,
        'l' => Field::Path,
        'i' => Field::MessageId,
        'v' => Field::List,
        'w' => Field::Thread,
        'p' => Field::Priority,
        _ => return None,
    })
}

/// A field's value on a line.
pub fn value(field: Field, message: &FoundMessage) -> String {
    match field {
        Field::Date => local(message.date).strftime("%Y-%m-%d %H:%M").to_string(),
        Field::From => sender(&message.head.from),
        Field::To => message.head.to.clone(),
        Field::Cc => message.head.cc.clone(),
        Field::Subject if message.head.subject.is_empty() => "(no subject)".to_owned(),
        Field::Subject => message.head.subject.clone(),
        Field::Size => human(message.size),
        Field::Flags => flags(message.flags).join(","),
        Field::Tags if message.tags.is_empty() => String::new(),
        Field::Tags => format!("({})", message.tags.join(" ")),
        Field::Maildir => message.folder.clone(),
        Field::Path => message.path.display().to_string(),
        Field::MessageId => message.head.message_id.clone(),
        Field::List => message.head.list.clone(),
        Field::Thread => format!("{:08x}", message.thread),
        Field::Priority => priority(message.flags).to_owned(),
    }
}

/// The sender's name, or the address if there is none.
pub fn sender(from: &str) -> String {
    match split_addresses(from).first() {
        Some((name, _)) if !name.is_empty() => name.clone(),
        Some((_, address)) => address.clone(),
        None => from.to_owned(),
    }
}

fn human(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes}"),
        10_000..10_000_000 => format!("{}k", bytes / 1000),
        _ => format!("{}M", bytes / 1_000_000),
    }
}

/// mu's names of the flags, in its order.
pub fn flags(flags: u64) -> Vec<&'static str> {
    let letter = |letter| bits::letters(letter);
    let named = [
        (letter("D"), "draft"),
        (letter("F"), "flagged"),
        (bits::NEW, "new"),
        (letter("P"), "passed"),
        (letter("R"), "replied"),
        (letter("S"), "seen"),
        (letter("T"), "trashed"),
        (bits::ATTACHMENT, "attach"),
        (bits::ENCRYPTED, "encrypted"),
        (bits::SIGNED, "signed"),
        (bits::LIST, "list"),
        (bits::CALENDAR, "calendar"),
    ];
    let mut names: Vec<&str> = named.into_iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| name).collect();
    names.extend(bits::is_unread(flags).then_some("unread"));
    names
}

fn priority(flags: u64) -> &'static str {
    if flags & bits::PRIORITY_HIGH != 0 {
        "high"
    } else if flags & bits::PRIORITY_LOW != 0 {
        "low"
    } else {
        "normal"
    }
}

/// Messages in their order, or in the order of trees, each with its depth in the thread.
pub fn ordered(messages: &[FoundMessage], as_trees: bool) -> Vec<(&FoundMessage, Option<usize>)> {
    if as_trees {
        tree(messages).into_iter().map(|line| (&messages[line.index], Some(line.more.len()))).collect()
    } else {
        messages.iter().map(|message| (message, None)).collect()
    }
}

/// A JSON array, one object on a line.
pub fn json(messages: &[FoundMessage], as_trees: bool) -> String {
    let address = |field: &str| -> serde_json::Value {
        split_addresses(field).into_iter().map(|(name, address)| json!({"name": name, "address": address})).collect()
    };
    let object = |(message, level): (&FoundMessage, Option<usize>)| {
        let head = &message.head;
        let mut object = json!({
            "message_id": head.message_id, "thread": format!("{:08x}", message.thread), "date": message.date, "subject": head.subject,
            "from": address(&head.from), "to": address(&head.to), "cc": address(&head.cc), "bcc": address(&head.bcc), "list": head.list,
            "attachments": head.files, "size": message.size, "flags": flags(message.flags), "priority": priority(message.flags),
            "tags": message.tags, "maildir": message.folder, "path": message.path.to_string_lossy(),
        });
        if let Some(level) = level {
            object["level"] = level.into();
        }
        object.to_string()
    };
    let rows: Vec<String> = ordered(messages, as_trees).into_iter().map(object).collect();
    format!("[{}]\n", rows.join(",\n"))
}

/// One property list for each message, with mu4e's property names.
pub fn sexp(messages: &[FoundMessage], as_trees: bool) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let address = |field: &str| {
        let each = |(name, address): (String, String)| {
            let name = if name.is_empty() { String::new() } else { format!(" :name {}", quote(&name)) };
            format!("(:email {}{name})", quote(&address))
        };
        split_addresses(field).into_iter().map(each).collect::<Vec<_>>().join(" ")
    };
    let mut out = String::new();
    for (message, level) in ordered(messages, as_trees) {
        let head = &message.head;
        // Emacs has times in two halves.
        let high = message.date >> 16;
        let low = message.date & 0xffff;
        let _ = write!(
            out,
            "(:path {} :size {} :date ({high} {low} 0)",
            quote(&message.path.to_string_lossy()),
            message.size
        );
        let _ = write!(out, " :message-id {} :subject {}", quote(&head.message_id), quote(&head.subject));
        for (name, field) in [("from", &head.from), ("to", &head.to), ("cc", &head.cc), ("bcc", &head.bcc)] {
            if !field.is_empty() {
                let _ = write!(out, " :{name} ({})", address(field));
            }
        }
        let tags: Vec<String> = message.tags.iter().map(|tag| quote(tag)).collect();
        let _ = write!(out, " :maildir {} :priority {}", quote(&message.folder), priority(message.flags));
        let _ = write!(out, " :flags ({}) :tags ({})", flags(message.flags).join(" "), tags.join(" "));
        let _ = match level {
            Some(level) => writeln!(out, " :meta (:level {level}))"),
            None => writeln!(out, ")"),
        };
    }
    out
}

/// An mbox of messages with all their files. In the `mboxrd` format every line that begins with `From ` after any `>`
/// gets one more `>`.
pub fn mbox<'m>(
    messages: impl Iterator<Item = (&'m FoundMessage, Vec<&'m Path>)>,
    reader: &mut Reader,
) -> Result<(), Failure> {
    for (message, files) in messages {
        let Some(bytes) = reader.read_any(files) else { continue };
        let sender = split_addresses(&message.head.from)
            .into_iter()
            .map(|(_, address)| address)
            .find(|address| !address.is_empty())
            .unwrap_or_else(|| "MAILER-DAEMON".to_owned());
        let sender = sender.replace(|c: char| c.is_whitespace() || c.is_control(), "");
        let mut out = format!(
            "From {sender} {}\n",
            local(message.date).with_time_zone(jiff::tz::TimeZone::UTC).strftime("%a %b %e %H:%M:%S %Y")
        )
        .into_bytes();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let quotes = line.iter().take_while(|&&byte| byte == b'>').count();
            if line[quotes..].starts_with(b"From ") {
                out.push(b'>');
            }
            out.extend_from_slice(line);
        }
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
        out.push(b'\n');
        if !print_foreign(&out)? {
            break;
        }
    }
    Ok(())
}

/// A Maildir of symbolic links, to show the result in a mail program.
pub fn links(messages: &[FoundMessage], dir: &Path, clear: bool) -> Result<(), Failure> {
    let fail = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    for sub in ["new", "cur", "tmp"] {
        let sub = dir.join(sub);
        fs::create_dir_all(&sub).map_err(|error| fail(&sub, error))?;
        if clear {
            for entry in fs::read_dir(&sub).map_err(|error| fail(&sub, error))? {
                let entry = entry?;
                if entry.file_type()?.is_symlink() {
                    fs::remove_file(entry.path())?;
                }
            }
        }
    }
    // The program that reads the links must not index them as mail of their own.
    let mark = dir.join(".noindex");
    fs::write(&mark, "").map_err(|error| fail(&mark, error))?;
    for message in messages {
        let name = message.path.file_name().unwrap_or_default().to_string_lossy();
        let sub = if message.flags & bits::NEW != 0 { "new" } else { "cur" };
        let link = dir.join(sub).join(format!("{:08x}-{name}", message.number));
        match std::os::unix::fs::symlink(&message.path, &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fail(&link, error).into()),
            _ => {}
        }
    }
    print(&format!("{} links in {}\n", messages.len(), dir.display()))?;
    Ok(())
}
