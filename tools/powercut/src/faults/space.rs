//! Full disks.

use super::{Filler, Problems, TwoDisks, unexpected, until, wrong};
use crate::load::{Load, send};
use crate::mailboxes::{block, unblock};
use crate::mount::FileSystem;
use crate::rig::{Environment, RigError};

pub fn spool_full(environment: &Environment) -> Result<Problems, RigError> {
    let disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let load = Load { large_one_in: u64::MAX, ..Load::mixed(11) };
    // Mail that must stay in the spool, so that its space is used up for good.
    block(&disks.setup.mail())?;
    let filler = Filler::new(disks.spool.mount_point(), ROOM_FOR_THREE_SEGMENTS)?;
    let server = disks.setup.start()?;
    let mut problems = Problems::new();
    let mut sent = send(&load, server.address, 4, 0..1200, |_| ());
    if sent.refused.is_empty() {
        problems.push("1200 messages fit into a spool of three segments".to_owned());
    }
    // A connection on which nothing was accepted for 200 commands is closed, which is the server's right.
    sent.refused.retain(|(_, reply)| !reply.starts_with("421 4.7.0"));
    sent.broken.retain(|broken| !broken.last_reply.starts_with("421 4.7.0"));
    problems.extend(unexpected(&sent, "452 4.3.1"));
    drop(filler);
    unblock(&disks.setup.mail())?;
    let after = send(&load, server.address, 4, 1200..1400, |_| ());
    problems.extend(unexpected(&after, ""));
    sent.add(after);
    problems.extend(until("all mail is delivered", || Ok(disks.account(&load, &sent)?.is_clean()))?);
    server.stop()?;
    problems.extend(wrong("at the end", &disks.account(&load, &sent)?));
    Ok(problems)
}

pub fn mail_full(environment: &Environment) -> Result<Problems, RigError> {
    let disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let load = Load::mixed(12);
    let filler = Filler::new(disks.mail.mount_point(), 1 << 20)?;
    let server = disks.setup.start()?;
    let sent = send(&load, server.address, 4, 0..400, |_| ());
    let mut problems: Problems = unexpected(&sent, "").into_iter().collect();
    if disks.account(&load, &sent)?.lost.is_empty() {
        problems.push("400 messages fit into 1 MiB".to_owned());
    }
    drop(filler);
    problems.extend(until("all mail is delivered", || Ok(disks.account(&load, &sent)?.is_clean()))?);
    server.stop()?;
    problems.extend(wrong("at the end", &disks.account(&load, &sent)?));
    Ok(problems)
}

const ROOM_FOR_THREE_SEGMENTS: u64 = 14 << 20;
