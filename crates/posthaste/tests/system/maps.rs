//! Maps of addresses, copies, and lists of recipients, with running servers.

use rustix::process::Signal;

use crate::relaying::unused_port;
use crate::support::Server;

const THERE: &str = r#"
host_name = "mx.there.example"
[[listener]]
address = "127.0.0.1:PORT"
[[domain]]
name = "there.example"
users = ["ann", "archive"]
"#;

const HERE: &str = r#"
host_name = "mx.here.example"
[[listener]]
address = "127.0.0.1:0"
[[listener]]
address = "[::1]:0"
[[domain]]
name = "here.example"
users = ["eve", "copies"]
[relay]
networks = ["127.0.0.1"]
domains = ["there.example"]
port = PORT
unreachable_secs = 1
[[relay.recipients]]
domain = "there.example"
users = ["ann"]
[relay.maps]
canonical = { "old@here.example" = "eve@here.example", "@alias.example" = "@there.example" }
generic = "generic.map"
sender_bcc = { "eve@here.example" = "archive@there.example" }
recipient_bcc = { "eve@here.example" = "copies@here.example" }
[dns]
servers = ["127.0.0.1:9"]
hosts = { "there.example" = ["127.0.0.1"] }
"#;

#[test]
fn addresses_are_rewritten_both_ways_and_copies_made() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = unused_port().to_string();
    let next = Server::start(there.path(), &THERE.replace("PORT", &port));
    let generic = here.path().join("generic.map");
    std::fs::write(&generic, "# what others see\n@here.example  @public.example\n").unwrap();
    let server =
        Server::start(here.path(), &HERE.replace("PORT", &port).replace("generic.map", generic.to_str().unwrap()));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let text = b"From: Old <old@here.example>\r\nTo: ann@alias.example, x@x.example\r\nSubject: old@here.example\r\n\r\nold@here.example\r\n";
    let reply = client.try_message("old@here.example", &["ann@alias.example", "old@here.example"], text).unwrap();
    assert_eq!(reply.code, 250, "{reply:?}");
    let gone = next.wait_for_mail("there.example", "ann", 1).remove(0).text();
    assert!(gone.starts_with("Return-Path: <eve@public.example>\nDelivered-To: ann@there.example\n"), "{gone}");
    let header = "From: Old <eve@public.example>\nTo: ann@there.example, x@x.example\nSubject: old@here.example\n\nold@here.example\n";
    assert!(gone.ends_with(header), "{gone}");
    next.wait_for_mail("there.example", "archive", 1);
    let kept = server.wait_for_mail("here.example", "eve", 1).remove(0).text();
    let header = "From: Old <eve@here.example>\nTo: ann@there.example, x@x.example\nSubject: old@here.example\n\nold@here.example\n";
    assert!(kept.ends_with(header), "{kept}");
    server.wait_for_mail("here.example", "copies", 1);
    // Who may not relay reaches the listed recipients of the domain alone, and keeps its header.
    let mut other = crate::support::Client::open(server.addresses[1]).unwrap();
    other.reply();
    other.expect("EHLO client.example.net", 250);
    other.expect("MAIL FROM:<joe@x.example>", 250);
    other.expect("RCPT TO:<joe@there.example>", 550);
    other.expect("RCPT TO:<ANN@there.example>", 250);
    other.expect("RSET", 250);
    other.try_message("joe@x.example", &["old@here.example"], text).unwrap();
    let kept = server.wait_for_mail("here.example", "eve", 2);
    assert!(kept.iter().any(|mail| mail.text().contains("From: Old <old@here.example>\n")), "{kept:?}");
    // A file of pairs is read again with the configuration.
    std::fs::write(&generic, "@here.example  @other.example\n").unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    client.try_message("old@here.example", &["ann@there.example"], b"Subject: b\r\n\r\n\r\n").unwrap();
    let gone = next.wait_for_mail("there.example", "ann", 2);
    assert!(gone.iter().any(|mail| mail.text().starts_with("Return-Path: <eve@other.example>\n")), "{gone:?}");
    server.stop();
    next.stop();
}
