//! `posthaste doctor`: what of this machine is worth changing.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use posthaste_loadgen::doctor::{Options, Severity, check};

#[derive(Args)]
pub struct DoctorArgs {
    /// Directory that mail or measurements will lie in
    #[arg(default_value = ".", value_name = "DIR")]
    data: PathBuf,
    /// Connections that should be possible at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    connections: u64,
    /// How often an fdatasync is measured; 0 for not at all
    #[arg(long, value_name = "N", default_value_t = 200)]
    syncs: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit status 1 if anything is serious.
pub fn run(args: DoctorArgs) -> std::io::Result<ExitCode> {
    let report = check(&Options { connections: args.connections, syncs: args.syncs, ..Options::new(args.data) });
    super::print(&if args.json { report.to_json() } else { report.to_text() })?;
    Ok(ExitCode::from(u8::from(report.severity() == Severity::Serious)))
}
