//! The thread of one webhook: reads, posts, and saves its position in a loop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_consumer::{BudgetChange, OutcomeBudget, PoisonWatch};
use posthaste_events::read::{Reader, end};
use posthaste_units::BackOff;

use super::batch::{Batch, read};
use super::place::{self, Place};
use super::post::Poster;
use super::stop::Stop;
use crate::receive::webhook_states::WebhookStates;
use posthaste_config::Webhook;

pub(super) struct Hook {
    /// Directory of the event log.
    pub dir: PathBuf,
    pub webhook: Webhook,
    /// State of the spool that supplies the events. Once it is poisoned nothing is posted: a restart may not know these
    /// events, or post them again.
    pub poison: PoisonWatch,
    pub states: Arc<WebhookStates>,
    pub stop: Arc<Stop>,
}

impl Hook {
    /// Runs until it is told to stop.
    pub fn run(&self) {
        let name = &self.webhook.name;
        let mut trouble = Trouble { name, back_off: RETRY, is_told: false };
        while !self.stop.is_set() {
            match self.follow(&mut trouble) {
                Ok(()) => return,
                Err(why) => {
                    if self.stop.wait(self.fails(&why, &mut trouble)) {
                        return;
                    }
                }
            }
        }
    }

    /// Posts new events until it is told to stop.
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
        let saved = Place::load(&path).map_err(said)?;
        let mut saving = Saving::new(&self.webhook.name, &path, saved, self.poison.clone());
        let mut place = match saved {
            Some(place) => place,
            // A new one hears of what comes from now on.
            None => {
                let cursor = end(&self.dir).map_err(said)?;
                let place = Place { file: cursor.file, offset: cursor.offset, ..Place::default() };
                if place.file > 1 || place.offset > 0 {
                    let webhook = &self.webhook.name;
                    let file = path.display().to_string();
                    tracing::info!(webhook, file, "a webhook has no saved position: it receives events from now on");
                }
                saving.save(place);
                place
            }
        };
        let mut reader = Reader::new(&self.dir, place.cursor());
        loop {
            let batch = read(&mut reader, place, &self.webhook.events, self.webhook.batch).map_err(said)?;
            if batch.missing_files > 0 {
                let webhook = &self.webhook.name;
                let files = batch.missing_files;
                tracing::warn!(
                    webhook,
                    files,
                    "files of the event log are gone or damaged: a webhook misses the events in them"
                );
            }
            if batch.events > 0 {
                self.states.has_more(&self.webhook.name);
                if !self.may_post(&mut saving, place) || !self.post(&poster, &batch, &saving, trouble) {
                    return Ok(());
                }
                saving.budget.done(batch.events);
            }
            let has_moved = batch.through != place;
            place = batch.through;
            if batch.events > 0 || saving.is_due(place) {
                saving.save(place);
            }
            if !has_moved {
                self.states.caught_up(&self.webhook.name);
                if self.stop.wait(LOOK_INTERVAL) {
                    return Ok(());
                }
            }
        }
    }

    /// Waits while too many posted events are not saved; false if it is told to stop meanwhile.
    fn may_post(&self, saving: &mut Saving<'_>, place: Place) -> bool {
        while !saving.budget.may_begin() {
            if self.waits_for_ever(saving) {
                return false;
            }
            saving.look();
            if self.stop.wait(SAVE_PAUSE) {
                return false;
            }
            saving.save(place);
        }
        saving.look();
        true
    }

    /// True after a stop, if the spool is poisoned: until then it does nothing.
    fn waits_for_ever(&self, saving: &Saving<'_>) -> bool {
        let Some(why) = saving.budget.poisoned() else { return false };
        let webhook = &self.webhook.name;
        tracing::error!(
            webhook,
            why = &*why,
            "a webhook receives no more events until a restart: stable storage failed"
        );
        while !self.stop.wait(SAVE_PAUSE) {}
        true
    }

    /// Notes why a post failed, shortened, as certificates and alerts are a stranger's text. Returns the pause.
    fn fails(&self, why: &str, trouble: &mut Trouble<'_>) -> Duration {
        let why = &why[..why.floor_char_boundary(WHY_BYTES_MAX)];
        self.states.fails(&self.webhook.name, why);
        trouble.begins(why)
    }

    /// Posts a batch until it is accepted; false if it is told to stop meanwhile.
    fn post(&self, poster: &Poster, batch: &Batch, saving: &Saving<'_>, trouble: &mut Trouble<'_>) -> bool {
        loop {
            if self.stop.is_set() || self.waits_for_ever(saving) {
                return false;
            }
            match poster.post(&batch.body) {
                Ok(()) => {
                    trouble.ends();
                    self.states.works(&self.webhook.name);
                    return true;
                }
                Err(why) => {
                    if self.stop.wait(self.fails(&why, trouble)) {
                        return false;
                    }
                }
            }
        }
    }
}

/// The file of a hook's position. While the disk is full the position is kept in memory and saved later: up to a limit
/// this neither delays nor repeats a post.
struct Saving<'a> {
    name: &'a str,
    path: &'a Path,
    saved: Option<Place>,
    /// When it could not be saved.
    failed: Option<Instant>,
    /// Events that are posted and not saved.
    budget: OutcomeBudget,
}

impl<'a> Saving<'a> {
    fn new(name: &'a str, path: &'a Path, saved: Option<Place>, poison: PoisonWatch) -> Self {
        Saving { name, path, saved, failed: None, budget: OutcomeBudget::new(poison, Instant::now()) }
    }

    /// Logs a stop, and its end.
    fn look(&self) {
        let webhook = self.name;
        match self.budget.look(Instant::now()) {
            Some(BudgetChange::Stopped { unrecorded, .. }) => tracing::error!(
                webhook,
                unrecorded,
                "a webhook receives no more events until its position can be saved: a restart would repeat them"
            ),
            Some(BudgetChange::GoesOn) => {
                tracing::info!(webhook, "a webhook receives events again: its position is saved")
            }
            None => {}
        }
    }

    /// True if a position must be saved although nothing was posted. A few unwanted lines are cheap to read again after
    /// a restart.
    fn is_due(&self, place: Place) -> bool {
        match (self.failed, self.saved) {
            (Some(failed), _) => failed.elapsed() >= SAVE_PAUSE,
            (None, Some(saved)) => place.file != saved.file || place.offset - saved.offset > UNSAVED_BYTES_MAX,
            (None, None) => true,
        }
    }

    /// Saves the position. A problem, and its end, are logged once each.
    fn save(&mut self, place: Place) {
        let webhook = self.name;
        match place.save(self.path) {
            Ok(()) => {
                self.saved = Some(place);
                self.budget.recorded(usize::try_from(self.budget.unrecorded()).unwrap_or(usize::MAX), Instant::now());
                if self.failed.take().is_some() {
                    tracing::info!(webhook, "the position of a webhook is saved again");
                }
            }
            Err(error) => {
                if self.failed.replace(Instant::now()).is_none() {
                    let error = error.to_string();
                    tracing::error!(
                        webhook,
                        error,
                        "cannot save the position of a webhook: after a restart it receives some events again; retrying"
                    );
                }
            }
        }
    }
}

/// Log lines about a failing hook: once, and when it works again.
struct Trouble<'a> {
    name: &'a str,
    back_off: BackOff,
    is_told: bool,
}

impl Trouble<'_> {
    /// Counts a failure; returns the pause.
    fn begins(&mut self, error: &str) -> Duration {
        let webhook = self.name;
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                webhook,
                error,
                "cannot post to a webhook: its events wait in the event log; retrying automatically"
            );
        } else {
            tracing::debug!(webhook, error, "cannot post to a webhook");
        }
        self.back_off.failed()
    }

    fn ends(&mut self) {
        self.back_off.succeeded();
        if std::mem::take(&mut self.is_told) {
            tracing::info!(webhook = self.name, "a webhook receives events again");
        }
    }
}

/// Bytes of an error that are kept and logged.
const WHY_BYTES_MAX: usize = 1000;
/// Pauses after a failure.
const RETRY: BackOff = BackOff::new(Duration::from_millis(500), Duration::from_secs(300));
const UNSAVED_BYTES_MAX: u64 = 1 << 20;
/// Pause before a failed save is retried.
const SAVE_PAUSE: Duration = Duration::from_secs(5);
/// Interval of checks for new lines.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use posthaste_events::file_name;
    use serde_json::Value;

    use super::*;
    use crate::test_log::logged;

    /// An HTTP server that takes everything; the ids of the events of each request.
    fn http() -> (String, Receiver<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut length, mut line) = (0, String::new());
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if let Some(text) = line.to_lowercase().strip_prefix("content-length: ") {
                        length = text.trim().parse().unwrap();
                    }
                    if std::mem::take(&mut line) != "\r\n" {
                        continue;
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let events: Vec<Value> = serde_json::from_slice(&body).unwrap();
                    let ids = events.iter().map(|event| event["event_id"].as_str().unwrap().to_owned());
                    if tell.send(ids.collect()).is_err() {
                        return;
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                }
            }
        });
        (url, told)
    }

    #[test]
    fn each_event_is_posted_once_with_an_unsavable_position() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = File::create(dir.path().join(file_name(1))).unwrap();
        let mut event =
            |lsn: u64| log.write_all(format!("{{\"lsn\":\"{lsn}\",\"event\":\"refused\"}}\n").as_bytes()).unwrap();
        let path = place::path(dir.path(), "crm");
        Place { file: 1, ..Place::default() }.save(&path).unwrap();
        // In the way of what would replace it.
        let obstacle = posthaste_fsops::unfinished(&path);
        std::fs::create_dir(&obstacle).unwrap();
        let (url, told) = http();
        let webhook = toml::from_str(&format!("name = \"crm\"\nurl = \"{url}\"")).unwrap();
        let stop = Arc::<Stop>::default();
        let hook = Hook {
            dir: dir.path().to_owned(),
            webhook,
            poison: Arc::new(|| None),
            states: Arc::default(),
            stop: stop.clone(),
        };
        let thread = std::thread::spawn(move || hook.run());
        for lsn in 1..=3 {
            event(lsn);
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), [format!("{lsn}.0")]);
        }
        std::fs::remove_dir(&obstacle).unwrap();
        let begun = Instant::now();
        while Place::load(&path).unwrap().unwrap().lsn.get() != 3 {
            assert!(begun.elapsed() < PATIENCE, "it is saved when it can be");
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.set();
        thread.join().unwrap();
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_hook_with_a_lost_position_posts_nothing_until_settled() {
        let dir = tempfile::tempdir().unwrap();
        let lines: String = (1..=3).map(|lsn| format!("{{\"lsn\":\"{lsn}\",\"event\":\"refused\"}}\n")).collect();
        std::fs::write(dir.path().join(file_name(1)), lines).unwrap();
        let path = place::path(dir.path(), "crm");
        Place { file: 1, ..Place::default() }.save(&path).unwrap();
        let kept = std::fs::read(&path).unwrap();
        let (url, told) = http();
        let webhook: Webhook = toml::from_str(&format!("name = \"crm\"\nurl = \"{url}\"")).unwrap();
        let stop = Arc::<Stop>::default();
        let hook = Hook {
            dir: dir.path().to_owned(),
            webhook,
            poison: Arc::new(|| None),
            states: Arc::default(),
            stop: stop.clone(),
        };
        let mut trouble = Trouble { name: "crm", back_off: RETRY, is_told: false };
        for damaged in [None, Some(&b"{"[..])] {
            std::fs::remove_file(&path).unwrap();
            damaged.iter().for_each(|bytes| std::fs::write(&path, bytes).unwrap());
            let why = hook.follow(&mut trouble).unwrap_err();
            for part in ["webhook-crm.json", "put the file back, or remove", "webhook-crm.json.made", "from then on"] {
                assert!(why.contains(part), "{part}: {why}");
            }
            std::fs::write(&path, &kept).unwrap();
        }
        let thread = std::thread::spawn(move || hook.run());
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), ["1.0", "2.0", "3.0"]);
        stop.set();
        thread.join().unwrap();
    }

    #[test]
    fn a_hook_is_told_nothing_once_the_spool_is_poisoned() {
        for asks_before in 0..3 {
            let dir = tempfile::tempdir().unwrap();
            let lines: String = (1..=30).map(|lsn| format!("{{\"lsn\":\"{lsn}\",\"event\":\"refused\"}}\n")).collect();
            std::fs::write(dir.path().join(file_name(1)), lines).unwrap();
            Place { file: 1, ..Place::default() }.save(&place::path(dir.path(), "crm")).unwrap();
            let (url, told) = http();
            let webhook = toml::from_str(&format!("name = \"crm\"\nurl = \"{url}\"\nbatch = 10")).unwrap();
            let (asked, is_told) = channel();
            let asks = AtomicU64::new(0);
            let poison: PoisonWatch = Arc::new(move || {
                let is_poisoned = asks.fetch_add(1, Ordering::Relaxed) >= asks_before;
                is_poisoned.then(|| asked.send(()).map_or("EIO".into(), |()| "EIO".into()))
            });
            let stop = Arc::<Stop>::default();
            let hook = Hook { dir: dir.path().to_owned(), webhook, poison, states: Arc::default(), stop: stop.clone() };
            let thread = std::thread::spawn(move || hook.run());
            is_told.recv_timeout(PATIENCE).unwrap();
            // A post is told before it is answered.
            let posted = told.try_iter().flatten().count() as u64;
            assert!(posted <= asks_before * 10, "{posted} after {asks_before} asks");
            stop.set();
            thread.join().unwrap();
            assert_eq!(told.try_iter().count(), 0, "nothing more");
        }
    }

    #[test]
    fn only_so_much_is_posted_while_its_place_cannot_be_saved() {
        let dir = tempfile::tempdir().unwrap();
        let lines: String = (1..=1500).map(|lsn| format!("{{\"lsn\":\"{lsn}\",\"event\":\"refused\"}}\n")).collect();
        std::fs::write(dir.path().join(file_name(1)), lines).unwrap();
        let path = place::path(dir.path(), "crm");
        Place { file: 1, ..Place::default() }.save(&path).unwrap();
        let obstacle = posthaste_fsops::unfinished(&path);
        std::fs::create_dir(&obstacle).unwrap();
        let (url, told) = http();
        let webhook = toml::from_str(&format!("name = \"crm\"\nurl = \"{url}\"\nbatch = 100")).unwrap();
        let stop = Arc::<Stop>::default();
        let hook = Hook {
            dir: dir.path().to_owned(),
            webhook,
            poison: Arc::new(|| None),
            states: Arc::default(),
            stop: stop.clone(),
        };
        let thread = std::thread::spawn(move || hook.run());
        let mut ids = Vec::new();
        while ids.len() < 1000 {
            ids.extend(told.recv_timeout(PATIENCE).unwrap());
        }
        assert!(told.try_recv().is_err());
        std::fs::remove_dir(&obstacle).unwrap();
        ids.extend(told.recv_timeout(PATIENCE).unwrap());
        let saved = Place::load(&path).unwrap().unwrap().lsn.get();
        assert!(saved >= 1000, "nothing more was posted before {saved} were saved");
        while ids.len() < 1500 {
            ids.extend(told.recv_timeout(PATIENCE).unwrap());
        }
        assert_eq!(ids, (1..=1500).map(|lsn| format!("{lsn}.0")).collect::<Vec<_>>());
        stop.set();
        thread.join().unwrap();
    }

    #[test]
    fn what_is_kept_of_an_error_is_bounded() {
        let hook = Hook {
            dir: PathBuf::new(),
            webhook: toml::from_str("name = \"crm\"\nurl = \"http://127.0.0.1:9/\"").unwrap(),
            poison: Arc::new(|| None),
            states: Arc::default(),
            stop: Arc::default(),
        };
        let mut trouble = Trouble { name: "crm", back_off: RETRY, is_told: false };
        for (why, kept) in [("x".repeat(100_000), 1000), ("ü€".repeat(1000), 1000), ("€".repeat(1000), 999)] {
            let lines = logged(|| _ = hook.fails(&why, &mut trouble));
            let state = hook.states.all().remove(0).1;
            assert_eq!(state.trouble.as_deref(), Some(&why[..kept]));
            assert!(lines.iter().all(|line| line.len() < 2 * WHY_BYTES_MAX), "{lines:?}");
        }
    }

    const PATIENCE: Duration = Duration::from_secs(60);
}
