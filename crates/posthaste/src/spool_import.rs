//! `posthaste spool import`: makes a spool from what `export` wrote.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use posthaste_spool::{ExportedEntry, ExportedStreams, ImportedBatch, Lsn, OpenError, SpoolImport, StoreKind};
use serde::Deserialize;
use serde_json::json;

use crate::new_file::new_file;
use crate::progress::progress_bar;
use crate::spool_access::{batches, become_owner};
use crate::spool_export_files::ExportFiles;
use crate::spool_manifest::{MOUNTS, Manifest, SNAPSHOTS, STREAMS};
use crate::terminal::{print, print_json};

type AnyError = Box<dyn std::error::Error>;

/// A batch in the format of `export`. Fields for display are ignored.
#[derive(Deserialize)]
struct Batch {
    batch: Lsn,
    front_bytes: u32,
    entries: Vec<ExportedEntry>,
}

pub fn import(from: &Path, to: &Path, kind: StoreKind, is_json: bool) -> Result<ExitCode, AnyError> {
    let manifest = verified(from)?;
    let files = ExportFiles::new(from);
    let streams: ExportedStreams = files.json(STREAMS)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    become_owner(parent)?;
    let begun = SpoolImport::begin(to, kind, &streams).map_err(|error| match error {
        OpenError::Locked => format!("{}: another import works there", to.display()),
        OpenError::Io(error) => format!("{}: {error}", to.display()),
        error => format!("{}: {error}", to.display()),
    });
    let mut spool = begun?;
    for row in streams.streams.iter().flat_map(|stream| &stream.snapshots).filter(|row| row.is_file) {
        let file = format!("{SNAPSHOTS}/{}", row.name);
        let name = row.name().ok_or_else(|| files.named(&file, "not a valid name"))?;
        let mut content = Source::open(&files, &file)?;
        let copied = spool.snapshot(&name, &mut content);
        copied.map_err(|error| blamed(&files, &file, Some(&content), to, &error))?;
    }
    let names: Vec<&str> = manifest.names().filter(|name| is_batch(name)).collect();
    let bar = progress_bar();
    bar.set_message("reading batches");
    bar.set_length(names.len() as u64);
    for name in &names {
        put(&mut spool, &manifest, &files, to, name)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if manifest.bytes_of(MOUNTS).is_some() {
        put_mounts(&files.read(MOUNTS)?, to).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    spool.finish().map_err(|error| format!("{}: {error}", to.display()))?;
    if is_json {
        print_json(&format!("{:#}\n", json!({"imported": names.len(), "spool": to, "kind": kind})))?;
    } else {
        print(&format!("imported {} to {}, a spool of the kind {kind}\n", batches(names.len() as u64), to.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The manifest of an export of all streams, after all files were compared with it.
fn verified(from: &Path) -> Result<Manifest, AnyError> {
    let at = |error: io::Error| format!("{}: {error}", from.display());
    std::fs::read_dir(from).map_err(at)?;
    let manifest = Manifest::read(from).map_err(at)?.ok_or_else(|| {
        format!("{}: not a complete export: repeat `posthaste spool export` if it was cut short", from.display())
    })?;
    if manifest.bytes_of(STREAMS).is_none() {
        return Err(format!(
            "{}: not a complete export of all streams without damage: `posthaste spool repair --give-up-damaged` gives up what cannot be read",
            from.display()
        )
        .into());
    }
    let bar = progress_bar();
    bar.set_message("verifying bytes");
    bar.set_length(manifest.bytes());
    manifest.verify(from, &mut |bytes| bar.inc(bytes)).map_err(at)?;
    bar.finish_and_clear();
    Ok(manifest)
}

fn is_batch(name: &str) -> bool {
    name.strip_suffix(".json").is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()))
}

fn put(
    spool: &mut SpoolImport,
    manifest: &Manifest,
    files: &ExportFiles,
    to: &Path,
    name: &str,
) -> Result<(), AnyError> {
    let Batch { batch: lsn, front_bytes: front_len, entries } = files.json(name)?;
    let body_name = name.replace(".json", ".body");
    let mut source = None;
    let body = match manifest.bytes_of(&body_name) {
        Some(len) => {
            let file = source.insert(Source::open(files, &body_name)?);
            Some((file as &mut dyn io::Read, len))
        }
        None => None,
    };
    let put = spool.batch(ImportedBatch { lsn, entries, front_len, body });
    put.map_err(|error| blamed(files, name, source.as_ref(), to, &error))
}

/// A file of the export. It records a read error, because the import reports read and write errors alike.
struct Source {
    file: File,
    has_failed: bool,
}

impl Source {
    fn open(files: &ExportFiles, name: &str) -> Result<Self, AnyError> {
        let file = files.open(name).map_err(|error| files.named(name, error))?;
        Ok(Source { file, has_failed: false })
    }
}

impl io::Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = io::Read::read(&mut self.file, buffer);
        self.has_failed |= read.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        read
    }
}

/// Adds the export's file to an error, if that is unreadable or invalid; else the new spool.
fn blamed(files: &ExportFiles, name: &str, source: Option<&Source>, to: &Path, error: &io::Error) -> AnyError {
    let is_wrong = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
    if is_wrong || source.is_some_and(|source| source.has_failed) {
        return files.named(name, error);
    }
    format!("{}: {error}", to.display()).into()
}

/// Writes the ids of mail mounts: without them the next start would accept any.
fn put_mounts(bytes: &[u8], to: &Path) -> io::Result<()> {
    for name in [MOUNTS, "mounts.copy"] {
        let mut file = new_file(&to.join(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    Ok(())
}
