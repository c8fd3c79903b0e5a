//! Watches the engine: its free room, so that bodies are refused while their changes still fit, and its settings, which
//! somebody may have changed.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use posthaste_spool::AppendError;

use crate::ShardLog;

/// The engine's state, as far as it blocks bodies.
#[derive(Default)]
pub(crate) struct EngineState(Mutex<Refusals>);

#[derive(Default)]
struct Refusals {
    room: Option<AppendError>,
    settings: Option<AppendError>,
}

impl EngineState {
    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.0.lock().expect("nothing panics while it is held")
    }

    /// The answer to a batch with a body, if it must be refused.
    pub fn refusal(&self) -> Option<AppendError> {
        let refusals = self.refusals();
        refusals.settings.clone().or_else(|| refusals.room.clone())
    }

    /// Asks for the free room. Without an answer nothing changes: appends wait for the engine anyway.
    pub fn ask_room(&self, log: &dyn ShardLog) {
        let Ok((used, limit)) = log.room() else { return };
        let is_short = u128::from(used) * 100 >= u128::from(limit) * BODIES_PERCENT;
        let refusal = || AppendError::Full(format!("the engine's log has {used} of {limit} bytes").into());
        self.refusals().room = is_short.then(refusal);
    }

    /// Asks for the settings. Without an answer nothing changes.
    pub fn ask_settings(&self, log: &dyn ShardLog) {
        let Ok(wrong) = log.check() else { return };
        let refusal = || {
            let why = format!("change the settings of the engine: {}", wrong.join("; "));
            AppendError::Local(Arc::new(io::Error::other(why)))
        };
        self.refusals().settings = (!wrong.is_empty()).then(refusal);
    }
}

/// The guard's thread. Dropping it ends the thread.
pub(crate) struct Guard {
    bell: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Asks for the room at each `pace`, and for the settings at each twelfth.
    pub fn start(log: Arc<dyn ShardLog>, state: Arc<EngineState>, pace: Duration) -> io::Result<Self> {
        let bell: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let told = bell.clone();
        let thread = std::thread::Builder::new().name("cluster-guard".to_owned()).spawn(move || {
            for round in 1u64.. {
                let is_going_on = |ends: &mut bool| !*ends;
                let ends = told.0.lock().expect("nothing panics while it is held");
                let waited = told.1.wait_timeout_while(ends, pace, is_going_on);
                if *waited.expect("nothing panics while it is held").0 {
                    return;
                }
                state.ask_room(&*log);
                if round.is_multiple_of(SETTINGS_EVERY) {
                    state.ask_settings(&*log);
                }
            }
        })?;
        Ok(Guard { bell, thread: Some(thread) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *self.bell.0.lock().expect("nothing panics while it is held") = true;
        self.bell.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Share of the log's limit from which bodies are refused. The rest is reserved for outcomes of stored mail.
const BODIES_PERCENT: u128 = 80;
/// Rounds between checks of the settings: a minute.
const SETTINGS_EVERY: u64 = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{LogFaults, MemoryLog};

    #[test]
    fn only_an_engine_that_answers_changes_the_verdict() {
        let log = MemoryLog::new(1, LogFaults::default());
        let state = EngineState::default();
        let asked = |is_away: bool| {
            log.set_away(is_away);
            state.ask_settings(&log);
            state.ask_room(&log);
            state.refusal()
        };
        assert!(asked(true).is_none() && asked(false).is_none());
        log.set_wrong(vec!["sync_interval must be always".to_owned()]);
        assert!(asked(true).is_none());
        assert!(matches!(asked(false), Some(AppendError::Local(why)) if why.to_string().contains("sync_interval")));
        log.set_wrong(Vec::new());
        assert!(asked(true).is_some());
        assert!(asked(false).is_none());
    }
}
