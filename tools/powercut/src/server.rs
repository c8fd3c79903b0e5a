//! The server under test: a program, started as an operator would start it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::load::Protocol;

/// How to start it, and where it keeps things.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `posthaste` binary.
    pub program: PathBuf,
    /// A directory of the rig's own, for the configuration and the log.
    pub scratch: PathBuf,
    /// The server's data directory.
    pub data: PathBuf,
    /// The journal's, where it is not within `data`.
    pub journal: Option<PathBuf>,
    /// The mail's, where it is not within `data`.
    pub mail: Option<PathBuf>,
    /// Seconds between checkpoints.
    pub checkpoint_secs: u32,
    /// Lines of the configuration's section `limits`.
    pub limits: String,
    /// Whether mail is indexed as it is delivered.
    pub indexed: bool,
    /// A command in front of the server's that becomes the server: `prlimit` or `env` with their arguments.
    pub through: Vec<String>,
}

impl Setup {
    /// A server with all that it has in `scratch`.
    pub fn plain(program: PathBuf, scratch: &Path) -> Self {
        Setup {
            program,
            scratch: scratch.to_owned(),
            data: scratch.join("data"),
            journal: None,
            mail: None,
            checkpoint_secs: 1,
            limits: String::new(),
            indexed: false,
            through: Vec::new(),
        }
    }

    /// The directory of the mailboxes.
    pub fn mail(&self) -> PathBuf {
        self.mail.clone().unwrap_or_else(|| self.data.join("mail"))
    }

    /// The directory of the search's index, if it is [`indexed`](Self::indexed).
    pub fn index(&self) -> PathBuf {
        self.data.join("search")
    }

    /// What it writes to its log.
    pub fn log(&self) -> PathBuf {
        self.scratch.join("server.log")
    }

    /// Small segments and frequent checkpoints, so that a short run turns the journal over several times.
    fn config(&self) -> String {
        let mut text = format!("host_name = \"{DOMAIN}\"\n[storage]\ndata = {:?}\n", self.data);
        for (key, dir) in [("journal", &self.journal), ("mail", &self.mail)] {
            if let Some(dir) = dir {
                text += &format!("{key} = {dir:?}\n");
            }
        }
        text + &format!(
            "journal_segment_bytes = {}\njournal_segments = 12\ncheckpoint_bytes = {}\ncheckpoint_secs = {}\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"lmtp\"\n[[domain]]\nname = \"{DOMAIN}\"\nusers = \"any\"\n\
             [search]\nindex = {}\n[limits]\n{}[log]\nlevel = \"warn\"\n",
            4 << 20,
            8 << 20,
            self.checkpoint_secs,
            self.indexed,
            self.limits
        )
    }

    /// Starts it on free ports and waits until it says where it listens and that it is ready. It does not outlive the thread that
    /// calls this.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(&self) -> Result<Running, ServerError> {
        let mut child = self.spawn()?;
        let stdout = child.stdout.take().expect("its output is piped");
        // From here on whatever goes wrong ends it.
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut running = Running { child, address: nowhere, lmtp: nowhere, log: self.log() };
        [running.address, running.lmtp] = running.wait_until_ready(stdout)?;
        Ok(running)
    }

    fn spawn(&self) -> Result<Child, ServerError> {
        let config = self.scratch.join("posthaste.toml");
        std::fs::write(&config, self.config()).map_err(ServerError::Start)?;
        let log = std::fs::File::create(self.log()).map_err(ServerError::Start)?;
        let mut command = dies_with_us();
        command.args(&self.through).arg(&self.program).arg("serve").arg("--config").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().map_err(ServerError::Start)
    }
}

/// The command in front of a program that has the kernel kill it when the thread that started it ends, so that a rig that is
/// killed leaves no server behind. Ctrl-C is for us, who then end it in order.
pub(crate) fn dies_with_us() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).process_group(0);
    command
}

/// Why the server did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It could not be started at all.
    #[error("cannot start the server: {0}")]
    Start(#[source] std::io::Error),
    /// It ended instead of becoming ready.
    #[error("the server ended ({status}): {log}")]
    Ended {
        /// Its exit status.
        status: String,
        /// What it had written to its log.
        log: String,
    },
    /// It did not become ready, or did not end when told to, in time.
    #[error("the server has not {what} within {} s: {log}", PATIENCE.as_secs())]
    Slow {
        /// What was waited for.
        what: &'static str,
        /// What it had written to its log.
        log: String,
    },
}

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Where it takes mail by SMTP.
    pub address: SocketAddr,
    /// Where it takes mail by LMTP.
    pub lmtp: SocketAddr,
    log: PathBuf,
}

impl Running {
    /// The ways to send it mail, all of which promise the same.
    pub fn ways(&self) -> [(Protocol, SocketAddr); 3] {
        [(Protocol::Smtp, self.address), (Protocol::Chunking, self.address), (Protocol::Lmtp, self.lmtp)]
    }

    /// Its addresses, in the order in which the configuration has its listeners.
    fn wait_until_ready(&mut self, stdout: ChildStdout) -> Result<[SocketAddr; 2], ServerError> {
        let (say, said) = mpsc::channel();
        // Reads on after it is ready, so that the server never writes into a closed pipe; ends with the server.
        std::thread::spawn(move || {
            let mut addresses = Vec::new();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(listening) = line.trim_start().strip_prefix("listening") {
                    addresses.extend(listening.trim().parse::<SocketAddr>().ok());
                }
                if let (true, &[smtp, lmtp]) = (line.starts_with("Ready"), &addresses[..])
                    && say.send([smtp, lmtp]).is_err()
                {
                    return;
                }
            }
        });
        match said.recv_timeout(PATIENCE) {
            Ok(addresses) => Ok(addresses),
            Err(RecvTimeoutError::Timeout) => Err(ServerError::Slow { what: "become ready", log: self.read_log() }),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_err(ServerError::Start)?.to_string();
                Err(ServerError::Ended { status, log: self.read_log() })
            }
        }
    }

    /// What it has written to its log.
    pub fn read_log(&self) -> String {
        read_log(&self.log)
    }

    /// Tells it to end (SIGTERM) and waits until it has.
    ///
    /// # Errors
    /// [`ServerError::Slow`] if it does not; it is killed then.
    pub fn stop(mut self) -> Result<(), ServerError> {
        let _ = rustix::process::kill_process(self.pid(), Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().map_err(ServerError::Start)?.is_none() {
            if Instant::now() > deadline {
                return Err(ServerError::Slow { what: "ended", log: self.read_log() });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// kill -9, and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether one of its threads whose names begin with `name` waits for a disk (state D).
    pub fn waits_for_disk(&self, name: &str) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        tasks.into_iter().flatten().flatten().any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let is_it = stat.split_once('(').is_some_and(|(_, rest)| rest.starts_with(name));
            is_it && stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
        })
    }

    fn end(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn read_log(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// All mail goes to users of this domain.
pub const DOMAIN: &str = "rig.example";
/// Far more than any step takes; who waits longer has found a server that hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn pretended(dir: &Path, script: &str) -> Setup {
        let program = dir.join("server");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        Setup::plain(program, dir)
    }

    #[test]
    fn where_it_listens_is_what_it_says_and_it_ends_with_whoever_started_it() {
        let dir = tempfile::tempdir().unwrap();
        let setup = pretended(
            dir.path(),
            "echo '  listening  127.0.0.1:4711'; echo '  listening  127.0.0.1:4712'; echo Ready; exec sleep 600",
        );
        let starter = std::thread::spawn(move || {
            let running = setup.start().expect("it starts");
            let (address, pid) = ([running.address, running.lmtp], running.pid());
            // As if the rig were killed: nothing is dropped.
            std::mem::forget(running);
            (address, pid)
        });
        let (address, pid) = starter.join().unwrap();
        assert_eq!(address, [4711, 4712].map(|port| SocketAddr::from(([127, 0, 0, 1], port))));
        let (ended, status) =
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap();
        assert_eq!((ended, status.terminating_signal()), (pid, Some(Signal::KILL.as_raw())));
    }

    #[test]
    fn a_server_that_ends_instead_is_told_from_a_program_that_cannot_be_started() {
        let dir = tempfile::tempdir().unwrap();
        let ended = pretended(dir.path(), "echo no such disk >&2; exit 3").start().unwrap_err();
        assert!(matches!(&ended, ServerError::Ended { log, .. } if log == "no such disk"), "{ended}");
    }
}
