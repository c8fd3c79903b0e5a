//! Recipients of a relayed domain that only the next hop knows.

use std::net::Ipv4Addr;

use rustix::process::Signal;

use crate::relaying::{self, next_hop, unused_port};
use crate::support::{Client, Server};

fn config(port: u16) -> String {
    let recipients = "[[relay.recipients]]\ndomain = \"there.example\"\ncall_ahead = true\n";
    relaying::config(port, &format!("domains = [\"there.example\"]\n{recipients}"))
}

/// A client without special rights, after MAIL.
fn client(server: &Server) -> Client {
    let mut client = Client::open_from(Ipv4Addr::new(127, 0, 0, 2), server.addresses[0]).unwrap();
    assert_eq!(client.reply().code, 220);
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<sender@example.net>", 250);
    client
}

#[test]
fn the_next_hop_is_asked_for_recipients_and_remembered() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = unused_port();
    let address = format!("127.0.0.1:{port}");
    let next = next_hop(there.path(), &address);
    let server = Server::start(here.path(), &config(port));
    let mut asking = client(&server);
    let refused = asking.expect("RCPT TO:<nobody@there.example>", 550);
    assert!(refused.text.contains("5.1.1 The next host refuses this address: "), "{refused:?}");
    asking.expect("RCPT TO:<ann@there.example>", 250);
    asking.expect("RCPT TO:<ann@elsewhere.example>", 550);
    asking.expect("DATA", 354);
    asking.expect("Subject: asked\r\n\r\nx\r\n.", 250);
    next.wait_for_mail("there.example", "ann", 1);
    next.stop();
    // What was answered holds; of others nothing is known.
    asking.expect("MAIL FROM:<sender@example.net>", 250);
    asking.expect("RCPT TO:<nobody@there.example>", 550);
    asking.expect("RCPT TO:<ann@there.example>", 250);
    let later = asking.expect("RCPT TO:<bob@there.example>", 451);
    assert!(later.text.contains("4.4.3"), "{later:?}");
    asking.expect("RCPT TO:<eve@here.example>", 250);
    let told = server.wait_for_log("the next hop cannot be asked for its recipients: there.example (127.0.0.1)");
    assert!(told.contains("recipient refused"), "{told}");
    drop(asking);
    let next = next_hop(there.path(), &address);
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    let mut asking = client(&server);
    asking.expect("RCPT TO:<bob@there.example>", 250);
    drop(asking);
    server.stop();
    next.stop();
}

#[test]
fn a_next_hop_that_hangs_holds_up_only_those_who_ask_it() {
    let here = tempfile::tempdir().unwrap();
    // It accepts connections and never says anything.
    let port = unused_port();
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let server = Server::start(here.path(), &config(port));
    let mut asking = client(&server);
    asking.send(b"RCPT TO:<ann@there.example>\r\n").unwrap();
    let (held, _) = silent.accept().unwrap();
    let mut other = client(&server);
    other.expect("RCPT TO:<eve@here.example>", 250);
    other.expect("DATA", 354);
    other.expect("Subject: other\r\n\r\nx\r\n.", 250);
    // Once the connection breaks nothing is known of the recipient.
    drop((held, silent));
    let later = asking.reply();
    assert!(later.code == 451 && later.text.contains("4.4.3"), "{later:?}");
    drop((asking, other));
    server.stop();
}
