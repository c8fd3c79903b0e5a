//! `posthaste load` by HTTP, against the server itself.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::http::{CONFIG, page_of, serve, token};
use crate::support::{ANYBODY, Server, command, configure};

const MAIL: &str = "posthaste-data/mail";

#[test]
fn mail_brought_by_http_is_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    token(dir.path(), "load", "inject");
    let target = format!("http://{address}");
    for keys in [&[][..], &["--idempotency-key"]] {
        let options = ["load", &target, "--token-file", "load.token", "-d", "example.org", "-u", "5", "-n", "3", "-q"];
        let more = ["-m", "60", "-s", "4", "-l", "3k", "--json", "--account", MAIL, "--settle", "10m"];
        let output = command(dir.path(), &[&options[..], &more, keys].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?} {}", server.log_text());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["total"]["acked"], &report["total"]["copies"]), (&60.into(), &180.into()), "{report}");
        assert_eq!((&report["plan"]["protocol"], &report["account"]["found"]), (&"HTTP".into(), &180.into()));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("pht_"), "the token is in the report");
    }
    // Without its token nothing is taken, and each refusal is told.
    let options = ["load", "--http", &address.to_string(), "-d", "example.org", "-m", "3", "-s", "1", "-q", "--json"];
    let output = command(dir.path(), &options).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = &report["errors"][0];
    assert_eq!((output.status.code(), &error["class"], &error["count"]), (Some(1), &"http 401".into(), &3.into()));
    server.stop();
}

#[test]
fn refused_recipients_are_counted_by_their_codes() {
    let dir = tempfile::tempdir().unwrap();
    let known = ANYBODY.replace("\"any\"", "[\"user1\"]");
    let server = Server::start(dir.path(), &format!("{known}{CONFIG}"));
    token(dir.path(), "load", "inject");
    let target = page_of(&server).to_string();
    let options = ["load", "--http", &target, "--token-file", "load.token", "-d", "example.org", "-u", "2", "-n", "2"];
    let more = ["-m", "10", "-q", "--json", "--account", MAIL, "--settle", "10m"];
    let output = command(dir.path(), &[&options[..], &more].concat()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = &report["errors"][0];
    assert_eq!((&error["class"], &error["count"]), (&"rcpt 550".into(), &10.into()), "{report}");
    assert_eq!((&report["total"]["copies"], &report["account"]["found"]), (&10.into(), &10.into()), "{report}");
    server.stop();
}

#[test]
fn a_run_with_keys_goes_on_over_kills_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["load", "--serve", "--http", "--idempotency-key", "--kill-every", "300ms", "-m", "1500", "-n", "2"];
    let more = ["-u", "20", "-s", "8", "-l", "2k", "--give-up", "10m", "--settle", "10m", "-q", "--json"];
    let output = command(dir.path(), &[&options[..], &more].concat()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(output.status.code(), Some(0), "{report}");
    let account = &report["account"];
    assert_eq!((&report["total"]["acked"], &report["total"]["broken"]), (&1500.into(), &0.into()), "{report}");
    assert_eq!((&account["expected"], &account["found"]), (&3000.into(), &3000.into()), "{account}");
}

#[test]
fn requests_cut_by_a_kill_are_sent_again_with_their_keys() {
    let dir = tempfile::tempdir().unwrap();
    let at = |port: u16| format!("{ANYBODY}{}", CONFIG.replace(":0", &format!(":{port}")));
    let (server, address) = serve(dir.path());
    token(dir.path(), "load", "inject");
    server.stop();
    configure(dir.path(), &at(address.port()));
    let mut server = Server::start_as_it_is(dir.path());
    let target = format!("http://{address}");
    let options = ["load", &target, "--token-file", "load.token", "--idempotency-key", "-d", "example.org", "-u", "20"];
    let more = ["-m", "3000", "-s", "16", "--give-up", "10m", "--acked", "acked.json", "--json"];
    let mut run = command(dir.path(), &[&options[..], &more].concat());
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    server.wait_for_log("message kept");
    server.signal(Signal::KILL);
    server.wait();
    drop(server);
    let server = Server::start_as_it_is(dir.path());
    let ended = run.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!(ended.status.code(), Some(0), "{report}");
    assert_eq!(report["total"]["acked"], 3000, "{report}");
    assert!(report["repeated"].as_u64().unwrap() > 0, "no request was cut: {report}");
    let options = ["load", "account", "acked.json", MAIL, "--settle", "10m"];
    let account = command(dir.path(), &options).output().unwrap();
    assert_eq!(account.status.code(), Some(0), "{account:?} {}", server.log_text());
    server.stop();
}

#[test]
fn options_of_the_other_kind_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (options, why) in [
        (&["load", "http://127.0.0.1:1", "127.0.0.1:2"][..], "targets of one kind"),
        (&["load", "--http", "lmtp://127.0.0.1:1"], "targets of one kind"),
        (&["load", "http://127.0.0.1:1", "--bdat"], "are for SMTP only"),
        (&["load", "127.0.0.1:1", "--idempotency-key"], "are for HTTP only"),
        (&["load", "http://127.0.0.1:1", "--token-file", "absent"], "--token-file absent: No such file"),
    ] {
        let output = command(dir.path(), options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{options:?}: {said}");
    }
}
