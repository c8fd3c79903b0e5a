//! Mail for other hosts, through the server.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use rustix::process::Signal;

use crate::relaying::{self, ANYWHERE, next_hop, unused_port};
use crate::support::{Client, Server, command};

/// The configuration of a server that also relays mail of anybody to `open.example`.
fn config(port: u16) -> String {
    relaying::config(port, "domains = [\"open.example\"]\n")
}

#[test]
fn local_and_other_recipients_of_one_message_get_it() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let events = "[events]\nenabled = true\n";
    let server = Server::start(here.path(), &(config(next.addresses[0].port()) + events));
    let mut client = server.hello();
    client.deliver(&["eve@here.example", "ann@there.example", "bob@there.example"], b"Subject: x\r\n\r\n.dot\r\n");
    server.wait_for_mail("here.example", "eve", 1);
    for user in ["ann", "bob"] {
        let text = next.wait_for_mail("there.example", user, 1)[0].text();
        assert!(
            text.starts_with(&format!("Return-Path: <sender@example.net>\nDelivered-To: {user}@there.example\n")),
            "{text}"
        );
        assert!(text.contains("from mx.here.example") && text.contains("from client.example.net"), "{text}");
        assert!(text.ends_with("\n.dot\n"), "{text}");
    }
    server.stop();
    let events = std::fs::read_to_string(here.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    for user in ["ann", "bob"] {
        let is_told = |line: &&str| {
            line.contains("\"event\":\"delivered\"")
                && line.contains("\"host\":\"there.example\"")
                && line.contains(&format!("\"recipient\":\"{user}@there.example\""))
        };
        assert_eq!(events.lines().filter(is_told).count(), 1, "{events}");
    }
    next.stop();
}

#[test]
fn equal_recipients_are_one_within_a_transaction_and_two_in_two() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let server = Server::start(here.path(), &config(next.addresses[0].port()));
    let mut client = server.hello();
    let twice = ["ann@there.example", "ann@THERE.example", "ann@there.example"];
    client.deliver(&twice, b"Subject: one\r\n\r\nx\r\n");
    client.deliver(&["ann@there.example"], b"Subject: two\r\n\r\nx\r\n");
    client.deliver(&["bob@there.example"], b"Subject: last\r\n\r\nx\r\n");
    next.wait_for_mail("there.example", "bob", 1);
    let mut mails: Vec<String> = next.wait_for_mail("there.example", "ann", 2).iter().map(|mail| mail.text()).collect();
    mails.sort_by_key(|text| text.contains("Subject: two"));
    assert!(mails.len() == 2 && mails[0].contains("Subject: one") && mails[1].contains("Subject: two"), "{mails:?}");
    drop(client);
    server.stop();
    assert_eq!(next.mailbox("there.example", "ann").len(), 2);
    next.stop();
}

#[test]
fn what_its_hosts_put_off_goes_to_the_fallback() {
    let (here, there, elsewhere) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let putting_off = "host_name = \"mx.there.example\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
                       [[domain]]\nname = \"there.example\"\nusers = [\"ann\"]\n\
                       [domain.aliases]\nbob.refuse = \"450 4.2.1 Come back tomorrow\"\n";
    let (own, other) = (Server::start(there.path(), putting_off), next_hop(elsewhere.path(), ANYWHERE));
    let fallback = format!(
        "[[relay.route]]\nfallback = true\nafter_attempts = 2\nhost = \"[127.0.0.1]\"\nport = {}\n\
         [relay.schedule.default]\nfirst_secs = 1\njitter_percent = 0\n",
        other.addresses[0].port()
    );
    let server = Server::start(here.path(), &(config(own.addresses[0].port()) + &fallback));
    let mut client = server.hello();
    client.deliver(&["ann@there.example", "bob@there.example"], b"Subject: x\r\n\r\nx\r\n");
    own.wait_for_mail("there.example", "ann", 1);
    other.wait_for_mail("there.example", "bob", 1);
    server.stop();
    own.stop();
    other.stop();
}

#[test]
fn nobody_else_may_relay_but_to_open_domains() {
    let here = tempfile::tempdir().unwrap();
    let server = Server::start(here.path(), &config(1));
    let mut other = Client::open_from(Ipv4Addr::new(127, 0, 0, 2), server.addresses[0]).unwrap();
    assert_eq!(other.reply().code, 220);
    other.expect("EHLO client.example.net", 250);
    other.expect("MAIL FROM:<sender@example.net>", 250);
    let reply = other.expect("RCPT TO:<ann@there.example>", 550);
    assert!(reply.text.contains("5.7.1"), "{reply:?}");
    other.expect("RCPT TO:<ann@[127.0.0.1]>", 550);
    other.expect("RCPT TO:<x@OPEN.example>", 250);
    other.expect("RCPT TO:<eve@here.example>", 250);
    let mut own = server.hello();
    own.expect("MAIL FROM:<sender@example.net>", 250);
    own.expect("RCPT TO:<ann@there.example>", 250);
    // Open transactions would be waited for.
    drop((other, own));
    server.stop();
}

/// Forms by which a relay was got round: two domains, routes, paths of UUCP, quotes, literals.
#[test]
fn nobody_relays_in_disguise() {
    let here = tempfile::tempdir().unwrap();
    let server = Server::start(here.path(), &config(1));
    let elsewhere = [
        "ann@there.example",
        "ann@there.example.",
        "ann@sub.here.example",
        "here.example!ann@there.example",
        "eve%here.example@there.example",
        "\"eve@here.example\"@there.example",
        "\"eve@here.example @\"@there.example",
        "@here.example:ann@there.example",
        "@here.example,@open.example:ann@there.example",
        "eve@here.example@there.example",
        "eve@here.example> <ann@there.example",
        "postmaster@there.example",
        "ann@[127.0.0.1]",
        "ann@[IPv6:::1]",
        "ann@[here.example]",
        "ann@127.0.0.1",
        "ann@localhost",
    ];
    for sender in ["sender@example.net", "eve@here.example", "postmaster@here.example", ""] {
        // One after the other: a session has a bound on errors.
        let mut other = Client::open_from(Ipv4Addr::new(127, 0, 0, 2), server.addresses[0]).unwrap();
        assert_eq!(other.reply().code, 220);
        other.expect("EHLO client.example.net", 250);
        other.expect(&format!("MAIL FROM:<{sender}>"), 250);
        for to in elsewhere {
            let reply = other.command(&format!("RCPT TO:<{to}>"));
            assert!(matches!(reply.code, 501 | 550 | 555), "{to}: {reply:?}");
        }
        // The last `@` decides; the rest is a name of ours, or none.
        for (to, code) in [
            ("ann%there.example@here.example", 550),
            ("there.example!ann@here.example", 550),
            ("\"ann@there.example\"@here.example", 550),
            ("ann@there.example@here.example", 501),
            ("@there.example:eve@here.example", 250),
            ("\"eve\"@here.example", 250),
            ("eve@HERE.example", 250),
        ] {
            let reply = other.command(&format!("RCPT TO:<{to}>"));
            assert_eq!(reply.code, code, "{to}: {reply:?}");
        }
        other.expect("RSET", 250);
    }
    assert!(relaying::list(here.path(), &[]).is_empty(), "nothing waits for another host");
    server.stop();
}

/// The reply to a recipient at another host, of a client of one listener.
fn rcpt_elsewhere(server: &Server, listener: usize) -> crate::support::Reply {
    let mut client = Client::open(server.addresses[listener]).unwrap();
    assert_eq!(client.reply().code, 220);
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<sender@example.net>", 250);
    client.command("RCPT TO:<ann@there.example>")
}

#[test]
fn relaying_added_by_a_reload_asks_for_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\n[relay]\nlocal_users = false\n";
    let server = Server::start(dir.path(), config);
    let network = "[[network]]\ncidr = \"127.0.0.1\"\nrelay = true\n";
    for times in 1..=2 {
        server.reload(&format!("{config}{network}"));
        let line = server.wait_for_log_again("these changes need a restart", times);
        assert!(line.contains("relay"), "{line}");
    }
    server.stop();
}

#[test]
fn one_listener_relays_and_the_other_does_not_until_a_reload() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let config = config(next.addresses[0].port()).replace("networks = [\"127.0.0.1\"]\n", "local_users = false\n");
    let second = "[[listener]]\naddress = \"127.0.0.1:0\"\nrelay = true\n";
    let server = Server::start(here.path(), &format!("{config}{second}"));
    let refused = rcpt_elsewhere(&server, 0);
    assert!(refused.code == 550 && refused.text.contains("5.7.1"), "{refused:?}");
    let mut client = Client::open(server.addresses[1]).unwrap();
    assert_eq!(client.reply().code, 220);
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@there.example"], b"Subject: x\r\n\r\nx\r\n");
    next.wait_for_mail("there.example", "ann", 1);
    drop(client);
    server.reload(&format!("{config}{}", second.replace("true", "false")));
    server.wait_for_log("configuration reloaded");
    assert_eq!(rcpt_elsewhere(&server, 1).code, 550);
    let network = "[[network]]\ncidr = \"127.0.0.1\"\nrelay = true\n";
    server.reload(&format!("{config}{}{network}", second.replace("true", "false")));
    server.wait_for_log_again("configuration reloaded", 2);
    assert_eq!([rcpt_elsewhere(&server, 0).code, rcpt_elsewhere(&server, 1).code], [250, 250]);
    // An open relay is refused, and what was in force still is.
    server.reload(&format!("{config}{}", second.replace("127.0.0.1", "0.0.0.0")));
    let line = server.wait_for_log("configuration not reloaded");
    assert!(line.contains("open relay"), "{line}");
    assert_eq!(rcpt_elsewhere(&server, 0).code, 250);
    server.stop();
    next.stop();
}

#[test]
fn programs_on_this_machine_may_send_anywhere() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let config = config(next.addresses[0].port()).replace("networks = [\"127.0.0.1\"]\n", "");
    let server = Server::start(here.path(), &config);
    let mut client = server.hello();
    client.expect("MAIL FROM:<sender@example.net>", 250);
    client.expect("RCPT TO:<ann@there.example>", 550);
    drop(client);
    let mut sendmail = command(here.path(), &["sendmail", "-i", "-f", "eve@here.example", "ann@there.example"]);
    let mut sendmail = sendmail.stdin(Stdio::piped()).spawn().unwrap();
    sendmail.stdin.take().unwrap().write_all(b"Subject: local\n\nx\n").unwrap();
    assert!(sendmail.wait().unwrap().success());
    let text = next.wait_for_mail("there.example", "ann", 1)[0].text();
    assert!(text.contains("\nSubject: local\n"), "{text}");
    server.stop();
    next.stop();
}

#[test]
fn a_local_sender_is_told_of_a_failure() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let server = Server::start(here.path(), &config(next.addresses[0].port()));
    let mut client = server.hello();
    let reply =
        client.try_message("eve@here.example", &["nobody@there.example"], b"Subject: lost\r\n\r\nx\r\n").unwrap();
    assert_eq!(reply.code, 250);
    let text = server.wait_for_mail("here.example", "eve", 1)[0].text();
    assert!(text.starts_with("Return-Path: <>\nDelivered-To: eve@here.example\n"), "{text}");
    for line in
        ["Final-Recipient: rfc822; nobody@there.example\n", "Action: failed\n", "Status: 5.1.1\n", "Subject: lost\n"]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
    server.stop();
    next.stop();
}

#[test]
fn mail_survives_a_kill_while_the_next_hop_is_away() {
    survives_a_kill("");
}

#[test]
fn mail_in_files_survives_a_kill_and_is_relayed_once() {
    survives_a_kill("[storage]\nkind = \"files\"\n");
}

fn survives_a_kill(storage: &str) {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = unused_port();
    let mut server = Server::start(here.path(), &(config(port) + storage));
    let mut client = server.hello();
    for number in 0..20 {
        client.deliver(&["ann@there.example"], format!("Subject: {number}\r\n\r\nx\r\n").as_bytes());
    }
    server.wait_for_log("mail waits for these hosts");
    server.signal(Signal::KILL);
    server.wait();
    let next = next_hop(there.path(), &format!("127.0.0.1:{port}"));
    let server = Server::start_as_it_is(here.path());
    let stored = next.wait_for_mail("there.example", "ann", 20);
    for number in 0..20 {
        let subject = format!("\nSubject: {number}\n");
        assert_eq!(stored.iter().filter(|stored| stored.text().contains(&subject)).count(), 1, "{number}");
    }
    server.stop();
    next.stop();
}

#[test]
fn forwarded_mail_leaves_from_an_address_that_leads_back() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    std::fs::write(here.path().join("srs.secret"), "a secret for tests\n").unwrap();
    let forwards = "[domain.aliases]\nfan = [\"eve\", \"ann@there.example\"]\n[domain.accounts.eve]\nforward = [\"bob@there.example\"]\nkeep_copy = true\n[relay]\n";
    let srs = "[relay.srs]\ndomain = \"here.example\"\nsecret_file = \"srs.secret\"\n[dns]\n";
    let config = config(next.addresses[0].port()).replace("[relay]\nnetworks = [\"127.0.0.1\"]\n", forwards);
    let server = Server::start(here.path(), &config.replace("[dns]\n", srs));
    let mut client = server.hello();
    client.try_message("ann@there.example", &["fan@here.example"], b"Subject: fan\r\n\r\nx\r\n").unwrap();
    server.wait_for_mail("here.example", "eve", 1);
    next.wait_for_mail("there.example", "bob", 1);
    let text = next.wait_for_mail("there.example", "ann", 1)[0].text();
    let sender = text.strip_prefix("Return-Path: <").and_then(|rest| rest.split_once('>')).expect("a sender").0;
    assert!(sender.starts_with("SRS0=") && sender.ends_with("=there.example=ann@here.example"), "{sender}");
    // The way back is open to everybody, for what we have signed.
    client.expect("MAIL FROM:<>", 250);
    client.expect(&format!("RCPT TO:<{}>", sender.replace("=ann@", "=bob@")), 550);
    client.expect("RCPT TO:<ann@there.example>", 550);
    client.expect(&format!("RCPT TO:<{sender}>"), 250);
    client.expect("DATA", 354);
    client.expect("Subject: back\r\n\r\nx\r\n.", 250);
    let back = next.wait_for_mail("there.example", "ann", 2);
    assert!(back.iter().any(|stored| stored.text().starts_with("Return-Path: <>\n")), "{back:?}");
    server.stop();
    next.stop();
}

#[test]
fn only_forwarded_recipients_see_a_rewritten_sender() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    std::fs::write(here.path().join("srs.secret"), "a secret for tests\n").unwrap();
    let config = config(next.addresses[0].port());
    let config = config.replace(
        "[relay]\n",
        "[domain.aliases]\nfan = [\"ann@there.example\"]\nlost = [\"gone@there.example\"]\n[relay]\n",
    );
    let srs = "[relay.srs]\ndomain = \"here.example\"\nsecret_file = \"srs.secret\"\n[dns]\n";
    let server = Server::start(here.path(), &config.replace("[dns]\n", srs));
    let mut client = server.hello();
    let to = ["fan@here.example", "bob@there.example", "lost@here.example"];
    client.try_message("ann@there.example", &to, b"Subject: fan\r\n\r\nx\r\n").unwrap();
    let text = next.wait_for_mail("there.example", "bob", 1)[0].text();
    assert!(text.starts_with("Return-Path: <ann@there.example>\n"), "{text}");
    // She gets it too, and hears of the one who does not.
    let stored = next.wait_for_mail("there.example", "ann", 2);
    let begins = |with: &str| stored.iter().map(|stored| stored.text()).find(|text| text.starts_with(with));
    let forwarded = begins("Return-Path: <SRS0=").unwrap_or_else(|| panic!("{stored:?}"));
    assert!(forwarded.contains("\nSubject: fan\n"), "{forwarded}");
    let told = begins("Return-Path: <>\n").unwrap_or_else(|| panic!("{stored:?}"));
    assert!(told.contains("\nTo: <ann@there.example>\n") && told.contains("gone@there.example"), "{told}");
    server.stop();
    next.stop();
}

#[test]
fn sources_and_pools_change_with_a_reload() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let with = |source: &str| {
        let pool = "[[relay.pool]]\nname = \"all\"\nsources = { out = 1 }\n";
        config(next.addresses[0].port()) + "[[relay.source]]\nname = \"out\"\n" + source + pool
    };
    // Of the documentation (RFC 5737): no machine has it.
    let server = Server::start(here.path(), &with("ipv4 = \"192.0.2.1\"\n"));
    let mut client = server.hello();
    client.deliver(&["ann@there.example"], b"Subject: x\r\n\r\n\r\n");
    let told = server.wait_for_log("no mail is sent from this source");
    assert!(told.contains("source=\"out\"") || told.contains("source=out"), "{told}");
    let reload = |source: &str, expected: &str| {
        server.reload(&with(source));
        server.wait_for_log(expected)
    };
    let bad = reload("ipv4 = \"127.0.0.5\"\nproxy = \"http://x\"\n", "configuration not reloaded");
    assert!(bad.contains("socks5://"), "{bad}");
    reload("ipv4 = \"127.0.0.5\"\nehlo = \"out.example\"\n", "configuration reloaded");
    let text = next.wait_for_mail("there.example", "ann", 1)[0].text();
    assert!(text.contains("from out.example ([127.0.0.5])"), "{text}");
    drop(client);
    server.stop();
    next.stop();
}

#[test]
fn a_loop_of_two_forwards_ends() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, unused_port()));
    let config = |own: &str, other: &str, listen: &str, port: u16| {
        format!(
            "host_name = \"mx.{own}.example\"\n[[listener]]\naddress = \"{listen}\"\n[[domain]]\nname = \"{own}.example\"\nusers = [\"ann\"]\n\
             [domain.aliases]\nround = \"round@{other}.example\"\n[relay]\nport = {port}\n\
             [dns]\nservers = [\"127.0.0.1:9\"]\nhosts = {{ \"{other}.example\" = [\"127.0.0.1\"] }}\n"
        )
    };
    let next = Server::start(there.path(), &config("there", "here", "127.0.0.1:0", address.port()));
    let port = next.addresses[0].port();
    let server = Server::start(here.path(), &config("here", "there", &address.to_string(), port));
    let mut client = server.hello();
    client.try_message("ann@here.example", &["round@here.example"], b"Subject: round\r\n\r\nx\r\n").unwrap();
    let text = server.wait_for_mail("here.example", "ann", 1)[0].text();
    assert!(text.starts_with("Return-Path: <>\n") && text.contains("Status: 5.4.6\n"), "{text}");
    server.stop();
    next.stop();
}

#[test]
fn a_trusted_client_hears_of_success() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let config = config(next.addresses[0].port()).replace("[\"eve\"]", "[\"eve\", \"joe\"]");
    let server = Server::start(here.path(), &config);
    let mut other = Client::open_from(Ipv4Addr::new(127, 0, 0, 2), server.addresses[0]).unwrap();
    other.reply();
    assert!(!other.expect("EHLO client.example.net", 250).text.contains("DSN"));
    other.expect("MAIL FROM:<eve@here.example>", 250);
    other.expect("RCPT TO:<joe@here.example> NOTIFY=SUCCESS", 555);
    drop(other);
    let mut client = server.connect();
    assert!(client.expect("EHLO client.example.net", 250).text.contains("DSN"));
    client.expect("MAIL FROM:<eve@here.example> RET=HDRS ENVID=QQ314159", 250);
    client.expect("RCPT TO:<joe@here.example> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Joe@old.example", 250);
    client.expect("RCPT TO:<ann@there.example> NOTIFY=SUCCESS", 250);
    client.expect("RCPT TO:<bob@there.example> NOTIFY=NEVER", 250);
    client.expect("RCPT TO:<nobody@there.example> NOTIFY=NEVER", 250);
    client.expect("DATA", 354);
    client.expect("Subject: told\r\n\r\nsecret\r\n.", 250);
    let told = server.wait_for_mail("here.example", "eve", 2);
    let about = |address: &str| {
        let field = format!("Final-Recipient: rfc822; {address}\n");
        told.iter().map(|told| told.text()).find(|text| text.contains(&field)).unwrap_or_else(|| panic!("{told:?}"))
    };
    let local = about("joe@here.example");
    for line in [
        "Original-Envelope-Id: QQ314159\n",
        "Original-Recipient: rfc822; Joe@old.example\n",
        "Action: delivered\n",
        "Subject: told\n",
    ] {
        assert!(local.contains(line), "{line} in {local}");
    }
    assert!(!local.contains("secret"), "{local}");
    assert!(about("ann@there.example").contains("Action: relayed\n"));
    next.wait_for_mail("there.example", "bob", 1);
    // The empty sender is told nothing.
    client.expect("MAIL FROM:<>", 250);
    client.expect("RCPT TO:<joe@here.example> NOTIFY=SUCCESS", 250);
    client.expect("DATA", 354);
    client.expect("Subject: untold\r\n\r\n.", 250);
    server.wait_for_mail("here.example", "joe", 2);
    server.stop();
    assert_eq!(told.len(), 2);
    next.stop();
}

#[test]
fn hosts_and_address_families_change_with_a_reload() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    let hosts = here.path().join("hosts");
    std::fs::write(&hosts, "127.0.0.1 file.example\n").unwrap();
    let with = |more: &str| {
        let config = config(next.addresses[0].port()).replace("unreachable_secs = 1\n", "unreachable_secs = 1800\n");
        config + &format!("hosts_file = \"{}\"\n", hosts.display()) + more
    };
    let server = Server::start(here.path(), &with("ip = \"ipv6-only\"\n"));
    let mut client = server.hello();
    // It has only an IPv4 address. That is final, so the sender is told: by local mail.
    client.try_message("eve@here.example", &["ann@there.example"], b"Subject: early\r\n\r\nx\r\n").unwrap();
    let told = server.wait_for_mail("here.example", "eve", 1)[0].text();
    assert!(told.contains("Status: 5.4.4\n"), "{told}");
    let reload = |more: &str, expected: &str| {
        server.reload(&with(more));
        server.wait_for_log(expected)
    };
    reload("ip = \"ipv4-first\"\n", "configuration reloaded");
    client.deliver(&["ann@there.example"], b"Subject: late\r\n\r\nx\r\n");
    next.wait_for_mail("there.example", "ann", 1);
    // A file that is gone leaves all as it was.
    std::fs::remove_file(&hosts).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("cannot use the new DNS settings; keeping the old ones");
    client.deliver(&["bob@there.example"], b"Subject: later\r\n\r\nx\r\n");
    next.wait_for_mail("there.example", "bob", 1);
    drop(client);
    server.stop();
    next.stop();
}

#[test]
fn a_host_found_by_dns_that_is_this_server_is_a_loop() {
    let here = tempfile::tempdir().unwrap();
    let port = unused_port();
    let config = config(port).replace("address = \"127.0.0.1:0\"", &format!("address = \"0.0.0.0:{port}\""));
    let server = Server::start(here.path(), &config);
    let mut client = server.hello();
    for (at, to) in ["ann@there.example", "ann@[127.0.0.1]"].into_iter().enumerate() {
        client.try_message("eve@here.example", &[to], b"Subject: around\r\n\r\nx\r\n").unwrap();
        let told = server.wait_for_mail("here.example", "eve", at + 1);
        for text in told.iter().map(|told| told.text()) {
            let hops = text.lines().filter(|line| line.starts_with("Received: ")).count();
            assert_eq!((text.contains("Status: 5.4.6\n"), hops), (true, 1), "{to}: {text}");
        }
    }
    drop(client);
    server.stop();
}
