//! Batches as files: `<lsn>.json` says what each stream was told, `<lsn>.body` is the body as it was received.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use posthaste_delivery::local::LocalEntry;
use posthaste_spool::{ExportedBatch, Lsn};
use posthaste_transport::TransportEntry;
use serde_json::{Value, json};

/// Writes into a directory of its own.
pub struct Exporter {
    dir: PathBuf,
    stream: Option<String>,
    exported: Exported,
}

/// Result of an export.
#[derive(Default)]
pub struct Exported {
    pub batches: u64,
    /// Batches whose body could not be read, and why.
    pub damaged: Vec<(Lsn, String)>,
}

impl Exporter {
    /// Makes the directory. With the name of a stream only its entries are written.
    ///
    /// # Errors
    /// `AlreadyExists`: nothing is mixed with what is there; else those of making it.
    pub fn new(dir: &Path, stream: Option<&str>) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
        std::fs::create_dir(dir).map_err(named)?;
        Ok(Exporter { dir: dir.to_owned(), stream: stream.map(str::to_owned), exported: Exported::default() })
    }

    pub fn write(&mut self, batch: &ExportedBatch) -> io::Result<()> {
        let is_wanted = |name: &str| self.stream.as_ref().is_none_or(|wanted| wanted == name);
        let entries: Vec<Value> = batch
            .entries
            .iter()
            .filter(|(name, _)| is_wanted(name))
            .map(|(name, payload)| json!({"stream": name, "entry": entry_json(name, payload)}))
            .collect();
        if entries.is_empty() {
            return Ok(());
        }
        let lsn = batch.lsn;
        match &batch.body {
            None => {}
            Some(Ok(body)) => self.put(lsn, "body", &mut body.reader()?)?,
            Some(Err(what)) => self.exported.damaged.push((lsn, what.clone())),
        }
        let text = format!("{:#}\n", json!({"batch": lsn, "entries": entries}));
        self.put(lsn, "json", &mut text.as_bytes())?;
        self.exported.batches += 1;
        Ok(())
    }

    /// Makes the names durable: the caller may let go of the rest.
    pub fn finish(self) -> io::Result<Exported> {
        File::open(&self.dir)?.sync_all()?;
        let parent = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(self.exported)
    }

    fn put(&self, lsn: Lsn, ending: &str, content: &mut dyn io::Read) -> io::Result<()> {
        let mut file = File::create_new(self.dir.join(format!("{:020}.{ending}", lsn.get())))?;
        io::copy(content, &mut file)?;
        file.sync_all()
    }
}

/// Decodes an entry whose format is known; others are shown in hex.
fn entry_json(stream: &str, payload: &[u8]) -> Value {
    let hex = || payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    if stream == posthaste_transport::STREAM {
        return transport_json(payload).unwrap_or_else(|| json!({"hex": hex()}));
    }
    match LocalEntry::decode(payload.to_vec().into()) {
        Some(LocalEntry::Deliver(deliver)) => {
            let target = |(number, target): &(u16, posthaste_delivery::local::Target)| {
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
