//! `powercut`: the command line of the rig. Options are here, the commands in `commands`, the output in `show`.
#![forbid(unsafe_code)]

mod commands;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use commands::{At, Rigged};
use posthaste_powercut::hostile::Size;
use posthaste_powercut::mount::{self, FileSystem};
use posthaste_powercut::peers::Peer;
use posthaste_powercut::relay::kills::SnapshotCare;
use posthaste_powercut::rig::{Environment, RigError, is_root};
use posthaste_powercut::server::DEFAULT_KIND;
use show::Show;

/// Cuts the power under a mail server and accounts for every message. Needs root, /dev/fuse and loop devices.
#[derive(Parser)]
#[command(name = "powercut", version)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Common {
    /// The server program; default: the `posthaste` beside this program
    #[arg(long, global = true, value_name = "FILE")]
    server: Option<PathBuf>,
    /// How the server's spool keeps mail, as `storage.kind`
    #[arg(long, global = true, default_value = DEFAULT_KIND, value_parser = ["ring", "files", "fjall", "rocksdb"])]
    kind: String,
    /// Directory for mount points and logs
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// Also append one line of JSON for each outcome to this file, for `posthaste report render --rig`; `-` prints the lines
    /// instead of the tables
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Record a run and cut the power in it, and again during each recovery
    Cuts(Cuts),
    /// Repeat one cut of a kept recording
    Replay {
        /// The file that `cuts --keep` wrote
        recording: PathBuf,
        /// The file system of that run
        #[arg(long)]
        fs: FileSystem,
        /// The seed of that run
        #[arg(long)]
        seed: u64,
        /// Position of the power cut
        #[arg(long)]
        position: usize,
        /// The seed of the cut
        #[arg(long)]
        cut_seed: u64,
        /// Bytes that the disk writes atomically
        #[arg(long, default_value_t = 4096, value_parser = sector)]
        sector: usize,
    },
    /// Check that the rig detects a missing flush and a lying disk
    SelfTest {
        /// Seed for the mail and the positions of the cuts
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Kill the server (SIGKILL) under load repeatedly and account for its mail
    Kill {
        /// Number of kills
        #[arg(long, default_value_t = 1000)]
        times: u64,
        /// Seed for the mail and the times of the kills
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The server sends all mail on to a sink that outlives it, instead of into mailboxes
        #[arg(long)]
        relay: bool,
        /// With --relay: before every fourth start the last snapshot of the queue is damaged or removed
        #[arg(long, requires = "relay")]
        spoil: bool,
    },
    /// Simulate full, failing and hanging disks and vanishing mailboxes under load
    Faults {
        /// Names of faults; default: all
        only: Vec<String>,
    },
    /// Run hostile clients beside an honest one; needs no root
    Hostile {
        /// Names of attacks; default: all
        only: Vec<String>,
        /// Connections of a crowd
        #[arg(long, default_value_t = 10_000)]
        crowd: usize,
        /// Seconds that a crowd stays
        #[arg(long, default_value_t = 20)]
        secs: u64,
    },
    /// Check whether this machine can run the rig; exit status 2 and the reason if not
    Check,
    /// Run the same power cuts on other mail servers in their default configuration, for comparison
    Peers(Peers),
    /// Run everything briefly, in a few minutes, for CI
    Ci {
        /// Exit with status 2 if this machine, or the server program, lacks a requirement of any check
        #[arg(long)]
        require_all: bool,
        /// Directory for recordings of runs with findings
        #[arg(long, value_name = "DIR", default_value = "target/powercut")]
        keep: PathBuf,
    },
}

#[derive(Args)]
struct Cuts {
    /// File systems; default: all
    #[arg(long, value_delimiter = ',')]
    fs: Vec<FileSystem>,
    /// Cuts on each
    #[arg(long, default_value_t = 200)]
    cuts: u64,
    /// Messages of the recorded run
    #[arg(long, default_value_t = 800)]
    messages: u64,
    /// Connections that send them
    #[arg(long, default_value_t = 6)]
    connections: usize,
    /// Seed for the mail, the positions of the cuts and the surviving writes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes that the disk writes atomically: usually 4096; with 512 some file systems' own metadata does not always survive
    #[arg(long, default_value_t = 4096, value_parser = sector)]
    sector: usize,
    /// Directory for recordings of runs with findings
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// The server sends all mail on, instead of into mailboxes; the next hop takes part of it, and after a cut the rest
    #[arg(long)]
    relay: bool,
}

#[derive(Args)]
struct Peers {
    /// Servers to test; default: all that are installed
    #[arg(long, value_delimiter = ',')]
    only: Vec<Peer>,
    /// File systems; default: all
    #[arg(long, value_delimiter = ',')]
    fs: Vec<FileSystem>,
    /// Cuts of each server on each file system
    #[arg(long, default_value_t = 60)]
    cuts: u64,
    /// Messages of the recorded run
    #[arg(long, default_value_t = 400)]
    messages: u64,
    /// Connections that send them
    #[arg(long, default_value_t = 6)]
    connections: usize,
    /// Seed for the mail, the positions of the cuts and the surviving writes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn sector(text: &str) -> Result<usize, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("512 or 4096".to_owned()),
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            let _ = usage.print();
            return ExitCode::from(if usage.use_stderr() { 3 } else { 0 });
        }
    };
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("powercut: {error}");
            // What the server does wrong is a finding, wherever it was noticed.
            ExitCode::from(match error {
                _ if error.is_finding() => 1,
                RigError::Unavailable(_) => 2,
                _ => 3,
            })
        }
    }
}

/// Runs a command. Returns false if it has findings.
fn run(cli: &Cli) -> Result<bool, RigError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("posthaste"));
    let environment = Environment {
        program: cli.common.server.clone().map_or_else(beside, Ok)?,
        spool_kind: cli.common.kind.clone(),
        scratch: cli.common.scratch.clone(),
        interrupted,
    };
    // Without root the command says what it lacks.
    if !matches!(cli.command, Command::Hostile { .. }) && is_root() {
        let lacks = |error| RigError::Unavailable(format!("a mount namespace of its own: {error}"));
        mount::need_own_namespace().map_err(lacks)?;
    }
    if environment.spool_kind != DEFAULT_KIND {
        environment.check_kind()?;
    }
    let rigged = Rigged { environment, show: Show::new(cli.common.json.as_deref())? };
    match &cli.command {
        Command::Cuts(cuts) => rigged.cuts(cuts),
        Command::Replay { recording, fs, seed, position, cut_seed, sector } => {
            let at = At { file_system: *fs, seed: *seed, position: *position, cut_seed: *cut_seed, sector: *sector };
            rigged.replay(recording, &at)
        }
        Command::SelfTest { seed } => rigged.self_test(*seed),
        Command::Kill { times, seed, relay: false, .. } => rigged.kill(*times, *seed),
        Command::Kill { times, seed, relay: true, spoil } => {
            let care = if *spoil { SnapshotCare::Spoiled } else { SnapshotCare::Whole };
            rigged.kill_relay(*times, *seed, care)
        }
        Command::Hostile { only, crowd, secs } => {
            rigged.hostile(only, Size { crowd: *crowd, stay: Duration::from_secs(*secs) })
        }
        Command::Faults { only } => rigged.faults(only),
        Command::Check => rigged.check(),
        Command::Peers(peers) => rigged.peers(peers),
        Command::Ci { require_all, keep } => rigged.ci(*require_all, keep),
    }
}
