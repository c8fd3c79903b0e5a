//! Tests of entries.

use proptest::prelude::*;

use posthaste_spool::Lsn;

use super::*;
use crate::entry::text::TEXT_MAX;
use crate::event::{Admin, AdminTarget, Feedback, LoginEvent, OfRelay, RelayFate};
use crate::json;

fn text() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![".{0,20}", "[a-z]{0,9}", Just("\u{1}\n\"\\\u{2028}".to_owned())].prop_map(Arc::from)
}

fn list() -> impl Strategy<Value = (Vec<Arc<str>>, u32)> {
    (prop::collection::vec(text(), 0..5), any::<u32>())
}

fn target() -> impl Strategy<Value = MailboxRef> {
    (any::<u64>(), any::<u16>(), text()).prop_map(|(message, number, mailbox)| MailboxRef {
        message: Lsn::new(message),
        number,
        mailbox,
    })
}

fn of_transport() -> impl Strategy<Value = EventKind> {
    let target = (target(), text()).prop_map(|(MailboxRef { message, number, mailbox }, recipient)| TransportTarget {
        message,
        number,
        transport: mailbox,
        recipient,
    });
    let fates = vec![Fate::Delivered, Fate::Waiting, Fate::Held, Fate::GivenUp];
    (prop::sample::select(fates), text(), text(), prop::collection::vec(target, 0..4))
        .prop_map(|(fate, stage, error, targets)| EventKind::Transport(OfTransport { fate, stage, error, targets }))
}

fn of_relay() -> impl Strategy<Value = EventKind> {
    use RelayFate::{Bounced, Deferred, Delivered, DoubleBounced, Expired, Interrupted, Suppressed, Unknown};
    let fates = vec![Delivered, Deferred, Unknown, Interrupted, Bounced, Expired, Suppressed, DoubleBounced];
    let texts = prop::collection::vec(text(), 10);
    let numbers = any::<(u64, u16, u8, u32, u32, u16)>();
    (prop::sample::select(fates), texts, numbers).prop_map(|(fate, texts, numbers)| {
        let (message, number, attempts, age_secs, next, code) = numbers;
        let [status, reply, host, stage, source, class, sender, recipient, tenant, campaign] =
            texts.try_into().expect("ten");
        EventKind::Relay(OfRelay {
            fate,
            message: Lsn::new(message),
            number,
            attempts,
            age_secs,
            next,
            code,
            status,
            reply,
            host,
            stage,
            source,
            class,
            sender,
            recipient,
            tenant,
            campaign,
        })
    })
}

fn admin() -> impl Strategy<Value = EventKind> {
    let target = target().prop_map(|MailboxRef { message, number, mailbox }| AdminTarget {
        message,
        number,
        recipient: mailbox,
    });
    ([text(), text(), text(), text(), text()], any::<(u32, u32)>(), prop::collection::vec(target, 0..4)).prop_map(
        |([action, token, reason, scope, name], (uid, until), targets)| {
            EventKind::Admin(Admin { action, uid, token, reason, scope, name, until, targets })
        },
    )
}

fn feedback() -> impl Strategy<Value = EventKind> {
    (prop::collection::vec(text(), 9), any::<(u64, u64, u16)>()).prop_map(|(texts, (report, message, number))| {
        let [kind, reporter, sender, recipient, message_id, status, text, tenant, campaign] =
            texts.try_into().expect("nine");
        let (report, message) = (Lsn::new(report), Lsn::new(message));
        EventKind::Feedback(Feedback {
            kind,
            report,
            message,
            number,
            reporter,
            sender,
            recipient,
            message_id,
            status,
            text,
            tenant,
            campaign,
        })
    })
}

fn kind() -> impl Strategy<Value = EventKind> {
    let texts = [text(), text(), text(), text(), text(), text(), text(), text()];
    let texts = (texts, [text(), text(), text()]);
    let received = (texts, any::<u64>(), list(), list()).prop_map(
        |(
            ([id, peer, helo, with, tls, user, sender, message_id], [tenant, auth, junk]),
            bytes,
            recipients,
            mailboxes,
        )| {
            let (recipients, recipient_count) = recipients;
            let (mailboxes, mailbox_count) = mailboxes;
            let facts = ArrivalFacts {
                id,
                peer,
                helo,
                with,
                tls,
                user,
                sender,
                recipients,
                recipient_count,
                bytes,
                message_id,
                auth,
                junk,
            };
            let message = Some(bytes).filter(|number| *number > 0).map(Lsn::new);
            EventKind::Received(ReceivedEvent { facts, mailboxes, mailbox_count, tenant, message })
        },
    );
    let stages = [
        RefusalStage::Connection,
        RefusalStage::Mail,
        RefusalStage::Recipient,
        RefusalStage::Message,
        RefusalStage::Aborted,
    ];
    let refused = (prop::collection::vec(text(), 7), list(), prop::sample::select(stages.to_vec())).prop_map(
        |(texts, (recipients, recipient_count), stage)| {
            let [id, peer, helo, user, sender, reply, why] = texts.try_into().expect("seven");
            EventKind::Refused(RefusedEvent {
                stage,
                id,
                peer,
                helo,
                user,
                sender,
                recipients,
                recipient_count,
                reply,
                why,
            })
        },
    );
    let login = prop::collection::vec(text(), 8).prop_map(|texts| {
        let [peer, helo, listener, tls, mechanism, user, reply, why] = texts.try_into().expect("eight");
        EventKind::Login(LoginEvent { peer, helo, listener, tls, mechanism, user, reply, why })
    });
    let tls_failed = prop::collection::vec(text(), 5).prop_map(|texts| {
        let [host, site, demand, result, error] = texts.try_into().expect("five");
        EventKind::TlsFailed(TlsFailed { host, site, demand, result, error })
    });
    prop_oneof![
        received,
        refused,
        login,
        tls_failed,
        (any::<u16>(), [text(), text(), text()])
            .prop_map(|(shard, [state, node, why])| EventKind::Shard(ShardTrouble { shard, state, node, why })),
        prop::collection::vec(target(), 0..4).prop_map(|targets| EventKind::Delivered(Delivered { targets })),
        (target(), text()).prop_map(|(target, error)| EventKind::Waiting(WaitingEvent { target, error })),
        (target(), text()).prop_map(|(target, error)| EventKind::GivenUp(WaitingEvent { target, error })),
        of_transport(),
        of_relay(),
        admin(),
        feedback(),
        any::<(u64, u64)>().prop_map(|(refused, others)| EventKind::LeftOut(LeftOut { refused, others })),
    ]
}

fn encode(events: &[Event]) -> Bytes {
    let mut out = begin();
    events.iter().for_each(|event| put(&mut out, event));
    out.freeze()
}

proptest! {
    #[test]
    fn an_entry_reads_back_as_written_and_each_event_is_json(
        events in prop::collection::vec((any::<u64>(), kind()), 0..4)
    ) {
        let events: Vec<Event> = events.into_iter().map(|(at_us, kind)| Event { at_us, kind }).collect();
        let bytes = encode(&events);
        prop_assert_eq!(decode(bytes.clone()), Some(events.clone()));
        prop_assert_eq!(decode([&bytes[..], &[0]].concat().into()), None);
        let mut lines = Vec::new();
        json::write_entry(&mut lines, Lsn::new(7), bytes);
        let text = String::from_utf8(lines).expect("UTF-8");
        let expected: usize = events.iter().map(|event| match &event.kind {
            EventKind::Delivered(delivered) => delivered.targets.len(),
            EventKind::Transport(of) => of.targets.len(),
            EventKind::Admin(admin) => admin.targets.len().max(1),
            _ => 1,
        }).sum();
        prop_assert_eq!(text.lines().count(), expected);
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            prop_assert_eq!(&value["lsn"], "7");
        }
    }

    #[test]
    fn hostile_bytes_are_an_entry_or_none_and_a_line_in_any_case(
        bytes in prop::collection::vec(any::<u8>(), 0..200), known in any::<bool>()
    ) {
        let mut bytes = bytes;
        if let (true, [version, kind, len @ ..]) = (known, &mut bytes[..]) {
            (*version, *kind) = (VERSION, *kind % (TLS_FAILED + 1));
            let left = len.len().saturating_sub(4) as u32;
            if let Some(len) = len.first_chunk_mut() {
                *len = left.to_le_bytes();
            }
        }
        let bytes = Bytes::from(bytes);
        if let Some(events) = decode(bytes.clone()) {
            prop_assert_eq!(decode(encode(&events)), Some(events));
        }
        let mut lines = Vec::new();
        json::write_entry(&mut lines, Lsn::new(7), bytes);
        for line in String::from_utf8(lines).expect("UTF-8").lines() {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        }
    }
}

#[test]
fn long_texts_and_lists_are_cut_off() {
    let long: Arc<str> = "ä".repeat(TEXT_MAX).into();
    let facts = ArrivalFacts {
        sender: long.clone(),
        recipients: vec![long; 2 * LIST_MAX],
        recipient_count: 2 * LIST_MAX as u32,
        ..ArrivalFacts::default()
    };
    let received = ReceivedEvent { facts, ..ReceivedEvent::default() };
    let bytes = encode(&[Event { at_us: 1, kind: EventKind::Received(received) }]);
    assert!(bytes.len() < (LIST_MAX + 2) * (TEXT_MAX + 2));
    let [Event { kind: EventKind::Received(received), .. }] = &decode(bytes).expect("an entry")[..] else {
        panic!("another event")
    };
    assert_eq!((received.facts.sender.len(), received.facts.recipients.len()), (TEXT_MAX, LIST_MAX));
    assert_eq!(received.facts.recipient_count, 2 * LIST_MAX as u32);
}
