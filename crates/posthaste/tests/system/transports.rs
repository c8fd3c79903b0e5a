//! Mail for programs, files and LMTP servers, through the server.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::relay_events::wait_for;
use crate::support::{PATIENCE, Server, command};

/// A directory that the server's user can use, and the beginning of the configuration: no program runs as root.
fn world() -> (tempfile::TempDir, String) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let mut config = String::new();
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
        config += "user = 65534\ngroup = 65534\n";
    }
    // What is delivered is listed until a checkpoint, so one comes each second.
    let storage = "[storage]\ncheckpoint_secs = 1\n";
    (dir, config + "host_name = \"mx.example.org\"\n" + storage + "[[listener]]\naddress = \"127.0.0.1:0\"\n")
}

fn domain(dir: &Path, aliases: &str) -> String {
    let out = dir.join("out");
    format!("[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n[domain.aliases]\n{aliases}\n")
        .replace("OUT", out.to_str().unwrap())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn inspect(dir: &Path) -> Value {
    let output = command(dir, &["spool", "inspect", "posthaste-data", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_first_try_names_the_transport_of_its_domain() {
    let (dir, base) = world();
    let of = "[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\ntransport = \"lmtp:127.0.0.1:1\"\n";
    let server = Server::start(dir.path(), &(base + of));
    let (_, said) = server.banner.split_once("Try it:\n").unwrap();
    assert!(said.contains("\n  # it goes to lmtp:127.0.0.1:1; the log says what becomes of it\n"), "{said}");
    assert!(!said.contains("Maildir"), "{said}");
    server.stop();
}

#[test]
fn one_message_for_a_mailbox_a_program_a_file_and_a_server() {
    let (dir, base) = world();
    // Our own LMTP server is the next hop.
    let (next, next_base) = world();
    let next_config = next_base.replace("address = \"127.0.0.1:0\"", "address = \"127.0.0.1:0\"\nprotocol = \"lmtp\"");
    let next_server = Server::start(
        next.path(),
        &(next_config + "[[domain]]\nname = \"example.org\"\nusers = [\"carl\", \"dora\"]\n"),
    );
    let aliases = "all = [\"ann\", \"list\", \"/OUT/file\", \"carl\", \"dora\"]\n".replace("/OUT", "OUT")
        + "list = '|/bin/sh -c \"(env; cat) > OUT/new; mv OUT/new OUT/program\"'\n"
        + &format!("carl = \"lmtp:{0}\"\ndora = \"lmtp:{0}\"\n", next_server.addresses[0]);
    let server = Server::start(dir.path(), &(base + &domain(dir.path(), &aliases)));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["all@example.org"], b"Subject: to all\r\n\r\nFrom here\r\n");
    server.wait_for_mail("example.org", "ann", 1);
    let out = dir.path().join("out");
    until("the program has it", || out.join("program").exists());
    let text = read(out.join("program"));
    assert!(
        text.contains("RECIPIENT=list@example.org\n") && text.contains("ORIGINAL_RECIPIENT=all@example.org\n"),
        "{text}"
    );
    assert!(
        text.contains("Delivered-To: list@example.org\nReceived: from client.example.net")
            && text.ends_with("\nFrom here\n"),
        "{text}"
    );
    until("the file has it", || read(out.join("file")).ends_with("\n>From here\n\n"));
    for user in ["carl", "dora"] {
        let stored = next_server.wait_for_mail("example.org", user, 1);
        let text = stored[0].text();
        assert!(
            text.starts_with(&format!("Return-Path: <sender@example.net>\nDelivered-To: {user}@example.org\n")),
            "{text}"
        );
        assert!(text.contains("with LMTP id ") && text.ends_with("\nFrom here\n"), "{text}");
    }
    until("nothing waits", || inspect(dir.path())["undelivered"].as_array().unwrap().is_empty());
    server.stop();
    next_server.stop();
}

#[test]
fn a_program_running_at_a_kill_gets_its_message_again() {
    let (dir, base) = world();
    let aliases = "list = '|/bin/sh -c \"echo begun >> OUT/log; test -e OUT/go || sleep 1000; cat > OUT/new; mv OUT/new OUT/program\"'";
    let config = base + &domain(dir.path(), aliases);
    let mut server = Server::start(dir.path(), &config);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["list@example.org"], b"Subject: x\r\n\r\ntext\r\n");
    let out = dir.path().join("out");
    until("it has begun", || read(out.join("log")) == "begun\n");
    server.signal(Signal::KILL);
    server.wait();
    std::fs::write(out.join("go"), "").unwrap();
    let server = Server::start_as_it_is(dir.path());
    until("the program has it", || read(out.join("program")).ends_with("\ntext\n"));
    server.stop();
    assert_eq!(read(out.join("log")), "begun\nbegun\n");
}

#[test]
fn the_end_tells_of_mail_that_waits_for_programs() {
    let (dir, base) = world();
    let aliases = "list = '|/bin/sh -c \"echo begun >> OUT/log; exec sleep 1000\"'\nnone = \"|/no/such/program\"";
    let mut server =
        Server::start(dir.path(), &(base + &domain(dir.path(), aliases) + "[limits]\nshutdown_secs = 1\n"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["list@example.org", "none@example.org"], b"Subject: x\r\n\r\ntext\r\n");
    client.deliver(&["none@example.org", "ann@example.org"], b"Subject: x\r\n\r\ntext\r\n");
    client.expect("QUIT", 221);
    server.wait_for_mail("example.org", "ann", 1);
    until("it has begun", || read(dir.path().join("out/log")) == "begun\n");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let line = server.wait_for_log("mail still waits for programs, files or LMTP servers");
    assert!(line.contains(" WARN ") && line.contains("messages=2") && line.contains("transports=2"), "{line}");
    let line = server.wait_for_log("stopped");
    assert!(line.contains("waiting=0") && line.contains("waiting_for_transports=2"), "{line}");
}

#[test]
fn a_permanent_refusal_is_told_once_and_retried_on_sighup() {
    let (dir, base) = world();
    let aliases =
        "list = '|/bin/sh -c \"test -e OUT/go || { echo nobody of that name; exit 67; }; cat > OUT/program\"'";
    let server = Server::start(dir.path(), &(base + &domain(dir.path(), aliases)));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["list@example.org"], b"Subject: x\r\n\r\ntext\r\n");
    let line = server.wait_for_log("refused for good");
    assert!(line.contains("list@example.org") && line.contains("exit status 67: nobody of that name"), "{line}");
    until("it is shown", || inspect(dir.path())["waiting"][0]["refused"] == 1);
    let text = command(dir.path(), &["spool", "inspect", "--messages", "posthaste-data"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("\n    1 message refused for good, oldest ")
            && text.contains("  for list@example.org  refused for good: "),
        "{text}"
    );
    std::fs::write(dir.path().join("out/go"), "").unwrap();
    server.signal(Signal::HUP);
    until("the program has it", || read(dir.path().join("out/program")).ends_with("\ntext\n"));
    assert_eq!(server.log_text().matches("refused for good").count(), 1);
    server.stop();
}

#[test]
fn one_held_message_is_dropped_by_number_with_events() {
    let (dir, base) = world();
    let aliases = "list = '|/bin/sh -c \"echo no; exit 67\"'\nslow = '|/bin/sh -c \"exit 75\"'\ngood = '|/bin/cat'";
    let server = Server::start(dir.path(), &(base + "[events]\nenabled = true\n" + &domain(dir.path(), aliases)));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["list@example.org", "slow@example.org", "good@example.org"], b"Subject: x\r\n\r\none of two\r\n");
    client.deliver(&["list@example.org"], b"Subject: x\r\n\r\nthe other\r\n");
    let lines = || {
        let text = read(dir.path().join("posthaste-data/events/events-00000001.jsonl"));
        let lines: Vec<Value> = text.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect();
        lines
    };
    let of = |event: &str| {
        let recipients = |line: &Value| {
            (line["event"] == event && line["transport"].is_string())
                .then(|| line["recipient"].as_str().unwrap().to_owned())
        };
        lines().iter().filter_map(recipients).collect::<Vec<_>>()
    };
    until("all is told", || {
        of("held").len() == 2 && of("waiting") == ["slow@example.org"] && of("delivered") == ["good@example.org"]
    });
    assert_eq!(of("held"), ["list@example.org"; 2]);
    let held = lines().into_iter().find(|line| line["event"] == "held").unwrap();
    assert!(held["error"].as_str().unwrap().ends_with("exit status 67: no") && held["message"].is_string(), "{held}");
    server.stop();
    let listed = inspect(dir.path())["undelivered"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    let drop = |arguments: &[&str]| {
        let output = command(dir.path(), &[&["spool", "drop", "posthaste-data"], arguments].concat()).output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (done, said) = drop(&["1", "--discard"]);
    assert!(!done && said.contains("no message 1 waits for programs"), "{said}");
    let (done, said) = drop(&[&id, "--recipient", "good@example.org", "--discard"]);
    assert!(!done && said.contains("does not wait for good@example.org"), "{said}");
    let (done, said) = drop(&[&id, "--recipient", "list@example.org", "--export", "dropped"]);
    assert!(done && said.contains(&format!("dropped: message {id} for list@example.org at |/bin/sh")), "{said}");
    let body = read(dir.path().join(format!("dropped/{:020}.body", id.parse::<u64>().unwrap())));
    assert!(body.ends_with("\r\none of two\r\n"), "{body}");
    let about = read(dir.path().join(format!("dropped/{:020}.json", id.parse::<u64>().unwrap())));
    assert!(about.contains("list@example.org") && about.contains("sender@example.net"), "{about}");
    let waiting = || -> Vec<(String, String)> {
        let listed = inspect(dir.path())["undelivered"].clone();
        let targets = listed.as_array().unwrap().iter().flat_map(|message| {
            let id = message["id"].as_str().unwrap().to_owned();
            message["mailboxes"]
                .as_array()
                .unwrap()
                .iter()
                .map(move |to| (id.clone(), to["recipient"].as_str().unwrap().to_owned()))
        });
        targets.collect()
    };
    let other = listed[1]["id"].as_str().unwrap().to_owned();
    let left = [(id.clone(), "slow@example.org".to_owned()), (other, "list@example.org".to_owned())];
    assert_eq!(waiting(), left);
    // The server knows, too.
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_log("refused for good");
    server.stop();
    assert_eq!(waiting(), left);
    let (done, said) = drop(&[&id, "--discard", "--json"]);
    assert!(
        done && serde_json::from_str::<Value>(&said).unwrap()["dropped"][0]["recipient"] == "slow@example.org",
        "{said}"
    );
    assert_eq!(waiting(), left[1..]);
}

#[test]
fn the_reply_of_an_lmtp_server_is_told_with_its_stage() {
    let (dir, base) = world();
    let (next, next_base) = world();
    let next_config = next_base.replace("address = \"127.0.0.1:0\"", "address = \"127.0.0.1:0\"\nprotocol = \"lmtp\"");
    let next_server =
        Server::start(next.path(), &(next_config + "[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n"));
    let aliases = format!("gone = \"lmtp:{}\"", next_server.addresses[0]);
    let server = Server::start(dir.path(), &(base + "[events]\nenabled = true\n" + &domain(dir.path(), &aliases)));
    server.hello().deliver(&["gone@example.org"], b"Subject: x\r\n\r\nx\r\n");
    let line = wait_for(dir.path(), "held", "recipient", "gone@example.org").remove(0);
    assert_eq!(line["stage"], "RCPT", "{line}");
    assert!(line["error"].as_str().is_some_and(|error| error.starts_with("550 5.1.1 ")), "{line}");
    // Where people read one text, it stands in front.
    let line = server.wait_for_log("refused for good");
    assert!(line.contains("RCPT: 550 5.1.1 "), "{line}");
    server.stop();
    next_server.stop();
}

#[test]
fn who_may_configure_programs_and_what_is_wrong_with_them() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, base) = world();
    let check = |config: &str| {
        std::fs::write(dir.path().join("posthaste.toml"), config).unwrap();
        let output = command(dir.path(), &["config", "check", "--config", "posthaste.toml"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };
    let config = base.clone()
        + &domain(
            dir.path(),
            "a = \"|/no/such/program\"\nb = \"/no/such/dir/file\"\nc = \"lmtp:unix:/no/such/socket\"",
        );
    let (status, said) = check(&config);
    assert_eq!(status, Some(0), "{said}");
    for warning in [
        "transport |/no/such/program: ",
        "transport /no/such/dir/file: /no/such/dir: ",
        "transport lmtp:unix:/no/such/socket: ",
    ] {
        assert!(said.contains(warning), "{said}");
    }
    let good = base.clone() + &domain(dir.path(), "a = \"|/bin/cat\"\nb = \"OUT/file\"");
    let (status, said) = check(&good);
    assert!(status == Some(0) && !said.contains("transport"), "{said}");
    // Users who can write the file could run programs as the server's user.
    let is_refused = |why: &str| {
        let output = command(dir.path(), &["config", "check", "--config", "posthaste.toml"]).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(why), "{said}");
        let output = command(dir.path(), &["serve", "--config", "posthaste.toml"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    let file = dir.path().join("posthaste.toml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    is_refused("everybody can write to it");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::fs::write(&file, good.replace("user = 65534\ngroup = 65534\n", "")).unwrap();
        is_refused("not used as root");
        std::fs::write(&file, &good).unwrap();
        std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
        is_refused("belongs to uid 12345");
    }
}

#[test]
fn mail_that_a_transport_refuses_is_told_once_and_listed() {
    let (dir, base) = world();
    let aliases = "list = '|/bin/sh -c \"echo no such user; exit 67\"'\npostmaster = \"ann\"";
    let config = base + &domain(dir.path(), aliases);
    let server = Server::start(dir.path(), &config);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    // A sender of ours is told itself; a stranger's address may be forged.
    for (from, told) in [("ann@example.org", 1), ("sender@example.net", 2), ("other@example.net", 2)] {
        let reply = client.try_message(from, &["list@example.org"], b"Subject: x\r\n\r\ntext\r\n").unwrap();
        assert_eq!(reply.code, 250, "{reply:?}");
        let stored = server.wait_for_mail("example.org", "ann", told);
        assert!(stored.iter().all(|notice| notice.text().contains("\nSubject: A message is refused and waits\n")));
        let is_named = |notice: &crate::support::Stored| notice.text().contains(&format!("\nfrom:      {from}\n"));
        assert_eq!(stored.iter().any(is_named), from != "other@example.net", "the postmaster is told once an hour");
        let text = stored.iter().map(crate::support::Stored::text).collect::<String>();
        assert!(
            text.contains("\nto:        list@example.org\n") && text.contains("exit status 67: no such user\n"),
            "{text}"
        );
    }
    let queue = |args: &[&str]| {
        let output = command(dir.path(), &[&["queue"], args].concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let listed = || -> Value {
        let (_, lines) = queue(&["list", "--held", "--json"]);
        serde_json::from_str(&lines).unwrap()
    };
    until("all are listed", || listed().as_array().unwrap().len() == 3);
    let line = &listed()[0];
    assert_eq!(
        (&line["held_by"], &line["sender"], &line["state"]),
        (&"transport".into(), &"ann@example.org".into(), &"held".into())
    );
    let (code, shown) = queue(&["show", line["id"].as_str().unwrap()]);
    assert!(
        code == Some(0) && shown.contains("state      held transport\n") && shown.contains("no such user"),
        "{shown}"
    );
    assert!(queue(&["list", "--sender", "ann@example.org"]).1.contains("held until "));
    assert_eq!(queue(&["list", "--sender", "nobody@example.org"]).0, Some(1));
    client.expect("QUIT", 221);
    server.stop();
    // A restart tries it again, and tells nobody again.
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_log("refused for good");
    until("all are tried", || listed().as_array().unwrap().iter().filter(|line| line["attempts"] == 1).count() == 3);
    assert_eq!(server.mailbox("example.org", "ann").len(), 2);
    server.stop();
}

/// An LMTP server that offers 8BITMIME and not SMTPUTF8; it sends its input through the channel, line by line.
fn lmtp_without_utf8() -> (std::net::SocketAddr, std::sync::mpsc::Receiver<String>) {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, (tell, told)) = (listener.local_addr().unwrap(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let tell = tell.clone();
            std::thread::spawn(move || -> std::io::Result<()> {
                let (mut write, mut is_text) = (stream.try_clone()?, false);
                write.write_all(b"220 sink.example LMTP\r\n")?;
                for line in BufReader::new(stream).split(b'\n') {
                    let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
                    let reply = match line.split(' ').next().unwrap_or_default() {
                        "." => "250 2.0.0 kept\r\n",
                        _ if is_text => "",
                        "LHLO" => "250-sink.example\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES\r\n",
                        "DATA" => "354 go\r\n",
                        _ => "250 2.0.0 ok\r\n",
                    };
                    is_text = reply.starts_with("354") || is_text && !reply.starts_with("250");
                    write.write_all(reply.as_bytes())?;
                    // The test may have ended.
                    let _ = tell.send(line);
                }
                Ok(())
            });
        }
    });
    (address, told)
}

#[test]
fn smtputf8_without_need_reaches_a_server_without_it() {
    let (dir, base) = world();
    let (address, told) = lmtp_without_utf8();
    let domains = ["lmtp.example", "xn--bcher-kva.example"];
    let domains = domains
        .map(|name| format!("[[domain]]\nname = \"{name}\"\nusers = [\"bob\"]\ntransport = \"lmtp:{address}\"\n"));
    let server = Server::start(dir.path(), &(base + &domains.concat()));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let mut send = |params: &str, to: &str, message: &str| {
        client.expect(&format!("MAIL FROM:<ann@a.example> {params}"), 250);
        client.expect(&format!("RCPT TO:<{to}>"), 250);
        client.expect("DATA", 354);
        client.send(message.as_bytes()).unwrap();
        client.expect("\r\n.", 250);
    };
    let hears = |wanted: &str| {
        let deadline = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        while let Ok(line) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            said.push(line);
            if said.last().is_some_and(|line| line == wanted) {
                return said;
            }
        }
        panic!("never {wanted}: {said:?}");
    };
    for (params, to, message, last) in [
        ("SMTPUTF8", "bob@lmtp.example", "Subject: a\r\n\r\nascii", "ascii"),
        ("BODY=8BITMIME SMTPUTF8", "bob@lmtp.example", "Subject: b\r\n\r\ngrün", "grün"),
        ("", "bob@lmtp.example", "Subject: grün\r\n\r\nwithout the word", "without the word"),
        ("SMTPUTF8", "bob@b\u{fc}cher.example", "Subject: c\r\n\r\nu-label", "u-label"),
    ] {
        send(params, to, message);
        let said = hears(last);
        assert!(said.iter().all(|line| !line.contains("SMTPUTF8")), "{said:?}");
        let to = to.replace("b\u{fc}cher", "xn--bcher-kva");
        assert!(said.contains(&format!("RCPT TO:<{to}>")), "{said:?}");
    }
    // A header beyond ASCII needs it.
    send("SMTPUTF8", "bob@lmtp.example", "Subject: gr\u{fc}n\r\n\r\nneeds it");
    server.wait_for_log("Server does not offer SMTPUTF8");
    server.stop();
}

#[test]
fn route_shows_transports() {
    let (dir, base) = world();
    let config = base + &domain(dir.path(), "list = [\"ann\", \"|/usr/bin/list -v\"]\nfile = \"/var/mail/x\"");
    std::fs::write(dir.path().join("posthaste.toml"), config).unwrap();
    let route = |arguments: &[&str]| {
        let output = command(dir.path(), &[&["route"], arguments].concat()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = route(&["list+x@example.org", "file@example.org"]);
    assert!(text.contains("  program       |/usr/bin/list -v   (for list+x@example.org)\n"), "{text}");
    assert!(text.contains("  file          /var/mail/x   (for file@example.org)\n"), "{text}");
    let json: Value = serde_json::from_str(&route(&["--json", "list@example.org"])).unwrap();
    assert_eq!(json[0]["mailboxes"][1]["transport"], "|/usr/bin/list -v");
    assert_eq!(json[0]["mailboxes"][1]["kind"], "program");
}
