//! `posthaste setup`: a new server, a second run, an interrupted one, and a refusal because of a port in use.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use posthaste_dns_stub::{Kind, Server as Dns, Zone};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::command;

/// A scratch directory, and a DNS server with these records.
struct Rig {
    dir: tempfile::TempDir,
    dns: Dns,
    offset: u16,
}

/// Ports that setup needs; an offset turns them into free ones.
const PORTS: [u16; 6] = [25, 443, 465, 587, 993, 8025];

fn free_offset() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Below the ports that the system gives out, and elsewhere in each process.
    let first = 10_000 + u16::try_from(std::process::id() % 7).unwrap() * 2000;
    loop {
        let offset = first + NEXT.fetch_add(1, Ordering::Relaxed) % 900;
        if PORTS.iter().all(|port| TcpListener::bind(("0.0.0.0", offset + port)).is_ok()) {
            return offset;
        }
    }
}

impl Rig {
    fn new(zone: Zone) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), dns: Dns::start(zone), offset: free_offset() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// With certificates, at this address.
    fn at(&self, address: &str, args: &[&str]) -> Command {
        let mut command =
            command(self.dir.path(), &["setup", "ann@example.org", "--config-dir", "etc", "--data", "data"]);
        command.args(["--own-address", address, "--resolver", &self.dns.address().to_string()]);
        command.args(["--port-offset", &self.offset.to_string()]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        self.at("192.0.2.10", &[args, &["--no-acme"]].concat())
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn is_empty(&self) -> bool {
        !self.path("etc").exists() && !self.path("data").exists()
    }
}

fn zone() -> Zone {
    Zone::default()
        .mx("example.org", 10, "mail.old.example")
        .txt("example.org", "v=spf1 include:_spf.old.example -all")
        .a("mx.example.org", [192, 0, 2, 10].into())
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_plan_makes_nothing_and_says_what_is_there() {
    let rig = Rig::new(zone());
    let said = rig.run(&["--dry-run"]);
    let out = text(&said.stdout);
    assert!(said.status.success() && rig.is_empty(), "{said:?}");
    for line in
        ["you receive mail elsewhere today", "to be merged", "192.0.2.10", "free", "host_name = \"mx.example.org\""]
    {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(out.contains("no DANE: the resolver 127.0.0.1 does not") && !out.contains("trust_ad"), "{out}");
    let said = rig.run(&[]);
    assert!(!said.status.success() && rig.is_empty() && text(&said.stderr).contains("--yes"), "{said:?}");
}

#[test]
fn a_server_is_made_once_and_sends_itself_a_signed_message() {
    let rig = Rig::new(zone());
    let made = rig.json(&["--yes"]);
    assert!(made["done"] == true && made["round_trip_ms"].is_u64(), "{made:#}");
    assert_eq!(made["plan"].as_array().unwrap().len(), 4, "{made:#}");
    assert!(
        made["plan"][1].as_str().unwrap().ends_with("accounts ann@, reports@; aliases postmaster@, abuse@ of ann@")
    );
    assert!(made["web_server"].is_null() && made["certificate"].is_null(), "{made:#}");
    let advice = |topic: &str| made["advice"].as_array().unwrap().iter().find(|line| line["topic"] == topic).cloned();
    for (topic, words) in [
        ("password", "posthaste account passwd ann@example.org --config "),
        ("clients", "login ann@example.org"),
        ("firewall", "the reverse name of each address is mx.example.org"),
        ("back up", "/etc and "),
        ("page", "posthaste page --config "),
        ("start", " serve --config "),
    ] {
        let line = advice(topic).unwrap_or_else(|| panic!("{topic}: {made:#}"));
        assert!(line["text"].as_str().unwrap().contains(words), "{line}");
    }
    assert!(made["check"].as_str().unwrap().starts_with("posthaste dns check example.org --watch --config "));
    let config = std::fs::read_to_string(rig.path("etc/posthaste.toml")).unwrap();
    assert!(config.lines().count() <= 25, "{config}");
    assert_eq!((mode(&rig.path("etc/posthaste.toml")), mode(&rig.path("etc/passwords"))), (0o644, 0o640));
    let records = made["records"].as_array().unwrap();
    let has = |name: &str, value: &str| records.iter().any(|record| record["name"] == name && record["value"] == value);
    assert!(has("example.org", "v=spf1 a:mx.example.org include:_spf.old.example -all"), "{records:#?}");
    assert!(has("_dmarc.example.org", "v=DMARC1; p=none; rua=mailto:reports@example.org"), "{records:#?}");
    assert_eq!(records.iter().filter(|record| record["name"].as_str().unwrap().contains("_domainkey")).count(), 2);
    // Its own message is gone again, and nothing listens any more.
    let mail = rig.path("data/mail/example.org/ann/Maildir");
    let left: Vec<_> = ["new", "cur"].iter().flat_map(|sub| std::fs::read_dir(mail.join(sub)).unwrap()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(TcpListener::bind(("0.0.0.0", rig.offset + 465)).is_ok());
    let before = std::fs::read(rig.path("etc/passwords")).unwrap();
    let again = rig.run(&["--yes"]);
    assert!(again.status.success() && text(&again.stdout).ends_with("nothing to do\n"), "{again:?}");
    assert_eq!(std::fs::read(rig.path("etc/passwords")).unwrap(), before);
}

#[test]
fn a_resolver_that_has_proven_to_validate_is_believed_for_good() {
    let forged = "www.dnssec-failed.org";
    let validating = zone().ns("org", "ns.example").signed("org").fails_for(forged, Kind::A);
    let rig = Rig::new(validating);
    let made = rig.json(&["--yes"]);
    let finding = &made["findings"][0];
    assert_eq!(finding["text"], "127.0.0.1 validates DNSSEC: dns.trust_ad = true", "{made:#}");
    let config = std::fs::read_to_string(rig.path("etc/posthaste.toml")).unwrap();
    assert!(config.contains("\ntrust_ad = true\n") && config.lines().count() <= 25, "{config}");
    // A second run leaves the configuration as it is, and says what is wrong now.
    rig.dns.change(zone());
    let again = rig.run(&["--yes"]);
    let out = text(&again.stdout);
    assert!(again.status.success() && out.ends_with("nothing to do\n"), "{again:?}");
    assert!(out.contains("no DANE: the resolver 127.0.0.1 does not"), "{out}");
}

#[test]
fn behind_nat_it_names_ports_to_forward_and_the_address() {
    let rig = Rig::new(zone());
    let plan = |address: &str| {
        let said = rig.at(address, &["--dry-run"]).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        text(&said.stdout)
    };
    let direct = plan("192.0.2.10");
    assert!(direct.contains("mx.example.org  192.0.2.10  ") && !direct.contains("private"), "{direct}");
    assert!(!direct.contains("addresses ="), "{direct}");
    let terms = "a certificate for mx.example.org by Let's Encrypt; its terms: https://letsencrypt.org/repository/";
    assert!(direct.contains(terms), "{direct}");
    let behind = plan("10.0.0.5");
    let ports: Vec<String> = [25, 465, 587, 993, 443].iter().map(|port| (rig.offset + port).to_string()).collect();
    let forward = format!("10.0.0.5 is private: forward {} of 192.0.2.10 to 10.0.0.5", ports.join(" "));
    assert!(behind.contains(&forward), "{behind}");
    assert!(behind.contains("addresses = [\"192.0.2.10\"]"), "certificates: {behind}");
    let elsewhere = plan("192.0.2.77");
    assert!(
        elsewhere.contains("has 192.0.2.10 in DNS, which is not an address of this machine (192.0.2.77)"),
        "{elsewhere}"
    );
    rig.dns.change(Zone::default());
    let unknown = plan("10.0.0.5");
    for words in ["has no address in DNS yet", "of your router to 10.0.0.5", "certificates need the router's address"] {
        assert!(unknown.contains(words), "{words}: {unknown}");
    }
    let made = text(&rig.at("10.0.0.5", &["--yes", "--no-acme"]).output().unwrap().stdout);
    assert!(made.contains(" Router     forward "), "{made}");
}

/// A host of a large domain, at 127.0.0.1.
fn zone_with_others() -> Zone {
    zone().mx("gmail.com", 10, "others.example").a("others.example", [127, 0, 0, 1].into())
}

#[test]
fn a_blocked_port_25_is_told_with_the_way_round_it() {
    let rig = Rig::new(zone());
    let plan = |port: u16| text(&rig.run(&["--dry-run", "--outbound-port", &port.to_string()]).stdout);
    assert!(plan(9).contains("not tried: DNS has no mail hosts"), "{}", plan(9));
    rig.dns.change(zone_with_others());
    // Nothing listens at it.
    let blocked = plan(9);
    assert!(blocked.contains("port 25    no other host answers") && blocked.contains("--smarthost"), "{blocked}");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let greets = std::thread::spawn(move || other.accept().unwrap().0.write_all(b"220 others.example\r\n"));
    let open = plan(port);
    assert!(open.contains("other hosts answer: mail goes out"), "{open}");
    greets.join().unwrap().unwrap();
}

#[test]
fn a_smarthost_gets_mail_for_others_with_a_login_of_a_file() {
    let rig = Rig::new(zone_with_others());
    let smarthost = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("[127.0.0.1]:{}", smarthost.local_addr().unwrap().port());
    std::fs::write(rig.path("login"), "ann\nsecret \"words\"\n").unwrap();
    let wrong = rig.run(&["--yes", "--smarthost", "127.0.0.1", "--smarthost-login", "login"]);
    assert!(!wrong.status.success() && rig.is_empty(), "{wrong:?}");
    let made = rig.json(&["--yes", "--smarthost", &at, "--smarthost-login", "login"]);
    assert!(made["done"] == true && made["round_trip_ms"].is_u64(), "{made:#}");
    let told = made.to_string();
    assert!(told.contains("answers: mail for other hosts goes there") && !told.contains("secret"), "{made:#}");
    assert!(!told.contains("port 25"), "nobody asks for it: {made:#}");
    let password = rig.path("etc/smarthost.password");
    assert_eq!((std::fs::read_to_string(&password).unwrap().as_str(), mode(&password)), ("secret \"words\"\n", 0o640));
    let route = command(rig.dir.path(), &["route", "eve@there.example", "--config", "etc/posthaste.toml"]).output();
    let route = text(&route.unwrap().stdout);
    assert!(route.contains("[127.0.0.1]"), "{route}");
    // As it is written, also without the options.
    for args in [&["--yes"][..], &["--yes", "--smarthost", &at]] {
        let again = rig.run(args);
        assert!(again.status.success() && text(&again.stdout).ends_with("nothing to do\n"), "{again:?}");
    }
    std::fs::write(rig.path("login"), "ann\nanother\n").unwrap();
    let other = rig.run(&["--yes", "--smarthost", &at, "--smarthost-login", "login"]);
    assert!(!other.status.success() && text(&other.stderr).contains("nothing was changed"), "{other:?}");
    drop(smarthost);
    let away = rig.run(&["--yes"]);
    assert!(text(&away.stdout).contains("does not answer: mail for other hosts waits"), "{away:?}");
}

#[test]
fn a_changed_configuration_is_kept_and_its_changes_are_told() {
    let rig = Rig::new(zone());
    rig.json(&["--yes"]);
    let file = rig.path("etc/posthaste.toml");
    let written = std::fs::read_to_string(&file).unwrap();
    let edited = written.replace("users = [\"ann\", ", "users = [\"ann\", \"bob\", ") + "[relay]\nlocal_users = true\n";
    std::fs::write(&file, &edited).unwrap();
    let again = rig.run(&["--yes"]);
    let out = text(&again.stdout);
    assert!(again.status.success() && out.ends_with("nothing to do\n"), "{again:?}");
    for line in [
        "- users = [\"ann\", \"reports\"]",
        "+ users = [\"ann\", \"bob\", \"reports\"]",
        "+ [relay]",
        "+ local_users = true",
    ] {
        assert!(out.lines().any(|found| found.trim() == line), "{line}: {out}");
    }
    assert!(out.contains("stays as it is") && !out.contains(" host_name"), "{out}");
    assert_eq!(rig.json(&["--yes"])["changed"].as_array().unwrap().len(), 4);
    // What is missing is made beside it.
    std::fs::remove_file(rig.path("etc/passwords")).unwrap();
    let made = rig.json(&["--yes"]);
    assert!(made["round_trip_ms"].is_u64() && made["plan"].as_array().unwrap().len() == 1, "{made:#}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), edited);
    let asked = rig.run(&["--yes", "--smarthost", "smtp.example.net:587"]);
    let says = text(&asked.stdout);
    assert!(
        !asked.status.success() && says.contains("write the [relay] route to smtp.example.net:587 into it"),
        "{asked:?}"
    );
    std::fs::write(&file, edited.replace("/data\"", "/moved\"")).unwrap();
    let moved = rig.run(&["--yes"]);
    assert!(!moved.status.success() && text(&moved.stdout).contains("has its data or logins elsewhere"), "{moved:?}");
    std::fs::write(&file, edited + "nonsense\n").unwrap();
    let wrong = rig.run(&["--yes"]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("posthaste.toml"), "{wrong:?}");
    // For another address it is somebody else's.
    std::fs::write(&file, written).unwrap();
    let mut other = command(rig.dir.path(), &["setup", "bob@example.org", "--config-dir", "etc", "--data", "data"]);
    let said = other.args(["--yes", "--no-acme", "--resolver", &rig.dns.address().to_string()]).output().unwrap();
    assert!(!said.status.success() && text(&said.stderr).contains("nothing was changed"), "{said:?}");
}

#[test]
fn a_configuration_of_somebody_else_stays() {
    let rig = Rig::new(zone());
    std::fs::create_dir(rig.path("etc")).unwrap();
    std::fs::write(rig.path("etc/posthaste.toml"), "host_name = \"mine.example\"\n").unwrap();
    let said = rig.run(&["--yes"]);
    assert!(!said.status.success() && text(&said.stderr).contains("nothing was changed"), "{said:?}");
    assert!(!rig.path("data").exists());
    assert_eq!(std::fs::read_to_string(rig.path("etc/posthaste.toml")).unwrap(), "host_name = \"mine.example\"\n");
}

#[test]
fn a_place_that_cannot_be_is_told() {
    let rig = Rig::new(zone());
    std::fs::write(rig.path("file"), "").unwrap();
    for (config_dir, data, told) in [
        ("same", "same", "--data must differ from --config-dir"),
        ("file/etc", "data", "file: File exists"),
        ("etc", "file/data", "file: File exists"),
    ] {
        let args = ["setup", "ann@example.org", "--yes", "--no-acme", "--config-dir", config_dir, "--data", data];
        let mut setup = command(rig.dir.path(), &args);
        setup.args(["--own-address", "192.0.2.10", "--resolver", &rig.dns.address().to_string()]);
        let said = setup.args(["--port-offset", &rig.offset.to_string()]).output().unwrap();
        assert!(!said.status.success() && text(&said.stderr).contains(told), "{told}: {said:?}");
        assert_eq!(std::fs::read_dir(rig.dir.path()).unwrap().count(), 1, "only the file is there");
    }
}

#[test]
fn a_port_that_is_taken_stops_it_and_https_gives_way() {
    let rig = Rig::new(zone());
    let taken = TcpListener::bind(("0.0.0.0", rig.offset + 465)).unwrap();
    let said = rig.run(&["--yes"]);
    assert!(said.status.code() == Some(1) && rig.is_empty(), "{said:?}");
    assert!(text(&said.stdout).contains(&format!("{} is used by", rig.offset + 465)), "{said:?}");
    drop(taken);
    let _web = [80, 443].map(|port| TcpListener::bind(("0.0.0.0", rig.offset + port)).unwrap());
    let plan = rig.json(&["--dry-run"]);
    let behind = format!("127.0.0.1:{}", rig.offset + 8025);
    assert!(plan["configuration"].as_str().unwrap().contains(&behind), "{plan:#}");
    assert!(plan.to_string().contains("443 is used by another program: its lines are printed"), "{plan:#}");
    let made = rig.run(&["--yes"]);
    let out = text(&made.stdout);
    assert!(made.status.success(), "{made:?}");
    for line in ["mta-sts.example.org.  CNAME  mx.example.org.", &format!("    proxy_pass http://{behind};")] {
        assert!(out.lines().any(|found| found == line), "{line}: {out}");
    }
    let again = rig.run(&["--yes"]);
    assert!(again.status.success() && text(&again.stdout).ends_with("nothing to do\n"), "{again:?}");
    // The same lines for programs.
    std::fs::remove_file(rig.path("etc/passwords")).unwrap();
    let nginx = rig.json(&["--yes"])["web_server"]["nginx"].clone();
    assert!(nginx.as_str().unwrap().contains(&format!("    proxy_pass http://{behind};\n")), "{nginx}");
    assert!(out.contains(nginx.as_str().unwrap()), "{nginx}: {out}");
}

#[test]
fn what_was_made_goes_when_it_fails() {
    let rig = Rig::new(zone());
    // Argon2 takes no empty password.
    std::fs::write(rig.path("password"), "\n").unwrap();
    let said = rig.run(&["--yes", "--password-file", "password"]);
    assert!(!said.status.success() && rig.is_empty(), "{said:?}");
    std::fs::write(rig.path("password"), "x".repeat(5000)).unwrap();
    let said = rig.run(&["--yes", "--password-file", "password"]);
    assert!(text(&said.stderr).contains("longer than") && rig.is_empty(), "{said:?}");
}

impl Rig {
    /// A run that has made its configuration and waits for the lock of the file of passwords; the lock.
    fn held(&self) -> (std::process::Child, std::fs::File) {
        std::fs::create_dir(self.path("etc")).unwrap();
        // Whoever changes the file of passwords waits for this.
        let lock = std::fs::File::open(self.path("etc")).unwrap();
        lock.lock().unwrap();
        let mut running = self.command(&["--yes"]).process_group(0).spawn().unwrap();
        while !self.path("etc/passwords").exists() {
            assert!(running.try_wait().unwrap().is_none(), "it ended too early");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        (running, lock)
    }
}

#[test]
fn what_was_made_goes_when_it_is_interrupted() {
    for signal in [Signal::TERM, Signal::HUP] {
        let rig = Rig::new(zone());
        let (running, lock) = rig.held();
        let pid = rustix::process::Pid::from_raw(running.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        drop(lock);
        let said = running.wait_with_output().unwrap();
        assert!(!said.status.success() && text(&said.stderr).contains("interrupted"), "{said:?}");
        assert_eq!((rig.path("data").exists(), std::fs::read_dir(rig.path("etc")).unwrap().count()), (false, 0));
    }
}

#[test]
fn a_killed_setup_is_finished_by_the_next_run() {
    let rig = Rig::new(zone());
    let (mut running, lock) = rig.held();
    // With the command that it waits for.
    let group = rustix::process::Pid::from_raw(running.id().cast_signed()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    running.wait().unwrap();
    drop(lock);
    let made = rig.json(&["--yes"]);
    assert!(made["done"] == true && made["round_trip_ms"].is_u64(), "{made:#}");
    let before = std::fs::read_to_string(rig.path("etc/passwords")).unwrap();
    // As if it had been killed after the login was made.
    let mark = "`posthaste setup ann@example.org` has not finished: run it again.\n";
    std::fs::write(rig.path("etc/setup.unfinished"), mark).unwrap();
    let made = rig.json(&["--yes"]);
    assert!(made["round_trip_ms"].is_u64() && made["plan"].as_array().unwrap().len() == 1, "{made:#}");
    let after = std::fs::read_to_string(rig.path("etc/passwords")).unwrap();
    assert!(after != before && after.lines().count() == 1 && !rig.path("etc/setup.unfinished").exists(), "{after}");
}

/// Things that setup makes, in their order.
const STEPS: [&str; 5] = ["etc", "etc/posthaste.toml", "etc/passwords", "data/dkim/example.org", "data/mail"];

impl Rig {
    /// Runs setup, and ends it with this signal once it has made something.
    fn ended_at(&self, step: &str, signal: Signal) -> Output {
        let mut running = self.command(&["--yes"]).process_group(0).spawn().unwrap();
        while !self.path(step).exists() {
            assert!(running.try_wait().unwrap().is_none(), "{step}: it ended too early");
            std::thread::yield_now();
        }
        let group = rustix::process::Pid::from_raw(running.id().cast_signed()).unwrap();
        if signal == Signal::KILL {
            rustix::process::kill_process_group(group, signal).unwrap();
        } else {
            rustix::process::kill_process(group, signal).unwrap();
        }
        running.wait_with_output().unwrap()
    }
}

#[test]
fn setup_ended_at_each_step_leaves_nothing_or_goes_on() {
    for step in STEPS {
        let rig = Rig::new(zone());
        let said = rig.ended_at(step, Signal::TERM);
        assert!(!said.status.success() && rig.is_empty(), "{step}: {said:?}");
        rig.ended_at(step, Signal::KILL);
        let made = rig.json(&["--yes"]);
        assert!(made["done"] == true && made["round_trip_ms"].is_u64(), "{step}: {made:#}");
        let again = rig.run(&["--yes"]);
        assert!(again.status.success() && text(&again.stdout).ends_with("nothing to do\n"), "{step}: {again:?}");
    }
}

#[test]
fn a_login_is_taken_back_from_a_file_that_was_there() {
    let rig = Rig::new(zone());
    let made = rig.json(&["--yes"]);
    assert!(made["done"] == true, "{made:#}");
    let passwords = std::fs::read_to_string(rig.path("etc/passwords")).unwrap();
    let bob = passwords.replace("ann@example.org", "reports@example.org");
    std::fs::write(rig.path("etc/passwords"), &bob).unwrap();
    // SMTP has no word for it.
    std::fs::write(rig.path("password"), "a\0b\n").unwrap();
    let said = rig.run(&["--yes", "--password-file", "password"]);
    assert!(!said.status.success() && text(&said.stderr).contains("the message to itself"), "{said:?}");
    assert_eq!(std::fs::read_to_string(rig.path("etc/passwords")).unwrap(), bob);
    let mut etc: Vec<_> = std::fs::read_dir(rig.path("etc")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    etc.sort();
    assert_eq!(etc, ["passwords", "posthaste.toml"]);
}
