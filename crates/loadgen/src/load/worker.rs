//! One thread of the generator: its connections, its events, its share of the schedule.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::os::fd::{AsRawFd, OwnedFd};

use super::connection::{Connection, Got};
use super::failure::{Cause, Class, Failure, Stage};
use super::plan::Plan;
use super::replies;
use super::schedule::{Claim, Schedule, Turn};
use super::session::{Event, Fate, Session};
use crate::values::{PerConnection, TlsStart};

/// What became of one message, for the figures and the account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub number: u64,
    pub acked: u16,
    pub uncertain: u16,
    pub octets: u64,
    pub is_measured: bool,
    pub is_failed: bool,
    /// Since the start of the round.
    pub done: Duration,
    /// From the moment the message was due to the verdict.
    pub latency: Duration,
}

/// What a worker tells every so often.
#[derive(Debug, Default)]
pub(super) struct Tick {
    pub worker: usize,
    pub records: Vec<Record>,
    /// How often each class of error came, and the first text seen.
    pub failures: HashMap<Class, (u64, String)>,
    /// Connections made so far that came as far as taking messages.
    pub sessions: u64,
    /// Messages under way now.
    pub in_flight: usize,
    /// The worker found no server for too long and ends.
    pub gave_up: bool,
}

const TICK: Duration = Duration::from_millis(100);
/// Connections of one thread that are being made at the same time: more would overflow the server's backlog, and a lost
/// SYN is repeated only after a second.
const CONNECTING_MAX: usize = 64;
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_LAST: Duration = Duration::from_secs(1);
/// How long the answer to QUIT is waited for at the end.
const QUIT_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Worker {
    plan: Arc<Plan>,
    schedule: Arc<Schedule>,
    poll: Poll,
    timer: OwnedFd,
    slots: Vec<Slot>,
    /// Slots that could take a message, in the order they became free.
    idle: VecDeque<usize>,
    /// Slots that want a connection.
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
    pending: Option<Turn>,
    backoff: Duration,
    is_finished: bool,
}

struct Live {
    connection: Connection,
    session: Session,
    /// Since when nothing has moved.
    quiet_since: Instant,
    is_connecting: bool,
}

/// Whether a connection stays.
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

    /// Runs until every message has had its turn.
    ///
    /// # Errors
    /// When the system's event queue or timer fails, which nothing the server does can cause.
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

    /// Sleeps until something happens, at the latest at `due` or `tick`.
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

    /// Gives due messages to idle slots. Returns when the next is due, if somebody waits for it.
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

    /// The slot has no message: it gets the next one, or waits for it, or keeps a connection ready for it.
    fn make_available(&mut self, slot: usize) {
        let connects_first = self.plan.per_connection == PerConnection::All;
        if connects_first && self.slots[slot].live.is_none() {
            self.to_connect.push_back(slot);
        } else {
            self.idle.push_back(slot);
        }
    }

    fn start(&mut self, slot: usize, turn: Turn) {
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

    /// No more messages for this slot.
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
                self.make_available(slot);
            } else {
                at += 1;
            }
        }
        while self.connecting < CONNECTING_MAX {
            let Some(slot) = self.to_connect.pop_front() else { return };
            self.connect(slot, now);
        }
    }

    fn connect(&mut self, slot: usize, now: Instant) {
        let index = self.slots[slot].server;
        let server = &self.plan.servers[index];
        match Connection::open(server, &self.plan, self.poll.registry(), Token(slot)) {
            Ok(connection) => {
                let session = Session::new(index, server.tls == TlsStart::AtOnce);
                let live = Live { connection, session, quiet_since: now, is_connecting: true };
                self.slots[slot].live = Some(Box::new(live));
                self.connecting += 1;
            }
            Err(failure) => self.no_connection(slot, failure),
        }
    }

    /// The socket of a slot is ready.
    fn ready_event(&mut self, slot: usize, is_readable: bool, is_closed: bool) {
        let Some(mut live) = self.slots[slot].live.take() else { return };
        let result = self.drive(slot, &mut live, is_readable, is_closed);
        self.put_back(slot, live, result);
    }

    fn flush(&mut self, slot: usize) {
        let Some(mut live) = self.slots[slot].live.take() else { return };
        let stage = live.session.stage();
        let result = live.connection.write(&mut live.session.output, stage).map(|_| Flow::Stay);
        self.put_back(slot, live, result);
    }

    fn put_back(&mut self, slot: usize, live: Box<Live>, result: Result<Flow, Failure>) {
        match result {
            Ok(Flow::Stay) => self.slots[slot].live = Some(live),
            Ok(Flow::Close) => self.closed(slot, live, None),
            Err(failure) => self.closed(slot, live, Some(failure)),
        }
    }

    fn drive(&mut self, slot: usize, live: &mut Live, is_readable: bool, is_closed: bool) -> Result<Flow, Failure> {
        if !live.connection.finish_connect()? {
            return Ok(Flow::Stay);
        }
        live.quiet_since = Instant::now();
        if (is_readable || is_closed) && self.read(slot, live, is_closed)? == Flow::Close {
            return Ok(Flow::Close);
        }
        let stage = live.session.stage();
        live.connection.write(&mut live.session.output, stage)?;
        Ok(Flow::Stay)
    }

    /// Reads and follows what has come; `is_closed`: until the end, as nothing more will be announced.
    fn read(&mut self, slot: usize, live: &mut Live, is_closed: bool) -> Result<Flow, Failure> {
        loop {
            let stage = if live.connection.is_handshaking() { Stage::Tls } else { live.session.stage() };
            let got = match live.connection.read(stage, is_closed) {
                // The server closes after QUIT, with or without an answer.
                Err(_) if live.session.is_quitting() => return Ok(Flow::Close),
                got => got?,
            };
            if self.take_replies(slot, live)? == Flow::Close {
                return Ok(Flow::Close);
            }
            if got == Got::Nothing {
                return Ok(Flow::Stay);
            }
        }
    }

    fn take_replies(&mut self, slot: usize, live: &mut Live) -> Result<Flow, Failure> {
        let mut taken = 0;
        let mut flow = Flow::Stay;
        loop {
            let input = &live.connection.input()[taken..];
            if input.is_empty() {
                break;
            }
            let garbage = |replies::Garbage| {
                let start = String::from_utf8_lossy(&input[..input.len().min(80)]).into_owned();
                Failure::new(live.session.stage(), Cause::Garbage, start)
            };
            let Some(reply) = replies::next(input).map_err(garbage)? else { break };
            taken += reply.wire.len();
            let event = live.session.reply(reply, &self.plan)?;
            for refusal in live.session.refusals.drain(..) {
                count(&mut self.tick, refusal);
            }
            let rest = live.connection.input().len() - taken;
            flow = self.follow(slot, live, event, rest)?;
            if flow == Flow::Close {
                break;
            }
        }
        live.connection.consume(taken);
        Ok(flow)
    }

    fn follow(&mut self, slot: usize, live: &mut Live, event: Event, rest: usize) -> Result<Flow, Failure> {
        match event {
            Event::Wait => {}
            Event::Ready => {
                self.established(slot, live);
                match self.slots[slot].pending.take() {
                    Some(turn) => live.session.begin(turn, &self.plan),
                    None => self.next_message(slot, live),
                }
            }
            Event::StartTls if rest > 0 => {
                // Plain text behind the reply to STARTTLS would be taken for encrypted (RFC 3207 section 6).
                return Err(Failure::new(Stage::StartTls, Cause::Garbage, "octets behind the reply to STARTTLS"));
            }
            Event::StartTls => {
                live.connection.start_tls(&self.plan.servers[self.slots[slot].server], &self.plan)?;
                live.session.tls_started(&self.plan);
            }
            Event::SendBody => {
                let next = self.claim_ahead(live);
                live.session.send_body(next, &self.plan);
            }
            Event::Done(fate) => {
                self.record(fate);
                if live.session.is_closing() {
                    return Ok(Flow::Close);
                }
                if live.session.is_idle() {
                    self.next_message(slot, live);
                } else if self.plan.pace.rate.is_none() {
                    live.session.reset_due(Instant::now());
                }
            }
            Event::Closed => return Ok(Flow::Close),
        }
        Ok(Flow::Stay)
    }

    fn established(&mut self, slot: usize, live: &mut Live) {
        live.is_connecting = false;
        self.connecting -= 1;
        self.ready += 1;
        self.last_ready = Instant::now();
        self.tick.sessions += 1;
        self.slots[slot].backoff = BACKOFF_FIRST;
    }

    fn may_carry_more(&self, live: &Live) -> bool {
        match self.plan.per_connection {
            PerConnection::All => true,
            PerConnection::Count(count) => live.session.begun < count.get(),
        }
    }

    fn claim_ahead(&self, live: &Live) -> Option<Turn> {
        // An idle slot would be passed over.
        if !live.session.may_send_ahead() || !self.may_carry_more(live) || !self.idle.is_empty() {
            return None;
        }
        match self.schedule.claim(Instant::now()) {
            Claim::Message(turn) => Some(turn),
            Claim::NotBefore(_) | Claim::Finished => None,
        }
    }

    fn next_message(&mut self, slot: usize, live: &mut Live) {
        if !self.may_carry_more(live) {
            return live.session.quit();
        }
        if !self.idle.is_empty() {
            // Others wait for a message that is not due; nobody overtakes them.
            return self.idle.push_back(slot);
        }
        match self.schedule.claim(Instant::now()) {
            Claim::Message(turn) => live.session.begin(turn, &self.plan),
            Claim::NotBefore(_) => self.idle.push_back(slot),
            Claim::Finished => {
                self.slots[slot].is_finished = true;
                live.session.quit();
            }
        }
    }

    /// The connection is gone: on purpose, or by `failure`.
    fn closed(&mut self, slot: usize, mut live: Box<Live>, failure: Option<Failure>) {
        if live.is_connecting {
            self.connecting -= 1;
        } else {
            self.ready -= 1;
            self.last_ready = Instant::now();
        }
        let was_idle = live.session.is_idle();
        let Some(failure) = failure else { return self.free(slot, None) };
        let mut has_counted = false;
        for fate in live.session.lost(&failure) {
            has_counted |= fate.failure.as_ref().is_some_and(|counted| counted.class == failure.class);
            self.record(fate);
        }
        if live.is_connecting {
            return self.no_connection(slot, failure);
        }
        if !has_counted {
            count(&mut self.tick, failure);
        }
        // A slot that waits for its turn stays in the queue, and connects when the turn comes.
        if !(was_idle && self.idle.contains(&slot)) {
            let backoff = self.slots[slot].backoff;
            self.free(slot, Some(backoff));
        }
    }

    /// No session could be made; the message that waited for it has failed.
    fn no_connection(&mut self, slot: usize, failure: Failure) {
        match self.slots[slot].pending.take() {
            Some(turn) => {
                self.record(Fate { turn, acked: 0, uncertain: 0, octets: 0, failure: Some(failure) });
            }
            None => count(&mut self.tick, failure),
        }
        let backoff = self.slots[slot].backoff;
        self.slots[slot].backoff = (backoff * 2).min(BACKOFF_LAST);
        self.free(slot, Some(backoff));
    }

    /// The slot has no connection any more and may have the next message, after a pause if there was an error.
    fn free(&mut self, slot: usize, pause: Option<Duration>) {
        if self.slots[slot].is_finished {
            self.unfinished -= 1;
            return;
        }
        match pause {
            Some(pause) => self.retries.push((Instant::now() + pause, slot)),
            None => self.make_available(slot),
        }
    }

    fn record(&mut self, fate: Fate) {
        let now = Instant::now();
        self.tick.records.push(Record {
            number: fate.turn.number,
            acked: fate.acked,
            uncertain: fate.uncertain,
            octets: fate.octets,
            is_measured: fate.turn.is_measured,
            is_failed: fate.acked == 0,
            done: now.saturating_duration_since(self.schedule.start),
            latency: now.saturating_duration_since(fate.turn.due),
        });
        // Refused recipients have been counted one by one.
        if let Some(failure) = fate.failure.filter(|failure| failure.class.stage != Stage::Rcpt || is_lost(failure)) {
            count(&mut self.tick, failure);
        }
    }

    fn send_tick(&mut self) {
        self.tick.in_flight = self.slots.iter().flat_map(|slot| &slot.live).map(|live| live.session.in_flight()).sum();
        let next = Tick { worker: self.tick.worker, sessions: self.tick.sessions, ..Tick::default() };
        // The other end goes only when the run is torn down.
        let _ = self.ticks.send(std::mem::replace(&mut self.tick, next));
    }

    /// Looks for what has taken too long.
    fn sweep(&mut self, now: Instant) {
        let is_over = self.schedule.is_over(now, self.plan.drain);
        for slot in 0..self.slots.len() {
            let Some(live) = &self.slots[slot].live else { continue };
            let waits = live.is_connecting || live.session.is_waiting();
            let patience = if live.session.is_quitting() { QUIT_PATIENCE } else { self.plan.timeout };
            if is_over || waits && now.saturating_duration_since(live.quiet_since) > patience {
                self.give_up_connection(slot, is_over);
            }
        }
        let is_hopeless = self.ready == 0 && now.saturating_duration_since(self.last_ready) > self.plan.give_up;
        if is_over || is_hopeless {
            self.tick.gave_up |= is_hopeless && !is_over;
            self.abandon();
        }
    }

    fn give_up_connection(&mut self, slot: usize, is_over: bool) {
        let live = self.slots[slot].live.take().expect("looked at before");
        if live.session.is_quitting() || is_over && live.session.in_flight() == 0 {
            return self.closed(slot, live, None);
        }
        let stage = match (live.connection.is_connected(), live.connection.is_handshaking()) {
            (false, _) => Stage::Connect,
            (true, true) => Stage::Tls,
            (true, false) => live.session.stage(),
        };
        let text = if is_over { "still under way when the run was over" } else { "no answer in time" };
        self.closed(slot, live, Some(Failure::new(stage, Cause::Timeout, text)));
    }

    /// Ends at once: whatever waits for a connection has failed.
    fn abandon(&mut self) {
        for slot in 0..self.slots.len() {
            if let Some(live) = self.slots[slot].live.take() {
                self.slots[slot].is_finished = true;
                self.closed(slot, live, Some(Failure::new(Stage::Connect, Cause::Timeout, "the run was given up")));
            }
            if let Some(turn) = self.slots[slot].pending.take() {
                let failure = Failure::new(Stage::Connect, Cause::Timeout, "no connection before the run was over");
                self.record(Fate { turn, acked: 0, uncertain: 0, octets: 0, failure: Some(failure) });
            }
        }
        self.unfinished = 0;
    }
}

/// The message was lost with its connection while a recipient was asked for, which no refusal has counted.
fn is_lost(failure: &Failure) -> bool {
    !matches!(failure.class.cause, Cause::Reply(code) if code != 421)
}

fn count(tick: &mut Tick, failure: Failure) {
    tick.failures.entry(failure.class).or_insert((0, failure.text)).0 += 1;
}

const TIMER: Token = Token(usize::MAX);
