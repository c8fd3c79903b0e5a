//! The smallest allowed ring, with more mail than it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use posthaste_delivery::local::{GatheredBody, LineEnds, LocalConfig, LocalDelivery, MailboxMessage, MailboxTarget};

/// Messages in order: sizes of their bodies in bytes, and the number of each.
const LOAD: [(usize, usize); 4] = [(1 << 10, 3000), (10 << 10, 150), (100 << 10, 450), (1 << 10, 1000)];
const SENDERS: usize = 16;
const MAILBOXES: usize = 20;

fn body_bytes(mut number: usize) -> Option<usize> {
    for (bytes, count) in LOAD {
        number = match number.checked_sub(count) {
            None => return Some(bytes),
            Some(left) => left,
        };
    }
    None
}

fn message(number: usize, bytes: usize) -> MailboxMessage {
    let mailbox = format!("user{}/Maildir", number % MAILBOXES).into();
    MailboxMessage {
        targets: vec![MailboxTarget { mailbox, prefix: Bytes::new() }],
        body: GatheredBody::Memory(vec![Bytes::from(vec![b'x'; bytes])]),
        line_ends: LineEnds::ToLf,
        also: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_smallest_ring_refuses_nothing_for_working_mailboxes() {
    let dir = tempfile::tempdir().unwrap();
    // Checkpoints and syncs of the mail are far away by time and by bytes: 30 s, 256 MiB.
    let mut config = LocalConfig::new(dir.path().join("spool"), dir.path().join("mail"));
    (config.spool.ring.segment_bytes, config.spool.ring.max_segments) = (4 << 20, 4);
    let ring_bytes = 16 << 20;
    let (delivery, _) = LocalDelivery::open(config).unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    let send = || {
        let (delivery, next) = (delivery.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(bytes) = body_bytes(number) else { return };
                let accepted = delivery.deliver_message(message(number, bytes)).await;
                accepted.unwrap_or_else(|error| panic!("message {number} of {bytes} bytes: {error}"));
            }
        })
    };
    let senders: Vec<_> = (0..SENDERS).map(|_| send()).collect();
    for sender in senders {
        sender.await.unwrap();
    }
    let used = delivery.stats().spool.bytes_written;
    assert!(used > 3 * ring_bytes, "{used} bytes do not fill the ring three times");
    delivery.shutdown().await;
    let files = |user| std::fs::read_dir(dir.path().join(format!("mail/user{user}/Maildir/new"))).unwrap().count();
    let sent: usize = LOAD.iter().map(|(_, count)| count).sum();
    assert_eq!((0..MAILBOXES).map(files).sum::<usize>(), sent);
}
