//! Batches as files: `<lsn>.json` has the streams' entries, `<lsn>.body` the body as received.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use posthaste_delivery::local::{BoundMounts, LocalEntry};
use posthaste_fsops::{put_in_place, unfinished};
use posthaste_spool::{ClosedFileSpool, ClosedSpool, Damage, ExportedBatch, ExportedEntry, Lsn};
use posthaste_transport::TransportEntry;
use serde_json::{Value, json};

use crate::new_file::{new_dir, new_file};
use crate::spool_export_dir::begin;
use crate::spool_manifest::{MANIFEST, MOUNTS, Manifest, SNAPSHOTS, STREAMS};

/// Writes into its own directory.
pub struct Exporter {
    dir: PathBuf,
    manifest: Manifest,
    /// The manifest's file, empty and locked until the end.
    unfinished: File,
    /// Files whose bytes are not durable yet.
    unsynced: Vec<File>,
    stream: Option<String>,
    exported: Exported,
}

/// Result of an export.
#[derive(Default)]
pub struct Exported {
    pub batches: u64,
    /// Damage to the exported data, with the batch if known.
    pub damaged: Vec<(Option<Lsn>, String)>,
}

impl Exporter {
    /// Creates the directory, or restarts an interrupted export in it. With the name of a stream, writes only the
    /// entries of that stream.
    ///
    /// # Errors
    /// `AlreadyExists` if the directory has other files; `WouldBlock` while another export uses it; errors of creating
    /// it.
    pub fn new(dir: &Path, stream: Option<&str>) -> io::Result<Self> {
        let unfinished =
            begin(dir).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", dir.display())))?;
        let manifest = Manifest::default();
        let stream = stream.map(str::to_owned);
        let exported = Exported::default();
        Ok(Exporter { dir: dir.to_owned(), manifest, unfinished, unsynced: Vec::new(), stream, exported })
    }

    pub fn write(&mut self, batch: &ExportedBatch) -> io::Result<()> {
        let is_wanted = |name: &str| self.stream.as_ref().is_none_or(|wanted| wanted == name);
        let shown = |entry: &ExportedEntry| -> io::Result<Value> {
            let mut shown = serde_json::to_value(entry)?;
            shown["entry"] = entry_json(&entry.stream, &entry.payload);
            Ok(shown)
        };
        let wanted = batch.entries.iter().filter(|entry| is_wanted(&entry.stream));
        let entries = wanted.map(shown).collect::<io::Result<Vec<Value>>>()?;
        if entries.is_empty() {
            return Ok(());
        }
        let lsn = batch.lsn;
        match &batch.body {
            None => {}
            Some(Ok(body)) => self.put(lsn, "body", &mut body.reader()?)?,
            Some(Err(what)) => self.exported.damaged.push((Some(lsn), what.clone())),
        }
        let text = format!("{:#}\n", json!({"batch": lsn, "front_bytes": batch.front_len, "entries": entries}));
        self.put(lsn, "json", &mut text.as_bytes())?;
        self.exported.batches += 1;
        Ok(())
    }

    /// Writes the files that an import needs beside the batches: the streams, their snapshots, the ids of mail mounts.
    ///
    /// Call it only without damage: an export without the file of the streams cannot be imported.
    ///
    /// # Errors
    /// Errors of reading and writing; a damaged snapshot.
    pub fn write_streams(&mut self, closed: &ClosedFileSpool, spool: &Path) -> io::Result<()> {
        let streams = closed.streams();
        let snapshots = self.dir.join(SNAPSHOTS);
        new_dir(&snapshots)?;
        for row in streams.streams.iter().flat_map(|stream| &stream.snapshots).filter(|row| row.is_file) {
            let name = row.name().ok_or(io::ErrorKind::InvalidData)?;
            let damaged =
                |error| io::Error::other(format!("snapshots/{} {error}; run `posthaste spool repair`", row.name));
            let mut content = closed.snapshot(&name).map_err(damaged)?;
            self.put_file(format!("{SNAPSHOTS}/{}", row.name), &mut content)?;
        }
        File::open(&snapshots)?.sync_all()?;
        match BoundMounts::read(spool) {
            Ok(mounts) => {
                if let Some(text) = mounts.text() {
                    self.put_file(MOUNTS.to_owned(), &mut text.as_bytes())?;
                }
            }
            // A list that nobody can read tells the next start that there was one: it takes no mount on trust.
            Err(_) => self.put_file(MOUNTS.to_owned(), &mut &b"lost\n"[..])?,
        }
        let text = format!("{:#}\n", serde_json::to_value(&streams)?);
        self.put_file(STREAMS.to_owned(), &mut text.as_bytes())
    }

    /// Records needed batches missing in the export, and damage found when the spool was opened.
    pub fn note_lost(&mut self, closed: &ClosedFileSpool, lost: &[Lsn], found: &[Damage]) {
        let stream = self.stream.clone();
        let is_of_it = |lsn: Lsn| {
            let needed_by = closed.needed_by(lsn);
            // Nobody knows who needs a batch that no checkpoint tells of.
            needed_by.is_empty() || stream.as_ref().is_none_or(|name| needed_by.contains(&name.as_str()))
        };
        let is_new = |lsn: &Lsn| found.iter().all(|damage| damage.lsn != Some(*lsn));
        let lost = lost.iter().copied().filter(|lsn| is_of_it(*lsn) && is_new(lsn));
        self.exported.damaged.extend(lost.map(|lsn| (Some(lsn), "its head is damaged".to_owned())));
        let found = found.iter().filter(|damage| damage.lsn.is_none_or(is_of_it));
        let told = found.map(|damage| (damage.lsn, format!("{}: {}", damage.place, damage.what)));
        self.exported.damaged.extend(told);
    }

    /// True if something could not be exported.
    pub fn is_damaged(&self) -> bool {
        !self.exported.damaged.is_empty()
    }

    /// Writes the manifest and makes everything durable, so that the caller may drop the exported data.
    pub fn finish(mut self) -> io::Result<Exported> {
        // A power cut keeps no manifest without the files.
        self.sync()?;
        File::open(&self.dir)?.sync_all()?;
        let manifest = self.dir.join(MANIFEST);
        posthaste_fsops::write_all(&self.unfinished, self.manifest.text().as_bytes())?;
        put_in_place(&self.unfinished, &unfinished(&manifest), &manifest)?;
        let parent = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(self.exported)
    }

    fn put(&mut self, lsn: Lsn, ending: &str, content: &mut dyn io::Read) -> io::Result<()> {
        self.put_file(format!("{:020}.{ending}", lsn.get()), content)
    }

    fn put_file(&mut self, name: String, content: &mut dyn io::Read) -> io::Result<()> {
        let mut file = new_file(&self.dir.join(&name))?;
        self.manifest.copy(name, content, &mut file)?;
        self.unsynced.push(file);
        if self.unsynced.len() < UNSYNCED_MAX { Ok(()) } else { self.sync() }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.unsynced.drain(..).try_for_each(|file| file.sync_all())
    }
}

/// Files kept open until they are synced: on a file system with a journal, the first sync covers the others, too.
const UNSYNCED_MAX: usize = 256;

/// Decodes an entry whose format is known; others are shown in hex.
fn entry_json(stream: &str, payload: &[u8]) -> Value {
    let hex = || payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    if stream == posthaste_transport::STREAM {
        return transport_json(payload).unwrap_or_else(|| json!({"hex": hex()}));
    }
    match LocalEntry::decode(payload.to_vec().into()) {
        Some(LocalEntry::Deliver(deliver)) => {
            let target = |(number, target): &(u16, posthaste_delivery::local::MailboxTarget)| {
                json!({
                    "number": number, "mailbox": &*target.mailbox, "in_front": String::from_utf8_lossy(&target.prefix),
                })
            };
            let targets: Vec<Value> = deliver.targets.iter().map(target).collect();
            json!({"deliver": {"received": deliver.secs, "targets": targets}})
        }
        Some(LocalEntry::Trouble(trouble)) => json!({"trouble": {
            "mailbox": &*trouble.mailbox, "attempts": trouble.attempts, "next_try": trouble.next_try_secs, "error": &*trouble.error,
        }}),
        _ => json!({"hex": hex()}),
    }
}

/// Decodes a message for transports, with its recipients.
fn transport_json(payload: &[u8]) -> Option<Value> {
    let TransportEntry::Deliver(deliver) = TransportEntry::decode(payload.to_vec().into())? else { return None };
    let targets: Vec<Value> = deliver
        .targets
        .iter()
        .map(|(number, target)| {
            json!({
                "number": number, "transport": &*target.transport, "recipient": &*target.recipient,
                "original_recipient": &*target.original,
            })
        })
        .collect();
    Some(json!({"deliver": {"received": deliver.secs, "sender": &*deliver.sender, "targets": targets}}))
}
