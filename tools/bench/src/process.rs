//! Other processes: started, waited for, ended with the value that stands for them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::suite::SideError;

/// Nothing here takes longer to start or to end unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A child process; ended when dropped, and also when this process ends in whatever way before that.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub log: PathBuf,
    _guard: Guard,
}

impl Process {
    /// Starts `command` with its output and standard error in the file `log`. It is not of our process group: Ctrl-C is
    /// for us, who then end it in order.
    pub fn start(command: &mut Command, log: PathBuf) -> std::io::Result<Self> {
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let mut child = command.spawn()?;
        let guard = Guard::new("kill", &["-TERM", &child.id().to_string()]);
        if guard.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(Self { child, log, _guard: guard? })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it has said.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }

    /// Waits until something listens on `address`.
    pub fn wait_for(&mut self, address: SocketAddr) -> Result<(), SideError> {
        self.wait_until(|_| listens(address).then_some(()))
            .ok_or_else(|| SideError::Failed(format!("nothing listens on {address}: {}", self.last_words())))
    }

    /// Waits until `seen` finds what it looks for in all that the process has said. `None` when it ended before, or
    /// took too long.
    pub fn wait_until<T>(&mut self, mut seen: impl FnMut(&str) -> Option<T>) -> Option<T> {
        let begun = Instant::now();
        loop {
            let is_alive = self.is_alive();
            // Looked at once more after its end: its last word may be what is looked for.
            if let Some(found) = seen(&std::fs::read_to_string(&self.log).unwrap_or_default()) {
                return Some(found);
            }
            if !is_alive || begun.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL; returns when it has gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and after a while SIGKILL.
    fn end(&mut self) {
        if self.is_alive() {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&self.child),
                rustix::process::Signal::TERM,
            );
        }
        let begun = Instant::now();
        while self.is_alive() {
            if begun.elapsed() > PATIENCE {
                self.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command if this process ends before the value is dropped, even by SIGKILL: servers do not stay behind.
///
/// A shell waits for a line on a pipe whose other end is ours alone. It gets one from `drop`, or the pipe's end.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    pub fn new(program: impl AsRef<OsStr>, arguments: &[impl AsRef<OsStr>]) -> std::io::Result<Self> {
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

/// Whether a connection can be made.
pub(crate) fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// A port of loopback that was free a moment ago, for programs that cannot be told to take a free one.
pub(crate) fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Where a program is: in PATH, or where system programs lie, which a user's PATH may leave out.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    places.map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The same as an error of a side.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf, SideError> {
    find_program(name).ok_or_else(|| SideError::Absent(format!("{name} is not installed (package {package})")))
}

/// Some peers are run as another user by root and as ourselves otherwise.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Writes a file of configuration.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), SideError> {
    std::fs::write(path, text).map_err(SideError::failed(&path.display().to_string()))
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
    fn what_a_process_says_is_waited_for_and_its_silence_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let start = |script: &str| {
            Process::start(Command::new("sh").args(["-c", script]), dir.path().join("log")).expect("sh starts")
        };
        let ready = |text: &str| text.contains("Ready").then_some(());
        assert_eq!(start("sleep 0.1; echo Ready; exec sleep 60").wait_until(ready), Some(()));
        let mut mute = start("echo no >&2");
        assert_eq!((mute.wait_until(ready), mute.last_words()), (None, "no".to_owned()));
    }
}
