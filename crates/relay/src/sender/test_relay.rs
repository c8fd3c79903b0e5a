//! A relay that sends nothing, for tests of its parts.

use std::path::Path;
use std::sync::Arc;

use posthaste_spool::{Batch, Body, FileSpool};

use super::{Config, Delivering, Notifier, OutgoingNotice, Relay};
use crate::session::SessionTimeouts;
use posthaste_dns::{Resolver, Settings};
use posthaste_queue::entry::QueuedRecipient;
use posthaste_queue::{Queued, Schedules};

struct Nobody;

impl Notifier for Nobody {
    fn knows(&self, _: &str) -> bool {
        false
    }

    fn deliver(&self, _: OutgoingNotice) -> Delivering {
        Box::pin(std::future::ready(Ok(false)))
    }
}

/// A relay whose DNS server is at `server`.
pub(super) fn idle_with_dns(dir: &Path, server: std::net::SocketAddr) -> Relay {
    let (spool, _) = FileSpool::open(dir, posthaste_spool::Config::default()).unwrap();
    let settings = Settings { servers: vec![server], ..Settings::default() };
    let config = Config {
        host_name: "relay.example".to_owned(),
        resolver: Arc::new(Resolver::new(&settings).unwrap()),
        port: 25,
        routing: Default::default(),
        queue_limits: Default::default(),
        schedules: Schedules::default(),
        connections_max: 1,
        site_connections_max: 1,
        session_messages_max: 1,
        recipients_max: 1,
        shaping: Arc::default(),
        timeouts: SessionTimeouts::default(),
        tls: None,
        mta_sts: None,
        eight_bit: Default::default(),
        memory_bytes: 0,
        site_pause_secs: 60,
        returned_bytes_max: 0,
        bounces: Default::default(),
        has_crashed: false,
        notices: Default::default(),
        notifier: Arc::new(Nobody),
        signer: None,
        lender: None,
        witnesses: None,
        observer: None,
    };
    Relay::open_idle(Arc::new(spool), config).unwrap().0
}

pub(super) fn idle(dir: &Path) -> Relay {
    idle_with_dns(dir, ([127, 0, 0, 1], 9).into())
}

/// A message for some recipients, in the queue.
pub(super) fn append(relay: &Relay, to: &[&str]) {
    let recipient = |(number, address): (u16, &&str)| QueuedRecipient {
        number,
        address: Arc::from(*address),
        orcpt: "".into(),
        notify: 0,
    };
    let recipients = (0..).zip(to).map(recipient).collect();
    let entry = relay.entry(Queued { recipients, ..Queued::default() });
    let batch = Batch { entries: vec![entry], body: Body::inline(vec!["x\r\n".into()]) };
    let (tell, told) = std::sync::mpsc::channel();
    relay.0.shared.spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
    told.recv().unwrap().unwrap();
}
