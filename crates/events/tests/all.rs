//! The event log on a spool of its own, one thing in each file.

mod log;
mod panics;
mod stuck;
