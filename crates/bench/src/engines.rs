//! Programs that index and find mail: ours in its ways, mu, notmuch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::process::program;
use crate::suite::{Settings, SideError};

/// A command may take this many times as long as a round is meant to.
const PATIENCE_ROUNDS: u32 = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Engine {
    Ours,
    Mu,
    Notmuch,
}

/// What a program is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Take over what changed, in the way that it finds changes by itself. (mu's default looks at everything; this is its lazy check.)
    Update,
    /// List everything, whatever the directories' times say.
    ListAll,
    /// Look at every file's size and time, with one call after the other.
    CheckByCalls,
    /// The same through io_uring.
    CheckByUring,
}

impl Engine {
    /// The command, without where mail and index are. `Absent` if the program is not there or has no such thing.
    fn command(self, settings: &Settings, task: Task) -> Result<Command, SideError> {
        let none = || SideError::Absent("has no such thing".to_owned());
        let (program, arguments): (PathBuf, &[&str]) = match (self, task) {
            (Self::Ours, Task::Update) => (settings.program.clone(), &["index", "--quiet"]),
            (Self::Ours, Task::ListAll) => (settings.program.clone(), &["index", "--quiet", "--list-all"]),
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
            (Self::Mu | Self::Notmuch, Task::CheckByCalls | Task::CheckByUring) => return Err(none()),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    }
}

/// An index that an engine keeps in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    engine: Engine,
    dir: PathBuf,
}

impl Index {
    /// Makes what the engine needs before it can index `mail`.
    pub fn begin(engine: Engine, settings: &Settings, dir: &Path, mail: &Path) -> Result<Self, SideError> {
        let index = Self { engine, dir: dir.to_owned() };
        std::fs::create_dir_all(dir).map_err(SideError::failed("directory of an index"))?;
        match engine {
            Engine::Ours => {}
            Engine::Mu => {
                let mut command = Command::new(program("mu", "maildir-utils")?);
                command.arg("init").arg(format!("--maildir={}", mail.display()));
                index.run(settings, command)?;
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

    /// How long a task takes. `mail` is named the first time.
    pub fn task(&self, settings: &Settings, task: Task, mail: Option<&Path>) -> Result<Duration, SideError> {
        let mut command = self.engine.command(settings, task)?;
        if self.engine == Engine::Ours {
            command.arg("--index").arg(&self.dir).args(mail);
        }
        self.run(settings, command)
    }

    /// How long it takes to count all hits (mu: to list them), and to show the newest fifty.
    pub fn find(&self, settings: &Settings, query: &str) -> Result<(Duration, Duration), SideError> {
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
        Ok((self.run(settings, command(all)?)?, self.run(settings, command(page)?)?))
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

    fn run(&self, settings: &Settings, mut command: Command) -> Result<Duration, SideError> {
        command.env("XDG_CACHE_HOME", &self.dir).env("NOTMUCH_CONFIG", self.dir.join("notmuch.conf")).env("TZ", "UTC");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let begun = Instant::now();
        let child = command.spawn().map_err(SideError::failed("start"))?;
        let pid = rustix::process::Pid::from_child(&child);
        let (ended, told) = channel::<()>();
        let patience = settings.round_max * PATIENCE_ROUNDS;
        let watchdog = std::thread::spawn(move || {
            let late = told.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            if late {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            late
        });
        let output = child.wait_with_output().map_err(SideError::failed("wait"))?;
        let took = begun.elapsed();
        drop(ended);
        if watchdog.join().unwrap_or(false) {
            return Err(SideError::Failed(format!("took longer than {} s", patience.as_secs())));
        }
        // Nothing found is an answer: mu says 2 or 4 then, we say 1.
        if output.status.success() || (output.status.code().is_some_and(|code| code <= 4) && is_find(&command)) {
            Ok(took)
        } else {
            let words = String::from_utf8_lossy(&output.stderr);
            Err(SideError::Failed(format!("{}: {}", output.status, words.lines().last().unwrap_or(""))))
        }
    }
}

fn is_find(command: &Command) -> bool {
    command.get_args().next().is_some_and(|first| first == "find")
}

/// Indexes that several workloads look at: each is made once.
#[derive(Debug, Default)]
pub(crate) struct Indexes(Mutex<BTreeMap<Engine, Index>>);

impl Indexes {
    pub fn of(&self, engine: Engine, settings: &Settings, dir: &Path, mail: &Path) -> Result<Index, SideError> {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(index) = all.get(&engine) {
            return Ok(index.clone());
        }
        let index = Index::begin(engine, settings, &dir.join("index"), mail)?;
        index.task(settings, Task::Update, Some(mail))?;
        all.insert(engine, index.clone());
        Ok(index)
    }
}
