//! Mail received by SMTP is read by POP3.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;

use crate::corpus::{corpus_dir, messages_in, to_crlf, to_wire};
use crate::imap::{Stream, TLS, run, serve};
use crate::support::{MESSAGE, PATIENCE};
use crate::tls::{certify, tls13};

/// A POP3 client that sends exactly the given commands.
pub(crate) struct Pop3 {
    stream: BufReader<Box<dyn Stream>>,
    tcp: TcpStream,
}

impl Pop3 {
    /// Connects and reads the greeting.
    fn open(address: SocketAddr) -> Self {
        Self::open_with(address, "")
    }

    /// Like [`open`](Self::open), with a header of a proxy.
    fn open_with(address: SocketAddr, header: &str) -> Self {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.write_all(header.as_bytes()).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        let stream = BufReader::new(Box::new(tcp.try_clone().unwrap()) as Box<dyn Stream>);
        let mut client = Self { stream, tcp };
        assert_eq!(client.line(), "+OK mx.example.org ready\r\n");
        client
    }

    pub fn logged_in(address: SocketAddr) -> Self {
        let mut client = Self::open(address);
        client.ok("USER ann@example.org");
        client.ok("PASS secret");
        client
    }

    fn encrypt(&mut self, config: &Arc<rustls::ClientConfig>) {
        let name = "localhost".try_into().unwrap();
        let mut session = rustls::ClientConnection::new(Arc::clone(config), name).unwrap();
        let mut tcp = self.tcp.try_clone().unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut tcp).unwrap();
        }
        self.stream = BufReader::new(Box::new(rustls::StreamOwned::new(session, tcp)));
    }

    fn octets(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        line
    }

    /// The next line, empty at the end.
    pub fn line(&mut self) -> String {
        String::from_utf8_lossy(&self.octets()).into_owned()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        self.line()
    }

    #[track_caller]
    pub fn ok(&mut self, command: &str) -> String {
        let answer = self.ask(command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
        answer
    }

    /// A response of several lines, without their stuffed dots.
    pub fn lines(&mut self, command: &str) -> Vec<u8> {
        self.ok(command);
        let mut all = Vec::new();
        loop {
            let line = self.octets();
            match &line[..] {
                b".\r\n" => return all,
                b"" => panic!("{command}: the connection ended"),
                [b'.', rest @ ..] => all.extend_from_slice(rest),
                line => all.extend_from_slice(line),
            }
        }
    }
}

const POPLIB: &str = r#"
import poplib, sys
port, files = int(sys.argv[1]), sys.argv[2:]
wrong = poplib.POP3("127.0.0.1", port, timeout=60)
wrong.user("ann@example.org")
try:
    wrong.pass_("secrets")
    raise SystemExit("a wrong password was accepted")
except poplib.error_proto as error:
    assert error.args[0].startswith(b"-ERR [AUTH]"), error
pop3 = poplib.POP3("127.0.0.1", port, timeout=60)
assert "TOP" in pop3.capa() and pop3.capa()["SASL"] == ["PLAIN", "LOGIN"], pop3.capa()
pop3.utf8()
pop3.user("ann@example.org")
pop3.pass_("secret")
count, octets = pop3.stat()
wanted = sorted(open(file, "rb").read().replace(b"\n", b"\r\n") for file in files)
assert (count, octets) == (len(files), sum(map(len, wanted))), (count, octets)
got = []
for line in pop3.list()[1]:
    number, size = map(int, line.split())
    lines = pop3.retr(number)[1]
    got.append(b"".join(line + b"\r\n" for line in lines))
    assert len(got[-1]) == size, (size, got[-1])
    header = pop3.top(number, 0)[1]
    assert header == lines[:len(header)] and header[-1] == b"", header
assert sorted(got) == wanted
ids = [line.split()[1] for line in pop3.uidl()[1]]
assert len(set(ids)) == count and all(len(uid) == 16 for uid in ids), ids
assert ids[0].startswith(b"00000001"), ids
pop3.dele(1)
pop3.rset()
assert pop3.quit().startswith(b"+OK")
"#;

#[test]
fn mail_is_read_by_poplib_and_curl_as_it_was_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "pop3");
    let mut client = server.hello();
    client.deliver(&["ann@example.org"], MESSAGE);
    client.deliver(&["ann@example.org"], b"Subject: dots\r\n\r\n..\r\n...\r\n.x\r\n");
    client.deliver(&["bob@example.org"], MESSAGE);
    let stored = server.wait_for_mail("example.org", "ann", 2);
    let new = dir.path().join("posthaste-data/mail/example.org/ann/Maildir/new");
    let mut python = Command::new("python3");
    python.args(["-", &address.port().to_string()]).args(stored.iter().map(|stored| new.join(&stored.name)));
    run(&mut python, POPLIB);
    let curl = |path: &str| {
        let mut curl = Command::new("curl");
        let url = format!("pop3://{address}/{path}");
        run(curl.args(["-sS", "--max-time", "60", &url, "-u", "ann@example.org:secret"]), "")
    };
    assert_eq!(curl("").lines().count(), 2);
    assert!((curl("1") + &curl("2")).contains("Subject: dots"));
    // Passwords are checked, and guesses counted, as for SMTP.
    let failed = server.wait_for_log("login failed");
    assert!(failed.contains("mechanism=\"POP3\"") && failed.contains("wrong password"), "{failed}");
    assert!(!server.log_text().contains("secret"), "a password is in the log");
    server.stop();
}

#[test]
fn every_message_of_the_corpus_is_retrieved_as_it_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "pop3");
    let mut smtp = server.hello();
    let mut accepted = 0;
    for file in messages_in(&corpus_dir()) {
        let octets = to_wire(std::fs::read(file).unwrap());
        accepted += usize::from(smtp.try_message("s@example.net", &["ann@example.org"], &octets).unwrap().code == 250);
    }
    let stored = server.wait_for_mail("example.org", "ann", accepted);
    let mut pop3 = Pop3::logged_in(address);
    let mut wanted: Vec<Vec<u8>> = stored.iter().map(|stored| to_crlf(&stored.bytes)).collect();
    let octets: usize = wanted.iter().map(Vec::len).sum();
    assert_eq!(pop3.ok("STAT"), format!("+OK {accepted} {octets}\r\n"));
    for number in 1..=accepted {
        let body = pop3.lines(&format!("RETR {number}"));
        // POP3 ends each message with CRLF.
        let at = wanted.iter().position(|wanted| {
            body.strip_prefix(&wanted[..])
                .is_some_and(|rest| rest.is_empty() || rest == b"\r\n" && !wanted.ends_with(rest))
        });
        wanted.swap_remove(
            at.unwrap_or_else(|| panic!("message {number} is not a file: {}", String::from_utf8_lossy(&body))),
        );
    }
    pop3.ok("QUIT");
    server.stop();
}

/// Clients that leave mail on the server know it by these.
#[test]
fn unique_ids_of_the_server_before_stay() {
    let dir = tempfile::tempdir().unwrap();
    let maildir = dir.path().join("posthaste-data/mail/example.org/ann/Maildir");
    ["tmp", "new", "cur"].iter().for_each(|sub| std::fs::create_dir_all(maildir.join(sub)).unwrap());
    for name in ["cur/1.a.h:2,S", "cur/2.b.h:2,S"] {
        std::fs::write(maildir.join(name), "Subject: x\n\nx\n").unwrap();
    }
    std::fs::write(maildir.join("dovecot-uidlist"), "3 V1700000000 N8\n3 Pold-one :1.a.h\n7 :2.b.h\n").unwrap();
    let (server, address) = serve(dir.path(), "", "pop3");
    let mut pop3 = Pop3::logged_in(address);
    let expected = format!("1 old-one\r\n2 {:08x}{:08x}\r\n", 7, 1_700_000_000);
    assert_eq!(String::from_utf8(pop3.lines("UIDL")).unwrap(), expected);
    assert_eq!(pop3.ok("UIDL 1"), "+OK 1 old-one\r\n");
    pop3.ok("QUIT");
    server.stop();
}

#[test]
fn a_session_that_breaks_off_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = serve(dir.path(), "", "pop3");
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 1);
    let mut pop3 = Pop3::logged_in(address);
    pop3.ok("DELE 1");
    drop(pop3);
    let mut pop3 = Pop3::logged_in(address);
    assert!(pop3.ok("STAT").starts_with("+OK 1 "));
    server.signal(Signal::TERM);
    assert_eq!(pop3.line(), "-ERR [SYS/TEMP] Server is shutting down\r\n");
    assert_eq!(pop3.line(), "");
    assert!(server.wait().success());
}

#[test]
fn stls_has_the_certificate_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = tls13(&certify(dir.path()));
    let (server, address) = serve(dir.path(), TLS, "pop3");
    let mut pop3 = Pop3::open(address);
    let offered = pop3.lines("CAPA");
    assert!(String::from_utf8_lossy(&offered).contains("STLS\r\n"));
    pop3.ok("STLS");
    pop3.encrypt(&certificate);
    assert!(!String::from_utf8_lossy(&pop3.lines("CAPA")).contains("STLS"));
    pop3.ok("AUTH PLAIN AGFubkBleGFtcGxlLm9yZwBzZWNyZXQ=");
    server.stop();
}

#[test]
fn a_proxy_that_names_this_machine_gets_no_password_without_tls() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let behind = "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"pop3\"\nproxy_protocol = true\nproxies = \"127.0.0.1\"\ntls = \"starttls\"\n";
    let (server, near) = serve(dir.path(), &format!("{behind}{TLS}"), "pop3");
    let told = server.banner.lines().rev();
    let mut told = told.filter_map(|line| line.trim().strip_prefix("pop3 ")?.trim().parse().ok());
    let proxied: SocketAddr = told.next().unwrap();
    assert_ne!(near, proxied);
    Pop3::open(near).ok("USER ann@example.org");
    let mut pop3 = Pop3::open_with(proxied, "PROXY TCP4 127.0.0.1 127.0.0.1 4000 110\r\n");
    assert_eq!(pop3.ask("USER ann@example.org"), "-ERR Passwords are taken with TLS only\r\n");
    assert!(String::from_utf8_lossy(&pop3.lines("CAPA")).contains("STLS\r\n"));
    server.stop();
}
