//! `posthaste report`: compares or renders reports of `load --report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use posthaste_loadgen::report::{Comparison, Report, RigRun};

use crate::terminal::print;

#[derive(Subcommand)]
pub enum ReportCommand {
    /// Compare reports side by side, with ratios to the first
    Compare {
        /// Directories that --report wrote, or report.json files
        #[arg(required = true, num_args = 2..)]
        reports: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a report's files again from its report.json, optionally with results of `powercut`
    Render {
        /// A directory that --report wrote, or a report.json
        report: PathBuf,
        /// Directory for the files
        dir: PathBuf,
        /// Include the results that `powercut --json FILE` wrote, replacing those in the report
        #[arg(long, value_name = "FILE")]
        rig: Vec<PathBuf>,
    },
}

impl ReportCommand {
    pub fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error>> {
        match self {
            Self::Compare { reports, json } => {
                let named = |path: &PathBuf| Report::read(path).map(|report| (path.display().to_string(), report));
                let comparison = Comparison::new(&reports.iter().map(named).collect::<Result<Vec<_>, _>>()?);
                print(&if *json { comparison.to_json() } else { comparison.to_text() })?;
            }
            Self::Render { report, dir, rig } => {
                let mut report = Report::read(report)?;
                if !rig.is_empty() {
                    let runs = rig.iter().map(|file| RigRun::read(file)).collect::<Result<Vec<_>, _>>()?;
                    report.rig = runs.concat();
                }
                report.write_to(dir)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
