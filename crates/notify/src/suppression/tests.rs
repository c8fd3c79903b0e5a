use std::collections::BTreeMap;

use posthaste_fsops::{Faults, Machine};
use posthaste_random::Random;
use rustix::io::Errno;

use super::*;

fn entry(tenant: &str, address: &str, expires: Option<u64>) -> Suppressed {
    let tenant = tenant.to_owned();
    let address = address.to_owned();
    Suppressed {
        address,
        tenant,
        source: SuppressionSource::Bounce,
        reason: "no such user".to_owned(),
        added: 7,
        expires,
    }
}

fn all(list: &Suppressions, wanted: &SuppressionFilter, now: u64) -> Vec<(String, String)> {
    let mut found = Vec::new();
    list.list(wanted, now, &mut |entry| {
        found.push((entry.tenant, entry.address));
        true
    })
    .unwrap();
    found
}

#[test]
fn an_empty_list_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list");
    let list = Suppressions::open(&path).unwrap();
    assert!(list.is_empty() && list.find("", "bob@a.example", 0).unwrap().is_none());
    assert_eq!(list.remove("", &["bob@a.example".to_owned()], 0).unwrap(), 0);
    assert_eq!(all(&list, &SuppressionFilter::default(), 0), []);
    assert!(!path.exists());
}

#[test]
fn entries_are_for_their_tenant_or_for_all_and_last() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list");
    let list = Suppressions::open(&path).unwrap();
    let entries = [entry("news", "Bob@A.example", None), entry("", "eve@a.example.", Some(100))];
    assert_eq!(list.add(&entries, 10).unwrap(), 2);
    assert_eq!(list.add(&entries, 10).unwrap(), 0, "they are there");
    drop(list);
    let list = Suppressions::open(&path).unwrap();
    let is_there = |tenant: &str, address: &str, now| list.find(tenant, address, now).unwrap().is_some();
    assert!(is_there("news", "bob@a.EXAMPLE", 20));
    assert!(!is_there("", "bob@a.example", 20) && !is_there("other", "bob@a.example", 20));
    assert!(is_there("news", "eve@a.example", 99) && is_there("", "EVE@a.example", 99));
    assert!(!is_there("", "eve@a.example", 100), "it has expired");
    let found = list.find("news", "bob@a.example", 20).unwrap().unwrap();
    assert_eq!(found, Suppressed { address: "bob@a.example".into(), ..entries[0].clone() });
    assert_eq!(list.remove("news", &["BOB@a.example".into(), "no@a.example".into()], 20).unwrap(), 1);
    assert_eq!(list.len(), 1);
    // A day later the next change removes expired entries.
    list.add(&[entry("x", "x@a.example", None)], 20 + DAY_SECS).unwrap();
    assert_eq!(all(&list, &SuppressionFilter::default(), 0), [("x".to_owned(), "x@a.example".to_owned())]);
}

#[test]
fn what_is_fed_counts_at_once_and_shortens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list");
    let list = Suppressions::open(&path).unwrap();
    list.feed(&entry("", "bob@a.example", Some(50))).unwrap();
    assert!(!list.is_empty() && list.is_fed() && !path.exists());
    assert!(list.find("any", "bob@a.example", 0).unwrap().is_some());
    assert_eq!(list.flush(0).unwrap(), 0);
    assert!(!list.is_fed() && list.len() == 1);
    for (expires, lasts) in [(Some(40), Some(50)), (Some(60), Some(60)), (None, None), (Some(70), None)] {
        list.feed(&entry("", "bob@a.example", expires)).unwrap();
        list.flush(0).unwrap();
        let list = list.find("", "bob@a.example", 0).unwrap().unwrap();
        assert_eq!(list.expires, lasts, "{expires:?}");
    }
    drop(list);
    assert_eq!(Suppressions::open(&path).unwrap().len(), 1);
}

#[test]
fn what_waits_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let list = Suppressions::open(&dir.path().join("list")).unwrap();
    for number in 0..FED_MAX + 3 {
        list.feed(&entry("", &format!("{number}@a.example"), None)).unwrap();
    }
    assert_eq!(list.len(), FED_MAX as u64);
    assert_eq!((list.flush(0).unwrap(), list.flush(0).unwrap()), (3, 0));
}

#[test]
fn what_is_no_address_is_refused_and_nothing_added() {
    let dir = tempfile::tempdir().unwrap();
    let list = Suppressions::open(&dir.path().join("list")).unwrap();
    for bad in ["", "bob", "@a.example", "bob@", "bob@a b", "a\0b@a.example", "postmaster"] {
        let both = [entry("", "good@a.example", None), entry("", bad, None)];
        assert!(matches!(list.add(&both, 0), Err(SuppressionError::Entry(_))), "{bad:?}");
    }
    let tenant = "t".repeat(TENANT_BYTES_MAX + 1);
    assert!(list.add(&[entry(&tenant, "bob@a.example", None)], 0).is_err());
    assert!(list.add(&[entry("a\0", "bob@a.example", None)], 0).is_err());
    assert!(list.is_empty());
    let long = Suppressed { reason: "é\n".repeat(1000), ..entry("", "bob@a.example", None) };
    list.add(&[long], 0).unwrap();
    let reason = list.find("", "bob@a.example", 0).unwrap().unwrap().reason;
    assert!(reason.len() <= REASON_BYTES_MAX && reason.starts_with("é é"), "{reason}");
}

#[test]
fn a_damaged_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list");
    std::fs::write(&path, "no database".repeat(1000)).unwrap();
    let error = Suppressions::open(&path).unwrap_err().to_string();
    assert!(error.contains("list"), "{error}");
}

#[test]
fn any_sequence_of_changes_gives_what_a_map_gives() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let mut list = Suppressions::open(&path).unwrap();
        let mut model: BTreeMap<(String, String), Option<u64>> = BTreeMap::new();
        for _ in 0..50 {
            let tenant = ["", "a", "ab"][random.next() as usize % 3];
            let address = format!("u{}@a.example", random.next() % 8);
            let expires = (random.next().is_multiple_of(2)).then_some(1000 + random.next() % 3);
            let key = (tenant.to_owned(), address.clone());
            match random.next() % 6 {
                0 | 1 => {
                    let is_new = model.insert(key, expires).is_none();
                    assert_eq!(list.add(&[entry(tenant, &address, expires)], 0).unwrap(), u64::from(is_new));
                }
                2 => {
                    let was = model.remove(&key).is_some();
                    assert_eq!(list.remove(tenant, &[address], 0).unwrap(), u64::from(was), "seed {seed}");
                }
                3 | 4 => {
                    let lasts = |expires: Option<u64>| expires.unwrap_or(u64::MAX);
                    list.feed(&entry(tenant, &address, expires)).unwrap();
                    list.flush(0).unwrap();
                    let there = model.entry(key).or_insert(expires);
                    if lasts(*there) < lasts(expires) {
                        *there = expires;
                    }
                }
                _ => {
                    drop(list);
                    list = Suppressions::open(&path).unwrap();
                }
            }
            assert_eq!(list.len(), model.len() as u64, "seed {seed}");
            let now = 998 + random.next() % 6;
            let valid = |expires: &Option<u64>| expires.is_none_or(|expires| expires > now);
            let expected: Vec<_> =
                model.iter().filter(|(_, expires)| valid(expires)).map(|(key, _)| key.clone()).collect();
            assert_eq!(all(&list, &SuppressionFilter::default(), now), expected, "seed {seed}");
            let of_a: Vec<_> = expected.iter().filter(|(tenant, _)| tenant == "a").cloned().collect();
            assert_eq!(
                all(&list, &SuppressionFilter { tenant: Some("a".into()), ..SuppressionFilter::default() }, now),
                of_a
            );
        }
    }
}

#[test]
fn a_long_list_is_shown_in_pages_until_it_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let list = Suppressions::open(&dir.path().join("list")).unwrap();
    let entries: Vec<_> = (0..3 * PAGE).map(|number| entry("t", &format!("{number:05}@a.example"), None)).collect();
    assert_eq!(list.add(&entries, 0).unwrap(), 3 * PAGE as u64);
    assert_eq!(all(&list, &SuppressionFilter::default(), 0).len(), 3 * PAGE);
    let mut shown = 0;
    list.list(&SuppressionFilter::default(), 0, &mut |_| {
        shown += 1;
        shown < PAGE + 5
    })
    .unwrap();
    assert_eq!(shown, PAGE + 5);
}

#[test]
fn entries_behind_a_damaged_one_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let list = Suppressions::open(&dir.path().join("list")).unwrap();
    let entries: Vec<_> = (0..PAGE).map(|number| entry("t", &format!("{number:05}@a.example"), None)).collect();
    list.add(&entries, 0).unwrap();
    // Before the others, and of a version to come.
    let damaged = codec::key("t", "-@a.example");
    list.write(0, |_, table| Ok(table.insert(&*damaged, &[9][..]).map(|_| 0)?)).unwrap();
    assert_eq!(all(&list, &SuppressionFilter::default(), 0).len(), PAGE);
}

#[test]
fn the_daily_removal_keeps_damaged_entries_and_tells_them() {
    let dir = tempfile::tempdir().unwrap();
    let list = Suppressions::open(&dir.path().join("list")).unwrap();
    list.add(&[entry("t", "old@a.example", Some(10)), entry("t", "bob@a.example", None)], 0).unwrap();
    let put = |address: &str, value: &[u8]| {
        let key = codec::key("t", address);
        list.write(0, |_, table| Ok(table.insert(&*key, value).map(|_| 0)?)).unwrap();
    };
    // Cut short, and of a version to come.
    put("bob@a.example", &[1, 0]);
    put("eve@a.example", &[9; 30]);
    assert_eq!(list.take_damaged(), None, "not a day since the last removal");
    list.add(&[entry("", "joe@a.example", None)], DAY_SECS).unwrap();
    let damaged = DamagedSuppressions { count: 2, address: "bob@a.example".into(), tenant: "t".into() };
    assert_eq!((list.take_damaged(), list.take_damaged(), list.len()), (Some(damaged), None, 3));
    let find = |address: &str| list.find("t", address, DAY_SECS);
    assert!(find("bob@a.example").unwrap_err().to_string().ends_with("the entry of bob@a.example is damaged"));
    assert!(find("old@a.example").unwrap().is_none());
    // The way out: remove it, or set it anew.
    assert_eq!(list.remove("t", &["eve@a.example".to_owned()], DAY_SECS).unwrap(), 1);
    list.add(&[entry("t", "bob@a.example", None)], DAY_SECS).unwrap();
    assert!(find("eve@a.example").unwrap().is_none() && find("bob@a.example").unwrap().is_some());
}

#[test]
fn a_list_opens_without_its_mark_and_is_marked_with_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list");
    Suppressions::open(&path).unwrap().add(&[entry("", "bob@a.example", None)], 0).unwrap();
    let mark = dir.path().join("list.made");
    std::fs::remove_file(&mark).unwrap();
    // It cannot be made, as on a full disk.
    std::os::unix::fs::symlink("nowhere/mark", &mark).unwrap();
    let list = Suppressions::open(&path).unwrap();
    assert!(list.find("", "bob@a.example", 0).unwrap().is_some() && list.len() == 1);
    // No entry is acknowledged whose loss would go unnoticed.
    assert!(list.add(&[entry("", "eve@a.example", None)], 0).is_err());
    list.feed(&entry("", "joe@a.example", None)).unwrap();
    assert!(list.flush(0).is_err() && list.is_fed());
    std::fs::remove_file(&mark).unwrap();
    assert_eq!((list.flush(0).unwrap(), list.len()), (0, 2));
    assert!(mark.exists());
}

#[test]
fn a_list_goes_on_after_its_disk_was_full() {
    let machine = Machine::new().unwrap();
    let list = Suppressions::open(&machine.path().join("list")).unwrap();
    list.add(&[entry("", "bob@a.example", None)], 0).unwrap();
    let (_, changes) = machine.counts();
    machine.set_faults(Faults { fail_changes: Some((changes..u64::MAX, Errno::NOSPC)), ..Faults::default() });
    let many: Vec<_> = (0..3000).map(|number| entry("", &format!("{number}@b.example"), None)).collect();
    assert!(list.add(&many, 0).unwrap_err().to_string().contains("No space"));
    list.feed(&entry("", "joe@a.example", None)).unwrap();
    assert!(list.flush(0).is_err());
    machine.set_faults(Faults::default());
    let is_there = |address: &str| list.find("", address, 0).unwrap().is_some();
    assert!(is_there("bob@a.example") && is_there("joe@a.example") && !is_there("7@b.example"));
    assert_eq!((list.flush(0).unwrap(), list.len()), (0, 2));
    assert_eq!(list.add(&many, 0).unwrap(), 3000);
}
