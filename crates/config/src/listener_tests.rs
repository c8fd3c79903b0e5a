//! Listeners that relay, and listeners with TLS.

use std::path::Path;

use super::tests::error_of;
use super::{Config, Listener, ListenerAuth, ListenerTls};

#[test]
fn a_listener_that_relays_says_for_whom() {
    let listener = |keys: &str| Config::parse(Path::new("x"), &format!("[[listener]]\nrelay = true\n{keys}\n"));
    for keys in [
        "address = \"127.0.0.1:587\"",
        "address = \"[::1]:587\"",
        "address = \"LocalHost:587\"",
        "unix = \"s\"",
        "address = \"[::]:587\"\nallow = [\"10.0.0.0/8\", \"fc00::/7\"]",
        "address = \"0.0.0.0:587\"\nproxy_protocol = true\nproxies = \"192.0.2.1\"\nallow = \"10.0.0.0/8\"",
    ] {
        assert!(listener(keys).is_ok(), "{keys}");
    }
    for keys in [
        "address = \"0.0.0.0:587\"",
        "address = \"[::]:587\"",
        "address = \"192.0.2.1:587\"",
        "address = \"mx.example.org:587\"",
        "address = \"localhost.example.org:587\"",
        "address = \"127.0.0.1:587\"\nproxy_protocol = true\nproxies = \"127.0.0.1\"",
        "unix = \"s\"\nproxy_protocol = true",
    ] {
        let error = listener(keys).unwrap_err().to_string();
        assert!(error.contains("2:9: everybody could send mail anywhere"), "{keys}: {error}");
    }
}

/// Certificates and keys, in their order.
fn files(listener: &Listener) -> String {
    let each = listener.certificate_files();
    each.iter().map(|of| format!("{} {}", of.chain.display(), of.key.display())).collect::<Vec<_>>().join(", ")
}

#[test]
fn certificates_are_one_file_or_many_and_may_include_keys() {
    let check = |tls: &str, own: &str, expected: &str| {
        let text = format!("[tls]\n{tls}\n[[listener]]\naddress = '[::]:465'\n{own}\n");
        let config = Config::parse(Path::new("x"), &text).unwrap();
        assert_eq!(files(&config.listeners[0]), expected, "{text}");
        assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    };
    check("certificate = 'a.pem'", "", "a.pem a.pem");
    check("certificate = ['a.pem', 'b.pem']", "", "a.pem a.pem, b.pem b.pem");
    check("certificate = ['a', 'b']\nkey = ['k', 'b']", "", "a k, b b");
    check("certificate = ['a', 'b']\nkey = ['k', 'l']", "certificate = 'c.pem'", "c.pem c.pem");
    check("certificate = 'a'\nkey = 'k'", "certificate = ['c', 'd']\nkey = ['l', 'm']", "c l, d m");
}

#[test]
fn listeners_have_the_tls_that_their_place_suggests() {
    let text = "[tls]\ncertificate = 'c'\nkey = 'k'\n[[listener]]\naddress = '[::]:25'\n[[listener]]\naddress = '[::]:465'\n\
                [[listener]]\nunix = 's'\n[[listener]]\naddress = '[::]:26'\nproxy_protocol = true\nproxies = '192.0.2.1'\n\
                [[listener]]\naddress = '[::]:587'\ntls = 'required'\n[[listener]]\naddress = '[::]:27'\ntls = 'off'\n\
                [[listener]]\naddress = '[::]:28'\ncertificate = 'c2'\nkey = 'k2'\n";
    let config = Config::parse(Path::new("x"), text).unwrap();
    assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    let modes: Vec<ListenerTls> = config.listeners.iter().map(Listener::tls_mode).collect();
    use ListenerTls::{Implicit, Off, Required, StartTls};
    assert_eq!(modes, [StartTls, Implicit, Off, Off, Required, Off, StartTls]);
    assert_eq!(config.listeners.iter().map(files).collect::<Vec<_>>(), ["c k", "c k", "", "", "c k", "", "c2 k2"]);
    let without = Config::parse(Path::new("x"), "[[listener]]\naddress = '[::]:465'\n").unwrap();
    assert_eq!(without.listeners[0].tls, Some(Off));
}

#[test]
fn tls_without_what_it_needs_is_a_mistake() {
    let listener = |keys: &str| error_of(&format!("[[listener]]\naddress = \"127.0.0.1:1\"\n{keys}\n"));
    assert!(listener("tls = \"on\"").contains("3:7: "));
    assert!(listener("tls = \"off\"\nkey = \"k\"").contains("4:7: a key needs its certificate"));
    assert!(listener("certificate = [\"c\", \"\"]").contains("3:15: a file's name is empty"));
    let counts = listener("certificate = [\"c\", \"d\"]\nkey = \"k\"");
    assert!(counts.contains("4:7: `certificate` names 2, so name as many keys"), "{counts}");
    assert!(error_of("[tls]\nkey = \"k\"\n").contains("2:7: a key needs its certificate"));
    assert!(error_of("[tls]\ncertificate = \"\"\n").contains("2:15: "));
    let unix = error_of("[[listener]]\nunix = \"s\"\ntls = \"starttls\"\ncertificate = \"c\"\nkey = \"k\"\n");
    assert!(unix.contains("3:7: only for `address`"), "{unix}");
}

#[test]
fn a_listener_may_have_tls_without_a_certificate_of_its_own() {
    let auth = "[auth]\nfile = 'p'\n";
    for keys in [
        "address = '[::]:25'\ntls = 'starttls'",
        "address = '[::]:465'\ntls = 'implicit'\nauth = 'required'",
        "address = '[::]:143'\ntls = 'required'\nprotocol = 'imap'",
        "address = '[::]:443'\ntls = 'implicit'\nprotocol = 'http'",
    ] {
        let config = Config::parse(Path::new("x"), &format!("{auth}[[listener]]\n{keys}\n")).unwrap();
        assert!(config.listeners[0].tls_mode() != ListenerTls::Off && files(&config.listeners[0]).is_empty());
        assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    }
}

#[test]
fn logins_need_passwords_and_a_line_that_nobody_reads() {
    let head = "[auth]\nfile = 'p'\n[tls]\ncertificate = 'c'\nkey = 'k'\n[[listener]]\nauth = 'required'\n";
    let read = |keys: &str| Config::parse(Path::new("x"), &format!("{head}{keys}\n"));
    for keys in [
        "address = '[::]:587'",
        "address = '[::]:465'",
        "address = '127.0.0.1:587'\ntls = 'off'",
        "unix = 's'",
        "address = '[::]:587'\ntls = 'required'\nproxy_protocol = true\nproxies = '192.0.2.1'",
    ] {
        let config = read(keys).unwrap();
        assert!(config.lets_clients_relay(), "{keys}");
        assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    }
    for (keys, expected) in [
        ("address = '[::]:587'\ntls = 'off'", "7:8: passwords would cross the network in the clear"),
        ("address = '127.0.0.1:587'\nproxy_protocol = true\nproxies = '127.0.0.1'", "7:8: passwords would cross"),
        ("unix = 's'\nprotocol = 'lmtp'", "7:8: not with LMTP"),
    ] {
        let error = read(keys).unwrap_err().to_string();
        assert!(error.contains(expected), "{keys}: {error}");
    }
    let error = error_of("[[listener]]\naddress = '127.0.0.1:1'\nauth = 'offered'\n");
    assert!(error.contains("3:8: nobody could log in: set `file` below [auth]"), "{error}");
    assert!(error_of("[[listener]]\naddress = '127.0.0.1:1'\nauth = 'yes'\n").contains("3:8: "));
    let error = error_of("[[network]]\ncidr = '10.0.0.0/8'\nauth = 'offered'\n");
    assert!(error.contains("3:8: no listener has `auth`"), "{error}");
}

#[test]
fn what_a_network_says_of_logins_counts_where_there_are_logins() {
    let text = "[auth]\nfile = 'p'\n[[listener]]\naddress = '127.0.0.1:1'\n[[listener]]\naddress = '127.0.0.1:2'\nauth = 'required'\n\
                [[network]]\ncidr = '10.0.0.0/8'\nauth = 'off'\n[[network]]\ncidr = '10.1.0.0/16'\n[[network]]\ncidr = '192.0.2.0/24'\nauth = 'offered'\n";
    let config = Config::parse(Path::new("x"), text).unwrap();
    let modes = |listener: &Listener| {
        let networks = config.networks.iter().map(|network| listener.auth_mode(Some(network)));
        std::iter::once(listener.auth_mode(None)).chain(networks).collect::<Vec<_>>()
    };
    use ListenerAuth::{Off, Offered, Required};
    assert_eq!(modes(&config.listeners[0]), [Off; 4]);
    assert_eq!(modes(&config.listeners[1]), [Required, Off, Required, Offered]);
}

#[test]
fn an_http_listener_has_no_keys_of_mail_and_no_clear_line() {
    let tls = "[tls]\ncertificate = 'c'\nkey = 'k'\n";
    let head = "[[listener]]\nprotocol = 'http'\n";
    for (more, keys, mode) in [
        ("", "address = '127.0.0.1:8025'", ListenerTls::Off),
        (tls, "address = '127.0.0.1:8025'\nproxies = '127.0.0.1'", ListenerTls::Off),
        (tls, "address = '[::]:443'\nlimits.connections = 7", ListenerTls::Implicit),
        (tls, "address = '[::]:8443'", ListenerTls::Implicit),
        ("", "unix = 's'", ListenerTls::Off),
    ] {
        let config = Config::parse(Path::new("x"), &format!("{more}{head}{keys}\n")).unwrap();
        assert_eq!(config.listeners[0].tls_mode(), mode, "{keys}");
        assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
        assert_eq!((config.mail_listeners().count(), config.http_listeners().count()), (0, 1));
    }
    for (keys, expected) in [
        ("address = '0.0.0.0:8025'", "tokens would cross the network in the clear"),
        ("address = '192.0.2.1:8025'", "tokens would cross the network in the clear"),
        ("address = '127.0.0.1:1'\ntls = 'starttls'\ncertificate = 'c'\nkey = 'k'", "HTTP has \"implicit\" or \"off\""),
        ("address = '127.0.0.1:1'\nrelay = true", "4:9: not with HTTP"),
        ("address = '127.0.0.1:1'\ntenant = 'x'", "4:10: not with HTTP"),
        ("address = '127.0.0.1:1'\nlimits.recipients = 7", "with HTTP only `connections`"),
        ("address = '127.0.0.1:1'\npolicy.dsn = true", "not with HTTP"),
    ] {
        let error = error_of(&format!("{head}{keys}\n"));
        assert!(error.contains(expected), "{keys}: {error}");
    }
    let error = error_of("[http]\nnames = ['a.example', 'a.example:443']\n");
    assert!(error.contains("2:23: not a host name"), "{error}");
}

#[test]
fn a_listener_for_readers_has_logins_and_no_keys_of_mail() {
    let tls = "[tls]\ncertificate = 'c'\nkey = 'k'\n";
    let auth = "[auth]\nfile = 'p'\n";
    for (more, keys, mode) in [
        ("", "protocol = 'imap'\naddress = '127.0.0.1:143'", ListenerTls::Off),
        (tls, "protocol = 'imap'\naddress = '[::]:143'\nlimits.connections = 7", ListenerTls::StartTls),
        (tls, "protocol = 'imap'\naddress = '[::]:993'", ListenerTls::Implicit),
        (tls, "protocol = 'imap'\naddress = '[::]:995'", ListenerTls::StartTls),
        (tls, "protocol = 'pop3'\naddress = '[::]:995'\nallow = '10.0.0.0/8'", ListenerTls::Implicit),
        (tls, "protocol = 'pop3'\naddress = '[::]:110'\ntls = 'required'", ListenerTls::Required),
        ("", "protocol = 'pop3'\nunix = 's'", ListenerTls::Off),
    ] {
        let config = Config::parse(Path::new("x"), &format!("{auth}{more}[[listener]]\n{keys}\n")).unwrap();
        assert_eq!(config.listeners[0].tls_mode(), mode, "{keys}");
        assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
        assert_eq!((config.mail_listeners().count(), config.reading_listeners().count()), (0, 1));
        assert!(!config.takes_first_password());
    }
    let near = "address = '127.0.0.1:1'";
    for (keys, expected) in [
        ("address = '0.0.0.0:143'", "4:12: passwords would cross the network in the clear"),
        ("address = '127.0.0.1:1'\nproxy_protocol = true\nproxies = '127.0.0.1'", "4:12: passwords would cross"),
        (&format!("{near}\nauth = 'required'"), "not with IMAP: its clients always log in"),
        (&format!("{near}\nrelay = true"), "not with IMAP"),
        (&format!("{near}\nlimits.recipients = 7"), "with IMAP only `connections`"),
        (&format!("{near}\npolicy.dsn = true"), "not with IMAP"),
        (&format!("{near}\nproxies = '127.0.0.1'"), "only with `proxy_protocol = true`"),
    ] {
        let error = error_of(&format!("{auth}[[listener]]\nprotocol = 'imap'\n{keys}\n"));
        assert!(error.contains(expected), "{keys}: {error}");
    }
    let error = error_of(&format!("[[listener]]\nprotocol = 'pop3'\n{near}\n"));
    assert!(error.contains("2:12: nobody could log in by POP3: set `file` below [auth]"), "{error}");
}
