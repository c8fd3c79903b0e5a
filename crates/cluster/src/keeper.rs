//! Writes snapshots of the log position, so that an opening replays little and the ring can drop old entries.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use posthaste_spool::{Lsn, Released, SnapshotName};

use crate::hub::Hub;
use crate::local::LocalSpool;

/// Wakes the keeper.
#[derive(Default)]
pub(crate) struct Bell {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default, PartialEq, Eq)]
enum Wanted {
    #[default]
    Nothing,
    Snapshot,
    End,
}

impl Bell {
    /// Asks for a snapshot.
    pub fn ring(&self) {
        let mut wanted = self.wanted.lock().expect("nothing panics while it is held");
        if *wanted == Wanted::Nothing {
            *wanted = Wanted::Snapshot;
        }
        self.changed.notify_all();
    }

    fn end(&self) {
        *self.wanted.lock().expect("nothing panics while it is held") = Wanted::End;
        self.changed.notify_all();
    }

    /// Waits for work; false at the end.
    fn wait(&self) -> bool {
        let wanted = self.wanted.lock().expect("nothing panics while it is held");
        let wanted = self.changed.wait_while(wanted, |wanted| *wanted == Wanted::Nothing);
        let mut wanted = wanted.expect("nothing panics while it is held");
        if *wanted == Wanted::End {
            return false;
        }
        *wanted = Wanted::Nothing;
        true
    }
}

/// The keeper's thread. Dropping it ends the thread.
pub(crate) struct Keeper {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start<L: LocalSpool>(hub: Arc<Hub<L>>, bell: Arc<Bell>) -> io::Result<Self> {
        let told = bell.clone();
        let thread = std::thread::Builder::new().name("cluster-keeper".to_owned()).spawn(move || {
            while told.wait() {
                // It fails where a checkpoint fails, which tells the operator; the next one tries again.
                drop(hub.write_snapshot());
            }
        })?;
        Ok(Keeper { bell, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.bell.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<L: LocalSpool> Hub<L> {
    /// Writes a snapshot of the log position, and advances the private stream to it.
    pub fn write_snapshot(&self) -> io::Result<()> {
        let _one_at_a_time = self.snapshotting.lock().expect("nothing panics while it is held");
        let applied = self.member.applied();
        let Some((_, local)) = applied.runs.last() else { return Ok(()) };
        let (position, _) = self.local.position(self.stream);
        if position.get() >= local && !self.local.wants_snapshot(self.stream) {
            return Ok(());
        }
        let is_again = position.get() >= local;
        let name = format!("{}.{local}{}", crate::opening::LOG_STREAM, if is_again { ".2" } else { "" });
        let name = SnapshotName::new(&name).expect("a valid name");
        let bytes = applied.encode();
        self.local.write_snapshot(&name, &mut |out: &mut dyn Write| out.write_all(&bytes))?;
        self.local.advance(self.stream, Lsn::new(local), Some(name), Released::default());
        Ok(())
    }
}
