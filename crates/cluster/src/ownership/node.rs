//! The cell of this node: written each second, by one process at a time.

use std::time::Duration;

use bytes::Bytes;

use super::effect::{Outbox, OwnershipEffect};
use super::facts::Me;
use crate::LogError;
use crate::cell::{CellKey, NodeCell};

/// The writer of the node's own cell.
#[derive(Debug, Default)]
pub(crate) struct OwnNode {
    /// Next value of the cell, except for its number.
    pub cell: NodeCell,
    phase: Phase,
    revision: u64,
    /// The request without an answer, and the time of its sending.
    asked: Option<(u64, Duration)>,
    /// The earliest time of the next request.
    next_at: Duration,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Reads the cell for the first time.
    #[default]
    Starting,
    /// Reads the cell again: another process may still write it.
    Looking,
    Writing,
    /// A write was not answered, or refused: the cell is read.
    Deciding,
    /// Another process writes the cell, or an operator has removed the node.
    Taken,
}

impl OwnNode {
    /// A node of a process of this release.
    pub fn new(version: &str) -> Self {
        OwnNode { cell: NodeCell { version: version.to_owned(), ..NodeCell::default() }, ..OwnNode::default() }
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Writing | Phase::Deciding)
    }

    pub fn is_taken(&self) -> bool {
        self.phase == Phase::Taken
    }

    pub fn is_asked(&self, request: u64) -> bool {
        self.asked.is_some_and(|asked| asked.0 == request)
    }

    pub fn tick(&mut self, me: &Me, out: &mut Outbox, now: Duration) {
        if self.asked.is_some() || now < self.next_at {
            return;
        }
        let key = CellKey::Node(me.node.clone());
        let request = match self.phase {
            Phase::Taken => return,
            Phase::Writing => {
                self.cell.incarnation = me.incarnation;
                self.cell.write += 1;
                // Counted from the sending: two writes are a second apart, however fast the answers are.
                self.next_at = now + me.times.report;
                out.swap(key, self.revision, self.cell.encode())
            }
            Phase::Starting | Phase::Looking | Phase::Deciding => {
                self.next_at = now + me.times.report;
                out.get(key)
            }
        };
        self.asked = Some((request, now));
    }

    pub fn got(&mut self, me: &Me, out: &mut Outbox, now: Duration, outcome: Result<(Bytes, u64), LogError>) {
        self.asked = None;
        let Ok((value, revision)) = outcome else { return };
        let is_removed = NodeCell::decode(&value).is_some_and(|cell| cell.is_removed);
        if is_removed && me.rules.removal {
            self.phase = Phase::Taken;
            return out.push(OwnershipEffect::Removed);
        }
        match self.phase {
            Phase::Starting if revision > 0 && me.rules.one_name => {
                self.phase = Phase::Looking;
                self.next_at = now + me.times.name;
            }
            Phase::Looking if revision != self.revision => return self.give_way(out),
            // The engine has lost it.
            Phase::Deciding if revision == 0 => self.phase = Phase::Writing,
            Phase::Deciding if revision != self.revision => {
                let is_own = NodeCell::decode(&value).is_some_and(|cell| cell.incarnation == me.incarnation);
                if !is_own && me.rules.one_name {
                    return self.give_way(out);
                }
                self.phase = Phase::Writing;
            }
            Phase::Starting | Phase::Looking | Phase::Deciding => self.phase = Phase::Writing,
            Phase::Writing | Phase::Taken => {}
        }
        self.revision = revision;
    }

    /// The time of the sending, if the write was answered.
    pub fn swapped(
        &mut self,
        me: &Me,
        out: &mut Outbox,
        now: Duration,
        outcome: Result<u64, LogError>,
    ) -> Option<Duration> {
        let (_, sent) = self.asked.take()?;
        match outcome {
            Ok(revision) => {
                self.revision = revision;
                Some(sent)
            }
            Err(_) => {
                self.phase = Phase::Deciding;
                self.next_at = now;
                self.tick(me, out, now);
                None
            }
        }
    }

    fn give_way(&mut self, out: &mut Outbox) {
        self.phase = Phase::Taken;
        out.push(OwnershipEffect::NameTaken);
    }
}
