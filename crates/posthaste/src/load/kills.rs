//! `load --kill-every`: kills and restarts the server started by `load`, while mail is sent.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use posthaste_loadgen::load::{Outages, Stop, kill_pauses};
use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::{ValueError, duration};

/// Runs `work`, and kills and restarts `server` meanwhile, about `every` after each start. The server runs at the end.
/// Returns the result of `work`. A failed restart ends the work with an error.
pub fn while_killing<T>(
    server: &mut ScratchServer,
    outages: &Outages,
    every: Duration,
    seed: u64,
    stop: &Stop,
    work: impl FnOnce() -> T,
) -> (T, Option<String>) {
    let (is_over, over) = channel::<()>();
    let kill = move || -> Option<String> {
        for pause in kill_pauses(every, seed) {
            // Nothing is ever sent: the other end goes when the work is done.
            if over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) || stop.is_asked() {
                break;
            }
            outages.begin();
            server.kill();
            outages.gone();
            if let Err(error) = server.start_again() {
                stop.ask();
                return Some(format!("after kill {} the server did not restart: {error}", outages.count()));
            }
            outages.back(server.pid());
        }
        None
    };
    std::thread::scope(|scope| {
        let killer = scope.spawn(kill);
        let done = work();
        drop(is_over);
        // A panic there is our bug and is shown as one.
        (done, killer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Parses the time between kills. It has a minimum, as a restart loop would send nothing.
pub fn pause(text: &str) -> Result<Duration, String> {
    let every = duration(text).map_err(|error: ValueError| error.to_string())?;
    if every < PAUSE_MIN { Err("must be at least 100ms".into()) } else { Ok(every) }
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
