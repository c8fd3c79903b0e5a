//! Logins at listeners: permissions with and without one.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_smtp::sasl::scram::ScramClient;
use rustix::process::Signal;

use crate::relay_events::wait_for;
use crate::relaying::{ANYWHERE, next_hop, queue, unused_port};
use crate::support::{Client, MESSAGE, Server, command};
use crate::tls::{certify, tls13};
use crate::trace::{Watching, trace};

/// Four listeners at addresses of their own: STARTTLS with logins required, TLS from the first byte, the loopback without TLS, and one that does not relay.
pub(crate) fn config(next: u16) -> String {
    format!(
        "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"required\"\nauth = \"required\"\n\
         [[listener]]\naddress = \"127.0.0.2:0\"\ntls = \"implicit\"\nauth = \"required\"\n\
         [[listener]]\naddress = \"127.0.0.3:0\"\ntls = \"off\"\nauth = \"offered\"\nlimits = {{ errors = 1000, idle_commands = 1000 }}\n\
         [[listener]]\naddress = \"127.0.0.4:0\"\ntls = \"off\"\nauth = \"offered\"\nrelay = false\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"bob\"]\naliases = {{ team = [\"ann\", \"bob\"] }}\n\
         [events]\nenabled = true\n[relay]\nport = {next}\nunreachable_secs = 1\n\
         [dns]\nservers = [\"127.0.0.1:9\"]\nhosts = {{ \"there.example\" = [\"127.0.0.1\"] }}\n"
    )
}

/// The line of a login for the file of passwords, as the program prints it.
pub fn line(dir: &Path, name: &str, password: &str) -> String {
    printed(dir, &["password", name], password)
}

pub(crate) fn printed(dir: &Path, args: &[&str], password: &str) -> String {
    let mut child = command(dir, args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{password}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Encodes in base64, without a crate.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]);
            out.push(if at <= chunk.len() { letter } else { '=' });
        }
    }
    out
}

/// [`MESSAGE`] with a From field of `author`.
pub fn written_by(author: &str) -> Vec<u8> {
    [format!("From: {author}\r\n").as_bytes(), MESSAGE].concat()
}

pub fn plain(user: &str, password: &str) -> String {
    format!("AUTH PLAIN {}", base64(format!("\0{user}\0{password}").as_bytes()))
}

pub(crate) fn at(server: &Server, ip: &str) -> SocketAddr {
    *server.addresses.iter().find(|at| at.ip().to_string() == ip).unwrap()
}

pub fn hello(at: SocketAddr) -> (Client, String) {
    let mut client = Client::open(at).unwrap();
    assert_eq!(client.reply().code, 220);
    let text = client.expect("EHLO client.example.net", 250).text;
    (client, text)
}

fn offers_auth(text: &str) -> bool {
    text.lines().any(|line| line == "AUTH PLAIN LOGIN")
}

#[test]
fn a_login_sends_anywhere_as_itself_and_nobody_else_does() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let certificate = tls13(&certify(dir.path()));
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann@example.org", "pass wörd")).unwrap();
    let server = Server::start(dir.path(), &config(next.addresses[0].port()));

    let (mut client, text) = hello(at(&server, "127.0.0.1"));
    assert!(!offers_auth(&text), "a password would be readable: {text}");
    client.expect(&plain("ann@example.org", "pass wörd"), 538);
    client.expect("STARTTLS", 220);
    client.encrypt(&certificate).unwrap();
    assert!(offers_auth(&client.expect("EHLO client.example.net", 250).text));
    assert!(client.expect("MAIL FROM:<ann@example.org>", 530).text.starts_with("5.7.0"));
    assert!(client.expect(&plain("ann@example.org", "password"), 535).text.starts_with("5.7.8"));
    client.expect("MAIL FROM:<ann@example.org>", 530);
    client.expect(&plain("ann@example.org", "pass wörd"), 235);
    client.expect("AUTH LOGIN", 503);
    for foreign in ["bob@example.org", "ann@there.example", "ann"] {
        assert!(client.expect(&format!("MAIL FROM:<{foreign}>"), 553).text.starts_with("5.7.1"));
    }
    client.expect("MAIL FROM:<ann+x@example.org> AUTH=ann@example.org", 250);
    client.expect("AUTH PLAIN", 503);
    client.expect("RSET", 250);
    let reply = client.try_message("team@example.org", &["ann@there.example"], &written_by("ann@example.org")).unwrap();
    assert_eq!(reply.code, 250, "{reply:?}");
    let text = next.wait_for_mail("there.example", "ann", 1)[0].text();
    assert!(text.contains("\tby mx.example.org with ESMTPSA id "), "{text}");
    let kept = server.wait_for_log("message kept");
    assert!(kept.contains("user=\"ann@example.org\"") && kept.contains("with=\"ESMTPSA\""), "{kept}");
    let failed = server.wait_for_log("login failed");
    assert!(failed.contains("user=\"ann@example.org\"") && failed.contains("why=\"wrong password\""), "{failed}");
    server.wait_for_log("logged in");
    assert!(!server.log_text().contains("pass w"), "a password is in the log");

    // LOGIN, with TLS from the first byte on.
    let mut client = Client::open(at(&server, "127.0.0.2")).unwrap();
    client.encrypt(&certificate).unwrap();
    assert_eq!(client.reply().code, 220);
    client.expect("EHLO client.example.net", 250);
    client.expect("AUTH LOGIN", 334);
    client.expect(&base64(b"ann"), 334);
    client.expect(&base64("pass wörd".as_bytes()), 235);
    let reply =
        client.try_message("ann@example.org", &["bob@there.example"], &written_by("Ann <ann+x@example.org>")).unwrap();
    assert_eq!(reply.code, 250, "{reply:?}");
    next.wait_for_mail("there.example", "bob", 1);
    drop(client);

    // Where logins are offered others may send here, and nowhere else; and a listener that does not relay does not for logins.
    let (mut client, text) = hello(at(&server, "127.0.0.3"));
    assert!(offers_auth(&text));
    client.deliver(&["bob@example.org"], MESSAGE);
    client.expect("MAIL FROM:<ann@example.org>", 250);
    client.expect("RCPT TO:<ann@there.example>", 550);
    let (mut other, _) = hello(at(&server, "127.0.0.4"));
    other.expect(&plain("ann@example.org", "pass wörd"), 235);
    other.expect("MAIL FROM:<ann@example.org>", 250);
    other.expect("RCPT TO:<ann@there.example>", 550);

    // Open transactions would be waited for.
    drop((client, other));
    server.stop();
    next.stop();
    let events = std::fs::read_to_string(dir.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    let is_to_ann = |line: &&str| line.contains("\"event\":\"received\"") && line.contains("\"<ann@there.example>\"");
    let received = events.lines().find(is_to_ann).unwrap();
    assert!(received.contains("\"with\":\"ESMTPSA\"") && received.contains("\"user\":\"ann@example.org\""), "{events}");
    // Logins, too, and what they were refused.
    let lines = |event: &str| events.lines().filter(|line| line.contains(event)).collect::<Vec<_>>();
    let logins = lines("\"event\":\"login\"");
    assert_eq!(logins.len(), 3, "{events}");
    for part in ["\"peer\":\"127.0.0.1:", "\"listener\":\"127.0.0.1:", "\"tls\":\"TLSv1.3\"", "\"mechanism\":\"PLAIN\""]
    {
        assert!(logins[0].contains(part) && logins[0].contains("\"user\":\"ann@example.org\""), "{part}: {events}");
    }
    let refused = lines("\"stage\":\"login\"");
    assert!(refused.len() == 1 && refused[0].contains("\"why\":\"wrong password\""), "{events}");
    assert!(refused[0].contains("\"event\":\"refused\"") && refused[0].contains("\"reply\":\"535 5.7.8 "), "{events}");
    let foreign = lines("\"reply\":\"553 ")[0];
    assert!(foreign.contains("\"user\":\"ann@example.org\"") && !events.contains("pass w"), "{events}");
}

#[test]
fn a_login_may_ask_to_be_told_of_success_and_nobody_else_may() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = tls13(&certify(dir.path()));
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann@example.org", "secret")).unwrap();
    let server = Server::start(dir.path(), &config(unused_port()));
    // The first listener wants TLS and a login, so the example of the banner would fail.
    assert!(!server.banner.contains("Try it:"), "{}", server.banner);
    let login = plain("ann@example.org", "secret");
    let offers = |client: &mut Client| {
        let text = client.expect("EHLO client.example.net", 250).text;
        text.lines().any(|line| line == "DSN")
    };
    // Where logins are offered, from the login on.
    let (mut client, text) = hello(at(&server, "127.0.0.3"));
    assert!(!text.contains("DSN"), "{text}");
    client.expect("MAIL FROM:<ann@example.org> RET=HDRS", 555);
    client.expect("MAIL FROM:<ann@example.org>", 250);
    client.expect("RCPT TO:<bob@example.org> NOTIFY=SUCCESS", 555);
    client.expect("RSET", 250);
    client.expect(&login, 235);
    assert!(offers(&mut client));
    client.expect("MAIL FROM:<ann@example.org> RET=HDRS ENVID=QQ1", 250);
    client.expect("RCPT TO:<bob@example.org> NOTIFY=SUCCESS", 250);
    client.expect("DATA", 354);
    client.expect("From: ann@example.org\r\nSubject: told\r\n\r\n.", 250);
    let told = server.wait_for_mail("example.org", "ann", 1)[0].text();
    assert!(told.contains("Action: delivered\n") && told.contains("Original-Envelope-Id: QQ1\n"), "{told}");
    // Where all have to log in, at once: clients look before they do. A login that does not let anybody relay is not offered it.
    let mut client = Client::open(at(&server, "127.0.0.2")).unwrap();
    client.encrypt(&certificate).unwrap();
    client.reply();
    assert!(offers(&mut client));
    client.expect("MAIL FROM:<ann@example.org> RET=HDRS", 530);
    client.expect(&login, 235);
    client.expect("MAIL FROM:<ann@example.org> RET=HDRS", 250);
    let (mut other, _) = hello(at(&server, "127.0.0.4"));
    other.expect(&login, 235);
    assert!(!offers(&mut other));
    other.expect("MAIL FROM:<ann@example.org> RET=HDRS", 555);
    drop((client, other));
    server.stop();
}

#[test]
fn mail_sent_by_a_login_is_found_by_its_name() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    certify(dir.path());
    let ann = line(dir.path(), "ann@example.org", "password").trim_end().to_owned() + ":senders=any\n";
    std::fs::write(dir.path().join("passwords"), ann + &line(dir.path(), "bob@example.org", "password")).unwrap();
    let server = Server::start(dir.path(), &config(next.addresses[0].port()));
    let login = |name: &str| {
        let (mut client, _) = hello(at(&server, "127.0.0.3"));
        client.expect(&plain(name, "wrong"), 535);
        client.expect(&plain(name, "password"), 235);
        client
    };
    let mut ann = login("ann");
    assert_eq!(ann.try_message("shop@elsewhere.example", &["ann@there.example"], MESSAGE).unwrap().code, 250);
    ann.expect("MAIL FROM:<bank@elsewhere.example>", 250);
    ann.expect("RCPT TO:<nobody@example.org>", 550);
    let mut bob = login("bob");
    assert_eq!(
        bob.try_message("bob@example.org", &["ann@there.example", "ann@example.org"], &written_by("bob@example.org"))
            .unwrap()
            .code,
        250
    );
    wait_for(dir.path(), "refused", "stage", "recipient");
    wait_for(dir.path(), "delivered", "from", "<shop@elsewhere.example>");
    wait_for(dir.path(), "delivered", "from", "<bob@example.org>");
    wait_for(dir.path(), "delivered", "mailbox", "example.org/ann/Maildir");
    drop((ann, bob));
    server.stop();
    next.stop();

    let trace = |args: &[&str]| trace(dir.path(), args);
    let (code, of_ann) = trace(&["--user", "Ann"]);
    assert_eq!(code, 0, "{of_ann}");
    let events = of_ann.lines().filter(|line| line.starts_with("  "));
    let kinds: Vec<&str> = events.filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(kinds, ["received", "delivered", "refused"], "{of_ann}");
    assert!(of_ann.contains("user ann@example.org, from <shop@elsewhere.example>"), "{of_ann}");
    assert!(of_ann.contains("from <bank@elsewhere.example>, to <nobody@example.org>"), "{of_ann}");
    let json = |name: &str| serde_json::from_str::<serde_json::Value>(&trace(&["--json", "--user", name]).1).unwrap();
    let of_bob = json("bob@example.org");
    assert_eq!(of_bob.as_array().unwrap().len(), 1, "{of_bob}");
    assert_eq!(of_bob[0]["events"][0]["user"], "bob@example.org");
    // The one here and the one there.
    let is_delivered = |event: &&serde_json::Value| event["event"] == "delivered";
    assert_eq!(of_bob[0]["events"].as_array().unwrap().iter().filter(is_delivered).count(), 2, "{of_bob}");
    assert_eq!(trace(&["--user", "eve"]).0, 1);
    assert_eq!(trace(&["--user", "bob", "--since", "2h"]).0, 0);
    assert_eq!(trace(&["--user", "bob", "bob@example.org"]).0, 2);
}

#[test]
fn a_reload_changes_passwords_and_keeps_an_unreadable_file() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let passwords = dir.path().join("passwords");
    std::fs::write(&passwords, line(dir.path(), "ann", "first")).unwrap();
    let server = Server::start(dir.path(), &config(9));
    let place = at(&server, "127.0.0.3");
    let (mut open, _) = hello(place);
    open.expect(&plain("ann", "first"), 235);

    std::fs::write(&passwords, "ann:first\n").unwrap();
    server.signal(Signal::HUP);
    let said = server.wait_for_log("cannot read the logins; keeping the old ones");
    let last = server.wait_for_log("configuration reloaded in part");
    assert!(last.contains("ERROR") && last.contains("kept=\"logins\""), "{last}");
    assert!(said.contains("passwords:1: not a hash of Argon2"), "{said}");
    hello(place).0.expect(&plain("ann", "first"), 235);

    std::fs::write(&passwords, line(dir.path(), "bob", "second")).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log_again("configuration reloaded", 2);
    hello(place).0.expect(&plain("bob", "second"), 235);
    hello(place).0.expect(&plain("ann", "first"), 535);
    open.expect("NOOP", 250);
    let reply = open.expect("MAIL FROM:<ann@example.org>", 421);
    assert!(reply.text.starts_with("4.7.0 Your login has changed"), "{reply:?}");
    assert!(open.try_reply().is_err(), "it is closed");

    // Who has a password that was stolen loses it by another one, also where the thief has a session.
    let [mut thief, mut other] = [(); 2].map(|()| hello(place).0);
    for client in [&mut thief, &mut other] {
        client.expect(&plain("bob", "second"), 235);
        client.expect("MAIL FROM:<bob@example.org>", 250);
    }
    other.expect("RCPT TO:<ann@there.example>", 250);
    std::fs::write(&passwords, line(dir.path(), "bob", "third")).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log_again("configuration reloaded", 3);
    thief.expect("RCPT TO:<ann@there.example>", 421);
    other.expect("DATA", 354);
    other.send(MESSAGE).unwrap();
    other.expect(".", 421);
    drop((open, thief, other));
    server.stop();

    std::fs::remove_file(&passwords).unwrap();
    let output = command(dir.path(), &["serve"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("auth.file: passwords: No such file"), "{text}");
    let output = command(dir.path(), &["config", "check"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("auth.file: passwords: No such file"), "{text}");
}

#[test]
fn what_is_not_well_formed_is_refused_and_the_session_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann", "secret")).unwrap();
    let server = Server::start(dir.path(), &config(9));
    let (mut client, _) = hello(at(&server, "127.0.0.3"));
    client.expect("AUTH", 501);
    client.expect("AUTH CRAM-MD5", 504);
    client.expect("AUTH PLAIN ?", 501);
    client.expect("AUTH PLAIN =", 501);
    client.expect("AUTH PLAIN AA==", 501);
    client.expect("AUTH PLAIN", 334);
    client.expect("*", 501);
    client.expect("AUTH LOGIN", 334);
    client.expect("not base64!", 501);
    client.expect("AUTH LOGIN", 334);
    client.expect(&base64(b"ann"), 334);
    client.expect("*", 501);
    client.expect(&format!("AUTH PLAIN {}", "A".repeat(20_000)), 500);
    client.expect("AUTH PLAIN", 334);
    client.expect(&"A".repeat(20_000), 500);
    client.expect("NOOP", 250);
    // The name that it wants to act for.
    client.expect(&format!("AUTH PLAIN {}", base64(b"bob\0ann\0secret")), 535);
    client.expect(&plain("ann", ""), 501);
    client.expect(&plain("ann", "secret"), 235);
    // What came in one piece with the command is a command, and no part of a password.
    let (mut client, _) = hello(at(&server, "127.0.0.3"));
    client.send(format!("{}\r\nNOOP\r\n", plain("ann", "secret")).as_bytes()).unwrap();
    assert_eq!((client.reply().code, client.reply().code), (235, 250));
    drop(client);
    server.stop();
}

#[test]
fn no_password_is_shown_and_a_queue_needs_no_networks() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann", "secret")).unwrap();
    let listener = "[auth]\nfile = \"passwords\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nauth = \"offered\"\n";
    let server = Server::start(dir.path(), listener);
    // Nothing waits: exit status 1.
    let (code, text) = queue(dir.path(), &["summary"]);
    assert!(code == 1 && text.contains("0 of 10000000 recipients wait"), "{code} {text}");
    let mut watching = Watching::start(dir.path(), &server, &[]);
    let mut client = server.hello();
    client.expect(&plain("ann", "wrong"), 535);
    client.expect("AUTH LOGIN", 334);
    client.expect(&base64(b"ann"), 334);
    client.expect(&base64(b"secret"), 235);
    client.expect("NOOP end", 250);
    let said: Vec<String> =
        watching.until("in", "NOOP end").iter().map(|line| line["line"].as_str().unwrap().to_owned()).collect();
    let from = said.iter().position(|line| line.starts_with("AUTH PLAIN")).unwrap();
    let expected = ["AUTH PLAIN …", "535", "AUTH LOGIN", "334 …", "…", "334 …", "…", "235", "NOOP end"];
    let shown: Vec<&str> = said[from..].iter().map(String::as_str).collect();
    assert_eq!(shown.len(), expected.len(), "{said:?}");
    for (shown, expected) in shown.iter().zip(expected) {
        assert!(shown.starts_with(expected) && (expected.len() > 3 || !shown.contains("c2VjcmV0")), "{said:?}");
    }
    drop((client, watching));
    server.stop();
}

/// Logs in by SCRAM-SHA-256. Returns the code of the server's last reply.
pub(crate) fn scram(client: &mut Client, user: &str, password: &str) -> u16 {
    let said = |text: &str| String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
    let mut scram = ScramClient::new(user, password, None, "abcdef".to_owned());
    let first = client.expect(&format!("AUTH SCRAM-SHA-256 {}", STANDARD.encode(scram.first())), 334);
    let last = scram.last(&said(&first.text)).unwrap();
    assert!(!last.contains(password));
    let shown = client.command(&STANDARD.encode(last));
    if shown.code != 334 {
        return shown.code;
    }
    assert!(scram.is_shown(&said(&shown.text)), "the server has the keys");
    client.command("").code
}

#[test]
fn a_login_with_keys_shows_its_password_by_scram() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let passwords = dir.path().join("passwords");
    let ann = printed(dir.path(), &["password", "--scram", "ann@example.org"], "password");
    std::fs::write(&passwords, format!("{ann}{}", line(dir.path(), "bob@example.org", "password"))).unwrap();
    let server = Server::start(dir.path(), &config(unused_port()));
    let (mut client, text) = hello(at(&server, "127.0.0.3"));
    assert!(text.lines().any(|line| line == "AUTH SCRAM-SHA-256 PLAIN LOGIN"), "{text}");
    for (user, password) in [("ann", "passwort"), ("bob", "password"), ("nobody", "password")] {
        assert_eq!(scram(&mut client, user, password), 535, "{user}");
    }
    assert_eq!(scram(&mut client, "ANN", "password"), 235);
    client.expect("MAIL FROM:<bob@example.org>", 553);
    client.expect("MAIL FROM:<ann@example.org>", 250);
    client.expect("RCPT TO:<ann@there.example>", 250);
    let log = server.wait_for_log("logged in");
    assert!(log.contains("user=\"ann@example.org\"") && log.contains("mechanism=\"SCRAM-SHA-256\""), "{log}");
    let (mut other, _) = hello(at(&server, "127.0.0.3"));
    other.expect(&plain("ann", "password"), 235);

    // Other keys make another login, although the hash is the same; without keys there is no SCRAM.
    std::fs::write(&passwords, ann.split(":scram=").next().unwrap()).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    client.expect("RSET", 250);
    client.expect("MAIL FROM:<ann@example.org>", 421);
    assert!(offers_auth(&hello(at(&server, "127.0.0.3")).1));
}
