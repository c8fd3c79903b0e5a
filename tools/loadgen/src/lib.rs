//! Load generator, sink, accounting and reports for any SMTP or LMTP server, ours or another's.
//!
//! It does not depend on the server, so it proves the same of any. Others use it to test their own mail server or
//! relay.
//!
//! - [`load::run`] sends the messages of a [`load::Plan`] and gathers what came of them;
//! - [`sink`] takes or refuses mail by rule;
//! - [`account`] compares what was acknowledged with what stores hold;
//! - [`report`] puts the figures into JSON, Markdown and a page with plots, and compares reports;
//! - [`process`], [`server`], [`scratch`]: servers as processes on a directory of their own, for `posthaste load --serve`, benchmarks and tests;
//! - [`stamp`] is the field by which a message is found again.
#![forbid(unsafe_code)]

pub mod account;
pub mod doctor;
pub mod live;
pub mod load;
pub mod mailfiles;
pub mod measure;
pub mod process;
pub mod report;
pub mod resources;
pub mod scratch;
pub mod server;
pub mod signals;
pub mod sink;
pub mod stamp;
pub mod values;
