//! Signals that end a run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The first SIGINT, SIGTERM or SIGHUP sets `stop`, so that a run ends with its figures; the second ends the process.
/// To be called before any process is started that would be left running.
///
/// # Errors
/// When a handler cannot be registered.
pub fn stop_on_signals(stop: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in ending_signals() {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(stop))?;
        signal_hook::flag::register(signal, Arc::clone(stop))?;
    }
    Ok(())
}

/// SIGINT, SIGTERM, and SIGHUP unless it is ignored: a user who starts us with nohup wants us to go on without the
/// terminal.
pub fn ending_signals() -> impl Iterator<Item = i32> {
    [SIGINT, SIGTERM].into_iter().chain((!is_ignored(SIGHUP)).then_some(SIGHUP))
}

/// True if this process was started with the signal ignored (proc_pid_status(5)).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
