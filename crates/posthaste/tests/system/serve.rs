//! Start and stop of the server.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};

use crate::relaying::unused_port;
use crate::support::{ANYBODY, Client, MESSAGE, PATIENCE, Server, command, configure};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn sigterm_lets_open_transactions_finish() {
    let dir = tempfile::tempdir().unwrap();
    // At a port that is given to no server of another test once this one has ended.
    let address = format!("127.0.0.1:{}", unused_port());
    let mut server = Server::start(dir.path(), &ANYBODY.replace("127.0.0.1:0", &address));
    let mut idle = server.connect();
    idle.expect("EHLO client.example.net", 250);
    let mut busy = server.connect();
    busy.expect("EHLO client.example.net", 250);
    busy.expect("MAIL FROM:<s@example.net>", 250);
    busy.expect("RCPT TO:<a@example.org>", 250);
    busy.expect("DATA", 354);
    busy.send(b"Subject: half").unwrap();
    server.signal(Signal::TERM);
    let reply = idle.reply();
    assert_eq!((reply.code, &reply.text[..6]), (421, "4.3.2 "));
    busy.send(b" and half\r\n\r\n.\r\n").unwrap();
    assert_eq!(busy.reply().code, 250);
    assert!(server.wait().success());
    assert!(Client::open(server.addresses[0]).is_err(), "nobody listens any more");
    assert_eq!(server.mailbox("example.org", "a")[0].without_trace(), b"Subject: half and half\n\n");
}

#[test]
fn commands_find_the_server_once_it_has_greeted() {
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), &format!("{ANYBODY}[[listener]]\nunix = \"early.sock\"\n"));
    let starting = command(dir.path(), &["serve"]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let mut starting = Killed(starting);
    // It listens before it opens its spool, and greets once that is open.
    let early = loop {
        match UnixStream::connect(dir.path().join("early.sock")) {
            Ok(early) => break early,
            Err(_) => assert!(starting.0.try_wait().unwrap().is_none(), "it has not started"),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    let mut greeting = String::new();
    BufReader::new(early).read_line(&mut greeting).unwrap();
    let control = UnixStream::connect(dir.path().join("posthaste-data/control.sock"));
    assert!(control.is_ok(), "{control:?} after {greeting:?}");
    assert!(greeting.starts_with("220 "), "{greeting:?}");
    // There are none.
    let logins = command(dir.path(), &["logins"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&logins.stderr).contains("no server runs"), "{logins:?}");
}

/// A child that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_second_server_on_the_same_data_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let second = command(dir.path(), &["serve"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.starts_with("posthaste: posthaste-data/spool: the spool is in use"), "{said}");
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org"], MESSAGE);
    server.stop();
}

#[test]
fn an_address_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = ANYBODY.replace("127.0.0.1:0", &address);
    std::fs::write(dir.path().join("posthaste.toml"), config).unwrap();
    let refused = command(dir.path(), &["serve"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains(&format!("posthaste: cannot listen on {address}: ")), "{said}");
    assert!(!dir.path().join("posthaste-data").exists(), "a start that fails leaves nothing");
}

#[test]
fn an_impossible_socket_is_named_and_no_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let said = |path: &str| {
        std::fs::write(dir.path().join("posthaste.toml"), format!("{ANYBODY}[[listener]]\nunix = \"{path}\"\n"))
            .unwrap();
        let refused = command(dir.path(), &["serve"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        String::from_utf8(refused.stderr).unwrap()
    };
    assert!(said("missing/lmtp.sock").starts_with("posthaste: cannot listen on missing/lmtp.sock: No such file"));
    std::fs::write(dir.path().join("precious.txt"), "years of work").unwrap();
    assert!(said("precious.txt").contains("cannot listen on precious.txt: a file that is not a socket has this name"));
    assert_eq!(std::fs::read_to_string(dir.path().join("precious.txt")).unwrap(), "years of work");
    assert!(!dir.path().join("posthaste-data").exists());
}

#[test]
fn a_second_signal_waits_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &format!("{ANYBODY}\n[limits]\nshutdown_secs = 3600\n"));
    let mut busy = server.connect();
    busy.expect("EHLO client.example.net", 250);
    busy.deliver(&["a@example.org"], MESSAGE);
    busy.expect("MAIL FROM:<s@example.net>", 250);
    server.signal(Signal::TERM);
    server.wait_for_log("stopping");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1), "unfinished, and it says so");
    let server = Server::start_as_it_is(dir.path());
    assert_eq!(server.wait_for_mail("example.org", "a", 1).len(), 1);
    server.stop();
}

/// Starts a server that hangs in its start until the returned pipe is read; also returns its log. The spool's lock is a
/// pipe, which cannot be opened for writing before it is opened for reading. The server has had one SIGTERM.
fn stopping_during_its_start(dir: &Path) -> (Child, PathBuf, BufReader<ChildStderr>) {
    let pipe = dir.join("posthaste-data/spool/lock");
    std::fs::create_dir_all(pipe.parent().unwrap()).unwrap();
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    configure(dir, ANYBODY);
    let mut server =
        command(dir, &["serve"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the server");
    let status = format!("/proc/{}/status", server.id());
    let listens = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask of signals").trim();
        u64::from_str_radix(caught, 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    };
    while !listens() {
        assert!(server.try_wait().unwrap().is_none(), "it did not wait for the spool");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.contains("stopping once the spool is replayed"), "{line}");
    (server, pipe, log)
}

#[test]
fn a_signal_before_readiness_stops_the_server_after_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, pipe, mut log) = stopping_during_its_start(dir.path());
    let reader = std::fs::File::open(&pipe).unwrap();
    let status = server.wait().unwrap();
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert!(status.success() && rest.contains("stopped"), "{status}\n{rest}");
    let mut banner = String::new();
    server.stdout.take().unwrap().read_to_string(&mut banner).unwrap();
    assert_eq!(banner, "", "it was never ready");
    drop(reader);
}

#[test]
fn a_second_signal_does_not_wait_for_the_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, _, _log) = stopping_during_its_start(dir.path());
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(1));
}

#[test]
fn as_many_files_as_are_allowed_may_be_open() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_behind("ulimit -Sn 100; ulimit -Hn 200", dir.path(), ANYBODY);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit on open files");
    assert_eq!(files.split_whitespace().take(2).collect::<Vec<_>>(), ["200", "200"]);
    assert!(server.banner.contains("note       200 files may be open"), "{}", server.banner);
    server.stop();
}

#[test]
fn a_server_of_lmtp_alone_names_no_smtp_command_to_try() {
    let dir = tempfile::tempdir().unwrap();
    let lmtp = "address = \"127.0.0.1:0\"\nprotocol = \"lmtp\"\n";
    let server = Server::start(dir.path(), &ANYBODY.replace("address = \"127.0.0.1:0\"\n", lmtp));
    assert!(!server.banner.contains("curl"), "{}", server.banner);
    let both = format!("{lmtp}[[listener]]\naddress = \"127.0.0.1:0\"\n");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &ANYBODY.replace("address = \"127.0.0.1:0\"\n", &both));
    let smtp = server.addresses[1];
    assert!(server.banner.contains(&format!("curl smtp://{smtp} ")), "{}", server.banner);
}

#[test]
fn what_the_banner_says_to_try_works() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    assert!(server.banner.contains("receiving  example.org"), "{}", server.banner);
    assert!(server.banner.contains("nothing to restore"), "{}", server.banner);
    let line = server.banner.lines().find(|line| line.contains("curl")).expect("a line to try").trim();
    let address = server.addresses[0].to_string();
    assert!(
        line.contains(&format!("curl smtp://{address} --mail-from you@example.org --mail-rcpt me@example.org -T -"))
    );
    server.stop();
}

#[test]
fn a_start_after_a_crash_tells_what_it_restored() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org", "b@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "a", 1);
    server.wait_for_mail("example.org", "b", 1);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir.path());
    assert!(server.banner.contains("nothing; 1 message in the spool, all in their mailboxes"), "{}", server.banner);
    server.stop();
    let server = Server::start_as_it_is(dir.path());
    assert!(server.banner.contains("nothing to restore"), "{}", server.banner);
    server.stop();
}

#[test]
fn readiness_is_told_to_a_socket_and_to_systemd() {
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), ANYBODY);
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut state = [0; 100];
        let bytes = notify.recv(&mut state).expect("a datagram");
        String::from_utf8_lossy(&state[..bytes]).into_owned()
    };
    let (ours, theirs) = UnixStream::pair().unwrap();
    let shell = |redirect: &str, input: Stdio| {
        let mut shell = std::process::Command::new("sh");
        let script = format!("exec {redirect} </dev/null; exec \"$0\" serve --ready-fd 3");
        shell.current_dir(dir.path()).args(["-c", &script, env!("CARGO_BIN_EXE_posthaste")]);
        shell.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped()).env("NOTIFY_SOCKET", dir.path().join("notify"));
        shell
    };
    let mut server = shell("3<&0", Stdio::from(std::os::fd::OwnedFd::from(theirs))).spawn().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    BufReader::new(&ours).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), hear().as_str()), ("ready\n", "READY=1"));
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(hear(), "STOPPING=1");
    assert!(server.wait().unwrap().success());

    let refused = shell("3</dev/null", Stdio::null()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("open for reading only"), "{refused:?}");
}
