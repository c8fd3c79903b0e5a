//! Signatures of outgoing mail, verified at the next hop.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use posthaste_dkim::KeyRecord;
use serde_json::{Value, json};

use crate::auth::{hello, line, plain};
use crate::corpus::{corpus_dir, messages_in, to_crlf, to_wire};
use crate::http::{ask, page_of, token};
use crate::inject::{JSON, request, try_ask};
use crate::relaying::{list, queue, unused_port, wait_for_queue};
use crate::support::{Client, Server, Stored, command};

#[path = "../../../dkim/tests/verifier/mod.rs"]
mod verifier;

const THERE: &str = "host_name = \"mx.there.example\"\n[[listener]]\naddress = \"127.0.0.1:PORT\"\n\
                     [[domain]]\nname = \"there.example\"\n";

/// Logins from 127.0.0.1, and a network that relays.
const HERE: &str = "host_name = \"mx.here.example\"\n[auth]\nfile = \"passwords\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\nauth = \"offered\"\n[[listener]]\naddress = \"127.0.0.2:0\"\nrelay = true\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
    [[domain]]\nname = \"here.example\"\nusers = [\"ann\", \"cid\"]\n\
    [relay]\nport = PORT\nlocal_users = true\nunreachable_secs = 1\n\
    [dns]\nservers = [\"127.0.0.1:9\"]\nhosts = { \"there.example\" = [\"127.0.0.1\"] }\n";

struct Rig {
    here: tempfile::TempDir,
    server: Server,
    config: String,
    _there: tempfile::TempDir,
    next: Server,
}

impl Rig {
    fn start(users: &str) -> Self {
        Self::start_with(users, "")
    }

    /// `more`: sections of the configuration.
    fn start_with(users: &str, more: &str) -> Self {
        Self::start_as(users, &format!("{HERE}{more}"))
    }

    /// `config`: that of the server which signs.
    fn start_as(users: &str, config: &str) -> Self {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let port = unused_port().to_string();
        let next = Server::start(there.path(), &(THERE.replace("PORT", &port) + users));
        let logins = [
            line(here.path(), "ann@here.example", "secret"),
            line(here.path(), "cid@here.example", "secret").trim_end().to_owned() + ":senders=any\n",
        ];
        std::fs::write(here.path().join("passwords"), logins.concat()).unwrap();
        let config = config.replace("PORT", &port);
        let server = Server::start(here.path(), &config);
        Self { here, server, config, _there: there, next }
    }

    fn login(&self, user: &str) -> Client {
        let (mut client, _) = hello(self.server.addresses[0]);
        client.expect(&plain(&format!("{user}@here.example"), "secret"), 235);
        client
    }

    /// The one message that has arrived for a user there.
    fn arrived(&self, user: &str) -> Vec<u8> {
        to_crlf(&self.next.wait_for_mail("there.example", user, 1)[0].bytes)
    }

    fn stop(self) {
        self.server.stop();
        self.next.stop();
    }
}

fn dkim(dir: &Path, args: &[&str]) -> Value {
    let output = command(dir, &[&["dkim"], args, &["--json"]].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn records(keys: &Value) -> Vec<KeyRecord> {
    let keys = keys.as_array().unwrap();
    keys.iter().map(|key| KeyRecord::parse(key["record"]["value"].as_str().unwrap()).unwrap()).collect()
}

fn text(message: &[u8]) -> String {
    String::from_utf8_lossy(message).into_owned()
}

/// Checks that each record verifies one signature, with the field of the other removed.
fn assert_signed(message: &[u8], records: &[KeyRecord]) {
    // Others may have signed it before.
    let count = text(message).matches("d=here.example;").count();
    assert_eq!(count, records.len(), "{}", text(message));
    for record in records {
        let of = format!("a={}-sha256;", record.algorithm.name());
        let (header, body) = verifier::split(message);
        let (mut kept, mut is_kept) = (Vec::new(), true);
        for line in header.split_inclusive(|octet| *octet == b'\n') {
            if !line.starts_with(b"\t") && !line.starts_with(b" ") {
                is_kept = !line.starts_with(b"DKIM-Signature: ") || text(line).contains(&of);
            }
            if is_kept {
                kept.extend_from_slice(line);
            }
        }
        kept.extend_from_slice(b"\r\n");
        kept.extend_from_slice(body);
        assert_eq!(verifier::verify(&kept, record), Ok(()), "{of} {}", text(message));
    }
}

fn send(client: &mut Client, from: &str, to: &str, message: &str) -> (u16, String) {
    let reply = client.try_message(from, &[&format!("{to}@there.example")], message.as_bytes()).unwrap();
    (reply.code, reply.text)
}

#[test]
fn mail_of_each_door_is_signed_once_and_verifies() {
    let rig = Rig::start("users = \"any\"\n");
    let made = dkim(rig.here.path(), &["new", "Here.Example"]);
    assert_eq!(made["reloaded"], true);
    let records = records(&made["made"]);
    assert_eq!(records.len(), 2);
    let mut ann = rig.login("ann");
    let message = "From: Ann <ann@HERE.example>\r\nBcc: x@y\r\nTo: a@there.example\r\nSubject: one\r\n two  \r\n\r\n body  text \r\n\r\n\r\n";
    assert_eq!(send(&mut ann, "ann@here.example", "login", message).0, 250);
    let arrived = rig.arrived("login");
    assert_signed(&arrived, &records);
    // From the top: signatures, Received, then Date and Message-ID, which are signed.
    let at = |name: &str| text(&arrived).find(&format!("\r\n{name}: ")).unwrap();
    let received = text(&arrived).rfind("\r\nReceived: ").unwrap();
    assert!(
        at("DKIM-Signature") < received && received < at("Date") && at("Message-ID") < at("From"),
        "{}",
        text(&arrived)
    );
    assert!(text(&arrived).contains("Date:Date:") || text(&arrived).replace("\r\n\t", "").contains("Date:Date:"));

    let (mut relaying, _) = hello(rig.server.addresses[1]);
    assert_eq!(send(&mut relaying, "x@else.example", "network", "From: ann@here.example\r\n\r\nx\r\n").0, 250);
    assert_signed(&rig.arrived("network"), &records);
    // Not all verifiers read a field with a blank before its colon.
    let odd = "From : ann@here.example\r\nTo\t: a@there.example\r\nX-Odd : x\r\n\r\nx\r\n";
    assert_eq!(send(&mut ann, "ann@here.example", "odd", odd).0, 250);
    let arrived = rig.arrived("odd");
    assert_signed(&arrived, &records);
    assert!(
        text(&arrived).contains("\r\nFrom: ann@here.example\r\nTo: a@there.example\r\nX-Odd: x\r\n"),
        "{}",
        text(&arrived)
    );
    let large = format!("From: ann@here.example\r\n\r\n{}", "0123456789 abcdef \r\n".repeat(1 << 17));
    assert_eq!(send(&mut relaying, "ann@here.example", "large", &large).0, 250);
    assert_signed(&rig.arrived("large"), &records);

    let mut child = command(rig.here.path(), &["sendmail", "-f", "ann@here.example", "program@there.example"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"From: cron@here.example\n\nx\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_signed(&rig.arrived("program"), &records);

    let secret = token(rig.here.path(), "shop", "inject");
    let content = json!({ "from": { "email": "ann@here.example" }, "subject": "grüße", "text_body": "größer\n" });
    for (user, content) in [("built", content), ("raw", "From: ann@here.example\n\nx\n\n".into())] {
        let email = format!("{user}@there.example");
        let body =
            json!({ "envelope_sender": "ann@here.example", "recipients": [{ "email": email }], "content": content });
        let (_, answer) = try_ask(page_of(&rig.server), &request(&secret, JSON, &body.to_string())).unwrap();
        assert_eq!(answer["success_count"], 1, "{answer}");
        assert_signed(&rig.arrived(user), &records);
    }
    drop((ann, relaying));
    rig.stop();
}

#[test]
fn mail_that_is_nobodys_own_is_not_signed() {
    let rig = Rig::start("users = \"any\"\n");
    dkim(rig.here.path(), &["new", "here.example", "--keys", "ed25519"]);
    let (mut ann, mut cid) = (rig.login("ann"), rig.login("cid"));
    let (mut relaying, _) = hello(rig.server.addresses[1]);
    let resent = "Resent-From: ann@here.example\r\nFrom: ann@here.example\r\n\r\nx\r\n";
    assert_eq!(send(&mut ann, "ann@here.example", "resent", resent).0, 250);
    assert_eq!(send(&mut cid, "cid@here.example", "any", "From: ann@here.example\r\n\r\nx\r\n").0, 250);
    assert_eq!(send(&mut cid, "cid@here.example", "own", "From: cid@here.example\r\n\r\nx\r\n").0, 250);
    assert_eq!(send(&mut relaying, "x@else.example", "else", "From: x@sub.here.example\r\n\r\nx\r\n").0, 250);
    assert_eq!(
        send(&mut relaying, "x@else.example", "two", "From: a@here.example, b@here.example\r\n\r\nx\r\n").0,
        250
    );
    for (user, signed) in [("resent", false), ("any", false), ("own", true), ("else", false), ("two", false)] {
        let arrived = text(&rig.arrived(user));
        assert_eq!(arrived.contains("DKIM-Signature: "), signed, "{user}: {arrived}");
    }
    // A stranger's mail for a mailbox here, whoever it says that it is from.
    let (mut stranger, _) = hello(rig.server.addresses[0]);
    stranger.deliver(&["ann@here.example"], b"From: ann@here.example\r\n\r\nx\r\n");
    let kept: &Stored = &rig.server.wait_for_mail("here.example", "ann", 1)[0];
    assert!(!kept.text().contains("DKIM-Signature"), "{}", kept.text());
    drop((ann, cid, relaying, stranger));
    rig.stop();
}

#[test]
fn programs_of_this_machine_sign_unless_that_is_turned_off() {
    let rig = Rig::start_with("users = \"any\"\n", "[dkim]\nlocal_users_sign = false\n");
    dkim(rig.here.path(), &["new", "here.example", "--keys", "ed25519"]);
    let mut child = command(rig.here.path(), &["sendmail", "-f", "ann@here.example", "program@there.example"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"From: cron@here.example\n\nx\n").unwrap();
    assert!(child.wait().unwrap().success());
    let arrived = text(&rig.arrived("program"));
    assert!(!arrived.contains("DKIM-Signature: "), "{arrived}");
    // A login signs all the same.
    let mut ann = rig.login("ann");
    assert_eq!(send(&mut ann, "ann@here.example", "login", "From: ann@here.example\r\n\r\nx\r\n").0, 250);
    assert!(text(&rig.arrived("login")).contains("DKIM-Signature: "));
    drop(ann);
    rig.stop();
}

#[test]
fn notices_of_the_server_are_signed_by_a_domain_above_it() {
    let rig = Rig::start("users = [\"bob\"]\n");
    let made = dkim(rig.here.path(), &["new", "here.example", "--keys", "rsa"]);
    let mut ann = rig.login("ann");
    assert_eq!(send(&mut ann, "ann@here.example", "nobody", "From: ann@here.example\r\n\r\nx\r\n").0, 250);
    let notice = to_crlf(&rig.server.wait_for_mail("here.example", "ann", 1)[0].bytes);
    assert!(text(&notice).contains("From: Mail Delivery System <MAILER-DAEMON@mx.here.example>"), "{}", text(&notice));
    // The returned header has the signature of the message.
    let (header, body) = verifier::split(&notice);
    assert!(text(header).contains(" d=here.example; "), "{}", text(header));
    let records = records(&made["made"]);
    assert_eq!(verifier::verify(&[header, &b"\r\n"[..], body].concat(), &records[0]), Ok(()));
    drop(ann);
    rig.stop();
}

#[test]
fn the_next_key_signs_once_it_is_activated() {
    let rig = Rig::start("users = \"any\"\n");
    let dir = rig.here.path();
    let first = records(&dkim(dir, &["new", "here.example", "--keys", "ed25519"])["made"]);
    let next = records(&dkim(dir, &["rotate", "here.example"])["next"]);
    let mut ann = rig.login("ann");
    let message = "From: ann@here.example\r\n\r\nx\r\n";
    assert_eq!(send(&mut ann, "ann@here.example", "before", message).0, 250);
    assert_signed(&rig.arrived("before"), &first);
    let early = command(dir, &["dkim", "activate", "here.example"]).output().unwrap();
    let why = String::from_utf8(early.stderr).unwrap();
    assert!(!early.status.success() && why.contains("._domainkey.here.example is not known"), "{why}");
    let keys = dkim(dir, &["activate", "here.example", "--force"]);
    let old = keys["keys"].as_array().unwrap().iter().find(|key| key["state"] == "old").unwrap();
    // Five days in the queue, and two.
    assert_eq!(old["record_needed_until"].as_u64().unwrap() - old["since"].as_u64().unwrap(), 7 * 86_400);
    assert_eq!(send(&mut ann, "ann@here.example", "after", message).0, 250);
    assert_signed(&rig.arrived("after"), &next);
    let output = command(dir, &["dkim", "list", "here.example"]).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    assert!(listed.contains("  ed25519  old since ") && listed.contains("its record is needed until "), "{listed}");
    assert!(listed.contains("._domainkey.here.example.  TXT  \"v=DKIM1; k=ed25519; p="), "{listed}");
    for (args, why) in [
        (&["new", "here.example"][..], "here.example has keys"),
        (&["rotate", "else.example"], "else.example has no key"),
        (&["activate", "here.example"], "here.example has no next key"),
        (&["activate", "here.example", "--force"], "here.example has no next key"),
        (&["new", "no domain"], "`no domain` is not a domain"),
    ] {
        let output = command(dir, &[&["dkim"], args].concat()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    }
    drop(ann);
    rig.stop();
}

#[test]
fn an_unreadable_key_defers_the_mail_of_its_domain_alone() {
    let rig = Rig::start("users = \"any\"\n");
    let dir = rig.here.path();
    let made = dkim(dir, &["new", "here.example", "--keys", "ed25519"]);
    dkim(dir, &["new", "else.example", "--keys", "ed25519"]);
    let file = dir.join(made["made"][0]["file"].as_str().unwrap());
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(&file, "state: active\n").unwrap();
    rig.server.reload(&rig.config);
    rig.server.wait_for_log("a DKIM key cannot be used");
    let (mut relaying, _) = hello(rig.server.addresses[1]);
    let message = "From: ann@here.example\r\n\r\nx\r\n";
    let mut reply = send(&mut relaying, "ann@here.example", "waits", message);
    // The reload is in force after its line.
    for _ in 0..1000 {
        if reply.0 != 250 {
            break;
        }
        reply = send(&mut relaying, "ann@here.example", "waits", message);
    }
    assert_eq!(reply, (451, "4.7.5 Mail of this domain cannot be signed now, try again later".to_owned()));
    let told = rig.server.wait_for_log("posthaste dkim list");
    assert!(told.contains("here.example"), "{told}");
    assert_eq!(send(&mut relaying, "ann@else.example", "else", "From: ann@else.example\r\n\r\nx\r\n").0, 250);
    assert!(text(&rig.arrived("else")).contains("DKIM-Signature: "));
    rig.server.reload(&format!("{}[dkim]\nunsigned = true\n", rig.config));
    rig.server.wait_for_log_again("a DKIM key cannot be used", 2);
    let mut reply = send(&mut relaying, "ann@here.example", "unsigned", message);
    // The reload is in force after its line.
    for _ in 0..1000 {
        if reply.0 == 250 {
            break;
        }
        reply = send(&mut relaying, "ann@here.example", "unsigned", message);
    }
    assert_eq!(reply.0, 250);
    assert!(!text(&rig.arrived("unsigned")).contains("DKIM-Signature: "));
    drop(relaying);
    rig.stop();
}

#[test]
fn an_author_in_u_labels_has_the_key_of_its_a_labels() {
    let rig = Rig::start("users = \"any\"\n");
    dkim(rig.here.path(), &["new", "b\u{fc}cher.example", "--keys", "ed25519"]);
    let (mut relaying, _) = hello(rig.server.addresses[1]);
    for (user, domain) in [("u", "B\u{fc}cher.example"), ("a", "xn--bcher-kva.example")] {
        let message = format!("From: ann@{domain}\r\n\r\nx\r\n");
        assert_eq!(send(&mut relaying, "x@else.example", user, &message).0, 250);
        let arrived = text(&rig.arrived(user));
        assert!(arrived.contains("d=xn--bcher-kva.example;"), "{arrived}");
        assert!(arrived.contains(&format!("\r\nFrom: ann@{domain}\r\n")), "it stays as it came: {arrived}");
    }
    drop(relaying);
    rig.stop();
}

const GENERIC: &str = "[relay.maps]\ngeneric = { \"@inside.example\" = \"@here.example\" }\n";

#[test]
fn mail_whose_header_a_map_changes_is_signed_as_it_leaves() {
    let rig = Rig::start_with("users = \"any\"\n", GENERIC);
    let records = records(&dkim(rig.here.path(), &["new", "here.example"])["made"]);
    let (mut relaying, _) = hello(rig.server.addresses[1]);
    let mut cid = rig.login("cid");
    let from = |author: &str, to: &str| format!("From: {author}\r\nTo: {to}\r\nSubject: x\r\n\r\nbody\r\n");
    let large = from("ann@inside.example", "x") + &"0123456789 abcdef \r\n".repeat(1 << 17);
    for (user, message) in [
        // Its domain has no key here before the map, and has one behind it.
        ("author", from("Ann <ann@inside.example>", "author@there.example")),
        // It was signed when it was accepted, which holds no more.
        ("other", from("ann@here.example", "other@there.example, bob@inside.example")),
        ("same", from("ann@here.example", "same@there.example")),
        ("large", large),
    ] {
        assert_eq!(send(&mut relaying, "ann@inside.example", user, &message).0, 250);
        let arrived = rig.arrived(user);
        assert_signed(&arrived, &records);
        assert!(!text(&arrived).contains("inside.example"), "{}", text(&arrived));
    }
    // Who may not sign what comes in signs nothing that leaves.
    assert_eq!(send(&mut cid, "cid@here.example", "any", &from("ann@inside.example", "x")).0, 250);
    assert_eq!(send(&mut relaying, "x@else.example", "else", &from("x@else.example", "ann@inside.example")).0, 250);
    for (user, changed) in [("any", "From: ann@here.example"), ("else", "To: ann@here.example")] {
        let arrived = text(&rig.arrived(user));
        assert!(arrived.contains(changed) && !arrived.contains("DKIM-Signature"), "{user}: {arrived}");
    }
    drop((relaying, cid));
    rig.stop();
}

#[test]
fn mail_that_leaves_in_parts_is_signed_once_and_for_somebody() {
    let single = HERE.replace("[relay]\n", "[relay]\nrecipients_per_message = 1\n") + GENERIC;
    let rig = Rig::start_as("users = \"any\"\n", &single);
    let dir = rig.here.path();
    let records = records(&dkim(dir, &["new", "here.example", "--keys", "ed25519"])["made"]);
    let secret = token(dir, "all", "metrics");
    let signed = || {
        let address = page_of(&rig.server);
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        let (_, text) = ask(address, &format!("{head}Authorization: Bearer {secret}\r\n\r\n"));
        let line = text.lines().find_map(|line| line.strip_prefix("posthaste_dkim_signed_total ")).unwrap().to_owned();
        line.parse::<usize>().unwrap()
    };
    let (mut relaying, _) = hello(rig.server.addresses[1]);
    let message = b"From: ann@inside.example\r\n\r\nx\r\n";
    let to = ["a@there.example", "b@there.example", "c@there.example"];
    relaying.try_message("x@else.example", &to, message).unwrap();
    let arrived = ["a", "b", "c"].map(|user| rig.arrived(user));
    let field = |message: &Vec<u8>| {
        let message = text(message);
        let (_, rest) = message.split_once("DKIM-Signature: ").unwrap();
        rest.split_once("\r\nReceived: ").unwrap().0.to_owned()
    };
    for message in &arrived {
        assert_signed(message, &records);
        assert_eq!(field(message), field(&arrived[0]));
    }
    assert_eq!(signed(), 1, "it left in three transactions");
    let suppressed = command(dir, &["suppression", "add", "gone@there.example"]).output().unwrap();
    assert!(suppressed.status.success(), "{suppressed:?}");
    relaying.try_message("x@else.example", &["gone@there.example"], message).unwrap();
    rig.server.wait_for_log("on a suppression list: given up");
    assert_eq!(signed(), 1, "nobody was left");
    drop(relaying);
    rig.stop();
}

#[test]
fn mail_that_cannot_be_signed_as_it_leaves_waits_for_its_key() {
    let rig = Rig::start_with("users = \"any\"\n", GENERIC);
    let dir = rig.here.path();
    let made = dkim(dir, &["new", "here.example", "--keys", "ed25519"])["made"].clone();
    let file = dir.join(made[0]["file"].as_str().unwrap());
    let key = std::fs::read(&file).unwrap();
    std::fs::write(&file, "state: active\n").unwrap();
    rig.server.reload(&rig.config);
    rig.server.wait_for_log("a DKIM key cannot be used");
    let (mut relaying, _) = hello(rig.server.addresses[1]);
    // The reload is in force after its line.
    let own = "From: ann@here.example\r\n\r\nx\r\n";
    assert!((0..1000).any(|_| send(&mut relaying, "ann@here.example", "before", own).0 == 451));
    assert_eq!(send(&mut relaying, "x@else.example", "waits", "From: ann@inside.example\r\n\r\nx\r\n").0, 250);
    let is_deferred = |line: &Value| line["recipient"] == "waits@there.example" && line["attempts"] == 1;
    wait_for_queue(dir, "deferred", |waiting| waiting.iter().any(is_deferred));
    let id = list(dir, &["--recipient", "waits@there.example"])[0]["id"].as_str().unwrap().to_owned();
    let shown = queue(dir, &["show", &id]).1;
    assert!(shown.contains("mail of this domain cannot be signed now"), "{shown}");
    assert!(rig.server.log_text().contains("the message cannot be signed now: "), "the log names the file");
    std::fs::write(&file, key).unwrap();
    rig.server.reload(&rig.config);
    wait_for_queue(dir, "sent", |waiting| {
        queue(dir, &["requeue", &id]);
        waiting.is_empty()
    });
    assert_signed(&rig.arrived("waits"), &records(&made));
    drop(relaying);
    rig.stop();
}

#[test]
fn each_message_of_the_corpus_is_signed_delivered_and_verified() {
    let rig = Rig::start("users = \"any\"\n");
    let records = records(&dkim(rig.here.path(), &["new", "here.example", "--keys", "ed25519"])["made"]);
    let (mut relaying, _) = hello(rig.server.addresses[1]);
    let mut sent = Vec::new();
    for (number, file) in messages_in(&corpus_dir()).into_iter().enumerate() {
        let wire = to_wire(std::fs::read(&file).unwrap());
        // One author of ours in place of its own.
        let message = [&b"From: ann@here.example\r\n"[..], &without_from(&wire)].concat();
        // A first line that is folded would belong to ours, and what was sent again is not signed.
        let is_folded = wire.starts_with(b" ") || wire.starts_with(b"\t");
        let is_resent = text(&wire).lines().any(|line| line.to_ascii_lowercase().starts_with("resent-"));
        if !has_plain_header(&message) || is_folded || is_resent {
            continue;
        }
        let user = format!("m{number}");
        let to = format!("{user}@there.example");
        let reply = relaying.try_message("ann@here.example", &[&to], &message).unwrap();
        match reply.code {
            250 => sent.push((file, user, message)),
            // As docs/smtp.md says of what is in it.
            code => assert!([550, 554].contains(&code), "{}: {reply:?}", file.display()),
        }
    }
    assert!(sent.len() >= 30, "only {} were taken", sent.len());
    for (file, user, message) in &sent {
        let arrived = rig.arrived(user);
        assert_signed(&arrived, &records);
        assert!(arrived.ends_with(message), "{}", file.display());
    }
    drop(relaying);
    rig.stop();
}

/// True if all readers see the same header: fields up to an empty line.
fn has_plain_header(message: &[u8]) -> bool {
    let mut lines = message.split_inclusive(|octet| *octet == b'\n').take_while(|line| *line != b"\r\n");
    let is_field = |line: &[u8]| {
        let name = line.iter().position(|octet| *octet == b':').map(|end| &line[..end]);
        let is_named = name.is_some_and(|name| !name.is_empty() && name.iter().all(u8::is_ascii_graphic));
        is_named || line.starts_with(b" ") || line.starts_with(b"\t")
    };
    message.windows(4).any(|window| window == b"\r\n\r\n") && lines.all(is_field)
}

/// The message without its From fields.
fn without_from(wire: &[u8]) -> Vec<u8> {
    let (mut kept, mut is_kept, mut is_header) = (Vec::new(), true, true);
    for line in wire.split_inclusive(|octet| *octet == b'\n') {
        is_header &= line != b"\r\n";
        if is_header && !line.starts_with(b" ") && !line.starts_with(b"\t") {
            let name = line.split(|octet| *octet == b':').next().unwrap().trim_ascii();
            is_kept = !name.eq_ignore_ascii_case(b"From");
        }
        if is_kept || !is_header {
            kept.extend_from_slice(line);
        }
    }
    kept
}
