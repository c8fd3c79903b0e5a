//! Bounds of the queue.

use std::sync::Arc;

use posthaste_queue::{QueueAction, Selection};
use posthaste_relay::sender::{Filter, Originator, QueueLimitNow, QueueLimits};
use posthaste_smtp::Reply;

use crate::{rig_with, wait, zone};

fn of(limits: &[QueueLimitNow], tenant: &str) -> (u64, u64, u64, bool) {
    let limit =
        limits.iter().find(|limit| &*limit.tenant == tenant).unwrap_or_else(|| panic!("{tenant} in {limits:?}"));
    (limit.recipients, limit.max, limit.refused, limit.is_full)
}

#[test]
fn a_full_queue_refuses_until_recipients_leave_and_says_so_once() {
    let limits = QueueLimits { recipients: 4, tenants: [(Arc::from("news"), 2)].into() };
    let rig = rig_with(zone(), 1, |config| {
        config.queue_limits = limits.clone();
        // Keeps mail from leaving.
        config.site_pause_secs = 1800;
    });
    let fits = |recipients| rig.relay.has_room(recipients);
    let of_news = |recipients| rig.relay.has_room_for("news", recipients);
    assert!(fits(4) && !fits(5) && of_news(2) && rig.relay.has_room_for("other", 1000));
    rig.send_for("news", "x@y.example", &["a@a.example", "b@a.example"]);
    rig.send("x@y.example", &["c@a.example"], "x\r\n");
    assert!(!of_news(1) && !of_news(2) && fits(1) && !fits(2) && rig.relay.has_room_for("", 1));
    assert_eq!(of(&rig.relay.queue_limits(), ""), (3, 4, 7, true));
    assert_eq!(of(&rig.relay.queue_limits(), "news"), (2, 2, 3, true));
    // Counts survive a restart.
    let dir = rig.end();
    let rig = crate::rig_in(dir, zone(), 1, |config| config.queue_limits = limits.clone());
    assert_eq!(
        (of(&rig.relay.queue_limits(), ""), of(&rig.relay.queue_limits(), "news")),
        ((3, 4, 0, false), (2, 2, 0, false))
    );
    assert!(!rig.relay.has_room_for("news", 1) && !rig.relay.has_room_for("news", 1) && !rig.relay.has_room(2));
    let by = Originator::default();
    let selection = Selection { tenant: Some("news".into()), ..Selection::default() };
    let reply = Reply::new(554, "5.0.0", "");
    rig.relay.act(&Filter { selection, ..Filter::default() }, QueueAction::Delete, &reply, &by).unwrap();
    wait("both have room again", || rig.log().iter().filter(|line| line.starts_with("Again")).count() == 2);
    assert!(rig.relay.has_room(3) && rig.relay.has_room_for("news", 2));
    let told: Vec<String> = rig.log().into_iter().filter(|line| line.contains(" tenant: ")).collect();
    let expected = [
        r#"Full { tenant: "news", recipients: 2, max: 2 }"#,
        r#"Full { tenant: "", recipients: 3, max: 4 }"#,
        r#"Again { tenant: "", refused: 2 }"#,
        r#"Again { tenant: "news", refused: 2 }"#,
    ];
    assert_eq!(told, expected);
    // A reload changes bounds and keeps counts.
    rig.relay.set_queue_limits(&QueueLimits { recipients: 1, tenants: [(Arc::from("other"), 1)].into() });
    assert!(!rig.relay.has_room(1) && rig.relay.has_room_for("news", 1000) && !rig.relay.has_room_for("other", 2));
    assert_eq!(of(&rig.relay.queue_limits(), ""), (1, 1, 3, true));
}
