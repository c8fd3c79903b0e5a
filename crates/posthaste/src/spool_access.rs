//! Access to a spool's directory for `posthaste spool`.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use posthaste_spool::{ClosedFileSpool, Config, OpenError, StoreKind};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;

use crate::terminal::{print, print_json, without_error_numbers};

type AnyError = Box<dyn std::error::Error>;

#[derive(Args)]
pub struct Spool {
    /// The spool's directory, or the server's data directory that it is in
    #[arg(value_parser = PathBufValueParser::new().map(spool_dir))]
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn spool_dir(dir: PathBuf) -> PathBuf {
    let within = dir.join("spool");
    if within.is_dir() { within } else { dir }
}

impl Spool {
    /// Opens the spool exclusively.
    pub fn open(&self) -> Result<ClosedFileSpool, AnyError> {
        ClosedFileSpool::open(&self.dir).map_err(|error| self.named(error))
    }

    pub fn named(&self, error: OpenError) -> AnyError {
        let dir = self.dir.display();
        match error {
            OpenError::Locked => format!("{dir}: the spool is in use; stop the server first (inspect works beside it, but for an LSM tree)"),
            OpenError::NoCheckpoint => format!(
                "{dir}: neither checkpoint file can be read, so it is unknown what was delivered; keep the directory as it is, and make a new spool with \
                 `posthaste spool repair {dir} --rebuild NEW`, which delivers to every stream again all that it finds"
            ),
            error => format!("{dir}: {error}"),
        }
        .into()
    }

    pub fn print(&self, json: &Value, text: &str) -> io::Result<()> {
        if self.json { print_json(&format!("{json:#}\n")) } else { print(&without_error_numbers(text)) }
    }
}

pub fn batches(number: u64) -> String {
    if number == 1 { "1 batch".to_owned() } else { format!("{number} batches") }
}

/// Gives a process of root the identity of the spool's owner before a change, since the server could not open files of
/// root. Later threads inherit it.
pub fn become_owner(dir: &Path) -> Result<(), AnyError> {
    let at = |error: io::Error| format!("{}: {error}", dir.display());
    let owner = std::fs::metadata(dir).map_err(at)?;
    if !geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let uid = Uid::from_raw(owner.uid());
    let gid = Gid::from_raw(owner.gid());
    // In this order: without root's rights the others could not be set any more.
    let became = set_thread_groups(&[gid]).and_then(|()| set_thread_res_gid(gid, gid, gid));
    became.and_then(|()| set_thread_res_uid(uid, uid, uid)).map_err(|error| at(error.into()))?;
    Ok(())
}

/// A configuration with the kind found in the directory, without threads and with the existing segment size, as files
/// of another size would be removed. A truncated segment is no measure.
pub fn config_for(dir: &Path) -> io::Result<Config> {
    let kind = StoreKind::of(dir).unwrap_or_default();
    let mut config = Config { kind, keeper: false, ..Config::default() };
    let entries = match std::fs::read_dir(dir.join("ring")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(config),
        entries => entries?,
    };
    let mut longest = 0;
    for entry in entries {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "seg") {
            longest = entry.metadata()?.len().max(longest);
        }
    }
    if longest > 0 {
        config.ring.segment_bytes = longest;
    }
    Ok(config)
}
