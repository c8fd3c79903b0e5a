//! Disks that fail or do not answer.

use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_loadgen::stamp;

use super::{Problems, TwoDisks, unexpected, until, wrong};
use crate::disk::Faults;
use crate::load::{DOMAIN, Load, Sent, send, user};
use crate::mount::{FileSystem, bind};
use crate::rig::{Environment, Rig, RigError};

pub fn spool_writes_fail(environment: &Environment) -> Result<Problems, RigError> {
    spool_fails(environment, Faults { writes_fail: true, ..Faults::default() })
}

pub fn spool_flushes_fail(environment: &Environment) -> Result<Problems, RigError> {
    spool_fails(environment, Faults { flushes_fail: true, ..Faults::default() })
}

fn spool_fails(environment: &Environment, faults: Faults) -> Result<Problems, RigError> {
    let mut disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let load = Load::mixed(21);
    let server = disks.setup.start()?;
    let acknowledged = AtomicU64::new(0);
    let mut sent = send(&load, server.address, 4, 0..400, |_| {
        if acknowledged.fetch_add(1, Ordering::Relaxed) == 100 {
            disks.spool.disk.set_faults(faults.clone());
        }
    });
    let mut problems = Problems::new();
    for (when, numbers) in [("while the disk fails", 400..410), ("after it has recovered", 410..420)] {
        let after = send(&load, server.address, 1, numbers, |_| ());
        if !after.acknowledged.is_empty() {
            problems.push(format!("250 {when}"));
        }
        problems.extend(unexpected(&after, "451 4.3.0"));
        sent.add(after);
        disks.spool.disk.set_faults(Faults::default());
    }
    server.kill();
    disks.cut()?;
    let server = disks.setup.start()?;
    let after = send(&load, server.address, 4, 420..500, |_| ());
    problems.extend(unexpected(&after, ""));
    sent.add(after);
    server.stop()?;
    problems.extend(wrong("after the restart", &disks.account(&load, &sent)?));
    Ok(problems)
}

pub fn mail_writes_fail(environment: &Environment) -> Result<Problems, RigError> {
    mail_fails(environment, false)
}

pub fn mail_writes_fail_and_a_kill(environment: &Environment) -> Result<Problems, RigError> {
    mail_fails(environment, true)
}

/// Writes of mail data fail while the file system's log works. Data whose sync failed still reads well from the page
/// cache, and later syncs succeed.
fn mail_fails(environment: &Environment, kill: bool) -> Result<Problems, RigError> {
    let mut disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let load = Load::mixed(22);
    let mut server = disks.setup.start()?;
    let mut sent = send(&load, server.address, 4, 0..100, |_| ());
    let stamped = stamp::FIELD.as_bytes().to_vec();
    disks.mail.disk.set_faults(Faults { writes_fail_with: Some(stamped), ..Faults::default() });
    sent.add(send(&load, server.address, 4, 100..300, |_| ()));
    let mut problems = Problems::new();
    problems.extend(until("a sync fails", || Ok(disks.mail.disk.faults_hit() > 0))?);
    if kill {
        server.kill();
        server = disks.setup.start()?;
    }
    disks.mail.disk.set_faults(Faults::default());
    sent.add(send(&load, server.address, 4, 300..400, |_| ()));
    problems.extend(unexpected(&sent, ""));
    server.stop()?;
    // The server's last checkpoint has called all of it durable: now nothing but the disks counts.
    disks.cut()?;
    disks.setup.start()?.stop()?;
    problems.extend(wrong("after a power cut", &disks.account(&load, &sent)?));
    Ok(problems)
}

/// The file system has shut down by the time its disk works again: its mail is found after the next mount.
pub fn mail_flushes_fail(environment: &Environment) -> Result<Problems, RigError> {
    let mut disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let load = Load::mixed(26);
    let server = disks.setup.start()?;
    let mut sent = send(&load, server.address, 4, 0..100, |_| ());
    disks.mail.disk.set_faults(Faults { flushes_fail: true, ..Faults::default() });
    sent.add(send(&load, server.address, 4, 100..300, |_| ()));
    let mut problems = Problems::new();
    problems.extend(until("a flush fails", || Ok(disks.mail.disk.faults_hit() > 0))?);
    disks.mail.disk.set_faults(Faults::default());
    sent.add(send(&load, server.address, 4, 300..400, |_| ()));
    problems.extend(unexpected(&sent, ""));
    server.kill();
    disks.cut()?;
    let server = disks.setup.start()?;
    problems.extend(until("all mail is delivered", || Ok(disks.account(&load, &sent)?.is_clean()))?);
    server.stop()?;
    problems.extend(wrong("at the end", &disks.account(&load, &sent)?));
    Ok(problems)
}

pub fn mail_hangs(environment: &Environment) -> Result<Problems, RigError> {
    let disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let other = Rig::new(environment, FileSystem::Ext4, 64 << 20)?;
    let other_mount = other.mount()?;
    // More mailboxes on it than the server has threads to begin with.
    let mut binds = Vec::new();
    for mailbox in 0..ON_OTHER {
        let at = disks.setup.mail().join(DOMAIN).join(user(mailbox));
        let dir = other_mount.path().join(user(mailbox));
        std::fs::create_dir_all(&at)?;
        std::fs::create_dir_all(&dir)?;
        binds.push(bind(&dir, &at)?);
    }
    let server = disks.setup.start()?;
    let mut problems = Problems::new();
    let few = Load { several_one_in: u64::MAX, large_one_in: u64::MAX, ..Load::mixed(23) };
    let mut sent = send(&few, server.address, 4, 0..100, |_| ());
    problems.extend(until("mail is delivered before", || Ok(disks.account(&few, &sent)?.is_clean()))?);
    sent.add(send(&few, server.address, 4, 100..200, |_| ()));
    let hung = Hung::new(&other);
    let more = Load { mailboxes: 16, seed: 24, ..few.clone() };
    let sent_more = send(&more, server.address, 4, 0..400, |_| ());
    problems.extend(until("a sync hangs on it", || Ok(server.waits_for_disk("mail-sync")))?);
    // Again to all of them, and to mailboxes that nobody has opened yet.
    let fresh = Load { mailboxes: 32, seed: 25, ..few.clone() };
    let sent_fresh = send(&fresh, server.address, 4, 0..400, |_| ());
    let all = [(&few, &sent), (&more, &sent_more), (&fresh, &sent_fresh)];
    problems.extend(all.iter().find_map(|(_, sent)| unexpected(sent, "")));
    let acknowledged: usize = all.iter().map(|(_, sent)| sent.acknowledged.len()).sum();
    if acknowledged != 1000 {
        problems.push(format!("{acknowledged} of 1000 acknowledged"));
    }
    // Seen by the names alone: to read a file on the hanging disk would hang us.
    let elsewhere: u64 = all.iter().map(|(load, sent)| expected(load, sent)).sum();
    problems.extend(until("mail to other mounts is delivered", || {
        Ok(visible(&disks, ON_OTHER..fresh.mailboxes)? == elsewhere)
    })?);
    drop(hung);
    problems.extend(until("the rest is delivered when it answers again", || {
        Ok(visible(&disks, 0..fresh.mailboxes)? == acknowledged as u64)
    })?);
    server.stop()?;
    for (load, sent) in all {
        // The files of the other parts carry stamps of other runs, and count as half here.
        let found = disks.account(load, sent)?;
        if !found.lost.is_empty() || !found.duplicated.is_empty() {
            problems.push(format!("at the end: lost {:?}, duplicated {:?}", found.lost, found.duplicated));
        }
    }
    Ok(problems)
}

/// A disk that does not answer until this is dropped.
struct Hung<'a>(&'a Rig);

impl<'a> Hung<'a> {
    fn new(rig: &'a Rig) -> Self {
        rig.disk.set_faults(Faults { hangs: true, ..Faults::default() });
        Hung(rig)
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.disk.set_faults(Faults::default());
    }
}

/// Files in the `new/` of some mailboxes.
fn visible(disks: &TwoDisks, mailboxes: std::ops::Range<u64>) -> Result<u64, RigError> {
    let mut count = 0;
    for mailbox in mailboxes {
        let new = disks.setup.mail().join(DOMAIN).join(user(mailbox)).join("Maildir/new");
        count += std::fs::read_dir(new).map_or(0, |entries| entries.count() as u64);
    }
    Ok(count)
}

/// Acknowledged messages to mailboxes that are not on the hanging disk.
fn expected(load: &Load, sent: &Sent) -> u64 {
    let elsewhere = sent.acknowledged.iter().filter(|&&number| load.letter(number).recipients[0] >= ON_OTHER);
    elsewhere.count() as u64
}

pub fn mail_read_only(environment: &Environment) -> Result<Problems, RigError> {
    let disks = TwoDisks::new(environment, FileSystem::Ext4, 192 << 20)?;
    let load = Load::mixed(25);
    let server = disks.setup.start()?;
    let mut sent = send(&load, server.address, 4, 0..100, |_| ());
    disks.mail_mount().remount(true)?;
    sent.add(send(&load, server.address, 4, 100..300, |_| ()));
    let mut problems: Problems = unexpected(&sent, "").into_iter().collect();
    disks.mail_mount().remount(false)?;
    problems.extend(until("all mail is delivered", || Ok(disks.account(&load, &sent)?.is_clean()))?);
    server.stop()?;
    problems.extend(wrong("at the end", &disks.account(&load, &sent)?));
    Ok(problems)
}

/// Mailboxes on the disk that hangs.
const ON_OTHER: u64 = 4;
