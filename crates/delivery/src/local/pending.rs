//! Appends a message to the spool: one batch with an entry for each mount.

use posthaste_spool::{AppendError, Batch, Entry, FinishedUpload, Lsn};
use tokio::sync::oneshot;

use super::budget::Share;
use super::core::Core;
use super::entry::{Deliver, LocalEntry};
use super::message::{Body, BodyWriter, LargeBody, Message, Target};
use super::mount::memory_units;
use super::under_way::UnderWay;
use crate::error::DeliveryError;

/// A message on its way into the spool.
pub(super) struct Pending {
    /// For each mount that it concerns.
    entries: Vec<Entry>,
    /// Memory for each.
    share: Option<Share>,
    units: u64,
    parts: Vec<bytes::Bytes>,
    large: Option<FinishedUpload>,
}

impl Pending {
    pub async fn new(core: &Core, message: Message, secs: u64) -> Result<Self, DeliveryError> {
        let len = message.body.len();
        let mut body = message.body;
        if len > core.config.inline_bytes_max {
            body = core.in_a_file(body).await?;
        }
        let mut delivers = core.delivers(&message.targets, message.line_ends, secs, large_of(&body));
        let units_of = |delivers: &[(usize, Deliver)]| -> u64 {
            delivers.iter().map(|(_, deliver)| u64::from(memory_units(deliver, len))).sum()
        };
        let mut units = units_of(&delivers);
        if matches!(body, Body::Memory(_)) && !core.budget.covers(units) {
            // All mounts together would hold more of it than there may be.
            body = core.in_a_file(body).await?;
            delivers = core.delivers(&message.targets, message.line_ends, secs, large_of(&body));
            units = 0;
        }
        let entry = |(mount, deliver): (usize, Deliver)| Entry {
            stream: core.mounts[mount].stream,
            needs_body: true,
            payload: LocalEntry::Deliver(deliver).encode(),
        };
        let mut pending = Pending {
            entries: delivers.into_iter().map(entry).chain(message.also).collect(),
            share: None,
            units,
            parts: Vec::new(),
            large: None,
        };
        match body {
            Body::Memory(parts) => pending.parts = parts,
            Body::Large(body) => {
                (pending.large, pending.units) = (Some(body.upload), 0);
            }
        }
        Ok(pending)
    }

    fn batch(&self) -> Batch {
        // What is kept here is for the next try, should this one be refused.
        let body = match &self.large {
            Some(upload) => posthaste_spool::Body::File(upload.clone()),
            None => posthaste_spool::Body::Inline(self.parts.clone()),
        };
        Batch { entries: self.entries.clone(), body }
    }
}

fn large_of(body: &Body) -> Option<LargeBody> {
    match body {
        Body::Memory(_) => None,
        Body::Large(body) => Some(body.facts),
    }
}

impl Core {
    /// The entries of a message: one for each mount.
    fn delivers(
        &self,
        targets: &[Target],
        line_ends: super::message::LineEnds,
        secs: u64,
        large: Option<LargeBody>,
    ) -> Vec<(usize, Deliver)> {
        let mut of_mounts: Vec<(usize, Deliver)> = Vec::new();
        for (number, target) in (0..).zip(targets) {
            let mount = self.points.of(&target.mailbox);
            let at = of_mounts.iter().position(|(other, _)| *other == mount).unwrap_or_else(|| {
                let (nonce, host) = (self.nonce, self.host.clone());
                let deliver = Deliver { secs, nonce, host, line_ends, body: None, large, targets: Vec::new() };
                of_mounts.push((mount, deliver));
                of_mounts.len() - 1
            });
            of_mounts[at].1.targets.push((number, target.clone()));
        }
        of_mounts
    }

    async fn in_a_file(&self, body: Body) -> Result<Body, DeliveryError> {
        let announced = body.len();
        let Body::Memory(parts) = body else { return Ok(body) };
        let mut writer = BodyWriter::new(self.when_room(move |spool| spool.upload(announced)).await?);
        for part in &parts {
            writer.write(part).await?;
        }
        Ok(Body::Large(writer.finish().await?))
    }

    /// Appends a message and waits until it is durable or refused.
    pub(super) async fn append(
        &self,
        pending: &mut Pending,
        under_way: Option<&UnderWay>,
    ) -> Result<Result<Lsn, AppendError>, DeliveryError> {
        if self.budget.is_closed() {
            return Err(DeliveryError::Closed);
        }
        if pending.units > 0 {
            pending.share = Some(self.budget.share(pending.units).await.map_err(|_| DeliveryError::Closed)?);
        }
        let (done, outcome) = oneshot::channel();
        let share = pending.share.take();
        let then = move |outcome: Result<Lsn, AppendError>| {
            if outcome.is_ok() {
                // The mounts were told before, and each gives back its part.
                share.into_iter().for_each(Share::hand_over);
            }
            drop(done.send(outcome));
        };
        let ticket = self.spool.append(pending.batch(), Box::new(then));
        if let Some(under_way) = under_way {
            under_way.appended(ticket);
        }
        outcome.await.map_err(|_| DeliveryError::Closed)
    }
}
