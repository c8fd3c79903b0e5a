//! Requests for pages scan as many recipients in a queue of any length. They are counted, not timed.

use posthaste_queue::{Secs, Selection};
use posthaste_relay::sender::{CountBy, Filter, Relay};

use super::*;

/// A queue of `recipients` in messages of a thousand each, over a hundred domains.
fn queue_of(recipients: u64) -> (Relay, Server, tempfile::TempDir) {
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let config_of_spool = posthaste_spool::Config {
        ring: posthaste_ring::Config { segment_bytes: 16 << 20, ..Default::default() },
        ..Default::default()
    };
    let (spool, _) = FileSpool::open(dir.path(), config_of_spool).unwrap();
    let spool: Arc<dyn Spool> = Arc::new(spool);
    let back = Arc::new(Back { spool: spool.clone(), written: Mutex::default() });
    let mut config = config(&dns, 25, &back, &Arc::default());
    (config.observer, config.memory_bytes) = (None, 1 << 16);
    let (relay, _) = Relay::open(spool.clone(), config).unwrap();
    let addresses: Vec<String> = (0..1000).map(|number| format!("bob{number}@d{}.example", number % 100)).collect();
    let to: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..recipients / 1000 {
        let message = Queued { not_before: relay.now() + 86_400, ..outgoing("ann@here.example", &to, 0) };
        let body = Body::inline(vec![Bytes::from_static(b"Subject: x\r\n\r\nx\r\n")]);
        let tell = tell.clone();
        let then = move |outcome: Result<Lsn, _>| tell.send(outcome.is_ok()).unwrap();
        spool.append(Batch { entries: vec![relay.entry(message)], body }, Box::new(then));
        assert!(told.recv().unwrap());
    }
    wait("all wait", || relay.stats().recipients == recipients);
    (relay, dns, dir)
}

/// The recipients scanned for an answer.
fn cost<T>(relay: &Relay, ask: impl FnOnce() -> T) -> (T, u64) {
    let before = relay.stats().looked_at;
    let answer = ask();
    (answer, relay.stats().looked_at - before)
}

fn of_domain(domain: &str) -> Filter {
    let selection = Selection { domain: Some(domain.into()), ..Selection::default() };
    Filter { selection, ..Filter::default() }
}

/// Recipients of one page of the table at most.
const PAGE: u64 = 1024;

#[test]
fn the_cost_of_pages_does_not_grow_with_the_queue() {
    let costs = [40_000, 200_000].map(|recipients| {
        let (relay, _dns, _dir) = queue_of(recipients);
        let held = Filter { selection: Selection { is_held: Some(true), ..Selection::default() }, ..Filter::default() };
        let (all, first) = cost(&relay, || relay.summary(&Filter::default(), CountBy::Domain, 100));
        assert_eq!((all.names, all.recipients, all.busiest[0].1.recipients), (100, recipients, recipients / 100));
        assert!(all.busiest.iter().all(|(_, count)| count.oldest < Secs::MAX), "also where no look has been");
        // Five pages request in the same second; a test may take longer.
        let begun = Instant::now();
        let (_, more) = cost(&relay, || {
            for filter in [&Filter::default(), &held, &of_domain("d7.example")] {
                for by in [CountBy::Domain, CountBy::Tenant, CountBy::Site, CountBy::Campaign] {
                    relay.summary(filter, by, 100);
                }
            }
        });
        let parts_max = begun.elapsed().as_secs() + 1;
        assert!(more <= parts_max * (16_384 + PAGE), "{more} in {parts_max} parts");
        assert_eq!(relay.summary(&held, CountBy::Domain, 100).names, 0);
        let (rows, list) = cost(&relay, || {
            let mut rows = 0;
            let cut = relay.waiting(&Filter::default(), &mut |_| {
                rows += 1;
                rows < 100
            });
            assert_eq!(cut, None);
            rows
        });
        assert_eq!(rows, 100);
        // A list without matches ends after its pages, and continues after them to the end.
        let mut none = Filter { pages_max: Some(10), ..of_domain("none.example") };
        let (mut cut, part) = cost(&relay, || relay.waiting(&none, &mut |_| panic!("it has none")));
        let mut parts = 1;
        while cut.is_some() {
            none.after = cut;
            cut = relay.waiting(&none, &mut |_| panic!("it has none"));
            parts += 1;
        }
        assert!(parts >= recipients / (11 * PAGE), "{parts} parts");
        relay.end_by(Instant::now() + Duration::from_secs(60));
        [first, list, part]
    });
    for [first, list, part] in costs {
        assert!((1..=16_384 + PAGE).contains(&first), "a part of a look: {first}");
        assert!(list <= PAGE && part <= 10 * PAGE, "{list} for 100 rows, {part} for 10 pages");
    }
}
