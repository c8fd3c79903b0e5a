//! Mail received by SMTP is read by IMAP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Signal;

use crate::auth::line;
use crate::pop3::Pop3;
use crate::support::{MESSAGE, PATIENCE, Server};
use crate::tls::{certify, tls13};

pub(crate) const CONFIG: &str = "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"imap\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"pop3\"\n[[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"bob\"]\n";
pub(crate) const TLS: &str = "[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n";

/// A server for ann with the password `secret` at a free port, and the address of its listener for `protocol`.
pub(crate) fn serve(dir: &Path, more: &str, protocol: &str) -> (Server, SocketAddr) {
    std::fs::write(dir.join("passwords"), line(dir, "ann@example.org", "secret")).unwrap();
    let server = Server::start(dir, &format!("{CONFIG}{more}"));
    let address = address_of(&server, protocol);
    (server, address)
}

/// Address of the listener for `protocol`.
pub(crate) fn address_of(server: &Server, protocol: &str) -> SocketAddr {
    let told = server.banner.lines().find_map(|line| line.trim().strip_prefix(&format!("{protocol} ")));
    let address = told.and_then(|told| told.trim().parse().ok());
    address.unwrap_or_else(|| panic!("no address: {}", server.banner))
}

pub(crate) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// An IMAP client that sends exactly the given commands.
pub struct Imap {
    stream: BufReader<Box<dyn Stream>>,
    tcp: TcpStream,
    tags: u32,
}

impl Imap {
    /// Connects and reads the greeting.
    fn open(address: SocketAddr) -> (Self, String) {
        let tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        let stream = BufReader::new(Box::new(tcp.try_clone().unwrap()) as Box<dyn Stream>);
        let mut client = Self { stream, tcp, tags: 0 };
        let greeting = client.line();
        (client, greeting)
    }

    pub fn logged_in(address: SocketAddr) -> Self {
        Self::logged_in_as(address, "ann@example.org")
    }

    pub fn logged_in_as(address: SocketAddr, login: &str) -> Self {
        let (mut client, _) = Self::open(address);
        client.ok(&format!("LOGIN {login} secret"));
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

    /// The next line, empty at the end.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Sends a command. Returns all output before the tagged line, and that line without its tag.
    pub fn command(&mut self, command: &str) -> (Vec<u8>, String) {
        self.tags += 1;
        let tag = format!("t{} ", self.tags);
        self.stream.get_mut().write_all(format!("{tag}{command}\r\n").as_bytes()).unwrap();
        let mut said = Vec::new();
        loop {
            let from = said.len();
            assert!(self.stream.read_until(b'\n', &mut said).unwrap() > 0, "{command}: the connection ended");
            if said[from..].starts_with(tag.as_bytes()) {
                let tagged = String::from_utf8_lossy(&said[from + tag.len()..]).trim_end().to_owned();
                said.truncate(from);
                return (said, tagged);
            }
        }
    }

    /// As [`logged_in`](Self::logged_in); `None` if the server has gone.
    pub fn attempt_login(address: SocketAddr) -> Option<Self> {
        let tcp = TcpStream::connect(address).ok()?;
        tcp.set_read_timeout(Some(PATIENCE)).ok()?;
        let stream = BufReader::new(Box::new(tcp.try_clone().ok()?) as Box<dyn Stream>);
        let mut client = Self { stream, tcp, tags: 0 };
        client.stream.read_until(b'\n', &mut Vec::new()).ok()?;
        let (_, tagged) = client.attempt("LOGIN ann@example.org secret")?;
        tagged.starts_with("OK").then_some(client)
    }

    /// Like [`command`](Self::command), as text; `None` if the connection ends before the tagged line.
    pub fn attempt(&mut self, command: &str) -> Option<(String, String)> {
        self.tags += 1;
        let tag = format!("t{} ", self.tags);
        self.stream.get_mut().write_all(format!("{tag}{command}\r\n").as_bytes()).ok()?;
        let mut said = Vec::new();
        loop {
            let from = said.len();
            self.stream.read_until(b'\n', &mut said).ok()?;
            if said.last() != Some(&b'\n') || said.len() == from {
                return None;
            }
            if said[from..].starts_with(tag.as_bytes()) {
                let tagged = String::from_utf8_lossy(&said[from + tag.len()..]).trim_end().to_owned();
                said.truncate(from);
                return Some((String::from_utf8_lossy(&said).into_owned(), tagged));
            }
        }
    }

    /// True if the server ends the session with BYE.
    pub fn ends_with_bye(&mut self) -> bool {
        // It may have ended it already.
        let _ = self.stream.get_mut().write_all(b"bye NOOP\r\n");
        let mut said = Vec::new();
        let _ = self.stream.read_to_end(&mut said);
        said.windows(5).any(|found| found == b"* BYE")
    }

    #[track_caller]
    pub fn ok(&mut self, command: &str) -> String {
        let (said, tagged) = self.command(command);
        assert!(tagged.starts_with("OK"), "{command}: {tagged}");
        String::from_utf8_lossy(&said).into_owned()
    }
}

/// Runs a program that is installed on test machines.
pub(crate) fn run(command: &mut Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const IMAPLIB: &str = r#"
import imaplib, sys
port, files = int(sys.argv[1]), sys.argv[2:]
wrong = imaplib.IMAP4("127.0.0.1", port, timeout=60)
try:
    wrong.login("ann@example.org", "secrets")
    raise SystemExit("a wrong password was accepted")
except imaplib.IMAP4.error as error:
    assert "AUTHENTICATIONFAILED" in str(error), error
imap = imaplib.IMAP4("127.0.0.1", port, timeout=60)
imap.login("ann@example.org", "secret")
status, names = imap.list()
assert status == "OK" and any(b"INBOX" in name for name in names), names
# It raises an error where SELECT says READ-ONLY.
status, (count,) = imap.select("INBOX", readonly=True)
assert (status, int(count)) == ("OK", len(files)), (status, count)
status, found = imap.uid("SEARCH", None, "ALL")
uids = found[0].split()
assert len(uids) == len(files)
wanted = sorted(open(file, "rb").read().replace(b"\n", b"\r\n") for file in files)
got = []
for uid in uids:
    status, data = imap.uid("FETCH", uid, "(RFC822.SIZE BODY.PEEK[])")
    assert status == "OK" and f"RFC822.SIZE {len(data[0][1])}".encode() in data[0][0], data[0][0]
    got.append(data[0][1])
    status, part = imap.uid("FETCH", uid, "(BODY.PEEK[]<10.20>)")
    assert part[0][1] == got[-1][10:30], part
assert sorted(got) == wanted
status, data = imap.fetch("1:*", "(FLAGS INTERNALDATE ENVELOPE BODYSTRUCTURE)")
assert status == "OK" and len(data) >= len(files), data
assert imap.status("INBOX", "(MESSAGES UNSEEN UIDNEXT)")[0] == "OK"
status, order = imap.uid("SORT", "(SUBJECT REVERSE DATE)", "UTF-8", "ALL")
assert status == "OK" and sorted(order[0].split()) == sorted(uids), order
status, order = imap.sort("REVERSE ARRIVAL", "UTF-8", "ALL")
assert (status, len(order[0].split())) == ("OK", len(files)), order
status, threads = imap.thread("REFERENCES", "UTF-8", "ALL")
assert (status, threads[0].count(b"(")) == ("OK", len(files)), threads
imap.close()
imap.logout()
"#;

#[test]
fn mail_is_read_by_imaplib_and_curl_as_it_was_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut client = server.hello();
    client.deliver(&["ann@example.org"], MESSAGE);
    let multipart = "Subject: two\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\none\r\n--b\r\n\
                     Content-Type: text/html\r\n\r\n<p>two</p>\r\n--b--\r\n";
    client.deliver(&["ann@example.org"], multipart.as_bytes());
    client.deliver(&["bob@example.org"], MESSAGE);
    let stored = server.wait_for_mail("example.org", "ann", 2);
    let new = dir.path().join("posthaste-data/mail/example.org/ann/Maildir/new");
    let mut python = Command::new("python3");
    python.args(["-", &address.port().to_string()]).args(stored.iter().map(|stored| new.join(&stored.name)));
    run(&mut python, IMAPLIB);
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "60", &format!("imap://{address}/INBOX"), "-u", "ann@example.org:secret"]);
    let told = run(curl.args(["-X", "FETCH 1:* (UID FLAGS ENVELOPE)"]), "");
    assert!(told.contains("UID 1 ") && told.contains("UID 2 ") && told.contains("\"hello\""), "{told}");
    // Passwords are checked, and guesses counted, as for SMTP.
    let failed = server.wait_for_log("login failed");
    assert!(failed.contains("mechanism=\"IMAP\"") && failed.contains("wrong password"), "{failed}");
    assert!(!server.log_text().contains("secret"), "a password is in the log");
    server.stop();
}

#[test]
fn an_open_session_hears_of_new_mail_and_of_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    // Before the first mail there is no Maildir, but an INBOX.
    assert!(imap.ok("SELECT INBOX").contains("* 0 EXISTS"));
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 1);
    while !imap.ok("NOOP").contains("* 1 EXISTS") {}
    assert!(imap.ok("FETCH 1 (UID FLAGS)").contains("UID 1"));
    server.signal(Signal::TERM);
    assert!(imap.line().starts_with("* BYE"));
    assert_eq!(imap.line(), "");
    assert!(server.wait().success());
}

/// UIDVALIDITY, the next UID, and each message's UID and flags with its subject, without `\Recent`, which belongs to a
/// session.
fn numbers(address: SocketAddr) -> (String, Vec<String>) {
    let mut imap = Imap::logged_in(address);
    let selected = imap.ok("SELECT INBOX");
    let code = |name: &str| selected.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    let told = imap.ok("UID FETCH 1:* (UID FLAGS BODY.PEEK[HEADER.FIELDS (SUBJECT)])");
    let told: Vec<String> = told
        .split("* ")
        .skip(1)
        .map(|message| message.replace("\r\n", " ").replace(" \\Recent", "").replace("\\Recent", ""))
        .collect();
    (format!("{} {}", code("UIDVALIDITY"), code("UIDNEXT")), told)
}

#[test]
fn uids_are_the_same_after_each_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let maildir = dir.path().join("posthaste-data/mail/example.org/ann/Maildir");
    // Dovecot was here before.
    for subdir in ["new", "cur", "tmp"] {
        std::fs::create_dir_all(maildir.join(subdir)).unwrap();
    }
    std::fs::write(maildir.join("cur/1.M2P3.old,S=14:2,S"), "Subject: old\n\n").unwrap();
    std::fs::write(maildir.join("dovecot-uidlist"), "3 V4711 N80 Gx\n77 :1.M2P3.old,S=14\n").unwrap();
    let mut before: Option<(String, Vec<String>)> = None;
    for round in 0..4 {
        let (mut server, address) = serve(dir.path(), "", "imap");
        let found = numbers(address);
        if let Some(before) = before.replace(found.clone()) {
            assert_eq!(before, found, "round {round}");
        } else {
            assert!(found.0.contains("UIDVALIDITY 4711") && found.1[0].contains("UID 77 "), "{found:?}");
        }
        server.hello().deliver(&["ann@example.org"], format!("Subject: {round}\r\n\r\n").as_bytes());
        // Another program puts a file there that is older than all others, and flags one.
        let other = maildir.join(format!("cur/{round}.M1P1.other:2,"));
        std::fs::write(&other, format!("Subject: other {round}\n\n")).unwrap();
        std::fs::File::open(&other).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let mut now = numbers(address);
        while now.1.len() < 2 * round + 3 {
            now = numbers(address);
        }
        std::fs::rename(&other, maildir.join(format!("cur/{round}.M1P1.other:2,F"))).unwrap();
        let subject = format!("Subject: other {round} ");
        while !now.1.iter().any(|told| told.contains("\\Flagged") && told.contains(&subject)) {
            now = numbers(address);
        }
        before = Some(now);
        server.signal(Signal::KILL);
        server.wait();
    }
}

#[test]
fn an_idle_session_hears_of_files_that_another_program_moves() {
    let dir = tempfile::tempdir().unwrap();
    let maildir = dir.path().join("posthaste-data/mail/example.org/ann/Maildir");
    for subdir in ["new", "cur", "tmp"] {
        std::fs::create_dir_all(maildir.join(subdir)).unwrap();
    }
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    imap.stream.get_mut().write_all(b"i IDLE\r\n").unwrap();
    assert!(imap.line().starts_with('+'));
    let mut hear = |expected: &str| {
        while imap.line() != expected {}
    };
    for number in 1..=3 {
        let [tmp, new] = ["tmp", "new"].map(|subdir| maildir.join(format!("{subdir}/{number}.M1P1.other")));
        std::fs::write(&tmp, "Subject: other\n\n").unwrap();
        std::fs::rename(tmp, new).unwrap();
        hear(&format!("* {number} EXISTS\r\n"));
    }
    std::fs::remove_file(maildir.join("new/2.M1P1.other")).unwrap();
    hear("* 2 EXPUNGE\r\n");
    drop(imap);
    server.stop();
}

/// Names in `cur` and `new` of ann's INBOX or one of its folders.
fn files(dir: &Path, folder: &str) -> Vec<String> {
    let maildir = dir.join("posthaste-data/mail/example.org/ann/Maildir").join(folder);
    let names =
        ["new", "cur"].into_iter().flat_map(|subdir| std::fs::read_dir(maildir.join(subdir)).into_iter().flatten());
    names.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// UIDs, flags and octets of a mailbox, and the list of mailboxes.
fn contents(address: SocketAddr, mailbox: &str) -> (String, String) {
    let mut imap = Imap::logged_in(address);
    let names = imap.ok("LIST \"\" *") + &imap.ok("LSUB \"\" *");
    imap.ok(&format!("EXAMINE {mailbox}"));
    let told = imap.ok("UID FETCH 1:* (FLAGS INTERNALDATE BODY.PEEK[])");
    (names, told.replace(" \\Recent", "").replace("\\Recent", ""))
}

/// Changes answered with OK survive a kill, and the files of the Maildir follow.
#[test]
fn changes_by_imap_survive_a_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, mut address) = serve(dir.path(), "", "imap");
    for subject in ["one", "two", "three", "four"] {
        server.hello().deliver(&["ann@example.org"], format!("Subject: {subject}\r\n\r\nx\r\n").as_bytes());
    }
    server.wait_for_mail("example.org", "ann", 4);
    for folder in [".Work/new", ".Work/cur", ".Work/tmp"] {
        std::fs::create_dir_all(dir.path().join("posthaste-data/mail/example.org/ann/Maildir").join(folder)).unwrap();
    }
    for round in 0..2 {
        let mut imap = Imap::logged_in(address);
        match round {
            0 => {
                imap.ok("SELECT INBOX");
                assert!(imap.ok("STORE 1 +FLAGS (\\Flagged $Work)").contains("* 1 FETCH (FLAGS (\\Flagged $Work"));
                assert!(imap.ok("UID FETCH 2 BODY[TEXT]").contains("\\Seen"));
                imap.ok("STORE 3 +FLAGS.SILENT (\\Deleted)");
                assert!(imap.ok("EXPUNGE").contains("* 3 EXPUNGE"));
            }
            _ => {
                imap.ok("SELECT INBOX");
                imap.ok("COPY 1:2 Work");
                assert!(imap.ok("UID MOVE 4 Work").contains("* OK [COPYUID "));
                let (said, tagged) =
                    imap.command("APPEND Work (\\Draft) \" 1-Feb-1994 21:52:25 -0800\" {5+}\r\nhe\no\n");
                assert!(said.is_empty() && tagged.starts_with("OK [APPENDUID "), "{tagged}");
            }
        }
        let mailbox = ["INBOX", "Work"][round];
        let before = contents(address, mailbox);
        server.signal(Signal::KILL);
        server.wait();
        (server, address) = serve(dir.path(), "", "imap");
        assert_eq!(contents(address, mailbox), before, "round {round}");
    }
    let (_, told) = contents(address, "Work");
    assert!(told.contains("FLAGS (\\Draft)") && told.contains("he\r\no\r\n"), "{told}");
    // The file names have the flags. After a kill, delivery makes missing files again; those of messages that are gone go with the next session.
    let mut imap = Imap::logged_in(address);
    assert!(imap.ok("SELECT INBOX").contains("* 2 EXISTS"));
    let flagged = |name: &String| name.split_once(":2,").is_some_and(|(_, letters)| letters.contains('F'));
    let deadline = Instant::now() + PATIENCE;
    while files(dir.path(), "").iter().filter(|name| flagged(name)).count() != 1 || files(dir.path(), "").len() != 2 {
        assert!(Instant::now() < deadline, "{:?}", files(dir.path(), ""));
        imap.ok("NOOP");
    }
    server.stop();
}

#[test]
fn messages_deleted_by_pop3_are_gone_by_imap() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    for subject in ["one", "two", "three"] {
        server.hello().deliver(&["ann@example.org"], format!("Subject: {subject}\r\n\r\n").as_bytes());
    }
    server.wait_for_mail("example.org", "ann", 3);
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let mut pop3 = Pop3::logged_in(address_of(&server, "pop3"));
    pop3.ok("DELE 1");
    pop3.lines("RETR 3");
    assert_eq!(pop3.ask("QUIT"), "+OK Bye; 1 removed\r\n");
    let told = imap.ok("NOOP");
    assert!(told.contains("* 1 EXPUNGE") && told.contains("* 2 FETCH (UID 3 FLAGS (\\Seen"), "{told}");
    let deadline = Instant::now() + PATIENCE;
    while files(dir.path(), "").len() != 2 {
        assert!(Instant::now() < deadline, "{:?}", files(dir.path(), ""));
        imap.ok("NOOP");
    }
    server.stop();
}

#[test]
fn starttls_is_offered_with_the_certificate_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = tls13(&certify(dir.path()));
    let (server, address) = serve(dir.path(), TLS, "imap");
    let (mut imap, greeting) = Imap::open(address);
    let offered = format!("{greeting}{}", imap.ok("CAPABILITY"));
    assert!(offered.contains("STARTTLS"), "{offered}");
    imap.ok("STARTTLS");
    imap.encrypt(&certificate);
    assert!(!imap.ok("CAPABILITY").contains("LOGINDISABLED"));
    imap.ok("LOGIN ann@example.org secret");
    // A name that may log in and has no mail here.
    std::fs::write(
        dir.path().join("passwords"),
        line(dir.path(), "ann@example.org", "secret") + &line(dir.path(), "app@else.example", "secret"),
    )
    .unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    let (mut other, _) = Imap::open(address);
    let (_, refused) = other.command("LOGIN app@else.example secret");
    assert!(refused.starts_with("NO"), "{refused}");
    server.stop();
}

#[test]
fn mail_is_received_where_mailboxes_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "", "imap").0.stop();
    let table = dir.path().join("posthaste-data/mailstore/meta.redb");
    std::fs::remove_file(&table).unwrap();
    std::fs::create_dir(&table).unwrap();
    let server = Server::start_as_it_is(dir.path());
    assert!(!server.banner.contains("imap "), "{}", server.banner);
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 1);
    server.wait_for_log("this stream of the spool is stuck");
    server.stop();
    std::fs::remove_dir(&table).unwrap();
    let server = Server::start_as_it_is(dir.path());
    assert!(server.banner.contains("imap "), "{}", server.banner);
    server.stop();
}

#[test]
fn open_sessions_end_with_their_login() {
    let dir = tempfile::tempdir().unwrap();
    let of_bob = line(dir.path(), "bob@example.org", "secret");
    let logins = |ann: &str| {
        let of_ann = line(dir.path(), "ann@example.org", ann);
        std::fs::write(dir.path().join("passwords"), of_ann + &of_bob).unwrap();
    };
    logins("secret");
    let server = Server::start(dir.path(), CONFIG);
    let (imap, pop3) = (address_of(&server, "imap"), address_of(&server, "pop3"));
    let (mut idle, mut at_rest, mut by_pop3) = (Imap::logged_in(imap), Imap::logged_in(imap), Pop3::logged_in(pop3));
    let mut other = Imap::logged_in_as(imap, "bob@example.org");
    idle.ok("SELECT INBOX");
    idle.stream.get_mut().write_all(b"i IDLE\r\n").unwrap();
    assert!(idle.line().starts_with('+'));
    // What changes nothing of the login ends nothing.
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    at_rest.ok("NOOP");
    by_pop3.ok("NOOP");
    logins("another");
    server.signal(Signal::HUP);
    for client in [&mut idle, &mut at_rest] {
        assert_eq!(client.line(), "* BYE Your login has changed, connect and log in again\r\n");
        assert_eq!(client.line(), "", "it is closed");
    }
    assert_eq!(by_pop3.line(), "-ERR [AUTH] Your login has changed, connect and log in again\r\n");
    other.ok("NOOP");
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann@example.org", "another")).unwrap();
    server.signal(Signal::HUP);
    assert!(other.line().starts_with("* BYE Your login has changed"));
    server.stop();
}
