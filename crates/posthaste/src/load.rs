//! `posthaste load`: runs the load generator with the given options.

mod accounting;
mod http;
mod kills;
mod options;

use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use posthaste_config::Config;
use posthaste_loadgen::live::{self, Live};
use posthaste_loadgen::load::{
    Arrivals, Auth, Injecting, Outages, Pace, Plan, Pool, Progress, Recipients, Server as LoadServer, Stop, TlsTrust,
    client_config, fresh_run, read_corpus, run,
};
use posthaste_loadgen::report::{About, PlanSummary, Report};
use posthaste_loadgen::resources::{process_exists, raise_file_limit};
use posthaste_loadgen::scratch::Scratch;
use posthaste_loadgen::server::{ScratchServer, StartOptions};
use posthaste_loadgen::signals::ending_signals;
use posthaste_loadgen::values::{Place, Target, TlsStart, WeightedDomain};

use self::accounting::AccountOfRun;
use self::options::{MailOptions, PaceOptions, ResultOptions, SessionOptions};
use crate::terminal::{print, without_error_numbers};

type AnyError = Box<dyn std::error::Error>;

/// Ends after --count messages or --duration, without either after 10 seconds. Exit status: 0 all was acknowledged (and
/// found, with --account), 1 something was not, 2 the options cannot be used.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "posthaste load [OPTIONS] TARGET...\n       posthaste load [OPTIONS] --serve[=CONFIG] [--kill-every TIME]\n       posthaste load account FILE STORE..."
)]
pub struct Load {
    #[command(subcommand)]
    command: Option<LoadCommand>,
    /// HOST:PORT, smtp://HOST[:25], smtps://HOST[:465], lmtp://HOST[:24], lmtp+unix:PATH, http://HOST[:80], https://HOST[:443]; several are loaded in turn
    #[arg(value_name = "TARGET")]
    targets: Vec<Target>,
    /// Start a Posthaste server on loopback with a scratch directory below the working directory, load it, measure its
    /// resources, account for every acknowledged message and stop it; optionally with your own configuration
    #[arg(long, value_name = "CONFIG", num_args = 0..=1, require_equals = true, conflicts_with = "targets")]
    serve: Option<Option<PathBuf>>,
    /// With --serve: kill the server (SIGKILL) and restart it, each time after a random 0.5 to 1.5 times TIME; --seed
    /// repeats the times
    #[arg(long, value_name = "TIME", requires = "serve", conflicts_with = "targets", value_parser = kills::pause)]
    kill_every: Option<Duration>,
    /// Allow a public address; by default only loopback, link-local and private addresses are loaded
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

#[derive(Subcommand)]
enum LoadCommand {
    /// Compare the messages that a run got acknowledged with those that were stored; exit status 1 for any loss, duplicate or damage
    Account(AccountOfRun),
}

impl Load {
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        if let Some(LoadCommand::Account(account)) = &self.command {
            return account.run();
        }
        if self.targets.is_empty() && self.serve.is_none() {
            return Err("give a server, such as 127.0.0.1:2525, or let `load --serve` start a Posthaste server".into());
        }
        let stop = Stop::default();
        stop_by_steps(&stop)?;
        self.results.check_paths()?;
        let options = StartOptions {
            is_killed: self.kill_every.is_some(),
            has_http: self.session.http,
            ..StartOptions::default()
        };
        let start = |config: &Option<PathBuf>| OwnServer::start(config.as_deref(), options);
        let mut own = self.serve.as_ref().map(start).transpose()?;
        let (mut plan, corpus_note) = self.plan(own.as_ref().map(|own| &own.server))?;
        let outages = self.kill_every.map(|_| Arc::new(Outages::default()));
        plan.outages.clone_from(&outages);
        let mut about = About {
            title: self.results.title.clone().or_else(|| own.as_ref().map(|_| self.own_title(&plan))),
            command: command_line(),
            started: SystemTime::now(),
            plan: PlanSummary::new(&plan, self.size_text()),
            notes: corpus_note.into_iter().collect(),
        };
        if let Some(pid) = self.results.pid.iter().find(|pid| !process_exists(**pid)) {
            return Err(format!("--pid {pid}: no such process").into());
        }
        if !raise_file_limit(u64::from(self.pace.connections) + 64) {
            about.notes.push("the limit on open files is too low for so many connections".into());
        }
        let mut show = Show::new(self.results.quiet, stop.clone());
        let pids: Vec<u32> = self.results.pid.iter().copied().chain(own.as_ref().map(|own| own.server.pid())).collect();
        let send = || run(plan, &pids, &stop, show.every(), &mut |progress| show.progress(progress));
        let (outcome, trouble) = match (&mut own, &outages, self.kill_every) {
            (Some(own), Some(outages), Some(every)) => {
                kills::while_killing(&mut own.server, outages, every, self.mail.seed, &stop, send)
            }
            _ => (send(), None),
        };
        let mut outcome = outcome?;
        if let Some(outages) = &outages {
            // The run may have ended before the server was back from the last one.
            outcome.kills = outages.kills(outcome.begun);
        }
        show.finish();
        about.notes.extend(trouble);
        // What the run has found is told first, whatever cannot be read or written after it.
        let saved = self.results.acked.as_ref().map_or(Ok(()), |path| outcome.ledger.save(path));
        let accounting = &self.results.accounting;
        let own_stores = own.as_ref().map(|own| [own.server.mail.clone(), own.spool.clone()]);
        let stores = match &own_stores {
            Some(own) if self.results.account.is_empty() => own.as_slice(),
            _ => &self.results.account,
        };
        let account = (!stores.is_empty()).then(|| accounting.account(&outcome.ledger, stores, &stop)).transpose();
        let report = Report::new(about, &outcome, account.as_ref().ok().cloned().flatten());
        print(&if self.results.json {
            report.to_json()
        } else {
            without_error_numbers(&report.to_text(accounting.list))
        })?;
        if let Some(dir) = &self.results.report {
            report.write_to(dir)?;
        }
        if own.is_some() {
            show.say("posthaste: removing the server's directory");
        }
        saved?;
        account?;
        Ok(ExitCode::from(u8::from(!report.is_good())))
    }

    /// Title of a report about our own server, whose address has no meaning.
    fn own_title(&self, plan: &Plan) -> String {
        let title = PlanSummary::new(plan, self.size_text()).title("Posthaste");
        match self.kill_every {
            Some(every) => format!("{title}, killed about every {} s", every.as_secs_f64()),
            None => title,
        }
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

    /// The plan given by the options. Its target is the server started by this program, if there is one.
    fn plan(&self, own: Option<&ScratchServer>) -> Result<(Plan, Option<String>), AnyError> {
        let pace = &self.pace;
        let session = &self.session;
        let mail = &self.mail;
        let own_target = own.map(|server| self.own_target(server)).transpose()?;
        let named = own_target.as_ref().map_or(self.targets.as_slice(), std::slice::from_ref);
        let (targets, is_http) = http::targets(named, session)?;
        let servers = self.servers(&targets)?;
        let uses_tls = servers.iter().any(|server| server.tls != TlsStart::Never);
        let tls = if uses_tls { Some(client_config(&self.trust()?)?) } else { None };
        let recipients = self.recipients()?;
        let (pool, note) = self.pool()?;
        if is_http {
            http::check_pool(&pool)?;
        }
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
            pipelining: session.pipelining,
            bdat: session.bdat,
            sender: mail.from.clone(),
            recipients,
            recipients_per_message: mail.recipients as usize,
            helo: session.helo.clone(),
            auth: self.auth()?,
            injecting: if is_http { http::injecting(session, own)? } else { Injecting::default() },
            tls,
            pool: Arc::new(pool),
            timeout: pace.timeout,
            drain: pace.drain,
            give_up: pace.give_up,
            outages: None,
        };
        Ok((plan, note))
    }

    /// The target address of the server started by us.
    fn own_target(&self, server: &ScratchServer) -> Result<Target, AnyError> {
        match (self.session.http, server.http) {
            (true, Some(address)) => Ok(format!("http://{address}").parse()?),
            (true, None) => Err("--http: the configuration has no HTTP listener without TLS".into()),
            (false, _) => Ok(server.address.to_string().parse()?),
        }
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
            (None, false) => Err("TLS needs --tls-ca FILE or --tls-insecure: there are no trusted certificates".into()),
        }
    }

    fn auth(&self) -> Result<Option<Auth>, AnyError> {
        let Some(mechanism) = self.session.auth else { return Ok(None) };
        let from_environment = || std::env::var("POSTHASTE_LOAD_PASSWORD").ok();
        let password = self.session.auth_password.clone().or_else(from_environment);
        Ok(Some(Auth {
            mechanism,
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
            addresses => {
                let mut named = HashSet::new();
                // A second time it would stand twice in a message.
                Recipients::Listed(addresses.iter().filter(|address| named.insert(*address)).cloned().collect())
            }
        };
        match recipients.distinct() {
            distinct if distinct >= mail.recipients as usize => Ok(recipients),
            distinct => Err(format!("--recipients {}: only {distinct} given", mail.recipients).into()),
        }
    }

    fn pool(&self) -> Result<(Pool, Option<String>), AnyError> {
        let mail = &self.mail;
        if mail.corpus.is_empty() {
            if let Some((_, last, _)) = mail.size.classes.iter().find(|class| class.1 > OCTETS_MAX) {
                return Err(format!("--size: {last} bytes exceed the maximum of {OCTETS_MAX}").into());
            }
            return Ok((Pool::generated(&mail.size, &mail.header, &mail.from, mail.seed), None));
        }
        let (messages, is_whole) = read_corpus(&mail.corpus, CORPUS_OCTETS_MAX)?;
        let pool = Pool::of_messages(messages, &mail.header);
        let note = format!("the corpus is too large: only its first {} messages are used", pool.len());
        Ok((pool, (!is_whole).then_some(note)))
    }
}

/// The first SIGINT, SIGTERM or SIGHUP ends the run in order, the second at once; both print the figures so far. The
/// third ends the process.
fn stop_by_steps(stop: &Stop) -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new(ending_signals())?;
    let stop = stop.clone();
    let steps = move || {
        for signal in signals.forever() {
            match (stop.is_asked(), stop.is_urgent()) {
                (false, _) => stop.ask(),
                (true, false) => stop.urge(),
                (true, true) => std::process::exit(128 + signal),
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(steps).map(drop)
}

const DURATION_DEFAULT: Duration = Duration::from_secs(10);
const OCTETS_MAX: usize = 256 << 20;
const CORPUS_OCTETS_MAX: usize = 1 << 30;

/// Our own server for one run, ended before its directory is removed.
struct OwnServer {
    server: ScratchServer,
    /// Directory with the mail that the server has accepted and not delivered.
    spool: PathBuf,
    _scratch: Scratch,
}

impl OwnServer {
    fn start(config: Option<&Path>, options: StartOptions) -> Result<Self, AnyError> {
        let scratch = Scratch::new_in(Path::new("."))?;
        let server = ScratchServer::start_with(&std::env::current_exe()?, scratch.path(), config, options)?;
        let made = scratch.path().join(posthaste_config::DEFAULT_FILE);
        let storage = Config::load(Some(config.unwrap_or(&made)))?.storage;
        Ok(Self { server, spool: scratch.path().join(storage.spool), _scratch: scratch })
    }
}

/// Progress display: a view on a terminal, lines elsewhere.
struct Show {
    live: Live,
    bar: Option<ProgressBar>,
    is_quiet: bool,
    stop: Stop,
    has_told_of_stop: bool,
}

impl Show {
    fn new(is_quiet: bool, stop: Stop) -> Self {
        let bar = (!is_quiet && std::io::stderr().is_terminal()).then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is right"));
        }
        Self { live: Live::default(), bar, is_quiet, stop, has_told_of_stop: false }
    }

    fn every(&self) -> Duration {
        Duration::from_millis(if self.bar.is_some() { 500 } else { 1000 })
    }

    fn progress(&mut self, progress: &Progress<'_>) {
        if self.is_quiet {
            return;
        }
        if self.stop.is_asked() && !std::mem::replace(&mut self.has_told_of_stop, true) {
            self.tell(&format!(
                "posthaste: stopping; waiting for {} (a second signal ends the wait)",
                posthaste_units::count(progress.in_flight, "message")
            ));
        }
        match &self.bar {
            Some(bar) => bar.set_message(self.live.view(progress)),
            None => self.tell(&live::line(progress)),
        }
    }

    fn tell(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            // That nobody reads it is no error.
            None => drop(writeln!(std::io::stderr(), "{line}")),
        }
    }

    fn say(&self, line: &str) {
        if !self.is_quiet {
            self.tell(line);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The command line as given, under the program's own name and without the password.
fn command_line() -> Vec<String> {
    let mut hides_next = false;
    let word = |word: String| {
        if std::mem::replace(&mut hides_next, word == "--auth-password") {
            "…".to_owned()
        } else if word.starts_with("--auth-password=") {
            "--auth-password=…".to_owned()
        } else {
            word
        }
    };
    std::iter::once("posthaste".to_owned()).chain(std::env::args().skip(1).map(word)).collect()
}
