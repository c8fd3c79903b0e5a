//! The log: one line an event on standard error, for people or as JSON.
//!
//! Text that came from the network is recorded as a string value, which both formats quote and escape, so it cannot
//! begin a line of its own or steer a terminal.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{Log, LogFormat};

/// Starts the log of this process. A second call changes nothing.
pub fn start(log: &Log) {
    let filter: Targets = log.level.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let stderr = fmt::layer().with_writer(std::io::stderr);
    let layer = match log.format {
        LogFormat::Plain => {
            stderr.with_target(false).with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed()
        }
        LogFormat::Json => stderr.json().flatten_event(true).with_target(false).with_filter(filter).boxed(),
    };
    // Only fails when a log was started before, as an embedding program may have done.
    let _ = tracing_subscriber::registry().with(layer).try_init();
}

/// Whether `level` can be used as `log.level`.
pub(crate) fn check_level(level: &str) -> Result<(), String> {
    match level.parse::<Targets>() {
        Ok(_) if !level.trim().is_empty() => Ok(()),
        _ => Err("one of error, warn, info, debug, trace, or a filter such as `info,posthaste_smtp=debug`".to_owned()),
    }
}
