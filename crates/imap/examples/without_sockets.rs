//! A session without a socket: the machine asks, its owner answers: `cargo run -p posthaste-imap --example without_sockets`. Runs with the tests.

use std::sync::Arc;

use bytes::BytesMut;
use posthaste_imap::session::{ImapConfig, ImapEvent, ImapMachine, ListedName, LoginRefusal};

/// The octets of a client that waits for no answer.
const CLIENT: &str = "a1 LOGIN ann wrong\r\na2 LOGIN ann secret\r\na3 LIST \"\" *\r\na4 LOGOUT\r\n";

fn main() {
    // The client is on this machine, so that its login needs no TLS.
    let mut machine = ImapMachine::new(Arc::new(ImapConfig::new("imap.example.org")), true);
    machine.greet();
    let (mut input, mut written) = (BytesMut::from(CLIENT), Vec::new());
    let mut names = ["INBOX", "Drafts"].map(listed).into_iter();
    loop {
        match machine.step(&mut input) {
            // An owner with a socket writes the output and reads more.
            ImapEvent::NeedInput => panic!("the client has gone without LOGOUT"),
            ImapEvent::Flush => written.append(machine.output_mut()),
            ImapEvent::Close => break,
            ImapEvent::Login(credentials) => {
                let is_known = (&*credentials.user, &*credentials.password) == ("ann", "secret");
                machine.logged_in(if is_known { Ok(()) } else { Err(LoginRefusal::Wrong) });
            }
            ImapEvent::List { .. } => machine.list_opened(Ok(())),
            ImapEvent::NextName => machine.listed(Ok(names.next())),
            other => panic!("this client does not lead to {other:?}"),
        }
    }
    written.append(machine.output_mut());

    let said = String::from_utf8(written).expect("names in modified UTF-7 and replies are ASCII");
    print!("{said}");
    for expected in ["a1 NO [AUTHENTICATIONFAILED]", "a2 OK", "* LIST (\\HasNoChildren)", "a3 OK", "* BYE"] {
        assert!(said.lines().any(|line| line.starts_with(expected)), "{expected}");
    }
}

fn listed(name: &str) -> ListedName {
    ListedName { name: name.to_owned(), is_mailbox: true, ..ListedName::default() }
}
