//! `config check` and `serve` agree: one refuses exactly the configurations that the other refuses.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Instant;

use crate::support::{PATIENCE, command};

/// Output of a `serve` that refuses to start.
fn refused_start(dir: &Path) -> Output {
    let mut command = command(dir, &["serve"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while process.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            process.kill().unwrap();
            panic!("the server has started: {:?}", process.wait_with_output());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    process.wait_with_output().unwrap()
}

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
const CERTIFICATE: &str = "tls = \"starttls\"\ncertificate = \"missing.pem\"\nkey = \"missing.pem\"\n";
const ROUTE: &str = "[[relay.route]]\nhost = \"next.example\"\n";

#[test]
fn config_check_refuses_what_serve_refuses() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "no secret\n").unwrap();
    fs::write(dir.path().join("shaping.toml"), "[default]\nconections = 7\n").unwrap();
    fs::write(dir.path().join("classes.toml"), "[[class]]\nname = \"x\"\npatterns = [\"(\"]\n").unwrap();
    fs::write(dir.path().join("hosts"), "not-an-address name\n").unwrap();
    fs::create_dir(dir.path().join("templates")).unwrap();
    fs::write(dir.path().join("templates/failed.txt"), "").unwrap();
    for (config, said) in [
        (format!("{LISTENER}{CERTIFICATE}"), "cannot read missing.pem"),
        (format!("[tls]\ncertificate = \"file\"\nkey = \"file\"\n{LISTENER}tls = \"required\"\n"), "cannot read file"),
        (format!("{LISTENER}auth = \"offered\"\n[auth]\nfile = \"missing\"\n"), "auth.file: missing: "),
        (format!("{LISTENER}auth = \"offered\"\n[auth]\nfile = \"file\"\n"), "auth.file: file:1: "),
        (format!("[relay.srs]\ndomain = \"s.example\"\nsecret_file = \"missing\"\n{LISTENER}"), "relay.srs: "),
        (
            format!("[relay.return_path]\ndomain = \"r.example\"\nsecret_file = \"missing\"\n{LISTENER}"),
            "relay.return_path: ",
        ),
        (
            format!("[relay.return_path]\ndomain = \"r.example\"\nsecret_file = \"hosts/x\"\n{LISTENER}"),
            "relay.return_path: ",
        ),
        (format!("[relay.bounces]\nclasses_file = \"missing\"\n{LISTENER}"), "relay.bounces.classes_file: missing: "),
        (
            format!("[relay.bounces]\nclasses_file = \"classes.toml\"\n{LISTENER}"),
            "relay.bounces.classes_file: classes.toml: ",
        ),
        (format!("[dns]\nhosts_file = \"missing\"\n{LISTENER}"), "dns: missing: "),
        (format!("[dns]\nhosts_file = \"hosts\"\n{LISTENER}"), "dns: hosts, line 1: "),
        (format!("[relay]\nshaping = [\"missing.toml\"]\n{LISTENER}"), "relay.shaping: missing.toml: "),
        (format!("[relay]\nshaping = [\"shaping.toml\"]\n{LISTENER}"), "relay.shaping: shaping.toml:2: "),
        (format!("[relay.notices]\ntemplates = \"missing\"\n{LISTENER}"), "relay.notices.templates: missing: "),
        (
            format!("[relay.notices]\ntemplates = \"templates\"\n{LISTENER}"),
            "relay.notices.templates: templates/failed.txt: ",
        ),
        (format!("{ROUTE}username = \"u\"\npassword_file = \"missing\"\n{LISTENER}"), "the password in missing: "),
        (format!("{ROUTE}tls = \"verified\"\nca_file = \"missing\"\n{LISTENER}"), "cannot read missing"),
        (
            format!(
                "[[relay.source]]\nname = \"s\"\nproxy = \"socks5://192.0.2.7:1080\"\nproxy_username = \"u\"\n\
                 proxy_password_file = \"missing\"\n{LISTENER}"
            ),
            "the password in missing: ",
        ),
        (format!("[storage]\nspool = \"file/spool\"\n{LISTENER}"), "file"),
        (format!("[storage]\ndata = \"file\"\n{LISTENER}"), "file"),
        ("[[listener]]\nunix = \"missing/smtp\"\n".to_owned(), "missing/smtp"),
        ("[[listener]]\nunix = \"file\"\n".to_owned(), "file"),
        (format!("[relay]\nnetworks = [\"0.0.0.0/0\"]\n{LISTENER}"), "posthaste.toml:2:13: an open relay: "),
    ] {
        fs::write(dir.path().join("posthaste.toml"), &config).unwrap();
        let checked = command(dir.path(), &["config", "check"]).output().unwrap();
        let started = refused_start(dir.path());
        for Output { status, stdout, stderr } in [&checked, &started] {
            let (out, text) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
            assert!(status.code() == Some(2) && text.contains(said) && !out.contains(": ok"), "{config}{out}{text}");
        }
        assert!(!dir.path().join("posthaste-data").exists(), "nothing is made");
    }
}

#[test]
fn a_secret_that_cannot_be_used_names_its_command() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("short"), "abc\n").unwrap();
    let sections = [("relay.srs", "[relay.srs]\ndomain"), ("relay.return_path", "[relay.return_path]\ndomain")];
    for (name, table) in sections {
        for file in ["missing", "short"] {
            let config = format!("{table} = \"s.example\"\nsecret_file = \"{file}\"\n{LISTENER}");
            fs::write(dir.path().join("posthaste.toml"), config).unwrap();
            let remedy = format!("`openssl rand -base64 24 > {file}`");
            for output in [command(dir.path(), &["config", "check"]).output().unwrap(), refused_start(dir.path())] {
                let said = String::from_utf8(output.stderr).unwrap();
                let told = said.lines().filter(|line| line.contains(&format!("{name}: ")) && line.contains(&remedy));
                assert!(output.status.code() == Some(2) && told.count() == 1, "{said}");
            }
        }
    }
}

#[test]
fn config_check_tells_of_every_problem_and_not_the_first_alone() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[relay]\nshaping = [\"a.toml\"]\n[relay.bounces]\nclasses_file = \"b.toml\"\n[dns]\nhosts_file = \"c\"\n[storage]\nmail = \"posthaste.toml/m\"\n";
    fs::write(dir.path().join("posthaste.toml"), config).unwrap();
    let checked = command(dir.path(), &["config", "check"]).output().unwrap();
    let said = String::from_utf8(checked.stderr).unwrap();
    for expected in
        ["a.toml", "b.toml", "dns: c: ", "storage.mail = posthaste.toml/m: posthaste.toml is not a directory"]
    {
        assert_eq!(said.matches(expected).count(), 1, "{expected}: {said}");
    }
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn config_check_is_content_beside_a_server_at_work() {
    let dir = tempfile::tempdir().unwrap();
    let server = crate::support::Server::start(
        dir.path(),
        "[[listener]]\nunix = \"smtp\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n",
    );
    let checked = command(dir.path(), &["config", "check"]).output().unwrap();
    assert!(checked.status.success() && checked.stdout.starts_with(b"posthaste.toml: ok\n"), "{checked:?}");
    server.stop();
}
