//! Two concurrent IMAP clients on the same mailboxes, against a model: UIDs, flags, MODSEQ and message numbers as
//! reported to the sessions.
//!
//! `POSTHASTE_MAILBOX_RACE_SECS` is the duration; `POSTHASTE_MAILBOX_RACE_SEED` repeats the choices of a run, but not
//! its interleaving.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use crate::imap::{Imap, serve};
use crate::mailbox_kills::Choices;
use crate::mailbox_verify::verify;

const MAILBOXES: [&str; 3] = ["INBOX", "A", "B"];
/// A flag for each client, which the other does not change; both change the last one.
const FLAGS: [&str; 3] = ["\\Flagged", "blue", "\\Answered"];
const SHARED: usize = 2;
const STEPS: usize = 40;
/// Limit on messages in a mailbox, above which some are expunged.
const MESSAGES_MAX: usize = 25;

type Flags = BTreeSet<String>;

/// A STORE of the flag that both clients change. Times are numbers of [`Model::time`].
#[derive(Debug, Clone, Copy)]
struct SharedChange {
    begun: u64,
    ended: u64,
    is_on: bool,
}

/// A message, by its acknowledged changes.
#[derive(Debug, Clone, Default)]
struct Known {
    subject: String,
    is_gone: bool,
    /// Number of its acknowledged moves to another mailbox.
    moves: usize,
    /// `None` if it was copied during a possible change.
    flags: [Option<bool>; 3],
    /// Changes since the last time that all clients were idle.
    shared: Vec<SharedChange>,
    /// Flags by MODSEQ, as reported to any session.
    told: BTreeMap<u64, Flags>,
}

#[derive(Debug, Default)]
struct Model {
    mailboxes: [BTreeMap<u32, Known>; 3],
    highest_modseq: [u64; 3],
    time: u64,
    changes: usize,
}

impl Model {
    fn now(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Checks that a UID always has the same content.
    fn saw(&mut self, at: usize, uid: u32, subject: &str) -> &mut Known {
        let new = || Known { subject: subject.to_owned(), ..Known::default() };
        let known = self.mailboxes[at].entry(uid).or_insert_with(new);
        if known.subject.is_empty() {
            subject.clone_into(&mut known.subject);
        }
        assert_eq!(known.subject, subject, "{} UID {uid} has two contents", MAILBOXES[at]);
        known
    }

    /// Checks that a MODSEQ always stands for the same state of a message.
    fn told(&mut self, at: usize, uid: u32, modseq: u64, flags: &Flags) {
        let known = self.mailboxes[at].entry(uid).or_default();
        let first = known.told.entry(modseq).or_insert_with(|| flags.clone());
        assert_eq!(first, flags, "{} UID {uid} MODSEQ {modseq} has two states", MAILBOXES[at]);
    }
}

/// The mailbox as reported to a session: by number, the UID if known, and the last reported flags.
#[derive(Debug, Default)]
struct Seen {
    numbers: Vec<Option<u32>>,
    flags: BTreeMap<u32, Flags>,
}

impl Seen {
    /// Takes out a message by its UID. False: the session was never told of it.
    fn vanished(&mut self, gone: u32) -> bool {
        if let Some(at) = self.numbers.iter().position(|uid| *uid == Some(gone)) {
            self.numbers.remove(at);
            return true;
        }
        // Only EXISTS told of it: its number lies between those of its neighbours, as UIDs ascend.
        let is_above = |uid: &Option<u32>| uid.is_some_and(|uid| uid > gone);
        let end = self.numbers.iter().position(is_above).unwrap_or(self.numbers.len());
        let is_there = end.checked_sub(1).is_some_and(|at| self.numbers[at].is_none());
        if is_there {
            self.numbers.remove(end - 1);
        }
        is_there
    }
}

/// One of the clients.
struct Racer<'m> {
    client: usize,
    imap: Imap,
    random: Choices,
    model: &'m Mutex<Model>,
    at: usize,
    seen: Seen,
    appended: usize,
}

fn after<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    text.split_once(what).map(|(_, rest)| rest)
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split(|octet: char| !octet.is_ascii_digit()).next()?.parse().ok()
}

/// Untagged responses with their literals. No literal of this test has a line that begins with `* `.
fn answers(told: &str) -> impl Iterator<Item = &str> {
    let told = told.strip_prefix("* ").unwrap_or(told);
    told.split("\r\n* ").filter(|answer| !answer.is_empty())
}

fn flags_of(answer: &str) -> Option<Flags> {
    let listed = after(answer, "FLAGS (")?.split(')').next()?;
    Some(listed.split(' ').filter(|flag| !flag.is_empty() && *flag != "\\Recent").map(str::to_owned).collect())
}

/// A set of UIDs, in the form of VANISHED and COPYUID.
fn uids_of(set: &str) -> Vec<u32> {
    let set = set.trim_end();
    let ranges = set.split(',').map(|range| range.split_once(':').unwrap_or((range, range)));
    ranges.flat_map(|(from, to)| from.parse::<u32>().unwrap()..=to.parse().unwrap()).collect()
}

const ALL: &str = "UID FETCH 1:* (UID FLAGS MODSEQ BODY.PEEK[HEADER.FIELDS (SUBJECT)])";

impl<'m> Racer<'m> {
    fn new(address: SocketAddr, client: usize, random: Choices, model: &'m Mutex<Model>) -> Self {
        let mut imap = Imap::logged_in(address);
        // One client is told UIDs of what is gone, the other numbers.
        imap.ok(if client == 0 { "ENABLE CONDSTORE" } else { "ENABLE QRESYNC" });
        let mut racer = Self { client, imap, random, model, at: 0, seen: Seen::default(), appended: 0 };
        racer.open(0);
        racer
    }

    fn model(&self) -> MutexGuard<'m, Model> {
        // A client that failed has said why.
        self.model.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }

    /// Sends a command, and processes all responses.
    #[track_caller]
    fn ask(&mut self, command: &str) -> (String, String) {
        let (told, tagged) = self.imap.command(command);
        let told = String::from_utf8(told).unwrap();
        assert!(tagged.starts_with("OK"), "{command}: {told}{tagged}");
        let may_expunge =
            command.starts_with("UID ") || !["FETCH", "STORE"].iter().any(|word| command.starts_with(word));
        answers(&told).for_each(|answer| self.take(command, answer, may_expunge));
        (told, tagged)
    }

    fn take(&mut self, command: &str, answer: &str, may_expunge: bool) {
        let mut words = answer.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let said = || format!("client {}, {}, {command}: {answer}", self.client, MAILBOXES[self.at]);
        if first == "VANISHED" {
            assert!(may_expunge, "{}", said());
            uids_of(second).into_iter().for_each(|gone| assert!(self.seen.vanished(gone), "UID {gone}: {}", said()));
            return;
        }
        let Ok(first) = first.parse::<usize>() else { return };
        match second {
            "EXISTS" => {
                assert!(first >= self.seen.numbers.len(), "fewer messages: {}", said());
                self.seen.numbers.resize(first, None);
            }
            "EXPUNGE" => {
                assert!(may_expunge && (1..=self.seen.numbers.len()).contains(&first), "{}", said());
                self.seen.numbers.remove(first - 1);
            }
            "FETCH" => {
                assert!((1..=self.seen.numbers.len()).contains(&first), "no such number: {}", said());
                let uid = after(answer, "UID ").and_then(number::<u32>);
                let known = self.seen.numbers[first - 1];
                assert!(known.is_none() || uid.is_none() || known == uid, "it is {known:?}: {}", said());
                let Some(uid) = known.or(uid) else { return };
                self.seen.numbers[first - 1] = Some(uid);
                let Some(flags) = flags_of(answer) else { return };
                if let Some(modseq) = after(answer, "MODSEQ (").and_then(number::<u64>) {
                    self.model().told(self.at, uid, modseq, &flags);
                }
                self.seen.flags.insert(uid, flags);
            }
            _ => {}
        }
    }

    fn select(&mut self, at: usize) {
        self.ask("UNSELECT");
        self.open(at);
    }

    fn open(&mut self, at: usize) {
        (self.at, self.seen) = (at, Seen::default());
        self.ask(&format!("SELECT {}", MAILBOXES[at]));
        self.look();
    }

    /// Lists all messages.
    fn look(&mut self) {
        let (told, _) = self.ask(ALL);
        for answer in answers(&told).filter(|answer| answer.contains("Subject: ")) {
            let uid = after(answer, "UID ").and_then(number).unwrap();
            let subject = after(answer, "Subject: ").and_then(|rest| rest.lines().next()).unwrap();
            let at = self.at;
            self.model().saw(at, uid, subject);
        }
    }

    fn step(&mut self) {
        let uids: Vec<u32> = self.seen.numbers.iter().flatten().copied().collect();
        let choice = self.below(12);
        match choice {
            0 | 1 => return self.append(),
            2 => {
                let at = self.below(3);
                return self.select(at);
            }
            3 => return self.look(),
            _ if uids.is_empty() => return self.append(),
            _ => {}
        }
        let uid = uids[self.below(uids.len())];
        match choice {
            4 | 5 => self.store(uid, self.client, false),
            6 | 7 => self.store(uid, SHARED, false),
            8 => self.store(uid, self.client, true),
            9 if uids.len() > MESSAGES_MAX => self.expunge(uid),
            9 | 10 => self.copy(uid, false),
            _ => self.copy(uid, true),
        }
    }

    fn append(&mut self) {
        let at = self.below(3);
        self.appended += 1;
        let subject = format!("{}.{}", self.client, self.appended);
        let text = format!("Subject: {subject}\r\n\r\n{subject}\r\n");
        let own = self.below(2) == 0;
        let flags = if own { FLAGS[self.client] } else { "" };
        let (_, tagged) = self.ask(&format!("APPEND {} ({flags}) {{{}+}}\r\n{text}", MAILBOXES[at], text.len()));
        let uid = after(&tagged, "APPENDUID ").and_then(|rest| number(rest.split_once(' ')?.1)).expect("a UID");
        let mut model = self.model();
        model.changes += 1;
        let client = self.client;
        let known = model.saw(at, uid, &subject);
        known.flags[client] = Some(own);
        // The other client may have changed its flag already.
        let other = &mut known.flags[1 - client];
        *other = other.or(Some(false));
        known.flags[SHARED] = Some(false);
    }

    /// Sets or removes a flag, by UID or by number.
    fn store(&mut self, uid: u32, flag: usize, by_number: bool) {
        let (at, client, is_on) = (self.at, self.client, self.below(2) == 0);
        let begun = self.model().now();
        let position = self.seen.numbers.iter().position(|seen| *seen == Some(uid)).expect("it was seen");
        let sign = if is_on { '+' } else { '-' };
        let which = if by_number { format!("STORE {}", position + 1) } else { format!("UID STORE {uid}") };
        let (told, tagged) = self.ask(&format!("{which} {sign}FLAGS ({})", FLAGS[flag]));
        let mut model = self.model();
        model.changes += 1;
        let ended = model.now();
        let known = model.mailboxes[at].get_mut(&uid).expect("it was seen");
        let is_of_uid = |answer: &&str| match after(answer, "UID ").and_then(number::<u32>) {
            Some(told) => told == uid,
            None => by_number && number::<usize>(answer) == Some(position + 1),
        };
        let answer = answers(&told).filter(|answer| answer.contains(" FETCH (")).filter(is_of_uid).last();
        // One that is gone is passed over, and only told of a change before.
        let is_gone = tagged.contains("EXPUNGEISSUED") || !self.seen.numbers.contains(&Some(uid));
        let Some(flags) = answer.and_then(flags_of).filter(|_| !is_gone) else { return };
        let is_set = flags.contains(FLAGS[flag]);
        if flag == SHARED {
            known.shared.push(SharedChange { begun, ended, is_on });
        } else {
            assert_eq!(is_set, is_on, "client {client}, {} UID {uid}: {told}", MAILBOXES[at]);
            known.flags[flag] = Some(is_on);
        }
    }

    fn copy(&mut self, uid: u32, moves: bool) {
        let (at, to, client) = (self.at, (self.at + 1 + self.below(2)) % 3, self.client);
        let command = if moves { "MOVE" } else { "COPY" };
        let (told, tagged) = self.ask(&format!("UID {command} {uid} {}", MAILBOXES[to]));
        let mut model = self.model();
        model.changes += 1;
        let told = format!("{told}{tagged}");
        let Some(copied) = after(&told, "COPYUID ").and_then(|rest| rest.split(']').next()) else {
            // The other client was faster.
            return;
        };
        let sets: Vec<&str> = copied.split(' ').collect();
        assert_eq!(uids_of(sets[1]), [uid], "{copied}");
        let [new] = uids_of(sets[2])[..] else { panic!("{copied}") };
        let known = model.mailboxes[at].get_mut(&uid).expect("it was seen");
        known.moves += usize::from(moves);
        assert!(known.moves <= 1, "{} UID {uid} moved twice", MAILBOXES[at]);
        known.is_gone |= moves;
        let (subject, own) = (known.subject.clone(), known.flags[client]);
        let copy = model.saw(to, new, &subject);
        // Nobody else changes it; those of the other client may have changed before and after.
        copy.flags[client] = own;
    }

    fn expunge(&mut self, uid: u32) {
        let at = self.at;
        self.ask(&format!("UID STORE {uid} +FLAGS.SILENT (\\Deleted)"));
        self.ask(&format!("UID EXPUNGE {uid}"));
        let mut model = self.model();
        model.changes += 1;
        model.mailboxes[at].get_mut(&uid).expect("it was seen").is_gone = true;
    }

    /// Checks that the session has been told of all changes by both.
    fn check_view(&mut self) {
        self.ask("NOOP");
        let (at, client) = (self.at, self.client);
        let told = self.seen.flags.clone();
        let had: Vec<Option<u32>> = self.seen.numbers.clone();
        self.look();
        let model = self.model();
        let there: Vec<u32> =
            model.mailboxes[at].iter().filter(|(_, known)| !known.is_gone).map(|(uid, _)| *uid).collect();
        let seen: Vec<u32> = self.seen.numbers.iter().map(|uid| uid.expect("it was listed")).collect();
        assert_eq!(seen, there, "client {client}, {}", MAILBOXES[at]);
        for (number, uid) in had.iter().enumerate() {
            assert!(uid.is_none_or(|uid| uid == seen[number]), "client {client}, {}: {had:?}", MAILBOXES[at]);
        }
        for uid in had.iter().flatten() {
            assert_eq!(told.get(uid), self.seen.flags.get(uid), "client {client}, {} UID {uid}", MAILBOXES[at]);
        }
    }
}

/// Checks that another session sees the state of the model while both are idle.
fn check(imap: &mut Imap, model: &mut Model) {
    for (at, mailbox) in MAILBOXES.into_iter().enumerate() {
        let told = imap.ok(&format!("SELECT {mailbox} (CONDSTORE)"));
        let modseq = after(&told, "HIGHESTMODSEQ ").and_then(number::<u64>).expect("a MODSEQ");
        assert!(modseq >= model.highest_modseq[at], "{mailbox}: {modseq} {}", model.highest_modseq[at]);
        model.highest_modseq[at] = modseq;
        let listed = imap.ok(ALL);
        let mut found = BTreeMap::new();
        for answer in answers(&listed).filter(|answer| answer.contains(" FETCH (")) {
            let uid = after(answer, "UID ").and_then(number::<u32>).expect("a UID");
            let subject = after(answer, "Subject: ").and_then(|rest| rest.lines().next()).expect("a subject");
            let (flags, of_message) = (flags_of(answer).unwrap(), after(answer, "MODSEQ (").and_then(number::<u64>));
            assert!(of_message.is_some_and(|of_message| of_message <= modseq), "{mailbox} {modseq}: {answer}");
            model.saw(at, uid, subject);
            model.told(at, uid, of_message.unwrap(), &flags);
            assert!(found.insert(uid, flags).is_none(), "{mailbox} UID {uid} twice");
        }
        for (uid, known) in &mut model.mailboxes[at] {
            let said = format!("{mailbox} UID {uid}: {known:?}, found {:?}", found.get(uid));
            assert_eq!(found.contains_key(uid), !known.is_gone, "{said}");
            let Some(flags) = found.get(uid) else { continue };
            assert_eq!(known.told.last_key_value().map(|(_, told)| told), Some(flags), "an older state: {said}");
            let changes = std::mem::take(&mut known.shared);
            let is_set = |flag: &str| flags.contains(flag);
            let is_known = |at: usize| known.flags[at].is_none_or(|known| known == is_set(FLAGS[at]));
            assert!(is_known(0) && is_known(1), "{said}");
            // The last change counts: one after which none began that says otherwise.
            let shared = is_set(FLAGS[SHARED]);
            let is_last = |change: &SharedChange| {
                let later = |other: &SharedChange| other.begun > change.ended && other.is_on != shared;
                change.is_on == shared && !changes.iter().any(later)
            };
            assert!(
                if changes.is_empty() { is_known(SHARED) } else { changes.iter().any(is_last) },
                "{changes:?} {said}"
            );
            known.flags = FLAGS.map(|flag| Some(is_set(flag)));
            // Older states are told no more.
            while known.told.len() > 1 {
                known.told.pop_first();
            }
        }
        // What is gone stays gone: its UID is given to nothing else.
        assert!(model.mailboxes[at].values().all(|known| !known.subject.is_empty()), "{mailbox}");
    }
}

#[test]
fn racing_clients_see_what_a_model_has() {
    let number_of = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let time = Duration::from_secs(number_of("POSTHASTE_MAILBOX_RACE_SECS").unwrap_or(3));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number_of("POSTHASTE_MAILBOX_RACE_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    println!("POSTHASTE_MAILBOX_RACE_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut watcher = Imap::logged_in(address);
    MAILBOXES[1..].iter().for_each(|mailbox| drop(watcher.ok(&format!("CREATE {mailbox}"))));
    let model = Mutex::new(Model::default());
    let mut racers = [0, 1].map(|client| Racer::new(address, client, Choices::new(seed * 2 + client as u64), &model));
    let begun = Instant::now();
    let mut rounds = 0;
    while rounds < 2 || begun.elapsed() < time {
        std::thread::scope(|scope| {
            for racer in &mut racers {
                scope.spawn(|| (0..STEPS).for_each(|_| racer.step()));
            }
        });
        check(&mut watcher, &mut model.lock().unwrap());
        racers.iter_mut().for_each(Racer::check_view);
        rounds += 1;
    }
    let model = model.lock().unwrap();
    println!(
        "{rounds} rounds, {} changes, {} messages",
        model.changes,
        model.mailboxes.iter().map(BTreeMap::len).sum::<usize>()
    );
    // Counters are those of the rows, and each row has its file.
    let (code, found) = verify(dir.path());
    assert_eq!(code, Some(0), "{found}");
    server.stop();
}
