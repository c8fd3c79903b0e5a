//! `posthaste setup`: from an empty machine to a server for the mail of a domain.
//!
//! It inspects the machine, prints a plan, asks once, makes the missing parts, and sends itself a message. If a step
//! fails, all earlier ones are undone.

mod certificate;
mod difference;
mod finding;
mod look;
mod made;
mod network;
mod password_file;
mod place;
mod ports;
mod round_trip;
mod smarthost;
mod steps;
mod wanted;

use std::io::IsTerminal;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use posthaste_directory::names::folded_domain;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use self::difference::difference;
use self::finding::{Finding, Verdict};
use self::look::look;
use self::made::Made;
use self::network::{Nat, of_addresses, own_addresses};
use self::password_file::first_line;
use self::place::{Place, has_systemd};
use self::round_trip::RoundTrip;
use self::smarthost::Smarthost;
use self::steps::{Step, is_running, key_records, new_file, own, server_of, unfinished_mark};
use self::wanted::{Ports, Wanted};
use crate::own_domain::HTTPS;
use crate::queue::AnyError;
use crate::terminal::{complain, confirmed, harmless, print, print_json, shell_word};

#[derive(Args)]
pub struct SetupArgs {
    /// The first address, such as ann@example.org
    address: String,
    /// The name of this host [default: mx. and the domain]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Print the plan and make nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask; accepts the terms of the authority for certificates
    #[arg(long)]
    yes: bool,
    /// Print JSON, without secrets; needs --yes or --dry-run
    #[arg(long)]
    json: bool,
    /// Serve from this terminal at the end, as without systemd
    #[arg(long, conflicts_with_all = ["json", "dry_run"])]
    foreground: bool,
    /// Get no certificate from an authority
    #[arg(long)]
    no_acme: bool,
    /// The first line of this file is the password of the address [default: a new one, shown once on a terminal]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Send all mail for other hosts through this relay, as where port 25 is blocked [default port: 587]
    #[arg(long, value_name = "HOST[:PORT]")]
    smarthost: Option<String>,
    /// A file with the name and the password for the smarthost in its first two lines
    #[arg(long, value_name = "FILE", requires = "smarthost")]
    smarthost_login: Option<PathBuf>,
    /// To try a server of your own: the directory of its configuration
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// The directory of its data
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Number that is added to all ports, for a try
    #[arg(long, value_name = "N", default_value_t = 0)]
    port_offset: u16,
    /// Resolvers in place of the machine's
    #[arg(long, hide = true, value_name = "ADDRESS")]
    resolver: Vec<String>,
    /// Addresses in place of the machine's
    #[arg(long, hide = true, value_name = "ADDRESS")]
    own_address: Vec<IpAddr>,
    /// The port at which other hosts are tried
    #[arg(long, hide = true, value_name = "N", default_value_t = 25)]
    outbound_port: u16,
}

/// Options and findings, complete before anything is made.
struct Setup {
    args: SetupArgs,
    wanted: Wanted,
    place: Place,
    findings: Vec<Finding>,
    /// Lines of the written configuration that are no longer as setup writes them.
    changed: Vec<String>,
    nat: Option<Nat>,
    /// Remaining steps.
    steps: Vec<Step>,
    interrupted: Arc<AtomicBool>,
}

/// Exit status 1: a step failed, or the user declined.
pub fn run(args: SetupArgs) -> Result<ExitCode, AnyError> {
    if args.json && !args.yes && !args.dry_run {
        return Err("--json needs --yes or --dry-run".into());
    }
    let setup = Setup::look(args)?;
    if setup.args.dry_run || setup.is_stopped() {
        setup.tell_plan()?;
        return Ok(ExitCode::from(u8::from(setup.is_stopped())));
    }
    if setup.steps.is_empty() && !setup.args.foreground {
        return setup.tell_nothing_to_do();
    }
    if !setup.args.json {
        setup.tell_plan()?;
    }
    let question = if setup.wanted.acme { "Go on, and accept the terms of Let's Encrypt?" } else { "Go on?" };
    if !setup.args.yes && !setup.steps.is_empty() && !confirmed(question)? {
        complain("nothing was made; --yes goes on without a question");
        return Ok(ExitCode::FAILURE);
    }
    setup.make()
}

impl Setup {
    fn look(args: SetupArgs) -> Result<Self, AnyError> {
        let place = Place::new(args.config_dir.clone(), args.data.clone())?;
        let (user, domain) = Wanted::address(&args.address)?;
        let usual = format!("mx.{domain}");
        let named = args.host.as_deref().unwrap_or(&usual);
        let host = folded_domain(named).filter(|host| posthaste_dkim::is_domain(host) && host.contains('.'));
        let host =
            host.ok_or_else(|| format!("`{named}` is not a name of a host, such as mx.example.org"))?.into_owned();
        let any = ports::any_address();
        let port = |port: u16| port.checked_add(args.port_offset).ok_or("--port-offset is too large");
        let is_running = is_running(&place);
        let usual_https = port(HTTPS)?;
        let https = Some(usual_https).filter(|port| is_running || ports::user_of(any, *port).is_none());
        let ports = Ports {
            smtp: port(25)?,
            submissions: port(465)?,
            submission: port(587)?,
            imaps: port(993)?,
            https,
            behind_web: port(8025)?,
        };
        let resolvers = args.resolver.clone();
        let smarthost =
            args.smarthost.as_deref().map(|text| Smarthost::read(text, args.smarthost_login.as_deref())).transpose()?;
        let acme = !args.no_acme;
        let trust_ad = false;
        let addresses = Vec::new();
        let mut wanted = Wanted { user, domain, host, ports, acme, any, resolvers, trust_ad, addresses, smarthost };
        let mut findings = vec![look::of_resolver(&mut wanted, &place)?];
        let in_dns = look::host_in_dns(&wanted, &place)?;
        let own = if args.own_address.is_empty() { own_addresses() } else { args.own_address.clone() };
        let nat = Nat::find(&own, in_dns.as_deref().unwrap_or_default());
        if let (Some(_), Ok(in_dns)) = (&nat, &in_dns) {
            wanted.addresses.clone_from(in_dns);
        }
        wanted.keep_written(&place, usual_https);
        findings.extend(look::of_written(&wanted, &place)?);
        findings.extend(match &in_dns {
            Ok(in_dns) => of_addresses(&wanted, &own, in_dns, nat.as_ref()),
            Err(unknown) => vec![unknown.clone()],
        });
        let mut steps = Vec::new();
        for step in Step::all(&place) {
            if !step.is_done(&wanted, &place)? {
                steps.push(step);
            }
        }
        let written = wanted.written(&place);
        let changed = written.map_or_else(Vec::new, |text| difference(&wanted.config(&place), &text));
        // The ports of a changed one are the operator's.
        let needs_ports = !is_running && changed.is_empty();
        findings.extend(look(&wanted, &place, needs_ports, args.outbound_port)?);
        let interrupted = Arc::new(AtomicBool::new(false));
        // All that end a process: the terminal may go, too.
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        Ok(Self { args, wanted, place, findings, changed, nat, steps, interrupted })
    }

    fn is_stopped(&self) -> bool {
        self.findings.iter().any(|finding| finding.verdict == Verdict::Stop)
    }

    fn plan(&self) -> Vec<String> {
        let mut plan: Vec<String> = self.steps.iter().map(|step| step.text(&self.wanted, &self.place)).collect();
        if self.wanted.acme && self.steps.contains(&Step::Config) {
            plan.push(format!("a certificate for {} by Let's Encrypt; its terms: {TERMS}", self.wanted.host));
        }
        plan
    }

    fn json(&self) -> Value {
        json!({
            "address": self.wanted.address_of(&self.wanted.user),
            "host": self.wanted.host,
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
            "plan": self.plan(),
            "configuration": self.wanted.config(&self.place),
            "changed": self.changed,
        })
    }

    fn findings(&self) -> String {
        let mut text: String = self.findings.iter().map(Finding::line).collect();
        if !self.changed.is_empty() {
            text += &format!(
                " {:<10} {} stays as it is; setup would write - in place of +:\n",
                "changed",
                self.place.config().display()
            );
        }
        for line in &self.changed {
            text += &format!(" {:<10} {}\n", "", harmless(line));
        }
        text
    }

    fn tell_plan(&self) -> Result<(), AnyError> {
        if self.args.json {
            return Ok(print_json(&format!("{:#}\n", self.json()))?);
        }
        let mut text = self.findings();
        for (number, line) in self.plan().iter().enumerate() {
            text += &format!(" {:<10} {}\n", if number == 0 { "Will make" } else { "" }, harmless(line));
        }
        if self.args.dry_run {
            text += &format!("\n{}:\n{}", self.place.config().display(), self.wanted.config(&self.place));
        }
        Ok(print(&text)?)
    }

    fn tell_nothing_to_do(&self) -> Result<ExitCode, AnyError> {
        if self.args.json {
            let mut all = self.json();
            all["done"] = json!(true);
            print_json(&format!("{all:#}\n"))?;
        } else {
            print(&format!("{}nothing to do\n", self.findings()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn go_on(&self) -> Result<(), AnyError> {
        if self.interrupted.load(Ordering::Relaxed) {
            Err("interrupted: all changes are undone".into())
        } else {
            Ok(())
        }
    }

    fn make(self) -> Result<ExitCode, AnyError> {
        let password = match &self.args.password_file {
            Some(file) => first_line(file)?,
            None => posthaste_accounts::new_password()?,
        };
        let is_new_login = self.steps.contains(&Step::Login);
        let mut made = Made::default();
        let unfinished = self.place.unfinished();
        made.dir(&self.place.config_dir)?;
        if is_new_login && !unfinished.exists() {
            new_file(&unfinished, &unfinished_mark(&self.wanted), 0o600, &mut made)?;
        }
        for step in &self.steps {
            self.go_on()?;
            let text = step.text(&self.wanted, &self.place);
            step.run(&self.wanted, &self.place, &password, &mut made).map_err(|error| format!("{text}: {error}"))?;
        }
        let mut proof = Proof::default();
        // An older password is not known.
        if is_new_login {
            if !is_running(&self.place) {
                made.server(&mut self.serve(), &self.place.config_dir)?;
            }
            proof.took = Some(self.round_trip(&password, &mut made)?);
            if self.wanted.acme {
                let dir = self.wanted.loaded(&self.place)?.config.acme_dir();
                proof.certificate = Some(certificate::wait_for(&dir, &self.wanted.host, || self.go_on())?);
            }
        }
        self.go_on()?;
        made.keep();
        if is_new_login {
            std::fs::remove_file(unfinished)?;
        }
        self.tell_done(&proof, is_new_login.then_some(&*password))?;
        if self.args.foreground {
            // What starts here is the server itself.
            return Err(format!("the server does not start: {}", self.serve().exec()).into());
        }
        Ok(ExitCode::SUCCESS)
    }

    fn serve(&self) -> Command {
        let mut command = Command::new(self.place.program().unwrap_or_else(|_| "posthaste".into()));
        command.arg("serve").arg("--config").arg(self.place.config());
        command
    }

    /// Waits until the server listens, then sends a message through it.
    fn round_trip(&self, password: &str, made: &mut Made) -> Result<Duration, AnyError> {
        let Ports { submissions, imaps, .. } = self.wanted.ports;
        let deadline = Instant::now() + START_MAX;
        // Another user's program may listen at a port above 1023, and is not told the password.
        let has_ports = |server| ports::listens(server, submissions) && ports::listens(server, imaps);
        while !server_of(&self.place).is_some_and(has_ports) {
            self.go_on()?;
            if let Some((status, words)) = made.has_ended() {
                return Err(format!("the server does not start ({status}): {words}").into());
            }
            if Instant::now() > deadline {
                return Err("the server does not listen".into());
            }
            std::thread::sleep(LOOK);
        }
        let address = self.wanted.address_of(&self.wanted.user);
        let keys = key_records(&self.wanted, &self.place)?;
        let trip = RoundTrip { host: &self.wanted.host, address: &address, password, submissions, imaps, keys: &keys };
        trip.run().map_err(|error| format!("the message to itself: {error}").into())
    }

    fn tell_done(&self, proof: &Proof, password: Option<&str>) -> Result<(), AnyError> {
        if self.args.json {
            return Ok(print_json(&format!("{:#}\n", self.done_json(proof)?))?);
        }
        let mut text = proof.text(self.wanted.ports.submissions);
        let is_shown = std::io::stdout().is_terminal() && self.args.password_file.is_none();
        for (topic, line) in self.advice(password.filter(|_| is_shown))? {
            text += &format!(" {topic:<10} {line}\n");
        }
        text += "\nRecords to add at your DNS provider:\n";
        text += &String::from_utf8_lossy(&self.records(&[])?);
        text += &format!("Then: {}\n", self.check_command());
        Ok(print(&text)?)
    }

    /// All that the text has, except the password.
    fn done_json(&self, proof: &Proof) -> Result<Value, AnyError> {
        let listed: Value = serde_json::from_slice(&self.records(&["--json"])?)?;
        let advice = self.advice(None)?;
        let advice = advice.iter().map(|(topic, text)| json!({ "topic": topic.to_ascii_lowercase(), "text": text }));
        let mut all = self.json();
        all["done"] = json!(true);
        all["round_trip_ms"] = json!(proof.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)));
        all["certificate"] = json!(proof.certificate.as_ref().map(Finding::json));
        all["advice"] = advice.collect();
        all["records"] = listed["records"].clone();
        all["web_server"] = listed["web_server"].clone();
        all["check"] = json!(self.check_command());
        Ok(all)
    }

    /// Topics and texts for the owner of the server. `password`: to be shown.
    fn advice(&self, password: Option<&str>) -> Result<Vec<(&'static str, String)>, AnyError> {
        let Self { wanted, place, .. } = self;
        let (address, config) = (wanted.address_of(&wanted.user), self.named_config());
        let (host, Ports { submissions, imaps, .. }) = (&wanted.host, wanted.ports);
        let passwd = format!("posthaste account passwd {address}{config}");
        let password = match password {
            Some(password) => format!("{password}   of {address}, shown once; another: {passwd}"),
            None => format!("of {address}: {passwd} sets another"),
        };
        let clients = format!("IMAP {host} {imaps} (TLS), SMTP {host} {submissions} (TLS), login {address}");
        let ports = wanted.ports.text();
        let firewall = format!("open {ports}; the reverse name of each address is {host}");
        let mut lines = vec![("Password", password), ("Clients", clients), ("Firewall", firewall)];
        lines.extend(self.nat.as_ref().map(|nat| ("Router", format!("forward {}", nat.forward(&ports)))));
        lines.push(("Back up", format!("{} and {}", place.config_dir.display(), place.data.display())));
        let sudo = if place.is_system { "sudo " } else { "" };
        lines.push(("Page", format!("{sudo}posthaste page{config} prints a link to it")));
        if !(self.args.foreground || place.is_system && has_systemd()) {
            let program = shell_word(&place.program()?);
            lines.push(("Start", format!("{program} serve --config {}", shell_word(&place.config()))));
        }
        Ok(lines)
    }

    fn check_command(&self) -> String {
        format!("posthaste dns check {} --watch{}", self.wanted.domain, self.named_config())
    }

    /// The output of `dns records`.
    fn records(&self, form: &[&str]) -> Result<Vec<u8>, AnyError> {
        let https = (HTTPS + self.args.port_offset).to_string();
        let args = ["dns", "records", &self.wanted.domain, "--https-port", &https];
        own(&self.place, &[&args[..], form].concat(), None)
    }

    /// `--config FILE` for the commands that are printed, if they would not find the file themselves.
    fn named_config(&self) -> String {
        if self.place.is_system { String::new() } else { format!(" --config {}", shell_word(&self.place.config())) }
    }
}

/// The message to itself, and the first certificate.
#[derive(Default)]
struct Proof {
    /// The time of the round trip, if one was made.
    took: Option<Duration>,
    certificate: Option<Finding>,
}

impl Proof {
    fn text(&self, submissions: u16) -> String {
        let trip = self.took.map(|took| {
            let took = took.as_secs_f64();
            format!(" round trip login on {submissions}, signed, delivered, read by IMAP, DKIM verified   {took:.1} s   ok\n")
        });
        [trip, self.certificate.as_ref().map(Finding::line)].into_iter().flatten().collect()
    }
}

const TERMS: &str = "https://letsencrypt.org/repository/";
/// Timeout of the start: a server may have to scan its disk first.
const START_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);
