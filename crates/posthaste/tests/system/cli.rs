//! The command line: output, and exit status.

use std::fs;

use crate::search::Place;
use crate::support::{ANYBODY, Server, command};

#[test]
fn config_show_prints_what_config_check_accepts() {
    let dir = tempfile::tempdir().unwrap();
    let shown = command(dir.path(), &["config", "show"]).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    std::fs::write(dir.path().join("posthaste.toml"), &shown.stdout).unwrap();
    let checked = command(dir.path(), &["config", "check"]).output().unwrap();
    assert_eq!(String::from_utf8(checked.stdout).unwrap(), "posthaste.toml: ok\n");
    let json = command(dir.path(), &["config", "show", "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["listener"][0]["address"], "127.0.0.1:2525");
    assert_eq!(json["domain"][0]["name"], "localhost");
    assert_eq!(json["limits"]["hops"], 50);
}

#[test]
fn config_check_points_at_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.toml");
    std::fs::write(&file, "[limits]\nmessage_bytes = \"big\"\n").unwrap();
    for line in [&["config", "check", "other.toml"][..], &["config", "check", "--config", "other.toml"]] {
        let checked = command(dir.path(), line).output().unwrap();
        assert_eq!(checked.status.code(), Some(2));
        assert!(checked.stdout.is_empty());
        let said = String::from_utf8(checked.stderr).unwrap();
        assert!(said.starts_with("posthaste: other.toml:2:17: `big` is not a size"), "{said}");
        assert!(said.contains("\n 2 | message_bytes = \"big\"\n   |                 ^^^^^\n"), "{said}");
    }
}

#[test]
fn every_command_of_the_server_finds_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        fs::write(dir.path().join(name), format!("host_name = \"{name}\"\n[storage]\ndata = \"{name}.d\"\n"))
    };
    ["named.example", "variable.example", "posthaste.toml"].iter().for_each(|name| write(name).unwrap());
    let run = |line: &[&str], variable: Option<&str>| {
        let mut command = command(dir.path(), line);
        command.env_remove("POSTHASTE_CONFIG").envs(variable.map(|name| ("POSTHASTE_CONFIG", name)));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let variable = Some("variable.example");
    for (line, variable, used) in [
        (&["config", "show"][..], None, "posthaste.toml"),
        (&["config", "show"], variable, "variable.example"),
        (&["config", "show", "--config", "named.example"], variable, "named.example"),
        (&["config", "--config", "named.example", "show"], variable, "named.example"),
        (&["--config=named.example", "config", "show"], variable, "named.example"),
        (&["--config", "variable.example", "config", "show", "--config", "named.example"], None, "named.example"),
    ] {
        let (code, said) = run(line, variable);
        assert!(code == Some(0) && said.contains(&format!("host_name = \"{used}\"")), "{line:?}: {said}");
    }
    // No server runs there; the error says of which file that is.
    for words in [
        &["queue", "list"][..],
        &["suppression", "list"],
        &["logins"],
        &["logins", "forget", "192.0.2.1"],
        &["trace", "--live"],
        &["trace", "x"],
        &["queue", "export", "--all"],
    ] {
        let (code, said) = run(&[words, &["--config", "named.example"]].concat(), variable);
        assert!(code == Some(2) && said.contains("named.example.d"), "{words:?}: {said}");
        assert!(said.ends_with("\nposthaste: the configuration is named.example\n"), "{words:?}: {said}");
        let (_, first) = run(&[&["--config", "named.example"], words].concat(), variable);
        assert_eq!(first, said);
        let (_, said) = run(words, variable);
        assert!(said.ends_with("\nposthaste: the configuration is variable.example\n"), "{words:?}: {said}");
    }
    for line in [&["--config", "named.example", "sendmail", "-bp"][..], &["sendmail", "--config=named.example", "-bp"]]
    {
        let (_, said) = run(line, variable);
        assert!(said.contains("named.example.d/pickup"), "{said}");
    }
    let (code, said) = run(&["--config", "nowhere", "queue", "list"], None);
    assert_eq!((code, said.as_str()), (Some(2), "posthaste: nowhere: cannot be read: No such file or directory\n"));
}

#[test]
fn root_reads_no_configuration_that_others_can_change() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() || fs::exists("/etc/posthaste/posthaste.toml").unwrap() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("posthaste.toml");
    fs::write(&file, "host_name = \"here.example\"\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    for line in [&["config", "show"][..], &["serve"], &["queue", "list"]] {
        let refused = command(dir.path(), line).env_remove("POSTHASTE_CONFIG").output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        let expected = "posthaste: posthaste.toml: root does not read it, because others can write to posthaste.toml; to use it anyway, add --config posthaste.toml\n";
        assert_eq!((refused.status.code(), said.as_str()), (Some(2), expected), "{line:?}");
    }
    let named = command(dir.path(), &["config", "show", "--config", "posthaste.toml"]).output().unwrap();
    assert!(named.stdout.starts_with(b"host_name = \"here.example\""), "{named:?}");
}

#[test]
fn hints_for_other_indexers_are_for_commands_with_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let said = |line: &[&str]| {
        let refused = command(dir.path(), line).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{line:?}");
        String::from_utf8(refused.stderr).unwrap()
    };
    for line in [&["find", "--config", "x", "rye"][..], &["--config=x", "search", "rye"]] {
        assert!(said(line).starts_with("posthaste: no --config: --index DIR"), "{line:?}");
    }
    for line in [
        &["spool", "inspect", "--config", "x", "spool"][..],
        &["password", "--config", "x"],
        &["load", "--verbose", "127.0.0.1:25"],
        &["queue", "flag", "x"],
        &["report", "dump"],
    ] {
        let said = said(line);
        assert!(said.starts_with("error: un") && !said.contains("index") && !said.contains("posthaste tag"), "{said}");
    }
}

#[test]
fn config_check_finds_a_file_in_the_place_of_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("posthaste.toml"), "[[listener]]\nunix = \"lmtp\"\n").unwrap();
    let warns = || {
        let checked = command(dir.path(), &["config", "check"]).output().unwrap();
        let said = String::from_utf8(checked.stderr).unwrap();
        let is_told = said.contains("listener lmtp: a file that is not a socket has this name");
        assert_eq!(checked.status.code(), Some(if is_told { 2 } else { 0 }), "{said}");
        is_told
    };
    assert!(!warns());
    fs::write(dir.path().join("lmtp"), "precious").unwrap();
    assert!(warns());
    fs::remove_file(dir.path().join("lmtp")).unwrap();
    // One that a dead server has left is replaced.
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("lmtp")).unwrap());
    assert!(!warns());
}

#[test]
fn the_spool_can_be_looked_at_beside_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org"], b"Subject: x\r\n\r\n");
    let run = |args: &[&str]| command(dir.path(), args).output().unwrap();
    let inspected = run(&["spool", "inspect", "posthaste-data", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!((&json["in_use"], &json["damage"]), (&true.into(), &serde_json::json!([])), "{json}");
    assert!(json["segments"].as_array().is_some_and(|segments| !segments.is_empty()), "{json}");
    let refused = run(&["spool", "verify", "posthaste-data"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("the spool is in use; stop the server first"),
        "{refused:?}"
    );
    // Never "sound" for what is not a spool, such as the mail beside it.
    for (wrong, why) in [
        ("nowhere", "nowhere: cannot open the spool: there is no spool"),
        ("posthaste-data/mail", "posthaste-data/mail: cannot open the spool: there is no spool"),
    ] {
        let refused = run(&["spool", "verify", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).starts_with(&format!("posthaste: {why}")), "{refused:?}");
    }
    server.stop();
    let verified = run(&["spool", "verify", "posthaste-data"]);
    assert!(verified.status.success(), "{verified:?}");
    assert!(String::from_utf8(verified.stdout).unwrap().starts_with("kind: ring\nsound: "));
}

#[test]
fn version_and_misuse() {
    let dir = tempfile::tempdir().unwrap();
    let version = command(dir.path(), &["--version"]).output().unwrap();
    assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("posthaste {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(command(dir.path(), &["serve", "--nonsense"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn what_is_left_out_or_too_much_is_said() {
    let place = Place::new();
    fs::write(place.path().join("mail/cur/3.c.host:2,S"), "From: c@x.example\n\nno id\n").unwrap();
    assert!(place.says(0, &["index", "mail"]).starts_with("3 messages in 2 folders: 3 new (539 bytes); "));
    assert!(place.says(0, &["index", "--list-all"]).contains(": nothing new; "));
    assert!(!place.says(0, &["info"]).contains('%'), "an index of three messages is larger than they are");
    for (line, code, told) in [
        (&["tag", "--dump", "out.txt"][..], 2, "`posthaste tag --dump > out.txt`"),
        (&["tag", "--list", "rye"], 2, "unexpected `rye`"),
        (&["extract", "--parts", "9", "oven"], 1, "no part 9; the message has 2 parts"),
        (&["extract", "-a", "flour"], 1, "no attachment; --save-all saves its 1 part"),
        (&["find", "--output", "tags", "rye"], 1, "2 messages found, none with a tag"),
        (&["load"], 2, "`load --serve`"),
        (&["doctor", "--connections", "x"], 2, "write a whole number"),
        (&["sink", "localhost"], 2, "or only a port"),
        (&["sink", "--tempfail", "rcpt=500"], 2, "500 is not a percentage from 0 to 100"),
    ] {
        let output = place.run(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line:?}: {said}");
        assert!(said.contains(told) && output.stdout.is_empty(), "{line:?}: {said}");
    }
}
