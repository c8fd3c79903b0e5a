//! `posthaste-bench`: options in, tables out.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use clap::Parser;
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};
use posthaste_bench::report::Report;
use posthaste_bench::run::{Step, run};
use posthaste_bench::suite::{Settings, Suite};
use posthaste_bench::{LONG_SUITES, SUITES, checks};
use posthaste_loadgen::scratch::Scratch;
use posthaste_loadgen::signals::stop_on_signals;
use posthaste_loadgen::values::duration;

/// Runs published mail benchmarks with Posthaste and other installed software, beside the published figures.
///
/// Everything runs on loopback in a scratch directory, which is removed at the end. Sides run in alternating rounds.
/// Exit status: 0 done, 1 a side failed or the run was stopped, 2 this machine cannot measure anything.
#[derive(Parser)]
#[command(name = "posthaste-bench", version)]
struct Bench {
    /// Suites to run
    #[arg(required = true, value_name = "SUITE", value_parser = suite_names())]
    suites: Vec<String>,
    /// Small amounts, one round, less than three minutes for all: shows that everything works, and orders of magnitude
    #[arg(long)]
    quick: bool,
    /// Fraction of the published amount of messages or time [default: 1, with --quick 0.03]
    #[arg(long, value_name = "FACTOR", value_parser = scale)]
    scale: Option<f64>,
    /// Rounds of each side, alternating [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Time limit of one side's round [default: 60s, with --quick 1s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    round_max: Option<Duration>,
    /// Only these workloads: names separated by commas, `*` for any characters; repeatable
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these sides, selected in the same way
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    side: Vec<String>,
    /// The posthaste program to measure; default: the one beside this program
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Add this file to the configuration of our server in suites that relay, for shaping and the like
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to create the scratch directory; must be on a real disk
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Keep the scratch directory and print its path
    #[arg(long)]
    keep: bool,
    /// Measure even if this machine is unsuitable
    #[arg(long)]
    force: bool,
    /// Write bench.json, bench.md and bench.html here, and a report of each load round
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// List suites, workloads and sides instead of running them
    #[arg(long)]
    list: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Print no progress
    #[arg(short = 'q', long)]
    quiet: bool,
}

const ALL: &str = "all";
/// Connections of the widest workload.
const CONNECTIONS: u64 = 10_000;

fn suite_names() -> PossibleValuesParser {
    SUITES.iter().chain(LONG_SUITES).map(|suite| suite.name).chain([ALL]).collect::<Vec<_>>().into()
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.0001..=100.0).contains(&scale) => Ok(scale),
        _ => Err("write a factor from 0.0001 to 100".into()),
    }
}

/// As in `posthaste`: the parts measured in this process use the same allocator as there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Bench::parse().run().unwrap_or_else(|error| {
        eprintln!("posthaste-bench: {error}");
        ExitCode::from(2)
    })
}

/// Prints to standard output. A closed pipe is no error.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

impl Bench {
    fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error>> {
        let suites = self.suites();
        let settings = self.settings()?;
        if self.list {
            print(&list(&suites, &settings))?;
            return Ok(ExitCode::SUCCESS);
        }
        settings.check_names(&suites)?;
        if !settings.program.is_file() {
            let missing = settings.program.display();
            return Err(format!(
                "there is no {missing}: build it (cargo build --profile dist -p posthaste), or name it with --server"
            )
            .into());
        }
        if let Some(dir) = &self.report {
            std::fs::create_dir_all(dir).map_err(|error| format!("--report {}: {error}", dir.display()))?;
        }
        stop_on_signals(&settings.stop)?;
        let started = SystemTime::now();
        let found = checks::look(&self.dir, CONNECTIONS);
        if let Some(why) = found.forbids.filter(|_| !self.force) {
            return Err(format!("{why}; --force measures all the same").into());
        }
        let scratch = Scratch::new_in(&self.dir).map_err(|error| format!("{}: {error}", self.dir.display()))?;
        let bar = self.progress();
        let results = run(&suites, &settings, scratch.path(), &mut |step| show(&bar, step));
        bar.finish_and_clear();
        let report = Report::new(results, &settings, started, found.found);
        print(&if self.json { report.to_json() } else { report.to_markdown() })?;
        if self.keep {
            eprintln!("posthaste-bench: everything is left in {}", scratch.keep().display());
        }
        if let Some(dir) = &self.report {
            report.write_to(dir).map_err(|error| format!("--report {error}"))?;
        }
        Ok(ExitCode::from(u8::from(!report.is_good())))
    }

    fn suites(&self) -> Vec<&'static Suite> {
        let is_named = |suite: &&Suite| self.suites.iter().any(|name| name == suite.name);
        let all = self.suites.iter().any(|name| name == ALL);
        SUITES.iter().filter(|suite| all || is_named(suite)).chain(LONG_SUITES.iter().filter(is_named)).collect()
    }

    fn settings(&self) -> std::io::Result<Settings> {
        let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("posthaste"));
        let program = self.server.as_deref().map_or_else(beside, std::path::absolute)?;
        let whole = Settings::new(program);
        let (scale, rounds, round_max) =
            if self.quick { (0.03, 1, Duration::from_secs(1)) } else { (whole.scale, whole.rounds, whole.round_max) };
        Ok(Settings {
            scale: self.scale.unwrap_or(scale),
            rounds: self.rounds.unwrap_or(rounds),
            round_max: self.round_max.unwrap_or(round_max),
            warms_memory: !self.quick,
            config: self.config.clone(),
            command: std::iter::once("posthaste-bench".to_owned()).chain(std::env::args().skip(1)).collect(),
            only: self.only.clone(),
            sides: self.side.clone(),
            report: self.report.clone(),
            stop: Arc::new(AtomicBool::new(false)),
            ..whole
        })
    }

    fn progress(&self) -> ProgressBar {
        if self.quiet || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{elapsed_precise}  {msg}").expect("the template is right"));
        bar.enable_steady_tick(Duration::from_millis(500));
        bar
    }
}

fn show(bar: &ProgressBar, step: Step<'_>) {
    let Step { suite, workload, side, round, rounds } = step;
    bar.set_message(match round {
        0 => format!("{suite} {workload}: starting {side}"),
        _ => format!("{suite} {workload}: round {round} of {rounds}, {side}"),
    });
}

fn list(suites: &[&Suite], settings: &Settings) -> String {
    let mut text = String::new();
    for suite in suites {
        text += &format!("{}: {}\n", suite.name, suite.about);
        for workload in (suite.workloads)(settings) {
            let sides: Vec<&str> = workload.sides.iter().map(|side| side.name).collect();
            text += &format!("  {:<20} {}\n  {:<20} {}\n", workload.name, workload.what, "", sides.join(" | "));
        }
    }
    text
}
