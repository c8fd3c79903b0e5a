//! Runs the workloads that others have published, row by row: ours and each peer's beside the published figure, in
//! alternation on one machine.
//!
//! It depends on everything that it measures; the measured crates must not depend on this one. Other programs use it to
//! add a workload or a peer of their own.
//!
//! **A new suite** is a module with a `pub const SUITE: Suite` and a line in [`SUITES`]; what others have published
//! about its workloads goes to [`published`]. Everything else follows from there: the command line, rounds in
//! alternation, tables, JSON, the page.
//!
//! - [`suite`]: what a suite, a workload and a side are;
//! - [`run`](mod@run): rounds in alternation, gathered into a [`report::Report`];
//! - [`peers`]: other servers as processes on a scratch directory.
#![forbid(unsafe_code)]

pub mod checks;
pub mod cluster;
mod engines;
pub mod executor;
pub mod idle;
pub mod inject;
pub mod kinds;
pub mod mailbox;
mod maildirs;
mod memory;
pub mod pages;
pub mod peers;
pub mod published;
pub mod receive;
pub mod relay;
pub mod report;
pub mod run;
pub mod scan;
pub mod search;
mod sink;
pub mod spool;
pub mod suite;
pub mod tls;
pub mod trust;

use suite::Suite;

/// The suites that `all` runs, in order.
pub const SUITES: &[Suite] = &[
    receive::SUITE,
    inject::SUITE,
    tls::SUITE,
    executor::SUITE,
    spool::SUITE,
    idle::SUITE,
    mailbox::SUITE,
    scan::SUITE,
    search::SUITE,
];
/// Suites that only run when named.
pub const LONG_SUITES: &[Suite] =
    &[receive::GRID, relay::SUITE, pages::SUITE, kinds::SUITE, trust::SUITE, cluster::SUITE];
