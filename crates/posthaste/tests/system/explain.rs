//! `posthaste queue explain`, with and without a server, and the files of docs/shaping.md.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::relaying::{config, unused_port};
use crate::support::{PATIENCE, Server, command};

/// The TOML of the page without the first block, which belongs to `posthaste.toml`.
fn files_of_the_page() -> Vec<&'static str> {
    let page = include_str!("../../../../docs/shaping.md");
    page.split("```toml\n").skip(2).map(|rest| rest.split("```").next().unwrap()).collect()
}

fn explain(dir: &Path, args: &[&str]) -> Value {
    let output = command(dir, &[&["queue", "explain", "--json"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn value<'a>(explained: &'a Value, key: &str, of: &str) -> &'a str {
    let values = explained["values"].as_array().unwrap();
    let found = values.iter().find(|value| value["key"] == key && value["of"] == of);
    found.unwrap_or_else(|| panic!("{key} of {of}: {explained:#}"))["value"].as_str().unwrap()
}

#[test]
fn limits_of_a_destination_are_explained_without_a_server() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let files = files_of_the_page();
    assert_eq!(files.len(), 3);
    for (number, text) in files.iter().enumerate() {
        fs::write(dir.join(format!("{number}.toml")), text).unwrap();
    }
    let section =
        "shaping = [\"0.toml\", \"1.toml\", \"2.toml\"]\n[[relay.source]]\nname = \"mx3\"\nipv4 = \"127.0.0.1\"\n";
    let config = &config(25, section).replace("open.example", "example.net");
    fs::write(dir.join("posthaste.toml"), config).unwrap();
    let alone = explain(dir, &["ann@Example.net"]);
    assert_eq!((value(&alone, "connections", "site"), &alone["waiting"]), ("3", &Value::Null));
    assert_eq!(value(&alone, "chunking", "site"), "true");
    assert_eq!(value(&explain(dir, &["there.example", "--source", "mx3"]), "connections", "site"), "2");
    let unknown = command(dir, &["queue", "explain", "there.example", "--source", "mx4"]).output().unwrap();
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no source mx4"), "{unknown:?}");
    let server = Server::start(dir, config);
    let asked = explain(dir, &["example.net", "--tenant", "news"]);
    assert_eq!(
        (value(&asked, "connections", "site"), value(&asked, "message_rate", "tenant")),
        ("3", "1000/minute, burst 17")
    );
    assert_eq!((&asked["site"], asked["waiting"].as_u64()), (&"0 example.net".into(), Some(0)));
    assert_eq!(value(&explain(dir, &["there.example"]), "connections", "site"), "10");
    let text = command(dir, &["queue", "explain", "example.net"]).output().unwrap();
    assert!(String::from_utf8(text.stdout).unwrap().contains("1/second"));
    // A mistake is found before the server reads it, and leaves the limits as they are.
    fs::write(dir.join("0.toml"), "[default]\nconections = 7\n").unwrap();
    let checked = command(dir, &["config", "check"]).output().unwrap();
    assert!(String::from_utf8_lossy(&checked.stderr).contains("relay.shaping: 0.toml:2:"), "{checked:?}");
    server.signal(rustix::process::Signal::HUP);
    server.wait_for_log("keeping the old limits");
    assert_eq!(value(&explain(dir, &["there.example"]), "connections", "site"), "10");
    // Another file is in force without a restart.
    fs::write(dir.join("0.toml"), "[default]\nconnections = 7\n").unwrap();
    server.signal(rustix::process::Signal::HUP);
    // The log tells of the reload before, too.
    let deadline = Instant::now() + PATIENCE;
    while value(&explain(dir, &["example.net"]), "connections", "site") != "7" {
        assert!(Instant::now() < deadline, "the new file is not in force");
    }
    server.stop();
}

#[test]
fn a_destination_is_explained_as_a_pool_or_a_source_sees_it() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let file = "[default]\nmessage_rate = '5/second'\n[default.source.two]\nmessage_rate = '1/second'\n";
    fs::write(dir.join("shaping.toml"), file).unwrap();
    let pools = "shaping = [\"shaping.toml\"]\npool_header = \"X-Pool\"\n\
                 [[relay.source]]\nname = \"one\"\nipv4 = \"127.0.0.1\"\n[[relay.source]]\nname = \"two\"\nipv4 = \"127.0.0.1\"\n\
                 [[relay.pool]]\nname = \"all\"\nsources = { one = 1 }\n\
                 [[relay.pool]]\nname = \"urgent\"\ntenants = []\nsources = { one = 1, two = 1 }\n";
    let server = Server::start(dir, &config(unused_port(), pools));
    let mut client = server.hello();
    client.try_message("ann@here.example", &["bob@there.example"], b"X-Pool: urgent\r\n\r\nx\r\n").unwrap();
    let seen = |args: &[&str]| {
        let explained = explain(dir, &[&["there.example"], args].concat());
        (explained["sources"].clone(), explained["waiting"].as_u64().unwrap())
    };
    assert_eq!(seen(&[]), (serde_json::json!(["one"]), 1));
    assert_eq!(seen(&["--pool", "urgent"]), (serde_json::json!(["one", "two"]), 1));
    assert_eq!(seen(&["--pool", "all"]), (serde_json::json!(["one"]), 0));
    assert_eq!(seen(&["--pool", "urgent", "--source", "two"]).0, serde_json::json!(["two"]));
    let text = command(dir, &["queue", "explain", "there.example", "--pool", "urgent"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("pool      urgent\n") && text.contains("sources   one, two\n"), "{text}");
    assert!(text.contains("sections  default, default from two\n"), "{text}");
    for (of, rate) in [("site from one", "5/second"), ("site from two", "1/second")] {
        let line = text.lines().find(|line| line.starts_with("message_rate ") && line.contains(of));
        assert!(line.is_some_and(|line| line.contains(rate)), "{of}: {text}");
    }
    let of_two = explain(dir, &["there.example", "--pool", "urgent", "--source", "two"]);
    assert_eq!(value(&of_two, "message_rate", "site"), "1/second, burst 1");
    let of_both = explain(dir, &["there.example", "--pool", "urgent"]);
    let of = |source: &str| {
        let values = of_both["values"].as_array().unwrap();
        values.iter().filter(|value| value["source"] == source && value["key"] == "message_rate").count()
    };
    assert_eq!((of("one"), of("two")), (1, 1), "{of_both:#}");
    for (args, said) in [(["--pool", "none"], "no pool none"), (["--source", "two"], "not sent from source two")] {
        let output = command(dir, &[&["queue", "explain", "there.example"][..], &args].concat()).output().unwrap();
        assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
    }
    // A name that no source has would leave a source without its limits.
    fs::write(dir.join("shaping.toml"), file.replace("two", "tow")).unwrap();
    let checked = command(dir, &["config", "check"]).output().unwrap();
    let said = "relay.shaping: shaping.toml: default: there is no source `tow`";
    assert!(String::from_utf8_lossy(&checked.stderr).contains(said), "{checked:?}");
    server.signal(rustix::process::Signal::HUP);
    server.wait_for_log("keeping the old limits");
    assert_eq!(value(&explain(dir, &["there.example"]), "message_rate", "site"), "5/second, burst 5");
    server.stop();
}

#[test]
fn a_kumomta_file_is_converted_and_its_rest_listed() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    fs::write(
        dir.join("kumo.toml"),
        "['a.example']\nconnection_limit = 3\nidle_timeout = '60s'\nenable_tls = 'Required'\n\
         ['b.example'.sources.'ip 1']\nconnection_limit = 2\n[provider.p]\nenable_tls = 'Required'\n\
         match = [{ MXSuffix = '.a.example' }, { MXSuffix = '.b.example' }]\n",
    )
    .unwrap();
    let output = command(dir, &["queue", "import-shaping", "kumo.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let (made, left_out) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(made.contains("connections = 3") && left_out.contains("[a.example] idle_timeout"), "{made}{left_out}");
    assert!(left_out.contains("enable_tls: copy the last lines"), "{left_out}");
    assert!(left_out.contains("needed: a [[relay.source]] named `ip 1`"), "{left_out}");
    assert_eq!(left_out.matches("[provider.p] enable_tls").count(), 1, "{left_out}");
    let (_, policies) = made.split_once("for the server's configuration:\n").unwrap();
    let policies: String = policies.lines().map(|line| format!("{}\n", line.trim_start_matches(['#', ' ']))).collect();
    fs::write(dir.join("0.toml"), &made).unwrap();
    fs::write(
        dir.join("posthaste.toml"),
        format!("[relay]\nshaping = [\"0.toml\"]\n[[relay.source]]\nname = \"ip 1\"\n{policies}"),
    )
    .unwrap();
    let route = command(dir, &["route", "ann@a.example"]).output().unwrap();
    assert!(String::from_utf8_lossy(&route.stdout).contains("verified"), "{route:?}");
    assert_eq!(value(&explain(dir, &["a.example"]), "connections", "site"), "3");
    let missing = command(dir, &["queue", "import-shaping", "none.toml"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
}
