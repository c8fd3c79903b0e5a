//! `posthaste doctor`: recommends changes to this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_loadgen::doctor::{Options, Severity, check};

use crate::config_arg::ConfigArg;
use crate::doctor_cluster;
use crate::queue::ServerArgs;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DoctorArgs {
    #[command(subcommand)]
    part: Option<DoctorPart>,
    /// Directory for the mail or the measurements [default: the configuration's, or . where that is not there yet]
    #[arg(value_name = "DIR")]
    data: Option<PathBuf>,
    /// Simultaneous connections to plan for [default: the configuration's limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    connections: Option<u64>,
    #[command(flatten)]
    config: ConfigArg,
    /// Number of fdatasync calls to measure; 0 for none
    #[arg(long, value_name = "N", default_value_t = 200)]
    syncs: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum DoctorPart {
    /// Check the cluster that a running server is a node of: engine, shards, members, nodes; exit status 1 for a red line
    Cluster {
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Exit status 1 for a serious finding.
pub fn run(args: DoctorArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Some(DoctorPart::Cluster { server }) = args.part {
        return doctor_cluster::run(&server);
    }
    // The same that `serve` would read.
    let config = args.config.load()?.config;
    let configured = Some(config.storage.data).filter(|data| data.is_dir());
    let data = args.data.or(configured).unwrap_or_else(|| ".".into());
    let connections = args.connections.unwrap_or(config.limits.connections.connections as u64);
    let report = check(&Options { connections, syncs: args.syncs, ..Options::new(data) });
    super::print(&if args.json { report.to_json() } else { report.to_text() })?;
    Ok(ExitCode::from(u8::from(report.severity() == Severity::Serious)))
}
