//! Suppressions and suspensions shared by all nodes: applied here, and changed for all.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_cluster::{
    BootTime, CONTROL_SHARD, ClusterNode, ControlEntry, ControlFollower, ControlKind, ControlPlace, ControlRules,
    ControlShard, ControlTable, ENTRIES_MAX, LeaseClock, MemberReport, NodeCell, NodeName, ShardLog,
};
use posthaste_control::Named;
use posthaste_notify::suppression::{Suppressed, SuppressionFilter, Suppressions};
use posthaste_queue::{EntryText, QueueEntry, Secs};
use posthaste_relay::sender::{Originator, Relay, wall_secs};
use posthaste_shaping::MailScope;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use super::log_cutter::LogCutter;
use super::nodes::{NodeList, is_silent};
use crate::receive::scope_names;
use crate::receive::shards::ShardQueue;
use crate::receive::shared::{SharedChange, SharedSuspension, Spread};

/// The control shard, for commands.
pub(super) struct ControlDesk {
    me: NodeName,
    shard: Arc<ControlShard>,
    nodes: NodeList,
    table: SharedTable,
    suppressions: Option<Arc<Suppressions>>,
    /// Ends the thread that forwards local entries.
    _forwarding: Option<Sender<()>>,
    /// Ends the thread that keeps the log short.
    _cutting: Sender<()>,
}

/// The parts of this node that the control shard changes.
pub(super) struct ControlParts {
    /// This node.
    pub me: NodeName,
    pub log: Arc<dyn ShardLog>,
    /// The snapshot of the values, with their position in the log.
    pub path: PathBuf,
    pub suppressions: Option<Arc<Suppressions>>,
    pub queues: Vec<Arc<ShardQueue>>,
    pub node: Arc<ClusterNode>,
    pub nodes: NodeList,
    /// Random.
    pub seed: u64,
}

/// Suspensions, by the names of their scopes. Suppressions are in their own file.
type SharedTable = Arc<Mutex<ControlTable>>;

/// The rules of suppressions and suspensions.
struct Values;

impl ControlRules for Values {
    /// An address that bounces shortens no entry: see [`Suppressions::merge`].
    fn stays(&self, kind: ControlKind, value: &Bytes, later: &Bytes) -> bool {
        let is_kept = |before: SuppressionValue, later: SuppressionValue| {
            later.is_fed && before.entry.lasts() >= later.entry.lasts()
        };
        kind == ControlKind::Suppression
            && suppression_of(value).zip(suppression_of(later)).is_some_and(|(before, later)| is_kept(before, later))
    }

    fn restated(&self, kind: ControlKind, value: &Bytes) -> Option<Bytes> {
        let now = wall_secs();
        if kind == ControlKind::Suspension {
            return Some(value.clone()).filter(|value| !is_old(value, now));
        }
        // So it shortens no entry that waits to be forwarded.
        let of = suppression_of(value).map(|of| SuppressionValue { is_fed: true, ..of });
        of.filter(|of| of.entry.is_valid(now)).map(|of| json(&of))
    }
}

struct Follower {
    path: PathBuf,
    suppressions: Option<Arc<Suppressions>>,
    queues: Vec<Arc<ShardQueue>>,
    node: Arc<ClusterNode>,
    table: SharedTable,
    looked_at: Option<Instant>,
}

/// The key of a suppression.
#[derive(Serialize, Deserialize)]
struct SuppressionKey {
    tenant: String,
    address: String,
}

/// The value of a suppression.
#[derive(Serialize, Deserialize)]
struct SuppressionValue {
    entry: Suppressed,
    /// True if a bounce or complaint caused it: it shortens no other entry.
    is_fed: bool,
}

impl ControlDesk {
    /// Continues from the snapshot of the last run.
    ///
    /// # Errors
    /// The snapshot cannot be read, or the thread cannot be started.
    pub fn start(parts: ControlParts) -> std::io::Result<Self> {
        let ControlParts { me, log, path, suppressions, queues, node, nodes, seed } = parts;
        let table = match std::fs::read(&path) {
            // The log has all of it: it is read again from its begin.
            Ok(bytes) => ControlTable::decode(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => ControlTable::default(),
            Err(error) => return Err(error),
        };
        let place = table.place;
        publish(&node, place);
        let table = Arc::new(Mutex::new(table));
        let list = suppressions.clone();
        let follower = Follower { path, suppressions: list, queues, node, table: table.clone(), looked_at: None };
        let shard = Arc::new(ControlShard::start((log, Arc::new(Values)), place, seed, Box::new(follower))?);
        let forwarding = suppressions.clone().map(|list| forward(list, shard.clone())).transpose()?;
        let cutting = LogCutter::start(me.clone(), shard.clone(), nodes.clone())?;
        Ok(ControlDesk { me, shard, nodes, table, suppressions, _forwarding: forwarding, _cutting: cutting })
    }

    /// Makes changes durably for all nodes, and waits a few seconds for all. Blocks.
    ///
    /// # Errors
    /// The engine does not answer: the text says if a change may have been made.
    pub fn share(&self, changes: &[SharedChange]) -> Result<Spread, String> {
        let entries: Vec<ControlEntry> = changes.iter().map(entry_of).collect();
        let (mut position, mut stored) = (None, 0);
        for part in entries.chunks(ENTRIES_MAX) {
            let put = self.shard.put(part, PUT_PATIENCE).map_err(|error| match stored {
                0 => error.to_string(),
                _ => format!("{stored} of {} changes were made; make all of them again: {error}", entries.len()),
            });
            position = Some(put?);
            stored += part.len();
        }
        let (position, until) = (position.unwrap_or_default(), Instant::now() + SPREAD_PATIENCE);
        loop {
            let listed = self.nodes.listed();
            // It is stored, whatever is known of the others.
            let Ok(listed) = listed else { return Ok(Spread { nodes: 0, missing: Vec::new() }) };
            // The cell of this node is a moment behind, more so after its start.
            let own = self.shard.place().position;
            let lacks = |(name, cell): &&(NodeName, NodeCell)| {
                let told = cell.reports.get(&CONTROL_SHARD).map(|report| report.applied);
                let applied = if *name == self.me { Some(own) } else { told };
                applied.is_none_or(|applied| applied < position)
            };
            let missing: Vec<&(NodeName, NodeCell)> = listed.iter().filter(lacks).collect();
            // One that does not run is not waited for.
            let now = BootTime.wall();
            let is_awaited = missing.iter().any(|(_, cell)| !is_silent(cell, now));
            if !is_awaited || Instant::now() >= until {
                let missing = missing.iter().map(|(name, _)| name.to_string()).collect();
                return Ok(Spread { nodes: listed.len(), missing });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The last change of a scope's suspension.
    pub fn suspension(&self, scope: &Named) -> Option<SharedSuspension> {
        let table = lock(&self.table);
        serde_json::from_slice(table.value(ControlKind::Suspension, &json(scope))?).ok()
    }

    /// Shows the wanted entries of this node's suppression list. Blocks.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn suppressed(
        &self,
        wanted: &SuppressionFilter,
        show: &mut dyn FnMut(Suppressed) -> bool,
    ) -> Result<(), String> {
        let Some(list) = &self.suppressions else { return Ok(()) };
        list.list(wanted, wall_secs(), show).map_err(|error| error.to_string())
    }

    /// Shows the wanted entries that wait to be forwarded from here. Blocks.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn unshared(&self, wanted: &SuppressionFilter, show: &mut dyn FnMut(Suppressed) -> bool) -> Result<(), String> {
        let Some(list) = &self.suppressions else { return Ok(()) };
        let waiting = list.unshared(UNSHARED_MAX, wall_secs()).map_err(|error| error.to_string())?;
        let _ = waiting.into_iter().filter(|entry| wanted.matches(entry)).all(show);
        Ok(())
    }

    /// Why this node does not hear of changes now.
    pub fn trouble(&self) -> Option<String> {
        self.shard.trouble()
    }
}

impl ControlFollower for Follower {
    fn apply(&mut self, place: ControlPlace, entries: &[ControlEntry]) -> Result<(), String> {
        if let Some(list) = &self.suppressions {
            suppress(list, entries, wall_secs())?;
        }
        let mut ended = Vec::new();
        let bytes = {
            // Entries are absolute values: after an error below they come again.
            let mut table = lock(&self.table);
            table.place = place;
            for entry in entries.iter().filter(|entry| entry.kind == ControlKind::Suspension) {
                // One that is restated was ended before.
                if table.value(entry.kind, &entry.key) != entry.value.as_ref() {
                    ended.extend(suspension_of(&entry.key, entry.value.as_ref()));
                }
                table.apply(entry);
            }
            forget_old(&mut table, wall_secs());
            table.encode()
        };
        for (scope, of) in ended.into_iter().filter(|(_, of)| of.resumed.is_some()) {
            self.owners().for_each(|relay| end(&relay, scope.clone(), &of));
        }
        self.keep(place, &bytes)
    }

    fn replace(&mut self, table: &ControlTable) -> Result<(), String> {
        tracing::info!("this node is on the list again: it takes over the suppressions and suspensions of the cluster");
        let now = wall_secs();
        if let Some(list) = &self.suppressions {
            let values = table.values(ControlKind::Suppression).filter_map(|(_, value)| suppression_of(value));
            let entries: Vec<Suppressed> = values.map(|of| of.entry).filter(|entry| entry.check().is_ok()).collect();
            list.replace(&entries, now).map_err(|error| error.to_string())?;
        }
        let mut next = ControlTable::at(table.place);
        for (key, value) in table.values(ControlKind::Suspension) {
            let (key, value) = (key.clone(), Some(value.clone()));
            next.apply(&ControlEntry { kind: ControlKind::Suspension, key, value });
        }
        forget_old(&mut next, now);
        let bytes = next.encode();
        *lock(&self.table) = next;
        self.keep(table.place, &bytes)
    }

    fn trouble(&mut self, why: Option<&str>) {
        match why {
            Some(why) => {
                tracing::warn!(why, "this node receives no suppressions and suspensions of the cluster now")
            }
            None => tracing::info!("this node receives suppressions and suspensions of the cluster again"),
        }
    }

    fn tick(&mut self) {
        if self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_AT_RELAYS) {
            self.look();
        }
    }
}

impl Follower {
    fn owners(&self) -> impl Iterator<Item = Relay> {
        self.queues.iter().filter_map(|queue| queue.owner().opened())
    }

    /// Makes suspensions durable with their place, and known to queues.
    fn keep(&mut self, place: ControlPlace, bytes: &[u8]) -> Result<(), String> {
        self.look();
        let written = posthaste_fsops::replace_file(&self.path, Mode::RUSR | Mode::WUSR, bytes);
        written.map_err(|error| std::io::Error::from(error).to_string())?;
        publish(&self.node, place);
        Ok(())
    }

    /// Applies the suspensions to all queues that this node sends from, including one just taken over.
    fn look(&mut self) {
        self.looked_at = Some(Instant::now());
        let wanted: Vec<(MailScope, SharedSuspension)> = {
            let table = lock(&self.table);
            let values = table.values(ControlKind::Suspension);
            values.filter_map(|(key, value)| suspension_of(key, Some(value))).collect()
        };
        for relay in self.owners() {
            let there = relay.suspensions();
            for (scope, of) in &wanted {
                let is_there = there.iter().any(|entry| is_same(&relay, entry, scope, of));
                match of.resumed {
                    None if !is_there => begin(&relay, scope.clone(), of),
                    Some(_) if is_there => end(&relay, scope.clone(), of),
                    _ => {}
                }
            }
        }
    }
}

/// Changes the suppression list, in the order of the entries.
fn suppress(list: &Suppressions, entries: &[ControlEntry], now: u64) -> Result<(), String> {
    let (mut run, mut is_fed) = (Vec::new(), false);
    for entry in entries.iter().filter(|entry| entry.kind == ControlKind::Suppression) {
        let Some(value) = &entry.value else {
            add(list, &std::mem::take(&mut run), is_fed, now)?;
            let Ok(key) = serde_json::from_slice::<SuppressionKey>(&entry.key) else { continue };
            list.remove(&key.tenant, &[key.address], now).map_err(|error| error.to_string())?;
            continue;
        };
        let Some(value) = suppression_of(value) else { continue };
        if value.is_fed != is_fed {
            add(list, &std::mem::take(&mut run), is_fed, now)?;
            is_fed = value.is_fed;
        }
        run.push(value.entry);
    }
    add(list, &run, is_fed, now)
}

/// Passes addresses suppressed here by bounces and complaints to all nodes. They wait in the list's file until the
/// engine has them.
fn forward(list: Arc<Suppressions>, shard: Arc<ControlShard>) -> std::io::Result<Sender<()>> {
    list.keep_to_share();
    let (end, ended) = channel();
    let send = move |entries: &[Suppressed]| {
        let entries: Vec<ControlEntry> = entries.iter().map(|entry| suppression(entry, true)).collect();
        shard.put(&entries, PUT_PATIENCE).is_ok()
    };
    let work = move || {
        while ended.recv_timeout(FORWARD_EVERY) == Err(RecvTimeoutError::Timeout) {
            while list.share(ENTRIES_MAX, wall_secs(), &mut |entries| send(entries)).is_ok_and(|sent| sent > 0) {}
        }
    };
    // A call under way may wait for the engine: nobody waits for that at the end.
    std::thread::Builder::new().name("cluster-forward".to_owned()).spawn(work)?;
    Ok(end)
}

/// Adds entries to the list, and skips those that only a newer release allows.
fn add(list: &Suppressions, entries: &[Suppressed], is_fed: bool, now: u64) -> Result<(), String> {
    let valid: Vec<Suppressed> = entries.iter().filter(|entry| entry.check().is_ok()).cloned().collect();
    if valid.is_empty() {
        return Ok(());
    }
    let added = if is_fed { list.merge(&valid, now) } else { list.add(&valid, now).map(drop) };
    added.map_err(|error| error.to_string())
}

fn begin(relay: &Relay, scope: MailScope, of: &SharedSuspension) {
    let now = wall_secs();
    let secs = match of.until {
        None => None,
        Some(until) if until <= now => return,
        Some(until) => Some(Secs::try_from(until - now).unwrap_or(Secs::MAX)),
    };
    if let Err(error) = relay.suspend(scope, secs, &by(of)) {
        tell(&error);
    }
}

fn end(relay: &Relay, scope: MailScope, of: &SharedSuspension) {
    if let Err(error) = relay.resume(scope, &by(of)) {
        tell(&error);
    }
}

/// Retried within a second, if this node is still the owner.
fn tell(error: &dyn std::error::Error) {
    let error = error.to_string();
    tracing::debug!(error, "a suspension of the cluster is not applied to a queue of this node yet");
}

fn by(of: &SharedSuspension) -> Originator {
    Originator { uid: of.uid, token: of.token.clone(), reason: of.reason.clone() }
}

/// True if a queue's suspension comes from this shared one. Clocks and whole seconds differ a little.
fn is_same(relay: &Relay, entry: &QueueEntry, scope: &MailScope, of: &SharedSuspension) -> bool {
    let QueueEntry::Suspended { scope: other, until, reason } = entry else { return false };
    let has_end = *until < Secs::MAX;
    let is_near = |end: u64| has_end && relay.wall(*until).abs_diff(end.cast_signed()) <= NEAR_SECS;
    *other == *scope && **reason == *EntryText::from(&*of.reason) && of.until.map_or(!has_end, is_near)
}

/// Scope and suspension of an entry; `None` if it is invalid here.
fn suspension_of(key: &Bytes, value: Option<&Bytes>) -> Option<(MailScope, SharedSuspension)> {
    let scope: Named = serde_json::from_slice(key).ok()?;
    Some((scope_names::scope(&scope).ok()?, serde_json::from_slice(value?).ok()?))
}

/// Decodes a suppression; `None` if it is invalid here.
fn suppression_of(value: &Bytes) -> Option<SuppressionValue> {
    serde_json::from_slice(value).ok()
}

/// True for an expired suspension, which no queue has any more.
fn is_old(value: &Bytes, now: u64) -> bool {
    let of: Option<SharedSuspension> = serde_json::from_slice(value).ok();
    let end = |of: SharedSuspension| of.resumed.or(of.until);
    of.and_then(end).is_some_and(|end| end.saturating_add(KEPT_SECS) < now)
}

/// Removes expired suspensions.
fn forget_old(table: &mut ControlTable, now: u64) {
    let old = table.values(ControlKind::Suspension).filter(|(_, value)| is_old(value, now)).map(|(key, _)| key.clone());
    for key in old.collect::<Vec<_>>() {
        table.apply(&ControlEntry { kind: ControlKind::Suspension, key, value: None });
    }
}

fn entry_of(change: &SharedChange) -> ControlEntry {
    match change {
        SharedChange::Suppress(entry) => suppression(entry, false),
        SharedChange::Unsuppress { tenant, address } => {
            ControlEntry { kind: ControlKind::Suppression, key: suppression_key(tenant, address), value: None }
        }
        SharedChange::Suspend(scope, of) => {
            ControlEntry { kind: ControlKind::Suspension, key: json(scope), value: Some(json(of)) }
        }
    }
}

fn suppression(entry: &Suppressed, is_fed: bool) -> ControlEntry {
    let (key, value) =
        (suppression_key(&entry.tenant, &entry.address), SuppressionValue { entry: entry.clone(), is_fed });
    ControlEntry { kind: ControlKind::Suppression, key, value: Some(json(&value)) }
}

fn suppression_key(tenant: &str, address: &str) -> Bytes {
    json(&SuppressionKey { tenant: tenant.to_owned(), address: address.trim().to_lowercase() })
}

fn json(of: &impl Serialize) -> Bytes {
    serde_json::to_vec(of).expect("texts and numbers").into()
}

fn lock(table: &SharedTable) -> MutexGuard<'_, ControlTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports to the other nodes that this node has applied changes up to this place.
fn publish(node: &ClusterNode, place: ControlPlace) {
    node.publish(CONTROL_SHARD, MemberReport { spool: 0, log: place.log, applied: place.position, digest: None });
}

/// Longest wait of a command for the engine.
const PUT_PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for the other nodes, which report their position each second.
const SPREAD_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Maximum entries in a list of those not yet forwarded. Forwarding takes seconds.
const UNSHARED_MAX: usize = 2000;
/// Interval between checks for addresses to forward.
const FORWARD_EVERY: Duration = Duration::from_secs(1);
/// Interval between checks of a queue's suspensions.
const LOOK_AT_RELAYS: Duration = Duration::from_secs(1);
const NEAR_SECS: u64 = 3;
/// An expired suspension is kept for a week: a shard whose owner was away for longer keeps it to its end.
const KEPT_SECS: u64 = 7 * 86_400;

#[cfg(test)]
mod tests;
