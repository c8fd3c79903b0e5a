//! A mailbox of a million messages, opened by IMAP after a start: time and memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use posthaste_loadgen::resources::{Sampler, anonymous_octets};

use super::REST_MAX;
use super::server::{Servers, Who};
use crate::maildirs::Maildirs;
use crate::published;
use crate::run::{sample, wait_until_idle};
use crate::suite::{Better, Figure, Running, Sample, Settings, SideError, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "time", name: "time", unit: Unit::Micros, better: Better::Lower },
    // Of servers that are one process.
    Figure { key: "octets_each", name: "bytes a message", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "octets", name: "bytes", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "messages", name: "messages", unit: Unit::Count, better: Better::Neither },
];
const MESSAGES: u64 = 1_000_000;
const MESSAGES_LEAST: u64 = 2000;
/// Files of the mailbox; all others are names of these. A million files would take gigabytes.
const FILES: u64 = 1000;

pub(super) fn workload(settings: &Settings) -> Workload {
    let messages = settings.count(MESSAGES, MESSAGES_LEAST);
    let servers = Arc::new(Servers::new(Maildirs::linked(messages, FILES), &["SELECT INBOX"]));
    let side = |who: Who| {
        let servers = Arc::clone(&servers);
        who.side(Box::new(move |settings: &Settings, dir: &Path| {
            servers.of(who, settings, dir)?;
            Ok(Box::new(Opens { who, servers }) as Box<dyn Running>)
        }))
    };
    let name = "mailbox-million";
    Workload {
        name: name.into(),
        what: format!("first SELECT after a start, of {messages} known messages in {FILES} files of many names"),
        figures: FIGURES,
        published: published::about(name),
        writes_octets: 0,
        sides: Who::ALL.map(side).into(),
    }
}

struct Opens {
    who: Who,
    servers: Arc<Servers>,
}

impl Running for Opens {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        self.servers.stop(self.who);
        let mut client = self.servers.log_in(self.who, settings)?;
        let pid = self.servers.pid(self.who)?;
        let rest = || wait_until_idle(&mut Sampler::new(&[pid], Instant::now()), REST_MAX);
        rest();
        let before = anonymous_octets(pid).unwrap_or_default();
        let answer = client.command("SELECT INBOX").map_err(SideError::failed("SELECT"))?;
        // With the listing after the answer.
        rest();
        let octets = anonymous_octets(pid).unwrap_or_default().saturating_sub(before) as f64;
        let (messages, expected) = (answer.exists.unwrap_or_default(), self.servers.messages());
        if messages != expected {
            return Err(SideError::Failed(format!("it has {messages} of {expected} messages")));
        }
        let mut figures = sample([("time", answer.took.as_secs_f64() * 1e6), ("messages", messages as f64)]);
        if self.who == Who::Ours {
            figures.extend(sample([("octets", octets), ("octets_each", octets / messages as f64)]));
        }
        Ok(figures)
    }
}
