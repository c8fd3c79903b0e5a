//! Local delivery in a simulated world: mounts, mailboxes and syncs that fail or hang, and a clock, as a test directs.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_fsops::{Machine, Tree};
use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_intake::{Clock, Intake};
use posthaste_spool::{AppendError, Batch, FileSpool, Lsn, ReplayError, Spool, StreamId};
use tokio::runtime::Runtime;

use super::message::{LineEnds, MailboxTarget};
use super::{GatheredBody, LocalConfig, LocalDelivery, MailboxMessage, ReplayReport};
use crate::seams::{Gate, Seams, Step};
use crate::{DeliveryError, MessageId};

/// Gates between local delivery and the file system.
#[derive(Default)]
pub(super) struct Doors {
    state: Mutex<DoorState>,
    changed: Condvar,
}

#[derive(Default)]
struct DoorState {
    doors: HashMap<String, Door>,
    held: HashSet<String>,
    pass_once: HashSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Fails,
    Hangs,
}

impl Doors {
    fn gate(self: &Arc<Self>) -> Gate {
        let doors = self.clone();
        Arc::new(move |step| match step {
            Step::Mailbox(name) => doors.pass(name),
            Step::Message(name) => doors.pass(&format!("message {name}")),
            Step::Mount(point) => doors.pass(&format!("mount {point}")),
            Step::SyncOf(point) => doors.pass(&format!("sync {point}")),
        })
    }

    fn pass(&self, what: &str) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap();
        while state.doors.get(what) == Some(&Door::Hangs) {
            state.held.insert(what.to_owned());
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
            if state.pass_once.remove(what) {
                return Ok(());
            }
        }
        match state.doors.get(what) {
            Some(_) => Err(std::io::Error::other("the door is shut")),
            None => Ok(()),
        }
    }

    pub fn shut(&self, what: &str, door: Door) {
        self.state.lock().unwrap().doors.insert(what.to_owned(), door);
    }

    pub fn open(&self, what: &str) {
        self.state.lock().unwrap().doors.remove(what);
        self.changed.notify_all();
    }

    pub fn is_held(&self, what: &str) -> bool {
        self.state.lock().unwrap().held.contains(what)
    }

    /// Number of gates that hold a thread, or have held one.
    pub fn held(&self) -> usize {
        self.state.lock().unwrap().held.len()
    }

    /// Releases the thread held there; the next one is held.
    pub fn let_one_pass(&self, what: &str) {
        let mut state = self.state.lock().unwrap();
        state.held.remove(what);
        state.pass_once.insert(what.to_owned());
        drop(state);
        self.changed.notify_all();
    }

    pub fn wait_until_held(&self, what: &str) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| !state.held.contains(what)).unwrap();
        assert!(!waited.1.timed_out(), "nobody came to {what}");
    }
}

/// A machine with a spool and mail on it.
pub(super) struct Place {
    machine: Machine,
    pub runtime: Runtime,
}

impl Place {
    /// A machine with file systems at these directories below the mail root.
    pub fn new(mounts: &[&str]) -> Self {
        let mounts: Vec<String> = mounts.iter().map(|point| format!("mail/{point}")).collect();
        let mounts: Vec<&str> = mounts.iter().map(|point| &**point).collect();
        Self::of(&Tree::with_mounts(&mounts), true)
    }

    pub fn of(tree: &Tree, syncfs_trusted: bool) -> Self {
        let machine = Machine::boot(tree, syncfs_trusted, false).expect("a machine");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Place { machine, runtime }
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn mail(&self) -> PathBuf {
        self.machine.path().join("mail")
    }

    pub fn config(&self) -> LocalConfig {
        let mut config = LocalConfig::new(self.machine.path().join("spool"), self.mail());
        config.spool.ring.segment_bytes = 1 << 20;
        config.spool.ring.max_segments = 8;
        config.spool.keeper = false;
        config.host = "mx.example".into();
        config.shutdown_patience = Duration::from_secs(30);
        config
    }

    pub fn spool(&self) -> FileSpool {
        FileSpool::open(&self.config().spool_dir, self.config().spool).expect("opens").0
    }

    pub fn deliver(&self, delivery: &LocalDelivery, message: MailboxMessage) -> Result<Vec<MessageId>, DeliveryError> {
        self.runtime.block_on(delivery.deliver_message(message)).map(|kept| kept.names().collect())
    }
}

/// Local delivery in a simulated world. Its clock advances only when a test says so.
pub(super) struct World {
    pub delivery: LocalDelivery,
    pub report: ReplayReport,
    pub spool: Arc<HookedSpool<Watch>>,
    pub doors: Arc<Doors>,
    pub clock: Arc<Mutex<Instant>>,
    pub place: Place,
}

impl World {
    pub fn new(mounts: &[&str]) -> Self {
        Self::opened(Place::new(mounts), Arc::default(), |config| config)
    }

    pub fn opened(place: Place, doors: Arc<Doors>, change: impl FnOnce(LocalConfig) -> LocalConfig) -> Self {
        Self::opened_with(place, doors, Watch::default(), change)
    }

    pub fn opened_with(
        place: Place,
        doors: Arc<Doors>,
        watch: Watch,
        change: impl FnOnce(LocalConfig) -> LocalConfig,
    ) -> Self {
        let clock = Arc::new(Mutex::new(Instant::now()));
        let told = clock.clone();
        let tell: Clock = Arc::new(move || *told.lock().unwrap());
        let seams = Seams { gate: Some(doors.gate()), clock: Some(tell.clone()) };
        let spool = Arc::new(HookedSpool::new(place.spool(), watch));
        let config = change(place.config());
        let intake = Intake::with_clock(spool.clone(), config.intake.clone(), tell);
        let (delivery, report) = LocalDelivery::open_with(intake, false, config, seams).expect("opens");
        World { delivery, report, spool, doors, clock, place }
    }

    /// Ends in order.
    pub fn end(self) -> Place {
        let World { delivery, spool, place, .. } = self;
        drop(delivery);
        assert_eq!(Arc::strong_count(&spool), 1, "somebody holds the spool");
        drop(spool);
        place
    }

    pub fn deliver(&self, message: MailboxMessage) -> Vec<MessageId> {
        self.place.deliver(&self.delivery, message).expect("accepted")
    }

    pub fn texts(&self, name: &str) -> Vec<String> {
        mailbox(&self.place.mail(), name).into_iter().map(|(_, text)| text).collect()
    }

    pub fn pass(&self, secs: u64) {
        *self.clock.lock().unwrap() += Duration::from_secs(secs);
    }

    /// Waits for a thread's work.
    pub fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(
                Instant::now() < deadline,
                "never: {what}; {:?} {:?}",
                self.delivery.waiting(),
                self.delivery.stats()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Advances the clock until a condition holds.
    pub fn until_in_time(&self, what: &str, holds: impl Fn() -> bool) {
        self.until(what, || {
            self.pass(1);
            holds()
        });
    }

    pub fn sync(&self) {
        self.delivery.sync(PATIENCE).expect("synced");
    }

    pub fn waiting(&self) -> usize {
        self.delivery.waiting().len()
    }

    /// Numbers of entries and bodies held by the mount's stream.
    pub fn held(&self, point: &str) -> (u64, u64) {
        let name = super::mounts::stream_of(point);
        let stats = self.spool.streams().into_iter().find(|stream| stream.name == name).expect("its stream");
        (stats.entries, stats.bodies)
    }
}

pub(super) fn message(mailboxes: &[&str], body: &str) -> MailboxMessage {
    let target = |name: &&str| MailboxTarget {
        mailbox: format!("{name}/Maildir").into(),
        prefix: Bytes::from(format!("Delivered-To: {name}\r\n")),
    };
    let targets = mailboxes.iter().map(target).collect();
    MailboxMessage {
        targets,
        body: GatheredBody::Memory(vec![Bytes::copy_from_slice(body.as_bytes())]),
        line_ends: LineEnds::ToLf,
        also: Vec::new(),
    }
}

/// Names and contents of a mailbox, `new/` and `cur/` together, sorted.
pub(super) fn mailbox(root: &Path, name: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for sub in ["new", "cur"] {
        let Ok(entries) = std::fs::read_dir(root.join(name).join("Maildir").join(sub)) else { continue };
        for entry in entries {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
            all.push((name, std::fs::read_to_string(&path).expect("readable")));
        }
    }
    all.sort();
    all
}

/// Records the largest read, and refuses entries when a test says so.
#[derive(Default)]
pub(super) struct Watch {
    pub largest_read: AtomicU64,
    refuses: AtomicBool,
    pub refused: AtomicU64,
    /// Refuses large bodies from now on, like a full disk.
    pub uploads_refused: AtomicU64,
    unreadable: Option<StreamId>,
}

impl Watch {
    /// A disk that cannot read the entries of this stream.
    pub fn not_reading(stream: StreamId) -> Self {
        Watch { unreadable: Some(stream), ..Watch::default() }
    }

    /// Refuses every batch from now on, like a full disk.
    pub fn refuse_entries(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }
}

impl Hooks for Watch {
    fn append(&self, _: &Batch) -> Result<(), AppendError> {
        if !self.refuses.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(AppendError::Full("a test says so".into()))
    }

    fn upload(&self) -> std::io::Result<()> {
        let refused = &self.uploads_refused;
        match refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(std::io::ErrorKind::StorageFull.into()),
            Err(_) => Ok(()),
        }
    }

    fn replay(&self, stream: StreamId) -> Result<(), ReplayError> {
        let error = || ReplayError::Io { lsn: Lsn::new(1), error: std::io::Error::other("a test says so") };
        if self.unreadable == Some(stream) { Err(error()) } else { Ok(()) }
    }

    fn read(&self, octets: u64) {
        self.largest_read.fetch_max(octets, Ordering::Relaxed);
    }
}

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
