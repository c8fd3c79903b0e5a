//! A session before and after login, split anywhere, is answered the same way; memory stays bounded; nothing panics.
#![no_main]

use std::sync::Arc;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use posthaste_pop3::parse;
use posthaste_pop3::session::{
    MarkedMessages, Pop3Config, Pop3Event, Pop3LoginRefusal, Pop3Machine, Pop3Refusal, Pop3Row,
};
use posthaste_scram::ScramServer;

const MAIL: &[u8] = b"Subject: caf\xe9\r\n\r\n.\r\n..two\r\n\n.\r\nend";

/// Of RFC 7677 section 3.
const KEYS: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

fuzz_target!(|data: &[u8]| {
    // The first octet: how the rest is cut, and whether somebody has logged in.
    let [cut, session @ ..] = data else { return };
    let _ = parse(session);
    let whole = run(session, usize::MAX, cut & 1 != 0);
    assert_eq!(whole, run(session, usize::from(cut >> 1).max(1), cut & 1 != 0));
});

fn run(session: &[u8], piece: usize, logged_in: bool) -> (Vec<u8>, bool) {
    let config = Pop3Config { stls: true, ..Pop3Config::new("mail.example.org") };
    let limit = config.limits.line_bytes;
    let mut machine = Pop3Machine::new(Arc::new(config), true).with_scram();
    // With that, SCRAM-SHA-256-PLUS is offered.
    machine.bind_channel(session.len().is_multiple_of(2).then_some([9; 32]));
    machine.greet();
    let (mut input, mut heard, mut rows) = (BytesMut::new(), Vec::new(), Vec::new());
    let start: &[u8] = if logged_in { b"USER ann\r\nPASS x\r\n" } else { b"" };
    for octets in [start].into_iter().chain(session.chunks(piece)) {
        input.extend_from_slice(octets);
        loop {
            match machine.step(&mut input) {
                Pop3Event::NeedInput => break,
                Pop3Event::Flush => heard.append(machine.output_mut()),
                // Octets after it in the same packet end the session, so the answer depends on the cut.
                Pop3Event::StartTls => return (Vec::new(), true),
                Pop3Event::Close => {
                    heard.append(machine.output_mut());
                    let is_tls = heard.ends_with(b"Octets after STLS\r\n");
                    return if is_tls { (Vec::new(), true) } else { (heard, true) };
                }
                Pop3Event::ScramKeys(first) => {
                    let keys = KEYS.parse().expect("keys");
                    machine.scram_begun(Ok(ScramServer::new(*first, keys, "nonce")));
                }
                Pop3Event::ScramProof(proof) => {
                    machine.scram_checked(proof.check().map(|()| 3).map_err(|_| Pop3LoginRefusal::Wrong));
                }
                Pop3Event::Login(who) => {
                    machine.logged_in(if who.user == "ann" { Ok(3) } else { Err(Pop3LoginRefusal::Wrong) })
                }
                Pop3Event::Rows { first, last, .. } => rows = (first..=last).rev().collect(),
                Pop3Event::NextRow => {
                    let row = rows.pop().map(|message| Pop3Row { message, size: Some(9), unique_id: "1".into() });
                    machine.row(Ok(row.as_ref()));
                }
                Pop3Event::Open { message: 2 } => machine.opened(Err(Pop3Refusal::Gone)),
                Pop3Event::Open { .. } => machine.opened(Ok(MAIL.len() as u64)),
                Pop3Event::Read { from } => machine.octets(Ok(&MAIL[from as usize..MAIL.len().min(from as usize + 5)])),
                Pop3Event::Update => {
                    let count = |marked: Option<&MarkedMessages>| marked.map_or(0, MarkedMessages::len);
                    let (deleted, retrieved) = (count(machine.deleted()), count(machine.retrieved()));
                    assert!((1..=6).contains(&(deleted + retrieved)) && deleted <= 3, "{deleted} {retrieved}");
                    machine.updated(Ok(()));
                }
            }
        }
        heard.append(machine.output_mut());
        assert!(input.len() < limit, "{} octets wait", input.len());
    }
    (heard, false)
}
