//! Fields added to and removed from mail, and the authors allowed for a login.

use crate::auth::{hello, line, plain};
use crate::http::{CONFIG, page_of, token};
use crate::inject::{JSON, request, status, to, try_ask};
use crate::support::{Client, MESSAGE, Server};

const LOGINS: &str = "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\nauth = \"offered\"\n[events]\nenabled = true\n\
    [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"bob\", \"cid\"]\n\
    aliases = { info = [\"ann\"], team = [\"ann\", \"bob\"] }\n";

fn login(server: &Server, user: &str) -> Client {
    let (mut client, _) = hello(server.addresses[0]);
    client.expect(&plain(user, "secret"), 235);
    client
}

/// The lines of a header up to the empty one, folded lines joined.
fn fields(text: &str) -> Vec<String> {
    let (header, _) = text.split_once("\n\n").unwrap();
    header.replace("\n\t", " ").lines().map(str::to_owned).collect()
}

#[test]
fn a_login_writes_as_itself_alone() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [
        line(dir.path(), "ann", "secret").trim_end().to_owned() + ":senders=@lists.example\n",
        line(dir.path(), "bob", "secret"),
        line(dir.path(), "cid", "secret").trim_end().to_owned() + ":senders=any\n",
    ];
    std::fs::write(dir.path().join("passwords"), lines.concat()).unwrap();
    let server = Server::start(dir.path(), LOGINS);
    let check = |client: &mut Client, user: &str, header: &str, expected: Result<(), &str>| {
        let message = format!("{header}Subject: x\r\n\r\nbody\r\n");
        let reply =
            client.try_message(&format!("{user}@example.org"), &["cid@example.org"], message.as_bytes()).unwrap();
        let found = if reply.code == 250 { Ok(()) } else { Err(&*reply.text) };
        assert_eq!(found, expected, "{user}: {header:?}");
        assert!(expected.is_ok() || reply.code == 553, "{reply:?}");
    };
    let mut ann = login(&server, "ann");
    for own in [
        "From: ann@example.org\r\n",
        "From: =?utf-8?q?ceo=40example.org?=\r\n\t<Ann+x@Example.ORG>\r\n",
        "From: info@example.org\r\n",
        "From: x@lists.example\r\n",
        "Resent-From: ann@example.org\r\nResent-To: cid@example.org\r\nFrom: ceo@example.org\r\n",
    ] {
        check(&mut ann, "ann", own, Ok(()));
    }
    for foreign in
        ["ceo@example.org", "bob@example.org", "team@example.org", "Ann <ann@example.net>", "\"ann@example.org\" <x@y>"]
    {
        check(&mut ann, "ann", &format!("From: {foreign}\r\n"), Err("5.7.1 From is not an address of yours"));
    }
    for unclear in [
        "",
        "From: ann@example.org, ann@example.org\r\n",
        "From: ann@example.org\r\nFrom: ann@example.org\r\n",
        "From: us: ann@example.org;\r\n",
        "From: ceo@example.org <ann@example.org>\r\n",
        "From: undisclosed\r\n",
    ] {
        check(
            &mut ann,
            "ann",
            unclear,
            Err("5.7.1 From must have one address; put a name with signs such as @ or , in quotes"),
        );
    }
    let resent = "Resent-From: ceo@example.org\r\nResent-From: ann@example.org\r\nFrom: ann@example.org\r\n";
    check(&mut ann, "ann", resent, Err("5.7.1 Resent-From is not an address of yours"));
    check(
        &mut ann,
        "ann",
        "Resent-To: x@y\r\nFrom: ann@example.org\r\n",
        Err("5.7.1 Resent-From must have one address; put a name with signs such as @ or , in quotes"),
    );
    let mut bob = login(&server, "bob");
    check(&mut bob, "bob", "From: info@example.org\r\n", Err("5.7.1 From is not an address of yours"));
    let mut cid = login(&server, "cid");
    for any in ["", "From: ceo@elsewhere.example\r\n", "From: a@b, c@d\r\n"] {
        check(&mut cid, "cid", any, Ok(()));
    }
    // Everybody else is judged by nobody.
    let (mut stranger, _) = hello(server.addresses[0]);
    stranger.deliver(&["bob@example.org"], b"From: a@b, c@d\r\n\r\n");
    let refused = server.wait_for_log("From is ceo@example.org");
    assert!(refused.contains("message refused") && refused.contains("user=\"ann@example.org\""), "{refused}");
    server.stop();
}

#[test]
fn mail_of_a_login_is_completed_and_that_of_strangers_is_not() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann", "secret")).unwrap();
    let server = Server::start(dir.path(), LOGINS);
    let forged = "Authentication-Results: MX.example.ORG 1; dmarc=pass\r\n";
    let others = "Authentication-Results: other.example; dkim=pass\r\n";
    let body = "--b\r\nBcc: part@x\r\nContent-Type:  text/plain\r\n\r\nx\r\n--b--\r\n";
    let message = format!(
        "From: ann@example.org\r\n{forged}Bcc: eve@example.org,\r\n bob@example.org\r\n{others}Subject: x\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/signed;  boundary=b\r\nresent-bcc: x\r\n\r\n{body}"
    );
    let kept =
        |fields: &[String]| fields.iter().skip_while(|field| !field.starts_with("From")).cloned().collect::<Vec<_>>();
    let ours = [
        "From: ann@example.org",
        others.trim_end(),
        "Subject: x",
        "MIME-Version: 1.0",
        "Content-Type: multipart/signed;  boundary=b",
    ];
    let mut ann = login(&server, "ann");
    assert_eq!(ann.try_message("ann@example.org", &["bob@example.org"], message.as_bytes()).unwrap().code, 250);
    let text = server.wait_for_mail("example.org", "bob", 1)[0].text();
    let found = fields(&text);
    assert_eq!(kept(&found), ours, "{text}");
    assert!(text.ends_with(&body.replace("\r\n", "\n")), "{text}");
    assert!(found[2].starts_with("Received: ") && found[3].starts_with("Date: ") && found.len() == 10, "{text}");
    let id = found[4].strip_prefix("Message-ID: ").unwrap();
    assert!(found[2].contains(&format!(" id {}", id.strip_prefix('<').unwrap().split('@').next().unwrap())), "{text}");
    let line = server.wait_for_log("message kept");
    assert!(line.contains(&format!("message_id=\"{id}\"")), "{line}");

    // A large one lies in a file, and has its fields in front all the same.
    let large = [message.as_bytes(), &b"0123456789abcdef\r\n".repeat(1 << 20)].concat();
    assert_eq!(ann.try_message("ann@example.org", &["cid@example.org"], &large).unwrap().code, 250);
    let text = server.wait_for_mail("example.org", "cid", 1)[0].text();
    let found = fields(&text);
    assert!(
        found[3].starts_with("Date: ") && found[4].starts_with("Message-ID: <") && kept(&found) == ours,
        "{found:?}"
    );

    let (mut stranger, _) = hello(server.addresses[0]);
    stranger.deliver(&["ann@example.org"], message.as_bytes());
    let text = server.wait_for_mail("example.org", "ann", 1)[0].text();
    let found = fields(&text);
    assert!(
        !text.contains(forged.trim_end()) && text.contains("\nBcc: eve@example.org,\n bob@example.org\n"),
        "{text}"
    );
    assert!(found[3].starts_with("From: ") && text.contains(others.trim_end()), "{text}");
    drop((ann, stranger));
    server.stop();
}

#[test]
fn programs_and_http_lose_forged_results_and_blind_copies() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"bob\"]\n{CONFIG}"
    );
    let server = Server::start(dir.path(), &config);
    let message = "From: shop@example.net\r\nAuthentication-Results: mx.example.org; dkim=pass\r\nBcc: eve@example.org\r\n\r\nx\r\n";
    // Without `sendmail`, which would complete it.
    let pickup = dir.path().join("posthaste-data/pickup");
    let envelope = format!("MAIL FROM:<ann@example.org>\nRCPT TO:<ann@example.org>\n\n{message}");
    std::fs::write(pickup.join(".one"), format!("POSTHASTE-PICKUP/1 {} -\n{envelope}", envelope.len())).unwrap();
    std::fs::rename(pickup.join(".one"), pickup.join("one")).unwrap();
    let secret = token(dir.path(), "shop", "inject");
    let body = to(&["bob@example.org"], message).to_string();
    let (head, answer) = try_ask(page_of(&server), &request(&secret, JSON, &body)).unwrap();
    assert_eq!(status(&head), 200, "{answer}");
    for user in ["ann", "bob"] {
        let text = server.wait_for_mail("example.org", user, 1)[0].text();
        assert!(text.contains("\nDate: ") && text.contains("\nMessage-ID: <"), "{text}");
        assert!(!text.contains("Authentication-Results") && !text.contains("Bcc"), "{text}");
    }
    server.stop();
}

#[test]
fn results_of_networks_that_relay_and_of_lmtp_stay() {
    let dir = tempfile::tempdir().unwrap();
    let config = "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nrelay = true\n\
                  [[listener]]\naddress = \"127.0.0.2:0\"\nprotocol = \"lmtp\"\n\
                  [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"bob\"]\n";
    let server = Server::start(dir.path(), config);
    let message = [b"Authentication-Results: mx.example.org; dkim=pass\r\n", MESSAGE].concat();
    let (mut relaying, _) = hello(server.addresses[0]);
    relaying.deliver(&["ann@example.org"], &message);
    let mut lmtp = Client::open(server.addresses[1]).unwrap();
    lmtp.reply();
    lmtp.expect("LHLO x", 250);
    lmtp.deliver(&["bob@example.org"], &message);
    for user in ["ann", "bob"] {
        let text = server.wait_for_mail("example.org", user, 1)[0].text();
        assert!(text.contains("\nAuthentication-Results: mx.example.org; dkim=pass\n"), "{text}");
    }
    drop((relaying, lmtp));
    server.stop();
}
