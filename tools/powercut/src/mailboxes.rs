//! Power cuts of a server that delivers into mailboxes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::account::{Account, account};
use crate::image::Image;
use crate::load::{DOMAIN, Load, Sent, send_over, user};
use crate::log::Recording;
use crate::recorded::{Plan, Recorded, RecoveryError, Waiting, wait_for_mark};
use crate::rig::{Environment, Rig, RigError};

/// Runs the server under load on a fresh file system and records all requests to the disk.
///
/// One mailbox cannot be written to during the first half. In between, the server is killed and later told to end.
///
/// # Errors
/// See [`RigError`].
pub fn record(rig: &Rig, plan: &Plan, environment: &Environment) -> Result<Recorded, RigError> {
    let load = Load::mixed(plan.seed);
    let setup = rig.setup();
    rig.disk.record();
    let mut sent = Sent::default();
    let waiting;
    {
        let _mounted = rig.mount()?;
        block(&setup.mail())?;
        let part = |part: u64| plan.messages * part / 4..plan.messages * (part + 1) / 4;
        let deliver =
            |ways: [_; 3], part| send_over(&ways, &load, plan.connections, part, |promise| rig.disk.mark(promise));
        let server = setup.start()?;
        sent.add(deliver(server.ways(), part(0)));
        // Killed while mail is on its way: the next part begins, and the server is gone before its end.
        let killed = std::thread::scope(|scope| {
            let half = part(1).start + (part(1).end - part(1).start) / 2;
            let ways = server.ways();
            let sending = scope.spawn(move || deliver(ways, part(1)));
            wait_for_mark(&rig.disk, half, &sending);
            server.kill();
            sending.join().expect("the generator does not panic")
        });
        sent.add(killed);
        environment.go_on()?;
        let server = setup.start()?;
        sent.add(deliver(server.ways(), part(2)));
        waiting = Waiting::of(&setup.spool());
        unblock(&setup.mail())?;
        server.stop()?;
        let server = setup.start()?;
        sent.add(deliver(server.ways(), part(3)));
        server.stop()?;
        if sent.acknowledged.is_empty() {
            return Err(RigError::NothingAcknowledged);
        }
        let found = account(&setup.mail(), &load, sent.acknowledged.iter().copied())?;
        if !found.is_clean() {
            return Err(RigError::LostWithoutCut(Box::new(Account { files: BTreeMap::new(), ..found })));
        }
    }
    Ok(Recorded { recording: rig.disk.recorded(), load, waiting, is_relayed: false })
}

/// Mounts, starts, stops, accounts; then once more, which must change nothing.
///
/// # Errors
/// The reason why the machine did not start.
pub fn recover(
    rig: &Rig,
    load: &Load,
    image: Image,
    acknowledged: &[u64],
) -> Result<(Recording, Account), RecoveryError> {
    let said = |error: &dyn std::fmt::Display| RecoveryError::Server(error.to_string());
    rig.disk.exchange(image);
    rig.disk.record();
    let setup = rig.setup();
    let found = {
        let _mounted = rig.mount().map_err(|error| RecoveryError::Unmountable(error.to_string()))?;
        unblock(&setup.mail()).map_err(|error| said(&error))?;
        let start_and_stop = || -> Result<Account, RecoveryError> {
            let server = setup.start().map_err(|error| said(&error))?;
            let log = server.read_log();
            if log.contains("promised mail is damaged") {
                return Err(said(&format!("damage where there can be none: {log}")));
            }
            server.stop().map_err(|error| said(&error))?;
            account(&setup.mail(), load, acknowledged.iter().copied()).map_err(|error| said(&error))
        };
        let first = start_and_stop()?;
        let second = start_and_stop()?;
        if first != second {
            let (first, second) = (first.files.len(), second.files.len());
            return Err(said(&format!("a second start changed the mailboxes: {first} files before, {second} after")));
        }
        first
    };
    Ok((rig.disk.recorded(), found))
}

/// Puts a file in place of a mailbox, so that its mail has to wait.
pub(crate) fn block(mail: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(mail.join(DOMAIN))?;
    std::fs::write(blocked(mail), "")
}

pub(crate) fn unblock(mail: &Path) -> std::io::Result<()> {
    if blocked(mail).is_file() { std::fs::remove_file(blocked(mail)) } else { Ok(()) }
}

fn blocked(mail: &Path) -> PathBuf {
    mail.join(DOMAIN).join(user(0))
}
