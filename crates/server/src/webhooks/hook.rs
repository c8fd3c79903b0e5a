//! The thread of one webhook: reads, posts, notes how far it has come; again and again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste_events::read::{Reader, end};

use super::Stop;
use super::batch::{Batch, read};
use super::place::{self, Place};
use super::post::Poster;
use crate::config::Webhook;

pub(super) struct Hook {
    /// Of the event log.
    pub dir: PathBuf,
    pub webhook: Webhook,
    pub stop: Arc<Stop>,
}

impl Hook {
    /// Until it is told to stop.
    pub fn run(&self) {
        let name = &self.webhook.name;
        let mut trouble = Trouble { name, pause: PAUSE_MIN, is_told: false };
        while !self.stop.is_set() {
            match self.follow(&mut trouble) {
                Ok(()) => return,
                Err(why) => {
                    if self.stop.wait(trouble.begins(&why)) {
                        return;
                    }
                }
            }
        }
    }

    /// Posts what comes until it is told to stop.
    fn follow(&self, trouble: &mut Trouble<'_>) -> Result<(), String> {
        let said = |error: std::io::Error| error.to_string();
        let poster = Poster::new(&self.webhook)?;
        let path = place::path(&self.dir, &self.webhook.name);
        while !self.dir.exists() {
            // The event log makes it.
            if self.stop.wait(LOOK_INTERVAL) {
                return Ok(());
            }
        }
        let mut place = match Place::load(&path).map_err(said)? {
            Some(place) => place,
            // A new one hears of what comes from now on.
            None => {
                let cursor = end(&self.dir).map_err(said)?;
                let place = Place { file: cursor.file, offset: cursor.offset, ..Place::default() };
                place.save(&path).map_err(said)?;
                place
            }
        };
        let mut reader = Reader::new(&self.dir, place.cursor());
        let mut saved = place;
        loop {
            let batch = read(&mut reader, place, &self.webhook.events, self.webhook.batch).map_err(said)?;
            if let Some((from, to)) = batch.gap {
                let (webhook, files) = (&self.webhook.name, to - from);
                tracing::warn!(webhook, files, "files of the event log went before this webhook was told of them");
            }
            if batch.events > 0 && !self.post(&poster, &batch, trouble) {
                return Ok(());
            }
            let has_moved = batch.through != place;
            place = batch.through;
            // Some lines that are not wanted cost little to read again after a restart.
            let is_far = place.file != saved.file || place.offset - saved.offset > UNSAVED_BYTES_MAX;
            if batch.events > 0 || is_far {
                place.save(&path).map_err(said)?;
                saved = place;
            }
            if !has_moved && self.stop.wait(LOOK_INTERVAL) {
                return Ok(());
            }
        }
    }

    /// Posts a batch until it is taken; false if it is told to stop before.
    fn post(&self, poster: &Poster, batch: &Batch, trouble: &mut Trouble<'_>) -> bool {
        loop {
            if self.stop.is_set() {
                return false;
            }
            match poster.post(&batch.body) {
                Ok(()) => {
                    trouble.ends();
                    return true;
                }
                Err(why) => {
                    if self.stop.wait(trouble.begins(&why)) {
                        return false;
                    }
                }
            }
        }
    }
}

/// What the log says of a hook that fails: once, and when it works again.
struct Trouble<'a> {
    name: &'a str,
    pause: Duration,
    is_told: bool,
}

impl Trouble<'_> {
    /// How long to wait.
    fn begins(&mut self, error: &str) -> Duration {
        let webhook = self.name;
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                webhook,
                error,
                "a webhook cannot be told; events wait in the event log, retrying automatically"
            );
        } else {
            tracing::debug!(webhook, error, "a webhook cannot be told");
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }

    fn ends(&mut self) {
        self.pause = PAUSE_MIN;
        if std::mem::take(&mut self.is_told) {
            tracing::info!(webhook = self.name, "a webhook is told again");
        }
    }
}

/// How soon it is tried again after a failure, then after twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(300);
const UNSAVED_BYTES_MAX: u64 = 1 << 20;
/// How often it is looked for new lines.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
