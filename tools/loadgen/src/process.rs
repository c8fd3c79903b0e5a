//! Child processes: started, awaited, and ended with the value that owns them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Timeout for a start or an end; only a hang takes this long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Stack frames shown of each thread in the kernel.
const FRAMES: usize = 6;
/// Interval between looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A child process, killed on drop and also when this process ends earlier in any way.
#[derive(Debug)]
pub struct Process {
    child: Child,
    output: PathBuf,
    log: PathBuf,
    _guard: Guard,
}

/// Error of a wait.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The process ended.
    #[error("it ended ({status}): {said}")]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        said: String,
    },
    /// [`PATIENCE`] has passed.
    #[error("not ready after {} s: {said}; its threads: {threads}", PATIENCE.as_secs())]
    Slow {
        /// The end of its output.
        said: String,
        /// Place of each of its threads: name, state and functions of the kernel, as far as the kernel tells.
        threads: String,
    },
}

impl Process {
    /// Starts `command`. Its output goes to the files `place` with `.out` and `.log` (standard error) appended. It has
    /// its own process group, so Ctrl-C reaches only this process, which then ends it in order.
    ///
    /// # Errors
    /// When a file cannot be made or the program cannot be started.
    pub fn start(command: &mut Command, place: &Path) -> io::Result<Self> {
        let (output, log) = (place.with_added_extension("out"), place.with_added_extension("log"));
        command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&log)?).process_group(0);
        let mut child = command.spawn()?;
        let guard = Guard::new("kill", &["-KILL", &child.id().to_string()]);
        if guard.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(Self { child, output, log, _guard: guard? })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output so far.
    pub fn output(&self) -> String {
        read(&self.output)
    }

    /// Its standard error so far.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// The end of its output.
    fn last_words(&self) -> String {
        let text = self.output() + &self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }

    /// Name, state and place in the kernel of each thread, from `/proc`.
    fn threads(&self) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let thread = |task: std::fs::DirEntry| {
            let read = |name: &str| read(&task.path().join(name)).trim().to_owned();
            let state = read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
            // The stack is for root alone.
            let stack = read("stack");
            let frames = stack.lines().filter_map(|line| line.split_once("] ")?.1.split('+').next());
            let frames: Vec<&str> = frames.take(FRAMES).collect();
            let place = if frames.is_empty() { read("wchan") } else { frames.join(" < ") };
            format!("{} {state} {place}", read("comm"))
        };
        tasks.into_iter().flatten().flatten().map(thread).collect::<Vec<_>>().join("; ")
    }

    /// Waits until something listens on `address`.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_until_it_listens(&mut self, address: SocketAddr) -> Result<(), WaitError> {
        self.wait_until(|_| listens(address).then_some(()))?;
        match self.child.try_wait() {
            // Then it is a stranger who listens there.
            Ok(Some(status)) => Err(WaitError::Ended { status, said: self.last_words() }),
            _ => Ok(()),
        }
    }

    /// Waits until `seen` returns a value.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_until<T>(&mut self, mut seen: impl FnMut(&Self) -> Option<T>) -> Result<T, WaitError> {
        let begun = Instant::now();
        loop {
            let ended = self.child.try_wait().ok().flatten();
            // Looked at once more after its end: its last word may be what is looked for.
            if let Some(found) = seen(self) {
                return Ok(found);
            }
            if let Some(status) = ended {
                return Err(WaitError::Ended { status, said: self.last_words() });
            }
            if begun.elapsed() > PATIENCE {
                return Err(WaitError::Slow { said: self.last_words(), threads: self.threads() });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Sends a signal; does nothing if the process has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Until somebody has waited for its end, its number is given to nobody else.
        if waitid(WaitId::Pid(pid), looks).is_ok() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// [`WaitError::Slow`].
    pub fn wait(&mut self) -> Result<ExitStatus, WaitError> {
        match self.wait_until(|_| None::<std::convert::Infallible>) {
            Err(WaitError::Ended { status, .. }) => Ok(status),
            Err(slow) => Err(slow),
        }
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// [`WaitError::Slow`]; it still runs then.
    pub fn stop(&mut self) -> Result<ExitStatus, WaitError> {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command if this process ends before the value is dropped, even by SIGKILL: no server keeps running.
///
/// A shell waits for a line on a pipe whose other end only this process has. It gets one from `drop`, or the pipe's
/// end.
#[derive(Debug)]
pub struct Guard(Child);

impl Guard {
    /// A guard that runs `program` with `arguments`.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn new(program: impl AsRef<OsStr>, arguments: &[impl AsRef<OsStr>]) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read -r line || \"$@\"", "sh"]).arg(program).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().map(Self)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut line) = self.0.stdin.take() {
            let _ = line.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

fn read(file: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
}

/// True if a connection can be made.
pub fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// A port of loopback that was free a moment ago, for programs that cannot choose a free one.
///
/// # Errors
/// When there is none.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Path of a program: in PATH, or in directories of system programs, which a user's PATH may leave out.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    places.map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_acts_when_its_holder_is_gone_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("acted");
        drop(Guard::new("touch", &[&file]).unwrap());
        assert!(!file.exists(), "it was dropped in order");
        let mut abandoned = Guard::new("touch", &[&file]).unwrap();
        // What the kernel does with the pipe of a process that was killed.
        drop(abandoned.0.stdin.take());
        assert!(abandoned.0.wait().unwrap().success() && file.exists());
    }

    #[test]
    fn a_process_ends_with_its_starter_even_if_nothing_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::start(Command::new("sleep").arg("600"), &dir.path().join("sleep")).unwrap();
        drop(process._guard.0.stdin.take());
        let status = process.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn what_a_process_says_is_waited_for_and_its_silence_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let start = |script: &str| {
            Process::start(Command::new("sh").args(["-c", script]), &dir.path().join("sh")).expect("sh starts")
        };
        let ready = |process: &Process| process.output().contains("Ready").then_some(());
        assert!(start("sleep 0.1; echo Ready; exec sleep 60").wait_until(ready).is_ok());
        let ended = start("echo no >&2; exit 3").wait_until(ready).unwrap_err();
        assert!(matches!(&ended, WaitError::Ended { status, said } if status.code() == Some(3) && said == "no"));
        assert!(start("trap 'exit 4' TERM; echo Ready; while :; do sleep 0.01; done").stop().is_ok());
    }

    #[test]
    fn where_a_process_waits_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::start(Command::new("sleep").arg("600"), &dir.path().join("sleep")).unwrap();
        process.wait_until(|process| process.threads().contains("sleep S ").then_some(())).unwrap();
        assert!(process.threads().starts_with("sleep S ") && !process.threads().contains(';'));
    }
}
