//! Other processes: started, waited for, ended with the value that stands for them.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::suite::SideError;

/// Nothing here takes longer to start or to end unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A child process; ended when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub log: PathBuf,
}

impl Process {
    /// Starts `command` with its standard error, and output unless it is set, in the file `log`. It is not of our
    /// process group: Ctrl-C is for us, who then end it in order.
    pub fn start(command: &mut Command, log: PathBuf) -> std::io::Result<Self> {
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stderr(file).process_group(0);
        Ok(Self { child: command.spawn()?, log })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
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
        let begun = Instant::now();
        while !listens(address) {
            if !self.is_alive() || begun.elapsed() > PATIENCE {
                return Err(SideError::Failed(format!("nothing listens on {address}: {}", self.last_words())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
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
                let _ = self.child.kill();
                let _ = self.child.wait();
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
