//! `posthaste load` and `posthaste account`: options in, figures out.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use posthaste_bench::scratch::Scratch;
use posthaste_bench::server::Server;
use posthaste_loadgen::account::{Account, Copies, Ledger, account};
use posthaste_loadgen::live::{self, Live};
use posthaste_loadgen::load::{
    Arrivals, Auth, AuthMechanism, Pace, Pipelining, Plan, Pool, Progress, Recipients, Server as LoadServer, TlsTrust,
    client_config, fresh_run, read_corpus, run,
};
use posthaste_loadgen::report::{About, PlanSummary, Report};
use posthaste_loadgen::resources::{process_exists, raise_file_limit};
use posthaste_loadgen::values::{
    self, PerConnection, Place, Sizes, Target, TlsStart, WeightedDomain, address, duration, header_field,
};

use crate::{command_line, print};

type AnyError = Box<dyn std::error::Error>;

/// Ends after --count messages or --duration, without either after 10 seconds. Exit status: 0 all was acknowledged (and
/// found, with --account), 1 something was not, 2 the options cannot be used.
#[derive(Args)]
pub struct Load {
    /// HOST:PORT, smtp://HOST[:25], smtps://HOST[:465], lmtp://HOST[:24], lmtp+unix:PATH; several are loaded in turn
    #[arg(required_unless_present = "serve", value_name = "TARGET")]
    targets: Vec<Target>,
    /// Start a server of ours on loopback and a scratch directory below the working directory, load it, watch what it
    /// uses, look for everything it acknowledged and end it; with a configuration of your own where one is given
    #[arg(long, value_name = "CONFIG", num_args = 0..=1, require_equals = true, conflicts_with = "targets")]
    serve: Option<Option<PathBuf>>,
    /// Load a public address; without this only loopback, link-local and private ones are
    #[arg(long)]
    allow_public: bool,
    #[command(flatten)]
    pace: PaceOptions,
    #[command(flatten)]
    session: SessionOptions,
    #[command(flatten)]
    mail: MailOptions,
    #[command(flatten)]
    results: ResultOptions,
}

#[derive(Args)]
#[command(next_help_heading = "How much, how fast")]
struct PaceOptions {
    /// Connections at the same time
    #[arg(short = 's', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Messages to send, warm-up not counted
    #[arg(short = 'm', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Time to send for, warm-up not counted: 500ms, 10s, 2m
    #[arg(short = 't', long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Messages a second on a schedule (open loop): latency counts from when a message was due, so a stall shows in all
    /// that it kept waiting. Without it each connection sends as fast as it is served (closed loop)
    #[arg(short = 'r', long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// With --rate: messages come at random as from senders that know nothing of each other, at that rate on average
    #[arg(long, requires = "rate")]
    poisson: bool,
    /// Time at the start of each round that is not measured
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    warmup: Duration,
    /// Do it all so often, with new connections each time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Threads that share the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Longest wait for a connection and for each reply
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    timeout: Duration,
    /// How long messages under way, and those an open loop still owes, may take after the end
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    drain: Duration,
    /// End the run when there was no connection for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    give_up: Duration,
}

#[derive(Args)]
#[command(next_help_heading = "How it is sent")]
struct SessionOptions {
    /// Messages over one connection before a new one is made: 1, a number, or all
    #[arg(long, value_name = "N", default_value = "all")]
    per_connection: PerConnection,
    /// Commands sent without waiting for replies, where the server offers it
    #[arg(long, value_enum, default_value_t = PipeliningOption::On)]
    pipelining: PipeliningOption,
    /// Send bodies with BDAT instead of DATA
    #[arg(long)]
    bdat: bool,
    /// Encrypt with STARTTLS
    #[arg(long)]
    starttls: bool,
    /// Take any certificate
    #[arg(long)]
    tls_insecure: bool,
    /// Take certificates that these authorities signed (PEM)
    #[arg(long, value_name = "FILE", conflicts_with = "tls_insecure")]
    tls_ca: Option<PathBuf>,
    /// The name that the certificate must carry, if it is not the target's
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Authenticate
    #[arg(long, value_enum, requires = "auth_user", value_name = "MECHANISM")]
    auth: Option<AuthOption>,
    /// User name for --auth
    #[arg(long, value_name = "NAME", requires = "auth")]
    auth_user: Option<String>,
    /// Password for --auth; better given in the environment variable POSTHASTE_LOAD_PASSWORD
    #[arg(long, value_name = "PASSWORD", requires = "auth")]
    auth_password: Option<String>,
    /// Our name for EHLO
    #[arg(long, value_name = "NAME", default_value = "load.invalid", value_parser = address)]
    helo: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum PipeliningOption {
    /// One command, one reply
    Off,
    /// MAIL, RCPT and DATA together
    On,
    /// Also the next message's behind the message before: one round trip a message
    Ahead,
}

#[derive(Clone, Copy, ValueEnum)]
enum AuthOption {
    Plain,
    Login,
}

#[derive(Args)]
#[command(next_help_heading = "What is sent")]
struct MailOptions {
    /// Octets of a message: 10k, a range 1k-100k, or a mix with weights 2k:70,10k-50k:25,1m:5
    #[arg(short = 'l', long, value_name = "SIZES", default_value = "10k")]
    size: Sizes,
    /// Send these real messages instead: a file, a directory, a Maildir, an mbox
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    corpus: Vec<PathBuf>,
    /// A header field for every message
    #[arg(long, value_name = "NAME: VALUE", value_parser = header_field)]
    header: Vec<String>,
    /// Envelope sender
    #[arg(short = 'f', long, value_name = "ADDRESS", default_value = "load@localhost", value_parser = sender)]
    from: String,
    /// A recipient; several are taken in turn
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with_all = ["domain", "users"])]
    to: Vec<String>,
    /// A domain of recipients user1 to userN, and how often it is taken: example.com:67
    #[arg(short = 'd', long, value_name = "NAME[:WEIGHT]")]
    domain: Vec<WeightedDomain>,
    /// How many users each domain has
    #[arg(short = 'u', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    users: Option<u64>,
    /// Recipients of each message
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    recipients: u32,
    /// Makes the same bodies again
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
#[command(next_help_heading = "What comes of it")]
struct ResultOptions {
    /// Look for everything acknowledged: a Maildir tree, a directory, an mbox, a sink's account file
    #[arg(long, value_name = "WHERE", num_args = 1..)]
    account: Vec<PathBuf>,
    #[command(flatten)]
    accounting: Accounting,
    /// Write what was acknowledged, for `posthaste account` later
    #[arg(long, value_name = "FILE")]
    acked: Option<PathBuf>,
    /// Watch the CPU, memory and writing of this process and its children
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Write report.json, report.md and report.html here
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// What the report is called
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Tell nothing while the run goes on
    #[arg(short = 'q', long)]
    quiet: bool,
}

#[derive(Args)]
struct Accounting {
    /// How many copies of a message the stores keep; without it one for each message if all are sinks' account files,
    /// otherwise one for each recipient
    #[arg(long, value_enum, value_name = "PER")]
    copies: Option<CopiesOption>,
    /// Wait at most so long for acknowledged messages to arrive
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    settle: Duration,
    /// Findings listed of each kind; JSON has them all
    #[arg(long, value_name = "N", default_value_t = 10)]
    list: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum CopiesOption {
    Recipient,
    Message,
}

/// Looks for what `posthaste load --acked FILE` was acknowledged, for example after a crash and a restart.
#[derive(Args)]
pub struct AccountOfRun {
    /// The file that `load --acked` wrote
    acked: PathBuf,
    /// A Maildir tree, a directory, an mbox, a sink's account file
    #[arg(required = true)]
    stores: Vec<PathBuf>,
    #[command(flatten)]
    accounting: Accounting,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && (0.001..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("write messages a second, from 0.001 to 10000000".into()),
    }
}

/// An envelope sender may be empty (RFC 5321 section 4.5.5).
fn sender(text: &str) -> Result<String, values::ValueError> {
    if text.is_empty() { Ok(String::new()) } else { address(text) }
}

impl Load {
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        let own = self.serve.as_ref().map(|config| OwnServer::start(config.as_deref())).transpose()?;
        let own_target = own.as_ref().map(|own| own.server.address.to_string().parse()).transpose()?;
        let (plan, corpus_note) = self.plan(own_target.as_slice())?;
        let mut about = About {
            title: self.results.title.clone(),
            command: command_line(),
            started: SystemTime::now(),
            plan: PlanSummary::new(&plan, self.size_text()),
            notes: corpus_note.into_iter().collect(),
        };
        if let Some(pid) = self.results.pid.iter().find(|pid| !process_exists(**pid)) {
            return Err(format!("--pid {pid}: there is no such process").into());
        }
        if !raise_file_limit(u64::from(self.pace.connections) + 64) {
            about.notes.push("the limit on open files is too low for so many connections".into());
        }
        let stop = Arc::new(AtomicBool::new(false));
        // The first Ctrl-C ends the run with its figures, the second ends the process.
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let mut show = Show::new(self.results.quiet);
        let pids: Vec<u32> = self.results.pid.iter().copied().chain(own.as_ref().map(|own| own.server.pid())).collect();
        let outcome = run(plan, &pids, &stop, show.every(), &mut |progress| show.progress(progress))?;
        show.finish();
        if let Some(path) = &self.results.acked {
            outcome.ledger.save(path)?;
        }
        let accounting = &self.results.accounting;
        let own_store = own.as_ref().map(|own| own.server.mail.clone());
        let account = match self.results.account.as_slice() {
            [] => own_store.map(|store| accounting.account(&outcome.ledger, &[store])).transpose()?,
            stores => Some(accounting.account(&outcome.ledger, stores)?),
        };
        let report = Report::new(about, &outcome, account);
        if let Some(dir) = &self.results.report {
            report.write_to(dir)?;
        }
        print(&if self.results.json { report.to_json() } else { report.to_text(accounting.list) })?;
        Ok(ExitCode::from(u8::from(!report.is_good())))
    }

    fn size_text(&self) -> String {
        match self.mail.corpus.as_slice() {
            [] => self.mail.size.to_string(),
            paths => {
                let names: Vec<_> =
                    paths.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
                format!("real messages from {}", names.join(", "))
            }
        }
    }

    /// What is asked for, with the server started by us as the target if there is one.
    fn plan(&self, own_target: &[Target]) -> Result<(Plan, Option<String>), AnyError> {
        let (pace, session, mail) = (&self.pace, &self.session, &self.mail);
        let servers = self.servers(if own_target.is_empty() { &self.targets } else { own_target })?;
        let uses_tls = servers.iter().any(|server| server.tls != TlsStart::Never);
        let tls = if uses_tls { Some(client_config(&self.trust()?)?) } else { None };
        let recipients = self.recipients()?;
        let (pool, note) = self.pool()?;
        let is_bounded = pace.count.is_some() || pace.duration.is_some();
        let plan = Plan {
            run: fresh_run(),
            servers,
            connections: pace.connections as usize,
            threads: pace.threads.min(pace.connections) as usize,
            pace: Pace {
                rate: pace.rate,
                arrivals: if pace.poisson { Arrivals::Poisson { seed: mail.seed } } else { Arrivals::Even },
                count: pace.count,
                duration: pace.duration.or((!is_bounded).then_some(DURATION_DEFAULT)),
                warmup: pace.warmup,
            },
            rounds: pace.rounds,
            per_connection: session.per_connection,
            pipelining: match session.pipelining {
                PipeliningOption::Off => Pipelining::Off,
                PipeliningOption::On => Pipelining::On,
                PipeliningOption::Ahead => Pipelining::Ahead,
            },
            bdat: session.bdat,
            sender: mail.from.clone(),
            recipients,
            recipients_per_message: mail.recipients as usize,
            helo: session.helo.clone(),
            auth: self.auth()?,
            tls,
            pool: Arc::new(pool),
            timeout: pace.timeout,
            drain: pace.drain,
            give_up: pace.give_up,
        };
        Ok((plan, note))
    }

    fn servers(&self, targets: &[Target]) -> Result<Vec<LoadServer>, AnyError> {
        let server = |target: &Target| {
            let mut target = target.clone();
            if self.session.starttls && target.tls == TlsStart::Never {
                target.tls = TlsStart::StartTls;
            }
            let host = match &target.place {
                Place::Tcp { host, .. } => host.as_str(),
                Place::Unix(_) => "localhost",
            };
            let tls_name = match target.tls {
                TlsStart::Never => None,
                _ => Some(self.session.tls_name.as_deref().unwrap_or(host).to_owned().try_into()?),
            };
            Ok(LoadServer {
                name: target.to_string(),
                address: target.resolve(self.allow_public)?,
                protocol: target.protocol,
                tls: target.tls,
                tls_name,
            })
        };
        targets.iter().map(server).collect()
    }

    fn trust(&self) -> Result<TlsTrust, AnyError> {
        match (&self.session.tls_ca, self.session.tls_insecure) {
            (Some(path), _) => Ok(TlsTrust::Authorities(path.clone())),
            (None, true) => Ok(TlsTrust::Anything),
            (None, false) => Err("TLS: say --tls-ca FILE or --tls-insecure, there are no certificates to trust".into()),
        }
    }

    fn auth(&self) -> Result<Option<Auth>, AnyError> {
        let Some(mechanism) = self.session.auth else { return Ok(None) };
        let from_environment = || std::env::var("POSTHASTE_LOAD_PASSWORD").ok();
        let password = self.session.auth_password.clone().or_else(from_environment);
        Ok(Some(Auth {
            mechanism: match mechanism {
                AuthOption::Plain => AuthMechanism::Plain,
                AuthOption::Login => AuthMechanism::Login,
            },
            user: self.session.auth_user.clone().unwrap_or_default(),
            password: password.ok_or("--auth: give POSTHASTE_LOAD_PASSWORD or --auth-password")?,
        }))
    }

    fn recipients(&self) -> Result<Recipients, AnyError> {
        let mail = &self.mail;
        let localhost = || vec![WeightedDomain { name: "localhost".into(), weight: 1 }];
        let recipients = match mail.to.as_slice() {
            [] => Recipients::Made {
                users: mail.users.unwrap_or(u64::from(mail.recipients)),
                domains: if mail.domain.is_empty() { localhost() } else { mail.domain.clone() },
            },
            addresses => Recipients::Listed(addresses.to_vec()),
        };
        match recipients.distinct() {
            distinct if distinct >= mail.recipients as usize => Ok(recipients),
            distinct => {
                Err(format!("--recipients {}: there are only {distinct} to choose from", mail.recipients).into())
            }
        }
    }

    fn pool(&self) -> Result<(Pool, Option<String>), AnyError> {
        let mail = &self.mail;
        if mail.corpus.is_empty() {
            if let Some((_, last, _)) = mail.size.classes.iter().find(|class| class.1 > OCTETS_MAX) {
                return Err(format!("--size: {last} octets are more than {OCTETS_MAX}").into());
            }
            return Ok((Pool::generated(&mail.size, &mail.header, &mail.from, mail.seed), None));
        }
        let (messages, is_whole) = read_corpus(&mail.corpus, CORPUS_OCTETS_MAX)?;
        let pool = Pool::of_messages(messages, &mail.header);
        let note = format!("of the corpus only the first {} messages are used: it is too large", pool.len());
        Ok((pool, (!is_whole).then_some(note)))
    }
}

const DURATION_DEFAULT: Duration = Duration::from_secs(10);
const OCTETS_MAX: usize = 256 << 20;
const CORPUS_OCTETS_MAX: usize = 1 << 30;

impl Accounting {
    /// Looks until nothing is lost any more, or time is up.
    fn account(&self, ledger: &Ledger, stores: &[PathBuf]) -> Result<Account, AnyError> {
        let copies = self.copies.map(|copies| match copies {
            CopiesOption::Recipient => Copies::PerRecipient,
            CopiesOption::Message => Copies::PerMessage,
        });
        let begun = std::time::Instant::now();
        loop {
            let looked = std::time::Instant::now();
            let account = account(ledger, stores, copies)?;
            if account.lost.is_empty() || begun.elapsed() >= self.settle {
                return Ok(account);
            }
            // Looking costs; the server shall have at least as much time for delivery as we take from it.
            std::thread::sleep(looked.elapsed().max(Duration::from_millis(200)));
        }
    }
}

impl AccountOfRun {
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        let ledger = Ledger::load(&self.acked)?;
        let account = self.accounting.account(&ledger, &self.stores)?;
        let json = || serde_json::to_string_pretty(&account).map(|json| json + "\n");
        print(&if self.json { json()? } else { account.to_text(self.accounting.list) })?;
        Ok(ExitCode::from(u8::from(!account.is_clean())))
    }
}

/// A server of ours for one run; ended before its directory is removed.
struct OwnServer {
    server: Server,
    _scratch: Scratch,
}

impl OwnServer {
    fn start(config: Option<&Path>) -> Result<Self, AnyError> {
        let scratch = Scratch::new_in(Path::new("."))?;
        let server = Server::start(&std::env::current_exe()?, scratch.path(), config)?;
        Ok(Self { server, _scratch: scratch })
    }
}

/// What is seen while the run goes on: a view on a terminal, lines elsewhere.
struct Show {
    live: Live,
    bar: Option<ProgressBar>,
    is_quiet: bool,
}

impl Show {
    fn new(is_quiet: bool) -> Self {
        let bar = (!is_quiet && std::io::stderr().is_terminal()).then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is right"));
        }
        Self { live: Live::default(), bar, is_quiet }
    }

    fn every(&self) -> Duration {
        Duration::from_millis(if self.bar.is_some() { 500 } else { 1000 })
    }

    fn progress(&mut self, progress: &Progress<'_>) {
        match &self.bar {
            _ if self.is_quiet => {}
            Some(bar) => bar.set_message(self.live.view(progress)),
            // That nobody reads it is no error.
            None => drop(writeln!(std::io::stderr(), "{}", live::line(progress))),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
