//! Measures the queue with many deferred messages of one recipient each: memory, and the time of each kind of work.
//! Leaves out the spool, DNS and sessions: entries are made and applied in memory.
//!
//! `cargo test` runs it tiny so it cannot rot; `cargo bench -p posthaste-queue --bench queue -- 10000000` runs it
//! whole. Options: `--domains N` (default 100,000).

use std::hint::black_box;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::time::Instant;

use posthaste_queue::{
    AttemptOutcome, Change, Prefer, Queue, QueueAction, QueueEntry, QueueSnapshot, Queued, RecipientKey, RouteSource,
    Schedules, Selection, Status, Take,
};
use posthaste_random::Random;
use posthaste_spool::Lsn;

const START: u32 = 1_800_000_000;
const TENANTS: u64 = 10;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let count = args.get(1).and_then(|count| count.parse().ok()).unwrap_or(2000u64);
    let domains = args.iter().position(|arg| arg == "--domains").and_then(|at| args.get(at + 1));
    let domains = domains.and_then(|domains| domains.parse().ok()).unwrap_or(100_000u64);
    let before = memory("VmRSS:");
    let mut queue = Queue::new(Schedules::default(), 7);
    let mut lsn = 0;

    // Like a replay: each message, then its first deferral.
    let begun = Instant::now();
    for number in 0..count {
        lsn = number + 1;
        queue.apply(Lsn::new(lsn), &QueueEntry::Queued(message(number, domains)));
    }
    report("queued entries applied", count, begun);
    let begun = Instant::now();
    let mut random = Random::new(1);
    for batch in 0..count.div_ceil(64) {
        let messages = batch * 64..count.min(batch * 64 + 64);
        let status = Status { code: 450, enhanced: 2001 };
        let change = |number: u64| Change {
            key: RecipientKey { message: Lsn::new(number + 1), number: 0 },
            what: posthaste_queue::What::Deferred {
                attempts: 1,
                next: START + 300 + random.below(3600) as u32,
                status,
            },
        };
        lsn += 1;
        let changes = messages.map(change).collect();
        queue.apply(Lsn::new(lsn), &QueueEntry::Changes { at: START, changes });
    }
    report("deferrals applied", count, begun);
    let begun = Instant::now();
    assert!(queue.start(START).is_empty());
    report("started", count, begun);
    let resident = memory("VmRSS:");
    let used = (resident - before) * 1024;
    println!(
        "{:>26} {:.1} MB, {:.1} bytes a recipient; {:.1} MB before; {:.1} MB at most",
        "resident",
        resident as f64 * 1.024 / 1000.0,
        used as f64 / count as f64,
        before as f64 * 1.024 / 1000.0,
        memory("VmHWM:") as f64 * 1.024 / 1000.0
    );

    relay(&mut queue, &mut lsn, count);
    println!("{:>26} {:.1} MB, with routes", "resident", memory("VmRSS:") as f64 * 1.024 / 1000.0);

    fresh(&mut queue, &mut lsn, count.min(1_000_000), domains);

    let begun = Instant::now();
    let mut file = tempfile::tempfile().expect("a file");
    let mut snapshot = QueueSnapshot::begin(&queue);
    let mut out = Vec::new();
    let mut writer = BufWriter::with_capacity(1 << 20, &mut file);
    let mut longest = std::time::Duration::ZERO;
    loop {
        let part = Instant::now();
        let more = snapshot.write(&queue, &mut out);
        longest = longest.max(part.elapsed());
        if !more {
            break;
        }
        writer.write_all(&out).expect("written");
        out.clear();
    }
    drop(writer);
    report("snapshot written", queue.recipients(), begun);
    println!("{:>26} {} bytes; the longest part took {longest:?}", "", file.stream_position().expect("a position"));

    let begun = Instant::now();
    let selection = Selection { tenant: Some("tenant 3".into()), ..Selection::default() };
    let mut from = None;
    let mut purged = 0;
    loop {
        let (keys, next, _) = queue.select(&selection, from);
        let changes: Vec<Change> = keys.into_iter().filter_map(|key| queue.act(key, QueueAction::Delete)).collect();
        purged += changes.len() as u64;
        lsn += 1;
        queue.apply(Lsn::new(lsn), &QueueEntry::Changes { at: queue.now(), changes });
        from = next;
        if from.is_none() {
            break;
        }
    }
    report("purged of one tenant", purged, begun);
    drop(queue);

    file.rewind().expect("at its beginning");
    let begun = Instant::now();
    let restored =
        Queue::restore(BufReader::with_capacity(1 << 20, file), Schedules::default(), 7).expect("a snapshot");
    report("restored", restored.recipients(), begun);
    black_box(restored);
}

/// Delivers recipients as they become due over ten minutes, while the rest waits.
fn relay(queue: &mut Queue, lsn: &mut u64, count: u64) {
    let begun = Instant::now();
    queue.tick(START + 600);
    let due = queue.recipients();
    let mut routed = 0;
    while let Some(id) = queue.next_unrouted() {
        let domain = queue.queue(id).expect("it has recipients").0.domain;
        let source = RouteSource { name: "192.0.2.1".into(), weight: 1 };
        queue.route(id, &format!("mx{}", domain.len() % 7), &[source], START + 7200);
        routed += 1;
    }
    report("queues due and routed", routed, begun);
    let begun = Instant::now();
    let take = Take { prefer: Prefer::First, recipients_max: 100, across_domains: true };
    let mut delivered = 0;
    while let Some(ready) = queue.next_woken() {
        while let Some(transaction) = queue.next(ready, take) {
            let message = transaction.message;
            let outcome = AttemptOutcome::Delivered(Status { code: 250, enhanced: 0 });
            let finish =
                |taken: &posthaste_queue::Taken| queue.finish(RecipientKey { message, number: taken.number }, outcome);
            let changes: Vec<Change> = transaction.recipients.iter().filter_map(finish).collect();
            delivered += changes.len() as u64;
            *lsn += 1;
            queue.apply(Lsn::new(*lsn), &QueueEntry::Changes { at: queue.now(), changes });
        }
        black_box(queue.take_released());
    }
    assert_eq!(queue.recipients() + delivered, due);
    report("taken, finished, applied", delivered, begun);
    assert!(delivered > count / 50, "{delivered} of {count}");
}

/// New messages to domains for which nothing waits: each makes a queue and a route of its own and is delivered before
/// the next comes.
fn fresh(queue: &mut Queue, lsn: &mut u64, count: u64, domains: u64) {
    let begun = Instant::now();
    let take = Take { prefer: Prefer::First, recipients_max: 100, across_domains: true };
    let source = RouteSource { name: "192.0.2.2".into(), weight: 1 };
    for number in 0..count {
        *lsn += 1;
        let mut new = message(number, domains);
        new.campaign = "fresh".into();
        queue.apply(Lsn::new(*lsn), &QueueEntry::Queued(new));
        let id = queue.next_unrouted().expect("a queue");
        queue.route(id, "mx", std::slice::from_ref(&source), START + 7200);
        let ready = queue.next_woken().expect("a ready queue");
        let one = queue.next(ready, take).expect("a message");
        let key = RecipientKey { message: one.message, number: 0 };
        let change = queue.finish(key, AttemptOutcome::Delivered(Status { code: 250, enhanced: 0 })).expect("a change");
        *lsn += 1;
        queue.apply(Lsn::new(*lsn), &QueueEntry::Changes { at: queue.now(), changes: vec![change] });
        assert_eq!(queue.take_released(), [one.message]);
    }
    report("new ones come and go", count, begun);
}

fn message(number: u64, domains: u64) -> Queued {
    let tenant = format!("tenant {}", number % domains % TENANTS).into();
    let address = format!("somebody@domain-{}.example", number % domains);
    Queued { tenant, ..Queued::plain(START, "sender@example.org", [address]) }
}

fn report(what: &str, count: u64, begun: Instant) {
    let took = begun.elapsed().as_secs_f64();
    println!("{what:>26} {took:>8.3} s  {:>12.0}/s  of {count}", count as f64 / took.max(1e-9));
}

/// KiB of this process.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or_default()
}
