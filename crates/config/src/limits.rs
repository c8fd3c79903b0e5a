//! `[limits]`, whose keys have several readers, and its overrides in listeners and networks.

use posthaste_net::section::{ConnectionLimitOverrides, ConnectionLimits};
use posthaste_smtp::section::{SessionLimitOverrides, SessionLimits};
use posthaste_units::keys::{self, Keys};
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, check_bounds};
use serde::de::MapAccess;
use serde::{Deserialize, Deserializer, Serialize};

use super::reload::{NeedsRestart, Reload, part_of};
use super::values::{self, SpoolShare, Table};

/// How much of anything is accepted. The reply at each bound is in `docs/smtp.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LimitSection {
    /// Numbers of connections.
    #[serde(flatten)]
    pub connections: ConnectionLimits,
    /// Bounds of a session.
    #[serde(flatten)]
    pub session: SessionLimits,
    /// Bounds of a message outside the protocol.
    #[serde(flatten)]
    pub receive: ReceiveLimits,
    /// Bounds of the process.
    #[serde(flatten)]
    pub process: ProcessLimits,
}

/// The overridable part of [`LimitSection`]: numbers of connections, and bounds of a session and of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LimitOverrides {
    /// Numbers of connections.
    #[serde(flatten)]
    pub connections: ConnectionLimitOverrides,
    /// Bounds of a session.
    #[serde(flatten)]
    pub session: SessionLimitOverrides,
    /// Bounds of a message outside the protocol.
    #[serde(flatten)]
    pub receive: ReceiveLimitOverrides,
}

posthaste_units::keys! {
    /// Bounds of a message outside the protocol.
    pub struct ReceiveLimits, overridden by ReceiveLimitOverrides {
        /// Received fields that mark a message as looping.
        hops: usize = posthaste_message::MAX_HOPS, values::count;
        /// Space for large messages in progress from one client address (IPv6: one /64): a share of the space that the spool's disk has for such
        /// messages, or a size such as `"2G"`. A single message always fits. Above it only this client gets 452 4.3.1. UNIX sockets have no such limit.
        spool_per_address: SpoolShare = SpoolShare::Percent(25), values::share;
    }
}

posthaste_units::keys! {
    /// Bounds of the process.
    pub struct ProcessLimits {
        /// Memory for all messages; the default is at least 256 MiB and at most 4 GiB, and counts the memory of the machine or its cgroup's limit. A
        /// quarter for arriving messages and long recipient lists, a quarter for buffers of messages that go to files, half for accepted messages not yet
        /// in their mailboxes. At the limit bodies go to files. At least 1 MiB; values below 18 MiB count as 18 MiB. Default: a sixteenth of the memory.
        memory_bytes: u64 = posthaste_intake::default_memory_bytes(), values::bytes;
        /// Time for sessions to finish after SIGTERM, and again for the mailbox writes. What a hanging disk has not written by then stays in the spool; 0
        /// for none.
        shutdown_secs: u64 = 30, values::secs;
    }
}

impl Table for LimitSection {
    const NAME: &str = "limits";
}

impl Reload for LimitSection {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        let process = ProcessLimits { memory_bytes: self.process.memory_bytes, ..new.process.clone() };
        part_of(Self { process, ..new.clone() }, new)
    }
}

impl Keys for LimitSection {
    fn keys() -> Vec<&'static str> {
        [ConnectionLimits::keys(), SessionLimits::keys(), ReceiveLimits::keys(), ProcessLimits::keys()].concat()
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, table: &mut A) -> Result<bool, A::Error> {
        Ok(self.connections.read(key, table)?
            || self.session.read(key, table)?
            || self.receive.read(key, table)?
            || self.process.read(key, table)?)
    }
}

impl<'de> Deserialize<'de> for LimitSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        keys::table_of(deserializer)
    }
}

impl LimitSection {
    /// Validates the section.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub(super) fn check(&self) -> Result<(), Problem> {
        self.connections.check()?;
        self.session.check()?;
        let memory_least = posthaste_intake::LARGE_BODY_BYTES as u64;
        check_bounds(
            Self::NAME,
            &[
                ("hops", self.receive.hops as u64, 1, u64::MAX),
                ("memory_bytes", self.process.memory_bytes, memory_least, u64::MAX),
                ("shutdown_secs", self.process.shutdown_secs, 0, A_YEAR),
            ],
        )
    }
}

impl Keys for LimitOverrides {
    fn keys() -> Vec<&'static str> {
        [ConnectionLimitOverrides::keys(), SessionLimitOverrides::keys(), ReceiveLimitOverrides::keys()].concat()
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, table: &mut A) -> Result<bool, A::Error> {
        Ok(self.connections.read(key, table)? || self.session.read(key, table)? || self.receive.read(key, table)?)
    }
}

impl<'de> Deserialize<'de> for LimitOverrides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        keys::table_of(deserializer)
    }
}

impl LimitOverrides {
    /// `base` with the values set here.
    pub fn over(&self, base: &LimitSection) -> LimitSection {
        LimitSection {
            connections: self.connections.over(&base.connections),
            session: self.session.over(&base.session),
            receive: self.receive.over(&base.receive),
            process: base.process.clone(),
        }
    }

    /// True if nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
