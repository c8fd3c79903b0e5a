//! The log: one line an event on standard error, for people or as JSON.
//!
//! Text that came from the network is recorded as a string value, which both formats quote and escape, so it cannot
//! begin a line of its own or steer a terminal.
//!
//! A thread of its own writes the lines, many at a time. Who reads standard error and stalls stops nobody: lines that find the queue full
//! are dropped and counted.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::OnceLock;

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{Log, LogFormat};

/// Writes what is left in the log when it is dropped, and waits a second for that at most.
#[must_use = "dropping it ends the log"]
#[derive(Debug)]
pub struct LogGuard(#[expect(dead_code, reason = "dropping it ends the thread")] WorkerGuard);

/// Starts the log of this process. When one was started before, as an embedding program may have done, that one stays.
pub fn start(log: &Log) -> LogGuard {
    let (lines, guard) = queue(io::stderr());
    let dropped = lines.error_counter();
    let filter: Targets = log.level.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let stderr = fmt::layer().with_writer(lines);
    let layer = match log.format {
        LogFormat::Plain => stderr.with_target(false).with_ansi(io::stderr().is_terminal()).with_filter(filter).boxed(),
        LogFormat::Json => stderr.json().flatten_event(true).with_target(false).with_filter(filter).boxed(),
    };
    if tracing_subscriber::registry().with(layer).try_init().is_ok() {
        let _ = DROPPED.set(dropped);
    }
    LogGuard(guard)
}

/// Lines of the log that nobody could read fast enough, since the start.
pub(crate) fn dropped_lines() -> usize {
    DROPPED.get().map_or(0, ErrorCounter::dropped_lines)
}

fn queue(to: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX).thread_name("log");
    // Flushed whenever the queue is empty.
    builder.finish(BufWriter::with_capacity(WRITE_BYTES, to))
}

/// Whether `level` can be used as `log.level`.
pub(crate) fn check_level(level: &str) -> Result<(), String> {
    match level.parse::<Targets>() {
        Ok(_) if !level.trim().is_empty() => Ok(()),
        _ => Err("one of error, warn, info, debug, trace, or a filter such as `warn,posthaste_server=info`".to_owned()),
    }
}

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();
/// Lines that wait to be written; a line is about 400 octets.
const LINES_MAX: usize = 8192;
const WRITE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// A reader that stalls until it is let go, and then takes everything.
    struct Stalled(Receiver<()>, std::sync::mpsc::Sender<Vec<u8>>);

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

    #[test]
    fn a_reader_that_stalls_holds_nobody_up_and_what_it_missed_is_counted() {
        let ((go, stalls), (written, read)) = (channel(), channel());
        let (mut lines, guard) = queue(Stalled(stalls, written));
        let dropped = lines.error_counter();
        // More than fit into the queue and the buffer of the thread that writes.
        let sent = LINES_MAX + WRITE_BYTES + 1000;
        for _ in 0..sent {
            lines.write_all(b"a line\n").unwrap();
        }
        let missed = dropped.dropped_lines();
        assert!(missed > 0);
        drop(go);
        drop((lines, guard));
        let octets: usize = read.iter().map(|piece| piece.len()).sum();
        assert_eq!(octets, (sent - missed) * b"a line\n".len());
    }
}
