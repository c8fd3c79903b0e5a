//! The spool's file system fills up while a server relays.
//!
//! Below its floor the spool takes no mail. Notices to senders have to wait, but outcomes are still recorded. Without a
//! free block nothing moves out of the ring, which fills with records to its last segment. The server is killed and
//! started in both states; waiting mail costs little memory and few log lines.

use std::collections::BTreeMap;

use posthaste_consumer::UNRECORDED_MAX;
use posthaste_loadgen::resources::anonymous_octets;

use super::{Filler, Problems, until};
use crate::disk::Disk;
use crate::image::Image;
use crate::load::{Entry, Load, Sent, message_of, send};
use crate::mount::{FileSystem, Mounted};
use crate::relay::hop::{Manner, NextHop};
use crate::relay::notices::Notices;
use crate::relay::recorded;
use crate::rig::{Environment, Rig, RigError};
use crate::server::{Running, Setup};

/// Below the floor: mail leaves, and its senders get their notices when there is space.
pub fn spool_short(environment: &Environment) -> Result<Problems, RigError> {
    let mut world = World::new(environment, 61)?;
    let mut server = world.start()?;
    world.send(&server, 0..MESSAGES);
    world.is_all_acknowledged();
    world.fill(&server, BELOW_FLOOR)?;
    world.hop.set(Manner::Slow);
    let half = world.expected / 2;
    world.until("half of it is sent", |world| world.hop.copies().len() as u64 >= half)?;
    world.look(&server);
    server = world.kill_and_start(server)?;
    world.hop.set(Manner::Open);
    world.until("all of it is sent", |world| world.hop.copies().len() as u64 == world.expected)?;
    world.look(&server);
    server = world.kill_and_start(server)?;
    world.end(server)
}

/// No room for one more record: nothing is sent until there is space.
pub fn ring_full(environment: &Environment) -> Result<Problems, RigError> {
    let mut world = World::new(environment, 62)?;
    let mut server = world.start()?;
    world.send(&server, 0..MESSAGES);
    world.is_all_acknowledged();
    world.hop.set(Manner::Reluctant);
    world.fill(&server, 0)?;
    let said = "no mail is sent to other hosts for now";
    // What the spool gives back while it looks for room is taken at once.
    let full = until(said, || {
        world.filler.as_ref().map_or(Ok(()), |filler| filler.fill(0))?;
        Ok(server.read_log().contains(said))
    })?;
    world.problems.extend(full);
    world.until("no session is left", |world| world.hop.sessions() == 0)?;
    world.look(&server);
    server = world.kill_and_start(server)?;
    world.look(&server);
    server = world.kill_and_start(server)?;
    world.hop.set(Manner::Open);
    world.end(server)
}

/// A server with its spool on a small disk, the rest elsewhere, and a next hop. Fields are dropped in this order.
struct World {
    load: Load,
    hop: NextHop,
    sent: Sent,
    /// Recipients that the next hop takes.
    expected: u64,
    /// Extra copies before the last kill.
    doubled: u64,
    memory_before: u64,
    problems: Problems,
    filler: Option<Filler>,
    setup: Setup,
    _mounted: Mounted,
    rig: Rig,
}

impl World {
    fn new(environment: &Environment, seed: u64) -> Result<Self, RigError> {
        // Each sender is owed a word.
        let small = Load { large_one_in: u64::MAX, body_bytes_max: 8 << 10, ..Load::mixed(seed) };
        let load = Load { told_in_16: 16, ..small };
        let rig = Rig::new(environment, FileSystem::Ext4, 96 << 20)?;
        let mounted = rig.mount()?;
        let hop = NextHop::start(&load, &Disk::new(Image::zeros(0)), Manner::Busy)?;
        let spool = Some(rig.mount_point().join("spool"));
        let setup = Setup { spool, data: rig.scratch().join("data"), next_hop: Some(hop.address), ..rig.setup() };
        Ok(World {
            load,
            hop,
            sent: Sent::default(),
            expected: 0,
            doubled: 0,
            memory_before: 0,
            problems: Problems::new(),
            filler: None,
            setup,
            _mounted: mounted,
            rig,
        })
    }

    fn start(&self) -> Result<Running, RigError> {
        Ok(self.setup.start()?)
    }

    fn send(&mut self, server: &Running, numbers: std::ops::Range<u64>) {
        self.sent.add(send(&self.load, server.address, 8, numbers, |_| ()));
        let messages = self.sent.acknowledged.iter().map(|mark| message_of(*mark));
        let taken = messages.filter(|number| !self.load.is_refused(*number));
        self.expected = taken.map(|number| self.load.recipients(number).len() as u64).sum();
        self.memory_before = anonymous_octets(server.pid()).unwrap_or(0);
    }

    fn is_all_acknowledged(&mut self) {
        self.problems.extend(super::unexpected(&self.sent, ""));
    }

    /// Takes space until the server refuses mail.
    fn fill(&mut self, server: &Running, leave: u64) -> Result<(), RigError> {
        let filler = Filler::new(self.rig.mount_point(), leave)?;
        let mut next = MESSAGES;
        // What the spool gives back is taken at once; until there is nothing more mail may be taken.
        let full = until("mail is refused with 452 4.3.1", || {
            filler.fill(leave)?;
            self.send(server, next..next + 1);
            next += 1;
            Ok(self.sent.refused.last().is_some_and(|(_, reply)| reply.starts_with("452 4.3.1")))
        })?;
        self.problems.extend(full);
        self.filler = Some(filler);
        Ok(())
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<(), RigError> {
        let late = until(what, || Ok(holds(self)))?;
        self.problems.extend(late);
        Ok(())
    }

    /// Checks that neither memory nor the log grows with the waiting mail.
    fn look(&mut self, server: &Running) {
        let grown = anonymous_octets(server.pid()).unwrap_or(u64::MAX).saturating_sub(self.memory_before);
        if grown > GROWN_MAX {
            self.problems.push(format!("what waits for space takes {} MiB of memory", grown >> 20));
        }
        let log = server.read_log();
        if log.lines().count() > LINES_MAX {
            self.problems.push(format!("{} lines in the log, the last: {:?}", log.lines().count(), log.lines().last()));
        }
    }

    fn kill_and_start(&mut self, server: Running) -> Result<Running, RigError> {
        self.note_copies();
        server.kill();
        let server = self.start()?;
        self.memory_before = anonymous_octets(server.pid()).unwrap_or(0);
        Ok(server)
    }

    /// Checks the extra copies since the last call: after a kill there may be as many as there may be unrecorded
    /// outcomes.
    fn note_copies(&mut self) {
        let doubled = copies_too_many(&self.hop.copies());
        if doubled - self.doubled > UNRECORDED_MAX {
            self.problems.push(format!("{} recipients were sent to twice", doubled - self.doubled));
        }
        self.doubled = doubled;
    }

    /// Frees the space: all mail arrives, and all notices are sent.
    fn end(mut self, server: Running) -> Result<Problems, RigError> {
        self.note_copies();
        self.filler = None;
        self.until("all of it is sent at the end", |world| world.hop.copies().len() as u64 == world.expected)?;
        let (load, mail) = (self.load.clone(), self.setup.mail());
        let messages: Vec<u64> = self.sent.acknowledged.iter().map(|mark| message_of(*mark)).collect();
        let untold = || Ok::<_, RigError>(Notices::read(&mail)?.account(&load, messages.iter().copied()).0);
        let late = until("every sender is told", || Ok(untold()?.is_empty()))?;
        self.problems.extend(late);
        self.note_copies();
        server.stop()?;
        let twice = recorded(&self.setup.data.join("events"))?.values().filter(|times| **times > 1).count();
        if twice > 0 {
            self.problems.push(format!("{twice} deliveries are recorded twice"));
        }
        self.problems.extend(self.hop.altered());
        Ok(self.problems)
    }
}

fn copies_too_many(copies: &BTreeMap<Entry, u64>) -> u64 {
    copies.values().map(|copies| copies - 1).sum()
}

const MESSAGES: u64 = 1000;
/// The floor of the rig's servers is 1 MiB.
const BELOW_FLOOR: u64 = 512 << 10;
const GROWN_MAX: u64 = 64 << 20;
/// Limit on log lines of one run of the server.
const LINES_MAX: usize = 60;
