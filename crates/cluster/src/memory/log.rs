//! The log of one shard in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;
use posthaste_random::Random;

use crate::{Appended, Log, LogError, Position};

/// A log in memory. Clones are the same log.
///
/// It answers an append before `append` returns, or, if it was made by [`by_steps`](Self::by_steps), when its owner calls [`step`](Self::step).
#[derive(Clone)]
pub struct MemoryLog(Arc<Shared>);

/// The fate of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault: it is stored if its position is free.
    None,
    /// Refused without a reason; nothing is stored.
    Refused,
    /// Stored if its position is free, and the answer is lost.
    UnknownStored,
    /// The answer is lost, and it is stored this many steps later, if its position is free then. Appends, steps and reads count.
    UnknownLate(u64),
    /// The answer is lost, and it is never stored.
    UnknownLost,
}

/// Frequencies of faults, of a thousand appends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// See [`Fault::Refused`].
    pub refused: u64,
    /// See [`Fault::UnknownStored`].
    pub unknown_stored: u64,
    /// See [`Fault::UnknownLate`]; at most [`LATE_MAX`] steps.
    pub unknown_late: u64,
    /// See [`Fault::UnknownLost`].
    pub unknown_lost: u64,
    /// Answers that come some steps later than others that were sent after them. Only by steps.
    pub held: u64,
}

impl Faults {
    /// Each of them often.
    pub fn all() -> Self {
        Faults { refused: 60, unknown_stored: 60, unknown_late: 60, unknown_lost: 60, held: 200 }
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
    faults: Faults,
    /// The fates of the next appends, before faults are drawn.
    script: VecDeque<Fault>,
    is_away: bool,
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

/// An answer that comes later.
struct Held {
    due: u64,
    then: Appended,
    outcome: Result<Position, LogError>,
}

type Answer = (Appended, Result<Position, LogError>);

impl MemoryLog {
    /// An empty log whose faults follow from a seed.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self::with(seed, faults, false)
    }

    /// Like [`new`](Self::new); handles each append in a [`step`](Self::step).
    pub fn by_steps(seed: u64, faults: Faults) -> Self {
        Self::with(seed, faults, true)
    }

    fn with(seed: u64, faults: Faults, by_steps: bool) -> Self {
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
            limit: 1 << 40,
            wrong: Vec::new(),
        };
        MemoryLog(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), by_steps }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nothing panics while it is held")
    }

    /// The fates of the next appends; those after them draw theirs.
    pub fn script(&self, fates: &[Fault]) {
        self.state().script.extend(fates);
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Handles the oldest append, and gives the answers that are due. False if nothing waits.
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

    /// Loses one record; those after it keep their positions.
    pub fn lose(&self, position: Position) {
        self.state().records.remove(&position.get());
    }

    /// Flips a bit of a record.
    ///
    /// # Panics
    /// If there is none.
    pub fn flip(&self, position: Position, bit: usize) {
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

    /// Forgets all of the log; the next record has position 1 again.
    pub fn delete(&self) {
        self.roll_back(u64::MAX);
    }

    /// Does not answer reads, nor handle appends, until it comes back: `is_away` false.
    pub fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
        self.0.changed.notify_all();
        if !is_away && !self.0.by_steps {
            self.pump();
        }
    }

    /// The limit that [`Log::room`] tells.
    pub fn set_limit(&self, bytes: u64) {
        self.state().limit = bytes;
    }

    /// The lines that [`Log::check`] tells.
    pub fn set_wrong(&self, settings: Vec<String>) {
        self.state().wrong = settings;
    }

    /// All records, by position.
    pub fn records(&self) -> Vec<(Position, Bytes)> {
        self.state().records.iter().map(|(position, record)| (Position::new(*position), record.clone())).collect()
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

    /// Time goes on: stores what comes late.
    fn tick(&mut self) {
        self.steps += 1;
        let steps = self.steps;
        for late in self.late.extract_if(.., |late| late.due <= steps).collect::<Vec<_>>() {
            drop(self.store(late.after, late.record));
        }
    }

    fn store(&mut self, after: u64, record: Bytes) -> Result<Position, LogError> {
        if after != self.end {
            return Err(LogError::Refused(format!("the last position is {} and not {after}", self.end)));
        }
        self.end += 1;
        self.records.insert(self.end, record);
        Ok(Position::new(self.end))
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
        let Faults { refused, unknown_stored, unknown_late, unknown_lost, .. } = self.faults;
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

impl Log for MemoryLog {
    fn append(&self, after: Position, record: Bytes, then: Appended) {
        self.state().requests.push_back(Request { after: after.get(), record, then });
        if !self.0.by_steps {
            self.pump();
        }
    }

    fn follow(&self, from: Position, each: &mut dyn FnMut(Position, Bytes) -> bool) -> Result<(), LogError> {
        let mut at = from.get().max(1);
        let mut state = self.state();
        state.tick();
        loop {
            state.reachable()?;
            if at < state.first {
                return Err(LogError::Cut { first: Position::new(state.first) });
            }
            if at > state.end + 1 {
                return Err(LogError::Gap(Position::new(state.end + 1)));
            }
            if at == state.end + 1 {
                state = self.0.changed.wait(state).expect("nothing panics while it is held");
                continue;
            }
            let record = state.records.get(&at).cloned().ok_or(LogError::Gap(Position::new(at)))?;
            drop(state);
            if !each(Position::new(at), record) {
                return Ok(());
            }
            at += 1;
            state = self.state();
        }
    }

    fn first(&self) -> Result<Position, LogError> {
        let state = self.state();
        state.reachable()?;
        Ok(Position::new(state.first))
    }

    fn end(&self) -> Result<Position, LogError> {
        let mut state = self.state();
        state.reachable()?;
        state.tick();
        Ok(Position::new(state.end))
    }

    fn cut(&self, below: Position) -> Result<(), LogError> {
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

    fn check(&self) -> Result<(), Vec<String>> {
        let state = self.state();
        if state.wrong.is_empty() { Ok(()) } else { Err(state.wrong.clone()) }
    }
}

/// Steps after which a late record is stored, at most.
pub const LATE_MAX: u64 = 12;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn append(log: &MemoryLog, after: u64, text: &'static str) -> Result<u64, LogError> {
        let (tell, told) = channel();
        log.append(Position::new(after), text.into(), Box::new(move |outcome| tell.send(outcome).unwrap()));
        told.try_recv().expect("an answer at once").map(Position::get)
    }

    fn stored(log: &MemoryLog) -> Vec<Bytes> {
        log.records().into_iter().map(|(_, record)| record).collect()
    }

    fn read(log: &MemoryLog, from: u64, count: usize) -> Result<Vec<u64>, LogError> {
        let mut seen = Vec::new();
        log.follow(Position::new(from), &mut |position, _| {
            seen.push(position.get());
            seen.len() < count
        })?;
        Ok(seen)
    }

    #[test]
    fn a_record_is_stored_at_its_position_or_not_at_all() {
        let log = MemoryLog::new(1, Faults::default());
        assert_eq!((append(&log, 0, "a"), append(&log, 1, "b")), (Ok(1), Ok(2)));
        assert!(matches!(append(&log, 1, "c"), Err(LogError::Refused(_))));
        assert!(matches!(append(&log, 3, "c"), Err(LogError::Refused(_))));
        assert_eq!(stored(&log), ["a", "b"]);
        assert_eq!(read(&log, 1, 2), Ok(vec![1, 2]));
    }

    #[test]
    fn each_fault_is_what_it_says() {
        let log = MemoryLog::new(1, Faults::default());
        let lost = |outcome| matches!(outcome, Err(LogError::Unknown(_)));
        log.script(&[Fault::Refused, Fault::UnknownLost, Fault::UnknownStored, Fault::UnknownLate(3), Fault::None]);
        assert!(matches!(append(&log, 0, "a"), Err(LogError::Refused(_))));
        assert!(lost(append(&log, 0, "b")) && stored(&log).is_empty());
        assert!(lost(append(&log, 0, "c")));
        assert_eq!(stored(&log), ["c"]);
        assert!(lost(append(&log, 1, "late")));
        assert_eq!(log.end(), Ok(Position::new(1)), "a read that finds nothing decides nothing");
        assert_eq!(read(&log, 1, 1), Ok(vec![1]));
        assert_eq!(log.end(), Ok(Position::new(2)));
        assert_eq!(stored(&log), ["c", "late"]);
        assert_eq!(append(&log, 2, "d"), Ok(3));
    }

    #[test]
    fn a_late_record_whose_position_was_taken_is_not_stored() {
        let log = MemoryLog::new(1, Faults::default());
        log.script(&[Fault::UnknownLate(2), Fault::None]);
        assert!(append(&log, 0, "late").is_err());
        assert_eq!(append(&log, 0, "first"), Ok(1));
        (0..3).for_each(|_| drop(log.end()));
        assert_eq!(stored(&log), ["first"]);
    }

    #[test]
    fn holes_cuts_and_shorter_logs_are_told_apart() {
        let log = MemoryLog::new(1, Faults::default());
        for (after, text) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
            append(&log, after as u64, text).unwrap();
        }
        log.cut(Position::new(3)).unwrap();
        assert_eq!((log.first(), log.end()), (Ok(Position::new(3)), Ok(Position::new(5))));
        assert_eq!(read(&log, 2, 9), Err(LogError::Cut { first: Position::new(3) }));
        log.flip(Position::new(3), 0);
        assert_eq!(stored(&log)[0], "b");
        log.lose(Position::new(4));
        assert_eq!(read(&log, 3, 9), Err(LogError::Gap(Position::new(4))));
        log.roll_back(2);
        assert_eq!(read(&log, 6, 9), Err(LogError::Gap(Position::new(4))));
        log.cut(Position::new(9)).unwrap();
        assert_eq!((log.first(), log.end()), (Ok(Position::new(4)), Ok(Position::new(3))), "a cut is no new log");
        log.delete();
        assert_eq!(append(&log, 0, "new"), Ok(1));
    }

    #[test]
    fn a_follower_waits_for_the_next_record_and_hears_of_a_rollback() {
        let log = MemoryLog::new(1, Faults::default());
        append(&log, 0, "a").unwrap();
        let (tell, seen) = channel();
        let follower = std::thread::spawn({
            let log = log.clone();
            move || {
                log.follow(Position::new(1), &mut |position, _| {
                    tell.send(position.get()).unwrap();
                    true
                })
            }
        });
        assert_eq!(seen.recv().unwrap(), 1);
        append(&log, 1, "b").unwrap();
        assert_eq!(seen.recv().unwrap(), 2);
        log.roll_back(1);
        assert_eq!(follower.join().unwrap(), Err(LogError::Gap(Position::new(2))));
    }

    #[test]
    fn an_engine_that_is_away_keeps_what_was_sent() {
        let log = MemoryLog::new(1, Faults::default());
        log.set_away(true);
        let (tell, told) = channel();
        log.append(Position::START, "a".into(), Box::new(move |outcome| tell.send(outcome).unwrap()));
        assert!(told.try_recv().is_err() && matches!(log.end(), Err(LogError::Unreachable(_))));
        assert!(matches!(read(&log, 1, 1), Err(LogError::Unreachable(_))));
        log.set_away(false);
        assert_eq!(told.recv().unwrap(), Ok(Position::new(1)));
    }

    #[test]
    fn the_same_seed_fails_in_the_same_way() {
        let run = |seed| {
            let log = MemoryLog::by_steps(seed, Faults::all());
            let (tell, told) = channel();
            for number in 0..200 {
                let (tell, after) = (tell.clone(), log.end().unwrap());
                log.append(after, format!("{number}").into(), Box::new(move |it| tell.send((number, it)).unwrap()));
                log.step();
            }
            while log.step() {}
            drop(tell);
            (told.iter().collect::<Vec<_>>(), log.records())
        };
        let (one, other) = (run(7), run(7));
        assert!(one == other && one.1 != run(8).1);
        assert_eq!(one.0.len(), 200, "each append is answered once");
        let count = |is: fn(&LogError) -> bool| one.0.iter().filter(|it| it.1.as_ref().is_err_and(is)).count();
        assert!(count(|error| matches!(error, LogError::Unknown(_))) > 5);
        assert!(count(|error| matches!(error, LogError::Refused(_))) > 5);
        assert!(!one.0.is_sorted_by_key(|(number, _)| *number), "answers overtake each other");
    }

    #[test]
    fn room_and_settings_are_what_a_test_says() {
        let log = MemoryLog::new(1, Faults::default());
        append(&log, 0, "abc").unwrap();
        log.set_limit(10);
        assert_eq!((log.room(), log.check()), (Ok((3, 10)), Ok(())));
        log.set_wrong(vec!["sync_interval".to_owned()]);
        assert_eq!(log.check(), Err(vec!["sync_interval".to_owned()]));
    }
}
