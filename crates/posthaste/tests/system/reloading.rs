//! A reload of the configuration.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::Instant;

use crate::receiving::ROUTED;
use crate::relaying::unused_port;
use crate::support::{PATIENCE, Server, command};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn sighup_reloads_and_keeps_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ROUTED);
    let mut session = server.connect();
    session.expect("EHLO client.example.net", 250);
    session.expect("MAIL FROM:<s@example.net>", 250);
    session.expect("RCPT TO:<carol@example.org>", 550);

    let with_carol = ROUTED.replace("\"bob\"]\n", "\"bob\", \"carol\"]\n")
        + "[limits]\nmessage_bytes = 4096\nconnections = 30\n[log]\nformat = \"json\"\n";
    server.reload(&with_carol);
    server.wait_for_log("configuration reloaded");
    assert!(server.wait_for_log("need a restart").contains("\"log.format\""));
    let and_memory = with_carol.replace("connections = 30\n", "connections = 30\nmemory_bytes = 8388608\n");
    server.reload(&and_memory);
    let line = server.wait_for_log("limits.memory_bytes");
    assert!(line.contains("\"log.format, limits.memory_bytes\""), "they still do: {line}");
    session.expect("RCPT TO:<carol@example.org>", 250);
    let mut fresh = server.connect();
    let hello = fresh.expect("EHLO client.example.net", 250);
    assert!(hello.text.lines().any(|line| line == "SIZE 4096"), "{}", hello.text);
    fresh.expect("MAIL FROM:<s@example.net> SIZE=5000", 552);

    server.reload("[[domain]]\nnam = \"x\"\n");
    let line = server.wait_for_log("configuration not reloaded");
    assert!(line.contains("posthaste.toml:2:1") && !line.contains("\\n"), "{line}");
    // A file that is gone, empty, cut short or unreadable does not turn all mail away.
    let file = dir.path().join("posthaste.toml");
    std::fs::remove_file(&file).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("posthaste.toml: cannot be read: No such file");
    std::fs::write(&file, "").unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("[[domain]] is gone");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("posthaste.toml: cannot be read: Is a directory");
    let fresh_too = &mut server.connect();
    fresh_too.expect("EHLO client.example.net", 250);
    fresh_too.expect("MAIL FROM:<s@example.net>", 250);
    fresh_too.expect("RCPT TO:<carol@example.org>", 250);
    fresh_too.expect("QUIT", 221);
    session.expect("RCPT TO:<carol@example.org>", 250);
    // Its transaction is open, and the server would wait for it.
    session.expect("QUIT", 221);
    server.stop();
}

#[test]
fn a_reload_applies_what_it_can_beside_changed_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, other) = (unused_port(), unused_port());
    let listener =
        |port: u16, limits: &str| format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\nlimits = {{ {limits} }}\n");
    let rest = "[[domain]]\nname = \"example.org\"\nusers = \"any\"\n";
    let server = Server::start(dir.path(), &(listener(kept, "message_bytes = 1000") + rest));
    let new = listener(other, "") + &listener(kept, "message_bytes = 2000, hops = 2") + rest;
    server.reload(&new);
    let line = server.wait_for_log("need a restart");
    assert!(line.contains(&format!("changes=\"listener 127.0.0.1:{other} (added)\"")), "{line}");
    let mut client = server.connect();
    let hello = client.expect("EHLO client.example.net", 250);
    assert!(hello.text.lines().any(|line| line == "SIZE 2000"), "{}", hello.text);
    let hops = |number| [b"Received: from x by y; z\r\n".repeat(number), b"\r\n".to_vec()].concat();
    client.deliver(&["a@example.org"], &hops(1));
    let looping = client.try_message("s@example.net", &["a@example.org"], &hops(2)).unwrap();
    assert_eq!(looping.code, 554, "the listener's own limit of hops: {looping:?}");
    client.expect("QUIT", 221);
    server.stop();
}

/// The server's replies to a client behind a proxy.
fn passed_on(port: u16, from: &str) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "PROXY TCP4 {from} 127.0.0.1 1 25\r\n").unwrap();
    // Who is turned away need not take more.
    let _ = stream.write_all(b"EHLO client.example\r\nQUIT\r\n");
    let mut heard = String::new();
    let _ = stream.read_to_string(&mut heard);
    heard
}

#[test]
fn readiness_is_reported_and_a_reload_changes_who_connects() {
    let dir = tempfile::tempdir().unwrap();
    let port = unused_port();
    let configure = |allow: &str| {
        let text = format!(
            "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:{port}\"\nproxy_protocol = true\n\
             proxies = \"127.0.0.1\"\nallow = \"{allow}\"\n[[network]]\ncidr = \"192.0.2.0/24\"\n\
             limits = {{ message_bytes = 12345 }}\n"
        );
        std::fs::write(dir.path().join("posthaste.toml"), text).unwrap();
    };
    configure("192.0.2.0/24");
    let mut shell = std::process::Command::new("sh");
    shell.current_dir(dir.path()).args(["-c", "exec 3>&1; exec \"$0\" serve --ready-fd 3 >banner 2>log"]);
    let mut child = shell.arg(env!("CARGO_BIN_EXE_posthaste")).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{:?}", std::fs::read_to_string(dir.path().join("log")));
    assert!(passed_on(port, "192.0.2.7").contains("SIZE 12345\r\n"));
    assert!(passed_on(port, "198.51.100.7").starts_with("554 5.7.1 "));
    configure("198.51.100.0/24");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::HUP).unwrap();
    let begun = Instant::now();
    while !passed_on(port, "198.51.100.7").starts_with("220 ") {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert!(passed_on(port, "192.0.2.7").starts_with("554 5.7.1 "));
    kill_process(pid, Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let refused = command(dir.path(), &["serve", "--ready-fd", "99"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--ready-fd 99: "), "{refused:?}");
    let refused = command(dir.path(), &["serve", "--ready-fd", "1"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--ready-fd 1: not a descriptor for this"),
        "{refused:?}"
    );
}
