//! Aliases, patterns, discarded and refused mail, from the client's command to the mailbox.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::{PATIENCE, Server, command};

const CONFIG: &str = r#"
host_name = "mx.example.org"
[[listener]]
address = "127.0.0.1:0"
[[listener]]
unix = "lmtp.sock"
protocol = "lmtp"
[[domain]]
name = "example.org"
domain_aliases = ["example.net", "bücher.example"]
users = ["alice", "bob", "support"]
[domain.aliases]
team = ["alice", "bob"]
noreply.discard = true
gone.refuse = "550 5.1.6 Write to alice@example.org"
moving = { refuse = "450 4.2.1 Moving, come back tomorrow" }
[[domain.pattern]]
match = "support-([a-z]+)"
to = ["support+$1", "team"]
[[domain.pattern]]
match = "bounces-.*"
to.discard = true
"#;

const MESSAGE: &[u8] = b"Subject: hello\r\n\r\nbody\r\n";

#[test]
fn one_recipient_may_be_many_mailboxes_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), CONFIG);
    assert!(server.banner.contains("receiving  example.org, example.net, bücher.example\n"), "{}", server.banner);
    let mut client = server.connect();
    client.expect("EHLO client.example.com", 250);
    client.deliver(&["Support-Billing@Example.NET", "alice@xn--bcher-kva.example", "noreply@example.org"], MESSAGE);
    let text = server.wait_for_mail("example.org", "support", 1)[0].text();
    assert!(text.contains("\nDelivered-To: support+billing@example.org\n"), "{text}");
    server.wait_for_mail("example.org", "bob", 1);
    server.wait_for_mail("example.org", "alice", 1);
    let kept = server.wait_for_log("message kept");
    assert!(kept.contains("mailboxes=3") && kept.contains("discarded=1"), "{kept}");

    let reply = client.deliver(&["bounces-1=2@example.org", "noreply+x@example.net"], MESSAGE);
    assert!(reply.text.starts_with("2.0.0 Accepted as "), "{reply:?}");
    let discarded = server.wait_for_log("message discarded");
    assert!(!discarded.contains("mailboxes=") && discarded.contains("discarded=2"), "{discarded}");
    // As large as those that go to a file of their own.
    client.deliver(
        &["noreply@example.org"],
        &[b"Subject: x\r\n\r\n", &*b"0123456789abcdef\r\n".repeat(120_000)].concat(),
    );

    client.expect("MAIL FROM:<s@example.com>", 250);
    for (to, expected) in [
        ("gone@example.org", "550 5.1.6 Write to alice@example.org"),
        ("moving+x@example.net", "450 4.2.1 Moving, come back tomorrow"),
        ("nobody@example.net", "550 5.1.1 No such user here"),
    ] {
        let reply = client.command(&format!("RCPT TO:<{to}>"));
        assert_eq!(format!("{} {}", reply.code, reply.text), expected);
    }
    client.expect("DATA", 554);
    client.expect("QUIT", 221);

    // One reply for each recipient, not for each mailbox.
    let mut stream = UnixStream::connect(dir.path().join("lmtp.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = ["support-x@example.org", "noreply@example.org", "gone@example.org", "bob@example.org"];
    let to: String = to.iter().map(|to| format!("RCPT TO:<{to}>\r\n")).collect();
    let session = format!("LHLO local\r\nMAIL FROM:<>\r\n{to}DATA\r\nSubject: x\r\n\r\n.\r\nQUIT\r\n");
    stream.write_all(session.as_bytes()).unwrap();
    let lines: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    let finals: Vec<&str> = lines.iter().filter(|line| line.as_bytes()[3] == b' ').map(|line| &line[..3]).collect();
    let expected = ["220", "250", "250", "250", "250", "550", "250", "354", "250", "250", "250", "221"];
    assert_eq!(finals, expected, "{lines:?}");
    for user in ["alice", "bob", "support"] {
        server.wait_for_mail("example.org", user, 2);
    }
    let mail = std::fs::read_dir(dir.path().join("posthaste-data/mail/example.org")).unwrap();
    assert_eq!(mail.count(), 3, "nothing else has got mail");
    server.stop();
}

#[test]
fn a_reload_takes_new_aliases_in() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), CONFIG);
    let mut client = server.connect();
    client.expect("EHLO client.example.com", 250);
    client.expect("MAIL FROM:<s@example.com>", 250);
    client.expect("RCPT TO:<sales@example.org>", 550);
    client.expect("RCPT TO:<gone@example.org>", 550);
    let reload = |config: &str, expected: &str| {
        server.reload(config);
        server.wait_for_log(expected)
    };
    let line = reload(
        &CONFIG.replace("gone.refuse = \"550 5.1.6 Write to alice@example.org\"", "a = \"b\"\nb = \"a\""),
        "configuration not reloaded",
    );
    assert!(line.contains("posthaste.toml:15:5: the alias `a` leads back to itself"), "{line}");
    client.expect("RCPT TO:<gone@example.org>", 550);
    reload(
        &CONFIG.replace("gone.refuse = \"550 5.1.6 Write to alice@example.org\"", "gone = \"bob\"\nsales = \"gone\""),
        "configuration reloaded",
    );
    client.expect("RCPT TO:<sales@example.org>", 250);
    client.expect("RCPT TO:<gone@example.org>", 250);
    client.expect("QUIT", 221);
    server.stop();
}

fn said(dir: &Path, code: i32, args: &[&str]) -> String {
    let output = command(dir, args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    String::from_utf8(if code == 2 { output.stderr } else { output.stdout }).unwrap()
}

#[test]
fn a_route_is_told_step_by_step() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("posthaste.toml"), CONFIG).unwrap();
    let route = |code: i32, args: &[&str]| said(dir.path(), code, &[&["route"], args].concat());
    assert_eq!(
        route(0, &["Support-Billing+x@BÜCHER.example", "<noreply@example.org>"]),
        "Support-Billing+x@BÜCHER.example\n\
         \x20 one form      Support-Billing+x@BÜCHER.example -> support-billing+x@xn--bcher-kva.example\n\
         \x20 domain alias  support-billing+x@xn--bcher-kva.example -> support-billing+x@example.org\n\
         \x20 detail        support-billing+x@example.org -> support-billing@example.org\n\
         \x20 pattern       support-billing@example.org -> support+billing@example.org, team@example.org   (match = \"support-([a-z]+)\")\n\
         \x20 alias         team@example.org -> alice@example.org, bob@example.org\n\
         \x20 mailbox       posthaste-data/mail/example.org/support/Maildir\n\
         \x20 mailbox       posthaste-data/mail/example.org/alice/Maildir\n\
         \x20 mailbox       posthaste-data/mail/example.org/bob/Maildir\n\
         <noreply@example.org>\n\
         \x20 alias         noreply@example.org\n\
         \x20 discarded     accepted, and kept nowhere\n"
    );
    assert_eq!(
        route(1, &["gone@example.org"]),
        "gone@example.org\n  alias         gone@example.org\n  refused       550 5.1.6 Write to alice@example.org\n"
    );
    let addresses = ["alice+x@example.org", "who@elsewhere.example", "support-a@example.org"];
    let json = route(1, &[&["--json", "--client", "192.0.2.1"][..], &addresses].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!({
        "address": "alice+x@example.org",
        "steps": [{ "address": "alice+x@example.org", "rule": "detail", "to": ["alice@example.org"] }],
        "route": "local",
        "mailboxes": [{
            "path": "posthaste-data/mail/example.org/alice/Maildir", "delivered_to": "alice+x@example.org",
        }],
    });
    assert_eq!(json[0], expected);
    assert_eq!((&json[1]["route"], &json[1]["reply"]), (&"refused".into(), &"550 5.7.1 We do not relay".into()));
    assert_eq!(json[2]["steps"][0]["match"], "support-([a-z]+)");
    assert!(route(2, &["two words"]).starts_with("posthaste: `two words` is not an address: "));
    std::fs::write(dir.path().join("posthaste.toml"), CONFIG.replace("\"team\"]", "\"teem\"]")).unwrap();
    let said = said(dir.path(), 2, &["config", "check"]);
    assert!(said.starts_with("posthaste: posthaste.toml:19:21: there is no user or alias `teem`\n"), "{said}");
}

#[test]
fn a_route_to_another_host_is_told_as_mail_would_go() {
    let dir = tempfile::tempdir().unwrap();
    let more = "[domain.aliases]\naway = \"bob@far.example\"\n[dns]\nservers = [\"127.0.0.1:1\"]\n[dns.hosts]\n\"far.example\" = [\"192.0.2.1\"]\n\
        [relay]\nlocal_users = true\nnetworks = [\"10.0.0.0/8\"]\n[relay.maps]\ncanonical = { \"old@far.example\" = \"bob@far.example\" }\n\
        [[relay.route]]\ndomain = \"smart.example\"\nhost = \"[192.0.2.7]\"\nport = 587\ntls = \"required\"\nusername = \"ann\"\npassword_file = \"password\"\npool = \"out\"\n\
        [[relay.source]]\nname = \"one\"\nipv4 = \"192.0.2.4\"\n[[relay.pool]]\nname = \"out\"\nsources = { one = 1 }\ntenants = []\n";
    let config = "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[domain]]\nname = \"example.org\"\nusers = [\"alice\"]\n";
    std::fs::write(dir.path().join("posthaste.toml"), config.to_owned() + more).unwrap();
    std::fs::write(dir.path().join("password"), "s3cret\n").unwrap();
    let route = |code: i32, args: &[&str]| said(dir.path(), code, &[&["route"], args].concat());
    assert_eq!(
        route(0, &["old@far.example", "x@smart.example", "away@example.org"]),
        "old@far.example\n\
         \x20 canonical     old@far.example -> bob@far.example\n\
         \x20 other host    bob@far.example\n\
         \x20 sent by       programs on this machine\n\
         \x20 route         far.example, which has no MX records\n\
         \x20 host          0 far.example, port 25: 192.0.2.1\n\
         \x20 TLS           opportunistic\n\
         \x20 source        default, an address that the system chooses\n\
         x@smart.example\n\
         \x20 other host    x@smart.example\n\
         \x20 sent by       programs on this machine\n\
         \x20 route         [192.0.2.7]   (relay.route 1)\n\
         \x20 host          [192.0.2.7], port 587: 192.0.2.7\n\
         \x20 TLS           required\n\
         \x20 login         ann\n\
         \x20 source        one, 192.0.2.4   (relay.pool out)\n\
         away@example.org\n\
         \x20 alias         away@example.org -> bob@far.example\n\
         \x20 other host    bob@far.example\n\
         \x20 route         far.example, which has no MX records\n\
         \x20 host          0 far.example, port 25: 192.0.2.1\n\
         \x20 TLS           opportunistic\n\
         \x20 source        default, an address that the system chooses\n"
    );
    let client = ["--client", "10.1.1.1", "--from", "ann@example.org", "--json", "x@smart.example"];
    let json: serde_json::Value = serde_json::from_str(&route(0, &client)).unwrap();
    let way = &json[0]["way"];
    assert_eq!((&json[0]["route"], &way["taken_from"]), (&"remote".into(), &"client 10.1.1.1 at 127.0.0.1:0".into()));
    assert_eq!((&way["usual"]["login"], &way["usual"]["tls"]["policy"]), (&"ann".into(), &"required".into()));
    assert!(!json.to_string().contains("s3cret"), "{json}");
    assert_eq!(
        route(1, &["--client", "192.0.2.1", "x@far.example"]),
        "x@far.example\n  refused       550 5.7.1 We do not relay\n  sent by       client 192.0.2.1 at 127.0.0.1:0\n"
    );
    assert!(route(1, &["x@nowhere.example"]).contains("\n  problem       DNS has no answer for nowhere.example: "));
    assert!(route(2, &["--login", "eve", "x@far.example"]).contains("there is no login `eve`"));
}

#[test]
fn the_manual_shows_what_is_printed() {
    let manual = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/addresses.md")).unwrap();
    let block = |kind: &str| manual.split_once(&format!("```{kind}\n")).unwrap().1.split_once("```").unwrap().0;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("posthaste.toml"), block("toml")).unwrap();
    let (line, expected) = block("text").split_once('\n').unwrap();
    let args: Vec<&str> = line.strip_prefix("$ posthaste ").unwrap().split(' ').collect();
    assert_eq!(said(dir.path(), 0, &args), expected);
    // What is shown of a configuration is a configuration.
    std::fs::write(dir.path().join("shown.toml"), said(dir.path(), 0, &["config", "show"])).unwrap();
    assert_eq!(said(dir.path(), 0, &[&args[..], &["--config", "shown.toml"]].concat()), expected);
}
