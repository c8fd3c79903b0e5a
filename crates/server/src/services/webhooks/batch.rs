//! Lines of the log as the body of a request.

use std::io;
use std::time::SystemTime;

use posthaste_events::read::{Next, Reader};
use posthaste_spool::Lsn;
use serde::Deserialize;

use super::place::Place;

/// Events posted in one request.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// A JSON array.
    pub body: Vec<u8>,
    pub events: usize,
    /// The position after its last line.
    pub through: Place,
    /// Files that were lost or damaged before they were read completely.
    pub missing_files: u64,
}

/// The needed parts of a line.
#[derive(Deserialize)]
struct Line<'a> {
    lsn: Lsn,
    #[serde(borrow)]
    event: std::borrow::Cow<'a, str>,
}

/// Reads from a position: at most `events_max` wanted events, and about [`BODY_BYTES_MAX`]. Empty if there are none
/// now.
pub(super) fn read(reader: &mut Reader, from: Place, wanted: &[String], events_max: usize) -> io::Result<Batch> {
    let mut batch = Batch { body: b"[".to_vec(), through: from, ..Batch::default() };
    let mut line = Vec::new();
    let mut lines = 0;
    while batch.events < events_max && batch.body.len() < BODY_BYTES_MAX && lines < LINES_MAX {
        match reader.next(&mut line)? {
            Next::End => break,
            Next::Gap { from, to } => batch.put_gap(from, to),
            Next::Damaged { file } => batch.put_gap(file, file + 1),
            Next::Line => batch.put_line(&line, wanted),
        }
        lines += 1;
        let cursor = reader.cursor();
        (batch.through.file, batch.through.offset) = (cursor.file, cursor.offset);
    }
    batch.body.push(b']');
    Ok(batch)
}

impl Batch {
    /// Skips a line that is not an event, which another program must have written.
    fn put_line(&mut self, line: &[u8], wanted: &[String]) {
        let Ok(Line { lsn, event }) = serde_json::from_slice(line) else { return };
        let before = if lsn == self.through.lsn { self.through.index } else { 0 };
        (self.through.lsn, self.through.index) = (lsn, before + 1);
        if !wanted.is_empty() && !wanted.iter().any(|wanted| *wanted == event) {
            return;
        }
        self.begin();
        self.body.extend_from_slice(format!("{{\"event_id\":\"{lsn}.{before}\",").as_bytes());
        let rest = line.trim_ascii().strip_prefix(b"{").unwrap_or_default();
        self.body.extend_from_slice(rest);
    }

    fn put_gap(&mut self, from: u64, to: u64) {
        self.begin();
        self.missing_files += to - from;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let time = posthaste_message::DateTime::from_unix(since.cast_signed()).to_string();
        let gap = serde_json::json!({
            "event_id": format!("files.{from}-{}", to - 1),
            "noticed": time,
            "event": "left_out",
            "files": to - from,
        });
        self.body.extend_from_slice(gap.to_string().as_bytes());
    }

    fn begin(&mut self) {
        if self.events > 0 {
            self.body.push(b',');
        }
        self.events += 1;
    }
}

/// Beyond, the next event is for the next request.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum unwanted lines read at once.
const LINES_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use posthaste_events::{Cursor, file_name};
    use serde_json::Value;

    use super::*;

    #[test]
    fn lines_have_ids_that_stay_the_same_however_they_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let line = |lsn: u64, event: &str| format!("{{\"lsn\":\"{lsn}\",\"event\":\"{event}\"}}\n");
        let text =
            [line(5, "received"), line(7, "bounced"), line(7, "delivered"), line(7, "bounced"), line(9, "bounced")];
        std::fs::write(dir.path().join(file_name(2)), format!("{}no event\n{}", text[0], text[1..].concat())).unwrap();
        let wanted = ["bounced".to_owned()];
        for events_max in [1, 2, 3, 100] {
            let mut reader = Reader::new(dir.path(), Cursor { file: 1, offset: 0 });
            let (mut place, mut ids) = (Place { file: 1, ..Place::default() }, Vec::new());
            loop {
                let batch = read(&mut reader, place, &wanted, events_max).unwrap();
                if batch.events == 0 {
                    break;
                }
                let events: Vec<Value> = serde_json::from_slice(&batch.body).unwrap();
                assert_eq!(events.len(), batch.events);
                ids.extend(events.iter().map(|event| event["event_id"].as_str().unwrap().to_owned()));
                assert_eq!(batch.missing_files == 1, ids.len() <= events_max && place.file == 1);
                place = batch.through;
                // As after a restart.
                reader = Reader::new(dir.path(), place.cursor());
            }
            assert_eq!(ids, ["files.1-1", "7.0", "7.2", "9.0"], "{events_max} at once");
        }
    }
}
