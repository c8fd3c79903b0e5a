//! A relaying server, under kills and power cuts.

pub mod cuts;
mod doubles;
pub mod hop;
pub mod kills;
pub mod known;
pub(crate) mod notices;
mod queue;
mod sink;
mod told;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::Value;

/// Number of delivery records in the event log for each recipient, by the numbers of message and recipient.
pub(crate) fn recorded(events: &Path) -> io::Result<BTreeMap<(u64, u64), u64>> {
    told(events, "delivered")
}

/// Like [`recorded`], for another event.
pub(crate) fn told(events: &Path, event: &str) -> io::Result<BTreeMap<(u64, u64), u64>> {
    let mut recorded = BTreeMap::new();
    for entry in std::fs::read_dir(events)? {
        for line in lines(&entry?.path())?.into_iter().filter(|line| line["event"] == event) {
            let message = line["message"].as_str().and_then(|message| message.parse().ok());
            if let (Some(message), Some(target)) = (message, line["relay_target"].as_u64()) {
                *recorded.entry((message, target)).or_default() += 1;
            }
        }
    }
    Ok(recorded)
}

/// The whole lines of a file of JSON.
pub(crate) fn lines(file: &Path) -> io::Result<Vec<Value>> {
    let text = std::fs::read(file)?;
    let whole = text.iter().rposition(|octet| *octet == b'\n').map_or(0, |at| at + 1);
    Ok(lines_of(&text[..whole]).collect())
}

fn lines_of(text: &[u8]) -> impl Iterator<Item = Value> {
    text.split(|octet| *octet == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}
