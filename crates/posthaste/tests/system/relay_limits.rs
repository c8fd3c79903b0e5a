//! Limits of a running server are changed by a reload.

use rustix::process::Signal;

use crate::relaying::{ANYWHERE, config, next_hop};
use crate::support::Server;

#[test]
fn mail_that_waits_for_a_limit_leaves_once_a_reload_lifts_it() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let limit = |rate: &str| {
        let text = format!("[domain.\"there.example\"]\nmessage_rate = \"{rate}\"\n");
        std::fs::write(here.path().join("limits.toml"), text).unwrap();
    };
    limit("1/day");
    let server = Server::start(here.path(), &config(next.addresses[0].port(), "shaping = [\"limits.toml\"]\n"));
    let mut client = server.hello();
    for _ in 0..20 {
        client.deliver(&["ann@there.example"], b"Subject: waits\r\n\r\nx\r\n");
    }
    // The same host does not know this one: its sender is told.
    client.try_message("eve@here.example", &["ann@other.example"], b"Subject: passes\r\n\r\nx\r\n").unwrap();
    server.wait_for_mail("here.example", "eve", 1);
    assert_eq!(next.mailbox("there.example", "ann"), [], "no token yet");
    limit("1000/second");
    server.signal(Signal::HUP);
    next.wait_for_mail("there.example", "ann", 20);
    drop(client);
    server.stop();
    next.stop();
}
