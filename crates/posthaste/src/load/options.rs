//! The options of `posthaste load`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use posthaste_loadgen::account::{Ledger, MESSAGES_MAX};
use posthaste_loadgen::load::{AuthMechanism, Pipelining};
use posthaste_loadgen::values::{self, PerConnection, Sizes, WeightedDomain, address, duration, header_field};

use super::accounting::Accounting;

#[derive(Args)]
#[command(next_help_heading = "How much, how fast")]
pub struct PaceOptions {
    /// Connections at the same time
    #[arg(short = 's', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Messages to send, warm-up not counted
    #[arg(short = 'm', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MESSAGES_MAX))]
    pub count: Option<u64>,
    /// Time to send for, warm-up not counted: 500ms, 10s, 2m
    #[arg(short = 't', long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Messages per second on a schedule (open loop): latency counts from the time a message was due, so a stall shows in
    /// every delayed message. Without it each connection sends as fast as it is served (closed loop)
    #[arg(short = 'r', long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,
    /// With --rate: random arrivals, as from independent senders, at that rate on average
    #[arg(long, requires = "rate")]
    pub poisson: bool,
    /// Time at the start of each round that is not measured
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub warmup: Duration,
    /// Number of rounds, each with new connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Threads that share the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Longest wait for a connection and for each reply
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
    /// How long messages in flight, and overdue ones of an open loop, may take after the end
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain: Duration,
    /// End the run after this time without any connection
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub give_up: Duration,
}

#[derive(Args)]
#[command(next_help_heading = "How it is sent")]
pub struct SessionOptions {
    /// Messages per connection: 1, a number, or all
    #[arg(long, value_name = "N", default_value = "all")]
    pub per_connection: PerConnection,
    /// Commands sent without waiting for replies, where the server offers it
    #[arg(long, value_enum, default_value_t = Pipelining::On)]
    pub pipelining: Pipelining,
    /// Send bodies with BDAT instead of DATA
    #[arg(long)]
    pub bdat: bool,
    /// Bring mail by HTTP, as `POST /api/inject/v1`: to targets http://HOST:PORT, or with --serve to the server started
    #[arg(long, conflicts_with_all = ["bdat", "starttls", "auth"])]
    pub http: bool,
    /// With HTTP: file with the token to show; without it POSTHASTE_LOAD_TOKEN counts
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// With HTTP: send an Idempotency-Key with each message, and send it again until it has an answer other than 409, 429
    /// or 503
    #[arg(long)]
    pub idempotency_key: bool,
    /// Encrypt with STARTTLS
    #[arg(long)]
    pub starttls: bool,
    /// Accept any certificate
    #[arg(long)]
    pub tls_insecure: bool,
    /// Accept certificates signed by these authorities (PEM)
    #[arg(long, value_name = "FILE", conflicts_with = "tls_insecure")]
    pub tls_ca: Option<PathBuf>,
    /// Expected name in the certificate; default: the target's name
    #[arg(long, value_name = "NAME")]
    pub tls_name: Option<String>,
    /// Authenticate
    #[arg(long, value_enum, requires = "auth_user", value_name = "MECHANISM")]
    pub auth: Option<AuthMechanism>,
    /// User name for --auth
    #[arg(long, value_name = "NAME", requires = "auth")]
    pub auth_user: Option<String>,
    /// Password for --auth; safer in the environment variable POSTHASTE_LOAD_PASSWORD
    #[arg(long, value_name = "PASSWORD", requires = "auth")]
    pub auth_password: Option<String>,
    /// Client name for EHLO
    #[arg(long, value_name = "NAME", default_value = "load.invalid", value_parser = address)]
    pub helo: String,
}

#[derive(Args)]
#[command(next_help_heading = "What is sent")]
pub struct MailOptions {
    /// Message size in bytes: 10k, a range 1k-100k, or a weighted mix 2k:70,10k-50k:25,1m:5
    #[arg(short = 'l', long, value_name = "SIZES", default_value = "10k")]
    pub size: Sizes,
    /// Send these real messages instead: a file, a directory, a Maildir, an mbox
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    pub corpus: Vec<PathBuf>,
    /// Add this header field to every message
    #[arg(long, value_name = "NAME: VALUE", value_parser = header_field)]
    pub header: Vec<String>,
    /// Envelope sender
    #[arg(short = 'f', long, value_name = "ADDRESS", default_value = "load@localhost", value_parser = sender)]
    pub from: String,
    /// A recipient; several are used in turn
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with_all = ["domain", "users"])]
    pub to: Vec<String>,
    /// A domain with recipients user1 to userN, and its weight: example.com:67
    #[arg(short = 'd', long, value_name = "NAME[:WEIGHT]")]
    pub domain: Vec<WeightedDomain>,
    /// Number of users in each domain
    #[arg(short = 'u', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub users: Option<u64>,
    /// Recipients of each message
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub recipients: u32,
    /// Seed for bodies and random choices; the same seed repeats them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Args)]
#[command(next_help_heading = "Results")]
pub struct ResultOptions {
    /// Check that everything acknowledged was stored here: a Maildir tree, a directory, an mbox, a sink's account file, or
    /// a Posthaste server's data directory or spool
    #[arg(long, value_name = "WHERE", num_args = 1..)]
    pub account: Vec<PathBuf>,
    #[command(flatten)]
    pub accounting: Accounting,
    /// Write the acknowledged messages to this file, for a later `posthaste load account`
    #[arg(long, value_name = "FILE")]
    pub acked: Option<PathBuf>,
    /// Measure CPU, memory and writes of this process and its children
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Write report.json, report.md and report.html here
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Title of the report
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Print no progress during the run
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

impl ResultOptions {
    /// Checks before the run that results can be written to their places.
    ///
    /// # Errors
    /// The first unusable place.
    pub fn check_paths(&self) -> Result<(), String> {
        let told = |option: &str, path: &Path, result: std::io::Result<()>| {
            result.map_err(|error| format!("{option} {}: {error}", path.display()))
        };
        if let Some(file) = &self.acked {
            Ledger::check_path(file).map_err(|error| format!("--acked {error}"))?;
            told("--acked", file, File::options().append(true).create(true).open(file).map(drop))?;
        }
        if let Some(dir) = &self.report {
            told("--report", dir, std::fs::create_dir_all(dir))?;
        }
        // It may come with the first message.
        for store in self.account.iter().filter(|store| !store.exists()) {
            eprintln!("posthaste: --account {}: does not exist yet", store.display());
        }
        Ok(())
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && (0.001..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("write messages per second, from 0.001 to 10000000".into()),
    }
}

/// Parses an envelope sender, which may be empty (RFC 5321 section 4.5.5).
fn sender(text: &str) -> Result<String, values::ValueError> {
    if text.is_empty() { Ok(String::new()) } else { address(text) }
}
