//! `posthaste load`, `account` and `report` as a person uses them, against the server itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{ANYBODY, PATIENCE, Server, command};

fn load(dir: &Path, server: &Server, options: &[&str]) -> Output {
    let target = server.addresses[0].to_string();
    let fixed = ["load", &target, "-d", "example.org", "-u", "3", "-q", "-s", "8", "-l", "2k", "--drain", "10m"];
    command(dir, &[&fixed[..], options].concat()).output().expect("run load")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

const MAIL: &str = "posthaste-data/mail";

#[test]
fn a_run_is_accounted_for_and_its_reports_compared() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    for (name, pipelining) in [("a", "on"), ("b", "ahead")] {
        let options = ["-m", "200", "-n", "2", "--pipelining", pipelining, "--report", name];
        let account = ["--account", MAIL, "--settle", "10m"];
        let output = load(dir.path(), &server, &[&options[..], &account].concat());
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}{output:?}");
        assert!(text.contains("200 messages acknowledged, 400 copies expected, 400 found"), "{text}");
        assert!(text.contains("0 lost, 0 duplicated, 0 altered, 0 unexpected"), "{text}");
    }
    let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
    let report: serde_json::Value = serde_json::from_str(&read("a/report.json")).unwrap();
    assert_eq!(report["total"]["acked"], 200);
    assert!(read("a/report.md").contains("| acknowledged  ") && read("a/report.html").contains("</html>"));

    // A report is named by its directory or its file.
    let reports = ["report", "compare", "a", "b/report.json"];
    let text = stdout(&command(dir.path(), &reports).output().unwrap());
    assert!(text.contains("messages a second") && text.contains("× 1.00"), "{text}");
    assert!(text.contains("not alike: pipelining is \"on\" in a, \"ahead\" in b/report.json"), "{text}");
    assert!(text.starts_with("A: a: Messages of 2 KiB over 8 connections to 127.0.0.1:"), "{text}");
    let json = command(dir.path(), &[&reports[..], &["--json"]].concat()).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let row = &json["rows"].as_array().unwrap()[1];
    assert_eq!((&row["name"], &row["ratios"][1]), (&"acknowledged".into(), &1.0.into()));

    // Made again from its data, the page is the same.
    let made = command(dir.path(), &["report", "render", "a", "c"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    assert_eq!(read("c/report.html"), read("a/report.html"));
    // And with what the rig has found.
    let kills = r#"{"kill":{"system":"Posthaste","times":50,"acknowledged":4000,"lost":0,"duplicated":0,"half":0,"findings":[]}}"#;
    std::fs::write(dir.path().join("rig.jsonl"), kills).unwrap();
    let made = command(dir.path(), &["report", "render", "a", "d", "--rig", "rig.jsonl"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    assert!(read("d/report.html").contains("50: nothing lost") && read("d/report.md").contains("| kills "));
    let report: serde_json::Value = serde_json::from_str(&read("d/report.json")).unwrap();
    assert_eq!((&report["rig"][0]["kind"], &report["rig"][0]["times"]), (&"kills".into(), &50.into()));
    let made = command(dir.path(), &["report", "render", "a", "d", "--rig", "a/report.md"]).output().unwrap();
    assert_eq!(made.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&made.stderr).contains("was not written by `powercut"), "{made:?}");
    server.stop();
}

#[test]
fn acknowledged_mail_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), ANYBODY);
    let target = server.addresses[0].to_string();
    let options = ["load", &target, "-d", "example.org", "-u", "20", "-t", "60s", "--acked", "acked.json"];
    let mut run = command(dir.path(), &[&options[..], &["--drain", "100ms", "-s", "16"]].concat());
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // In a pipe there is a line a second; the first that tells of mail is enough.
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("acked=") && !line.contains("acked=0 ")).expect("mail is acknowledged");
    server.signal(Signal::KILL);
    server.wait();
    // At once, before a server of another test may get the port.
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    let told: Vec<String> = lines.collect();
    let ended = run.wait_with_output().unwrap();
    // On a busy machine it ends before it has seen that its connections broke.
    assert!(matches!(ended.status.code(), Some(0 | 1)), "{ended:?} {told:#?}");
    drop(server);

    let server = Server::start_as_it_is(dir.path());
    let account = command(dir.path(), &["load", "account", "acked.json", MAIL, "--settle", "10m"]).output().unwrap();
    assert_eq!(account.status.code(), Some(0), "{account:?} {told:#?} {}", server.log_text());
    server.stop();

    // And what is taken away is missed.
    let user = dir.path().join(MAIL).join("example.org");
    let inbox = std::fs::read_dir(user).unwrap().next().unwrap().unwrap().path().join("Maildir/new");
    let one = std::fs::read_dir(inbox).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(one).unwrap();
    let options = ["load", "account", "acked.json", MAIL, "--settle", "0s", "--json"];
    let account = command(dir.path(), &options).output().unwrap();
    assert_eq!(account.status.code(), Some(1));
    let account: serde_json::Value = serde_json::from_slice(&account.stdout).unwrap();
    let missing = account["lost"].as_array().unwrap().len() + account["uncertain_absent"].as_u64().unwrap() as usize;
    assert!(missing >= 1, "{account}");
}

#[test]
fn interrupted_it_still_prints_its_summary() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let target = server.addresses[0].to_string();
    let mut run = command(dir.path(), &["load", &target, "-d", "example.org", "-t", "60s", "-s", "2"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("acked=")).expect("a line a second");
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    let mut summary = String::new();
    run.stdout.take().unwrap().read_to_string(&mut summary).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1), "not all of it was done: {summary}");
    assert!(summary.contains("messages a second") && summary.contains("stopped before its end"), "{summary}");
    server.stop();
}

/// A server that accepts messages and never answers to their data.
fn stalled_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let talk = |mut stream: TcpStream| {
        stream.write_all(b"220 mx\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|octets| octets > 0) {
            let reply = match line.get(..4).unwrap_or_default() {
                "EHLO" | "MAIL" | "RCPT" => "250 ok\r\n",
                "DATA" => "354 go on\r\n",
                _ => "",
            };
            reader.get_mut().write_all(reply.as_bytes()).unwrap();
            line.clear();
        }
    };
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(std::thread::spawn(move || talk(stream))))
    });
    address
}

/// The summary of a run after two signals to end, which must give exit status 1.
fn summary(mut run: Child) -> String {
    let begun = Instant::now();
    let mut summary = String::new();
    run.stdout.take().unwrap().read_to_string(&mut summary).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1), "{summary}");
    assert!(begun.elapsed() < PATIENCE, "it has waited for {:?}", begun.elapsed());
    assert!(summary.contains("messages a second"), "{summary}");
    summary
}

fn send(run: &Child, signals: &[Signal]) {
    signals.iter().for_each(|signal| kill_process(Pid::from_child(run), *signal).unwrap());
}

#[test]
fn a_second_interrupt_ends_the_wait_and_prints_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    let target = stalled_server().to_string();
    let mut run = command(dir.path(), &["load", &target, "-t", "10m", "--drain", "10m", "-s", "2"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("in_flight=2")).expect("messages are under way");
    send(&run, &[Signal::INT]);
    lines.find(|line| line.contains("a second signal ends the wait")).expect("it says that it waits");
    send(&run, &[Signal::INT]);
    let summary = summary(run);
    assert!(summary.contains("stopped before its end") && summary.contains("body timeout"), "{summary}");
}

#[test]
fn interrupted_twice_while_it_looks_for_mail_it_waits_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let target = server.addresses[0].to_string();
    let options = ["-m", "20", "-d", "example.org", "-q", "--account", "empty", "--settle", "10m", "--acked", "acked"];
    let mut run = command(dir.path(), &[&["load", &target], &options[..]].concat());
    let run = run.stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let is_written = || std::fs::metadata(dir.path().join("acked")).is_ok_and(|file| file.len() > 0);
    while !is_written() {
        assert!(Instant::now() < deadline, "the run does not come to its end");
        std::thread::sleep(Duration::from_millis(20));
    }
    // One kind of signal alone may come as one.
    send(&run, &[Signal::INT, Signal::TERM]);
    assert!(summary(run).contains("20 lost"));
    server.stop();
}

#[test]
fn interrupted_twice_at_once_it_prints_its_summary() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let target = server.addresses[0].to_string();
    for signals in [[Signal::INT, Signal::INT], [Signal::INT, Signal::TERM]] {
        let mut run = command(dir.path(), &["load", &target, "-d", "example.org", "-t", "10m", "-s", "2"]);
        let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
        lines.find(|line| line.contains("acked=")).expect("a line a second");
        send(&run, &signals);
        assert!(summary(run).contains("stopped before its end"));
    }
    server.stop();
}

#[test]
fn it_starts_a_server_itself_watches_it_and_looks_for_its_mail() {
    let dir = tempfile::tempdir().unwrap();
    let patience = ["--settle", "10m", "--drain", "10m", "--give-up", "10m"];
    let fixed = ["load", "--serve", "-m", "100", "-s", "4", "-q", "--json"];
    let output = command(dir.path(), &[&fixed[..], &patience].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["total"]["acked"], &report["account"]["found"]), (&100.into(), &100.into()));
    assert!(report["server"]["memory_octets_max"].as_u64().unwrap() > 1 << 20, "{report}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the server's directory is removed");

    // With a configuration of one's own, and a schedule of random arrivals.
    std::fs::write(dir.path().join("own.toml"), ANYBODY).unwrap();
    let open_loop = ["-r", "200", "--poisson", "-m", "50", "-d", "example.org", "-q", "--json"];
    let output =
        command(dir.path(), &[&["load", "--serve=own.toml"], &open_loop[..], &patience].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["total"]["acked"], &report["plan"]["arrivals"]), (&50.into(), &"poisson".into()));

    std::fs::write(dir.path().join("wrong.toml"), "no = 1").unwrap();
    let output = command(dir.path(), &["load", "--serve=wrong.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no key `no`"), "{output:?}");
}

#[test]
fn repeated_kills_lose_nothing_and_are_no_failures() {
    let dir = tempfile::tempdir().unwrap();
    let closed = [&["--per-connection", "all", "-t", "4s"][..], &["--per-connection", "3", "-n", "2", "-t", "4s"]];
    // By number: on a busy machine the server is away for longer than it is there, and what is due waits.
    for pace in closed.into_iter().chain([&["--rate", "300", "-m", "900"][..]]) {
        let options = ["load", "--serve", "--kill-every", "1s", "-s", "8", "-u", "4", "-l", "2k", "-q", "--json"];
        // The time to settle and the drain are for machines that are busy.
        let patience = ["--settle", "10m", "--drain", "10m", "--give-up", "10m", "--report", "out"];
        let output = command(dir.path(), &[&options[..], &patience, pace].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{pace:?}: {output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let kills = report["kills"].as_array().unwrap();
        assert!(!kills.is_empty() && report["total"]["acked"].as_u64().unwrap() > 0, "{report}");
        assert_eq!((&report["total"]["failed"], &report["errors"]), (&0.into(), &serde_json::json!([])), "{report}");
        for kind in ["lost", "duplicated", "altered", "unexpected"] {
            assert_eq!(report["account"][kind], serde_json::json!([]), "{pace:?}: {report}");
        }
        assert!(kills.iter().all(|kill| kill["down_s"].as_f64().unwrap() > 0.0), "{report}");
        // On a schedule mail is due while the server is away, and waits for it.
        let is_answered = kills.iter().any(|kill| kill["first_ack_s"].as_f64() > Some(0.0));
        assert!(is_answered || pace[0] != "--rate", "{report}");
        let broken: u64 = kills.iter().map(|kill| kill["messages"].as_u64().unwrap()).sum();
        assert_eq!(report["total"]["broken"], broken, "{report}");
        assert!(
            report["server"]["cpu_s"].as_f64().unwrap() > 0.0 && report["server"]["has_ended"] == false,
            "{report}"
        );
        let page = std::fs::read_to_string(dir.path().join("out/report.html")).unwrap();
        assert!(page.contains("class=\"down\"") && page.contains("killed about every 1 s"));
    }
}

#[test]
fn a_server_that_does_not_come_back_ends_the_run_and_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    // Started again it takes another port.
    std::fs::write(dir.path().join("moving.toml"), ANYBODY).unwrap();
    let options =
        ["load", "--serve=moving.toml", "-d", "example.org", "--kill-every", "200ms", "-t", "5m", "--drain", "1s"];
    let output = command(dir.path(), &[&options[..], &["-s", "2", "-q"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains("after kill 1 the server did not restart") && text.contains("a fixed port"), "{text}");
    assert!(text.contains("0 lost, 0 duplicated"), "what it had acknowledged lies in its spool or mailboxes: {text}");
}

/// Children of a process by its number.
fn children(pid: u32) -> Vec<u32> {
    let lists = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = lists.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()).collect()
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn its_server_does_not_stay_behind_however_it_ends() {
    for signals in [&[Signal::KILL][..], &[Signal::INT; 2], &[Signal::INT; 20]] {
        let dir = tempfile::tempdir().unwrap();
        let mut run = command(dir.path(), &["load", "--serve", "-t", "60s", "-s", "2"]);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
        lines.find(|line| line.contains("acked=")).expect("a line a second");
        let started = children(run.id());
        assert!(started.iter().any(|pid| is_running(*pid)), "{started:?}");
        for signal in signals {
            kill_process(Pid::from_child(&run), *signal).unwrap();
        }
        run.wait().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while started.iter().any(|pid| is_running(*pid)) {
            assert!(Instant::now() < deadline, "{signals:?}: of {started:?} some run on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A sink with `options`, and its address.
pub fn sink(dir: &Path, options: &[&str]) -> (Child, String) {
    let mut sink = command(dir, &[&["sink", "127.0.0.1:0"], options].concat());
    let mut sink = sink.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(sink.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("posthaste: sink listens on ").expect("an address").to_owned();
    (sink, address)
}

pub fn end(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
}

#[test]
fn mail_of_a_sink_is_accounted_for_and_wrong_counts_explained() {
    for store in ["maildir:kept", "mbox:kept", "dir:kept"] {
        let dir = tempfile::tempdir().unwrap();
        let (sink, address) = sink(dir.path(), &["--store", store]);
        let options = ["load", &address, "-m", "20", "-n", "2", "-s", "2", "-q", "--account", "kept"];
        let run = |more: &[&str]| command(dir.path(), &[&options[..], more].concat()).output().unwrap();
        let output = run(&["--copies", "message", "--settle", "10m"]);
        assert_eq!(output.status.code(), Some(0), "{store}: {output:?}");
        let output = run(&["--settle", "0s"]);
        assert_eq!(output.status.code(), Some(1), "{store}: {output:?}");
        assert!(stdout(&output).contains("use --copies message"), "{store}: {output:?}");
        end(sink);
    }
}

#[test]
fn the_account_file_of_a_running_sink_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (sink, address) = sink(dir.path(), &["--account", "seen.jsonl"]);
    for _ in 0..3 {
        // So many lines that some are in the file and some are not yet.
        let options = ["load", &address, "-m", "3000", "-l", "1k", "-s", "8", "-q"];
        let account = ["--account", "seen.jsonl", "--settle", "10m"];
        let output = command(dir.path(), &[&options[..], &account].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(stdout(&output).contains("3000 copies expected, 3000 found"), "{output:?}");
    }
    end(sink);
}

#[test]
fn what_was_found_is_told_even_if_there_is_no_account() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let output = load(dir.path(), &server, &["-m", "20", "--account", "absent"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stdout(&output).contains("messages a second"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("absent"), "{output:?}");
    // What cannot be written is known before anything is sent.
    for option in ["--report", "--acked"] {
        let output = load(dir.path(), &server, &["-m", "20", option, "posthaste.toml/x"]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
    }
    server.stop();
}

#[test]
fn misuse_is_told_from_failure() {
    let dir = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code: i32, said: &str| {
        let output = command(dir.path(), args).output().unwrap();
        let text = stdout(&output) + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(said), "{args:?}: {text}");
    };
    check(&["load", "192.0.2.1:25"], 2, "--allow-public");
    check(&["load"], 2, "let `load --serve` start a Posthaste server");
    check(&["load", "127.0.0.1:1", "--serve"], 2, "cannot be used with");
    check(&["load", "127.0.0.1:1", "--kill-every", "1s"], 2, "cannot be used with");
    check(&["load", "--kill-every", "1s"], 2, "--serve");
    check(&["load", "--serve", "--kill-every", "1ms"], 2, "must be at least 100ms");
    check(&["load", "127.0.0.1:1", "--poisson"], 2, "--rate");
    check(&["load", "ftp://127.0.0.1"], 2, "smtp://");
    check(&["load", "smtps://127.0.0.1:1"], 2, "--tls-insecure");
    check(&["load", "127.0.0.1:1", "--to", "a@b", "--to", "a@b", "-n", "2"], 2, "only 1 given");
    check(&["load", "127.0.0.1:1", "--corpus", "absent"], 2, "absent");
    check(&["load", "127.0.0.1:1", "--size", "2k-1k"], 2, "ends before it starts");
    check(&["load", "127.0.0.1:1", "-q", "--give-up", "100ms", "-m", "5"], 1, "connect refused");
    check(&["load", "account", "absent.json", "."], 2, "absent.json");
    std::fs::write(dir.path().join("other.json"), "{}").unwrap();
    check(&["report", "compare", "other.json", "other.json"], 2, "is not a report");
    std::fs::write(dir.path().join("report.html"), "<!doctype html>").unwrap();
    check(&["report", "compare", "report.html", "other.json"], 2, "is not JSON; name a directory or its report.json");
}
