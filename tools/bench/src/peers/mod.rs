//! Other servers as processes on a scratch directory, with a configuration made there.

mod postfix;
mod smtp_sink;

pub use postfix::{PROCESSES_MAX, Postfix};
pub use smtp_sink::SmtpSink;
