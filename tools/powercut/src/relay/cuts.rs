//! Power cuts of a relaying server.
//!
//! During the recording the next hop takes part of the mail. After a cut the server meets one that takes everything.
//! Mail acknowledged before the cut, or sent in part, must arrive whole, before or after it. A second copy is allowed
//! if the power went between the next hop's 250 and the server's record of it. After an orderly end of the server, all
//! that arrived is certainly on record.

use super::hop::{Manner, NextHop};
use super::known::Known;
use super::{queue, recorded};
use crate::account::Account;
use crate::image::Image;
use crate::load::{Load, Protocol, Sent, send_over};
use crate::log::Recording;
use crate::recorded::{Plan, Recorded, RecoveryError, Waiting, wait_for_mark};
use crate::rig::{Environment, Rig, RigError};
use crate::server::{Running, ServerError, Setup};

/// Runs the server under load on a fresh file system, and records all requests to the disk and all mail at the next
/// hop.
///
/// The next hop refuses half of the mail at first. Then the server is killed, and the next hop is closed for a quarter of
/// the mail. Finally it takes everything.
///
/// # Errors
/// See [`RigError`].
pub fn record(rig: &Rig, plan: &Plan, environment: &Environment) -> Result<Recorded, RigError> {
    let load = Load::mixed(plan.seed);
    rig.disk.record();
    let hop = NextHop::start(&load, &rig.disk, Manner::Moody)?;
    let setup = Setup { next_hop: Some(hop.address), ..rig.setup() };
    let mut sent = Sent::default();
    let waiting;
    {
        let _mounted = rig.mount()?;
        let part = |part: u64| plan.messages * part / 4..plan.messages * (part + 1) / 4;
        let deliver = |server: &Running, part| {
            let ways = [(Protocol::Smtp, server.address), (Protocol::Chunking, server.address)];
            let (load, disk, connections) = (load.clone(), rig.disk.clone(), plan.connections);
            move || send_over(&ways, &load, connections, part, |promise| disk.mark(promise))
        };
        let server = start(rig, &setup)?;
        sent.add(deliver(&server, part(0))());
        let killed = std::thread::scope(|scope| {
            let half = part(1).start + (part(1).end - part(1).start) / 2;
            let sending = scope.spawn(deliver(&server, part(1)));
            wait_for_mark(&rig.disk, half, &sending);
            server.kill();
            sending.join().expect("the generator does not panic")
        });
        sent.add(killed);
        environment.go_on()?;
        if !hop.is_left_alone() {
            return Err(std::io::Error::other("connections of a killed server stay open").into());
        }
        hop.set(Manner::Closed);
        let server = start(rig, &setup)?;
        sent.add(deliver(&server, part(2))());
        waiting = Waiting::of(&setup.spool());
        hop.set(Manner::Moody);
        end(server, rig)?;
        let server = start(rig, &setup)?;
        sent.add(deliver(&server, part(3))());
        hop.set(Manner::Open);
        empty(server, rig, &setup)?;
        if sent.acknowledged.is_empty() {
            return Err(RigError::NothingAcknowledged);
        }
    }
    let recording = rig.disk.recorded();
    let known = Known::after(&load, &recording.events);
    let found = Account { duplicated: known.doubled.clone(), ..known.account(&load, &[], hop.altered()) };
    if !found.is_clean() {
        return Err(RigError::LostWithoutCut(Box::new(found)));
    }
    Ok(Recorded { recording, load, waiting, is_relayed: true })
}

/// Starts the machine with this disk: mount, start, wait for an empty queue, stop; then once more, when no mail may
/// arrive.
///
/// # Errors
/// The reason why the machine did not start, or why its queue did not become empty.
pub fn recover(rig: &Rig, load: &Load, image: Image, known: &Known) -> Result<(Recording, Account), RecoveryError> {
    rig.disk.exchange(image);
    rig.disk.record();
    let said = |error: &dyn std::fmt::Display| RecoveryError::Server(error.to_string());
    let hop = NextHop::start(load, &rig.disk, Manner::Open).map_err(|error| said(&error))?;
    let setup = Setup { next_hop: Some(hop.address), ..rig.setup() };
    let twice: Vec<(u64, u64)> = {
        let _mounted = rig.mount().map_err(|error| RecoveryError::Unmountable(error.to_string()))?;
        for _ in 0..2 {
            let server = start(rig, &setup).map_err(|error| said(&error))?;
            let log = server.read_log();
            if log.contains("promised mail is damaged") {
                return Err(said(&format!("damage where there can be none: {log}")));
            }
            empty(server, rig, &setup).map_err(|error| said(&error))?;
        }
        let told = recorded(&setup.data.join("events")).map_err(|error| said(&error))?;
        told.into_iter().filter(|(_, times)| *times > 1).map(|(key, _)| key).collect()
    };
    if !twice.is_empty() {
        return Err(said(&format!("deliveries that the event log tells twice: {twice:?}")));
    }
    let recording = rig.disk.recorded();
    let found = known.account(load, &recording.events, hop.altered());
    Ok((recording, found))
}

fn start(rig: &Rig, setup: &Setup) -> Result<Running, ServerError> {
    rig.disk.started();
    setup.start()
}

/// Waits until the queue is empty, then ends the server.
fn empty(server: Running, rig: &Rig, setup: &Setup) -> Result<(), RigError> {
    if !queue::is_emptied(&setup.data)? {
        return Err(ServerError::Slow { what: "sent all of its mail", log: server.read_log() }.into());
    }
    end(server, rig)
}

/// Ends the server in order: everything that the next hop has taken is then recorded.
fn end(server: Running, rig: &Rig) -> Result<(), RigError> {
    server.stop()?;
    rig.disk.ended();
    Ok(())
}
