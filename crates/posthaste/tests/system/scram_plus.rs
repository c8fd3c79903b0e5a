//! SCRAM-SHA-256-PLUS by SMTP, IMAP and POP3: a proof is valid only on the TLS connection that it was made for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_smtp::sasl::scram::{ScramClient, TlsExporter};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::auth::printed;
use crate::imap::{CONFIG, TLS, address_of};
use crate::support::{PATIENCE, Server};
use crate::tls::{certify, tls12, tls13};

/// Commands and replies of a protocol.
struct Door {
    protocol: &'static str,
    /// Commands that begin TLS.
    upgrade: &'static [&'static str],
    /// The capability command, and the beginning of the last line of its answer.
    ask: [&'static str; 2],
    /// The offer over TLS 1.3, and over TLS 1.2.
    offers: [&'static str; 2],
    begin: &'static str,
    challenge: &'static str,
    /// Replies to a wrong proof, to an invalid first message, and to a login.
    replies: [&'static str; 3],
}

const DOORS: [Door; 3] = [
    Door {
        protocol: "smtp",
        upgrade: &["EHLO client.example.net", "STARTTLS"],
        ask: ["EHLO client.example.net", "250 "],
        offers: ["AUTH SCRAM-SHA-256-PLUS SCRAM-SHA-256 PLAIN LOGIN\r\n", "AUTH SCRAM-SHA-256 PLAIN LOGIN\r\n"],
        begin: "AUTH ",
        challenge: "334 ",
        replies: ["535 5.7.8", "501 5.5.2", "235 2.7.0"],
    },
    Door {
        protocol: "imap",
        upgrade: &["a STARTTLS"],
        ask: ["a CAPABILITY", "a OK"],
        offers: [" AUTH=SCRAM-SHA-256-PLUS AUTH=SCRAM-SHA-256 AUTH=PLAIN\r\n", " AUTH=SCRAM-SHA-256 AUTH=PLAIN\r\n"],
        begin: "b AUTHENTICATE ",
        challenge: "+ ",
        replies: ["b NO [AUTHENTICATIONFAILED]", "b BAD", "b OK [CAPABILITY"],
    },
    Door {
        protocol: "pop3",
        upgrade: &["STLS"],
        ask: ["CAPA", "."],
        offers: ["\r\nSASL SCRAM-SHA-256-PLUS SCRAM-SHA-256 PLAIN LOGIN\r\n", "\r\nSASL SCRAM-SHA-256 PLAIN LOGIN\r\n"],
        begin: "AUTH ",
        challenge: "+ ",
        replies: ["-ERR [AUTH]", "-ERR", "+OK 1 messages"],
    },
];

/// A client that sends and reads lines, over TLS.
struct Encrypted {
    door: &'static Door,
    stream: StreamOwned<ClientConnection, TcpStream>,
}

/// One line, and nothing after it: what follows may belong to a handshake.
fn line(stream: &mut impl Read) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut octet = [0];
        stream.read_exact(&mut octet).unwrap();
        line.push(octet[0]);
    }
    String::from_utf8(line).unwrap()
}

/// The last line of a reply.
fn last_line(stream: &mut impl Read) -> String {
    loop {
        let line = line(stream);
        if line.as_bytes().get(3) != Some(&b'-') {
            return line;
        }
    }
}

impl Encrypted {
    /// Connects, begins TLS and requests the capabilities.
    fn open(door: &'static Door, address: SocketAddr, config: &Arc<ClientConfig>) -> (Self, String) {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        last_line(&mut tcp);
        for command in door.upgrade {
            tcp.write_all(format!("{command}\r\n").as_bytes()).unwrap();
            last_line(&mut tcp);
        }
        let session = ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap();
        let mut client = Self { door, stream: StreamOwned::new(session, tcp) };
        let [ask, last] = door.ask;
        client.say(ask);
        let mut offered = String::new();
        loop {
            let line = client.line();
            let is_last = line.starts_with(last);
            offered += &line;
            if is_last {
                return (client, offered);
            }
        }
    }

    fn line(&mut self) -> String {
        line(&mut self.stream)
    }

    fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    /// Begins a mechanism with this message. Returns the reply.
    fn begin(&mut self, mechanism: &str, first: &str) -> String {
        self.say(&format!("{}{mechanism} {}", self.door.begin, STANDARD.encode(first)));
        self.line()
    }

    /// The text of a challenge; `None` for other lines.
    fn challenge(&self, line: &str) -> Option<String> {
        let base64 = line.strip_prefix(self.door.challenge)?.strip_suffix("\r\n")?;
        String::from_utf8(STANDARD.decode(base64).ok()?).ok()
    }

    /// The reply to the last step.
    fn show(&mut self, mechanism: &str, mut scram: ScramClient) -> String {
        let answer = self.begin(mechanism, &scram.first());
        let last = scram.last(&self.challenge(&answer).unwrap()).unwrap();
        self.say(&STANDARD.encode(last));
        let answer = self.line();
        let Some(shown) = self.challenge(&answer) else { return answer };
        assert!(scram.is_shown(&shown), "the server has the keys");
        self.say("");
        self.line()
    }

    /// The client's end of the channel binding.
    fn exporter(&self) -> TlsExporter {
        self.stream.conn.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", Some(b"")).unwrap()
    }
}

fn ann() -> ScramClient {
    ScramClient::new("ann", "password", None, "abcdef".to_owned())
}

#[test]
fn a_proof_is_good_for_its_tls_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = certify(dir.path());
    let passwords = printed(dir.path(), &["password", "--scram", "ann@example.org"], "password");
    std::fs::write(dir.path().join("passwords"), passwords).unwrap();
    let config = CONFIG.replacen("address = \"127.0.0.1:0\"\n", "address = \"127.0.0.1:0\"\nauth = \"offered\"\n", 1);
    let server = Server::start(dir.path(), &format!("{config}{TLS}"));
    let mut client = server.hello();
    client.deliver(&["ann@example.org"], b"Subject: x\r\n\r\nx\r\n");
    server.wait_for_mail("example.org", "ann", 1);
    for door in &DOORS {
        let address = if door.protocol == "smtp" { server.addresses[0] } else { address_of(&server, door.protocol) };
        let open = || Encrypted::open(door, address, &tls13(&certificate));
        let [wrong, ill_formed, taken] = door.replies;

        let (mut client, offered) = open();
        assert!(offered.contains(door.offers[0]), "{offered}");
        // Somebody in the middle has a connection of his own to each side, and passes on what they say.
        let (other, _) = open();
        let said = client.show("SCRAM-SHA-256-PLUS", ann().bound_to(other.exporter()));
        assert!(said.starts_with(wrong), "{said}");
        // He takes the mechanism out of the offer, and the client says that it saw none.
        let said = client.begin("SCRAM-SHA-256", "y,,n=ann,r=abcdef");
        assert!(said.starts_with(ill_formed), "{said}");
        let said = client.begin("SCRAM-SHA-256-PLUS", "p=tls-unique,,n=ann,r=abcdef");
        assert!(said.starts_with(ill_formed), "{said}");
        let bound = ann().bound_to(client.exporter());
        let said = client.show("SCRAM-SHA-256-PLUS", bound);
        assert!(said.starts_with(taken), "{said}");
        if door.protocol == "smtp" {
            let line = server.wait_for_log("logged in");
            assert!(line.contains("SCRAM-SHA-256-PLUS"), "{line}");
        }

        // A client that knows no channel binding.
        let said = open().0.show("SCRAM-SHA-256", ann());
        assert!(said.starts_with(taken), "{said}");

        // TLS 1.2 has none: a client that could do it says so, and is right.
        let (mut old, offered) = Encrypted::open(door, address, &tls12(&certificate));
        assert!(offered.contains(door.offers[1]) && !offered.contains("PLUS"), "{offered}");
        let said = old.begin("SCRAM-SHA-256-PLUS", "p=tls-exporter,,n=ann,r=abcdef");
        assert!(said.contains("echanism is not offered"), "{said}");
        let said = old.begin("SCRAM-SHA-256", "y,,n=ann,r=abcdef");
        assert!(old.challenge(&said).is_some(), "{said}");
    }
    drop(client);
    server.stop();
}
