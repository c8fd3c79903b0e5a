//! `posthaste sink` and `posthaste doctor` as commands: exit status and output.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Client, command};

#[test]
fn a_sink_ends_by_itself_or_by_signal_and_prints_its_summary() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "[domain.\"full.example\"]\nrcpt = { tempfail = 100, tempfail-replies = [\"452 4.2.2 Full\"] }\n";
    std::fs::write(dir.path().join("sink.toml"), rules).unwrap();
    for by_count in [true, false] {
        let mut args = vec!["sink", "127.0.0.1:0", "--rules", "sink.toml", "--permfail", "mail=0", "--json"];
        args.extend(by_count.then_some("--count=1"));
        let mut sink =
            command(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(sink.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("posthaste: sink listens on ").expect("an address").parse().unwrap();
        let mut client = Client::open(address).unwrap();
        assert_eq!(client.reply().code, 220);
        client.expect("EHLO client.example", 250);
        client.expect("MAIL FROM:<a@client.example>", 250);
        client.expect("RCPT TO:<b@full.example>", 452);
        client.expect("RCPT TO:<b@x.example>", 250);
        client.expect("DATA", 354);
        client.expect("x: y\r\n\r\n.", 250);
        if !by_count {
            let pid = Pid::from_raw(i32::try_from(sink.id()).unwrap()).unwrap();
            kill_process(pid, Signal::TERM).unwrap();
        }
        let mut said = String::new();
        sink.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(sink.wait().unwrap().code(), Some(0));
        let summary: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&summary["messages"], &summary["refusals"]["rcpt"]["452"]), (&1.into(), &1.into()), "{said}");
    }
}

#[test]
fn rules_that_make_no_sense_are_misuse() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("sink.toml"), "[default.rcpt]\ntempfial = 5\n").unwrap();
    for (args, word) in [
        (
            &["sink", "--rules", "sink.toml"][..],
            "sink.toml:2:1: there is no key `tempfial` here; did you mean `tempfail`?",
        ),
        (&["sink", "--rules", "missing.toml"], "posthaste: missing.toml: No such file"),
        (&["sink", "--tempfail", "rcpt=101"], "from 0 to 100"),
        (&["sink", "--tempfail", "helo=1"], "stages are connect, ehlo, mail"),
        (&["sink", "--store", "tar:x"], "maildir, mbox and dir"),
        (&["sink", "--delay", "mail=soon"], "`soon` is not a time"),
        (&["sink", "--tls-cert", "x.pem"], "--tls-key"),
        (
            &["sink", "127.0.0.1:0", "--account", "sink.toml"],
            "sink.toml: this is not the account of a sink, and is left as it is",
        ),
        (&["sink", "127.0.0.1:0", "--store", "mbox:sink.toml"], "sink.toml: this is not an mbox, and is left as it is"),
        (
            &["load", "127.0.0.1:1", "-m", "1", "--acked", "sink.toml"],
            "sink.toml: this is not a list of acknowledged messages, and is left as it is",
        ),
    ] {
        let output = command(dir.path(), args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    }
}

#[test]
fn the_exit_status_of_doctor_says_if_anything_is_serious() {
    let dir = tempfile::tempdir().unwrap();
    let examined = command(dir.path(), &["doctor", "--syncs", "3", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&examined.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let serious = findings.iter().any(|finding| finding["severity"] == "serious");
    assert_eq!(examined.status.code(), Some(i32::from(serious)), "{report}");
    let nowhere = command(dir.path(), &["doctor", "not/there", "--syncs", "1"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8(nowhere.stdout).unwrap().contains("SERIOUS file system"));
}
