//! The user's command that runs after changes of the index.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::settings::SearchSettings;
use crate::update::Report;

/// Set for the command, so that an update which it makes itself does not run it again.
const INSIDE: &str = "POSTHASTE_IN_HOOK";

/// Counts of changes, passed to the command as environment variables.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    added: u64,
    moved: u64,
    flags_changed: u64,
    removed: u64,
    messages: u64,
}

impl Counts {
    fn add(&mut self, report: &Report) {
        self.added += report.new;
        self.moved += report.moved;
        self.flags_changed += report.renamed;
        self.removed += report.removed;
        self.messages = report.messages;
    }
}

/// Runs the hook of the index in `dir`, if the index has one and the run changed something, and waits for it. The index
/// must not be open for writing: the command may want to write.
///
/// # Errors
/// A message for the user: the settings cannot be read, or the command failed. The index is up to date in both cases.
pub fn run_hook(dir: &Path, report: &Report) -> Result<(), String> {
    let mut counts = Counts::default();
    counts.add(report);
    if report.has_changes() { run(dir, counts) } else { Ok(()) }
}

fn run(dir: &Path, counts: Counts) -> Result<(), String> {
    let settings = SearchSettings::load(dir).map_err(|error| error.to_string())?;
    let Some(command) = settings.hook.after_index else { return Ok(()) };
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(&command).env(INSIDE, "1").env("POSTHASTE_INDEX", dir);
    for (name, count) in [
        ("POSTHASTE_NEW", counts.added),
        ("POSTHASTE_MOVED", counts.moved),
        ("POSTHASTE_FLAGS_CHANGED", counts.flags_changed),
        ("POSTHASTE_REMOVED", counts.removed),
        ("POSTHASTE_MESSAGES", counts.messages),
    ] {
        shell.env(name, count.to_string());
    }
    // Standard output is for what the index says of itself, which may be JSON.
    shell.stdin(Stdio::null()).stdout(Stdio::from(std::io::stderr()));
    match shell.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the hook `{command}` failed: {status}")),
        Err(error) => Err(format!("the hook `{command}` cannot be run: {error}")),
    }
}

/// Runs the hook of an index that stays open, on a thread of its own, one at a time. Changes during a run are passed to
/// the next one.
pub struct HookRunner {
    dir: PathBuf,
    tell: Arc<dyn Fn(&str) + Send + Sync>,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    waiting: Option<Counts>,
    is_running: bool,
}

impl HookRunner {
    /// `tell` receives error messages.
    pub fn new(dir: &Path, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { dir: dir.to_owned(), tell: Arc::new(tell), shared: Arc::default(), thread: None }
    }

    /// Call after each commit.
    pub fn after(&mut self, report: &Report) {
        if !report.has_changes() {
            return;
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.waiting.get_or_insert_default().add(report);
        if std::mem::replace(&mut shared.is_running, true) {
            return;
        }
        let dir = self.dir.clone();
        let tell = Arc::clone(&self.tell);
        let shared = Arc::clone(&self.shared);
        let work = move || {
            while let Some(counts) = next(&shared) {
                if let Err(why) = run(&dir, counts) {
                    tell(&why);
                }
            }
        };
        self.thread = Some(std::thread::spawn(work));
    }
}

/// Returns the next counts, or `None` when there are none: then the thread ends, and the next change starts another.
fn next(shared: &Mutex<Shared>) -> Option<Counts> {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    shared.is_running = shared.waiting.is_some();
    shared.waiting.take()
}

impl Drop for HookRunner {
    /// Waits for a running hook.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
