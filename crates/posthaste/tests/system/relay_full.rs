//! A queue at its limit.

use crate::relaying::{self, queue, unused_port, wait_until_unreachable};
use crate::support::{Client, Server};

const FULL: &str = "queue_recipients = 2\n[[relay.tenant]]\nname = \"news\"\nsender_domains = [\"news.example\"]\nqueue_recipients = 1\n";

fn send(client: &mut Client, from: &str, code: u16) {
    client.expect(&format!("MAIL FROM:<{from}>"), 250);
    client.expect("RCPT TO:<ann@there.example>", 250);
    client.expect("DATA", 354);
    client.expect("Subject: x\r\n\r\nx\r\n.", code);
}

#[test]
fn a_full_queue_is_refused_and_counted_and_local_mail_goes_on() {
    let here = tempfile::tempdir().unwrap();
    let config = relaying::config(unused_port(), FULL).replace("unreachable_secs = 1\n", "");
    let server = Server::start(here.path(), &config);
    let mut client = server.hello();
    send(&mut client, "a@news.example", 250);
    // What is under way could not be deleted at once.
    wait_until_unreachable(&server, here.path(), 1);
    send(&mut client, "a@news.example", 452);
    server.wait_for_log("a tenant's part of the queue is full");
    send(&mut client, "a@other.example", 250);
    client.expect("MAIL FROM:<a@other.example>", 250);
    let full = client.expect("RCPT TO:<ann@there.example>", 452);
    assert!(full.text.contains("4.3.1"), "{full:?}");
    client.expect("RCPT TO:<bob@there.example>", 452);
    client.expect("RCPT TO:<eve@here.example>", 250);
    client.expect("DATA", 354);
    client.expect("Subject: local\r\n\r\nx\r\n.", 250);
    server.wait_for_mail("here.example", "eve", 1);
    let log = server.wait_for_log("the queue is full: mail for other hosts is refused with 452");
    assert_eq!(log.matches("the queue is full").count(), 1, "{log}");
    let (_, text) = queue(here.path(), &["summary"]);
    assert!(text.contains("\n2 of 2 recipients wait, full; 2 were refused since the start\n"), "{text}");
    assert!(text.contains("\n1 of 1 recipients of tenant news wait, full; 1 were refused since the start\n"), "{text}");
    let room = |expected: [(u64, u64, u64, bool); 2]| {
        let (_, text) = queue(here.path(), &["summary", "--json"]);
        let summary: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let one = |tenant: &str, (recipients, max, refused, full): (u64, u64, u64, bool)| serde_json::json!({ "tenant": tenant, "recipients": recipients, "max": max, "refused": refused, "full": full });
        let [whole, news] = expected;
        assert_eq!(summary["room"], serde_json::json!([one("", whole), one("news", news)]));
    };
    room([(2, 2, 2, true), (1, 1, 1, true)]);
    assert_eq!(queue(here.path(), &["delete", "--all"]).0, 0);
    server.wait_for_log("the queue has room again");
    server.wait_for_log("a tenant's part of the queue has room again");
    room([(0, 2, 2, false), (0, 1, 1, false)]);
    send(&mut client, "a@news.example", 250);
    drop(client);
    server.stop();
}
