//! `posthaste report`: what `load --report` wrote, looked at again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use posthaste_loadgen::report::{Comparison, Report};

use crate::print;

#[derive(Subcommand)]
pub enum ReportCommand {
    /// Put reports side by side, with ratios to the first
    Compare {
        /// Directories that --report wrote, or report.json files
        #[arg(required = true, num_args = 2..)]
        reports: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make report.md and report.html again from a report.json
    Render {
        /// A directory that --report wrote, or a report.json
        report: PathBuf,
        /// Where the files go
        dir: PathBuf,
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
            Self::Render { report, dir } => Report::read(report)?.write_to(dir)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
