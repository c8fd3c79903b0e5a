//! The state machine with its owner, one thing in each file. Sessions whose time is short are a program of their own.

mod binary;
mod common;
mod compress;
mod conform;
mod keys;
mod oracle;
mod prop;
mod search_index;
/// `common` has files of the driver, which find this and `session` at the root of the crate.
mod set {
    pub use posthaste_imap::NumberSet;
}
mod structure;

use posthaste_imap::session;
