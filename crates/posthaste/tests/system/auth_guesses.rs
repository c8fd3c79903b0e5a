//! Guessed passwords: a crowd that guesses, and the command `posthaste logins`.

use crate::auth::{at, config, hello, line, plain};
use crate::support::{Client, MESSAGE, Server, command};
use crate::tls::{certify, tls13};

#[test]
fn a_crowd_that_guesses_holds_up_nobody() {
    const CROWD: usize = 1000;
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann", "secret")).unwrap();
    let server = Server::start(dir.path(), &config(9));
    let place = at(&server, "127.0.0.3");
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| hello(place).0).collect();
    for (number, client) in crowd.iter_mut().enumerate() {
        client.send(format!("{}\r\n", plain("ann", &number.to_string())).as_bytes()).unwrap();
    }
    // Mail goes through meanwhile, before any of the crowd has read its answer.
    let (mut client, _) = hello(place);
    client.deliver(&["bob@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "bob", 1);
    let mut wrong = 0;
    for mut client in crowd {
        let reply = client.reply();
        assert!([535, 454].contains(&reply.code), "{reply:?}");
        wrong += usize::from(reply.code == 535);
    }
    assert!(wrong > 0, "some are checked");
    // Who knows it gets in.
    client.expect(&plain("ann", "secret"), 235);
    drop(client);
    server.stop();
}

#[test]
fn logins_shows_use_and_guesses_and_forgets_these() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = tls13(&certify(dir.path()));
    let lines = ["ann@example.org", "bob@example.org"].map(|name| line(dir.path(), name, "secret"));
    std::fs::write(dir.path().join("passwords"), lines.concat()).unwrap();
    let proxied = "[auth]\nfile = \"passwords\"\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[domain]]\nname = \"example.org\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"starttls\"\nauth = \"offered\"\nproxy_protocol = true\nproxies = \"127.0.0.1\"\n";
    let server = Server::start(dir.path(), proxied);
    let from = |ip: &str| {
        let mut client = Client::open(server.addresses[0]).unwrap();
        client.send(format!("PROXY TCP4 {ip} 127.0.0.1 1 25\r\n").as_bytes()).unwrap();
        assert_eq!(client.reply().code, 220);
        client.expect("EHLO client.example.net", 250);
        client.expect("STARTTLS", 220);
        client.encrypt(&certificate).unwrap();
        client.expect("EHLO client.example.net", 250);
        client
    };
    let logins = |args: &[&str]| {
        let output = command(dir.path(), &[&["logins"], args].concat()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let shown = || -> Vec<serde_json::Value> { serde_json::from_str(&logins(&["--json"]).1).unwrap() };
    assert!(shown()[0]["last_use"].is_null() && shown().len() == 2);

    from("198.51.100.1").expect(&plain("bob", "secret"), 235);
    let mut guessing: Vec<Client> = (0..10).map(|_| from("192.0.2.1")).collect();
    for (number, client) in guessing.iter_mut().enumerate() {
        client.send(format!("{}\r\n", plain("ann", &number.to_string())).as_bytes()).unwrap();
    }
    guessing.iter_mut().for_each(|client| assert_eq!(client.reply().code, 535));
    from("192.0.2.1").expect(&plain("ann", "secret"), 421);
    let all = shown();
    assert_eq!(
        (&all[0]["login"], &all[0]["wrong"], &all[0]["slow"]),
        (&"ann@example.org".into(), &10.into(), &false.into())
    );
    assert_eq!((&all[1]["login"], &all[1]["last_from"]), (&"bob@example.org".into(), &"198.51.100.1".into()));
    assert!(all[1]["last_use"].as_u64().unwrap() > 1_700_000_000 && all[1]["remembered"] == true, "{all:?}");
    assert_eq!((&all[2]["client"], &all[2]["turned_away"]), (&"192.0.2.1".into(), &true.into()));
    let (code, table) = logins(&[]);
    assert!(
        code == 0 && table.contains("turned away") && table.contains("  send  198.51.100.1  0      remembered"),
        "{table}"
    );

    assert_eq!(logins(&["forget", "nobody at all"]).0, 2);
    assert_eq!(logins(&["forget", "192.0.2.1", "ann"]), (0, "2 forgotten\n".to_owned()));
    assert_eq!(logins(&["forget", "192.0.2.1"]), (1, "0 forgotten\n".to_owned()));
    from("192.0.2.1").expect(&plain("ann", "secret"), 235);
    assert_eq!((shown().len(), &shown()[0]["wrong"]), (2, &0.into()));
    server.stop();
}
