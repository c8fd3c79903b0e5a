//! Connections that are lost at each octet, in each direction.

use posthaste_relay::session::Fate;

use crate::support::{List, Script, Seen, send_all, settings};

/// Each recipient of each message has one fate, and it is true of what the server has seen.
fn check(list: &List, seen: &Seen, taken: usize, what: &str) {
    assert_eq!(list.fates.len(), taken, "{what}: {:?}", list.fates);
    for (at, (key, fates)) in list.fates.iter().enumerate() {
        assert_eq!((*key, fates.len()), (at, 2), "{what}");
        let subject = format!("Subject: {key}\r\n");
        let kept: Vec<_> = seen.kept.iter().filter(|kept| kept.body.starts_with(subject.as_bytes())).collect();
        assert!(kept.len() <= 1, "{what}: sent twice");
        for fate in fates {
            match fate {
                Fate::Delivered(_) => assert!(kept[0].acknowledged, "{what}: {fate:?}"),
                Fate::NotSent(_) => assert!(kept.is_empty(), "{what}: {fate:?}"),
                Fate::Unknown(_) => assert!(kept.first().is_none_or(|kept| !kept.acknowledged), "{what}: {fate:?}"),
                _ => panic!("{what}: {fate:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_lost_at_each_octet() {
    for extensions in [vec![], vec!["PIPELINING"]] {
        let script = || Script { extensions: extensions.clone(), ..Script::default() };
        let mut list = List::two();
        let (_, whole) = send_all(script(), &mut list, &settings()).await;
        check(&list, &whole, 2, "whole");
        assert!(list.fates.iter().flat_map(|(_, fates)| fates).all(|fate| matches!(fate, Fate::Delivered(_))));
        let mut unknown = 0;
        for cut in 0..whole.read {
            for (reads, writes) in [(cut, usize::MAX), (usize::MAX, cut)] {
                let mut list = List::two();
                let (end, seen) = send_all(Script { reads, writes, ..script() }, &mut list, &settings()).await;
                let taken = 2 - list.messages.len();
                let what = format!("{extensions:?}, after {reads} octets read or {writes} written");
                assert!(end.is_ok() || taken == 0, "{what}: {end:?}");
                check(&list, &seen, taken, &what);
                unknown += list.fates.iter().filter(|(_, fates)| matches!(fates[0], Fate::Unknown(_))).count();
            }
        }
        assert!(unknown > 10, "{unknown}");
    }
}
