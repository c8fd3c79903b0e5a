//! Tables of the reply to each command in each state, replayed on anything that speaks SMTP: each cell in a session of
//! its own.
//!
//! After the reply of a cell the session is probed for its state: with DATA, which only a transaction with a recipient
//! takes, and with MAIL, which only a session without one takes.

#[path = "escapes.rs"]
mod escapes;

use std::path::Path;

use escapes::unescape;

/// One session with a server that has greeted.
pub trait Talk {
    fn say(&mut self, octets: &[u8]);
    /// The code of the next reply; `None` when the connection is closed.
    fn hear(&mut self) -> Option<u16>;
    /// Does the handshake.
    fn start_tls(&mut self);
}

pub struct Matrix {
    pub name: String,
    /// With STARTTLS and AUTH offered.
    pub secure: bool,
    states: Vec<String>,
    rows: Vec<(String, Vec<Cell>)>,
}

struct Cell {
    code: u16,
    closes: bool,
    next: Option<String>,
}

/// The tables in `folder`.
pub fn read_all(folder: &Path) -> Vec<Matrix> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let tables: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "matrix")).map(|p| read(&p)).collect();
    assert!(tables.len() >= 3, "only {} tables found", tables.len());
    tables
}

fn read(path: &Path) -> Matrix {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let mut matrix = Matrix { name, secure: false, states: Vec::new(), rows: Vec::new() };
    for line in std::fs::read_to_string(path).unwrap().lines() {
        if let Some(states) = line.strip_prefix("@states ") {
            matrix.states = states.split(' ').map(String::from).collect();
        } else if line == "@secure" {
            matrix.secure = true;
        } else if let Some((command, cells)) = line.split_once(" | ").filter(|_| !line.starts_with('#')) {
            let cells: Vec<Cell> = cells.split_whitespace().map(cell).collect();
            assert_eq!(cells.len(), matrix.states.len(), "{}: {line}", matrix.name);
            matrix.rows.push((command.trim_end().to_owned(), cells));
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "{}: {line}", matrix.name);
        }
    }
    matrix
}

fn cell(text: &str) -> Cell {
    let (code, next) = text.split_once('>').map_or((text, None), |(code, next)| (code, Some(next.to_owned())));
    let closes = code.ends_with('x');
    Cell { code: code.trim_end_matches('x').parse().unwrap(), closes, next }
}

impl Matrix {
    /// Replays every cell on a session opened by `connect`; returns the number of cells.
    pub fn replay(&self, mut connect: impl FnMut() -> Box<dyn Talk>) -> usize {
        for (command, cells) in &self.rows {
            for (state, cell) in self.states.iter().zip(cells) {
                let place = format!("{}: {command:?} in state {state}", self.name);
                let mut talk = connect();
                bring_to(&mut *talk, state, &place);
                let mut octets = unescape(command);
                if !octets.contains(&b'\n') {
                    octets.extend_from_slice(b"\r\n");
                }
                talk.say(&octets);
                assert_eq!(talk.hear(), Some(cell.code), "{place}");
                if cell.closes {
                    assert_eq!(talk.hear(), None, "{place}: not closed");
                    continue;
                }
                match cell.code {
                    354 => expect(&mut *talk, b"x\r\n.\r\n", 250, &place),
                    334 => expect(&mut *talk, b"*\r\n", 501, &place),
                    220 => talk.start_tls(),
                    _ => {}
                }
                probe(&mut *talk, cell.next.as_deref().unwrap_or(state), &place);
            }
        }
        self.rows.len() * self.states.len()
    }
}

fn expect(talk: &mut dyn Talk, octets: &[u8], code: u16, place: &str) {
    talk.say(octets);
    assert_eq!(talk.hear(), Some(code), "{place}, then {:?}", String::from_utf8_lossy(octets));
}

const HELO: (&str, u16) = ("HELO c.example", 250);
const EHLO: (&str, u16) = ("EHLO c.example", 250);
const MAIL: (&str, u16) = ("MAIL FROM:<a@x.example>", 250);
const RCPT: (&str, u16) = ("RCPT TO:<b@x.example>", 250);
const DATA: [(&str, u16); 2] = [("DATA", 354), ("x\r\n.", 250)];
const STARTTLS: (&str, u16) = ("STARTTLS", 220);
const AUTH: (&str, u16) = ("AUTH PLAIN AGFubgBzZWNyZXQ=", 235);

fn bring_to(talk: &mut dyn Talk, state: &str, place: &str) {
    let secure = |rest: &[(&'static str, u16)]| [&[EHLO, STARTTLS], rest].concat();
    let steps = match state {
        "start" => vec![],
        "helo" => vec![HELO],
        "hmail" => vec![HELO, MAIL],
        "hrcpt" => vec![HELO, MAIL, RCPT],
        "ehlo" => vec![EHLO],
        "mail" => vec![EHLO, MAIL],
        "rcpt" => vec![EHLO, MAIL, RCPT],
        "chunk" => vec![EHLO, MAIL, RCPT, ("BDAT 5\r\nabc", 250)],
        "done" => [&[EHLO, MAIL, RCPT][..], &DATA].concat(),
        "sec" => secure(&[]),
        "sechelo" => secure(&[HELO]),
        "secehlo" => secure(&[EHLO]),
        "secmail" => secure(&[EHLO, MAIL]),
        "auth" => secure(&[EHLO, AUTH]),
        "authmail" => secure(&[EHLO, AUTH, MAIL]),
        other => panic!("{place}: no such state as {other}"),
    };
    for (line, code) in steps {
        expect(talk, format!("{line}\r\n").as_bytes(), code, place);
        if code == STARTTLS.1 {
            talk.start_tls();
        }
    }
}

/// Checks that the session is in `state`.
fn probe(talk: &mut dyn Talk, state: &str, place: &str) {
    let place = format!("{place}, which leads to {state}");
    if matches!(state, "rcpt" | "hrcpt") {
        for (line, code) in DATA {
            expect(talk, format!("{line}\r\n").as_bytes(), code, &place);
        }
    } else {
        expect(talk, b"DATA\r\n", 503, &place);
    }
    let in_place = !matches!(state, "start" | "sec" | "chunk") && !state.ends_with("mail");
    expect(talk, format!("{}\r\n", MAIL.0).as_bytes(), if in_place { 250 } else { 503 }, &place);
    expect(talk, b"QUIT\r\n", 221, &place);
    assert_eq!(talk.hear(), None, "{place}: not closed");
}
