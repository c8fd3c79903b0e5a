//! The server under test: a program, started as an operator would start it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

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
    /// Where it listens on the loopback address.
    pub port: u16,
    /// Seconds between checkpoints.
    pub checkpoint_secs: u32,
    /// Lines of the configuration's section `limits`.
    pub limits: String,
    /// A command in front of the server's that becomes the server: `prlimit` or `env` with their arguments.
    pub through: Vec<String>,
}

impl Setup {
    /// A server with all that it has in `scratch`.
    pub fn plain(program: PathBuf, scratch: &Path, port: u16) -> Self {
        Setup {
            program,
            scratch: scratch.to_owned(),
            data: scratch.join("data"),
            journal: None,
            mail: None,
            port,
            checkpoint_secs: 1,
            limits: String::new(),
            through: Vec::new(),
        }
    }

    /// The directory of the mailboxes.
    pub fn mail(&self) -> PathBuf {
        self.mail.clone().unwrap_or_else(|| self.data.join("mail"))
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
             [[listener]]\naddress = \"127.0.0.1:{}\"\n[[domain]]\nname = \"{DOMAIN}\"\nusers = \"any\"\n\
             [limits]\n{}[log]\nlevel = \"warn\"\n",
            4 << 20,
            8 << 20,
            self.checkpoint_secs,
            self.port,
            self.limits
        )
    }

    /// Starts it and waits until it says that it is ready.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(&self) -> Result<Running, ServerError> {
        let mut running = self.spawn()?;
        running.wait_until_ready()?;
        Ok(running)
    }

    fn spawn(&self) -> Result<Running, ServerError> {
        let config = self.scratch.join("posthaste.toml");
        std::fs::write(&config, self.config()).map_err(ServerError::Start)?;
        let log = std::fs::File::create(self.log()).map_err(ServerError::Start)?;
        let mut command = Command::new(self.through.first().map_or(self.program.as_os_str(), std::ffi::OsStr::new));
        if let Some((_, arguments)) = self.through.split_first() {
            command.args(arguments).arg(&self.program);
        }
        command.arg("serve").arg("--config").arg(&config);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().map_err(ServerError::Start)?;
        Ok(Running { child, address: SocketAddr::from(([127, 0, 0, 1], self.port)), log: self.log() })
    }
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
    /// Where it takes mail.
    pub address: SocketAddr,
    log: PathBuf,
}

impl Running {
    fn wait_until_ready(&mut self) -> Result<(), ServerError> {
        let stdout = self.child.stdout.take().expect("its output is piped");
        let (say, said) = mpsc::channel();
        // Reads on after it is ready, so that the server never writes into a closed pipe; ends with the server.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.starts_with("Ready") && say.send(()).is_err() {
                    return;
                }
            }
        });
        match said.recv_timeout(PATIENCE) {
            Ok(()) => Ok(()),
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
