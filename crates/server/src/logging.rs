//! The log: one line an event on standard error, for people or as JSON.
//!
//! Text that came from the network is recorded as a string value, which both formats quote and escape, so it cannot
//! begin a line of its own or steer a terminal.
//!
//! A thread of its own writes the lines, many at a time. A reader of standard error that stalls does not stop the server: lines that find the queue full
//! are dropped and counted.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use posthaste_units::values::Table;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::log_format::{JsonLines, PlainFields};

/// The log, written to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `plain` or `json`.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`, or a filter such as `warn,posthaste_server=info`.
    pub level: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

impl Table for Log {
    const NAME: &str = "log";
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
}

/// Writes what is left in the log when it is dropped, and waits a second for that at most.
#[must_use = "dropping it ends the log"]
#[derive(Debug)]
pub struct LogGuard(Lines);

/// Starts the log of this process. When one was started before, as an embedding program may have done, that one stays.
///
/// # Panics
/// When `log` was not checked, as [`Config::parse`](crate::config::Config::parse) does.
pub fn start(log: &Log) -> LogGuard {
    let lines = Lines::to(io::stderr());
    let filter = filter(&log.level).unwrap_or_else(|problem| panic!("an unchecked configuration: {problem}"));
    let stderr = fmt::layer().with_writer(lines.clone());
    let layer = match log.format {
        LogFormat::Plain => {
            let stderr = stderr.fmt_fields(PlainFields).with_ansi(io::stderr().is_terminal());
            stderr.with_target(false).with_filter(filter).boxed()
        }
        LogFormat::Json => stderr.event_format(JsonLines).with_filter(filter).boxed(),
    };
    if tracing_subscriber::registry().with(layer).try_init().is_ok() {
        let _ = STARTED.set(lines.clone());
    }
    LogGuard(lines)
}

/// An error as a line of the log in JSON, for when there is no log yet, or no longer.
pub fn error_line(message: &str) -> String {
    let line = serde_json::json!({ "timestamp": timestamp(), "level": "ERROR", "message": message });
    format!("{line}\n")
}

/// The present time as it stands in the log.
pub(crate) fn timestamp() -> String {
    let mut text = String::new();
    // Fails only if the text cannot be written to.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Lines of the log that nobody could read fast enough, since the start.
pub(crate) fn dropped_lines() -> usize {
    STARTED.get().map_or(0, Lines::dropped)
}

/// What is on its way to the thread that writes it.
#[derive(Debug, Clone)]
struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The queue has something for the other side.
    changed: Condvar,
    dropped: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whole lines.
    text: Vec<u8>,
    /// Nothing more is taken; what is there is written.
    ending: bool,
    ended: bool,
}

impl Lines {
    fn to(out: impl Write + Send + 'static) -> Self {
        let lines = Self(Arc::default());
        let writing = lines.clone();
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_to(out));
        if thread.is_err() {
            // There is nobody to say it to; nobody may wait for this thread.
            *lines.queue() = Queue { ending: true, ended: true, ..Queue::default() };
        }
        lines
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dropped(&self) -> usize {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn write_to(&self, mut out: impl Write) {
        let mut text = Vec::new();
        let mut ending = false;
        while !ending {
            let queue = self.queue();
            let waiting = self.0.changed.wait_while(queue, |queue| queue.text.is_empty() && !queue.ending);
            let mut queue = waiting.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut text, &mut queue.text);
            ending = queue.ending;
            drop(queue);
            // A log that cannot be written has nowhere to say so.
            let _ = out.write_all(&text).and_then(|()| out.flush());
            text.clear();
            text.shrink_to(KEPT_BYTES);
        }
        self.queue().ended = true;
        self.0.changed.notify_all();
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.queue().ending = true;
        self.0.0.changed.notify_all();
        let _ = self.0.0.changed.wait_timeout_while(self.0.queue(), PATIENCE, |queue| !queue.ended);
    }
}

/// Takes a whole line with each write, as the layer makes them.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.queue();
        if queue.ending || queue.text.len() + line.len() > WAITING_BYTES_MAX {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            // The thread waits only while there is nothing.
            let wakes = queue.text.is_empty();
            queue.text.extend_from_slice(line);
            drop(queue);
            if wakes {
                self.0.changed.notify_all();
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

/// The filter that `log.level` means.
///
/// # Errors
/// It is none, or one that would never match: a misspelled level would otherwise be taken for a part of the program, and silence all others.
pub(crate) fn filter(level: &str) -> Result<Targets, String> {
    let mut targets = Targets::new();
    for directive in level.split(',') {
        let (part, level) = match directive.split_once('=') {
            Some((part, level)) => (Some(part.trim()), level.trim()),
            None => (None, directive.trim()),
        };
        let Some((_, found)) = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(level)) else {
            let names = "error, warn, info, debug, trace or off";
            return Err(format!(
                "there is no log level `{level}`: write {names}, or a filter such as \"warn,{LOGGED}=info\""
            ));
        };
        targets = match part {
            None => targets.with_default(*found),
            Some(part) if has_lines(part) => targets.with_target(part, *found),
            Some(part) => {
                return Err(format!(
                    "`{part}` has no log lines; targets are {LOGGED}, {} and their parts, such as {LOGGED}::message_log",
                    LOGGED_TOO.join(", ")
                ));
            }
        };
    }
    Ok(targets)
}

/// Whether lines come from this part of the program.
fn has_lines(part: &str) -> bool {
    let within = |name: &str| part.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    match part.strip_prefix(LOGGED) {
        Some("") => true,
        Some(rest) => rest.strip_prefix("::").is_some_and(|module| MODULES.contains(&module)),
        None => LOGGED_TOO.into_iter().any(within),
    }
}

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
/// The crate of nearly all lines.
const LOGGED: &str = env!("CARGO_CRATE_NAME");
/// Its modules that have some.
const MODULES: [&str; 27] = [
    "certificates",
    "control",
    "events",
    "first_password",
    "forward",
    "indexing",
    "listening",
    "logins",
    "mailboxes",
    "message_log",
    "opening",
    "panics",
    "pickup",
    "ready",
    "receive",
    "refused",
    "relay",
    "relay_log",
    "repeats",
    "returned",
    "serve",
    "services",
    "stuck",
    "tidy",
    "transports",
    "watch",
    "webhooks",
];
/// Tell of handshakes that fail, and of a panic within a session or beside it.
const LOGGED_TOO: [&str; 2] = ["posthaste_smtp", "posthaste_net"];

static STARTED: OnceLock<Lines> = OnceLock::new();
/// Octets of lines that wait to be written, about 10,000 of them; as many again may be with the thread that writes.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// What the thread keeps of the room that a burst has taken.
const KEPT_BYTES: usize = 64 << 10;
/// How long the end of the process waits for the last lines.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A reader that stalls until it is let go, and then takes everything.
    struct Stalled(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LINE: &[u8] = b"a line\n";
    /// More than fit into the queue and what the thread has taken.
    const SENT: usize = 3 * WAITING_BYTES_MAX / LINE.len();

    /// Sends more lines than fit to a reader that stalls: what lets it go, what it took, and the lines.
    fn flooded() -> (Sender<()>, Receiver<Vec<u8>>, Lines) {
        let ((go, stalls), (written, read)) = (channel(), channel());
        let lines = Lines::to(Stalled(stalls, written));
        for _ in 0..SENT {
            (&lines).write_all(LINE).unwrap();
        }
        (go, read, lines)
    }

    #[test]
    fn a_filter_names_only_parts_that_have_lines() {
        for (level, good) in [
            ("warn,posthaste_server::receive=info", true),
            ("posthaste_server=debug,posthaste_smtp::driver=off", true),
            ("warn,posthaste_server::recieve=info", false),
            ("warn,posthaste_server::=info", false),
            ("warn,posthaste_servers=info", false),
            ("warn,posthaste_smtpd=info", false),
        ] {
            assert_eq!(filter(level).is_ok(), good, "{level}");
        }
    }

    #[test]
    fn every_module_with_lines_can_be_named_in_a_filter() {
        let files_of = |path: &Path| match path.is_dir() {
            true => std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            false => vec![path.to_owned()],
        };
        let has_lines = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            // A macro may have the level as an argument.
            let mut levels = LEVELS.iter().map(|(level, _)| *level).chain(["$level"]);
            levels.any(|level| text.contains(&format!("tracing::{level}!(")))
        };
        let found = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
        let mut names: Vec<String> = found
            .map(|entry| entry.unwrap().path())
            .filter(|path| files_of(path).iter().any(has_lines))
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        assert_eq!(names, MODULES);
    }

    #[test]
    fn a_reader_that_stalls_holds_nobody_up_and_what_it_missed_is_counted() {
        let (go, read, lines) = flooded();
        let missed = lines.dropped();
        assert!(missed > 0);
        drop(go);
        drop(LogGuard(lines));
        let octets: usize = read.iter().map(|piece| piece.len()).sum();
        assert_eq!(octets, (SENT - missed) * LINE.len());
    }

    #[test]
    fn the_end_does_not_wait_for_a_reader_that_stalls() {
        let (go, _read, lines) = flooded();
        drop(LogGuard(lines.clone()));
        assert!(!lines.queue().ended, "and it wrote nothing: {}", lines.dropped());
        drop(go);
    }
}
