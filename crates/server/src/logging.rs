//! The log: one line for each event on standard error, as text or JSON.
//!
//! Text from the network is recorded as a string value, which both formats quote and escape. So it cannot begin a line
//! of its own or steer a terminal.
//!
//! A thread of its own writes the lines, many at a time. A reader of standard error that stalls does not stop the server: lines that find the queue full
//! are dropped and counted.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::log_format::{JsonLines, PlainFields, timestamp};
use posthaste_config::{Log, LogDirective, LogFormat};

/// Writes the rest of the log when dropped, with a timeout of a second.
#[must_use = "dropping it ends the log"]
#[derive(Debug)]
pub struct LogGuard(Lines);

/// Starts the log of this process. An existing one, such as of an embedding program, stays.
///
/// # Panics
/// If `log` was not checked, as by [`Config::parse`](posthaste_config::Config::parse) does.
pub fn start(log: &Log) -> LogGuard {
    let lines = Lines::to(io::stderr());
    let directives = log.directives().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem}"));
    let filter = directives.into_iter().fold(Targets::new(), |targets, LogDirective { part, level }| match part {
        None => targets.with_default(level),
        Some(part) => targets.with_target(target(part), level),
    });
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

/// The log target of a filter's part.
fn target(part: &str) -> String {
    let name = part.strip_prefix("posthaste_server::");
    let module = name.and_then(|name| LOG_TARGETS.iter().find(|(known, _)| *known == name));
    module.map_or_else(|| part.to_owned(), |(_, path)| format!("posthaste_server::{path}"))
}

/// An error as a JSON log line, for use before the log starts or after it ends.
pub fn error_line(message: &str) -> String {
    let line = serde_json::json!({ "timestamp": timestamp(), "level": "ERROR", "message": message });
    format!("{line}\n")
}

/// Log lines dropped since the start, because standard error was read too slowly.
pub(crate) fn dropped_lines() -> usize {
    STARTED.get().map_or(0, Lines::dropped)
}

/// The last lines of the log, the oldest first, for the page.
pub(crate) fn recent_lines() -> Vec<String> {
    STARTED.get().map_or_else(Vec::new, Lines::recent)
}

/// Log lines, passed to the writing thread.
#[derive(Debug, Clone)]
struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when the queue or its state changes.
    changed: Condvar,
    dropped: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whole lines that wait to be written.
    text: Vec<u8>,
    /// The last lines, written or waiting.
    recent: VecDeque<Vec<u8>>,
    /// True at the end: no more lines are accepted, and the waiting ones are written.
    ending: bool,
    ended: bool,
}

impl Queue {
    /// The newest line reuses the memory of the oldest.
    fn keep(&mut self, line: &[u8]) {
        let oldest = if self.recent.len() < RECENT_LINES { None } else { self.recent.pop_front() };
        let mut kept = oldest.unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(&line[..line.len().min(RECENT_LINE_BYTES)]);
        self.recent.push_back(kept);
    }
}

/// A line without colours.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line.trim_end();
    while let Some((before, sequence)) = rest.split_once("\x1b[") {
        plain += before;
        // Parameters end with a letter (ECMA-48 section 5.4).
        rest = sequence.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ';');
        rest = rest.get(1..).unwrap_or_default();
    }
    plain + rest
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

    /// Recent lines without the colours for a terminal.
    fn recent(&self) -> Vec<String> {
        self.queue().recent.iter().map(|line| without_colours(&String::from_utf8_lossy(line))).collect()
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

/// Each write is a whole line, as made by the layer.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.queue();
        queue.keep(line);
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

/// Maximum lines for the page.
const RECENT_LINES: usize = 1000;
/// Maximum octets of such a line.
const RECENT_LINE_BYTES: usize = 2000;
static STARTED: OnceLock<Lines> = OnceLock::new();
/// Maximum octets of waiting lines, about 10,000 of them; the writing thread may have as many again.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Memory that the thread keeps after a burst.
const KEPT_BYTES: usize = 64 << 10;
/// Time for which the end of the process waits for the last lines.
const PATIENCE: Duration = Duration::from_secs(1);

/// The module of each name in `log.level`. A name stays when its file moves.
const LOG_TARGETS: [(&str, &str); 32] = [
    ("certificates", "config::certificates"),
    ("cluster", "services::cluster"),
    ("control", "control::requests"),
    ("events", "receive::events"),
    ("first_password", "config::first_password"),
    ("forward", "config::forward"),
    ("indexing", "services::indexing"),
    ("inject", "services::inject"),
    ("listening", "listen::listening"),
    ("logins", "receive::logins"),
    ("mailboxes", "services::mailboxes"),
    ("maildirs", "services::maildirs"),
    ("message_log", "receive::message_log"),
    ("opening", "services::opening"),
    ("own_certificates", "config::own_certificates"),
    ("panics", "services::panics"),
    ("pickup", "services::pickup"),
    ("ready", "control::ready"),
    ("receive", "receive::handler"),
    ("relay", "services::relay"),
    ("relay_log", "services::relay_log"),
    ("repeats", "repeats"),
    ("returned", "receive::returned"),
    ("self_made", "config::self_made"),
    ("serve", "control::serve"),
    ("services", "lifecycle"),
    ("stuck", "receive::stuck"),
    ("text_search", "listen::text_search"),
    ("tidy", "services::tidy"),
    ("transports", "services::transports"),
    ("watch", "services::watch"),
    ("webhooks", "services::webhooks"),
];

#[cfg(test)]
mod tests {
    use std::path::Path;
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

    /// Modules below `dir` whose code logs, each by its path from `at`.
    fn modules_with_lines(dir: &Path, at: &str) -> Vec<String> {
        let has_lines = |text: &str| {
            // A macro may have the level as an argument.
            let mut levels = ["error", "warn", "info", "debug", "trace"].into_iter().chain(["$level"]);
            levels.any(|level| text.contains(&format!("tracing::{level}!(")))
        };
        let mut found = Vec::new();
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_stem().unwrap().to_str().unwrap();
            let own = if name == "mod" { at.to_owned() } else { format!("{at}::{name}") };
            if path.is_dir() {
                found.extend(modules_with_lines(&path, &own));
            } else if has_lines(&std::fs::read_to_string(&path).unwrap()) {
                found.push(own);
            }
        }
        found
    }

    #[test]
    fn every_module_with_lines_can_be_named_in_a_filter() {
        let names = LOG_TARGETS.map(|(name, _)| name);
        assert_eq!(names, posthaste_config::LOG_MODULES);
        let found = modules_with_lines(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), "posthaste_server");
        let is_of = |module: &str, name: &str| {
            let rest = module.strip_prefix(&target(&format!("posthaste_server::{name}")));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        for module in &found {
            assert_eq!(names.iter().filter(|name| is_of(module, name)).count(), 1, "{module} has no name");
        }
        for name in names {
            assert!(found.iter().any(|module| is_of(module, name)), "{name} has no lines any more");
        }
        assert_eq!(target("posthaste_server::webhooks"), "posthaste_server::services::webhooks");
        assert_eq!(target("posthaste_smtp::driver"), "posthaste_smtp::driver");
    }

    #[test]
    fn a_stalled_log_reader_blocks_nobody_and_losses_are_counted() {
        let (go, read, lines) = flooded();
        let missed = lines.dropped();
        assert!(missed > 0);
        drop(go);
        drop(LogGuard(lines));
        let octets: usize = read.iter().map(|piece| piece.len()).sum();
        assert_eq!(octets, (SENT - missed) * LINE.len());
    }

    #[test]
    fn the_last_lines_are_kept_in_bounds_and_without_colours() {
        let lines = Lines::to(io::sink());
        for number in 0..RECENT_LINES + 5 {
            let line = format!("\x1b[2m{number}\x1b[0m \x1b[1;31mlong\x1b[0m {}\n", "x".repeat(3 * RECENT_LINE_BYTES));
            (&lines).write_all(line.as_bytes()).unwrap();
        }
        let recent = lines.recent();
        assert_eq!(recent.len(), RECENT_LINES);
        assert!(recent[0].starts_with("5 long xx") && recent.iter().all(|line| line.len() <= RECENT_LINE_BYTES));
        assert_eq!(without_colours("a\x1b["), "a");
    }

    #[test]
    fn the_end_does_not_wait_for_a_reader_that_stalls() {
        let (go, _read, lines) = flooded();
        drop(LogGuard(lines.clone()));
        assert!(!lines.queue().ended, "and it wrote nothing: {}", lines.dropped());
        drop(go);
    }
}
