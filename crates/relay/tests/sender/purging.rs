//! Deletion of mail by the queue's own data: no body is read, and no envelope unless the command or the event log needs
//! addresses.

use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_queue::Selection;
use posthaste_relay::sender::{Acted, Filter};
use posthaste_smtp::Reply;

use super::*;

/// Counts reads of the spool.
#[derive(Default)]
struct Reads {
    bodies: AtomicU64,
    envelopes: AtomicU64,
}

impl Hooks for Reads {
    fn read(&self, _octets: u64) {
        self.bodies.fetch_add(1, Ordering::Relaxed);
    }

    fn entries(&self) {
        self.envelopes.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn purging_ten_thousand_messages_reads_no_bodies() {
    const MESSAGES: u64 = 10_000;
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = FileSpool::open(dir.path(), spool_config()).unwrap();
    let spool = Arc::new(HookedSpool::new(spool, Reads::default()));
    let back = Arc::new(Back { spool: spool.clone(), written: Mutex::default() });
    let mut config = config(&dns, 25, &back, &Arc::default());
    // Without an event log, and with room for a few bodies only.
    (config.observer, config.memory_bytes) = (None, 1 << 16);
    let (relay, _) = Relay::open(spool.clone(), config).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    for number in 0..MESSAGES {
        let sender = format!("ann{}@here.example", number % 100);
        let to = format!("bob@d{}.example", number % 1000);
        let message = Queued { not_before: relay.now() + 86_400, ..outgoing(&sender, &[&to], 0) };
        let body = Body::inline(vec![Bytes::from(format!("Subject: {number}\r\n\r\nx\r\n"))]);
        let tell = tell.clone();
        let then = move |outcome: Result<Lsn, _>| tell.send(outcome.is_ok()).unwrap();
        spool.append(Batch { entries: vec![relay.entry(message)], body }, Box::new(then));
        // So many at once, as a server has clients.
        if number >= 1000 {
            assert!(told.recv().unwrap());
        }
    }
    assert!(told.iter().take(1000).all(|is_durable| is_durable));
    wait("all wait", || relay.stats().recipients == MESSAGES);
    let reads = |of: &AtomicU64| of.swap(0, Ordering::Relaxed);
    reads(&spool.hooks.bodies);
    reads(&spool.hooks.envelopes);
    let delete = |filter: &Filter| {
        let reply = Reply::new(550, "5.7.1", "deleted");
        relay
            .act(
                filter,
                QueueAction::Delete,
                &reply,
                &Originator { reason: "a purge".to_owned(), ..Originator::default() },
            )
            .unwrap()
    };

    // By data in envelopes only: each is read once.
    let of_sender = Filter {
        selection: Selection { domain: Some("d7.example".into()), ..Selection::default() },
        sender: Some("ann7@here.example".to_owned()),
        ..Filter::default()
    };
    assert_eq!(delete(&of_sender), Acted { changed: MESSAGES / 1000, ..Acted::default() });
    assert_eq!(reads(&spool.hooks.bodies), 0);
    assert!((1..=MESSAGES / 1000).contains(&reads(&spool.hooks.envelopes)));

    // By the queue's own data, and all.
    let of_domain = Selection { domain: Some("d8.example".into()), ..Selection::default() };
    assert_eq!(delete(&Filter { selection: of_domain, ..Filter::default() }).changed, MESSAGES / 1000);
    assert_eq!(delete(&Filter::default()).changed, MESSAGES - 2 * (MESSAGES / 1000));
    wait("it is empty", || relay.stats().recipients == 0);
    relay.end_by(Instant::now() + Duration::from_secs(60));
    assert_eq!((reads(&spool.hooks.bodies), reads(&spool.hooks.envelopes)), (0, 0));
    assert_eq!(back.written.lock().unwrap().len(), 0, "nobody is told");
}
