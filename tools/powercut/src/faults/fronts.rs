//! Fields that acceptance has written in front of messages go bad on the spool's disk.

use memchr::memmem;

use super::{Problems, TwoDisks, unexpected, until, wrong};
use crate::account::Account;
use crate::image::{CHUNK, Image};
use crate::load::{Load, send};
use crate::mailboxes::{block, unblock};
use crate::mount::FileSystem;
use crate::rig::{Environment, RigError};

/// Mail waits in the spool, small messages and large ones, while one bit of the `Received` of every third of them goes bad. Each message is delivered whole; damaged fields are told
/// once each, and all others are there.
pub fn damaged(environment: &Environment) -> Result<Problems, RigError> {
    let mut disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let load = Load { mailboxes: 1, large_one_in: 8, body_bytes_max: 8 << 10, ..Load::mixed(71) };
    block(&disks.setup.mail())?;
    let server = disks.setup.start()?;
    let sent = send(&load, server.address, 4, 0..MESSAGES, |_| ());
    let mut problems: Problems = unexpected(&sent, "").into_iter().collect();
    // What it has acknowledged is durable before the disk goes bad.
    server.stop()?;
    let mut damaged = 0;
    disks.exchange_spool(|image| damaged = damage(image))?;
    unblock(&disks.setup.mail())?;
    let server = disks.setup.start()?;
    problems.extend(until("all mail is delivered", || Ok(disks.account(&load, &sent)?.lost.is_empty()))?);
    let log = server.read_log();
    server.stop()?;
    let found = disks.account(&load, &sent)?;
    let (lost, told) = (found.fronts.len(), log.matches(TOLD).count());
    let others = Account { fronts: Vec::new(), ..found };
    problems.extend(wrong("at the end", &others));
    if damaged == 0 || lost != damaged || told != damaged {
        problems.push(format!("{damaged} fields are damaged, {lost} are not delivered, {told} are told of"));
    }
    Ok(problems)
}

/// Changes a bit of every third `Received`. Returns how many those are.
fn damage(image: &mut Image) -> usize {
    let of_chunk = |(offset, chunk): (u64, &[u8; CHUNK])| -> Vec<u64> {
        memmem::find_iter(chunk, BEGIN).map(|at| offset + at as u64).collect()
    };
    let all: Vec<u64> = image.occupied().flat_map(of_chunk).collect();
    let chosen: Vec<u64> = all.into_iter().step_by(3).collect();
    for at in &chosen {
        let at = at + BEGIN.len() as u64 - 3;
        let mut octet = [0];
        image.read(at, &mut octet);
        image.write(at, &[octet[0] ^ 1]);
    }
    chosen.len()
}

const MESSAGES: u64 = 60;
const BEGIN: &[u8] = b"Received: from rig.example ";
const TOLD: &str = "the fields in front of a message are damaged, the message is whole";
