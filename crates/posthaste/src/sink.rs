//! `posthaste sink`: runs the test server with the given options.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use posthaste_loadgen::sink::{
    Certificate, Counts, Delay, GreylistRule, Options, RuleFile, Sink, SlowReadRule, Stage, StageRule, StoreKind,
    TlsMode,
};
use posthaste_loadgen::values::{self, duration};
use posthaste_smtp::Protocol;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Args)]
pub struct SinkArgs {
    /// Address and port to listen on, or only a port, for 127.0.0.1; port 0 takes a free one
    #[arg(default_value = "127.0.0.1:2525", value_name = "ADDRESS", value_parser = listen_address)]
    listen: String,
    /// Speak LMTP instead of SMTP
    #[arg(long)]
    lmtp: bool,
    /// Name in the greeting and in a generated certificate
    #[arg(long, default_value = "sink.localhost", value_name = "NAME")]
    host_name: String,
    /// Store accepted messages: maildir:DIR, mbox:FILE or dir:DIR
    #[arg(long, value_name = "KIND:PATH")]
    store: Option<StoreKind>,
    /// Write a line of JSON for each accepted message of `posthaste load`
    #[arg(long, value_name = "FILE")]
    account: Option<PathBuf>,

    /// Rule file (TOML): replies by domain and stage
    #[arg(long, value_name = "FILE", help_heading = "Answers")]
    rules: Option<PathBuf>,
    /// Percentage of mail answered with 4yz at a stage: connect, ehlo, mail, rcpt, data, end-of-data
    #[arg(long, value_name = "STAGE=PERCENT", value_parser = percent, help_heading = "Answers")]
    tempfail: Vec<(Stage, f64)>,
    /// Percentage answered with 5yz at a stage
    #[arg(long, value_name = "STAGE=PERCENT", value_parser = percent, help_heading = "Answers")]
    permfail: Vec<(Stage, f64)>,
    /// Percentage of connections closed without a reply at a stage
    #[arg(long, value_name = "STAGE=PERCENT", value_parser = percent, help_heading = "Answers")]
    drop: Vec<(Stage, f64)>,
    /// Delay before every reply of a stage: 50ms, or random between 10ms..2s
    #[arg(long, value_name = "STAGE=TIME", value_parser = delay, help_heading = "Answers")]
    delay: Vec<(Stage, Delay)>,
    /// Greylist: answer 450 to each new combination of client, sender and recipient for this long
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Answers")]
    greylist: Option<Duration>,
    /// Read bodies slowly: this many bytes, then a pause, such as 512/100ms
    #[arg(long, value_name = "OCTETS/TIME", value_parser = slow_read, help_heading = "Answers")]
    slow_read: Option<SlowReadRule>,
    /// End each session after this many messages (421)
    #[arg(long, value_name = "N", help_heading = "Answers")]
    messages_max: Option<u32>,
    /// Seed for the percentages; the same seed selects the same messages
    #[arg(long, value_name = "NUMBER", help_heading = "Answers")]
    seed: Option<u64>,
    /// Disable special recipients such as tempfail@ or 450-busy@, which choose their own reply
    #[arg(long, help_heading = "Answers")]
    plain_recipients: bool,
    /// Accept messages with bare CR, bare LF or NUL unchanged
    #[arg(long, help_heading = "Answers")]
    lenient: bool,

    /// Encryption
    #[arg(long, value_name = "WHEN", default_value = "off", help_heading = "TLS")]
    tls: Tls,
    /// Certificate chain (PEM); default: generate one at the start
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,

    /// Threads; 0 for one per processor
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Limits")]
    threads: usize,
    /// Maximum simultaneous connections; more get 421
    #[arg(long, value_name = "N", default_value_t = 20_000, help_heading = "Limits")]
    max_connections: u64,
    /// Maximum bytes in a message, 0 for no limit; larger ones get 552
    #[arg(long, value_name = "OCTETS", default_value_t = 64 << 20, help_heading = "Limits")]
    max_message_bytes: u64,
    /// Maximum bytes of messages in memory with --store or --account; above it 452
    #[arg(long, value_name = "OCTETS", default_value_t = 1 << 30, help_heading = "Limits")]
    max_memory_bytes: usize,
    /// Idle timeout of a client
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration, help_heading = "Limits")]
    idle_timeout: Duration,

    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "End and report")]
    duration: Option<Duration>,
    /// End after this many accepted messages
    #[arg(long, value_name = "N", help_heading = "End and report")]
    count: Option<u64>,
    /// Print a line of counters to standard error this often
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "End and report")]
    interval: Option<Duration>,
    /// Print the summary as JSON
    #[arg(long, help_heading = "End and report")]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Tls {
    /// Never
    Off,
    /// When the client sends STARTTLS
    Starttls,
    /// From the first byte on
    Implicit,
}

/// Runs a sink until a signal, or until its end condition.
pub fn run(args: SinkArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watch = Watch { count: args.count, duration: args.duration, interval: args.interval };
    let json = args.json;
    // Before it is told that the sink listens: a signal may come at once.
    let signals = {
        let _entered = runtime.enter();
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]
    };
    let sink = Sink::start(options(args)?)?;
    eprintln!("posthaste: sink listens on {}", sink.local_addr());
    runtime.block_on(watch.until_the_end(&sink, signals))?;
    let summary = sink.stop()?;
    super::print(&if json { summary.to_json() } else { summary.to_text() })?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: SinkArgs) -> Result<Options, Box<dyn std::error::Error>> {
    Ok(Options {
        rules: rules(&args)?,
        listen: args.listen,
        protocol: if args.lmtp { Protocol::Lmtp } else { Protocol::Smtp },
        host_name: args.host_name,
        local_parts: !args.plain_recipients,
        store: args.store,
        account: args.account,
        tls: match args.tls {
            Tls::Off => TlsMode::Off,
            Tls::Starttls => TlsMode::StartTls,
            Tls::Implicit => TlsMode::Implicit,
        },
        certificate: match (args.tls_cert, args.tls_key) {
            (Some(chain), Some(key)) => Certificate::Files { chain, key },
            _ => Certificate::SelfSigned,
        },
        threads: args.threads,
        connections_max: args.max_connections,
        message_bytes_max: args.max_message_bytes,
        memory_bytes_max: args.max_memory_bytes,
        idle_timeout: args.idle_timeout,
        lenient: args.lenient,
    })
}

/// The rule file, with the options applied to its `[default]`.
fn rules(args: &SinkArgs) -> Result<RuleFile, Box<dyn std::error::Error>> {
    let mut rules = match &args.rules {
        Some(file) => RuleFile::load(file)?,
        None => RuleFile::default(),
    };
    let mut set = |stage, change: &dyn Fn(&mut StageRule)| {
        change(rules.default.stage_mut(stage).get_or_insert_default());
    };
    for (stage, percent) in &args.tempfail {
        set(*stage, &|rule| rule.tempfail = *percent);
    }
    for (stage, percent) in &args.permfail {
        set(*stage, &|rule| rule.permfail = *percent);
    }
    for (stage, percent) in &args.drop {
        set(*stage, &|rule| rule.drop = *percent);
    }
    for (stage, delay) in &args.delay {
        set(*stage, &|rule| rule.delay = *delay);
    }
    rules.seed = args.seed.unwrap_or(rules.seed);
    rules.slow_read = args.slow_read.or(rules.slow_read);
    rules.messages_max = args.messages_max.or(rules.messages_max);
    if let Some(wait) = args.greylist {
        let entries = rules.greylist.map_or(GreylistRule::default_entries(), |rule| rule.entries);
        rules.greylist = Some(GreylistRule { wait, entries });
    }
    Ok(rules)
}

/// Conditions that end the run, and the interval of the display.
struct Watch {
    count: Option<u64>,
    duration: Option<Duration>,
    interval: Option<Duration>,
}

impl Watch {
    /// Interval between checks for the end, and between updates of a terminal.
    const TICK: Duration = Duration::from_millis(100);
    /// Interval between writes of the account file to the kernel.
    const FLUSH: Duration = Duration::from_secs(1);

    async fn until_the_end(
        &self,
        sink: &Sink,
        [mut interrupt, mut terminate]: [Signal; 2],
    ) -> Result<(), Box<dyn std::error::Error>> {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}").expect("our own template"));
            bar
        });
        let started = Instant::now();
        let mut rate = Rate { counts: Counts::default(), at: started };
        let mut flushed = started;
        let mut told = started;
        let mut tick = tokio::time::interval(Self::TICK);
        loop {
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                _ = tick.tick() => {}
            }
            let now = Instant::now();
            let counts = sink.counts();
            let done = self.count.is_some_and(|count| counts.messages >= count)
                || self.duration.is_some_and(|duration| now - started >= duration);
            if now - flushed >= Self::FLUSH {
                flushed = now;
                sink.flush()?;
            }
            match (&bar, self.interval) {
                (Some(bar), _) if now - told >= Self::TICK * 5 => {
                    told = now;
                    bar.set_message(rate.line(counts, now));
                }
                (Some(bar), _) => bar.tick(),
                (None, Some(interval)) if now - told >= interval => {
                    told = now;
                    eprintln!("{}", rate.line(counts, now));
                }
                _ => {}
            }
            if done {
                break;
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        Ok(())
    }
}

/// The counts last reported.
struct Rate {
    counts: Counts,
    at: Instant,
}

impl Rate {
    fn line(&mut self, counts: Counts, now: Instant) -> String {
        let seconds = (now - self.at).as_secs_f64();
        let each = |now: u64, before: u64| (now - before) as f64 / seconds;
        let line = format!(
            "{:.0} messages/s, {:.1} MB/s, {}; {} accepted, {} refused, {} dropped; {} connections in all, {} at a time",
            each(counts.messages, self.counts.messages),
            each(counts.octets, self.counts.octets) / 1e6,
            posthaste_units::count(counts.open_connections, "connection"),
            counts.messages,
            counts.refused(),
            counts.dropped,
            counts.connections,
            counts.open_connections_max,
        );
        (self.counts, self.at) = (counts, now);
        line
    }
}

/// Parses an address to listen on; `2525` is a port on loopback.
fn listen_address(text: &str) -> Result<String, String> {
    if text.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{text}"));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("write an address and a port, such as 127.0.0.1:2525, [::1]:2525 or localhost:2525, or only a port"
            .to_owned()),
    }
}

fn at_stage(text: &str) -> Result<(Stage, &str), String> {
    let (stage, value) = text.split_once('=').ok_or("a stage, = and a value are needed")?;
    Ok((stage.parse().map_err(|error| format!("{error}"))?, value))
}

fn percent(text: &str) -> Result<(Stage, f64), String> {
    let (stage, value) = at_stage(text)?;
    let percent = value.strip_suffix('%').unwrap_or(value).parse().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    Ok((stage, percent.ok_or_else(|| format!("{value} is not a percentage from 0 to 100"))?))
}

fn delay(text: &str) -> Result<(Stage, Delay), String> {
    let (stage, value) = at_stage(text)?;
    let (from, to) = value.split_once("..").unwrap_or((value, value));
    let time = |text| duration(text).map_err(|error| error.to_string());
    Ok((stage, Delay { from: time(from)?, to: time(to)? }))
}

fn slow_read(text: &str) -> Result<SlowReadRule, String> {
    let (octets, pause) = text.split_once('/').ok_or("octets, / and a time are needed")?;
    Ok(SlowReadRule {
        octets: values::octets(octets).map_err(|error| error.to_string())?,
        pause: duration(pause).map_err(|error| error.to_string())?,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sink: SinkArgs,
    }

    fn rules_of(file: &str, options: &[&str]) -> RuleFile {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&path, file).unwrap();
        let line = ["sink", "--rules", path.path().to_str().unwrap()].into_iter().chain(options.iter().copied());
        rules(&Line::parse_from(line).sink).unwrap()
    }

    #[test]
    fn an_option_replaces_only_its_own_key_of_the_file() {
        let file = "[greylist]\nwait = \"5s\"\nentries = 7\n[default]\nrcpt = { tempfail = 1, delay = \"1s\" }\n";
        let rules = rules_of(file, &["--greylist", "1m", "--delay", "rcpt=2s"]);
        let greylist = rules.greylist.unwrap();
        assert_eq!((greylist.wait, greylist.entries), (Duration::from_secs(60), 7));
        let rcpt = rules.default.rcpt.unwrap();
        assert_eq!((rcpt.tempfail, rcpt.delay.from), (1.0, Duration::from_secs(2)));
    }
}
