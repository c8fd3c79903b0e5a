//! `posthaste spool import`: makes a spool from what `export` wrote.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use posthaste_spool::{ExportedEntry, ExportedStreams, ImportedBatch, Lsn, OpenError, SpoolImport, StoreKind};
use serde::Deserialize;
use serde_json::json;

use crate::progress::progress_bar;
use crate::spool_access::{batches, become_owner};
use crate::spool_export::{MOUNTS, SNAPSHOTS, STREAMS};
use crate::terminal::{print, print_json};

type AnyError = Box<dyn std::error::Error>;

/// A batch as `export` writes it. What it shows for people is left aside.
#[derive(Deserialize)]
struct Batch {
    batch: Lsn,
    front_bytes: u32,
    entries: Vec<ExportedEntry>,
}

pub fn import(from: &Path, to: &Path, kind: StoreKind, is_json: bool) -> Result<ExitCode, AnyError> {
    let streams = streams(from)?;
    let files = batch_files(from)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    become_owner(parent)?;
    let begun = SpoolImport::begin(to, kind, &streams).map_err(|error| match error {
        OpenError::Locked => format!("{}: another import works there", to.display()),
        OpenError::Io(error) => format!("{}: {error}", to.display()),
        error => format!("{}: {error}", to.display()),
    });
    let mut spool = begun?;
    for row in streams.streams.iter().flat_map(|stream| &stream.snapshots).filter(|row| row.is_file) {
        let path = from.join(SNAPSHOTS).join(&row.name);
        let name = row.name().ok_or_else(|| format!("{}: not a valid name", path.display()))?;
        let copied = File::open(&path).and_then(|mut content| spool.snapshot(&name, &mut content));
        copied.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let bar = progress_bar();
    bar.set_message("reading batches");
    bar.set_length(files.len() as u64);
    for path in &files {
        put(&mut spool, path).map_err(|error| format!("{}: {error}", path.display()))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    copy_mounts(from, to)?;
    spool.finish().map_err(|error| format!("{}: {error}", to.display()))?;
    if is_json {
        print_json(&format!("{:#}\n", json!({"imported": files.len(), "spool": to, "kind": kind})))?;
    } else {
        print(&format!("imported {} to {}, a spool of the kind {kind}\n", batches(files.len() as u64), to.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn streams(from: &Path) -> Result<ExportedStreams, AnyError> {
    let path = from.join(STREAMS);
    let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{}: not an export of all streams that has ended without damage: `posthaste spool repair --give-up-damaged` gives up what cannot be read",
            from.display()
        ),
        _ => format!("{}: {error}", path.display()),
    })?;
    Ok(serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// The batches by their numbers: names have leading zeros.
fn batch_files(from: &Path) -> Result<Vec<PathBuf>, AnyError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        let is_number =
            |stem: &std::ffi::OsStr| stem.to_str().is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
        if path.extension().is_some_and(|ending| ending == "json") && path.file_stem().is_some_and(is_number) {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn put(spool: &mut SpoolImport, path: &Path) -> Result<(), AnyError> {
    let batch: Batch = serde_json::from_slice(&std::fs::read(path)?)?;
    let mut body = match File::open(path.with_extension("body")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        body => Some(body?),
    };
    let len = body.as_ref().map_or(Ok(0), |body| body.metadata().map(|found| found.len()))?;
    let body = body.as_mut().map(|body| (body as &mut dyn io::Read, len));
    let Batch { batch: lsn, front_bytes: front_len, entries } = batch;
    Ok(spool.batch(ImportedBatch { lsn, entries, front_len, body })?)
}

/// The ids of mail mounts: without them the next start would take those that it finds.
fn copy_mounts(from: &Path, to: &Path) -> Result<(), AnyError> {
    let bytes = match std::fs::read(from.join(MOUNTS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bytes => bytes?,
    };
    for name in [MOUNTS, "mounts.copy"] {
        let file = File::create(to.join(name))?;
        io::Write::write_all(&mut &file, &bytes)?;
        file.sync_all()?;
    }
    Ok(())
}
