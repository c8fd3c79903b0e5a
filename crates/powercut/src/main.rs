//! `powercut`: the command line of the rig.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use posthaste_powercut::campaign::{self, Outcome, Plan, Recorded};
use posthaste_powercut::faults;
use posthaste_powercut::hostile::{self, Size};
use posthaste_powercut::kill::Killed;
use posthaste_powercut::log::Recording;
use posthaste_powercut::mount::{self, FileSystem};
use posthaste_powercut::peers::{self, Peer};
use posthaste_powercut::rig::{Environment, Rig, RigError, is_installed};
use posthaste_powercut::selftest::{self, SelfTest};

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
    /// Port on the loopback address that the server is given
    #[arg(long, global = true, default_value_t = 3300)]
    port: u16,
    /// Where mount points and logs go
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
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
        /// What no honest client may wait, in milliseconds; more where a machine is busy with other things
        #[arg(long, default_value_t = 1000)]
        wait_ms_max: u64,
    },
    /// Say whether this machine can run all this; exit status 2 and the reason if not
    Check,
    /// Cut other systems, as they are shipped, in the same way: for the table
    Peers(Peers),
    /// Everything in short, in less than two minutes: for every change
    Ci,
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
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("powercut: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<bool, RigError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("posthaste"));
    let environment = Environment {
        program: cli.common.server.clone().map_or_else(beside, Ok)?,
        port: cli.common.port,
        scratch: cli.common.scratch.clone(),
        interrupted,
    };
    mount::clear_dead()?;
    match &cli.command {
        Command::Cuts(cuts) => {
            let file_systems = if cuts.fs.is_empty() { FileSystem::ALL.to_vec() } else { cuts.fs.clone() };
            environment.check(&file_systems)?;
            let mut outcomes = Vec::new();
            for file_system in file_systems {
                let plan = Plan {
                    file_system,
                    messages: cuts.messages,
                    connections: cuts.connections,
                    cuts: cuts.cuts,
                    seed: cuts.seed,
                    sector: cuts.sector,
                };
                outcomes.push(cut(&plan, &environment, cuts.keep.as_deref())?);
            }
            show(&outcomes, cli.common.json);
            Ok(outcomes.iter().all(Outcome::is_clean))
        }
        Command::Replay { recording, fs, seed, position, cut_seed, sector } => {
            environment.check(&[*fs])?;
            let recording = Recording::load(&mut BufReader::new(File::open(recording)?))?;
            let position = (*position).min(recording.events.len());
            let rig = Rig::new(&environment, *fs, recording.base.len())?;
            let recorded = Recorded::of(recording, *seed);
            let plan = Plan { file_system: *fs, messages: 0, connections: 0, cuts: 1, seed: *seed, sector: *sector };
            let at = [(position, *cut_seed)];
            let outcome = campaign::cut_at(&rig, &plan, &recorded, &environment, &at, &mut |_| ())?;
            let is_clean = outcome.is_clean();
            show(&[outcome], cli.common.json);
            Ok(is_clean)
        }
        Command::SelfTest { seed } => {
            environment.check(&[FileSystem::Ext4])?;
            let test = selftest::self_test(&environment, *seed)?;
            show_self_test(&test, cli.common.json);
            Ok(test.is_passed())
        }
        Command::Kill { times, seed } => {
            let killed = kill(&environment, *times, *seed)?;
            show_killed(&killed, cli.common.json);
            Ok(killed.findings.is_empty())
        }
        Command::Hostile { only, crowd, secs, wait_ms_max } => {
            let (stay, wait_max) = (Duration::from_secs(*secs), Duration::from_millis(*wait_ms_max));
            hostile(&environment, only, Size { crowd: *crowd, stay, wait_max }, cli.common.json)
        }
        Command::Faults { only } => faults(&environment, only, cli.common.json),
        Command::Check => {
            environment.check(&[FileSystem::Ext4])?;
            let unavailable = |error: RigError| RigError::Unavailable(error.to_string());
            let rig = Rig::new(&environment, FileSystem::Ext4, 0).map_err(unavailable)?;
            drop(rig.mount().map_err(|error| RigError::Unavailable(error.to_string()))?);
            Ok(true)
        }
        Command::Peers(peers) => cut_peers(peers, &environment, cli.common.json),
        Command::Ci => ci(&environment),
    }
}

/// Others lose mail or not; that is the answer and no failure of ours.
fn cut_peers(peers: &Peers, environment: &Environment, json: bool) -> Result<bool, RigError> {
    let file_systems = if peers.fs.is_empty() { FileSystem::ALL.to_vec() } else { peers.fs.clone() };
    environment.check(&file_systems)?;
    let mut outcomes = Vec::new();
    for peer in Peer::ALL.into_iter().filter(|peer| peers.only.is_empty() || peers.only.contains(peer)) {
        match peer.check() {
            Err(why) if peers.only.is_empty() => {
                eprintln!("skipped: {}: {why}", peer.name());
                continue;
            }
            checked => checked?,
        }
        for &file_system in &file_systems {
            let plan = Plan {
                file_system,
                messages: peers.messages,
                connections: peers.connections,
                cuts: peers.cuts,
                seed: peers.seed,
                sector: 4096,
            };
            let rig = Rig::new(environment, file_system, DISK_BYTES)?;
            let bar = ProgressBar::new(plan.cuts).with_prefix(peer.name());
            outcomes.push(peers::cut(peer, &rig, &plan, environment, |outcome| bar.set_position(outcome.cuts))?);
        }
    }
    show(&outcomes, json);
    Ok(true)
}

/// A little of everything, on the file systems whose tools are there.
fn ci(environment: &Environment) -> Result<bool, RigError> {
    environment.check(&[FileSystem::Ext4])?;
    let test = selftest::self_test(environment, 1)?;
    show_self_test(&test, false);
    let mut outcomes = Vec::new();
    for file_system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
        if !is_installed(file_system.maker()) {
            println!("skipped: {}: {} is not installed", file_system.name(), file_system.maker());
            continue;
        }
        let plan = Plan { file_system, messages: 240, connections: 4, cuts: 20, seed: 1, sector: 4096 };
        outcomes.push(cut(&plan, environment, None)?);
    }
    show(&outcomes, false);
    let killed = kill(environment, 20, 1)?;
    show_killed(&killed, false);
    let few = ["journal-flush-error", "mail-write-error-kill", "mail-hangs", "two-servers"].map(str::to_owned);
    let held = faults(environment, &few, false)?;
    Ok(held && test.is_passed() && outcomes.iter().all(Outcome::is_clean) && killed.findings.is_empty())
}

fn faults(environment: &Environment, only: &[String], json: bool) -> Result<bool, RigError> {
    if let Some(unknown) = only.iter().find(|name| faults::ALL.iter().all(|fault| fault.name != **name)) {
        let known: Vec<&str> = faults::ALL.iter().map(|fault| fault.name).collect();
        return Err(RigError::Unavailable(format!("there is no fault {unknown}, but {}", known.join(", "))));
    }
    environment.check(&[FileSystem::Ext4])?;
    let mut rows = Vec::new();
    for fault in faults::ALL.iter().filter(|fault| only.is_empty() || only.iter().any(|name| name == fault.name)) {
        environment.go_on()?;
        let problems = fault.run(environment)?;
        if !json {
            let verdict = if problems.is_empty() { "ok" } else { "FAILED" };
            println!("{:<22} {:<6} {}", fault.name, verdict, fault.promise);
            problems.iter().for_each(|problem| println!("  {problem}"));
        }
        rows.push(serde_json::json!({ "fault": fault.name, "promise": fault.promise, "problems": problems }));
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("it has a JSON form"));
    }
    Ok(rows.iter().all(|row| row["problems"].as_array().is_some_and(Vec::is_empty)))
}

fn hostile(environment: &Environment, only: &[String], size: Size, json: bool) -> Result<bool, RigError> {
    if let Some(unknown) = only.iter().find(|name| hostile::ALL.iter().all(|case| case.name != **name)) {
        let known: Vec<&str> = hostile::ALL.iter().map(|case| case.name).collect();
        return Err(RigError::Unavailable(format!("there is no attack {unknown}, but {}", known.join(", "))));
    }
    let mut shown = Vec::new();
    for case in hostile::ALL.iter().filter(|case| only.is_empty() || only.iter().any(|name| name == case.name)) {
        environment.go_on()?;
        let outcome = case.run(environment, size)?;
        if !json {
            let verdict = if outcome.problems.is_empty() { "ok" } else { "FAILED" };
            println!(
                "{:<16} {verdict:<6} {:>4} of {:>3} MiB, honest: {:>5} messages, longest {:>4} ms; {}",
                case.name,
                outcome.memory_kib >> 10,
                outcome.memory_mib_max,
                outcome.honest_messages,
                outcome.honest_wait_ms_max,
                case.promise
            );
            outcome.problems.iter().for_each(|problem| println!("  {problem}"));
        }
        shown.push(outcome);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&shown).expect("it has a JSON form"));
    }
    Ok(shown.iter().all(|outcome| outcome.problems.is_empty()))
}

fn kill(environment: &Environment, times: u64, seed: u64) -> Result<Killed, RigError> {
    let bar = ProgressBar::new(times);
    posthaste_powercut::kill::kill(environment, times, seed, |killed| bar.set_position(killed.times))
}

fn show_killed(killed: &Killed, json: bool) {
    if json {
        println!("{}", serde_json::to_string_pretty(killed).expect("it has a JSON form"));
        return;
    }
    let Killed { times, acknowledged, lost, duplicated, half, findings } = killed;
    println!("killed {times} times: {acknowledged} acknowledged, {lost} lost, {duplicated} twice, {half} half");
    findings.iter().for_each(|finding| println!("  {finding}"));
}

fn show_self_test(test: &SelfTest, json: bool) {
    if json {
        println!("{}", serde_json::to_string_pretty(test).expect("it has a JSON form"));
        return;
    }
    let verdict = |good: bool| if good { "ok" } else { "FAILED" };
    println!("loop device passes on writes, flushes, discards: {}", verdict(test.not_passed_on.is_empty()));
    test.not_passed_on.iter().for_each(|what| println!("  {what}"));
    println!(
        "one flush forgotten: {} of {} found as a loss: {}",
        test.dropped_flushes_found,
        test.dropped_flushes,
        verdict(test.dropped_flushes_found > 0)
    );
    println!("the same cuts, no flush forgotten, lose nothing: {}", verdict(test.honest_cuts_lost == 0));
    println!("a disk that lies about every flush is found: {}", verdict(test.lying_disk_found));
    println!("replay of its kept recording finds it again: {}", verdict(test.replay_finds_it_again));
}

fn cut(plan: &Plan, environment: &Environment, keep: Option<&Path>) -> Result<Outcome, RigError> {
    let rig = Rig::new(environment, plan.file_system, DISK_BYTES)?;
    let recorded = campaign::record(&rig, plan, environment)?;
    let bar = ProgressBar::new(plan.cuts).with_prefix(plan.file_system.name());
    let style = "{prefix:>22} {bar:40} {pos}/{len} {msg} {eta}";
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
    let outcome = campaign::cut(&rig, plan, &recorded, environment, |outcome| {
        bar.set_message(format!("{} findings", outcome.findings.len()));
        bar.inc(1);
    })?;
    if let Some(dir) = keep.filter(|_| !outcome.findings.is_empty()) {
        let file = dir.join(format!("{:?}-{}.powercut", plan.file_system, plan.seed).to_lowercase());
        recorded.recording.save(&mut BufWriter::new(File::create(&file)?))?;
        for finding in outcome.findings.iter().filter(|finding| finding.again.is_none()) {
            eprintln!(
                "powercut: again: powercut replay {} --fs {:?} --seed {} --position {} --cut-seed {} --sector {}",
                file.display(),
                plan.file_system,
                plan.seed,
                finding.position,
                finding.seed,
                plan.sector
            );
        }
    }
    Ok(outcome)
}

fn show(outcomes: &[Outcome], json: bool) {
    if json {
        println!("{}", serde_json::to_string_pretty(outcomes).expect("an outcome has a JSON form"));
        return;
    }
    println!(
        "{:<34} {:<22} {:>6} {:>6} {:>8} {:>10} {:>5} {:>5} {:>5} {:>7} {:>7} {:>8} {:>8}",
        "system",
        "file system",
        "cuts",
        "again",
        "acked",
        "looked for",
        "lost",
        "twice",
        "half",
        "broken",
        "no fs",
        "writes",
        "flushes"
    );
    for o in outcomes {
        println!(
            "{:<34} {:<22} {:>6} {:>6} {:>8} {:>10} {:>5} {:>5} {:>5} {:>7} {:>7} {:>8} {:>8}",
            o.system,
            o.file_system.name(),
            o.cuts,
            o.cuts_in_recovery,
            o.acknowledged,
            o.looked_for,
            o.lost,
            o.duplicated,
            o.half,
            o.broken,
            o.unmountable,
            o.writes,
            o.flushes
        );
    }
    for (o, finding) in outcomes.iter().flat_map(|o| o.findings.iter().map(move |finding| (o, finding))) {
        let again = finding.again.map_or_else(String::new, |again| format!(", again at {again}"));
        println!(
            "{} cut at {}{again}, seed {}: {}",
            o.file_system.name(),
            finding.position,
            finding.seed,
            finding.what
        );
    }
}

const DISK_BYTES: u64 = 512 << 20;
