//! Secrets stand in their own files alone: not in the log, in errors, pages, metrics, events or the output of commands.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_acme_stub::AcmeStub;
use serde_json::Value;

use crate::auth::{line, plain, printed, scram};
use crate::http::{CONFIG, token};
use crate::http_rules::{LOGINS, basic, get};
use crate::relaying::unused_port;
use crate::support::{Server, command, configure};

/// A host that takes no mail without a login, and knows another password of it.
const SMARTHOST: &str = "host_name = \"mx.smart.example\"\n[auth]\nfile = \"passwords\"\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"off\"\nauth = \"required\"\n\
    [[domain]]\nname = \"smart.example\"\nusers = [\"us\"]\n";

/// A server with a secret at each place that takes one. `NOBODY` is a port at which nobody listens.
const HERE: &str = "host_name = \"mx.example.org\"\n[[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n\
    [log]\nlevel = \"trace\"\n[events]\nenabled = true\n[dns]\nservers = [\"127.0.0.1:9\"]\n\
    [acme]\nenabled = true\ndirectory = \"DIRECTORY\"\nca_file = \"root.pem\"\ndns_program = \"/bin/true\"\n\
    [relay]\nunreachable_secs = 1\n\
    [relay.srs]\ndomain = \"example.org\"\nsecret_file = \"own/srs\"\n\
    [relay.return_path]\ndomain = \"example.org\"\nsecret_file = \"own/return-path\"\n\
    [[relay.route]]\ndomain = \"smart.example\"\nhost = \"[127.0.0.1]\"\nport = SMART\ntls = \"off\"\npool = \"near\"\n\
    username = \"us@smart.example\"\npassword_file = \"own/smarthost\"\n\
    [[relay.route]]\nhost = \"[127.0.0.1]\"\nport = NOBODY\ntls = \"off\"\nusername = \"us\"\npassword_file = \"own/route\"\n\
    [[relay.source]]\nname = \"far\"\nproxy = \"socks5://127.0.0.1:NOBODY\"\nproxy_username = \"us\"\nproxy_password_file = \"own/proxy\"\n\
    [[relay.source]]\nname = \"near\"\nipv4 = \"127.0.0.1\"\n\
    [[relay.pool]]\nname = \"near\"\nsources = { near = 1 }\ntenants = []\n\
    [[relay.pool]]\nname = \"all\"\nsources = { far = 1 }\n\
    [[webhook]]\nname = \"crm\"\nurl = \"http://127.0.0.1:NOBODY/\"\nsecret_file = \"own/hook\"\n";

const FILES: [&str; 6] = ["route", "smarthost", "proxy", "hook", "srs", "return-path"];

/// A directory whose files of secrets are in `own` and in the server's data.
struct Rig {
    dir: tempfile::TempDir,
    own: PathBuf,
    secrets: Vec<String>,
    /// All that was shown or written, by the names of places.
    shown: HashMap<String, Vec<u8>>,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        std::fs::create_dir_all(dir.path().join("posthaste-data")).unwrap();
        std::fs::create_dir(&own).unwrap();
        let mut rig = Self { dir, own, secrets: Vec::new(), shown: HashMap::new() };
        for name in FILES {
            let secret = format!("canary-of-{name}");
            rig.keep(name, &format!("{secret}\n"));
            rig.secrets.push(secret);
        }
        // As they cross the wire, and as somebody types one into the wrong field.
        for secret in ["\0us@smart.example\0canary-of-smarthost", "canary-of-smarthost"] {
            rig.secrets.push(STANDARD.encode(secret));
        }
        for name in ["ann", "typed"] {
            rig.secrets.push(format!("canary-of-{name}"));
            rig.secrets.push(STANDARD.encode(format!("\0ann@example.org\0canary-of-{name}")));
        }
        let login = printed(rig.dir.path(), &["password", "--scram", "ann@example.org"], "canary-of-ann");
        let (_, keys) = login.trim_end().rsplit_once('$').unwrap();
        let (before, _) = login.split_once(":scram=").unwrap();
        let (_, hash) = before.rsplit_once('$').unwrap();
        rig.secrets.extend(keys.split(':').chain([hash]).map(|key| key.trim_end_matches('=').to_owned()));
        rig.keep("passwords", &login);
        rig
    }

    fn keep(&self, name: &str, text: &str) {
        std::fs::write(self.own.join(name), text).unwrap();
        std::fs::set_permissions(self.own.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn says(&mut self, words: &[&str]) {
        let said = command(self.dir.path(), words).output().unwrap();
        self.shown.insert(words.join(" "), [said.stdout, said.stderr].concat());
    }

    /// Takes the secrets out of files that the server and its commands have made, and notes the other files.
    fn gather(&mut self, dir: &Path) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path != self.own {
                self.gather(&path);
            }
            let Ok(octets) = std::fs::read(&path) else { continue };
            let text = String::from_utf8_lossy(&octets).into_owned();
            let found = secrets_of(&text);
            if found.is_empty() {
                self.shown.insert(path.display().to_string(), octets);
            } else {
                assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
                self.secrets.extend(found);
            }
        }
    }

    fn check(&self) {
        for (name, octets) in &self.shown {
            let text = String::from_utf8_lossy(octets);
            for secret in &self.secrets {
                assert!(!text.contains(secret.as_str()), "{secret} is in {name}");
            }
        }
    }
}

/// Lines of private keys in PEM that hold no part of the public key, and the key of an account at an authority.
fn secrets_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in text.split("-----BEGIN PRIVATE KEY-----").skip(1) {
        let lines: Vec<&str> =
            block.split("-----END").next().unwrap().lines().filter(|line| line.len() >= 40).collect();
        // RSA: the modulus comes first. Others are short, with the public key at the end.
        let (first, last) = if lines.len() > 10 { (10, lines.len()) } else { (0, 1) };
        found.extend(lines[first..last].iter().map(|line| (*line).to_owned()));
    }
    let account = text.lines().next().and_then(|line| serde_json::from_str::<Value>(line).ok());
    if let Some(key) = account.as_ref().and_then(|account| account["credentials"]["key_pkcs8"].as_str()) {
        found.push(key[..60].to_owned());
    }
    found
}

/// Logs in, fails to, and sends mail by the smarthost, by a route to nobody, and to itself.
fn act(rig: &mut Rig, server: &Server, smarthost: &Server) {
    assert_eq!(scram(&mut server.hello(), "ann@example.org", "canary-of-ann"), 235);
    assert_eq!(scram(&mut server.hello(), "ann@example.org", "canary-of-typed"), 535);
    server.hello().expect(&plain("ann@example.org", "canary-of-typed"), 535);
    let mut client = server.hello();
    client.expect(&plain("ann@example.org", "canary-of-ann"), 235);
    let mail = b"From: ann@example.org\r\nSubject: x\r\n\r\nx\r\n";
    let to = ["bob@there.example", "eve@smart.example", "ann@example.org"];
    assert_eq!(client.try_message("ann@example.org", &to, mail).unwrap().code, 250);
    for fields in ["Authorization: Bearer canary-of-typed\r\n".to_owned(), basic("canary-of-typed", "canary-of-typed")]
    {
        assert_eq!(get(server, "/api/token/v1", &fields).0, 401);
    }
    let link = rig.own.join("link");
    let made = command(rig.dir.path(), &["page", "--output"]).arg(&link).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let link = std::fs::read_to_string(link).unwrap();
    rig.secrets.push(link.trim().split_once("#k=").unwrap().1[4..].to_owned());
    server.wait_for_log("login failed");
    let mail = server.wait_for_mail("example.org", "ann", 1);
    assert!(mail[0].text().contains("DKIM-Signature: "), "it is signed: {}", mail[0].text());
    server.wait_for_log("crm");
    server.wait_for_log("a new certificate is in force");
    smarthost.wait_for_log("login failed");
}

#[test]
fn secrets_stand_in_their_own_files_alone() {
    let mut rig = Rig::new();
    let there = tempfile::tempdir().unwrap();
    std::fs::write(there.path().join("passwords"), line(there.path(), "us@smart.example", "another")).unwrap();
    let smarthost = Server::start(there.path(), SMARTHOST);
    let stub = AcmeStub::start(|_| Ok(()));
    let dir = rig.dir.path().to_owned();
    std::fs::write(dir.join("root.pem"), &stub.root_pem).unwrap();
    let config = HERE.replace("DIRECTORY", &stub.directory).replace("NOBODY", &unused_port().to_string());
    let config = config.replace("SMART", &smarthost.addresses[0].port().to_string());
    let logins = LOGINS.replace("\"passwords\"", "\"own/passwords\"");
    configure(&dir, &format!("{config}{logins}{CONFIG}[[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"implicit\"\n"));
    rig.says(&["dkim", "new", "example.org"]);
    let server = Server::start_as_it_is(&dir);
    let secret = token(&dir, "all", "server:read,metrics,queue:read,events:read");
    std::fs::rename(dir.join("all.token"), rig.own.join("all.token")).unwrap();
    rig.secrets.push(secret[4..].to_owned());
    act(&mut rig, &server, &smarthost);
    let bearer = format!("Authorization: Bearer {secret}\r\n");
    for path in ["/metrics", "/api/now/v1", "/api/system/v1", "/api/log/v1", "/api/queue/v1", "/api/token/v1"] {
        let (status, answer) = get(&server, path, &bearer);
        assert_eq!(status, 200, "{path}: {answer}");
        rig.shown.insert(path.to_owned(), answer.into_bytes());
    }
    for words in [
        &["config", "show"][..],
        &["config", "check"],
        &["trace", "bob@there.example", "--json"],
        &["trace", "eve@smart.example", "--json"],
        &["queue", "list", "--json"],
        &["dkim", "list", "--json"],
        &["account", "list"],
        &["logins"],
        &["acme", "renew"],
        &["doctor"],
    ] {
        rig.says(words);
    }
    rig.shown.insert("banner".to_owned(), server.banner.clone().into_bytes());
    rig.shown.insert("log".to_owned(), server.log_text().into_bytes());
    rig.shown.insert("the smarthost's log".to_owned(), smarthost.log_text().into_bytes());
    server.stop();
    smarthost.stop();
    let before = rig.secrets.len();
    rig.gather(&dir);
    assert!(rig.secrets.len() >= before + 20, "two keys of DKIM, one of an account, and of certificates");
    let has = |place: &str, text: &str| String::from_utf8_lossy(&rig.shown[place]).contains(text);
    assert!(rig.shown.len() > 20 && has("/api/system/v1", "own/route"), "paths are shown");
    assert!(has("dkim list --json", "active"), "commands have said something");
    rig.check();
    errors_show_none(&mut rig);
}

/// Each file of a secret is damaged: errors name it.
fn errors_show_none(rig: &mut Rig) {
    let dir = rig.dir.path().to_owned();
    let mut damage = vec![rig.own.join("passwords"), dir.join("posthaste-data/acme/mx.example.org.pem")];
    let keys = std::fs::read_dir(dir.join("posthaste-data/dkim/example.org")).unwrap();
    damage.extend(keys.map(|entry| entry.unwrap().path()));
    for file in &damage {
        let text = std::fs::read_to_string(file).unwrap();
        // One octet is missing in its last line, and none in the secrets before.
        std::fs::write(file, text.trim_end().strip_suffix(['-', '=', 'A']).unwrap_or(text.trim_end()).to_owned() + ":")
            .unwrap();
    }
    for words in [&["config", "check"][..], &["dkim", "list"], &["account", "list"]] {
        rig.says(words);
    }
    let said = |words: &str| String::from_utf8_lossy(&rig.shown[words]).into_owned();
    assert!(said("config check").contains("own/passwords"), "{}", said("config check"));
    assert!(said("dkim list").contains("dkim/example.org"), "{}", said("dkim list"));
    rig.check();
}
