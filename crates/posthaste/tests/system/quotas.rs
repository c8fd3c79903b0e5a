//! Limits on the recipients that an account may send to.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::auth::{hello, line, plain, written_by};
use crate::support::{Client, Server, command};

fn config(auth: &str) -> String {
    format!(
        "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n{auth}\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nauth = \"offered\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"bob\", \"cid\"]\n[events]\nenabled = true\n"
    )
}

fn login(server: &Server, user: &str) -> Client {
    let (mut client, _) = hello(server.addresses[0]);
    client.expect(&plain(user, "secret"), 235);
    client.expect(&format!("MAIL FROM:<{user}>"), 250);
    client
}

fn reload(server: &Server, auth: &str) {
    server.reload(&config(auth));
    server.wait_for_log("configuration reloaded");
}

#[test]
fn a_login_has_one_quota_across_sessions_and_reloads() {
    let dir = tempfile::tempdir().unwrap();
    let lines = ["ann@example.org", "app@else.example"].map(|name| line(dir.path(), name, "secret"));
    fs::write(dir.path().join("passwords"), lines.concat()).unwrap();
    let server = Server::start(
        dir.path(),
        &config("recipient_rate = '5/day'\nrecipient_rates = { 'APP@else.example' = ['1000/day', '100/day'] }"),
    );
    let (mut one, mut other) = (login(&server, "ann@example.org"), login(&server, "ann@example.org"));
    for client in [&mut one, &mut other] {
        client.expect("RCPT TO:<bob@example.org>", 250);
        // Who is refused is not counted.
        client.expect("RCPT TO:<nobody@example.org>", 550);
        client.expect("RCPT TO:<cid@example.org>", 250);
    }
    one.expect("RCPT TO:<ann@example.org>", 250);
    for client in [&mut one, &mut other] {
        let reply = client.expect("RCPT TO:<ann@example.org>", 450);
        assert!(reply.text.starts_with("4.7.1 No more recipients than 5/day, try again in 17"), "{reply:?}");
    }
    let said = server.wait_for_log("No more recipients than");
    assert!(said.contains(" WARN ") && said.contains("about=\"ann@example.org\""), "{said}");
    // What it may send to gets the message.
    other.expect("DATA", 354);
    other.send(&written_by("ann@example.org")).unwrap();
    other.expect(".", 250);
    server.wait_for_mail("example.org", "bob", 1);

    let mut app = login(&server, "app@else.example");
    (0..100).for_each(|_| drop(app.expect("RCPT TO:<bob@example.org>", 250)));
    assert!(app.expect("RCPT TO:<bob@example.org>", 450).text.contains(" 100/day, "));
    // Others than logins are not counted.
    let (mut nobody, _) = hello(server.addresses[0]);
    nobody.expect("MAIL FROM:<eve@there.example>", 250);
    (0..20).for_each(|_| drop(nobody.expect("RCPT TO:<bob@example.org>", 250)));

    reload(&server, "recipient_rate = '7/day'");
    one.expect("RCPT TO:<ann@example.org>", 250);
    other.expect("MAIL FROM:<ann@example.org>", 250);
    other.expect("RCPT TO:<ann@example.org>", 250);
    one.expect("RCPT TO:<ann@example.org>", 450);
    drop((one, other, app, nobody));
    server.stop();
}

#[test]
fn mail_of_a_user_of_this_machine_waits_in_the_pickup_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("passwords"), "").unwrap();
    let server = Server::start(dir.path(), &config("local_recipient_rate = '2/day'"));
    let mut child = command(dir.path(), &["sendmail", "ann@example.org", "bob@example.org", "cid@example.org"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Subject: x\n\nbody\n").unwrap();
    assert!(child.wait().unwrap().success());
    server.wait_for_mail("example.org", "ann", 1);
    server.wait_for_mail("example.org", "bob", 1);
    let said = server.wait_for_log("No more recipients than");
    assert!(said.contains(&format!("about=\"uid {}\"", rustix::process::getuid().as_raw())), "{said}");
    reload(&server, "local_recipient_rate = '3/day'");
    server.wait_for_mail("example.org", "cid", 1);
    server.stop();
}

#[test]
fn a_wrong_rate_is_shown_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("passwords"), line(dir.path(), "ann@example.org", "secret")).unwrap();
    let check = |auth: &str, code: i32, expected: &str| {
        fs::write(dir.path().join("posthaste.toml"), config(auth)).unwrap();
        let output = command(dir.path(), &["config", "check"]).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.code() == Some(code) && said.contains(expected), "{auth}: {said}");
    };
    check("recipient_rate = '200'", 2, "posthaste.toml:4:18: `200` is not a rate; write 100/minute");
    check("recipient_rate = 200", 2, "posthaste.toml:4:18: ");
    check("recipient_rate = ['5/s', '0/hour']", 2, "must be at least 1");
    check("[auth.recipient_rates]\n'a b' = '5/s'", 2, "posthaste.toml:5:9: `a b` is not a login");
    let twice = "[auth.recipient_rates]\nann = '5/s'\n'ANN@example.org' = []";
    check(twice, 2, "ann@example.org is listed twice, in two spellings");
    check("recipient_rates = { bob = '5/s' }", 0, "auth.recipient_rates: there is no login `bob`");
    check("recipient_rates = { ann = '5/s' }\nlocal_recipient_rate = []", 0, "ok\n");
}
