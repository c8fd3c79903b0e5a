//! The last deferral of each recipient of one message: searched in the log's files from the newest back.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Read};
use std::path::Path;

use posthaste_spool::Lsn;
use serde::Deserialize;

use crate::files::{Cursor, numbers};
use crate::read::{LINE_BYTES_MAX, open_at};

/// Why a recipient was deferred, from its line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Deferral {
    /// Number of the recipient within the message.
    #[serde(rename = "relay_target")]
    pub number: u16,
    /// The host of the reply; empty for none.
    #[serde(default)]
    pub host: String,
    /// The reply, its lines with LF between them.
    #[serde(default)]
    pub reply: String,
    /// The class of the reply; empty for none.
    #[serde(default)]
    pub class: String,
}

/// Why a deferral was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// All lines since the message was received were read.
    #[error("it is not in the event log")]
    Absent,
    /// Older files were removed.
    #[error("the event log does not reach back that far")]
    Gone,
    /// Not found within the limit of lines read.
    #[error("it is not in the newest {} GiB of the event log", BYTES_MAX >> 30)]
    TooFar,
    /// The files are unreadable, or one of them is damaged.
    #[error("the event log cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// The last deferral of each recipient in `wanted` of `message`, by number, and the reason if some are missing. Reads
/// files from the newest back until all are found, the message's arrival is reached, or 2 GiB of lines were read.
/// Works with or without a running server. Blocks, for seconds if the files are large.
pub fn last_deferrals(dir: &Path, message: Lsn, wanted: HashSet<u16>) -> (HashMap<u16, Deferral>, Option<Missing>) {
    let mut found = HashMap::new();
    let missing = look(dir, message, wanted, BYTES_MAX, &mut found).err();
    (found, missing)
}

fn look(
    dir: &Path,
    message: Lsn,
    mut wanted: HashSet<u16>,
    bytes_max: u64,
    found: &mut HashMap<u16, Deferral>,
) -> Result<(), Missing> {
    // It follows the time of each line. Quotes within a text are escaped, so it stands for nothing else.
    let key = format!(",\"event\":\"deferred\",\"message\":\"{message}\",\"relay_target\":");
    let is_of_it = |line: &[u8]| {
        let head = &line[..line.len().min(HEAD_BYTES + key.len())];
        head.windows(key.len()).any(|window| window == key.as_bytes())
    };
    let mut bytes = 0;
    let all = numbers(dir)?;
    let newest = all.last().copied();
    for file in all.into_iter().rev() {
        if wanted.is_empty() {
            return Ok(());
        }
        if bytes >= bytes_max {
            return Err(Missing::TooFar);
        }
        let Some((mut lines, _)) = open_at(dir, Cursor { file, offset: 0 })? else { return Err(Missing::Gone) };
        // Later lines count, so a file is read to its end.
        let mut here = HashMap::new();
        let mut line = Vec::new();
        let mut first_lsn = None;
        loop {
            line.clear();
            bytes += (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? as u64;
            if line.is_empty() || !line.ends_with(b"\n") && Some(file) == newest {
                break;
            }
            if !line.ends_with(b"\n") {
                let what = "a line has no end, or is too long";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
            }
            if first_lsn.is_none() {
                first_lsn = Some(lsn_of(&line));
            }
            if is_of_it(&line)
                && let Ok(deferral) = serde_json::from_slice::<Deferral>(&line)
                && wanted.contains(&deferral.number)
            {
                here.insert(deferral.number, deferral);
            }
        }
        wanted.retain(|number| !here.contains_key(number));
        found.extend(here);
        if first_lsn.flatten().is_some_and(|lsn| lsn <= message) {
            return if wanted.is_empty() { Ok(()) } else { Err(Missing::Absent) };
        }
    }
    if wanted.is_empty() { Ok(()) } else { Err(Missing::Gone) }
}

/// Lines are in the order of these numbers.
fn lsn_of(line: &[u8]) -> Option<Lsn> {
    #[derive(Deserialize)]
    struct Line {
        lsn: Lsn,
    }
    serde_json::from_slice::<Line>(line).ok().map(|line| line.lsn)
}

/// In front of the event a line has its LSN and its time.
const HEAD_BYTES: usize = 80;
/// Lines that are read, but for the rest of a file.
const BYTES_MAX: u64 = 2 << 30;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::event::{Event, EventKind, OfRelay, RelayFate};
    use crate::files::{file_name, packed_name};
    use crate::pack::pack;

    /// The lines of an attempt, as the log has them.
    fn attempt(lsn: u64, message: u64, number: u16, fate: RelayFate, reply: &str) -> String {
        let message = Lsn::new(message);
        let of = OfRelay {
            fate,
            message,
            number,
            reply: reply.into(),
            host: "mx.example".into(),
            class: "busy".into(),
            recipient: "a\",\"event\":\"deferred\",\"message\":\"7\",\"relay_target\":1@x".into(),
            ..OfRelay::default()
        };
        let event = Event { at_us: 1_700_000_000_000_000, kind: EventKind::Relay(of) };
        let mut payload = crate::entry::begin();
        crate::entry::put(&mut payload, &event);
        String::from_utf8(crate::lines(Lsn::new(lsn), payload.freeze())).unwrap()
    }

    fn deferred(lsn: u64, message: u64, number: u16, reply: &str) -> String {
        attempt(lsn, message, number, RelayFate::Deferred, reply)
    }

    fn write(dir: &Path, file: u64, lines: &[String]) {
        std::fs::write(dir.join(file_name(file)), lines.concat()).unwrap();
    }

    /// The findings for the recipients 1 to 3 of message 7, and the reason for gaps.
    fn found(dir: &Path, bytes_max: u64) -> ([Option<String>; 3], String) {
        let mut found = HashMap::new();
        let end = look(dir, Lsn::new(7), [1, 2, 3].into(), bytes_max, &mut found);
        let texts =
            [1, 2, 3].map(|number| found.get(&number).map(|of| format!("{}: {} ({})", of.host, of.reply, of.class)));
        (texts, end.err().map_or_else(String::new, |missing| missing.to_string()))
    }

    fn said(reply: &str) -> Option<String> {
        Some(format!("mx.example: {reply} (busy)"))
    }

    #[test]
    fn the_last_reply_to_a_recipient_is_found_in_all_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(found(dir, BYTES_MAX), ([None, None, None], "the event log does not reach back that far".into()));
        write(dir, 1, &[deferred(9, 7, 1, "450 old"), deferred(10, 7, 2, "450 two"), deferred(11, 77, 3, "450 other")]);
        write(
            dir,
            2,
            &[deferred(12, 7, 1, "450 older"), deferred(13, 7, 1, "451 one\n451 \"more\""), deferred(14, 6, 3, "no")],
        );
        write(dir, 3, &[attempt(15, 7, 3, RelayFate::Delivered, "250 ok"), "{\"lsn\":\"16\",\"half".to_owned()]);
        let texts = [said("451 one\n451 \"more\""), said("450 two"), None];
        let reach = "the event log does not reach back that far";
        assert_eq!(found(dir, BYTES_MAX), (texts.clone(), reach.into()));
        for file in [1, 2] {
            pack(dir, file, &AtomicBool::new(false)).unwrap();
        }
        assert_eq!(found(dir, BYTES_MAX), (texts.clone(), reach.into()), "also once they are compressed");
        // From where the message came, nothing older is of it.
        write(dir, 0, &[deferred(7, 7, 9, "its own batch")]);
        assert_eq!(found(dir, BYTES_MAX), (texts, "it is not in the event log".into()));
        write(dir, 0, &[deferred(7, 6, 9, "x"), attempt(8, 7, 3, RelayFate::Unknown, "451 lost")]);
        assert_eq!(found(dir, BYTES_MAX).0[2], said("451 lost"));
        assert_eq!(found(dir, BYTES_MAX).1, "");
    }

    #[test]
    fn a_look_ends_at_the_first_hits_at_its_bound_and_at_damage() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, 2, &[deferred(8, 7, 1, "old"), deferred(9, 7, 3, "three")]);
        write(dir, 3, &[deferred(12, 7, 1, "one"), deferred(13, 7, 2, "two")]);
        assert_eq!(
            found(dir, 1),
            ([said("one"), said("two"), None], "it is not in the newest 2 GiB of the event log".into())
        );
        pack(dir, 2, &AtomicBool::new(false)).unwrap();
        let packed = dir.join(packed_name(2));
        let sound = std::fs::read(&packed).unwrap();
        std::fs::write(&packed, &sound[..sound.len() / 2]).unwrap();
        let (texts, missing) = found(dir, BYTES_MAX);
        assert_eq!(texts, [said("one"), said("two"), None]);
        assert!(missing.starts_with("the event log cannot be read: "), "{missing}");
        // What is damaged is not looked at where the newer files have all.
        write(dir, 4, &[deferred(14, 7, 3, "four")]);
        assert_eq!(found(dir, BYTES_MAX), ([said("one"), said("two"), said("four")], String::new()));
        assert!(found(&dir.join("absent"), BYTES_MAX).1.starts_with("the event log cannot be read: "));
    }
}
