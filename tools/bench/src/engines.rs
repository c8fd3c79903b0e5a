//! Programs that index and find mail: ours in its ways, mu, notmuch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::peers::program;
use crate::suite::{Settings, SideError};

/// Time limit for making or updating an index, in multiples of a round's limit.
const PATIENCE_ROUNDS: u32 = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Engine {
    Ours,
    Mu,
    Notmuch,
}

/// Task of a search program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Update by the program's own detection of changes. For mu this is its lazy check, as its default looks at
    /// everything.
    Update,
    /// List everything, whatever the directories' times say.
    ListAll,
    /// Look at every file's size and time, in the way that the program chooses.
    Check,
    /// Like `Check`, with one call after the other.
    CheckByCalls,
    /// Like `Check`, through io_uring.
    CheckByUring,
}

/// Times of a search; `None` if it was stopped at its limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Time to show the newest fifty.
    pub page: Option<Duration>,
    /// Time to count all hits, and their number; mu has to list them.
    pub all: Option<(Duration, u64)>,
}

impl Engine {
    /// The command, without the directories of the mail and the index. `Absent` if the program is not installed or has
    /// no such function.
    fn command(self, settings: &Settings, task: Task) -> Result<Command, SideError> {
        let none = || SideError::Absent("has no such thing".to_owned());
        let (program, arguments): (PathBuf, &[&str]) = match (self, task) {
            (Self::Ours, Task::Update) => (settings.program.clone(), &["index", "--quiet"]),
            (Self::Ours, Task::ListAll) => (settings.program.clone(), &["index", "--quiet", "--list-all"]),
            (Self::Ours, Task::Check) => (settings.program.clone(), &["index", "--quiet", "--check-files"]),
            (Self::Ours, Task::CheckByCalls) => {
                (settings.program.clone(), &["index", "--quiet", "--check-files", "--io", "calls"])
            }
            (Self::Ours, Task::CheckByUring) => {
                (settings.program.clone(), &["index", "--quiet", "--check-files", "--io", "uring"])
            }
            (Self::Mu, Task::Update) => (program("mu", "maildir-utils")?, &["index", "--quiet", "--lazy-check"]),
            (Self::Mu, Task::ListAll) => (program("mu", "maildir-utils")?, &["index", "--quiet"]),
            (Self::Notmuch, Task::Update) => (program("notmuch", "notmuch")?, &["new", "--quiet"]),
            (Self::Notmuch, Task::ListAll) => (program("notmuch", "notmuch")?, &["new", "--quiet", "--full-scan"]),
            (Self::Mu | Self::Notmuch, Task::Check | Task::CheckByCalls | Task::CheckByUring) => return Err(none()),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    }

    /// Exit statuses of a successful search: some programs have one of their own for no hits.
    fn answers(self) -> &'static [i32] {
        match self {
            Self::Ours => &[0, 1],
            Self::Mu => &[0, 2, 4],
            Self::Notmuch => &[0],
        }
    }
}

/// Exit statuses of a command that either works or fails.
const DONE: &[i32] = &[0];

/// An index that an engine keeps in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    engine: Engine,
    dir: PathBuf,
}

impl Index {
    /// Prepares the engine's directory, as far as it needs that before it can index `mail`.
    pub fn begin(engine: Engine, settings: &Settings, dir: &Path, mail: &Path) -> Result<Self, SideError> {
        let index = Self { engine, dir: dir.to_owned() };
        std::fs::create_dir_all(dir).map_err(SideError::failed("directory of an index"))?;
        match engine {
            Engine::Ours => {}
            Engine::Mu => {
                let mut command = Command::new(program("mu", "maildir-utils")?);
                command.arg("init").arg(format!("--maildir={}", mail.display()));
                index.run_to_end(settings, command)?;
            }
            Engine::Notmuch => {
                program("notmuch", "notmuch")?;
                // Its database would lie among the mail, and be indexed by the others' walks.
                let config = format!(
                    "[database]\nmail_root={}\npath={}\n[user]\nname=x\nprimary_email=x@bench.example\n[new]\ntags=\n[maildir]\nsynchronize_flags=false\n",
                    mail.display(),
                    dir.join("db").display()
                );
                std::fs::create_dir_all(dir.join("db")).map_err(SideError::failed("directory of an index"))?;
                std::fs::write(dir.join("notmuch.conf"), config).map_err(SideError::failed("notmuch.conf"))?;
            }
        }
        Ok(index)
    }

    /// Runs a task and returns its time. `mail` is passed to the program the first time only.
    pub fn task(&self, settings: &Settings, task: Task, mail: Option<&Path>) -> Result<Duration, SideError> {
        let mut command = self.engine.command(settings, task)?;
        if self.engine == Engine::Ours {
            command.arg("--index").arg(&self.dir).args(mail);
        }
        self.run_to_end(settings, command)
    }

    /// Shows the newest fifty hits and counts all; each may take as long as a round.
    pub fn find(&self, settings: &Settings, query: &str) -> Result<Found, SideError> {
        let command = |arguments: &[&str]| -> Result<Command, SideError> {
            let mut command = match self.engine {
                Engine::Ours => Command::new(&settings.program),
                Engine::Mu => Command::new(program("mu", "maildir-utils")?),
                Engine::Notmuch => Command::new(program("notmuch", "notmuch")?),
            };
            command.args(arguments);
            if self.engine == Engine::Ours {
                command.arg("--index").arg(&self.dir);
            }
            command.arg(query);
            Ok(command)
        };
        let (all, page): (&[&str], &[&str]) = match self.engine {
            Engine::Ours => (&["find", "--count"], &["find", "-n", "50"]),
            Engine::Mu => (&["find", "--fields", "i"], &["find", "--maxnum", "50", "--sortfield", "date", "--reverse"]),
            Engine::Notmuch => (&["count", "--output=files"], &["search", "--limit=50", "--output=summary"]),
        };
        let ask = |arguments| self.run(settings, command(arguments)?, self.engine.answers(), settings.round_max);
        let page = ask(page)?.map(|(took, _)| took);
        let all = match ask(all)? {
            Some((took, said)) => Some((took, self.hits(&said)?)),
            None => None,
        };
        Ok(Found { page, all })
    }

    /// Parses a count, or counts the lines of mu's list.
    fn hits(&self, said: &str) -> Result<u64, SideError> {
        match self.engine {
            // A line each.
            Engine::Mu => Ok(said.lines().count() as u64),
            Engine::Ours | Engine::Notmuch => {
                said.trim().parse().map_err(|_| SideError::Failed(format!("`{}` is not a number of hits", said.trim())))
            }
        }
    }

    pub fn bytes(&self) -> u64 {
        fn below(dir: &Path) -> u64 {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let size = |entry: std::fs::DirEntry| match entry.metadata() {
                Ok(data) if data.is_dir() => below(&entry.path()),
                Ok(data) => data.len(),
                Err(_) => 0,
            };
            entries.map(size).sum()
        }
        below(&self.dir)
    }

    /// Runs a command to its end, with a limit of [`PATIENCE_ROUNDS`], and returns its time.
    fn run_to_end(&self, settings: &Settings, command: Command) -> Result<Duration, SideError> {
        let patience = settings.round_max * PATIENCE_ROUNDS;
        match self.run(settings, command, DONE, patience)? {
            Some((took, _)) => Ok(took),
            None => Err(SideError::Failed(format!("took longer than {} s", patience.as_secs_f64()))),
        }
    }

    /// Runs a command and returns its time and output; `None` if it was ended after `patience`. Its exit status has to
    /// be one of `good`.
    fn run(
        &self,
        settings: &Settings,
        mut command: Command,
        good: &[i32],
        patience: Duration,
    ) -> Result<Option<(Duration, String)>, SideError> {
        command.env("XDG_CACHE_HOME", &self.dir).env("NOTMUCH_CONFIG", self.dir.join("notmuch.conf")).env("TZ", "UTC");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let begun = Instant::now();
        let child = command.spawn().map_err(SideError::failed("start"))?;
        let pid = rustix::process::Pid::from_child(&child);
        let (ended, told) = channel::<()>();
        let stop = Arc::clone(&settings.stop);
        // Returns why it ended the command.
        let watchdog = std::thread::spawn(move || {
            while told.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let why = if begun.elapsed() > patience {
                    Ending::TooLate
                } else if stop.load(Relaxed) {
                    Ending::Stopped
                } else {
                    continue;
                };
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                return Some(why);
            }
            None
        });
        let output = child.wait_with_output().map_err(SideError::failed("wait"))?;
        let took = begun.elapsed();
        drop(ended);
        match watchdog.join().unwrap_or(None) {
            Some(Ending::TooLate) => return Ok(None),
            Some(Ending::Stopped) => return Err(SideError::Failed("stopped".to_owned())),
            None => {}
        }
        if output.status.code().is_some_and(|code| good.contains(&code)) {
            Ok(Some((took, String::from_utf8_lossy(&output.stdout).into_owned())))
        } else {
            let words = String::from_utf8_lossy(&output.stderr);
            Err(SideError::Failed(format!("{}: {}", output.status, words.lines().last().unwrap_or(""))))
        }
    }
}

/// Why a command did not end by itself.
enum Ending {
    TooLate,
    Stopped,
}

/// Interval between checks for the end of a command.
const LOOK: Duration = Duration::from_millis(100);

/// Indexes that several workloads look at: each is made once, and not tried again when it cannot be made.
#[derive(Debug, Default)]
pub(crate) struct Indexes(Mutex<BTreeMap<Engine, Result<Index, SideError>>>);

impl Indexes {
    pub fn of(&self, engine: Engine, settings: &Settings, dir: &Path, mail: &Path) -> Result<Index, SideError> {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let make = || {
            let index = Index::begin(engine, settings, &dir.join("index"), mail)?;
            index.task(settings, Task::Update, Some(mail))?;
            Ok(index)
        };
        all.entry(engine).or_insert_with(make).clone()
    }
}

/// A program that executes `text`. Another process writes it: children of other tests could inherit our descriptor, and
/// a file open for writing cannot be executed (ETXTBSY).
#[cfg(test)]
pub(crate) fn script(dir: &Path, text: &str) -> PathBuf {
    let program = dir.join("program");
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#;
    let status = Command::new("sh").args(["-c", write]).arg(&program).arg(text).status().expect("run a shell");
    assert!(status.success(), "write a script");
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(dir: &Path) -> Index {
        Index { engine: Engine::Ours, dir: dir.to_owned() }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_error_is_no_fast_answer() {
        let (dir, settings) = (tempfile::tempdir().unwrap(), Settings::new("posthaste".into()));
        let run = |script: &str, good: &[i32]| index(dir.path()).run(&settings, shell(script), good, Duration::MAX);
        assert_eq!(run("echo 7; exit 1", Engine::Ours.answers()).unwrap().unwrap().1, "7\n");
        let error = run("echo broken >&2; exit 2", Engine::Ours.answers()).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
        assert!(run("exit 1", DONE).is_err() && run("exit 1", Engine::Mu.answers()).is_err());
        assert!(run("exit 4", Engine::Mu.answers()).is_ok());
        assert!(run("kill -9 $$", Engine::Mu.answers()).is_err());
    }

    #[test]
    fn a_command_ends_when_the_run_is_stopped() {
        let (dir, settings) = (tempfile::tempdir().unwrap(), Settings::new("posthaste".into()));
        settings.stop.store(true, Relaxed);
        let error = index(dir.path()).run_to_end(&settings, shell("exec sleep 600")).unwrap_err();
        assert_eq!(error.to_string(), "stopped");
    }

    #[test]
    fn what_takes_too_long_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { round_max: Duration::from_millis(10), ..Settings::new("posthaste".into()) };
        let error = index(dir.path()).run_to_end(&settings, shell("exec sleep 600")).unwrap_err();
        assert_eq!(error.to_string(), "took longer than 0.15 s");
    }

    #[test]
    fn an_index_that_cannot_be_made_is_tried_once() {
        let dir = tempfile::tempdir().unwrap();
        let marks = dir.path().join("marks");
        let program = script(dir.path(), &format!("echo x >>{}\nexit 2", marks.display()));
        let (settings, indexes) = (Settings::new(program), Indexes::default());
        for _ in 0..3 {
            assert!(indexes.of(Engine::Ours, &settings, dir.path(), dir.path()).is_err());
        }
        assert_eq!(std::fs::read_to_string(marks).unwrap(), "x\n");
    }
}
