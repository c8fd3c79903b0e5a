//! Keeps the search index up to date: a watch over the mail directory, on a thread of the lowest priority.
//!
//! Delivery does not notify the index: the kernel reports each new name to the watch. Names that the kernel drops under
//! load are found later by scans. So receiving never waits; the index lags instead.

use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_search::settings::add_headers;
use posthaste_search::{
    HookRunner, IndexError, OTHER_HEADERS, Report, Stop, UpdateOptions, WatchEvent, WatchOptions, watch,
};

use tokio::time::Instant;

use crate::lifecycle::{Ended, Ending, OnFailure, Service, Unfinished};
use posthaste_config::Search;

/// Bytes for the terms of new messages.
const MEMORY_BYTES: usize = 64 << 20;
/// Pause after a failed update of the index.
const PAUSE: Duration = Duration::from_secs(60);
/// The lowest priority: one or two percent of a busy processor.
const NICE: i32 = 19;

/// A watch that runs until it is ended.
#[derive(Debug)]
pub(crate) struct Indexing {
    stop: Stop,
    ended: Ended,
}

impl Indexing {
    /// Begins if configured. Errors of the index are logged; mail is still received. With `for_readers`, all other
    /// header fields are indexed, too, for IMAP's TEXT.
    pub fn begin(config: &Search, mail: &Path, for_readers: bool) -> Option<Self> {
        if !config.index {
            return None;
        }
        if for_readers && let Err(error) = add_headers(&config.dir, &[OTHER_HEADERS.to_owned()]) {
            tracing::warn!(
                error = error.to_string(),
                "the index has no headers for IMAP: text searches read the mail itself"
            );
        }
        let dir = config.dir.clone();
        let mail = mail.to_owned();
        let (alive, ended) = Ended::new();
        let began = Stop::new().map_err(|error| IndexError::Notify(error).to_string()).and_then(|stop| {
            let own = stop.clone();
            let work = move || {
                let _alive = alive;
                run(&dir, mail, &own);
            };
            let thread = std::thread::Builder::new().name("search-index".to_owned());
            thread.spawn(work).map_err(|error| error.to_string())?;
            Ok(Self { stop, ended })
        });
        began.map_err(|error| tracing::error!(error, "the search index is not kept up to date")).ok()
    }
}

impl Service for Indexing {
    fn name(&self) -> &'static str {
        "indexing"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("the search index is not kept up to date")
    }

    /// Commits indexed messages. Without it the index is valid, only out of date.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
        self.stop.stop();
        Box::pin(async move {
            let in_time = self.ended.by(deadline).await;
            in_time.then_some(()).ok_or(Unfinished("the search index is behind; the next start brings it up to date"))
        })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ended.poll(cx)
    }
}

fn run(dir: &Path, mail: PathBuf, stop: &Stop) {
    // On Linux this is the thread's own, and its children's.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(error = error.to_string(), "the search index is updated at normal priority");
    }
    let update = UpdateOptions { threads: 1, memory_bytes: MEMORY_BYTES, ..UpdateOptions::default() };
    let options = WatchOptions { update, ..WatchOptions::default() };
    let mut hook = HookRunner::new(dir, |why| tracing::warn!(why, "the hook of the search index failed"));
    let mut tell = |event: WatchEvent<'_>| {
        if let WatchEvent::Ready(report) | WatchEvent::Committed { report, .. } = &event {
            hook.after(report);
        }
        tell(event);
    };
    let waiting = || tracing::info!(dir = %dir.display(), "another process writes to the search index; waiting for it");
    loop {
        match watch(dir, std::slice::from_ref(&mail), &options, stop, &waiting, &mut tell) {
            Ok(()) => return,
            Err(error @ IndexError::Watched(_)) => tracing::info!(
                error = error.to_string(),
                pause_s = PAUSE.as_secs(),
                "mail is indexed by that process; trying again"
            ),
            Err(error) => tracing::error!(
                error = error.to_string(),
                pause_s = PAUSE.as_secs(),
                "the search index is not kept up to date; trying again"
            ),
        }
        if stop.wait(PAUSE) {
            return;
        }
    }
}

fn tell(event: WatchEvent<'_>) {
    match event {
        WatchEvent::Rebuilding(why) => tracing::info!("rebuilding the search index: {why}"),
        WatchEvent::Ready(report) => {
            tracing::info!(messages = report.messages, added = report.added, "search index is up to date");
            tell_troubles(report);
        }
        WatchEvent::Committed { report, lag } => {
            let lag_ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
            tracing::debug!(added = report.added, removed = report.removed, lag_ms, "search index updated");
            tell_troubles(report);
        }
        WatchEvent::Trouble { error, pause } => {
            tracing::error!(
                error = error.to_string(),
                pause_s = pause.as_secs(),
                "the search index falls behind; trying again"
            );
        }
        WatchEvent::Unwatched(directories) => tracing::warn!(
            directories,
            "too few inotify watches for these directories: raise fs.inotify.max_user_watches; until then their mail is indexed within a minute"
        ),
    }
}

fn tell_troubles(report: &Report) {
    for (path, trouble) in &report.troubles {
        tracing::warn!(path = %path.display(), trouble, "the search index cannot read this path");
    }
}
