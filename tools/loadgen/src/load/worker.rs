//! One thread of the generator: its connections, its events, its share of the schedule.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::os::fd::{AsRawFd, OwnedFd};

use super::client::Client;
use super::connection::Connection;
use super::failure::{Class, Failure};
use super::plan::Plan;
use super::schedule::{Claim, Schedule, SendSlot};
use crate::values::PerConnection;

/// Outcome of one message, for the figures and the account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub number: u64,
    pub acked: u16,
    pub uncertain: u16,
    pub octets: u64,
    pub is_measured: bool,
    pub is_failed: bool,
    /// True if its connection broke in a deliberate kill of the server.
    pub is_broken: bool,
    /// Since the start of the round.
    pub done: Duration,
    /// From the moment the message was due to the verdict.
    pub latency: Duration,
}

/// Periodic report of a worker.
#[derive(Debug, Default)]
pub(super) struct Tick {
    pub worker: usize,
    pub records: Vec<Record>,
    /// Count of each class of error, and the first text seen.
    pub failures: HashMap<Class, (u64, String)>,
    /// Connections so far that were ready to take messages.
    pub sessions: u64,
    /// Requests sent again.
    pub repeated: u64,
    /// Messages in flight now.
    pub in_flight: usize,
    /// True if the worker found no server for too long and ends.
    pub gave_up: bool,
}

mod ending;
mod traffic;

const TICK: Duration = Duration::from_millis(100);
/// Maximum connections of one thread in progress. More would overflow the server's backlog, and a lost SYN is repeated
/// only after a second.
const CONNECTING_MAX: usize = 64;
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_LAST: Duration = Duration::from_secs(1);
/// Minimum pause during a deliberate outage: the server's return is looked for more often, but not by thousands a
/// second.
const OUTAGE_BACKOFF: Duration = Duration::from_millis(20);
const OUTAGE_BACKOFF_PER_SLOT: Duration = Duration::from_micros(200);
/// Timeout of the reply to QUIT at the end.
const QUIT_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Worker {
    plan: Arc<Plan>,
    schedule: Arc<Schedule>,
    poll: Poll,
    timer: OwnedFd,
    slots: Vec<Slot>,
    /// Slots that could take a message, in the order they became free.
    idle: VecDeque<usize>,
    /// Slots that need a connection.
    to_connect: VecDeque<usize>,
    connecting: usize,
    retries: Vec<(Instant, usize)>,
    unfinished: usize,
    ready: usize,
    last_ready: Instant,
    tick: Tick,
    ticks: Sender<Tick>,
}

/// A place for one connection after the other.
struct Slot {
    server: usize,
    live: Option<Box<Live>>,
    /// A message that waits for a connection.
    pending: Option<SendSlot>,
    /// Error of the last attempt at a connection; `None` once there is one.
    last_failure: Option<Failure>,
    backoff: Duration,
    is_finished: bool,
}

struct Live {
    /// Time at which the connection was begun.
    opened: Instant,
    connection: Connection,
    session: Client,
    /// Time of the last activity.
    quiet_since: Instant,
    is_connecting: bool,
}

/// Fate of a connection after a step.
#[derive(PartialEq)]
enum Flow {
    Stay,
    Close,
}

impl Worker {
    /// Worker number `index` with its share of the connections.
    pub fn new(index: usize, plan: Arc<Plan>, schedule: Arc<Schedule>, ticks: Sender<Tick>) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let slot = |number: usize| Slot {
            server: number % plan.servers.len(),
            live: None,
            pending: None,
            last_failure: None,
            backoff: BACKOFF_FIRST,
            is_finished: false,
        };
        let slots: Vec<Slot> = (index..plan.connections).step_by(plan.threads).map(slot).collect();
        Ok(Self {
            poll,
            timer,
            unfinished: slots.len(),
            slots,
            idle: VecDeque::new(),
            to_connect: VecDeque::new(),
            connecting: 0,
            retries: Vec::new(),
            ready: 0,
            last_ready: Instant::now(),
            tick: Tick { worker: index, ..Tick::default() },
            ticks,
            plan,
            schedule,
        })
    }

    /// Runs until every message is done.
    ///
    /// # Errors
    /// When the system's event queue or timer fails, which the server cannot cause.
    pub fn run(mut self) -> std::io::Result<()> {
        let mut events = Events::with_capacity(1024);
        for slot in 0..self.slots.len() {
            self.make_available(slot);
        }
        let (mut next_tick, mut next_sweep) = (Instant::now() + TICK, Instant::now() + TICK);
        while self.unfinished > 0 {
            let now = Instant::now();
            let due = self.start_due(now);
            self.connect_waiting(now);
            if now >= next_tick {
                self.send_tick();
                next_tick = now + TICK;
            }
            if now >= next_sweep {
                self.sweep(now);
                next_sweep = now + TICK;
            }
            if self.unfinished == 0 {
                break;
            }
            self.wait(&mut events, due, now, next_tick)?;
            for event in &events {
                if event.token() != TIMER {
                    self.ready_event(event.token().0, event.is_readable(), event.is_read_closed() || event.is_error());
                }
            }
        }
        self.send_tick();
        Ok(())
    }

    /// Sleeps until an event, at the latest until `due` or `tick`.
    fn wait(&mut self, events: &mut Events, due: Option<Instant>, now: Instant, tick: Instant) -> std::io::Result<()> {
        let mut timeout = tick.saturating_duration_since(now);
        if let Some(until_due) = due.map(|due| due.saturating_duration_since(now)).filter(|time| *time < timeout) {
            // The poll counts in milliseconds, which is too coarse for a schedule.
            let it_value = Timespec { tv_sec: 0, tv_nsec: i64::from(until_due.subsec_nanos().max(1)) };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let once = Itimerspec { it_interval, it_value };
            rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
            timeout = TICK;
        }
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    /// Gives due messages to idle slots. Returns the time of the next due message, if a slot waits for it.
    fn start_due(&mut self, now: Instant) -> Option<Instant> {
        while let Some(&slot) = self.idle.front() {
            match self.schedule.claim(now) {
                Claim::Message(turn) => {
                    self.idle.pop_front();
                    self.start(slot, turn);
                }
                Claim::NotBefore(due) => return Some(due),
                Claim::Finished => {
                    self.idle.pop_front();
                    self.finish(slot);
                }
            }
        }
        None
    }

    /// Gives a slot without a message the next one, or makes it wait for it, or keeps a connection ready for it.
    fn make_available(&mut self, slot: usize) {
        let connects_first = self.plan.per_connection == PerConnection::All;
        if connects_first && self.slots[slot].live.is_none() {
            self.to_connect.push_back(slot);
        } else {
            self.idle.push_back(slot);
        }
    }

    fn start(&mut self, slot: usize, turn: SendSlot) {
        match &mut self.slots[slot].live {
            Some(live) if live.session.is_idle() => {
                live.session.begin(turn, &self.plan);
                live.quiet_since = Instant::now();
                self.flush(slot);
            }
            _ => {
                self.slots[slot].pending = Some(turn);
                self.to_connect.push_back(slot);
            }
        }
    }

    /// Ends the slot: there are no more messages.
    fn finish(&mut self, slot: usize) {
        self.slots[slot].is_finished = true;
        match &mut self.slots[slot].live {
            None => self.unfinished -= 1,
            Some(live) => {
                if !live.session.is_quitting() {
                    live.session.quit();
                }
                live.quiet_since = Instant::now();
                self.flush(slot);
            }
        }
    }

    fn connect_waiting(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.retries.len() {
            if self.retries[at].0 <= now {
                let (_, slot) = self.retries.swap_remove(at);
                // A message that has waited for this still does.
                match self.slots[slot].pending {
                    Some(_) => self.to_connect.push_back(slot),
                    None if self.schedule.is_exhausted(now) => self.finish(slot),
                    None => self.make_available(slot),
                }
            } else {
                at += 1;
            }
        }
        while self.connecting < CONNECTING_MAX {
            let Some(slot) = self.to_connect.pop_front() else { return };
            self.connect(slot);
        }
    }

    fn connect(&mut self, slot: usize) {
        let now = Instant::now();
        let index = self.slots[slot].server;
        let server = &self.plan.servers[index];
        match Connection::open(server, &self.plan, self.poll.registry(), Token(slot)) {
            Ok(connection) => {
                let session = Client::new(index, &self.plan);
                let live = Live { opened: now, connection, session, quiet_since: now, is_connecting: true };
                self.slots[slot].live = Some(Box::new(live));
                self.connecting += 1;
            }
            Err(failure) => {
                let is_explained = self.is_explained(now, &failure, 0);
                self.no_connection(slot, failure, is_explained);
            }
        }
    }

    /// True if an outage explains the failure of a connection.
    fn is_explained(&self, opened: Instant, failure: &Failure, messages: usize) -> bool {
        self.plan.outages.as_ref().is_some_and(|outages| outages.explain(opened, failure, messages))
    }

    fn send_tick(&mut self) {
        self.tick.in_flight = self.slots.iter().flat_map(|slot| &slot.live).map(|live| live.session.in_flight()).sum();
        let next = Tick { worker: self.tick.worker, sessions: self.tick.sessions, ..Tick::default() };
        // The other end goes only when the run is torn down.
        let _ = self.ticks.send(std::mem::replace(&mut self.tick, next));
    }
}

fn count(tick: &mut Tick, failure: Failure) {
    tick.failures.entry(failure.class).or_insert((0, failure.text)).0 += 1;
}

const TIMER: Token = Token(usize::MAX);
