//! Mail readers log in by SCRAM-SHA-256, over IMAP and over POP3.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_smtp::sasl::scram::ScramClient;
use rustix::process::Signal;

use crate::auth::printed;
use crate::imap::{CONFIG, address_of};
use crate::support::{PATIENCE, Server};

/// A client that sends and reads lines.
struct Reader(BufReader<TcpStream>);

impl Reader {
    /// Connects, and requests the capabilities.
    fn open(address: SocketAddr, capability: &str) -> (Self, String) {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = Reader(BufReader::new(stream));
        reader.line();
        reader.say(capability);
        let mut offered = String::new();
        while !offered.ends_with("\r\n.\r\n") && !offered.contains("a OK ") {
            offered += &reader.line();
        }
        (reader, offered)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn say(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    /// Begins with `command`. Returns the reply to the last step.
    fn show(&mut self, command: &str, user: &str, password: &str) -> String {
        let mut scram = ScramClient::new(user, password, None, "abcdef".to_owned());
        self.say(&format!("{command} {}", STANDARD.encode(scram.first())));
        let last = scram.last(&challenge(&self.line()).unwrap()).unwrap();
        self.say(&STANDARD.encode(last));
        let line = self.line();
        let Some(shown) = challenge(&line) else { return line };
        assert!(scram.is_shown(&shown), "the server has the keys");
        self.say("");
        self.line()
    }
}

/// The text of a challenge; `None` for other lines.
fn challenge(line: &str) -> Option<String> {
    let base64 = line.strip_prefix("+ ")?.strip_suffix("\r\n")?;
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}

/// Protocol, its capability command, its offer of SCRAM, its login command, and its replies to a refused and an
/// accepted login.
const DOORS: [[&str; 6]; 2] = [
    [
        "imap",
        "a CAPABILITY",
        " AUTH=SCRAM-SHA-256 AUTH=PLAIN\r\n",
        "b AUTHENTICATE SCRAM-SHA-256",
        "b NO [AUTHENTICATIONFAILED]",
        "b OK [CAPABILITY ",
    ],
    ["pop3", "CAPA", "\r\nSASL SCRAM-SHA-256 PLAIN LOGIN\r\n", "AUTH SCRAM-SHA-256", "-ERR [AUTH]", "+OK 1 messages"],
];

#[test]
fn a_login_with_keys_reads_by_scram_and_without_none_is_offered() {
    let dir = tempfile::tempdir().unwrap();
    let passwords = dir.path().join("passwords");
    let ann = printed(dir.path(), &["password", "--scram", "ann@example.org"], "password");
    let bob = printed(dir.path(), &["password", "bob@example.org"], "password");
    std::fs::write(&passwords, format!("{ann}{bob}")).unwrap();
    let server = Server::start(dir.path(), CONFIG);
    let mut client = server.hello();
    client.deliver(&["ann@example.org"], b"Subject: x\r\n\r\nx\r\n");
    server.wait_for_mail("example.org", "ann", 1);
    for [protocol, ask, offer, begin, no, yes] in DOORS {
        let address = address_of(&server, protocol);
        let (mut reader, offered) = Reader::open(address, ask);
        assert!(offered.contains(offer), "{offered}");
        for (user, password) in [("ann", "passwort"), ("bob", "password"), ("nobody", "password")] {
            let said = reader.show(begin, user, password);
            assert!(said.starts_with(no), "{user}: {said}");
        }
        let said = reader.show(begin, "ANN", "password");
        assert!(said.starts_with(yes), "{said}");
        let line = server.wait_for_log(&format!("mechanism=\"{}\"", protocol.to_uppercase()));
        assert!(line.contains("user=\""), "{line}");
    }
    std::fs::write(&passwords, ann.split(":scram=").next().unwrap()).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    for [protocol, ask, _, begin, ..] in DOORS {
        let (mut reader, offered) = Reader::open(address_of(&server, protocol), ask);
        assert!(!offered.contains("SCRAM"), "{offered}");
        reader.say(begin);
        let said = reader.line();
        assert!(said.contains("mechanism is not offered"), "{said}");
    }
    drop(client);
    server.stop();
}
