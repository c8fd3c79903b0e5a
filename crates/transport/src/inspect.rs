//! Reads the transports' stream from outside, even while a server has the spool open: waiting mail, with reasons.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use posthaste_spool::{ClosedSpool, Lsn};

use crate::entry::{Deliver, Target, TargetKey, TargetTrouble, TransportEntry};
use crate::transports::STREAM;

/// A message that some transports have not got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndeliveredTargets {
    /// The batch of the spool that has its body.
    pub id: u64,
    /// When it was received, in seconds since 1970.
    pub received_secs: u64,
    /// Length of the body in bytes.
    pub bytes: u64,
    /// Targets that lack the message.
    pub targets: Vec<UnreachedTarget>,
}

/// A target that has not got a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreachedTarget {
    /// Number of the target within the message.
    pub number: u16,
    /// The target.
    pub target: Target,
    /// The error, after a failed attempt; otherwise the message is in flight, or held.
    pub trouble: Option<TargetTrouble>,
    /// Held: it is unknown if the target has its message.
    pub is_uncertain: bool,
}

/// The messages waiting for transports, in order of arrival. Changes nothing.
///
/// # Errors
/// An error of the file system.
pub fn undelivered(spool: &dyn ClosedSpool) -> std::io::Result<Vec<UndeliveredTargets>> {
    let mut messages: BTreeMap<Lsn, (Deliver, u64)> = BTreeMap::new();
    let mut troubles: HashMap<TargetKey, TargetTrouble> = HashMap::new();
    let mut of_transports: HashMap<Arc<str>, TargetTrouble> = HashMap::new();
    let mut done: Vec<TargetKey> = Vec::new();
    let mut held: HashSet<TargetKey> = HashSet::new();
    spool.entries(&mut |stream, lsn, payload, body_len| {
        if stream != STREAM {
            return;
        }
        match TransportEntry::decode(payload.clone()) {
            Some(TransportEntry::Deliver(deliver)) => {
                let (body, bytes) = deliver.body.unwrap_or((lsn, body_len));
                // Those that are held are named after it.
                held.retain(|(of, _)| *of != body);
                messages.insert(body, (deliver, bytes));
            }
            Some(TransportEntry::Done(keys)) => done.extend(keys),
            Some(TransportEntry::Trouble(trouble)) => match trouble.key {
                Some(key) => drop(troubles.insert(key, trouble)),
                None => drop(of_transports.insert(trouble.transport.clone(), trouble)),
            },
            Some(TransportEntry::Held(keys)) => held.extend(keys),
            Some(TransportEntry::Released(keys)) => {
                keys.iter().for_each(|key| {
                    held.remove(key);
                });
            }
            Some(TransportEntry::Begun { .. } | TransportEntry::Told(_)) | None => {}
        }
    })?;
    for (body, number) in done {
        if let Some((deliver, _)) = messages.get_mut(&body) {
            deliver.targets.retain(|(other, _)| *other != number);
        }
    }
    let undelivered = messages.into_iter().filter(|(_, (deliver, _))| !deliver.targets.is_empty());
    let undelivered = undelivered.map(|(body, (deliver, bytes))| {
        let targets = deliver.targets.into_iter().map(|(number, target)| {
            let trouble = troubles.get(&(body, number)).or_else(|| of_transports.get(&target.transport)).cloned();
            UnreachedTarget { number, target, trouble, is_uncertain: held.contains(&(body, number)) }
        });
        UndeliveredTargets { id: body.get(), received_secs: deliver.secs, bytes, targets: targets.collect() }
    });
    Ok(undelivered.collect())
}
