//! A server under the load of a shape, and the figures of its rounds.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use posthaste_loadgen::account::{Account, Ledger, account};
use posthaste_loadgen::load::{
    Injecting, Outcome, Pipelining, Plan, Pool, Progress, Recipients, Server as Target, fresh_run, run,
};
use posthaste_loadgen::report::{About, Cost, PlanSummary, Report};
use posthaste_loadgen::resources::{Sampler, Usage};
use posthaste_loadgen::scratch::write_back;
use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::{Address, Protocol, TlsStart};
use rustls::ClientConfig;

use super::shape::Shape;
use crate::peers::{Dovecot, Postfix, SmtpSink};
use crate::run::wait_until_idle;
use crate::sink::Sink;
use crate::suite::{Running, Sample, Settings, Side, SideError, Start};

/// A server that listens.
pub(crate) struct Opened {
    pub address: SocketAddr,
    /// Process id of its main process, the ancestor of all others.
    pub pid: u32,
    /// Directory in which acknowledged mail can be found, if there is one.
    pub mail: Option<PathBuf>,
    pub door: Door,
    /// Mail in place of the generated.
    pub sent: Option<Sent>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// Stops the server when dropped.
    pub holds: Box<dyn Serving>,
}

impl Opened {
    /// A server that keeps no mail, spoken to in the clear.
    pub fn new(address: SocketAddr, pid: u32, holds: impl Serving + 'static) -> Self {
        let holds = Box::new(holds);
        Self { address, pid, mail: None, door: Door::Smtp, sent: None, notes: Vec::new(), holds }
    }

    /// Our server.
    pub fn ours(server: ScratchServer) -> Self {
        Self { mail: Some(server.mail.clone()), ..Self::new(server.address, server.pid(), server) }
    }

    /// Postfix with mailboxes.
    pub fn postfix(postfix: Postfix) -> Self {
        Self { mail: Some(postfix.mail.clone()), ..Self::new(postfix.address, postfix.pid(), postfix) }
    }
}

/// Mail that a side sends.
pub(crate) struct Sent {
    pub sender: &'static str,
    pub pool: Arc<Pool>,
}

/// Protocol of the generator.
pub(crate) enum Door {
    /// SMTP in the clear.
    Smtp,
    /// LMTP (RFC 2033) in the clear.
    Lmtp,
    /// SMTP, encrypted after STARTTLS.
    StartTls(Arc<ClientConfig>),
    /// Injection by HTTP.
    Http(Injecting),
}

/// A side that loads the server of `open` in this shape.
pub(crate) fn side(
    name: &'static str,
    is_ours: bool,
    durability: &'static str,
    shape: &Shape,
    open: impl FnOnce(&Shape, &Settings, &Path) -> Result<Opened, SideError> + 'static,
) -> Side {
    let shape = Arc::new(shape.clone());
    let start: Start = Box::new(move |settings, dir| {
        let server = open(&shape, settings, dir)?;
        Ok(Box::new(Loaded::new(shape, name, is_ours, server, dir)))
    });
    Side { name, is_ours, durability, start }
}

/// A running server.
pub(crate) trait Serving {
    /// True if no acknowledged message waits for delivery, as far as that can be seen from outside.
    fn has_delivered(&self) -> bool {
        true
    }

    /// Checks more than the mail after all rounds. Returns a remark.
    ///
    /// # Errors
    /// The measured figures mean something else.
    fn check(&self) -> Result<Option<String>, SideError> {
        Ok(None)
    }
}

impl Serving for Dovecot {}
impl Serving for ScratchServer {}
impl Serving for Sink {}
impl Serving for SmtpSink {}
impl Serving for Postfix {
    fn has_delivered(&self) -> bool {
        self.queue_is_empty()
    }
}

/// A server under load.
struct Loaded {
    shape: Arc<Shape>,
    side: &'static str,
    is_ours: bool,
    server: Opened,
    dir: PathBuf,
    pool: Arc<Pool>,
    ledgers: Vec<Ledger>,
    /// Rounds after which it was still busy at the time limit.
    rounds_without_rest: u32,
}

/// Timeout for the delivery of acknowledged mail.
const DELIVERY_MAX: Duration = Duration::from_secs(120);
/// Time limit for its processes to become idle after that.
const REST_MAX: Duration = Duration::from_secs(20);
/// Time after which missing acknowledged mail counts as lost.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// `SETTLE_MAX` for a run that was stopped.
const SETTLE_MAX_STOPPED: Duration = Duration::from_secs(10);
/// Interval between reads of the server's counters.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

impl Loaded {
    fn new(shape: Arc<Shape>, side: &'static str, is_ours: bool, server: Opened, dir: &Path) -> Self {
        let generated = || Arc::new(Pool::generated(&shape.sizes(), &[], SENDER, 1));
        let pool = server.sent.as_ref().map_or_else(generated, |sent| Arc::clone(&sent.pool));
        Self { shape, side, is_ours, server, dir: dir.to_owned(), pool, ledgers: Vec::new(), rounds_without_rest: 0 }
    }

    fn plan(&self, settings: &Settings) -> Plan {
        let domains = vec!["localhost".parse().expect("a domain")];
        // A request's Host is the name of its server.
        let name = match &self.server.door {
            Door::Http(_) => self.server.address.to_string(),
            Door::Smtp | Door::Lmtp | Door::StartTls(_) => self.side.into(),
        };
        let (protocol, tls, injecting) = match &self.server.door {
            Door::Smtp => (Protocol::Smtp, None, Injecting::default()),
            Door::Lmtp => (Protocol::Lmtp, None, Injecting::default()),
            Door::StartTls(config) => (Protocol::Smtp, Some(Arc::clone(config)), Injecting::default()),
            Door::Http(injecting) => (Protocol::Http, None, injecting.clone()),
        };
        Plan {
            run: fresh_run(),
            servers: vec![Target {
                name,
                address: Address::Tcp(self.server.address),
                protocol,
                tls: if tls.is_some() { TlsStart::StartTls } else { TlsStart::Never },
                tls_name: tls.is_some().then(|| "localhost".try_into().expect("a name")),
            }],
            connections: self.shape.connections as usize,
            threads: 1,
            pace: self.shape.pace(settings),
            rounds: 1,
            per_connection: self.shape.per_connection,
            pipelining: Pipelining::On,
            bdat: false,
            sender: self.server.sent.as_ref().map_or(SENDER, |sent| sent.sender).into(),
            recipients: Recipients::Made { users: self.shape.mailboxes, domains },
            recipients_per_message: self.shape.recipients,
            helo: "bench.invalid".into(),
            auth: None,
            injecting,
            tls,
            pool: Arc::clone(&self.pool),
            timeout: Duration::from_secs(60),
            drain: Duration::from_secs(10),
            give_up: Duration::from_secs(10),
            outages: None,
        }
    }

    /// Waits until everything is delivered and the processes are idle. Returns the start of the idle time, `None` at
    /// the time limit.
    fn rest(&self, sampler: &mut Sampler, settings: &Settings) -> Option<Instant> {
        let begun = Instant::now();
        while !self.server.holds.has_delivered() {
            if begun.elapsed() > DELIVERY_MAX.min(settings.round_max * 4) || settings.is_stopped() {
                return None;
            }
            std::thread::sleep(SAMPLE_EVERY);
            sampler.sample();
        }
        wait_until_idle(sampler, REST_MAX.min(settings.round_max))
    }

    /// The load tool's own report of a round, with its course in time.
    fn write_report(&self, about: About, outcome: &Outcome, dir: &Path) -> Result<(), SideError> {
        let name = format!("{}-{}-{}", self.shape.name, self.side.replace(' ', "-"), self.ledgers.len());
        Report::new(about, outcome, None).write_to(&dir.join(name)).map_err(SideError::failed("report"))
    }
}

const SENDER: &str = "bench@localhost";

impl Running for Loaded {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let plan = self.plan(settings);
        let about = About {
            title: Some(format!("{}: {}", self.shape.name, self.side)),
            command: settings.command.clone(),
            started: SystemTime::now(),
            plan: PlanSummary::new(&plan, self.shape.sizes().to_string()),
            notes: vec!["the server's cost is counted until the server is idle".into()],
        };
        let mut sampler = Sampler::new(&[self.server.pid], Instant::now());
        let mut watch = |_: &Progress<'_>| {
            sampler.sample();
        };
        let mut outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), SAMPLE_EVERY, &mut watch)
            .map_err(SideError::failed("load"))?;
        let rested = self.rest(&mut sampler, settings);
        self.rounds_without_rest += u32::from(rested.is_none());
        // What lies in the page cache yet, of whatever side, is a debt of the round.
        let synced = Instant::now();
        write_back(&self.dir);
        let on_disk = rested.map(|rested| rested.saturating_duration_since(outcome.begun) + synced.elapsed());
        outcome.server = Some(sampler.finish());
        // Whatever else comes of the round, its mail is owed.
        self.ledgers.push(outcome.ledger.clone());
        if let Some(dir) = &settings.report {
            self.write_report(about, &outcome, dir)?;
        }
        figures(&outcome, on_disk, self.shape.octets_max())
    }

    fn finish(self: Box<Self>, settings: &Settings) -> Result<Vec<String>, SideError> {
        let mut notes = self.server.notes.clone();
        if self.rounds_without_rest > 0 {
            let (some, all) = (self.rounds_without_rest, self.ledgers.len());
            notes.push(format!("still at work when time to rest was up, after {some} of {all} rounds"));
        }
        let Some(mail) = &self.server.mail else { return Ok(notes) };
        let (mut acked, mut faults) = (0, Vec::new());
        for ledger in &self.ledgers {
            let account = look_for(ledger, mail, settings)?;
            acked += account.acked;
            if !account.is_clean() {
                faults.push(account.to_text(3).trim_end().replace('\n', "; "));
            }
        }
        notes.extend(self.server.holds.check()?);
        // The server goes only now: what it has promised had to come to its mailbox.
        drop(self.server.holds);
        if faults.is_empty() {
            let found =
                format!("{acked} messages acknowledged in all rounds, each found once and unaltered in its mailbox");
            // None was, where the run was stopped before.
            notes.extend((acked > 0).then_some(found));
            return Ok(notes);
        }
        let verdict = format!("of what was acknowledged: {}", faults.join("; "));
        // Ours has failed then; of a peer it is told.
        if self.is_ours { Err(SideError::Failed(verdict)) } else { Ok([notes, vec![verdict]].concat()) }
    }
}

/// Looks for acknowledged mail until nothing is missing or time is up.
fn look_for(ledger: &Ledger, mail: &Path, settings: &Settings) -> Result<Account, SideError> {
    let begun = Instant::now();
    loop {
        let looked = Instant::now();
        let account = account(ledger, &[mail.to_owned()], &[], None).map_err(SideError::failed("account"))?;
        let patience = if settings.is_stopped() { SETTLE_MAX_STOPPED } else { SETTLE_MAX };
        if account.lost.is_empty() || begun.elapsed() > patience {
            return Ok(account);
        }
        // The server shall have as much time for delivery as looking takes from it.
        std::thread::sleep(looked.elapsed().max(Duration::from_millis(200)));
    }
}

/// Figures of a round of messages of `octets`. `on_disk`: time from the first message until all were delivered and written to the disk.
fn figures(outcome: &Outcome, on_disk: Option<Duration>, octets: usize) -> Result<Sample, SideError> {
    let total = &outcome.total;
    if total.acked == 0 {
        let error = outcome.errors.first().map(|error| format!("{} ({})", error.class, error.example));
        return Err(SideError::Failed(format!("nothing was acknowledged: {}", error.unwrap_or_default())));
    }
    let messages = outcome.ledger.acked();
    let cpu_us = |usage: &Usage| Cost::new(usage.clone(), messages).cpu_us_per_message;
    let mut sample = crate::run::sample([
        ("rate", total.rate),
        ("recipient_rate", total.rate * total.copies as f64 / total.acked as f64),
        ("acked_percent", total.acked as f64 * 100.0 / (total.acked + total.failed + total.missed) as f64),
        ("p50_us", total.latency.p50_us as f64),
        ("p99_us", total.latency.p99_us as f64),
        ("p999_us", total.latency.p999_us as f64),
        ("longest_us", total.latency.max_us as f64),
        ("generator_cpu_us", cpu_us(&outcome.generator)),
    ]);
    sample.extend(on_disk.map(|time| ("disk_rate".into(), messages as f64 / time.as_secs_f64())));
    if let Some(server) = &outcome.server {
        let cpu_us = cpu_us(server);
        sample.insert("server_cpu_us".into(), cpu_us);
        sample.insert("written".into(), server.written_octets as f64 / (messages as f64 * octets as f64));
        sample.insert("recipient_cpu_us".into(), cpu_us * total.acked as f64 / total.copies as f64);
    }
    Ok(sample)
}
