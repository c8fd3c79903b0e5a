//! Changed mailboxes, and a second server.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Problems, unexpected, until, wrong};
use crate::account::{Account, account};
use crate::load::{DOMAIN, Load, Sent, send, user};
use crate::mount::{FileSystem, run};
use crate::rig::{Environment, Rig, RigError};
use crate::server::{ServerError, Setup};

/// A mailbox is moved away while mail arrives; in the end the two together hold all mail.
pub fn moved(environment: &Environment) -> Result<Problems, RigError> {
    let away = |mailbox: &Path| mailbox.with_file_name("away");
    happens_to_a_mailbox(
        environment,
        Meanwhile::MakesAnother,
        |mailbox| Ok(std::fs::rename(mailbox, away(mailbox))?),
        |mailbox| {
            for subdir in ["new", "cur"] {
                for entry in std::fs::read_dir(away(mailbox).join("Maildir").join(subdir))? {
                    let entry = entry?;
                    std::fs::rename(entry.path(), mailbox.join("Maildir").join(subdir).join(entry.file_name()))?;
                }
            }
            Ok(Problems::new())
        },
    )
}

/// A mailbox is removed with its mail, repeatedly, while mail arrives. The removed mail was its owner's to remove.
pub fn removed(environment: &Environment) -> Result<Problems, RigError> {
    let rig = Rig::new(environment, FileSystem::Ext4, 512 << 20)?;
    let _mounted = rig.mount()?;
    let setup = rig.setup();
    let load = Load { several_one_in: u64::MAX, ..Load::mixed(33) };
    let mailbox: PathBuf = setup.mail().join(DOMAIN).join(user(1));
    let server = setup.start()?;
    let mut sent = send(&load, server.address, 4, 0..100, |_| ());
    sent.add(std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&load, server.address, 4, 100..500, |_| ()));
        while !sending.is_finished() {
            // Fails where a file comes in between; the next time it does not.
            let _ = std::fs::remove_dir_all(&mailbox);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        sending.join().expect("the generator does not panic")
    }));
    let later = 500..600;
    sent.add(send(&load, server.address, 4, later.clone(), |_| ()));
    let mut problems: Problems = unexpected(&sent, "").into_iter().collect();
    let owed = || -> Result<Account, RigError> {
        let mut found = account(&setup.mail(), &load, sent.acknowledged.iter().copied())?;
        found.lost.retain(|entry| entry.mailbox != 1 || later.contains(&entry.message));
        Ok(found)
    };
    problems.extend(until("all mail that nobody removed is delivered", || Ok(owed()?.lost.is_empty()))?);
    server.stop()?;
    problems.extend(wrong("at the end", &owed()?));
    Ok(problems)
}

/// `chattr +i` stops even root.
pub fn immutable(environment: &Environment) -> Result<Problems, RigError> {
    let chattr = |how: &str, mailbox: &Path| run(Command::new("chattr").arg(how).arg(mailbox.join("Maildir/tmp")));
    happens_to_a_mailbox(
        environment,
        Meanwhile::Waits,
        |mailbox| Ok(chattr("+i", mailbox)?),
        |mailbox| Ok(chattr("-i", mailbox).map(|()| Problems::new())?),
    )
}

pub fn symlink(environment: &Environment) -> Result<Problems, RigError> {
    let aside = |mailbox: &Path| mailbox.with_file_name("aside");
    let elsewhere = |mailbox: &Path| mailbox.with_file_name("elsewhere");
    happens_to_a_mailbox(
        environment,
        Meanwhile::Waits,
        |mailbox| {
            std::fs::rename(mailbox, aside(mailbox))?;
            for subdir in ["tmp", "new", "cur"] {
                std::fs::create_dir_all(elsewhere(mailbox).join("Maildir").join(subdir))?;
            }
            Ok(std::os::unix::fs::symlink(elsewhere(mailbox), mailbox)?)
        },
        |mailbox| {
            std::fs::remove_file(mailbox)?;
            std::fs::rename(aside(mailbox), mailbox)?;
            let files = std::fs::read_dir(elsewhere(mailbox).join("Maildir/new"))?.count();
            Ok((files > 0).then(|| format!("{files} files were written through the link")).into_iter().collect())
        },
    )
}

/// Fate of a mailbox's mail during the fault.
enum Meanwhile {
    /// It goes into a newly made mailbox.
    MakesAnother,
    Waits,
}

/// Applies a fault to the mailbox of `u1` in the middle of the load and undoes it soon after; the mail of all others
/// arrives meanwhile.
fn happens_to_a_mailbox(
    environment: &Environment,
    meanwhile: Meanwhile,
    happens: impl Fn(&Path) -> Result<(), RigError>,
    put_right: impl Fn(&Path) -> Result<Problems, RigError>,
) -> Result<Problems, RigError> {
    let rig = Rig::new(environment, FileSystem::Ext4, 512 << 20)?;
    let _mounted = rig.mount()?;
    let setup = rig.setup();
    let load = Load { several_one_in: u64::MAX, ..Load::mixed(31) };
    let mailbox: PathBuf = setup.mail().join(DOMAIN).join(user(1));
    let server = setup.start()?;
    let mut sent = send(&load, server.address, 4, 0..100, |_| ());
    let during = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&load, server.address, 4, 100..500, |_| ()));
        happens(&mailbox)?;
        Ok::<Sent, RigError>(sending.join().expect("the generator does not panic"))
    })?;
    sent.add(during);
    let mut problems: Problems = unexpected(&sent, "").into_iter().collect();
    let lost = || Ok::<_, RigError>(account(&setup.mail(), &load, sent.acknowledged.iter().copied())?.lost);
    problems.extend(until("the mail of all others is delivered", || Ok(lost()?.iter().all(|e| e.mailbox == 1)))?);
    // Or nothing was tried.
    if matches!(meanwhile, Meanwhile::Waits) && lost()?.is_empty() {
        problems.push("nothing kept mail out of the mailbox".to_owned());
    }
    problems.extend(put_right(&mailbox)?);
    problems.extend(until("the rest is delivered", || Ok(lost()?.is_empty()))?);
    server.stop()?;
    problems.extend(wrong("at the end", &account(&setup.mail(), &load, sent.acknowledged.iter().copied())?));
    Ok(problems)
}

pub fn two_servers(environment: &Environment) -> Result<Problems, RigError> {
    let rig = Rig::new(environment, FileSystem::Ext4, 256 << 20)?;
    let _mounted = rig.mount()?;
    let first = rig.setup();
    let scratch = tempfile::Builder::new().prefix("powercut-second-").tempdir_in(&environment.scratch)?;
    let second = Setup { scratch: scratch.path().to_owned(), ..first.clone() };
    let load = Load::mixed(32);
    let server = first.start()?;
    let mut sent = send(&load, server.address, 4, 0..100, |_| ());
    let mut problems = Problems::new();
    match second.start() {
        Ok(_) => problems.push("a second server started on the same data".to_owned()),
        // The exit status that is promised.
        Err(ServerError::Ended { status, .. }) if status == "exit status: 2" => {}
        Err(other) => problems.push(format!("the second server: {other}")),
    }
    sent.add(send(&load, server.address, 4, 100..200, |_| ()));
    problems.extend(unexpected(&sent, ""));
    server.stop()?;
    problems.extend(wrong("at the end", &account(&first.mail(), &load, sent.acknowledged.iter().copied())?));
    Ok(problems)
}
