//! State shared by all threads of one sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use posthaste_smtp::server::Config;
use tokio_rustls::TlsAcceptor;

use super::counts::Tally;
use super::greylist::Greylist;
use super::rules::Rules;
use super::store::{Ledger, Store};
use super::tls::TlsMode;

pub(super) struct Shared {
    pub protocol: Arc<Config>,
    pub rules: Rules,
    pub greylist: Option<Greylist>,
    pub store: Option<Store>,
    pub ledger: Option<Ledger>,
    pub tls: Option<TlsAcceptor>,
    pub tls_mode: TlsMode,
    /// Counters, one set for each thread.
    pub tallies: Vec<Tally>,
    /// Octets of messages in memory, which are limited.
    pub held_octets: AtomicUsize,
    pub held_octets_max: usize,
    pub connections_max: u64,
    pub idle_timeout: Duration,
    /// Connections handed to threads so far, minus ended ones.
    pub open: AtomicU64,
    /// The most open at the same time.
    pub open_max: AtomicU64,
    /// Connections handed to each thread, for the acceptor.
    pub opened: Vec<AtomicU64>,
}

impl Shared {
    /// True if messages are needed whole; otherwise their octets are checked as they pass.
    pub fn keeps_bodies(&self) -> bool {
        self.store.is_some() || self.ledger.is_some()
    }
}
