//! The server under test, started as an operator would start it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use posthaste_loadgen::process::{PATIENCE, Process, WaitError};
use posthaste_loadgen::server::{Server, StartError};

use crate::load::{DOMAIN, HERE, Protocol, SENDER};

/// Configuration of the server, and its directories.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `posthaste` binary.
    pub program: PathBuf,
    /// A directory of the rig's own, for the configuration and the log.
    pub scratch: PathBuf,
    /// The server's data directory.
    pub data: PathBuf,
    /// Directory of the spool, if not within `data`.
    pub spool: Option<PathBuf>,
    /// Directory of the mail, if not within `data`.
    pub mail: Option<PathBuf>,
    /// How the spool keeps mail: `storage.kind`.
    pub kind: String,
    /// Log files of the spool, of 4 MiB each.
    pub spool_segments: u64,
    /// Seconds between checkpoints.
    pub checkpoint_secs: u32,
    /// Space that the server leaves free on the spool's disk: with less, it accepts no mail and makes no notices.
    pub free_bytes_min: String,
    /// Next hop for the notices of [`SENDER`], if they do not go into its mailbox.
    pub notices_to: Option<String>,
    /// Lines of the configuration's section `limits`.
    pub limits: String,
    /// True if mail is indexed as it is delivered.
    pub indexed: bool,
    /// File of passwords of those who read mail. With one the server has listeners for IMAP and POP3, too.
    pub passwords: Option<PathBuf>,
    /// Next hop for all mail, if it does not go into mailboxes; the event log is on then.
    pub next_hop: Option<SocketAddr>,
    /// Configuration tables that route mail elsewhere, if any; the server then runs as [`NOBODY`], since it runs no
    /// programs as root.
    pub tables: Option<String>,
    /// A command in front of the server's that executes it: `prlimit` or `env` with their arguments.
    pub through: Vec<String>,
}

impl Setup {
    /// A server with all its files in `scratch`.
    pub fn plain(program: PathBuf, scratch: &Path) -> Self {
        Setup {
            program,
            kind: DEFAULT_KIND.to_owned(),
            scratch: scratch.to_owned(),
            data: scratch.join("data"),
            spool: None,
            mail: None,
            spool_segments: 12,
            checkpoint_secs: 1,
            free_bytes_min: "1MiB".to_owned(),
            notices_to: None,
            limits: String::new(),
            indexed: false,
            passwords: None,
            next_hop: None,
            tables: None,
            through: Vec::new(),
        }
    }

    /// The directory of the mailboxes.
    pub fn mail(&self) -> PathBuf {
        self.mail.clone().unwrap_or_else(|| self.data.join("mail"))
    }

    /// The directory of the spool.
    pub fn spool(&self) -> PathBuf {
        self.spool.clone().unwrap_or_else(|| self.data.join("spool"))
    }

    /// The directory of the search's index, if it is [`indexed`](Self::indexed).
    pub fn index(&self) -> PathBuf {
        self.data.join("search")
    }

    /// Path of its log.
    pub fn log(&self) -> PathBuf {
        self.place().with_added_extension("log")
    }

    fn place(&self) -> PathBuf {
        self.scratch.join("server")
    }

    /// Small segments and frequent checkpoints, so that a short run wraps the ring several times.
    fn config(&self) -> String {
        let user = self.tables.as_ref().map(|_| format!("user = {NOBODY}\ngroup = {NOBODY}\n")).unwrap_or_default();
        let mut text =
            format!("{user}host_name = \"{DOMAIN}\"\n[storage]\nkind = {:?}\ndata = {:?}\n", self.kind, self.data);
        for (key, dir) in [("spool", &self.spool), ("mail", &self.mail)] {
            if let Some(dir) = dir {
                text += &format!("{key} = {dir:?}\n");
            }
        }
        let domain = match self.next_hop {
            _ if self.tables.is_some() => self.tables.clone().unwrap_or_default(),
            None => format!("[[domain]]\nname = \"{DOMAIN}\"\nusers = \"any\"\n"),
            Some(next_hop) => format!(
                "[[domain]]\nname = \"{HERE}\"\n{}[relay]\nnetworks = [\"127.0.0.1\"]\n[relay.schedule.default]\nfirst_secs = 1\nlongest_secs = 2\n[[relay.route]]\nhost = \"[{}]\"\nport = {}\ntls = \"off\"\n\
                 [events]\nenabled = true\ndir = {:?}\nfile_bytes = \"1 GiB\"\n",
                match &self.notices_to {
                    Some(address) => format!("aliases = {{ {SENDER} = \"{address}\" }}\n"),
                    None => format!("users = [\"{SENDER}\"]\n"),
                },
                next_hop.ip(),
                next_hop.port(),
                self.data.join("events")
            ),
        };
        let readers = self.passwords.as_ref().map(|file| {
            format!(
                "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"imap\"\n\
                 [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"imap\"\ntls = \"implicit\"\n\
                 [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"pop3\"\n\
                 [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"pop3\"\ntls = \"implicit\"\n[auth]\nfile = {file:?}\n\
                 [imap]\nconnections_per_login = 0\n"
            )
        });
        let readers = readers.unwrap_or_default();
        text + &format!(
            "spool_segment_bytes = {}\nspool_segments = {}\nfree_bytes_min = {:?}\ncheckpoint_bytes = {}\ncheckpoint_secs = {}\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"lmtp\"\n{readers}{domain}\
             [search]\nindex = {}\n[limits]\n{}[log]\nlevel = \"warn\"\n",
            4 << 20,
            self.spool_segments,
            self.free_bytes_min,
            8 << 20,
            self.checkpoint_secs,
            self.indexed,
            self.limits
        )
    }

    fn write_config(&self) -> std::io::Result<PathBuf> {
        let config = self.scratch.join("posthaste.toml");
        std::fs::write(&config, self.config())?;
        Ok(config)
    }

    /// The program's reason not to start with this configuration, without starting it.
    ///
    /// # Errors
    /// Errors of writing the configuration and of starting the program.
    pub fn refusal(&self) -> std::io::Result<Option<String>> {
        let checked = Command::new(&self.program).args(["config", "check"]).arg(self.write_config()?).output()?;
        let why = String::from_utf8_lossy(&checked.stderr).trim().to_owned();
        Ok((!checked.status.success()).then_some(why))
    }

    /// Starts it on free ports and waits until it reports its addresses and that it is ready.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(&self) -> Result<Running, ServerError> {
        let config = self.write_config().map_err(ServerError::Start)?;
        let mut words = self.through.iter().map(AsRef::as_ref).chain([self.program.as_os_str()]);
        let mut command = Command::new(words.next().expect("a program is a word"));
        command.args(words).arg("serve").arg("--config").arg(&config);
        let started = Server::launch(&mut command, &self.place());
        let Server { process, addresses, readers, .. } = started.map_err(|error| self.explain(error))?;
        let silent = |_| ServerError::Start(std::io::Error::other("the server listens elsewhere than it was told to"));
        let [address, lmtp] = addresses.try_into().map_err(silent)?;
        let readers = match self.passwords {
            Some(_) => Some(readers.try_into().map_err(silent)?),
            None => None,
        };
        Ok(Running { process, address, lmtp, readers })
    }

    fn explain(&self, error: StartError) -> ServerError {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default().trim().to_owned();
        match error {
            StartError::NotReady(WaitError::Ended { status, .. }) => {
                ServerError::Ended { status: status.to_string(), log }
            }
            StartError::NotReady(WaitError::Slow { threads, .. }) => {
                ServerError::Slow { what: "become ready", log: format!("{log}; its threads: {threads}") }
            }
            StartError::Program { source, .. } => ServerError::Start(source),
            other => ServerError::Start(std::io::Error::other(other)),
        }
    }
}

/// The reason why the server did not obey.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It could not be started.
    #[error("cannot start the server: {0}")]
    Start(#[source] std::io::Error),
    /// It ended instead of becoming ready.
    #[error("the server ended ({status}): {log}")]
    Ended {
        /// Its exit status.
        status: String,
        /// Its log.
        log: String,
    },
    /// It did not become ready, or did not end when told to, in time.
    #[error("the server has not {what} within {} s: {log}", PATIENCE.as_secs())]
    Slow {
        /// The event that was awaited.
        what: &'static str,
        /// Its log.
        log: String,
    },
}

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct Running {
    process: Process,
    /// Address of its SMTP listener.
    pub address: SocketAddr,
    /// Address of its LMTP listener.
    pub lmtp: SocketAddr,
    /// Addresses of its listeners for IMAP, the same with implicit TLS, POP3, and that with implicit TLS, if it has them.
    pub readers: Option<[SocketAddr; 4]>,
}

impl Running {
    /// The protocols and addresses for sending it mail; each promises the same.
    pub fn ways(&self) -> [(Protocol, SocketAddr); 3] {
        [(Protocol::Smtp, self.address), (Protocol::Chunking, self.address), (Protocol::Lmtp, self.lmtp)]
    }

    /// Text of its log.
    pub fn read_log(&self) -> String {
        self.process.log().trim().to_owned()
    }

    /// Ends it by SIGTERM and waits for its end.
    ///
    /// # Errors
    /// [`ServerError::Slow`]: it did not end and was killed; or it ended with work undone, as on a busy machine. Mail that
    /// still waits must not count as lost.
    pub fn stop(mut self) -> Result<(), ServerError> {
        let ended = self.process.stop();
        let log = self.read_log();
        match ended {
            Ok(_) if log.contains("a service did not finish in time") => {
                Err(ServerError::Slow { what: "finished its work", log })
            }
            Ok(_) => Ok(()),
            Err(_) => Err(ServerError::Slow { what: "ended", log }),
        }
    }

    /// Sends SIGKILL and waits for its end.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// True if a thread whose name begins with `name` waits for a disk (state D).
    pub fn waits_for_disk(&self, name: &str) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        tasks.into_iter().flatten().flatten().any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let is_it = stat.split_once('(').is_some_and(|(_, rest)| rest.starts_with(name));
            is_it && stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
        })
    }
}

/// The server's own default of `storage.kind`.
pub const DEFAULT_KIND: &str = "ring";
/// User and group id without rights.
pub const NOBODY: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process writes the script: children of other tests could inherit our descriptor, and a file open for
    /// writing cannot be executed (ETXTBSY).
    fn pretended(dir: &Path, script: &str) -> Setup {
        let program = dir.join("server");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 700 "$0""#;
        assert!(Command::new("sh").args(["-c", write]).arg(&program).arg(script).status().unwrap().success());
        Setup::plain(program, dir)
    }

    #[test]
    fn where_it_listens_is_what_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let says = "echo '  listening  127.0.0.1:4711'; echo '  listening  127.0.0.1:4712'; echo Ready; exec sleep 600";
        let running = pretended(dir.path(), says).start().expect("it starts");
        assert_eq!([running.address, running.lmtp], [4711, 4712].map(|port| SocketAddr::from(([127, 0, 0, 1], port))));
    }

    #[test]
    fn a_refused_configuration_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        // It sees the words and the configuration that it is given.
        let script = "grep -q 'kind = \"fjall\"' \"$3\" || exit 0; echo no such kind: $1 $2 >&2; exit 2";
        let program = pretended(dir.path(), script);
        assert_eq!(program.refusal().unwrap(), None);
        let refusal = Setup { kind: "fjall".to_owned(), ..program }.refusal().unwrap();
        assert_eq!(refusal.as_deref(), Some("no such kind: config check"));
        assert!(Setup::plain(dir.path().join("absent"), dir.path()).refusal().is_err());
    }

    #[test]
    fn a_server_that_ends_differs_from_one_that_cannot_start() {
        let dir = tempfile::tempdir().unwrap();
        let ended = pretended(dir.path(), "echo no such disk >&2; exit 3").start().unwrap_err();
        assert!(matches!(&ended, ServerError::Ended { log, .. } if log == "no such disk"), "{ended}");
        let absent = Setup::plain(dir.path().join("absent"), dir.path());
        assert!(matches!(absent.start(), Err(ServerError::Start(_))));
    }
}
