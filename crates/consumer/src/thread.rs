//! A thread of a stream's owner, monitored by the spool's watch.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use posthaste_watch::Pulse;

use crate::StreamHandle;

/// A running thread. It continues when this is dropped.
#[derive(Debug)]
pub struct StreamThread(JoinHandle<()>);

impl StreamHandle {
    /// Starts a thread with this name, which reports its steps: [`Pulse::step`] with an index into `steps`, the first
    /// of which means idle. If it stays in another step for longer than a minute,
    /// [`Spool::look_for_stuck`](posthaste_spool::Spool::look_for_stuck) reports it like the spool's own workers.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start_thread(
        &self,
        name: &str,
        steps: &'static [&'static str],
        run: impl FnOnce(&Pulse) + Send + 'static,
    ) -> io::Result<StreamThread> {
        let worker = self.spool().watch().worker(name, steps, PATIENCE);
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(StreamThread(thread.spawn(move || run(worker.pulse()))?))
    }
}

impl StreamThread {
    /// Waits for its end.
    pub fn join(self) {
        // A panic was printed when it happened.
        let _ = self.0.join();
    }
}

/// Maximum time in one step: after it a thread is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use posthaste_spool::{Config, FileSpool};
    use posthaste_watch::Became;

    use super::*;

    #[test]
    fn a_thread_that_hangs_is_told_of_by_the_spool() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { keeper: false, ..Config::default() };
        let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
        let stream = StreamHandle::register(Arc::new(spool), "one").unwrap();
        let ((begin, begun), (hang, hangs)) = (channel(), channel::<()>());
        let run = move |pulse: &Pulse| {
            pulse.step(1);
            begin.send(()).unwrap();
            let _ = hangs.recv();
        };
        let thread = stream.start_thread("one-write", &["", "writing"], run).unwrap();
        begun.recv().unwrap();
        let start = Instant::now();
        let look = |secs| {
            let found = stream.spool().look_for_stuck(start + Duration::from_secs(secs));
            found.into_iter().map(|found| (found.states, found.what)).collect::<Vec<_>>()
        };
        assert_eq!((look(0), look(60)), (vec![], vec![]));
        assert_eq!(look(61), [("one-write > writing".to_owned(), Became::Stuck)]);
        drop(hang);
        thread.join();
        assert_eq!(look(62), [("one-write > writing".to_owned(), Became::Ended)]);
    }
}
