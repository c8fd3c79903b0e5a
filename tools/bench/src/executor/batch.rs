//! Gain of a batch over single deliveries to one mailbox: each side against itself.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use posthaste_maildir::{Host, Maildir, NameSource, SyncMounts, deliver_batch};

use super::{BODY_BYTES, bodies};
use crate::published;
use crate::run::sample;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "gain", name: "batch / single", unit: Unit::Times, better: Better::Higher },
    Figure { key: "batch_rate", name: "messages/s in batches", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "single_rate", name: "messages/s singly", unit: Unit::PerSecond, better: Better::Higher },
];

const BATCH: usize = 64;
const BATCHES: u64 = 50;
const BATCHES_LEAST: u64 = 5;

pub(super) fn workload(settings: &Settings) -> Workload {
    let batches = settings.count(BATCHES, BATCHES_LEAST) as usize;
    let ours = Side {
        name: "posthaste-maildir",
        is_ours: true,
        durability: "bytes and names synced",
        start: Box::new(move |_, dir| Ok(Box::new(Rounds { batches, store: Ours::open(dir)? }))),
    };
    let theirs = Side {
        name: "mailrs-maildir 1.2",
        is_ours: false,
        durability: "directories synced, files not",
        start: Box::new(move |_, dir| theirs(batches, dir)),
    };
    Workload {
        name: "batch".into(),
        what: format!(
            "{batches} batches of {BATCH} messages of 10 KiB to one mailbox, against as many delivered singly"
        ),
        figures: FIGURES,
        published: published::about("batch"),
        writes_octets: (2 * batches * BATCH * BODY_BYTES) as u64,
        sides: vec![ours, theirs],
    }
}

/// Delivers messages to one mailbox; returns when they are what it calls durable.
trait Store {
    fn deliver(&mut self, bodies: &[&[u8]]) -> Result<(), SideError>;
}

struct Rounds<S> {
    batches: usize,
    store: S,
}

impl<S: Store> Running for Rounds<S> {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let bodies = bodies(BODY_BYTES);
        let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).cycle().take(BATCH).collect();
        let store = &mut self.store;
        let batched = rate(self.batches, BATCH, settings, || store.deliver(&bodies))?;
        let single = rate(self.batches, BATCH, settings, || bodies.iter().try_for_each(|body| store.deliver(&[body])))?;
        Ok(sample([("gain", batched / single), ("batch_rate", batched), ("single_rate", single)]))
    }
}

/// Messages a second over `turns` turns; stops early when time is up.
fn rate(
    turns: usize,
    messages: usize,
    settings: &Settings,
    mut turn: impl FnMut() -> Result<(), SideError>,
) -> Result<f64, SideError> {
    let (begun, mut delivered) = (Instant::now(), 0);
    for _ in 0..turns {
        turn()?;
        delivered += messages;
        if begun.elapsed() > settings.round_max {
            break;
        }
    }
    Ok(delivered as f64 / begun.elapsed().as_secs_f64())
}

struct Ours {
    mailbox: Arc<Maildir>,
    mounts: SyncMounts,
    names: NameSource,
}

impl Ours {
    fn open(dir: &Path) -> Result<Self, SideError> {
        let mailbox = Maildir::open_or_create(dir.join("mailbox")).map_err(SideError::failed("mailbox"))?;
        let names = NameSource::new(Host::of_this_machine()).map_err(SideError::failed("random bytes"))?;
        Ok(Self { mailbox: Arc::new(mailbox), mounts: SyncMounts::new(), names })
    }
}

impl Store for Ours {
    fn deliver(&mut self, bodies: &[&[u8]]) -> Result<(), SideError> {
        let messages: Vec<_> = bodies.iter().map(|body| (Arc::clone(&self.mailbox), *body)).collect();
        let outcomes = deliver_batch(&mut self.mounts, &self.names, SystemTime::now(), &messages);
        outcomes.into_iter().try_for_each(|outcome| outcome.map(drop).map_err(SideError::failed("delivery")))
    }
}

#[cfg(feature = "peers")]
impl Store for mailrs_maildir::Maildir {
    fn deliver(&mut self, bodies: &[&[u8]]) -> Result<(), SideError> {
        let delivered = match bodies {
            [body] => mailrs_maildir::Maildir::deliver(self, body).map(drop),
            bodies => self.deliver_batch(bodies).map(drop),
        };
        delivered.map_err(SideError::failed("delivery"))
    }
}

#[cfg(feature = "peers")]
fn theirs(batches: usize, dir: &Path) -> Result<Box<dyn Running>, SideError> {
    let store = mailrs_maildir::Maildir::create(dir.join("mailbox")).map_err(SideError::failed("mailbox"))?;
    Ok(Box::new(Rounds { batches, store }))
}

#[cfg(not(feature = "peers"))]
fn theirs(_: usize, _: &Path) -> Result<Box<dyn Running>, SideError> {
    Err(SideError::Absent("this program was built without the feature `peers`".into()))
}
