use std::path::Path;

use super::*;

pub(super) fn error_of(text: &str) -> String {
    Config::parse(Path::new("posthaste.toml"), text).expect_err(text).to_string()
}

fn check(text: &str, expected: &str) {
    assert_eq!(error_of(text), expected);
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(Config::parse(Path::new("x"), "").unwrap(), Config::default());
    let config = Config::default();
    assert_eq!(config.listeners[0].socket.address.as_deref(), Some("127.0.0.1:2525"));
    assert_eq!(config.storage.mail, Path::new("posthaste-data/mail"));
    assert_eq!(config.storage.spool, Path::new("posthaste-data/spool"));
    assert_eq!(config.domains[0].name, "localhost");
    assert_eq!(config.domains[0].users, Users::Any);
}

#[test]
fn what_is_shown_reads_back_as_the_same() {
    let text = "host_name = \"mx.example\"\n[storage]\ndata = \"/srv/mail\"\n[[listener]]\nunix = \"/run/l\"\n\
                protocol = \"lmtp\"\n[[domain]]\nname = \"example.org\"\nusers = [\"a\"]\n\
                aliases = { b = \"a\", c = [\"a\", \"b\"] }\n[policy]\nbare_newlines = \"fix\"\n";
    let config = Config::parse(Path::new("x"), text).unwrap();
    assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    assert_eq!(config.storage.mail, Path::new("/srv/mail/mail"));
    let json = serde_json::to_value(&config).unwrap();
    assert_eq!(json["domain"][0]["aliases"]["b"], "a");
}

#[test]
fn a_spool_size_below_one_message_or_in_part_blocks_is_refused() {
    check(
        "[storage]\nspool_segment_bytes = 65536\n",
        "posthaste.toml:2:23: must be between 4 MiB and 1 GiB\n \
         2 | spool_segment_bytes = 65536\n   |                       ^^^^^",
    );
    check(
        "[storage]\nspool_segment_bytes = 5000000\n",
        "posthaste.toml:2:23: must be a multiple of 4 KiB\n \
         2 | spool_segment_bytes = 5000000\n   |                       ^^^^^^^",
    );
    let config = Config::parse(Path::new("x"), "[storage]\nspool_segments = 4\ncheckpoint_secs = 1\n").unwrap();
    assert_eq!((config.storage.spool_segments, config.storage.checkpoint_bytes), (4, 256 << 20));
}

#[test]
fn the_mail_floor_follows_the_spool_floor_unless_set() {
    let floors = |text: &str| {
        let storage = Config::parse(Path::new("x"), &format!("[storage]\n{text}")).unwrap().storage;
        (storage.mail_free_bytes_min, storage.mail_free_inodes_min)
    };
    assert_eq!(floors(""), (Some(32 << 20), Some(500)));
    assert_eq!(floors("free_bytes_min = \"1G\"\nfree_inodes_min = 0\n"), (Some(1 << 29), Some(0)));
    assert_eq!(floors("mail_free_bytes_min = \"2M\"\nmail_free_inodes_min = 7\n"), (Some(2 << 20), Some(7)));
}

#[test]
fn only_commands_of_other_protocols_can_be_forbidden() {
    let config = Config::parse(Path::new("x"), "[policy]\nforbidden_commands = [\"GET\", \"ehl\"]\n").unwrap();
    assert_eq!(config.policy.forbidden_commands, ["GET", "ehl"]);
    assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    for (command, message) in
        [("vrfy", "is a command of SMTP"), ("GET /", "one word"), ("Host:", "one word"), ("", "one word")]
    {
        let shown = error_of(&format!("[policy]\nforbidden_commands = [\"GET\", \"{command}\"]\n"));
        assert!(shown.starts_with("posthaste.toml:2:") && shown.contains(message), "{shown}");
    }
}

#[test]
fn an_unknown_key_is_pointed_at_with_the_one_that_may_be_meant() {
    check(
        "host_name = \"a.example\"\n\n[limits]\nmesage_bytes = 7\n",
        "posthaste.toml:4:1: there is no key `mesage_bytes` here; did you mean `message_bytes`?\n \
         4 | mesage_bytes = 7\n   | ^^^^^^^^^^^^",
    );
    let first = |text: &str, expected: &str| {
        let shown = error_of(text);
        assert!(shown.lines().next().unwrap().ends_with(expected), "{shown}");
    };
    first("[limit]\n", "1:2: there is no key `limit` here; did you mean `limits`?");
    first("[[listeners]]\n", "there is no key `listeners` here; did you mean `listener`?");
    first(
        "[limits]\nhost_name = \"x\"\n",
        "2:1: there is no key `host_name` here; it belongs to the top of the file, before the first table",
    );
    first("data = \"/srv\"\n", "there is no key `data` here; it belongs below [storage]");
    first("catch_all = \"a\"\n", "there is no key `catch_all` here; it belongs below a [[domain]]");
    first("[search]\nquick = true\n", "there is no key `quick` here; there are index, dir");
    first("[search]\n\"a`, expected `b\" = true\n", "there is no key `a`, expected `b` here; there are index, dir");
    first(
        "[policy]\nnul_octets = \"acept\"\n",
        "\"acept\" is not allowed here; did you mean \"accept\"? There are \"reject\", \"accept\"",
    );
    first("[[domain]]\nusers = \"any\"\n", "a domain needs a name, such as name = \"example.org\"");
}

#[test]
fn a_wrong_type_is_pointed_at_in_words_of_the_file() {
    check(
        "[limits]\n  recipients = \"many\"\n",
        "posthaste.toml:2:16: a whole number without quotes, such as 1000\n 2 |   recipients = \"many\"\n   |                ^^^^^^",
    );
    let first = |text: &str, expected: &str| {
        let shown = error_of(text);
        assert!(shown.lines().next().unwrap().ends_with(expected), "{shown}");
    };
    first(
        "[domain]\nname = \"a.example\"\n",
        "1:1: there can be several: write `[[domain]]`, with two pairs of brackets",
    );
    first(
        "[listener]\naddress = \"[::]:25\"\n",
        "there can be several: write `[[listener]]`, with two pairs of brackets",
    );
    first("[[limits]]\nhops = 5\n", "there is one `[limits]` only: write it with one pair of brackets");
    first("limits = 5\n", "1:10: this has to be a table: `[limits]` on a line of its own; it is `5`");
    first("domain = \"a\"\n", "this has to be tables: `[[domain]]` on a line of its own before each; it is \"a\"");
    first(
        "[limits]\nmessage_bytes = 1.5\n",
        "this has to be a size, such as 1048576, \"10M\" or \"1.5 GiB\"; it is `1.5`",
    );
    first("[limits]\nmessage_bytes = \"10X\"\n", "2:17: `10X` is not a size; write 10240, 10k, 10M or 1.5 GiB");
    first("[limits]\nmessage_bytes = -1\n", "-1 is negative");
    first("[limits]\nbody_read_secs = \"5 parsecs\"\n", "`5 parsecs` is not a time; write 500ms, 10s, 2m or 1h");
    first("[limits]\nbody_read_secs = \"500ms\"\n", "`500ms`: whole seconds only");
    first(
        "[[listener]]\nunix = \"l\"\nmode = 660\n",
        "3:8: this has to be permission bits in octal and in quotes, such as \"0660\"",
    );
    first(
        "[[listener]]\nunix = \"l\"\nmode = 0660\n",
        "3:8: a number cannot begin with 0; permission bits are text in quotes, such as \"0660\"",
    );
    first("host_name = mx.example.org\n", "1:13: text needs quotes");
    first("host_name = \"mx.example.org\n", "the closing quote is missing");
    first("[limits]\nhops = 5\nhops = 6\n", "3:1: this name is given twice");
    first("[search]\nindex = \"yes\"\n", "this has to be true or false, without quotes; it is \"yes\"");
    first("host_name = 5\n", "this has to be text in quotes; it is `5`");
    let table = "this has to be a table, with a heading of its own or as { name = \"value\" }; it is \"x\"";
    first("[relay]\nnotices = \"x\"\n", table);
    first("[relay]\nschedule = \"x\"\n", table);
    first("[relay]\nbounces = \"x\"\n", table);
    first("[storage]\ndata = 5\n", "this has to be text in quotes; it is `5`");
    first("[log]\nformat = 5\n", "this has to be text in quotes");
    first(
        "[[domain]]\nname = \"a.example\"\nusers = \"alice\"\n",
        "this has to be a list of local parts, or \"any\"; it is \"alice\"",
    );
    first(
        "[[domain]]\nname = \"a.example\"\naliases = [\"a\"]\n",
        "this has to be a table, such as { name = \"value\" }; it is a list",
    );
    first("match = \"a\"\n", "there is no key `match` here; it belongs below a [[domain.pattern]]");
    let of_domain =
        |keys: &str, expected: &str| first(&format!("[[domain]]\nname = \"a.example\"\n{keys}\n"), expected);
    of_domain(
        "[domain.pattern]\nmatch = \"a\"",
        "there can be several: write `[[domain.pattern]]`, with two pairs of brackets",
    );
    of_domain("[[domain.pattern]]\nmatch = \"a\"", "3:1: `to` is missing");
    of_domain("[[domain.pattern]]\nmatch = \"a(\"\nto = \"b\"", "4:9: not a regular expression: unclosed group");
    of_domain("aliases = { first.last = \"b\" }", "a name with a dot stands in quotes");
    of_domain(
        "aliases = { a = 5 }",
        "this has to be a user or an address, a list of them, { discard = true } or { refuse = \"TEXT\" }; it is `5`",
    );
    of_domain(
        "aliases.a.refuse = \"250 2.0.0 ok\"",
        "3:20: 250 does not refuse a recipient; write 450 to 452, or 550 to 554",
    );
}

#[test]
fn sizes_and_times_take_units() {
    let text = "[limits]\nmessage_bytes = \"10M\"\nheader_bytes = \"64 KiB\"\nbody_read_secs = \"5m\"\ncommand_secs = 7\n\
                [storage]\ncheckpoint_bytes = \"1.5g\"\ncheckpoint_secs = \"1 min 30s\"\n";
    let Config { limits, storage, .. } = Config::parse(Path::new("x"), text).unwrap();
    assert_eq!((limits.session.message_bytes, limits.session.header_bytes), (10 << 20, 64 << 10));
    assert_eq!((limits.session.body_read_secs, limits.session.command_secs), (300, 7));
    assert_eq!((storage.checkpoint_bytes, storage.checkpoint_secs), (3 << 29, 90));
}

#[test]
fn a_listener_takes_addresses_and_names_and_explains_the_rest() {
    let listener = |address: &str| {
        let text = format!("[[listener]]\naddress = \"{address}\"\n");
        Config::parse(Path::new("x"), &text).map(drop).map_err(|error| error.to_string())
    };
    for good in ["127.0.0.1:25", "[::]:25", "localhost:25", "mx.example.org:0"] {
        listener(good).expect(good);
    }
    let bad = [
        ("25", "a port alone is not enough: \"0.0.0.0:25\" for all IPv4 addresses, \"[::]:25\" for all"),
        ("0.0.0.0", "`0.0.0.0` has no port; "),
        ("::1", "an IPv6 address stands in brackets and needs a port: \"[::1]:25\""),
        ("::1:2525", "an IPv6 address stands in brackets and needs a port: \"[::1]:2525\""),
        ("*:25", "for all addresses write \"[::]:25\", for all of IPv4 \"0.0.0.0:25\""),
        (":25", "for all addresses write \"[::]:25\""),
        ("localhost:smtp", "`smtp` is not a port, which is a number up to 65535"),
        ("localhost:70000", "`70000` is not a port"),
        ("no host:25", "`no host` is neither an IP address nor a host name"),
    ];
    for (address, words) in bad {
        let said = listener(address).unwrap_err();
        assert!(said.starts_with(&format!("x:2:11: {words}")), "{said}");
    }
}

#[test]
fn broken_toml_is_pointed_at() {
    let shown = error_of("host_name = \"a\nx = 1\n");
    assert!(shown.starts_with("posthaste.toml:1:1"), "{shown}");
    assert!(shown.contains(" 1 | host_name = \"a\n"), "{shown}");
}

#[test]
fn a_value_that_makes_no_sense_is_pointed_at() {
    check(
        "host_name = \"no host\"\n",
        "posthaste.toml:1:13: not a host name, such as mx.example.org: letters, digits and hyphens, with dots between\n 1 | host_name = \"no host\"\n   |             ^^^^^^^^^",
    );
    check(
        "[[domain]]\nname = \"a.example\"\nusers = [\"x\", \"X\"]\n",
        "posthaste.toml:3:15: the user `X` is listed twice\n 3 | users = [\"x\", \"X\"]\n   |               ^^^",
    );
    check(
        "[[domain]]\nname = \"a.example\"\nusers = [\"x\"]\n[domain.aliases]\ny = [\"x\", \"z\"]\n",
        "posthaste.toml:5:11: there is no user or alias `z`\n 5 | y = [\"x\", \"z\"]\n   |           ^^^",
    );
    check(
        "[[domain]]\nname = \"a.example\"\naliases = { y = \"x@localhost\" }\n",
        "posthaste.toml:3:17: `localhost` is not one of our domains\n \
         3 | aliases = { y = \"x@localhost\" }\n   |                 ^^^^^^^^^^^^^",
    );
    check(
        "[limits]\ncommand_line_bytes = 100\n",
        "posthaste.toml:2:22: must be at least 512 bytes\n 2 | command_line_bytes = 100\n   |                      ^^^",
    );
}

#[test]
fn times_have_an_upper_bound() {
    for key in ["command_secs", "body_read_secs", "body_total_secs", "write_secs", "linger_secs", "shutdown_secs"] {
        let shown = error_of(&format!("[limits]\n{key} = 9223372036854775807\n"));
        assert!(shown.starts_with("posthaste.toml:2:"), "{shown}");
        assert!(shown.contains(" and 365 days\n"), "{shown}");
        Config::parse(Path::new("x"), &format!("[limits]\n{key} = 31536000\n")).unwrap();
    }
}

#[test]
fn an_octet_that_is_not_utf8_is_pointed_at() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"host_name = \"a.example\"\n[log] # \xfcber\nlevel = \"info\"\n").unwrap();
    let error = Config::load(Some(file.path())).unwrap_err();
    let position = error.position().unwrap();
    assert_eq!((position.line, position.column), (2, 9));
    assert!(error.to_string().ends_with(":2:9: not UTF-8\n 2 | [log] # \u{fffd}ber\n   |         ^"), "{error}");
}

#[test]
fn who_may_connect_to_a_socket() {
    let access = |keys: &str| {
        let text = format!("[[listener]]\nunix = \"l\"\n{keys}");
        let config = Config::parse(Path::new("x"), &text).map_err(|error| error.position().unwrap().line);
        config.map(|config| config.listeners[0].unix_access().map(|access| (access.mode, access.group)).unwrap())
    };
    assert_eq!(access(""), Ok((0o660, None)));
    assert_eq!(access("mode = \"0666\"\ngroup = \"root\"\n"), Ok((0o666, Some(0))));
    assert_eq!(access("group = \"4711\"\n"), Ok((0o660, Some(4711))));
    assert_eq!(access("mode = \"0888\"\n"), Err(3));
    assert_eq!(access("mode = \"1777\"\n"), Err(3));
    assert_eq!(access("group = \"no such group\"\n"), Err(3));
    check(
        "[[listener]]\naddress = \"127.0.0.1:1\"\nmode = \"0660\"\n",
        "posthaste.toml:3:8: only for `unix`\n 3 | mode = \"0660\"\n   |        ^^^^^^",
    );
}

#[test]
fn the_second_of_two_equals_is_pointed_at() {
    let place = |text: &str| {
        let error = Config::parse(Path::new("x"), text).unwrap_err();
        let position = error.position().unwrap();
        (position.line, position.column)
    };
    assert_eq!(place("[[domain]]\nname = \"a.example\"\n[[domain]]\nname = \"A.example\"\n"), (4, 8));
    assert_eq!(place("[[listener]]\naddress = \"[::1]:25\"\n[[listener]]\naddress = \"[::1]:25\"\n"), (4, 11));
    assert_eq!(place("[[listener]]\nprotocol = \"lmtp\"\n"), (1, 1));
    assert_eq!(place("log = { level = \"loud=x=y\" }\n"), (1, 17));
    assert_eq!(place("[[domain]]\nname = \"a.example\"\naliases = { a = \"b\", b = \"a\" }\n"), (3, 17));
}

#[test]
fn a_log_level_with_a_typo_is_no_level() {
    let level = |level: &str| Config::parse(Path::new("x"), &format!("[log]\nlevel = \"{level}\"\n")).map(drop);
    for good in [
        "info",
        "WARN",
        "off",
        "warn,posthaste_server=info",
        "posthaste_server::receive=debug, error",
        "posthaste_smtp=off",
    ] {
        level(good).expect(good);
    }
    for bad in ["loud", "inf", "", "warn,", "warn,posthaste_sever=info", "posthaste_server", "posthaste_server=loud"] {
        assert_eq!(level(bad).expect_err(bad).position().map(|position| position.column), Some(9), "{bad}");
    }
}

#[test]
fn a_reload_refuses_a_missing_file_or_one_without_domains() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("posthaste.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let domain = "[[domain]]\nname = \"a.example\"\n";
    let listener = "[[listener]]\naddress = \"127.0.0.1:2525\"\n";
    let again = |before: &str, now: Option<&str>| {
        write(before);
        let loaded = Loaded::load(Some(&file)).unwrap();
        match now {
            Some(text) => write(text),
            None => std::fs::remove_file(&file).unwrap(),
        }
        loaded.again(None).map(drop).map_err(|error| error.to_string())
    };
    assert!(again(domain, None).unwrap_err().contains("cannot be read"));
    assert!(again(domain, Some("")).unwrap_err().contains("[[domain]] is gone"));
    assert!(again(domain, Some(listener)).unwrap_err().contains("[[domain]] is gone"));
    assert!(again(listener, Some("")).unwrap_err().contains("[[listener]] is gone"));
    again(listener, Some(domain)).unwrap();
    again(&format!("{listener}{domain}"), Some(domain)).unwrap();
    again("", Some("")).unwrap();
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Some(Path::new("/nonexistent/posthaste.toml"))).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/posthaste.toml: cannot be read: "), "{error}");
}

#[test]
fn a_tab_or_a_wide_character_does_not_move_the_mark() {
    let shown = error_of("host_name = \"a.example\"\n[log]\n\tx = 1 # ü\n");
    assert!(shown.contains(":3:2: there is no key `x` here; "), "{shown}");
    assert!(shown.ends_with(" 3 |  x = 1 # ü\n   |  ^"), "{shown}");
}

#[test]
fn a_number_beyond_all_numbers_is_too_large_in_plain_words() {
    let large = "99999999999999999999999";
    for (text, expected) in [
        (format!("[limits]\nmessage_bytes = {large}\n"), format!("`{large}` is too large")),
        (format!("[storage]\ncheckpoint_secs = {large}\n"), format!("`{large}` is too large")),
        (format!("user = {large}\n"), format!("`{large}` is too large")),
        (format!("[[domain]]\nname = {large}\n"), format!("this has to be text in quotes; it is `{large}`")),
        (format!("[limits]\nrecipients = {large}{large}\n"), "the number is too large".to_owned()),
    ] {
        let said = error_of(&text);
        assert!(said.lines().next().unwrap().ends_with(&expected), "{said}");
    }
}

#[test]
fn who_may_connect_and_what_differs_is_checked_like_the_rest() {
    let first = |keys: &str, expected: &str| {
        let shown = error_of(&format!("[[listener]]\naddress = \"127.0.0.1:1\"\n{keys}\n"));
        assert!(shown.lines().next().unwrap().ends_with(expected), "{shown}");
    };
    first("allow = []", "3:9: nobody could connect; leave it out to allow everybody");
    first(
        "allow = \"10.0.0.1/8\"",
        "3:9: `10.0.0.1/8` has bits after its prefix: write 10.0.0.0/8 for the network, or 10.0.0.1 for the one address",
    );
    first("proxies = \"127.0.0.1\"", "3:11: only with `proxy_protocol = true`, or with HTTP");
    first("proxy_protocol = true", "needs the proxies' addresses too, such as proxies = [\"192.0.2.7\"]");
    first("alow = \"10.0.0.0/8\"", "3:1: there is no key `alow` here; did you mean `allow`?");
    first("limits = 3", "this has to be a table; it is `3`");
    first("limits = { mesage_bytes = 3 }", "there is no key `mesage_bytes` here; did you mean `message_bytes`?");
    first("limits = { memory_bytes = 3 }", "there is no key `memory_bytes` here; it belongs below [limits]");
    first("limits = { errors = 0 }", "3:21: must be at least 1");
    first("policy = { forbidden_commands = [\"GET\", \"vrfy\"] }", "cannot be forbidden");
    first("cidr = \"10.0.0.0/8\"", "there is no key `cidr` here; it belongs below a [[network]]");
    first("starttls = true", "its certificate is named here or below [tls]");
    first(
        "auth_required = true",
        "3:1: a listener has `auth`, which is \"offered\" or \"required\", and `file` below [auth] names the file of passwords",
    );
    first("[[network]]", "a network needs `cidr`, such as cidr = \"10.0.0.0/8\"");
    first("[[network]]\ncidr = [\"10.0.0.0/8\", \"10.0.0.0/8\"]", "the network 10.0.0.0/8 is listed twice");
    let unix = |keys: &str| error_of(&format!("[[listener]]\nunix = \"l\"\n{keys}\n"));
    assert!(unix("allow = \"10.0.0.0/8\"").contains("clients of a UNIX socket have no address"));
    assert!(unix("proxy_protocol = true\nproxies = \"10.0.0.1\"").contains("`mode` and `group` say which proxies"));
    Config::parse(Path::new("x"), "[[listener]]\nunix = \"l\"\nproxy_protocol = true\nallow = \"10.0.0.0/8\"\n")
        .unwrap();
}

#[test]
fn the_networks_of_the_manual_read_back_as_the_same() {
    // The example of the manual.
    let manual = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md")).unwrap();
    let text = manual.split("```toml\n").find(|block| block.contains("\n[[network]]\n")).unwrap();
    let text = text.split("```").next().unwrap();
    // The user of the tests need not have the group.
    let config = Config::parse(Path::new("x"), &text.replace("group = \"postfix\"\n", "")).unwrap();
    assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
    assert_eq!(config.listeners[2].tls_mode(), ListenerTls::Implicit);
}
