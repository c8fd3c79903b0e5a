//! `powercut`: the command line of the rig. What it is told is here, what it does about it in `commands`, how it tells in `show`.
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
use posthaste_powercut::rig::{Environment, RigError};
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
    /// The server; without it the `posthaste` beside this program
    #[arg(long, global = true, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Where mount points and logs go
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// Also append JSON to this file, a line for each outcome as soon as it is there, for `posthaste report render --rig`;
    /// `-` prints it instead of the tables
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Record a run and cut it, each cut again during its recovery
    Cuts(Cuts),
    /// Make one cut of a recording that was kept
    Replay {
        /// The file that `cuts --keep` has written
        recording: PathBuf,
        /// The file system of that run
        #[arg(long)]
        fs: FileSystem,
        /// The seed of that run
        #[arg(long)]
        seed: u64,
        /// Where the power goes
        #[arg(long)]
        position: usize,
        /// The seed of the cut
        #[arg(long)]
        cut_seed: u64,
        /// Bytes that the disk writes whole or not at all
        #[arg(long, default_value_t = 4096, value_parser = sector)]
        sector: usize,
    },
    /// Show that a forgotten flush and a lying disk are found
    SelfTest {
        /// Decides the mail and the places of the cuts
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Kill the server (SIGKILL) under load, again and again, and account for its mail
    Kill {
        /// How often
        #[arg(long, default_value_t = 1000)]
        times: u64,
        /// Decides the mail and the moments
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Let disks fill up, fail or hang and mailboxes vanish under load
    Faults {
        /// Names of faults, all by default
        only: Vec<String>,
    },
    /// Attack the server as a client, with somebody honest beside; needs no root
    Hostile {
        /// Names of attacks, all by default
        only: Vec<String>,
        /// Connections of a crowd
        #[arg(long, default_value_t = 10_000)]
        crowd: usize,
        /// Seconds that a crowd stays
        #[arg(long, default_value_t = 20)]
        secs: u64,
    },
    /// Say whether this machine can run all this; exit status 2 and the reason if not
    Check,
    /// Cut other systems, as they are shipped, in the same way: for the table
    Peers(Peers),
    /// Everything in short, in some minutes: for every change
    Ci {
        /// What this machine cannot try is a failure (exit status 2)
        #[arg(long)]
        require_all: bool,
        /// Where the recording of a run goes in which something was found
        #[arg(long, value_name = "DIR", default_value = "target/powercut")]
        keep: PathBuf,
    },
}

#[derive(Args)]
struct Cuts {
    /// File systems, all by default
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
    /// Decides the mail, the places of the cuts and what they leave
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes that the disk writes whole or not at all. Disks write 4096; file systems' own metadata does not always survive 512
    #[arg(long, default_value_t = 4096, value_parser = sector)]
    sector: usize,
    /// Where the recording of a run goes in which something was found
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

#[derive(Args)]
struct Peers {
    /// Which ones, all that are installed by default
    #[arg(long, value_delimiter = ',')]
    only: Vec<Peer>,
    /// File systems, all by default
    #[arg(long, value_delimiter = ',')]
    fs: Vec<FileSystem>,
    /// Cuts of each on each
    #[arg(long, default_value_t = 60)]
    cuts: u64,
    /// Messages of the recorded run
    #[arg(long, default_value_t = 400)]
    messages: u64,
    /// Connections that send them
    #[arg(long, default_value_t = 6)]
    connections: usize,
    /// Decides the mail, the places of the cuts and what they leave
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

/// False where something was found.
fn run(cli: &Cli) -> Result<bool, RigError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("posthaste"));
    let environment = Environment {
        program: cli.common.server.clone().map_or_else(beside, Ok)?,
        scratch: cli.common.scratch.clone(),
        interrupted,
    };
    mount::clear_dead()?;
    let rigged = Rigged { environment, show: Show::new(cli.common.json.as_deref())? };
    match &cli.command {
        Command::Cuts(cuts) => rigged.cuts(cuts),
        Command::Replay { recording, fs, seed, position, cut_seed, sector } => {
            let at = At { file_system: *fs, seed: *seed, position: *position, cut_seed: *cut_seed, sector: *sector };
            rigged.replay(recording, &at)
        }
        Command::SelfTest { seed } => rigged.self_test(*seed),
        Command::Kill { times, seed } => rigged.kill(*times, *seed),
        Command::Hostile { only, crowd, secs } => {
            rigged.hostile(only, Size { crowd: *crowd, stay: Duration::from_secs(*secs) })
        }
        Command::Faults { only } => rigged.faults(only),
        Command::Check => rigged.check(),
        Command::Peers(peers) => rigged.peers(peers),
        Command::Ci { require_all, keep } => rigged.ci(*require_all, keep),
    }
}
