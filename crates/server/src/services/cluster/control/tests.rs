use super::*;

fn named(domain: &str) -> Named {
    Named { domain: Some(domain.to_owned()), ..Named::default() }
}

#[test]
fn entries_of_a_key_replace_one_another() {
    let (kind, now) = (ControlKind::Suspension, 10 * KEPT_SECS);
    let suspended = SharedSuspension { until: Some(now + 60), reason: "blocked".to_owned(), ..Default::default() };
    let ended = SharedSuspension { resumed: Some(now), ..suspended.clone() };
    let mut table = ControlTable::default();
    for of in [&suspended, &ended] {
        let entry = entry_of(&SharedChange::Suspend(named("a.example"), of.clone()));
        let (scope, read) = suspension_of(&entry.key, entry.value.as_ref()).unwrap();
        assert_eq!((scope.name(), &read), ("a.example".into(), of));
        table.apply(&entry);
    }
    forget_old(&mut table, now + KEPT_SECS);
    assert_eq!(table.values(kind).count(), 1);
    forget_old(&mut table, now + KEPT_SECS + 1);
    assert_eq!(table.values(kind).count(), 0, "it is over for a week");
}

#[test]
fn entries_change_the_list_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let list = Suppressions::open(&dir.path().join("list")).unwrap();
    let entry = |address: &str, expires| Suppressed { address: address.to_owned(), expires, ..Suppressed::default() };
    let add = |address: &str| suppression(&entry(address, None), false);
    let remove =
        |address: &str| entry_of(&SharedChange::Unsuppress { tenant: String::new(), address: address.to_owned() });
    let fed = |address: &str| suppression(&entry(address, Some(100)), true);
    let entries = [
        add("a@a.example"),
        fed("a@a.example"),
        fed("b@a.example"),
        add("c@a.example"),
        remove("c@a.example"),
        remove("d@a.example"),
        add("d@a.example"),
        add("no address"),
    ];
    // Some come again after a crash.
    for part in [&entries[..], &entries[3..]] {
        suppress(&list, part, 1).unwrap();
        let expires = |address: &str| list.find("", address, 1).unwrap().map(|entry| entry.expires);
        let found = ["a", "b", "c", "d"].map(|name| expires(&format!("{name}@a.example")));
        assert_eq!(found, [Some(None), Some(Some(100)), None, Some(None)]);
    }
}

#[test]
fn a_restated_suppression_changes_no_list() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |expires| Suppressed { address: "a@a.example".to_owned(), expires, ..Suppressed::default() };
    let far = wall_secs() + 1000;
    let lasting = [Some(far), Some(far + 1), None].map(entry);
    for (number, first) in lasting.iter().enumerate() {
        for (other, second) in lasting.iter().enumerate() {
            for is_fed in [false, true] {
                let name = format!("list {number} {other} {is_fed}");
                let list = Suppressions::open(&dir.path().join(name)).unwrap();
                let entries = [suppression(first, false), suppression(second, is_fed)];
                suppress(&list, &entries, 1).unwrap();
                let found = || list.find("", "a@a.example", 1).unwrap();
                let before = found();
                let [one, two] = entries.map(|entry| entry.value.unwrap());
                let value = if Values.stays(ControlKind::Suppression, &one, &two) { one } else { two };
                let restated = Values.restated(ControlKind::Suppression, &value);
                let key = suppression_key("", "a@a.example");
                let again = ControlEntry { kind: ControlKind::Suppression, key, value: restated };
                suppress(&list, std::slice::from_ref(&again), 1).unwrap();
                assert_eq!(found(), before);
                // A node that begins with it has the same.
                let fresh = Suppressions::open(&dir.path().join(format!("fresh {number} {other} {is_fed}"))).unwrap();
                suppress(&fresh, &[again], 1).unwrap();
                assert_eq!(fresh.find("", "a@a.example", 1).unwrap(), before);
            }
        }
    }
    let over = suppression(&entry(Some(5)), false).value.unwrap();
    assert_eq!(Values.restated(ControlKind::Suppression, &over), None);
}

#[test]
fn a_removal_has_the_key_of_the_entry() {
    let (tenant, address) = ("news".to_owned(), "Ann@There.Example".to_owned());
    let added = Suppressed { address: address.clone(), tenant: tenant.clone(), ..Suppressed::default() };
    let (added, removed) = (SharedChange::Suppress(added), SharedChange::Unsuppress { tenant, address });
    assert_eq!(entry_of(&added).key, entry_of(&removed).key);
    assert!(entry_of(&added).value.is_some() && entry_of(&removed).value.is_none());
}
