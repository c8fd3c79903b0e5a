//! An executor in a world that does what a test says: mailboxes and syncs that fail or hang, records that cannot be read, time that passes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use posthaste_journal::sim::SimDisk;
use posthaste_journal::{Journal, OpenError, Recovery};

use super::core::Core;
use super::tests::{Place, mailbox};
use super::{Handle, Journaled, JournaledConfig, ReplayReport};
use crate::Message;
use crate::seams::{Gate, Seams, Step};

/// What stands between the executor and the file system.
#[derive(Default)]
pub(super) struct Doors {
    state: Mutex<DoorState>,
    changed: Condvar,
}

#[derive(Default)]
struct DoorState {
    doors: HashMap<String, Door>,
    held: HashSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Fails,
    Hangs,
}

pub(super) const SYNC: &str = "the sync";

impl Doors {
    fn gate(self: &Arc<Self>) -> Gate {
        let doors = self.clone();
        Arc::new(move |step| match step {
            Step::Mailbox(name) => doors.pass(name),
            Step::Sync => doors.pass(SYNC),
            Step::Message(_) | Step::Mount(_) | Step::SyncOf(_) => Ok(()),
        })
    }

    fn pass(&self, what: &str) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap();
        while state.doors.get(what) == Some(&Door::Hangs) {
            state.held.insert(what.to_owned());
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        match state.doors.get(what) {
            Some(_) => Err(std::io::Error::other("the door is shut")),
            None => Ok(()),
        }
    }

    pub(super) fn shut(&self, what: &str, door: Door) {
        self.state.lock().unwrap().doors.insert(what.to_owned(), door);
    }

    pub(super) fn open(&self, what: &str) {
        self.state.lock().unwrap().doors.remove(what);
        self.changed.notify_all();
    }

    pub(super) fn wait_until_held(&self, what: &str) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| !state.held.contains(what)).unwrap();
        assert!(!waited.1.timed_out(), "nobody came to {what}");
    }
}

/// An executor in a world that does what the test says.
pub(super) struct Steps {
    pub(super) place: Place,
    pub(super) doors: Arc<Doors>,
    // Stands still but for what a test lets pass.
    clock: Arc<Mutex<Instant>>,
    pub(super) journaled: Journaled,
    pub(super) report: ReplayReport,
}

impl Steps {
    /// The workers run, and nothing else by itself.
    pub(super) fn new(config: impl FnOnce(JournaledConfig) -> JournaledConfig) -> Self {
        Self::started(config, in_the_file_system, workers_alone)
    }

    /// As [`Steps::new`], with the journal on a simulated disk.
    pub(super) fn with_journal_on(disk: &SimDisk) -> Self {
        let open = |config: &JournaledConfig| Journal::open_on(Arc::new(disk.clone()), config.journal.clone());
        Self::started(|config| config, open, workers_alone)
    }

    /// All threads run.
    pub(super) fn with_all_threads(config: impl FnOnce(JournaledConfig) -> JournaledConfig) -> Self {
        Self::started(config, in_the_file_system, |core| Journaled::start(core).expect("threads"))
    }

    fn started(
        config: impl FnOnce(JournaledConfig) -> JournaledConfig,
        open: impl FnOnce(&JournaledConfig) -> Result<(Journal, Recovery), OpenError>,
        start: impl FnOnce(Arc<Core<Journal>>) -> Journaled,
    ) -> Self {
        let place = Place::new();
        let config = config(place.config());
        Self::opened(place, Arc::default(), config, open, start)
    }

    /// Opens a place where something was before, with doors that are shut already.
    pub(super) fn reopened(place: Place, doors: Arc<Doors>, config: JournaledConfig) -> Self {
        Self::opened(place, doors, config, in_the_file_system, workers_alone)
    }

    fn opened(
        place: Place,
        doors: Arc<Doors>,
        config: JournaledConfig,
        open: impl FnOnce(&JournaledConfig) -> Result<(Journal, Recovery), OpenError>,
        start: impl FnOnce(Arc<Core<Journal>>) -> Journaled,
    ) -> Self {
        let clock = Arc::new(Mutex::new(Instant::now()));
        let (journal, recovery) = open(&config).expect("a journal");
        let told = clock.clone();
        let seams = Seams { gate: Some(doors.gate()), clock: Some(Arc::new(move || *told.lock().unwrap())) };
        let (core, report) = Core::open(journal, recovery, config, seams).expect("opens");
        Steps { place, doors, clock, journaled: start(core), report }
    }

    pub(super) fn core(&self) -> &Arc<Core<Journal>> {
        &self.journaled.handle.core
    }

    pub(super) fn deliver(&self, message: Message) {
        self.place.deliver(&self.journaled, message).expect("accepted");
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        mailbox(&self.place.mail(), name).into_iter().map(|(_, text)| text).collect()
    }

    pub(super) fn pass(&self, secs: u64) {
        *self.clock.lock().unwrap() += Duration::from_secs(secs);
    }

    pub(super) fn try_again_after(&self, secs: u64) {
        self.pass(secs);
        self.core().try_again(self.core().now());
    }

    pub(super) fn give_up_after(&self, secs: u64) {
        self.pass(secs);
        self.core().workers.give_up_on_stalled(self.core().now(), &**self.core());
    }

    /// A mailbox that answers again gets what waits for it: one message, and when that is there the others.
    pub(super) fn all_follow_the_probe(&self) {
        let others = self.waiting() - 1;
        self.try_again_after(2);
        self.until("the probe", || self.waiting() == others);
        self.try_again_after(0);
        self.until("the others", || self.waiting() == 0);
    }

    /// Damages the records that hold `text`, or mends them again.
    pub(super) fn flip(&self, text: &str) {
        let segments = std::fs::read_dir(self.place.config().journal_dir).expect("a journal");
        for path in segments.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()) {
            let bytes = std::fs::read(&path).expect("readable");
            // Its first byte may be the damage.
            let holds = |window: &[u8]| window[1..] == text.as_bytes()[1..];
            if let Some(at) = bytes.windows(text.len()).position(holds) {
                let file = std::fs::File::options().write(true).open(&path).expect("writable");
                std::os::unix::fs::FileExt::write_all_at(&file, &[bytes[at] ^ 1], at as u64).expect("written");
            }
        }
    }

    /// Waits for what a worker is doing.
    pub(super) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "never: {what}; waiting {:?}", self.journaled.waiting());
            std::thread::yield_now();
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.journaled.stats().waiting
    }
}

fn in_the_file_system(config: &JournaledConfig) -> Result<(Journal, Recovery), OpenError> {
    Journal::open(&config.journal_dir, config.journal.clone())
}

fn workers_alone(core: Arc<Core<Journal>>) -> Journaled {
    for _ in 0..2 {
        core.workers.start(&core).expect("a thread");
    }
    Journaled { handle: Arc::new(Handle { core, keepers: Mutex::new(Some(Vec::new())) }) }
}

const PATIENCE: Duration = Duration::from_secs(30);
