//! kill -9 under two concurrent IMAP clients, while mail arrives: acknowledged UIDs, flags and messages survive each
//! start.
//!
//! `POSTHASTE_MAILBOX_KILLS` is the number of kills.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::Signal;

use crate::imap::{Imap, serve};
use crate::mailbox_verify::verify;
use crate::support::{Client, PATIENCE};

const MAILBOXES: [&str; 3] = ["INBOX", "A", "B"];
/// A flag for each client, which the other does not change.
const FLAGS: [&str; 2] = ["\\Flagged", "blue"];

/// A message of a mailbox, by its acknowledged changes.
#[derive(Debug, Clone, Default)]
struct Known {
    subject: String,
    /// True after the start of a change that may remove it.
    may_be_gone: bool,
    /// True after an acknowledged removal.
    is_gone: bool,
    /// The flag of each client; `None` if unknown.
    flags: [Option<bool>; 2],
}

/// A mailbox as reported to clients.
#[derive(Debug, Default)]
struct Told {
    validity: u32,
    uid_next: u32,
    modseq: u64,
    messages: BTreeMap<u32, Known>,
}

#[derive(Debug, Default)]
struct Model {
    mailboxes: [Told; 3],
    /// Subjects of mail acknowledged by SMTP.
    delivered: BTreeSet<String>,
    changes: usize,
    /// True before the server is killed.
    is_over: bool,
}

impl Model {
    /// Checks that a UID always has the same content.
    fn saw(&mut self, mailbox: usize, uid: u32, subject: &str) -> &mut Known {
        let known = self.mailboxes[mailbox]
            .messages
            .entry(uid)
            .or_insert_with(|| Known { subject: subject.to_owned(), ..Known::default() });
        assert_eq!(known.subject, subject, "{} UID {uid} has two contents", MAILBOXES[mailbox]);
        known
    }
}

/// A small random generator: each run makes the same choices.
pub(crate) struct Choices(u64);

impl Choices {
    pub fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

fn after<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    text.split_once(what).map(|(_, rest)| rest)
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split(|octet: char| !octet.is_ascii_digit()).next()?.parse().ok()
}

/// UID, flags and subject of each message in FETCH responses.
fn fetched(told: &str) -> Vec<(u32, String, String)> {
    let each = told.split("* ").filter(|part| part.contains(" FETCH ") && part.contains("Subject: "));
    let row = |part: &str| {
        let uid = number(after(part, "UID ")?)?;
        let flags = after(part, "FLAGS (")?.split(')').next()?.to_owned();
        let subject = after(part, "Subject: ")?.lines().next()?.to_owned();
        Some((uid, flags, subject))
    };
    each.filter_map(row).collect()
}

const FETCH_ALL: &str = "UID FETCH 1:* (UID FLAGS BODY.PEEK[HEADER.FIELDS (SUBJECT)])";

/// Runs one of the concurrent clients until its connection ends.
fn race(address: SocketAddr, (round, client): (usize, usize), model: &Mutex<Model>) -> Option<()> {
    let mut choices = Choices::new((round * 2 + client) as u64);
    let mut imap = Imap::attempt_login(address)?;
    let mut number_of = 0;
    loop {
        let at = choices.below(3);
        let (_, tagged) = imap.attempt(&format!("SELECT {}", MAILBOXES[at]))?;
        assert!(tagged.starts_with("OK"), "{tagged}");
        if choices.below(3) == 0 {
            number_of += 1;
            append(&mut imap, at, &format!("a{round}.{client}.{number_of}"), model)?;
        }
        let (told, _) = imap.attempt(FETCH_ALL)?;
        let rows = fetched(&told);
        {
            let mut model = model.lock().unwrap();
            for (uid, _, subject) in &rows {
                model.saw(at, *uid, subject);
            }
        }
        for _ in 0..3 {
            if rows.is_empty() {
                break;
            }
            let (uid, _, subject) = &rows[choices.below(rows.len())];
            match choices.below(6) {
                0 | 1 => store(&mut imap, (at, *uid), client, choices.below(2) == 0, model)?,
                2 | 3 => copy(&mut imap, (at, *uid, subject), (1 + choices.below(2), choices.below(2) == 0), model)?,
                _ if rows.len() > 20 => expunge(&mut imap, (at, *uid), model)?,
                _ => {}
            }
        }
    }
}

fn append(imap: &mut Imap, at: usize, subject: &str, model: &Mutex<Model>) -> Option<()> {
    let text = format!("Subject: {subject}\r\n\r\n{subject}\r\n");
    let (_, tagged) = imap.attempt(&format!("APPEND {} {{{}+}}\r\n{text}", MAILBOXES[at], text.len()))?;
    let uid: u32 = number(after(&tagged, "APPENDUID ")?.split_once(' ')?.1)?;
    let mut model = model.lock().unwrap();
    model.saw(at, uid, subject).flags = [Some(false); 2];
    model.changes += 1;
    Some(())
}

fn store(imap: &mut Imap, (at, uid): (usize, u32), client: usize, is_on: bool, model: &Mutex<Model>) -> Option<()> {
    model.lock().unwrap().mailboxes[at].messages.get_mut(&uid)?.flags[client] = None;
    let sign = if is_on { '+' } else { '-' };
    let (_, tagged) = imap.attempt(&format!("UID STORE {uid} {sign}FLAGS.SILENT ({})", FLAGS[client]))?;
    assert!(tagged.starts_with("OK"), "{tagged}");
    let mut model = model.lock().unwrap();
    model.mailboxes[at].messages.get_mut(&uid)?.flags[client] = Some(is_on);
    model.changes += 1;
    Some(())
}

/// COPY or MOVE.
fn copy(
    imap: &mut Imap,
    (at, uid, subject): (usize, u32, &str),
    (to, moves): (usize, bool),
    model: &Mutex<Model>,
) -> Option<()> {
    if moves {
        model.lock().unwrap().mailboxes[at].messages.get_mut(&uid)?.may_be_gone = true;
    }
    let command = if moves { "MOVE" } else { "COPY" };
    let (told, tagged) = imap.attempt(&format!("UID {command} {uid} {}", MAILBOXES[to]))?;
    assert!(tagged.starts_with("OK"), "{command}: {tagged}");
    let mut model = model.lock().unwrap();
    model.changes += 1;
    // Without it the other client was faster.
    let Some(copied) = after(&format!("{told}{tagged}"), "COPYUID ").map(str::to_owned) else { return Some(()) };
    let new: u32 = number(copied.split(' ').nth(2)?)?;
    // The flags are those that the message had, which the other client may be changing.
    model.saw(to, new, subject).flags = [None; 2];
    if moves {
        model.mailboxes[at].messages.get_mut(&uid)?.is_gone = true;
    }
    Some(())
}

fn expunge(imap: &mut Imap, (at, uid): (usize, u32), model: &Mutex<Model>) -> Option<()> {
    model.lock().unwrap().mailboxes[at].messages.get_mut(&uid)?.may_be_gone = true;
    imap.attempt(&format!("UID STORE {uid} +FLAGS.SILENT (\\Deleted)"))?;
    let (_, tagged) = imap.attempt(&format!("UID EXPUNGE {uid}"))?;
    assert!(tagged.starts_with("OK"), "{tagged}");
    let mut model = model.lock().unwrap();
    model.mailboxes[at].messages.get_mut(&uid)?.is_gone = true;
    model.changes += 1;
    Some(())
}

fn deliver(address: SocketAddr, round: usize, model: &Mutex<Model>) -> Option<()> {
    let mut client = Client::open(address).ok()?;
    client.try_reply().ok()?;
    client.send(b"EHLO client.example\r\n").ok()?;
    client.try_reply().ok()?;
    for number in 0.. {
        let subject = format!("d{round}.{number}");
        let message = format!("Subject: {subject}\r\n\r\n{subject}\r\n");
        let reply = client.try_message("s@example.net", &["ann@example.org"], message.as_bytes()).ok()?;
        assert_eq!(reply.code, 250, "{reply:?}");
        model.lock().unwrap().delivered.insert(subject);
        // As many as there are changes: INBOX is read again and again.
        let is_ahead = || {
            let model = model.lock().unwrap();
            !model.is_over && model.delivered.len() > model.changes + 10
        };
        while is_ahead() {
            std::thread::yield_now();
        }
    }
    None
}

/// Checks that the server has all that it acknowledged, and that no number has decreased.
fn check(address: SocketAddr, round: usize, model: &mut Model) {
    let mut imap = Imap::logged_in(address);
    let mut inbox = BTreeSet::new();
    for (at, mailbox) in MAILBOXES.into_iter().enumerate() {
        let told = imap.ok(&format!("SELECT {mailbox}"));
        let value = |name: &str| after(&told, name).and_then(number::<u64>).unwrap_or_else(|| panic!("{name}: {told}"));
        let (validity, next) = (value("UIDVALIDITY ") as u32, value("UIDNEXT ") as u32);
        let modseq = value("HIGHESTMODSEQ ");
        let rows: BTreeMap<u32, (String, String)> =
            fetched(&imap.ok(FETCH_ALL)).into_iter().map(|(uid, flags, subject)| (uid, (flags, subject))).collect();
        for (uid, (_, subject)) in &rows {
            model.saw(at, *uid, subject);
            assert!(at > 0 || inbox.insert(subject.clone()), "round {round}: {subject} has two UIDs");
        }
        let known = &mut model.mailboxes[at];
        if known.validity != 0 {
            assert_eq!(validity, known.validity, "round {round}, {mailbox}");
        }
        assert!(
            next >= known.uid_next && modseq >= known.modseq,
            "round {round}, {mailbox}: {next} {modseq} {known:?}"
        );
        assert!(known.messages.keys().all(|uid| *uid < next), "round {round}, {mailbox}: UIDNEXT {next}");
        (known.validity, known.uid_next, known.modseq) = (validity, next, modseq);
        for (uid, message) in &mut known.messages {
            let found = rows.get(uid);
            let said = format!("round {round}, {mailbox} UID {uid}: {message:?}, found {found:?}");
            assert!(found.is_some() || message.may_be_gone, "lost: {said}");
            assert!(found.is_none() || !message.is_gone, "came back: {said}");
            let Some((flags, _)) = found else {
                (message.may_be_gone, message.is_gone) = (true, true);
                continue;
            };
            for (flag, known) in FLAGS.iter().zip(&mut message.flags) {
                let is_set = flags.split(' ').any(|set| set == *flag);
                assert!(known.is_none_or(|known| known == is_set), "{flag}: {said}");
                *known = Some(is_set);
            }
        }
    }
    for subject in &model.delivered {
        let mut known = model.mailboxes[0].messages.values().filter(|known| known.subject == *subject);
        assert!(inbox.contains(subject) || known.any(|known| known.may_be_gone), "round {round}: {subject} is lost");
    }
}

#[test]
fn kills_under_racing_clients_lose_nothing() {
    let kills = std::env::var("POSTHASTE_MAILBOX_KILLS").map_or(4, |kills| kills.parse().expect("a number"));
    let dir = tempfile::tempdir().unwrap();
    let model = Arc::new(Mutex::new(Model::default()));
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    MAILBOXES[1..].iter().for_each(|mailbox| drop(imap.ok(&format!("CREATE {mailbox}"))));
    server.stop();
    for round in 0..kills {
        let (mut server, address) = serve(dir.path(), "", "imap");
        check(address, round, &mut model.lock().unwrap());
        let smtp = server.addresses[0];
        model.lock().unwrap().is_over = false;
        let enough = model.lock().unwrap().changes + 10 + round * 17 % 60;
        let mut threads: Vec<_> = (0..2)
            .map(|client| {
                let model = Arc::clone(&model);
                std::thread::spawn(move || {
                    // It ends with its connection.
                    let _ = race(address, (round, client), &model);
                })
            })
            .collect();
        let of_mail = Arc::clone(&model);
        threads.push(std::thread::spawn(move || {
            let _ = deliver(smtp, round, &of_mail);
        }));
        let begun = Instant::now();
        while model.lock().unwrap().changes < enough {
            assert!(
                begun.elapsed() < PATIENCE && threads.iter().all(|thread| !thread.is_finished()),
                "{}",
                server.log_text()
            );
            std::thread::yield_now();
        }
        server.signal(Signal::KILL);
        server.wait();
        model.lock().unwrap().is_over = true;
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    let (server, address) = serve(dir.path(), "", "imap");
    check(address, kills, &mut model.lock().unwrap());
    // Counters are those of the rows, and each row has its file.
    let (code, found) = verify(dir.path());
    assert_eq!(code, Some(0), "{found}");
    let model = model.lock().unwrap();
    println!("{kills} kills, {} changes, {} messages by SMTP", model.changes, model.delivered.len());
    server.stop();
}
