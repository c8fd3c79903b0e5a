//! The log of one shard in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;
use posthaste_random::Random;

use crate::{Appended, LogError, LogPosition, ShardLog};

/// A log in memory. Clones share it.
///
/// It answers an append before `append` returns, or, if it was made by [`by_steps`](Self::by_steps), when its owner
/// calls [`step`](Self::step).
#[derive(Clone)]
pub struct MemoryLog(Arc<Shared>);

/// The fate of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault: it is stored if its position is free.
    None,
    /// Refused without a reason. Nothing is stored.
    Refused,
    /// Stored if its position is free, and the answer is lost.
    UnknownStored,
    /// The answer is lost, and the record is stored this many steps later if its position is still free. Appends, steps
    /// and reads count.
    UnknownLate(u64),
    /// The answer is lost, and the record is never stored.
    UnknownLost,
}

/// Frequencies of faults, of a thousand appends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogFaults {
    /// See [`Fault::Refused`].
    pub refused: u64,
    /// See [`Fault::UnknownStored`].
    pub unknown_stored: u64,
    /// See [`Fault::UnknownLate`]; at most [`LATE_MAX`] steps.
    pub unknown_late: u64,
    /// See [`Fault::UnknownLost`].
    pub unknown_lost: u64,
    /// Answers delayed by some steps, after later appends. Only with `by_steps`.
    pub held: u64,
}

impl LogFaults {
    /// All faults, each frequent.
    pub fn all() -> Self {
        LogFaults { refused: 60, unknown_stored: 60, unknown_late: 60, unknown_lost: 60, held: 200 }
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    by_steps: bool,
}

struct State {
    /// Stored records, by position.
    records: BTreeMap<u64, Bytes>,
    end: u64,
    /// The lowest position that was not cut.
    first: u64,
    requests: VecDeque<Request>,
    late: Vec<Late>,
    held: Vec<Held>,
    steps: u64,
    random: Random,
    faults: LogFaults,
    /// The fates of the next appends, before faults are drawn.
    script: VecDeque<Fault>,
    is_away: bool,
    /// The log fails once it has stored this position.
    away_at: Option<u64>,
    limit: u64,
    wrong: Vec<String>,
}

struct Request {
    after: u64,
    record: Bytes,
    then: Appended,
}

/// Will be stored later.
struct Late {
    due: u64,
    after: u64,
    record: Bytes,
}

/// A delayed answer.
struct Held {
    due: u64,
    then: Appended,
    outcome: Result<LogPosition, LogError>,
}

type Answer = (Appended, Result<LogPosition, LogError>);

impl MemoryLog {
    /// An empty log with faults from a seed.
    pub fn new(seed: u64, faults: LogFaults) -> Self {
        Self::with(seed, faults, false)
    }

    /// Like [`new`](Self::new); handles each append in a [`step`](Self::step).
    pub fn by_steps(seed: u64, faults: LogFaults) -> Self {
        Self::with(seed, faults, true)
    }

    fn with(seed: u64, faults: LogFaults, by_steps: bool) -> Self {
        let state = State {
            records: BTreeMap::new(),
            end: 0,
            first: 1,
            requests: VecDeque::new(),
            late: Vec::new(),
            held: Vec::new(),
            steps: 0,
            random: Random::new(seed),
            faults,
            script: VecDeque::new(),
            is_away: false,
            away_at: None,
            limit: 1 << 40,
            wrong: Vec::new(),
        };
        MemoryLog(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), by_steps }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nothing panics while it is held")
    }

    /// Scripted fates of the next appends; later ones are drawn.
    pub fn script(&self, fates: &[Fault]) {
        self.state().script.extend(fates);
    }

    /// Sets the faults of later calls.
    pub fn set_faults(&self, faults: LogFaults) {
        self.state().faults = faults;
    }

    /// Handles the oldest append and delivers due answers. False if nothing waits.
    pub fn step(&self) -> bool {
        let (answers, is_busy) = {
            let mut state = self.state();
            state.tick();
            let mut answers = state.due_answers();
            answers.extend(state.handle());
            (answers, !state.requests.is_empty() || !state.held.is_empty() || !state.late.is_empty())
        };
        self.0.changed.notify_all();
        let has_answered = !answers.is_empty();
        answers.into_iter().for_each(|(then, outcome)| then(outcome));
        has_answered || is_busy
    }

    /// Appends that were sent and not answered.
    pub fn in_flight(&self) -> usize {
        let state = self.state();
        state.requests.len() + state.held.len()
    }

    /// Loses one record; later ones keep their positions.
    pub fn lose(&self, position: LogPosition) {
        self.state().records.remove(&position.get());
    }

    /// Flips a bit of a record.
    ///
    /// # Panics
    /// If there is none.
    pub fn flip(&self, position: LogPosition, bit: usize) {
        let mut state = self.state();
        let record = state.records.get_mut(&position.get()).expect("a record");
        let mut bytes = record.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        *record = bytes.into();
    }

    /// Forgets the last records, as an engine does that was restored from an older state.
    pub fn roll_back(&self, count: u64) {
        let mut state = self.state();
        state.end = state.end.saturating_sub(count);
        let end = state.end;
        state.records.retain(|position, _| *position <= end);
        state.first = state.first.min(end + 1);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Empties the log; the next record has position 1 again.
    pub fn delete(&self) {
        self.roll_back(u64::MAX);
    }

    /// Stops answering reads and appends until `is_away` is false again.
    pub fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
        self.0.changed.notify_all();
        if !is_away && !self.0.by_steps {
            self.pump();
        }
    }

    /// Becomes unreachable once it has stored a record at this position.
    pub fn set_away_at(&self, position: LogPosition) {
        self.state().away_at = Some(position.get());
    }

    /// Sets the result of [`ShardLog::room`].
    pub fn set_limit(&self, bytes: u64) {
        self.state().limit = bytes;
    }

    /// Sets the result of [`ShardLog::check`].
    pub fn set_wrong(&self, settings: Vec<String>) {
        self.state().wrong = settings;
    }

    /// All records, by position.
    pub fn records(&self) -> Vec<(LogPosition, Bytes)> {
        self.state().records.iter().map(|(position, record)| (LogPosition::new(*position), record.clone())).collect()
    }

    fn has_work(&self) -> bool {
        self.state().has_work()
    }

    fn pump(&self) {
        while self.has_work() {
            self.step();
        }
    }
}

impl State {
    fn has_work(&self) -> bool {
        !self.is_away && !self.requests.is_empty()
    }

    /// Advances time: stores delayed records.
    fn tick(&mut self) {
        self.steps += 1;
        let steps = self.steps;
        for late in self.late.extract_if(.., |late| late.due <= steps).collect::<Vec<_>>() {
            drop(self.store(late.after, late.record));
        }
    }

    fn store(&mut self, after: u64, record: Bytes) -> Result<LogPosition, LogError> {
        if after != self.end {
            return Err(LogError::Refused(format!("the last position is {} and not {after}", self.end)));
        }
        self.end += 1;
        self.records.insert(self.end, record);
        self.is_away |= self.away_at.take_if(|at| *at == self.end).is_some();
        Ok(LogPosition::new(self.end))
    }

    fn handle(&mut self) -> Option<Answer> {
        if !self.has_work() {
            return None;
        }
        let Request { after, record, then } = self.requests.pop_front()?;
        let lost = || Err(LogError::Unknown("no answer in time".to_owned()));
        let outcome = match self.fate() {
            Fault::None => self.store(after, record),
            Fault::Refused => Err(LogError::Refused("for no reason".to_owned())),
            Fault::UnknownStored => self.store(after, record).and_then(|_| lost()).or_else(|_| lost()),
            Fault::UnknownLate(steps) => {
                self.late.push(Late { due: self.steps + steps, after, record });
                lost()
            }
            Fault::UnknownLost => lost(),
        };
        if self.draw() < self.faults.held {
            let due = self.steps + 1 + self.random.below(8);
            self.held.push(Held { due, then, outcome });
            return None;
        }
        Some((then, outcome))
    }

    fn due_answers(&mut self) -> Vec<Answer> {
        let steps = self.steps;
        self.held.extract_if(.., |held| held.due <= steps).map(|held| (held.then, held.outcome)).collect()
    }

    fn draw(&mut self) -> u64 {
        self.random.below(1000)
    }

    fn fate(&mut self) -> Fault {
        if let Some(fate) = self.script.pop_front() {
            return fate;
        }
        let late = 1 + self.random.below(LATE_MAX);
        let LogFaults { refused, unknown_stored, unknown_late, unknown_lost, .. } = self.faults;
        let fates = [
            (refused, Fault::Refused),
            (unknown_stored, Fault::UnknownStored),
            (unknown_late, Fault::UnknownLate(late)),
            (unknown_lost, Fault::UnknownLost),
        ];
        let mut draw = self.draw();
        for (share, fate) in fates {
            match draw.checked_sub(share) {
                None => return fate,
                Some(left) => draw = left,
            }
        }
        Fault::None
    }

    fn reachable(&self) -> Result<(), LogError> {
        if self.is_away { Err(LogError::Unreachable("it is away".to_owned())) } else { Ok(()) }
    }
}

impl ShardLog for MemoryLog {
    fn append(&self, after: LogPosition, record: Bytes, then: Appended) {
        self.state().requests.push_back(Request { after: after.get(), record, then });
        if !self.0.by_steps {
            self.pump();
        }
    }

    fn follow(&self, from: LogPosition, each: &mut dyn FnMut(LogPosition, Bytes) -> bool) -> Result<(), LogError> {
        let mut at = from.get().max(1);
        let mut state = self.state();
        state.tick();
        loop {
            state.reachable()?;
            if at < state.first {
                return Err(LogError::Cut { first: LogPosition::new(state.first) });
            }
            if at > state.end + 1 {
                return Err(LogError::Gap(LogPosition::new(state.end + 1)));
            }
            if at == state.end + 1 {
                state = self.0.changed.wait(state).expect("nothing panics while it is held");
                continue;
            }
            let record = state.records.get(&at).cloned().ok_or(LogError::Gap(LogPosition::new(at)))?;
            drop(state);
            if !each(LogPosition::new(at), record) {
                return Ok(());
            }
            at += 1;
            state = self.state();
        }
    }

    fn first(&self) -> Result<LogPosition, LogError> {
        let state = self.state();
        state.reachable()?;
        Ok(LogPosition::new(state.first))
    }

    fn end(&self) -> Result<LogPosition, LogError> {
        let mut state = self.state();
        state.reachable()?;
        state.tick();
        Ok(LogPosition::new(state.end))
    }

    fn cut(&self, below: LogPosition) -> Result<(), LogError> {
        let mut state = self.state();
        state.reachable()?;
        state.first = state.first.max(below.get().min(state.end + 1));
        let first = state.first;
        state.records.retain(|position, _| *position >= first);
        Ok(())
    }

    fn room(&self) -> Result<(u64, u64), LogError> {
        let state = self.state();
        state.reachable()?;
        Ok((state.records.values().map(|record| record.len() as u64).sum(), state.limit))
    }

    fn is_current(&self) -> Result<bool, LogError> {
        self.state().reachable().map(|()| true)
    }

    fn check(&self) -> Result<Vec<String>, LogError> {
        let state = self.state();
        state.reachable()?;
        Ok(state.wrong.clone())
    }
}

/// Maximum delay of a late record, in steps.
pub const LATE_MAX: u64 = 12;

#[cfg(test)]
mod tests;
