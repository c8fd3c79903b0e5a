//! Checks of incoming mail: SPF, DKIM, DMARC and Authentication-Results, with a DNS server on loopback.

use posthaste_dkim::{Algorithm, Draft, KeyRecord, Signer, generate};
use posthaste_dns_stub::{Server as Dns, Zone};

use crate::relay_events;
use crate::support::{Client, Server};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Clients give their address by the PROXY protocol, as mail from this machine is not checked.
const CONFIG: &str = "host_name = \"mx.example.org\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = true\nproxies = \"127.0.0.1\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\n\
    [[domain]]\nname = \"example.org\"\nusers = \"any\"\n[[network]]\ncidr = \"198.51.100.7\"\nrelay = true\n";

/// The client that the policies permit.
const GOOD: &str = "192.0.2.1";
const BAD: &str = "203.0.113.9";

struct Rig {
    dir: tempfile::TempDir,
    dns: Dns,
    server: Server,
    signer: Signer,
}

fn zone(signer: &Signer, records: Zone) -> Zone {
    let key = KeyRecord::of(signer.key()).to_string();
    let names = [
        "temp.example",
        "_dmarc.temp.example",
        "k._domainkey.temp.example",
        "late._domainkey.pass.example",
        "mx.late.example",
    ];
    let zone = names.into_iter().fold(records, Zone::fails);
    zone.txt("pass.example", "v=spf1 ip4:192.0.2.1 -all")
        .txt("_dmarc.pass.example", "v=DMARC1; p=reject")
        .txt("k._domainkey.pass.example", &key)
        .txt("mx.client.example", "v=spf1 ip4:192.0.2.1 -all")
        .txt("_dmarc.soft.example", "v=DMARC1; p=quarantine")
        .txt("late.example", "v=spf1 a:mx.late.example -all")
        .txt("_dmarc.late.example", "v=DMARC1; p=reject")
        .txt("never.example", "v=spf1 -all")
        .is_silent("slow.example")
        .is_silent("_dmarc.slow.example")
}

impl Rig {
    fn start(more: &str) -> Self {
        Self::start_with(Zone::default(), more)
    }

    /// With further records.
    fn start_with(records: Zone, more: &str) -> Self {
        let signer = Signer::new("pass.example", "k", generate(Algorithm::Ed25519).unwrap()).unwrap();
        let (dir, dns) = (tempfile::tempdir().unwrap(), Dns::start(zone(&signer, records)));
        let config = format!("{CONFIG}[dns]\nservers = [\"{}\"]\n{more}", dns.address());
        let server = Server::start(dir.path(), &config);
        Self { dir, dns, server, signer }
    }

    /// Sends a message from this client. Returns it as stored in the mailbox of `user`.
    fn arrived(&self, client: &str, from: &str, user: &str, message: &str) -> String {
        let mut session = self.session(client);
        let reply = session.try_message(from, &[&format!("{user}@example.org")], message.as_bytes()).unwrap();
        assert_eq!(reply.code, 250, "{reply:?}");
        self.server.wait_for_mail("example.org", user, 1)[0].text()
    }

    /// The code of the reply to a message, and its text.
    fn reply(&self, client: &str, from: &str, to: &[&str], message: &str) -> (u16, String) {
        let reply = self.session(client).try_message(from, to, message.as_bytes()).unwrap();
        (reply.code, reply.text)
    }

    fn junk(&self, user: &str) -> PathBuf {
        self.dir.path().join(format!("posthaste-data/mail/example.org/{user}/Maildir/.Junk"))
    }

    fn wait_for_junk(&self, user: &str) -> String {
        let (new, deadline) = (self.junk(user).join("new"), Instant::now() + Duration::from_secs(60));
        loop {
            if let Some(file) = std::fs::read_dir(&new).unwrap().next() {
                return std::fs::read_to_string(file.unwrap().path()).unwrap();
            }
            assert!(Instant::now() < deadline, "{}", self.server.log_text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn session(&self, client: &str) -> Client {
        let mut session = Client::open(self.server.addresses[0]).unwrap();
        session.send(format!("PROXY TCP4 {client} 127.0.0.1 1 25\r\n").as_bytes()).unwrap();
        assert_eq!(session.reply().code, 220);
        session.expect("EHLO mx.client.example", 250);
        session
    }

    fn signed(&self, from: &str, body: &str) -> String {
        let field = format!("From: {from}\r\n");
        let mut draft = Draft::default();
        draft.field(field.as_bytes());
        draft.body(body.as_bytes());
        self.signer.sign(&draft, 1_795_000_000, None).unwrap() + &field + "\r\n" + body
    }
}

/// The results of our field, which stands above Received, by method.
fn results(message: &str) -> Vec<String> {
    let at =
        message.find("Authentication-Results: mx.example.org;\n").unwrap_or_else(|| panic!("no field in {message}"));
    assert!(at < message.find("Received: ").unwrap(), "{message}");
    let lines = message[at..].lines().skip(1).take_while(|line| line.starts_with('\t'));
    lines.map(|line| line.trim_matches(&['\t', ';'][..]).to_owned()).collect()
}

#[test]
fn results_of_strangers_mail_stand_above_received() {
    let rig = Rig::start("[checks]\nenforce = \"none\"\n");
    let body = "text\r\n".repeat(100_000);
    let message = rig.signed("Ann <ann@pass.example>", &body);
    let start = "dkim=pass header.d=pass.example header.s=k header.b=";
    let check = |arrived: &str, spf: &str, dkim: &str, dmarc: &str| {
        let found = results(arrived);
        assert_eq!((found.len(), &*found[0], &*found[2]), (3, spf, dmarc), "{found:?}");
        assert!(found[1].starts_with(dkim), "{found:?}");
    };
    let good = rig.arrived(GOOD, "ann@pass.example", "good", &message);
    check(&good, "spf=pass smtp.mailfrom=ann@pass.example", start, "dmarc=pass header.from=pass.example");
    let passed = "spf=pass dkim=pass dmarc=pass";
    assert!(rig.server.wait_for_log("message kept").contains(passed));
    relay_events::wait_for(rig.dir.path(), "received", "auth", passed);
    // Forwarded: another client, and the signature holds.
    let other = rig.arrived(BAD, "ann@pass.example", "other", &message);
    check(&other, "spf=fail smtp.mailfrom=ann@pass.example", start, "dmarc=pass header.from=pass.example");
    let changed = rig.arrived(BAD, "ann@pass.example", "changed", &message.replace("text\r\ntext", "text\r\nTEXT"));
    let broken = "dkim=fail header.d=pass.example header.s=k header.b=";
    check(&changed, "spf=fail smtp.mailfrom=ann@pass.example", broken, "dmarc=fail header.from=pass.example");
    // A bounce: the name of EHLO is judged.
    let bounce = rig.arrived(GOOD, "", "bounce", "From: x@mx.client.example\r\n\r\nx\r\n");
    check(&bounce, "spf=pass smtp.helo=mx.client.example", "dkim=none", "dmarc=none header.from=mx.client.example");
    let nothing = rig.arrived(GOOD, "a@none.example", "nothing", "Subject: x\r\n\r\nx\r\n");
    check(&nothing, "spf=none smtp.mailfrom=a@none.example", "dkim=none", "dmarc=permerror");
    rig.server.stop();
}

#[test]
fn dns_without_an_answer_is_temperror_and_mail_is_taken() {
    let rig = Rig::start("timeout_secs = 300\n[checks]\ntimeout_secs = 1\n");
    let message = rig.signed("a@temp.example", "x\r\n").replace("d=pass.example", "d=temp.example");
    let found = results(&rig.arrived(GOOD, "a@temp.example", "failed", &message));
    assert_eq!(
        (&*found[0], &*found[2]),
        ("spf=temperror smtp.mailfrom=a@temp.example", "dmarc=temperror header.from=temp.example")
    );
    assert!(found[1].starts_with("dkim=temperror header.d=temp.example"), "{found:?}");
    // The policy is there: whether the domain answers for the message is open.
    let late = rig.signed("a@pass.example", "x\r\n").replace("s=k;", "s=late;");
    let found = results(&rig.arrived(BAD, "x@none.example", "key", &late));
    assert!(found[1].starts_with("dkim=temperror header.d=pass.example header.s=late"), "{found:?}");
    assert_eq!(found[2], "dmarc=temperror header.from=pass.example");
    let found = results(&rig.arrived(BAD, "a@late.example", "spf", "From: a@late.example\r\n\r\nx\r\n"));
    assert_eq!(
        (&*found[0], &*found[2]),
        ("spf=temperror smtp.mailfrom=a@late.example", "dmarc=temperror header.from=late.example")
    );
    let silent = rig.arrived(GOOD, "a@slow.example", "silent", "From: a@slow.example\r\n\r\nx\r\n");
    let expected =
        ["spf=temperror smtp.mailfrom=a@slow.example", "dkim=none", "dmarc=temperror header.from=slow.example"];
    assert_eq!(results(&silent), expected);
    rig.server.stop();
}

/// The sender's name servers are the attacker's, so they may be slow on purpose.
#[test]
fn a_slow_policy_of_the_sender_does_not_hide_that_of_the_author() {
    let rig = Rig::start("timeout_secs = 300\n[checks]\ntimeout_secs = 6\nenforce = \"always\"\n");
    let reply = rig.reply(BAD, "x@slow.example", &["ann@example.org"], FORGED);
    assert_eq!(reply, (550, "5.7.26 DMARC of pass.example: reject".to_owned()));
    rig.server.stop();
}

#[test]
fn forged_results_go_and_those_of_others_stay() {
    let rig = Rig::start("[checks]\nenforce = \"none\"\nauthserv_ids = [\"old.example.org\"]\n");
    let forged = "Authentication-Results: MX.example.org; dkim=pass header.d=forged.example\r\n\
                  Authentication-Results: (c) old.example.org 1; spf=pass smtp.mailfrom=forged.example\r\n";
    let others = "Authentication-Results: mx.other.example; dkim=pass header.d=kept.example\r\n";
    let message = format!("{forged}{others}From: \"a) dmarc=pass (b\"@none.example\r\n\r\nx\r\n");
    let arrived = rig.arrived(GOOD, "\"a;b\"@none.example", "ann", &message);
    assert!(!arrived.contains("forged.example") && arrived.contains("kept.example"), "{arrived}");
    let expected = ["spf=none smtp.mailfrom=none.example", "dkim=none", "dmarc=none header.from=none.example"];
    assert_eq!(results(&arrived), expected);
    rig.server.stop();
}

#[test]
fn known_clients_and_unknown_recipients_cost_no_question() {
    let rig = Rig::start("");
    let message = "From: a@pass.example\r\n\r\nx\r\n";
    let trusted = rig.arrived("198.51.100.7", "a@pass.example", "trusted", message);
    let mut local = Client::open(rig.server.addresses[1]).unwrap();
    local.reply();
    local.expect("EHLO client.example", 250);
    assert_eq!(local.try_message("a@pass.example", &["local@example.org"], message.as_bytes()).unwrap().code, 250);
    let local = rig.server.wait_for_mail("example.org", "local", 1)[0].text();
    let mut session = rig.session(BAD);
    session.expect("MAIL FROM:<a@pass.example>", 250);
    session.expect("RCPT TO:<x@other.example>", 550);
    session.expect("QUIT", 221);
    for arrived in [trusted, local] {
        assert!(!arrived.contains("Authentication-Results"), "{arrived}");
    }
    assert!(rig.dns.questions().is_empty(), "{:?}", rig.dns.questions());
    rig.server.stop();
}

#[test]
fn a_chain_of_ten_includes_is_followed() {
    let chain = |zone: Zone, number: u32| {
        zone.txt(&format!("n{number}.example"), &format!("v=spf1 include:n{}.example -all", number + 1))
    };
    let more = (0..10).fold(Zone::default(), chain).txt("n10.example", "v=spf1 +all");
    let own = more.txt("own.example", "v=spf1 include:own.example -all");
    let rig = Rig::start_with(own, "");
    let results_of = |user: &str, from: &str| {
        results(&rig.arrived(GOOD, from, user, &format!("From: {from}\r\n\r\nx\r\n")))[0].clone()
    };
    assert_eq!(results_of("ann", "a@n0.example"), "spf=pass smtp.mailfrom=a@n0.example");
    assert_eq!(results_of("bob", "a@own.example"), "spf=permerror smtp.mailfrom=a@own.example");
    rig.server.stop();
}

const FORGED: &str = "From: Ann <ann@pass.example>\r\n\r\nx\r\n";

#[test]
fn surely_forged_mail_is_refused_and_the_rest_goes_into_junk() {
    let rig = Rig::start("");
    for user in ["ann", "postmaster"] {
        for part in ["new", "cur", "tmp"] {
            std::fs::create_dir_all(rig.junk(user).join(part)).unwrap();
        }
    }
    let reply = rig.reply(BAD, "x@evil.example", &["ann@example.org"], FORGED);
    assert_eq!(reply, (550, "5.7.26 DMARC of pass.example: reject".to_owned()));
    rig.server.wait_for_log("message refused");
    let (code, text) = rig.reply(BAD, "x@never.example", &["ann@example.org"], "From: x@none.example\r\n\r\nx\r\n");
    assert!(code == 550 && text.starts_with("5.7.23 "), "{text}");
    for header in [
        "From: a@none.example\r\nFrom: b@none.example\r\n",
        "From: a@none.example, b@pass.example\r\n",
        "From: Boss <ceo@pass.example (@none.example )>\r\n",
        "From: Boss <ceo@pass. example>\r\n",
        "To: x@y\r\n",
    ] {
        let (code, text) = rig.reply(BAD, "x@none.example", &["ann@example.org"], &format!("{header}\r\nx\r\n"));
        assert!(code == 550 && text.starts_with("5.7.1 "), "{header}: {text}");
    }
    // It would go on with our field above it.
    let folded = " ; dmarc=pass\r\nFrom: a@none.example\r\n\r\nx\r\n";
    let (code, text) = rig.reply(BAD, "x@none.example", &["ann@example.org"], folded);
    assert!(code == 550 && text.starts_with("5.6.0 "), "{text}");
    // Postmaster is heard alone, and opens no door to others.
    let reply = rig.reply(BAD, "x@evil.example", &["ann@example.org", "postmaster@example.org"], FORGED);
    assert_eq!(reply, (550, "5.7.26 DMARC of pass.example: reject".to_owned()));
    let (code, text) = rig.reply(BAD, "x@evil.example", &["abuse@example.org"], FORGED);
    assert_eq!(code, 250, "{text}");
    rig.server.wait_for_mail("example.org", "abuse", 1);
    // A broken signature of the author hints at a list. Who asks postmaster for help is heard.
    let broken = rig.signed("ann@pass.example", "x\r\n") + "from the list\r\n";
    let (code, text) = rig.reply(BAD, "l@list.example", &["ann@example.org", "postmaster@example.org"], &broken);
    assert_eq!(code, 250, "{text}");
    assert!(rig.wait_for_junk("ann").contains("from the list"));
    let line = rig.server.wait_for_log("junk=");
    assert!(line.contains("junk=\"DMARC of pass.example: reject\""), "{line}");
    let id = line.split("id=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    rig.server.wait_for_mail("example.org", "postmaster", 1);
    assert!(rig.server.mailbox("example.org", "ann").is_empty());
    // Without Junk it goes into INBOX.
    let soft = rig.arrived(BAD, "x@none.example", "bob", "From: a@soft.example\r\n\r\nx\r\n");
    assert_eq!(results(&soft)[2], "dmarc=fail header.from=soft.example");
    let dir = rig.dir.path();
    rig.server.stop();
    let events = crate::relay_events::lines(dir);
    let of = |from: &str| events.iter().find(|line| line["event"] == "received" && line["from"] == from).unwrap();
    let junk = of("<l@list.example>");
    assert_eq!((&junk["message"], &junk["junk"]), (&id.as_str().into(), &"DMARC of pass.example: reject".into()));
    assert_eq!(junk["auth"], "spf=none dkim=fail dmarc=fail");
    assert_eq!(of("<x@none.example>")["junk"], serde_json::Value::Null, "it went into INBOX");
    let output = crate::support::command(dir, &["trace", &id]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(", spf=none dkim=fail dmarc=fail, Junk: DMARC of pass.example: reject"), "{text}");
}

#[test]
fn trusted_forwarders_pass_and_unanswered_mail_may_be_deferred() {
    let more = "[checks]\nenforce = \"always\"\ntrusted_forwarders = [\"203.0.113.9\"]\non_temperror = \"defer\"\n";
    let rig = Rig::start(more);
    let forged = rig.reply("203.0.113.10", "x@evil.example", &["ann@example.org"], FORGED);
    assert_eq!(forged, (550, "5.7.26 DMARC of pass.example: reject".to_owned()));
    for part in ["new", "cur", "tmp"] {
        std::fs::create_dir_all(rig.junk("ann").join(part)).unwrap();
    }
    // Not into Junk.
    rig.arrived(BAD, "x@evil.example", "ann", FORGED);
    let (code, text) = rig.reply(GOOD, "a@temp.example", &["ann@example.org"], "From: a@temp.example\r\n\r\nx\r\n");
    assert!(code == 451 && text.starts_with("4.7.24 "), "{text}");
    rig.server.stop();
}
