//! Commands on a pseudo-terminal.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::command;

/// Runs a command on a terminal with lines of this many cells. Returns its output, errors included, and its exit
/// status.
pub fn on_terminal(dir: &Path, cells: u16, line: &[&str]) -> (String, i32) {
    let (bytes, code) = bytes_on_terminal(dir, cells, line);
    (String::from_utf8(bytes).expect("a terminal gets UTF-8"), code)
}

fn bytes_on_terminal(dir: &Path, cells: u16, line: &[&str]) -> (Vec<u8>, i32) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: cells, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = command(dir, line);
    command.env("TZ", "UTC").env("XDG_DATA_HOME", dir.join("data")).env("PAGER", "cat").env_remove("NO_COLOR");
    command.stdin(Stdio::null()).stdout(slave.try_clone().unwrap()).stderr(slave);
    let mut child = command.spawn().unwrap();
    // Ours end with it, so that the last of the child's ends the reading.
    drop(command);
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    let mut master = fs::File::from(master);
    // EIO: nobody has the other side open any more.
    while let Ok(count @ 1..) = master.read(&mut piece) {
        bytes.extend_from_slice(&piece[..count]);
    }
    let code = child.wait().unwrap().code().expect("an exit status");
    // The terminal's own translation of line ends.
    let text = bytes.iter().enumerate().filter(|&(at, &byte)| byte != b'\r' || bytes.get(at + 1) != Some(&b'\n'));
    (text.map(|(_, &byte)| byte).collect(), code)
}

/// Text without our colours.
fn plain(text: &str) -> String {
    let mut out = text.to_owned();
    for colour in ["0", "1", "2", "31", "32", "33", "36"] {
        out = out.replace(&format!("\x1b[{colour}m"), "");
    }
    out
}

fn maildir(dir: &Path, messages: &[(&str, &[u8])]) {
    for sub in ["new", "cur", "tmp"] {
        fs::create_dir_all(dir.join("mail").join(sub)).unwrap();
    }
    for (name, bytes) in messages {
        fs::write(dir.join("mail/cur").join(name), bytes).unwrap();
    }
    let output = command(dir, &["index", "--quiet", "mail"]).env("XDG_DATA_HOME", dir.join("data")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Every control and every character that turns text about, between letters; with `raw`, also octets that are not UTF-8.
fn harmful(raw: bool) -> Vec<u8> {
    let turns_about =
        ['\u{61c}', '\u{200e}', '\u{200f}'].into_iter().chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
    let controls = ('\u{1}'..='\u{9f}').filter(|c| c.is_control() && !"\t\n\r".contains(*c));
    let mut bytes = Vec::new();
    for c in controls.chain(turns_about) {
        bytes.extend_from_slice(format!("x{c}y ").as_bytes());
    }
    bytes.extend_from_slice(b"\x1b]52;c;eA==\x07 \x1b[2J \x1b[?1049h ");
    if raw {
        (0x80..=0xffu8).for_each(|octet| bytes.extend([octet, b' ']));
    }
    bytes
}

#[test]
fn no_command_lets_mail_command_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let evil = harmful(false);
    let evil_text = String::from_utf8(evil.clone()).unwrap();
    let encoded = |text: &[u8]| {
        let hex: String = text.iter().map(|octet| format!("={octet:02X}")).collect();
        // Encoded words are short (RFC 2047 section 2), and no character is cut in two.
        hex.as_bytes()
            .chunks(60)
            .map(|part| format!("=?utf-8?Q?{}?=", std::str::from_utf8(part).unwrap()))
            .collect::<Vec<_>>()
            .join("\n ")
    };
    let name = encoded("n\x1b]52;c;eA==\x07\u{9b}2J\u{202e}\u{61c}".as_bytes());
    let mut mail = format!(
        "From: {name} <a@example.org>\nTo: {name} <b@example.org>\nCc: {name} <c@example.org>\nSubject: {name}\nMessage-ID: <1\x1b[2J\u{202e}@example.org>\n\
         Date: Tue, 04 Mar 2025 10:40:00 +0000\nList-Id: {name} <l.example.org>\nX-Evil: "
    )
    .into_bytes();
    mail.extend_from_slice(&harmful(true));
    mail.extend_from_slice(
        b"\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain; charset=utf-8\n\nneedle ",
    );
    mail.extend_from_slice(&evil);
    mail.extend_from_slice(b"\n--b\nContent-Type: text/html; charset=utf-8\n\n<p>");
    mail.extend_from_slice(&evil);
    mail.extend_from_slice(format!("</p>\n--b\nContent-Type: application/x-y\x1b[2J\nContent-Disposition: attachment; filename=\"{name}\"\n\nx\n--b--\n").as_bytes());
    let file = "1.a\u{202e}b.host:2,S";
    maildir(dir.path(), &[(file, &mail)]);
    let path = format!("mail/cur/{file}");
    let tag = format!("+t{}", "\u{202e}\u{61c}");
    let lines: Vec<Vec<&str>> = vec![
        vec!["tag", &tag, "--", "*"],
        vec!["query", "save", "mine", &evil_text, "needle"],
        vec!["query", "save", "n\u{202e}m", "needle"],
        vec!["query", "list"],
        vec!["query", "show", "mine"],
        vec!["query", "show", "none\x1b[2J\u{202e}"],
        vec!["find", "needle"],
        vec!["find", "--json"],
        vec!["find", "-o", "sexp"],
        vec!["find", "-o", "mbox"],
        vec!["find", "-o", "text0"],
        vec!["find", "--threads"],
        vec!["find", "--summary-len", "9"],
        vec!["find", "-f", "f,t,c,s,l,i,v,x,m"],
        vec!["find", "--output", "files"],
        vec!["find", "--output", "tags"],
        vec!["find", "--output", "messages", "--json"],
        vec!["find", "form:\x1b[2J\u{202e}"],
        vec!["threads"],
        vec!["threads", "--json"],
        vec!["view", "needle"],
        vec!["view", "-o", "raw", "needle"],
        vec!["view", "-o", "html", "needle"],
        vec!["view", "-o", "headers", "needle"],
        vec!["view", "--json", "needle"],
        vec!["view", &path],
        vec!["view", "no/such\x1b[2J\u{202e}"],
        vec!["extract", "needle"],
        vec!["extract", "--json", "needle"],
        vec!["extract", "--save-all", "--target-dir", "data", "needle"],
        vec!["extract", "--save-all", "--target-dir", "data", "needle"],
        vec!["search"],
        vec!["search", "--format=json"],
        vec!["search", "--format=sexp"],
        vec!["search", "--output=files"],
        vec!["search", "--output=tags"],
        vec!["show", "needle"],
        vec!["show", "--format=json", "--include-html", "needle"],
        vec!["show", "--format=sexp", "needle"],
        vec!["show", "--format=raw", "needle"],
        vec!["show", "--format=mbox", "needle"],
        vec!["show", "--part=3", "needle"],
        vec!["reply", "needle"],
        vec!["reply", "--format=json", "needle"],
        vec!["cfind"],
        vec!["cfind", "--format=json"],
        vec!["find", "--flag=+F", "--dry-run", "needle"],
        vec!["find", "--exec", "true", "--dry-run", "needle"],
        vec!["complete", "posthaste find tag:"],
        vec!["complete", "posthaste find query:m"],
        vec!["addresses"],
        vec!["addresses", "--json"],
        vec!["addresses", "-o", "csv"],
        vec!["addresses", "-o", "mutt-ab"],
        vec!["tag", "--list"],
        vec!["tag", "--list", "--json"],
        vec!["tag", "--dump"],
        vec!["info", "--problems"],
        vec!["info", "--json"],
    ];
    for line in &lines {
        let (bytes, _) = bytes_on_terminal(dir.path(), 80, line);
        let text = plain(&String::from_utf8(bytes).unwrap_or_else(|error| panic!("{line:?}: {error}")));
        let turns_about =
            |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let found = text.chars().find(|&c| turns_about(c) || c.is_control() && c != '\n' && c != '\t');
        assert_eq!(found, None, "{line:?}: {text:?}");
        let is_quiet = line[0] == "complete"
            || line[0] == "tag" && line[1].starts_with('+')
            || line.starts_with(&["query", "save"]);
        assert!(is_quiet || !text.is_empty(), "{line:?} prints nothing");
    }
    // A pipe gets the octets.
    let raw = command(dir.path(), &["view", "-o", "raw", &path]).output().unwrap();
    assert_eq!(raw.stdout, mail);
}

#[test]
fn a_message_is_laid_out_for_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let many: Vec<String> = (0..30).map(|n| format!("Somebody {n} <s{n}@example.org>")).collect();
    let mail = format!(
        "From: Ann <ann@example.org>\nTo: {}\nSubject: Rye bread\nMessage-ID: <1@example.org>\nDate: Tue, 04 Mar 2025 10:40:00 +0000\n\n\
         {}\n> {}\n-- \nAnn\n",
        many.join(",\n "),
        "some words ".repeat(20),
        "quoted words ".repeat(12)
    );
    maildir(dir.path(), &[("1.a.host:2,S", mail.as_bytes())]);
    for cells in [60, 80] {
        let (shown, code) = on_terminal(dir.path(), cells, &["view", "rye"]);
        assert_eq!(code, 0);
        let text = plain(&shown);
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(cells)), "{text}");
        assert!(text.contains("\n    and ") && text.contains(" more\nSubject: Rye bread\n"), "{text}");
        assert!(text.lines().filter(|line| line.starts_with("> quoted")).count() > 1, "{text}");
        assert!(
            shown.contains("\n\x1b[2m> quoted") && shown.ends_with("\n\x1b[2m-- \x1b[0m\n\x1b[2mAnn\x1b[0m\n"),
            "{shown:?}"
        );
    }
    let (nothing, code) = on_terminal(dir.path(), 80, &["view", "wheat"]);
    assert_eq!((nothing.as_str(), code), ("posthaste: no matches\n", 1));
}

#[test]
fn threads_fit_the_terminal_and_keep_their_subject() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["梁礼学梁礼学梁礼学", "Somebody With A Very Long Name", "Ann", "Another Person Entirely", "Eve"];
    let mails: Vec<(String, String)> = (0..5)
        .map(|n| {
            let (re, answered) = if n == 0 { ("", String::new()) } else { ("Re: ", "In-Reply-To: <0@example.org>\n".to_owned()) };
            let text = format!(
                "From: {} <a{n}@example.org>\nSubject: {re}Rye bread and 东京都的面包师傅 how it is made\nMessage-ID: <{n}@example.org>\n{answered}\
                 Date: Tue, 04 Mar 2025 1{n}:40:00 +0000\n\nx\n",
                names[n]
            );
            (format!("{n}.a.host:2,S"), text)
        })
        .collect();
    let mails: Vec<(&str, &[u8])> = mails.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    maildir(dir.path(), &mails);
    let tagged = on_terminal(dir.path(), 80, &["tag", "+a-long-tag", "+another-long-tag", "+third-long-tag", "*"]);
    assert_eq!(tagged.1, 0);
    for cells in [60, 80, 120] {
        let text = plain(&on_terminal(dir.path(), cells, &["threads"]).0);
        let wide = text.chars().filter(|c| *c >= '\u{2e80}').count();
        let width = text.trim_end_matches('\n').chars().count() + wide;
        assert!(width <= usize::from(cells), "{width} cells: {text}");
        assert!(text.contains("Rye bread a"), "{text}");
    }
}

/// Runs `posthaste password` on a terminal and types `keys`, each once the text before it has appeared. Returns the
/// screen, the exit status, and true if the terminal echoes input afterwards.
fn password(dir: &Path, keys: &[(&str, &str)]) -> (String, i32, bool) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = command(dir, &["password", "ann@example.org"]);
    command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    drop(command);
    let (mut master, mut shown) = (fs::File::from(master), String::new());
    let mut piece = [0; 4096];
    for (prompt, key) in keys {
        while !shown.ends_with(prompt) {
            let count = master.read(&mut piece).unwrap();
            shown.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        master.write_all(key.as_bytes()).unwrap();
    }
    let code = child.wait().unwrap().code().expect("an exit status");
    let echoes = tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ISIG);
    drop(slave);
    while let Ok(count @ 1..) = master.read(&mut piece) {
        shown.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    (shown, code, echoes)
}

#[test]
fn a_password_is_asked_for_twice_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let check = |keys: &[(&str, &str)], code: i32, expected: &str| {
        let (shown, status, echoes) = password(dir.path(), keys);
        assert!(status == code && shown.contains(expected) && !shown.contains("secret"), "{status} {shown}");
        assert!(echoes, "the terminal is as it was");
    };
    let prompts = |first, second| [("Password: ", first), ("Again: ", second)];
    check(&prompts("secret\n", "secret\n"), 0, "\nann@example.org:$argon2id$");
    check(&prompts("secret\n", "secret2\n"), 2, "the two passwords differ; nothing was made");
    check(&prompts("\n", "\n"), 2, "the password is empty");
    // Ctrl-C, without a line end after it.
    check(&[("Password: ", "sec\u{3}")], 2, "interrupted");
    check(&prompts("secret\n", "\u{3}"), 2, "interrupted");
}
