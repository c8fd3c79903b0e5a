//! The end of a run, and the promises that must hold then.

use std::collections::BTreeMap;

use posthaste_cluster::LogPosition;

use crate::member::{Entry, ValidLog};
use crate::world::{Link, World};

impl World {
    /// All faults end.
    pub fn heal(&mut self) {
        self.engine_paused_until = 0;
        for node in 0..self.nodes.len() {
            self.start_clock(node);
            self.nodes[node].frozen_until = 0;
            (self.nodes[node].to_engine, self.nodes[node].from_engine) = (Link::default(), Link::default());
            self.append_faults = 0;
            self.start(node);
        }
    }

    /// No clients, until all is delivered.
    pub fn settle(&mut self) {
        self.heal();
        self.run_for(30_000);
        self.has_clients = false;
        self.run_for(60_000);
        // A digest may be on its way to the last one.
        self.run_until_so(5_000, World::is_level);
    }

    /// All disks have all valid records.
    fn is_level(&self) -> bool {
        let is_level = |shard: u16| {
            let Some(log) = self.engine.logs.get(&shard) else { return false };
            let Ok(valid) = ValidLog::of(shard, &log.all) else { return true };
            let mut disks = self.nodes.iter().map(|node| &node.disks[usize::from(shard)]);
            disks.all(|disk| disk.wiped_at.is_some() || disk.applied.len() >= valid.entries.len())
        };
        (0..self.shards).all(is_level)
    }

    /// Every promise, once the world has settled.
    pub fn check(&self) -> Result<(), String> {
        if let Some(first) = self.violations.first() {
            return Err(format!("{first} ({} in all)", self.violations.len()));
        }
        if let Some((node, shard, why)) = self.stopped.first() {
            return Err(format!("node {node} stops shard {shard}: {why}"));
        }
        let lost: Vec<_> = self.acknowledged.iter().filter(|id| !self.delivered.contains_key(id)).collect();
        if !lost.is_empty() {
            return Err(format!("acknowledged and not delivered: {lost:?}"));
        }
        for shard in 0..self.shards {
            self.check_shard(shard)?;
        }
        Ok(())
    }

    fn check_shard(&self, shard: u16) -> Result<(), String> {
        let Some(log) = self.engine.logs.get(&shard) else { return Err(format!("shard {shard} was never opened")) };
        let valid = ValidLog::of(shard, &log.all)?;
        for (number, node) in self.nodes.iter().enumerate() {
            let disk = &node.disks[usize::from(shard)];
            let is_stopped = node.process.as_ref().is_none_or(|it| it.members[usize::from(shard)].is_stopped);
            if !is_stopped && disk.applied != valid.entries {
                let at = disk.applied.iter().zip(&valid.entries).position(|(one, other)| one != other);
                let lens = (disk.applied.len(), valid.entries.len());
                return Err(format!("node {number} has another shard {shard}: {lens:?} records, the first at {at:?}"));
            }
            if is_stopped && disk.wiped_at.is_none() && node.process.is_some() {
                return Err(format!("node {number} has stopped to apply shard {shard}"));
            }
        }
        self.check_doubles(shard, &valid)
    }

    /// A message is delivered twice only if the owner before had not recorded it when the next one began.
    fn check_doubles(&self, shard: u16, valid: &ValidLog) -> Result<(), String> {
        let mut recorded = BTreeMap::new();
        for (position, entries) in &valid.entries {
            for entry in entries {
                if let Entry::Delivered(id) = entry {
                    recorded.entry(*id).or_insert(*position);
                }
            }
        }
        for (id, (_, epochs)) in self.delivered.iter().filter(|(_, it)| it.0 == shard) {
            for pair in epochs.windows(2) {
                let open = valid.opens.get(&pair[1]).copied().unwrap_or(LogPosition::START);
                if pair[0] == pair[1] {
                    return Err(format!("message {id} is delivered twice in epoch {}", pair[0]));
                }
                if recorded.get(id).is_some_and(|at| *at < open) {
                    return Err(format!("message {id} is delivered in epochs {epochs:?}, and was recorded before"));
                }
            }
        }
        Ok(())
    }
}
