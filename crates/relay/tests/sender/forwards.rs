//! Messages that leave with another sender for some of their recipients.

use posthaste_queue::Origin;
use posthaste_queue::entry::Forwarded;
use posthaste_random::Random;
use posthaste_relay::sender::{Exported, Filter};

use super::*;

/// A message from Ann; for recipients that begin with `f` it leaves from an address of ours.
fn forwarding(to: &[&str], notify: u8) -> Queued {
    let numbers = (0..).zip(to).filter(|(_, address)| is_forwarded(address)).map(|(number, _)| number).collect();
    let forwarded = Some(Box::new(Forwarded { sender: "SRS0=ann@here.example".into(), numbers }));
    Queued { forwarded, ..outgoing("ann@a.example", to, notify) }
}

fn is_forwarded(address: &str) -> bool {
    // A `no` or `later` in front is for the sink.
    ["no", "later", "never", ""]
        .iter()
        .any(|before| address.strip_prefix(before).is_some_and(|rest| rest.starts_with('f')))
}

/// Checks that each recipient got it from the right sender.
fn check(taken: &[Taken]) {
    for taken in taken.iter().filter(|taken| !taken.sender.is_empty()) {
        let from = |to: &String| if is_forwarded(to) { "SRS0=ann@here.example" } else { "ann@a.example" };
        assert!(taken.recipients.iter().all(|to| from(to) == taken.sender), "{taken:?}");
    }
}

#[test]
fn each_forwarded_recipient_has_its_sender_and_one_is_told() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    let to = ["bob@a.example", "fay@a.example", "nob@a.example", "nofay@a.example", "eve@a.example", "flo@a.example"];
    rig.append(forwarding(&to, 0), "x\r\n");
    let taken = sink.wait_taken(3);
    rig.wait_empty();
    check(&taken);
    let mut of_message: Vec<_> = taken.iter().filter(|taken| !taken.sender.is_empty()).collect();
    of_message.sort_by_key(|taken| taken.recipients[0].clone());
    assert_eq!(
        of_message.iter().map(|taken| taken.recipients.len()).collect::<Vec<_>>(),
        [2, 2],
        "no more than needed"
    );
    let written = rig.back.written.lock().unwrap().clone();
    assert_eq!(written.len(), 1, "one notification of both: {written:?}");
    assert_eq!(written[0].0, "ann@a.example");
    for address in ["nob@a.example", "nofay@a.example"] {
        assert!(written[0].1.contains(&format!("Final-Recipient: rfc822; {address}\r\n")), "{written:?}");
        assert_eq!(sink.rcpts(address), 1, "{address}");
    }
    assert!(!rig.log().iter().any(|line| line.contains("deferred")), "none had to wait: {:?}", rig.log());
}

#[test]
fn recipients_of_different_senders_never_share_a_transaction() {
    let sink = Sink::start();
    let zone =
        zone().mx("b.example", 10, "mx.a.example").mx("c.example", 1, "mx.c.example").a("mx.c.example", LOOPBACK);
    let rig = rig_with(zone, sink.port(), |config| (config.recipients_max, config.memory_bytes) = (3, 4000));
    let mut random = Random::new(16);
    let mut expected = 0;
    for number in 0..60 {
        let names = ["bob", "fay", "laterbob", "laterfay"];
        let to: Vec<String> = (0..1 + random.below(9))
            .map(|at| {
                format!(
                    "{}{number}-{at}@{}.example",
                    names[random.below(4) as usize],
                    ["a", "b", "c"][random.below(3) as usize]
                )
            })
            .collect();
        expected += to.len();
        rig.append(forwarding(&to.iter().map(String::as_str).collect::<Vec<_>>(), notify::NEVER), "x\r\n");
    }
    wait("all are delivered", || sink.taken().iter().map(|taken| taken.recipients.len()).sum::<usize>() >= expected);
    rig.wait_empty();
    let taken = sink.taken();
    check(&taken);
    let mut all: Vec<&String> = taken.iter().flat_map(|taken| &taken.recipients).collect();
    all.sort();
    all.dedup();
    assert_eq!((all.len(), taken.iter().map(|taken| taken.recipients.len()).sum::<usize>()), (expected, expected));
}

#[test]
fn a_rewritten_sender_survives_a_restart_and_a_transfer() {
    let sink = Sink::start();
    let wait_long = |config: &mut Config| config.schedules = schedules(3600, 86_400);
    let rig = rig_with(zone(), sink.port(), wait_long);
    rig.append(forwarding(&["laterbob@a.example", "laterfay@a.example", "neverfay@a.example"], 0), "x\r\n");
    wait("all are put off", || rig.log().iter().filter(|line| line.contains(" deferred ")).count() == 3);
    let rig = rig_in(rig.end(), zone(), sink.port(), wait_long);
    let mut exported = Vec::<Exported>::new();
    let mut shown = Vec::new();
    rig.relay
        .export(&Filter::default(), None, &mut |message| {
            exported.push(message);
            true
        })
        .unwrap();
    rig.relay.waiting(&Filter::default(), &mut |waiting| {
        shown.push((waiting.sender.to_string(), waiting.leaves_from.to_string()));
        true
    });
    let pair = |from: &str| ("ann@a.example".to_owned(), from.to_owned());
    assert_eq!(shown, [pair("ann@a.example"), pair("SRS0=ann@here.example"), pair("SRS0=ann@here.example")]);
    rig.flush();
    check(&sink.wait_taken(2));
    // Only one of the forwarded recipients moves.
    let mut message = exported.remove(0);
    message.recipients.retain(|recipient| &*recipient.to.address != "laterbob@a.example");
    let other = Sink::start();
    let second = rig_with(zone(), other.port(), |_| ());
    let origin = Origin::of(message.message, b"entry", b"x");
    let body = Body::inline(vec![Bytes::from_static(b"x\r\n")]);
    let imported = second.relay.import(&Originator::default(), origin, message, "", body).unwrap();
    assert_eq!(imported.recipients, 2);
    second.flush();
    wait("it is there", || other.rcpts("laterfay@a.example") >= 1);
    second.flush();
    let taken = other.wait_taken(1);
    assert_eq!(
        (&*taken[0].sender, &*taken[0].recipients),
        ("SRS0=ann@here.example", &["laterfay@a.example".to_owned()][..])
    );
}
