//! The bare state machine with its owner, over a store in memory.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[path = "../../src/driver/binary.rs"]
mod binary;
#[path = "../../src/driver/changes.rs"]
mod changes;
#[path = "../../src/driver/mail.rs"]
mod mail;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use posthaste_imap::session::{
    ImapConfig, ImapCredentials, ImapEvent, ImapMachine, LoginRefusal, MailRefusal, TextAnswer, TextKey,
};
use posthaste_mailstore::Mailstore as _;
use posthaste_mailstore::{
    FakeMessage, FakeStore, KeptKind, KeywordTable, ListOptions, MailAccount, MailBody, MailboxView, MailstoreError,
    MessageFlags, MessageRow, MessageWriter, NamePattern, QuotaLimits, QuotaUse, RowOptions, SelectMode, Uid,
};
use posthaste_scram::{ScramFirst, ScramKeys, ScramProof, ScramSecret, ScramServer};

pub const SIMPLE: &str = "Date: Tue, 4 Mar 2025 23:40:00 -0800\r\nFrom: Ann <ann@example.org>\r\nTo: bob@example.net\r\n\
    Subject: Lunch\r\nMessage-ID: <1@example.org>\r\n\r\nToday at noon?\r\n";
pub const MIXED: &str = "From: bob@example.net\r\nTo: ann@example.org\r\nSubject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=\r\n\
    Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nSee below.\r\n--b\r\n\
    Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nhidden words\r\n--b--\r\n";

/// The mailboxes of `ann`.
pub fn store() -> FakeStore {
    let store = FakeStore::new("ann");
    let limits = QuotaLimits { bytes: Some(10 << 10), messages: Some(20) };
    store.set_quota(Some(QuotaUse { bytes: 5000, messages: 3, limits }));
    for name in ["Drafts", "Sent", "Entw\u{fc}rfe", "Lists/rust", "Empty", "Damaged"] {
        store.create(name);
    }
    store.set_keywords("INBOX", KeywordTable::new(vec![(9, "$Junk".into())]));
    store.add("INBOX", FakeMessage { flags: MessageFlags::SEEN, ..FakeMessage::new(SIMPLE) });
    let flags = MessageFlags::FLAGGED.with(MessageFlags::keyword(9));
    store.add("INBOX", FakeMessage { flags, ..FakeMessage::new(MIXED) });
    store.set_uid_next("INBOX", 7);
    store.add("INBOX", FakeMessage::new(Bytes::from_static(b"Subject: caf\xe9\r\n\r\nx\r\n")));
    store.add("Damaged", FakeMessage::new("Subject: one\r\n\r\n1\r\n"));
    store.add("Damaged", FakeMessage { octets: None, ..FakeMessage::new("") });
    store.add("Damaged", FakeMessage::new("Subject: three\r\n\r\n3\r\n"));
    store
}

/// `ann` has the password `secret`.
pub fn judge(credentials: &ImapCredentials) -> Result<String, LoginRefusal> {
    match (credentials.user.as_str(), credentials.password.as_str()) {
        (_, "busy") => Err(LoginRefusal::Busy),
        (_, "closed") => Err(LoginRefusal::Unavailable),
        (_, "blocked") => Err(LoginRefusal::Blocked),
        ("ann", "secret") if credentials.acts_for.is_none() => Ok("ann".into()),
        _ => Err(LoginRefusal::Wrong),
    }
}

/// `user` has the password `pencil`, as in RFC 7677 section 3, and the mailboxes of `ann`.
pub fn scram_keys(user: &str) -> Result<Option<ScramKeys>, LoginRefusal> {
    const KEYS: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    match user {
        "blocked" => Err(LoginRefusal::Blocked),
        "user" => Ok(Some(KEYS.parse().unwrap())),
        _ => Ok(None),
    }
}

pub fn scram_login(proof: &ScramProof) -> Result<String, LoginRefusal> {
    proof.check().map(|()| "ann".into()).map_err(|_| LoginRefusal::Wrong)
}

/// The exchange that a client begins, with the nonce of the RFC.
fn scram_begun(first: ScramFirst) -> Result<ScramServer, LoginRefusal> {
    let keys = scram_keys(first.user())?;
    let secret = ScramSecret::like(&scram_keys("user")?.expect("it has keys"));
    let keys = keys.unwrap_or_else(|| ScramKeys::of_nobody(first.user(), &secret));
    Ok(ScramServer::new(first, keys, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"))
}

/// The store in memory never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a store in memory waits"),
    }
}

pub struct Host {
    pub machine: ImapMachine,
    pub input: BytesMut,
    pub output: Vec<u8>,
    pub closed: bool,
    pub store: FakeStore,
    /// The most octets of a message that were in memory at once.
    pub piece_bytes_max: usize,
    /// Times that the store was to look for changes by other programs.
    pub looks: usize,
    account: Option<Arc<dyn MailAccount>>,
    view: Option<Box<dyn MailboxView>>,
    names: Vec<Option<posthaste_mailstore::ListedMailbox>>,
    rows: Vec<MessageRow>,
    body: Option<Arc<dyn MailBody>>,
    writer: Option<Box<dyn MessageWriter>>,
    /// Answers in place of an index.
    pub index: Option<Index>,
    /// Messages that were read or whose header was.
    pub reads: usize,
    /// Messages that were parsed for their parts.
    pub parsed: usize,
}

/// Answers about the messages of a view.
pub type Index = Box<dyn Fn(&dyn MailboxView, &TextKey) -> Option<TextAnswer>>;

impl Host {
    pub fn new(config: ImapConfig, trusted: bool) -> Self {
        Self::offering(config, trusted, false)
    }

    /// `scram`: SCRAM-SHA-256 is offered.
    pub fn offering(config: ImapConfig, trusted: bool, scram: bool) -> Self {
        let machine = ImapMachine::new(Arc::new(config), trusted);
        let mut machine = if scram { machine.with_scram() } else { machine };
        machine.greet();
        let mut host = Self {
            machine,
            input: BytesMut::new(),
            output: Vec::new(),
            closed: false,
            store: store(),
            piece_bytes_max: 0,
            looks: 0,
            account: None,
            view: None,
            names: Vec::new(),
            rows: Vec::new(),
            body: None,
            writer: None,
            index: None,
            reads: 0,
            parsed: 0,
        };
        assert!(host.machine.output().starts_with(b"* OK [CAPABILITY IMAP4rev1 "));
        host.machine.output_mut().clear();
        host
    }

    /// Keeps for a message what was kept of another one.
    pub fn mix_up_structures(&mut self, uid: u32, other: u32) {
        let (view, uid) = (self.view.as_deref().unwrap(), Uid::new(uid).unwrap());
        let kept = now(view.kept(KeptKind::Structure, &[Uid::new(other).unwrap()])).unwrap().remove(0);
        view.keep(KeptKind::Structure, uid, &kept.unwrap().unwrap());
    }

    fn flush(&mut self) {
        self.output.append(self.machine.output_mut());
    }

    pub fn read(&mut self, octets: &[u8]) {
        self.input.extend_from_slice(octets);
        while !self.closed {
            match self.machine.step(&mut self.input) {
                ImapEvent::NeedInput => break,
                event => self.answer(event),
            }
        }
        self.flush();
    }

    fn find(&self, name: &str) -> Result<posthaste_mailstore::MailboxId, MailRefusal> {
        now(changes::find(&**self.account.as_ref().unwrap(), name))
    }

    fn answer(&mut self, event: ImapEvent) {
        match event {
            ImapEvent::NeedInput => unreachable!(),
            ImapEvent::Flush => self.flush(),
            ImapEvent::Close => self.closed = true,
            ImapEvent::StartTls => {
                self.flush();
                self.machine.tls_started();
            }
            ImapEvent::Login(credentials) => {
                let verdict = judge(&credentials);
                self.account = verdict.as_ref().ok().map(|login| now(self.store.account(login)).unwrap());
                self.machine.logged_in(verdict.map(drop));
            }
            ImapEvent::ScramKeys(first) => self.machine.scram_begun(scram_begun(*first)),
            ImapEvent::ScramProof(proof) => {
                let verdict = scram_login(&proof);
                self.account = verdict.as_ref().ok().map(|login| now(self.store.account(login)).unwrap());
                self.machine.scram_checked(verdict.map(drop));
            }
            ImapEvent::List { patterns, subscribed, recursive, status } => {
                let patterns: Vec<NamePattern> = patterns.iter().map(|pattern| NamePattern::new(pattern)).collect();
                let account = Arc::clone(self.account.as_ref().unwrap());
                let mut listing = now(account.list(&patterns, ListOptions { status, subscribed, recursive })).unwrap();
                self.names = std::iter::from_fn(|| now(listing.next()).unwrap().map(Some)).collect();
                self.names.push(None);
                self.names.reverse();
                self.machine.list_opened(Ok(()));
            }
            ImapEvent::NextName => {
                let next = self.names.pop().unwrap();
                self.machine.listed(Ok(next.as_ref().map(mail::listed)));
            }
            ImapEvent::Status(name) => {
                let id = self.find(&name);
                let status = id.map(|id| mail::counts(&now(self.account.as_ref().unwrap().status(id)).unwrap()));
                self.machine.status(status);
            }
            ImapEvent::Select { mailbox, read_only } => {
                let id = self.find(&mailbox);
                let mode = if read_only { SelectMode::ReadOnly } else { SelectMode::Writable };
                let view = id.map(|id| now(self.account.as_ref().unwrap().select(id, mode)).unwrap());
                self.machine.selected(view.as_ref().map(|view| mail::selected(&**view)).map_err(|why| *why));
                self.view = view.ok();
            }
            ImapEvent::Unselect => self.view = None,
            ImapEvent::Changes { may_expunge, looks } => {
                self.looks += usize::from(looks);
                let view = self.view.as_deref_mut().unwrap();
                let changes = now(if looks { view.advance(may_expunge) } else { view.catch_up(may_expunge) });
                let changes = changes.as_ref().map(|changes| mail::changes(changes, view));
                self.machine.changes(changes.map_err(mail::refusal));
            }
            ImapEvent::Append { mailbox, message } => {
                let writer = now(changes::append(&**self.account.as_ref().unwrap(), &mailbox, message));
                self.machine.append_begun(writer.as_ref().map(drop).map_err(|why| *why));
                self.writer = writer.ok();
            }
            ImapEvent::AppendNext(message) => {
                let begun = now(changes::append_next(&mut **self.writer.as_mut().unwrap(), message));
                self.machine.append_begun(begun);
            }
            ImapEvent::Write(octets) => {
                self.piece_bytes_max = self.piece_bytes_max.max(octets.len());
                let written = now(self.writer.as_mut().unwrap().write(octets));
                self.machine.written(written.map_err(|error| mail::refusal(&error)));
            }
            ImapEvent::Finish => self.machine.appended(now(changes::finish(self.writer.take().unwrap()))),
            ImapEvent::Abandon => self.writer = None,
            ImapEvent::Quota { mailbox } => {
                let account = &**self.account.as_ref().unwrap();
                self.machine.quota(now(changes::quota(account, mailbox.as_deref())));
            }
            ImapEvent::Manage(change) => {
                self.machine.managed(now(changes::manage(&**self.account.as_ref().unwrap(), change)));
            }
            event => self.answer_about_messages(event),
        }
    }

    fn answer_change(&mut self, event: ImapEvent) {
        let (account, view) = (&**self.account.as_ref().unwrap(), self.view.as_deref().unwrap());
        match event {
            ImapEvent::Store { uid, set, update, unchanged_since } => {
                self.machine.stored(now(changes::store(view, uid, &set, update, unchanged_since)));
            }
            ImapEvent::Vanished { since } => {
                let uids = now(view.vanished(posthaste_mailstore::ModSeq(since)));
                self.machine.vanished(uids.as_deref().map(mail::vanished).map_err(mail::refusal));
            }
            ImapEvent::MarkSeen(uids) => {
                now(changes::mark_seen(view, &uids));
                self.machine.marked_seen();
            }
            ImapEvent::Expunge(uids) => self.machine.expunged(now(changes::expunge(view, uids.as_ref()))),
            ImapEvent::Copy { set, mailbox, moves } => {
                self.machine.copied(now(changes::copy(account, view, &set, &mailbox, moves)));
            }
            other => panic!("{other:?}"),
        }
    }

    fn answer_about_messages(&mut self, event: ImapEvent) {
        let view = self.view.as_deref().unwrap();
        let refused = |error: MailstoreError| mail::refusal(&error);
        match event {
            ImapEvent::Rows { set, sizes } => {
                let mut rows = view.rows(&mail::message_set(&set), RowOptions { sizes });
                let all = std::iter::from_fn(|| Some(now(rows.next()).unwrap()).filter(|rows| !rows.is_empty()));
                self.rows = all.flatten().collect();
                self.rows.reverse();
            }
            ImapEvent::NextRow => {
                self.body = None;
                let row = self.rows.pop();
                self.machine.row(Ok(row.as_ref().map(mail::row)));
            }
            ImapEvent::FindText(keys) => {
                let index = self.index.as_deref();
                let answers = keys.iter().map(|key| index.and_then(|index| index(view, key)));
                self.machine.text_found(answers.collect());
            }
            ImapEvent::Header { uid, .. } => {
                self.reads += 1;
                let header = now(view.header(Uid::new(uid).unwrap())).map_err(refused);
                self.machine.header(header.as_deref().map_err(|why| *why));
                if let Some((uid, made)) = self.machine.made_keys() {
                    view.keep(KeptKind::Keys, Uid::new(uid).unwrap(), &made);
                }
            }
            ImapEvent::Keys { uid } => {
                let kept = now(view.kept(KeptKind::Keys, &[Uid::new(uid).unwrap()])).unwrap().pop();
                self.machine.keys(kept.and_then(Result::ok).flatten().as_deref());
            }
            ImapEvent::Structure { uid } => {
                let kept = now(view.kept(KeptKind::Structure, &[Uid::new(uid).unwrap()])).unwrap().pop();
                self.machine.structure(kept.and_then(Result::ok).flatten().as_deref());
            }
            ImapEvent::Open { uid } => {
                self.reads += 1;
                let body = now(view.body(Uid::new(uid).unwrap())).map_err(refused);
                self.machine.opened(body.as_ref().map(|body| body.len()).map_err(|why| *why));
                self.body = body.ok();
            }
            ImapEvent::Read { octets } => {
                let (body, mut whole) = (self.body.as_ref().unwrap(), Vec::new());
                while (whole.len() as u64) < octets {
                    let piece = now(body.read(whole.len() as u64, octets)).unwrap();
                    if piece.is_empty() {
                        break;
                    }
                    whole.extend_from_slice(&piece);
                }
                self.parsed += 1;
                self.machine.message(Ok(&whole));
                if let Some((uid, made)) = self.machine.made_structure() {
                    view.keep(KeptKind::Structure, Uid::new(uid).unwrap(), &made);
                }
            }
            ImapEvent::Send(range) => {
                self.output.append(self.machine.output_mut());
                let body = self.body.as_ref().unwrap();
                let mut from = range.start;
                while from < range.end {
                    let octets = now(body.read(from, range.end)).unwrap();
                    assert!(!octets.is_empty(), "the message is shorter than it was");
                    self.output.extend_from_slice(&octets);
                    from += octets.len() as u64;
                }
            }
            ImapEvent::Decode { range, encoding } => {
                let length = now(binary::measure(&**self.body.as_ref().unwrap(), range, encoding));
                self.machine.decoded(length);
            }
            ImapEvent::SendDecoded { range, encoding, octets } => {
                self.output.append(self.machine.output_mut());
                let body = self.body.as_ref().unwrap();
                let mut reader = binary::DecodedReader::new(&**body, range, encoding).unwrap();
                let mut at = 0;
                while at < octets.end {
                    let piece = now(reader.next()).unwrap().unwrap();
                    self.output.extend_from_slice(binary::within(piece, &octets, &mut at));
                }
            }
            event => self.answer_change(event),
        }
    }
}
