//! Faults without a power cut: full, failing or hanging disks, changed mailboxes, limits of the machine.
//!
//! Each fault happens under load to a server of its own. In every case acknowledged mail is found exactly once at the end.

mod devices;
mod fills;
mod fronts;
mod limits;
mod mailboxes;
mod relay;
mod space;
mod transports;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::account::{Account, account};
use crate::image::Image;
use crate::load::{Broken, Load, Sent};
use crate::mount::{FileSystem, Mounted};
use crate::rig::{Environment, Rig, RigError};
use crate::server::Setup;

/// A fault to inject.
pub struct Fault {
    /// Name on the command line.
    pub name: &'static str,
    /// The promise that must hold.
    pub promise: &'static str,
    run: fn(&Environment) -> Result<Problems, RigError>,
}

/// Descriptions of broken promises; empty if all held.
pub type Problems = Vec<String>;

/// Result of one fault.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Shown {
    pub fault: &'static str,
    pub promise: &'static str,
    /// The reason why this machine cannot try it.
    pub skipped: Option<String>,
    pub problems: Problems,
}

impl Fault {
    /// Runs the fault. It counts as skipped if this machine lacks something for it.
    ///
    /// # Errors
    /// See [`RigError`]; a promise that does not hold is no error, nor is a server that does not start or stop.
    pub fn run(&self, environment: &Environment) -> Result<Shown, RigError> {
        let (skipped, problems) = match (self.run)(environment) {
            Err(RigError::Unavailable(why)) => (Some(why), Problems::new()),
            Err(error) if error.is_finding() => (None, vec![error.to_string()]),
            done => (None, done?),
        };
        Ok(Shown { fault: self.name, promise: self.promise, skipped, problems })
    }
}

/// All faults, in the order of their runs.
pub const ALL: [Fault; 21] = [
    Fault {
        name: "spool-full",
        promise: "452 4.3.1 while the spool's disk is full, mail again when there is space",
        run: space::spool_full,
    },
    Fault {
        name: "mail-full",
        promise: "250 while the mail's disk is full, delivery when there is space",
        run: space::mail_full,
    },
    Fault {
        name: "spool-write-error",
        promise: "no 250 from the first EIO to the restart",
        run: devices::spool_writes_fail,
    },
    Fault {
        name: "spool-flush-error",
        promise: "no 250 from the first EIO to the restart",
        run: devices::spool_flushes_fail,
    },
    Fault {
        name: "relay-spool-error",
        promise: "nothing is sent from the first EIO to the restart, and all of it after that",
        run: relay::spool_fails,
    },
    Fault {
        name: "transport-spool-error",
        promise: "nothing is posted or given to transports from the first EIO to the restart, and all of it after that",
        run: transports::spool_fails,
    },
    Fault {
        name: "relay-spool-short",
        promise: "mail leaves and is recorded while notices wait for space, through kills",
        run: fills::spool_short,
    },
    Fault {
        name: "relay-ring-full",
        promise: "nothing is sent that cannot be recorded, and all of it when there is space, through kills",
        run: fills::ring_full,
    },
    Fault {
        name: "mail-write-error",
        promise: "what a failed sync has dropped is written anew",
        run: devices::mail_writes_fail,
    },
    Fault {
        name: "mail-write-error-kill",
        promise: "and by the next server, if this one is killed",
        run: devices::mail_writes_fail_and_a_kill,
    },
    Fault {
        name: "mail-flush-error",
        promise: "250 goes on, delivery when it is mounted anew",
        run: devices::mail_flushes_fail,
    },
    Fault {
        name: "mail-hangs",
        promise: "250 goes on, and so does mail to mailboxes on other mounts",
        run: devices::mail_hangs,
    },
    Fault {
        name: "mail-read-only",
        promise: "250 goes on, delivery when it is writable",
        run: devices::mail_read_only,
    },
    Fault { name: "mailbox-moved", promise: "mail goes into a new one", run: mailboxes::moved },
    Fault {
        name: "mailbox-removed",
        promise: "later mail goes into a new one, all others' mail is untouched",
        run: mailboxes::removed,
    },
    Fault { name: "mailbox-immutable", promise: "its mail alone waits", run: mailboxes::immutable },
    Fault {
        name: "mailbox-symlink",
        promise: "nothing is written through it, its mail alone waits",
        run: mailboxes::symlink,
    },
    Fault {
        name: "front-fields-damaged",
        promise: "messages whose fields in front are damaged are delivered whole, and each is told once",
        run: fronts::damaged,
    },
    Fault { name: "two-servers", promise: "the second refuses, the first goes on", run: mailboxes::two_servers },
    Fault {
        name: "clock-jumps",
        promise: "nothing stalls and nothing is lost, by whatever the wall clock jumps",
        run: limits::clock_jumps,
    },
    Fault {
        name: "descriptors-exhausted",
        promise: "whoever is connected sends on, the others when there are some again",
        run: limits::descriptors_exhausted,
    },
];

/// A server whose spool and mail lie on a disk each. Fields are dropped in this order: unmounted before the disks go.
struct TwoDisks {
    setup: Setup,
    spool_mount: Option<Mounted>,
    mail_mount: Option<Mounted>,
    spool: Rig,
    mail: Rig,
}

impl TwoDisks {
    fn new(environment: &Environment, file_system: FileSystem, bytes: u64) -> Result<Self, RigError> {
        let (spool, mail) = (Rig::new(environment, file_system, bytes)?, Rig::new(environment, file_system, bytes)?);
        let setup = Setup {
            spool: Some(spool.mount_point().join("spool")),
            mail: Some(mail.mount_point().join("mail")),
            data: spool.mount_point().join("data"),
            ..spool.setup()
        };
        let mut disks = TwoDisks { setup, spool_mount: None, mail_mount: None, spool, mail };
        disks.spool.disk.record();
        disks.mail.disk.record();
        disks.mount()?;
        Ok(disks)
    }

    fn mount(&mut self) -> Result<(), RigError> {
        self.spool_mount = Some(self.spool.mount()?);
        self.mail_mount = Some(self.mail.mount()?);
        Ok(())
    }

    /// Cuts the power, dropping all unflushed writes of both disks, and restores it.
    fn cut(&mut self) -> Result<(), RigError> {
        // Looked at before the file systems are unmounted, which would flush it all.
        let images = [&self.spool, &self.mail].map(|rig| rig.disk.after_a_cut());
        (self.spool_mount, self.mail_mount) = (None, None);
        for (rig, image) in [&self.spool, &self.mail].into_iter().zip(images) {
            rig.disk.exchange(image);
            rig.disk.record();
        }
        self.mount()
    }

    /// Exchanges the spool's disk while the machine is off. No server runs.
    fn exchange_spool(&mut self, change: impl FnOnce(&mut Image)) -> Result<(), RigError> {
        // Unmounting flushes all of it.
        self.spool_mount = None;
        let mut image = self.spool.disk.image();
        change(&mut image);
        self.spool.disk.exchange(image);
        self.spool_mount = Some(self.spool.mount()?);
        Ok(())
    }

    fn mail_mount(&self) -> &Mounted {
        self.mail_mount.as_ref().expect("mounted until it is cut")
    }

    fn account(&self, load: &Load, sent: &Sent) -> Result<Account, RigError> {
        Ok(account(&self.setup.mail(), load, sent.acknowledged.iter().copied())?)
    }
}

/// Writes a file into `dir` until its file system has no more than `leave` bytes; it is removed when this is dropped.
struct Filler(PathBuf);

impl Filler {
    fn new(dir: &Path, leave: u64) -> Result<Self, RigError> {
        let filler = Filler(dir.join("filler"));
        std::fs::File::create(&filler.0)?;
        filler.fill(leave)?;
        Ok(filler)
    }

    /// Takes the space freed since.
    fn fill(&self, leave: u64) -> Result<(), RigError> {
        let file = std::fs::File::options().write(true).open(&self.0)?;
        let (space, len) = (rustix::fs::fstatvfs(&file).map_err(std::io::Error::from)?, file.metadata()?.len());
        // The servers are root's, which may have the blocks that are reserved, too.
        let free = if leave == 0 { space.f_bfree } else { space.f_bavail };
        let mut bytes = (free * space.f_frsize).saturating_sub(leave);
        while bytes >= space.f_frsize {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), len, bytes) {
                Ok(()) => return Ok(file.sync_all()?),
                // The file system needs some for itself, or the server was quicker.
                Err(rustix::io::Errno::NOSPC) => bytes /= 2,
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
        }
        Ok(())
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // A file system that has failed meanwhile keeps it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Waits until a condition holds. Returns a description of it if it does not in time.
fn until(what: &str, mut holds: impl FnMut() -> Result<bool, RigError>) -> Result<Option<String>, RigError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let begun = Instant::now();
        if holds()? {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Ok(Some(format!("{what}: not within {} s", PATIENCE.as_secs())));
        }
        // Reading all mail may take longer than what is waited for: half of the time is the server's.
        std::thread::sleep(begun.elapsed().max(Duration::from_millis(20)));
    }
}

/// Describes the findings of an account, if there are any.
fn wrong(when: &str, found: &Account) -> Option<String> {
    (!found.is_clean()).then(|| format!("{when}: {found}"))
}

/// Replies to messages that are not among the expected ones, and broken connections.
fn unexpected(sent: &Sent, expected: &str) -> Option<String> {
    let refused = sent.refused.iter().find(|(_, reply)| expected.is_empty() || !reply.starts_with(expected));
    let refused = refused.map(|(number, reply)| format!("message {number} was refused with {reply:?}"));
    let broken = sent.broken.first().map(|Broken { last_reply, error }| match last_reply.as_str() {
        "" => format!("no connection: {error}"),
        reply => format!("a connection broke after {reply:?}: {error}"),
    });
    refused.or(broken)
}

/// Much longer than a server needs. On two processors with 30 busy programs, mail that had waited during 13 s of a
/// read-only disk took 41 s to deliver. Retries back off for as long as the failure lasted.
const PATIENCE: Duration = Duration::from_secs(150);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::server::ServerError;

    fn shown(run: fn(&Environment) -> Result<Problems, RigError>) -> Result<Shown, RigError> {
        let scratch = std::env::temp_dir();
        let environment =
            Environment { program: "none".into(), spool_kind: "ring".into(), scratch, interrupted: Arc::default() };
        Fault { name: "a-fault", promise: "", run }.run(&environment)
    }

    #[test]
    fn lacks_are_skipped_and_a_failed_start_is_a_problem() {
        let lacking = shown(|_| Err(RigError::Unavailable("no library".to_owned()))).unwrap();
        assert_eq!((lacking.skipped.as_deref(), lacking.problems.len()), (Some("no library"), 0));
        let ended = shown(|_| Err(ServerError::Ended { status: "1".to_owned(), log: String::new() }.into())).unwrap();
        assert_eq!((ended.skipped, ended.problems.len()), (None, 1));
        assert!(shown(|_| Err(RigError::Interrupted)).is_err());
    }

    #[test]
    fn who_says_nothing_any_more_has_not_refused_as_expected() {
        let mut sent = Sent { refused: vec![(1, "451 4.3.0 later".to_owned())], ..Sent::default() };
        assert_eq!(unexpected(&sent, "451 4.3.0"), None);
        assert!(unexpected(&sent, "").is_some() && unexpected(&sent, "452").is_some());
        sent.broken.push(Broken { last_reply: String::new(), error: "refused".to_owned() });
        assert_eq!(unexpected(&sent, "451 4.3.0").as_deref(), Some("no connection: refused"));
    }
}
