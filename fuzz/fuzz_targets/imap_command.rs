//! A session before and after login, split anywhere, is answered the same way; memory stays bounded; nothing panics.
#![no_main]

use std::sync::Arc;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use posthaste_imap::session::{
    AppendedMail, DecodedLength, ImapConfig, ImapEvent, ImapMachine, ListedName, LoginRefusal, MailChanges, MailQuota,
    MailRefusal, MailboxChange, MailboxCounts, SelectedMailbox, StoredMail, ViewRow,
};
use posthaste_imap::{NumberSet, parse};
use posthaste_scram::ScramServer;

const MAIL: &[u8] = b"From: a@b\r\nSubject: caf\xe9\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n\
    --b\r\n\r\none\r\n--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: in\r\n\r\nx\r\n--b--\r\n";

/// Of RFC 7677 section 3.
const KEYS: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// With the empty line.
const HEADER_LEN: usize = 71;

fuzz_target!(|data: &[u8]| {
    // The first octet: how the rest is cut, and whether somebody has logged in.
    let [cut, session @ ..] = data else { return };
    parse(session);
    let whole = run(session, usize::MAX, cut & 1 != 0);
    assert_eq!(whole, run(session, usize::from(cut >> 1).max(1), cut & 1 != 0));
});

fn run(session: &[u8], piece: usize, logged_in: bool) -> (Vec<u8>, bool) {
    let mut machine = ImapMachine::new(Arc::new(ImapConfig::new("mail.example.org")), true).with_scram();
    // With that, SCRAM-SHA-256-PLUS is offered.
    machine.bind_channel(session.len().is_multiple_of(2).then_some([9; 32]));
    machine.greet();
    let (mut input, mut heard) = (BytesMut::new(), Vec::new());
    let (mut names, mut rows) = (0, 0);
    // All messages have the same octets.
    let mut structure: Option<Vec<u8>> = None;
    let mut keys: Option<Vec<u8>> = None;
    let start: &[u8] = if logged_in { b"a LOGIN ann x\r\nb SELECT INBOX\r\n" } else { b"" };
    for octets in [start].into_iter().chain(session.chunks(piece)) {
        input.extend_from_slice(octets);
        loop {
            match machine.step(&mut input) {
                ImapEvent::NeedInput => break,
                ImapEvent::Flush => heard.append(machine.output_mut()),
                ImapEvent::Close => {
                    heard.append(machine.output_mut());
                    return (heard, true);
                }
                ImapEvent::StartTls | ImapEvent::Compress => unreachable!("it is not offered"),
                ImapEvent::ScramKeys(first) => {
                    let keys = KEYS.parse().expect("keys");
                    machine.scram_begun(Ok(ScramServer::new(*first, keys, "nonce")));
                }
                ImapEvent::ScramProof(proof) => {
                    machine.scram_checked(proof.check().map_err(|_| LoginRefusal::Wrong));
                }
                ImapEvent::Login(who) => {
                    machine.logged_in(if who.user == "ann" { Ok(()) } else { Err(LoginRefusal::Wrong) })
                }
                ImapEvent::List { .. } => {
                    names = 2;
                    machine.list_opened(Ok(()));
                }
                ImapEvent::NextName => {
                    names -= 1;
                    machine.listed(Ok(
                        (names > 0).then(|| ListedName { name: "Entw\u{fc}rfe".into(), ..ListedName::default() })
                    ));
                }
                ImapEvent::Status(name) => machine.status(match name.as_str() {
                    "INBOX" => Ok(MailboxCounts::default()),
                    _ => Err(MailRefusal::Gone),
                }),
                ImapEvent::Select { mailbox, .. } => machine.selected(match mailbox.as_str() {
                    "INBOX" => Ok(SelectedMailbox { exists: 2, last_uid: 5, ..SelectedMailbox::default() }),
                    _ => Err(MailRefusal::Gone),
                }),
                ImapEvent::Unselect => {}
                ImapEvent::Rows { .. } => rows = 3,
                ImapEvent::NextRow => {
                    rows -= 1;
                    let row = ViewRow { number: 3 - rows, uid: 10 - rows, ..ViewRow::default() };
                    machine.row(Ok((rows > 0).then_some(row)));
                }
                ImapEvent::FindText(_) => machine.text_found(Vec::new()),
                ImapEvent::Keys { .. } => machine.keys(keys.as_deref()),
                ImapEvent::Header { .. } => {
                    machine.header(Ok(&MAIL[..HEADER_LEN]));
                    keys = machine.made_keys().map(|(_, made)| made).or(keys);
                }
                ImapEvent::Structure { .. } => machine.structure(structure.as_deref()),
                ImapEvent::Open { uid: 9 } => machine.opened(Err(MailRefusal::Damaged)),
                ImapEvent::Open { .. } => machine.opened(Ok(MAIL.len() as u64)),
                ImapEvent::Read { octets } => {
                    machine.message(Ok(&MAIL[..octets as usize]));
                    structure = machine.made_structure().map(|(_, made)| made).or(structure);
                }
                ImapEvent::Send(range) => {
                    heard.append(machine.output_mut());
                    heard.extend_from_slice(&MAIL[range.start as usize..range.end as usize]);
                }
                ImapEvent::Decode { range, .. } if range.is_empty() => machine.decoded(Ok(None)),
                ImapEvent::Decode { range, .. } => {
                    machine.decoded(Ok(Some(DecodedLength { octets: range.end - range.start, has_nul: false })));
                }
                ImapEvent::SendDecoded { range, octets, .. } => {
                    heard.append(machine.output_mut());
                    let decoded = &MAIL[range.start as usize..range.end as usize];
                    heard.extend_from_slice(&decoded[octets.start as usize..octets.end as usize]);
                }
                ImapEvent::Store { unchanged_since, .. } => {
                    let mut modified = NumberSet::default();
                    unchanged_since.iter().for_each(|_| modified.push(2));
                    machine.stored(Ok(StoredMail { modified, gone: false }));
                }
                ImapEvent::Vanished { .. } => machine.vanished(Ok(NumberSet::from_ranges(vec![1..=3, 7..=8]))),
                ImapEvent::MarkSeen(seen) => {
                    assert!(!seen.is_empty());
                    machine.marked_seen();
                }
                ImapEvent::Expunge(uids) => {
                    machine.expunged(if uids.is_some() { Err(MailRefusal::Unavailable) } else { Ok(()) });
                }
                ImapEvent::Copy { mailbox, .. } => machine.copied(match mailbox.as_str() {
                    "INBOX" => Ok(None),
                    _ => Err(MailRefusal::Gone),
                }),
                ImapEvent::Append { mailbox, .. } => {
                    machine.append_begun(if mailbox == "INBOX" { Ok(()) } else { Err(MailRefusal::Gone) });
                }
                ImapEvent::AppendNext(_) => machine.append_begun(Ok(())),
                ImapEvent::Write(octets) => {
                    assert!(octets.len() <= 128 << 10, "{} octets at once", octets.len());
                    machine.written(Ok(()));
                }
                ImapEvent::Finish => {
                    let uids = NumberSet::from_ranges(vec![6..=7]);
                    machine.appended(Ok(AppendedMail { uid_validity: 1, uids }));
                }
                ImapEvent::Quota { .. } => {
                    machine.quota(Ok(Some(MailQuota { bytes: (5, Some(10)), messages: (2, None) })));
                }
                ImapEvent::Abandon => {}
                ImapEvent::Manage(change) => machine.managed(match change {
                    MailboxChange::Delete(_) => Ok(()),
                    _ => Err(MailRefusal::Exists),
                }),
                ImapEvent::Changes { .. } => machine.changes(Ok(MailChanges { last_uid: 5, ..MailChanges::default() })),
            }
        }
        heard.append(machine.output_mut());
        assert!(input.len() <= 64 << 10, "{} octets wait", input.len());
    }
    (heard, false)
}
