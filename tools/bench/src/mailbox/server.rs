//! The measured servers: each is started once and serves all workloads, since opening a mailbox for the first time
//! takes long.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use posthaste_loadgen::process::free_address;
use posthaste_loadgen::server::ScratchServer;

use super::client::Client;
use crate::maildirs::Maildirs;
use crate::peers::Dovecot;
use crate::suite::{Settings, Side, SideError, Start};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Ours,
    /// Ours with `[search] index = true`.
    Indexed,
    Dovecot,
}

pub(super) const LOGIN: &str = "ann@example.org";
pub(super) const PASSWORD: &str = "secret";
/// Time for an index of all messages, which is made at the lowest priority.
const INDEX_PATIENCE: Duration = Duration::from_secs(600);
const INDEX_PAUSE: Duration = Duration::from_millis(200);

impl Who {
    pub const ALL: [Self; 2] = [Self::Ours, Self::Dovecot];
    /// For searches that the index answers.
    pub const WITH_INDEX: [Self; 3] = [Self::Ours, Self::Indexed, Self::Dovecot];

    pub fn side(self, start: Start) -> Side {
        let (name, durability) = match self {
            Self::Ours => ("posthaste", "spool synced before OK"),
            Self::Indexed => ("posthaste with an index", "spool synced before OK"),
            Self::Dovecot => ("Dovecot", Dovecot::DURABILITY),
        };
        Side { name, is_ours: self != Self::Dovecot, durability, start }
    }

    /// The Maildir below the directory of a side.
    fn maildir(self, dir: &Path) -> PathBuf {
        match self {
            Self::Ours | Self::Indexed => dir.join("data/mail/example.org/ann/Maildir"),
            Self::Dovecot => dir.join("mail"),
        }
    }

    fn launch(self, settings: &Settings, dir: &Path) -> Result<Running, SideError> {
        match self {
            Self::Ours | Self::Indexed => {
                let address = free_address().map_err(SideError::failed("a free port"))?;
                let config = dir.join("posthaste.toml");
                let search = if self == Self::Indexed { "[search]\nindex = true\n" } else { "" };
                let text = configuration(address) + search;
                std::fs::write(&config, text).map_err(SideError::failed("configuration"))?;
                let server = ScratchServer::start(&settings.program, dir, Some(&config));
                let server = server.map_err(SideError::failed("posthaste serve"))?;
                Ok(Running::Ours(address, Box::new(server)))
            }
            Self::Dovecot => Dovecot::start(dir, &self.maildir(dir)).map(Running::Dovecot),
        }
    }
}

fn configuration(imap: SocketAddr) -> String {
    format!(
        "host_name = \"mx.example.org\"
[auth]
file = \"passwords\"
[storage]
data = \"data\"
[[listener]]
address = \"127.0.0.1:0\"
[[listener]]
protocol = \"imap\"
address = \"{imap}\"
[imap]
connections_per_login = 0
[[domain]]
name = \"example.org\"
users = [\"ann\"]
"
    )
}

enum Running {
    Ours(SocketAddr, Box<ScratchServer>),
    Dovecot(Dovecot),
}

impl Running {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Ours(address, _) => *address,
            Self::Dovecot(server) => server.address,
        }
    }

    fn log_in(&self) -> Result<Client, SideError> {
        Client::log_in(self.address(), LOGIN, PASSWORD).map_err(SideError::failed("login"))
    }

    fn pid(&self) -> u32 {
        match self {
            Self::Ours(_, server) => server.pid(),
            Self::Dovecot(server) => server.pid(),
        }
    }
}

/// A side's directory, and its server while it runs.
struct Place {
    dir: PathBuf,
    running: Option<Running>,
}

/// Both servers, each started at its first use, with a Maildir of its own: hard links to the same files.
pub(super) struct Servers {
    mail: Maildirs,
    /// Commands of the first session with each.
    first_look: &'static [&'static str],
    places: Mutex<BTreeMap<Who, Result<Place, SideError>>>,
}

impl Servers {
    pub fn new(mail: Maildirs, first_look: &'static [&'static str]) -> Self {
        Self { mail, first_look, places: Mutex::default() }
    }

    pub fn messages(&self) -> u64 {
        self.mail.messages
    }

    /// A session with the server of a side.
    pub fn of(&self, who: Who, settings: &Settings, dir: &Path) -> Result<Client, SideError> {
        let mut places = self.lock();
        let place = places.entry(who).or_insert_with(|| self.begin(who, settings, dir));
        place.as_mut().map_err(|error| error.clone())?.log_in(who, settings)
    }

    /// Process id of its main process, the ancestor of all others.
    pub fn pid(&self, who: Who) -> Result<u32, SideError> {
        let places = self.lock();
        let place = places.get(&who).and_then(|place| place.as_ref().ok());
        let running = place.and_then(|place| place.running.as_ref());
        running.map(Running::pid).ok_or_else(|| SideError::Failed("it does not run".to_owned()))
    }

    /// Address of its IMAP listener.
    pub fn address(&self, who: Who) -> Result<SocketAddr, SideError> {
        let places = self.lock();
        let place = places.get(&who).and_then(|place| place.as_ref().ok());
        let running = place.and_then(|place| place.running.as_ref());
        running.map(Running::address).ok_or_else(|| SideError::Failed("it does not run".to_owned()))
    }

    /// The directory of INBOX.
    pub fn maildir(&self, who: Who) -> Result<PathBuf, SideError> {
        match self.lock().get(&who) {
            Some(Ok(place)) => Ok(who.maildir(&place.dir)),
            _ => Err(SideError::Failed("it never ran".to_owned())),
        }
    }

    /// Stops a server in order.
    pub fn stop(&self, who: Who) {
        if let Some(Ok(place)) = self.lock().get_mut(&who) {
            place.running = None;
        }
    }

    /// The directory of a side, with its configuration.
    pub fn dir(&self, who: Who) -> Result<PathBuf, SideError> {
        match self.lock().get(&who) {
            Some(Ok(place)) => Ok(place.dir.clone()),
            _ => Err(SideError::Failed("it never ran".to_owned())),
        }
    }

    /// A session with a server that has been started, and is started again if it was stopped.
    pub fn log_in(&self, who: Who, settings: &Settings) -> Result<Client, SideError> {
        match self.lock().get_mut(&who) {
            Some(Ok(place)) => place.log_in(who, settings),
            _ => Err(SideError::Failed("it never ran".to_owned())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Who, Result<Place, SideError>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, who: Who, settings: &Settings, dir: &Path) -> Result<Place, SideError> {
        let mail = self.mail.make(dir.parent().unwrap_or(dir)).map_err(SideError::failed("making mail"))?;
        let maildir = who.maildir(dir);
        link_maildir(&mail.join("folder00"), &maildir).map_err(SideError::failed("linking mail"))?;
        match who {
            Who::Ours | Who::Indexed => write_passwords(&settings.program, dir, LOGIN)?,
            Who::Dovecot => give_away(&maildir).map_err(SideError::failed("owner of the mail"))?,
        }
        let mut place = Place { dir: dir.to_owned(), running: None };
        let mut client = place.log_in(who, settings)?;
        client.command("CREATE Copies").map_err(SideError::failed("CREATE"))?;
        for command in self.first_look {
            client.command(command).map_err(SideError::failed(command))?;
        }
        if who == Who::Indexed {
            self.wait_for_index(settings, dir)?;
        }
        Ok(place)
    }

    /// Waits until the index has all messages.
    fn wait_for_index(&self, settings: &Settings, dir: &Path) -> Result<(), SideError> {
        let begun = Instant::now();
        loop {
            let mut command = Command::new(&settings.program);
            command.current_dir(dir).args(["find", "--index", "data/search", "--count", "*"]);
            // Before the first commit there is no index.
            let said = command.output().map_err(SideError::failed("posthaste find"))?.stdout;
            let indexed = String::from_utf8_lossy(&said).trim().parse().unwrap_or(0_u64);
            if indexed >= self.mail.messages {
                return Ok(());
            }
            if settings.is_stopped() || begun.elapsed() > INDEX_PATIENCE {
                let all = self.mail.messages;
                return Err(SideError::Failed(format!("the index has {indexed} of {all} messages")));
            }
            std::thread::sleep(INDEX_PAUSE);
        }
    }
}

impl Place {
    fn log_in(&mut self, who: Who, settings: &Settings) -> Result<Client, SideError> {
        if self.running.is_none() {
            self.running = Some(who.launch(settings, &self.dir)?);
        }
        self.running.as_ref().expect("it was set above").log_in()
    }
}

pub(super) fn link_maildir(from: &Path, to: &Path) -> std::io::Result<()> {
    for sub in ["tmp", "new", "cur"] {
        std::fs::create_dir_all(to.join(sub))?;
        for entry in std::fs::read_dir(from.join(sub))? {
            let entry = entry?;
            std::fs::hard_link(entry.path(), to.join(sub).join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn give_away(maildir: &Path) -> std::io::Result<()> {
    let owner = Some(Dovecot::OWNER);
    ["", "tmp", "new", "cur"].iter().try_for_each(|sub| std::os::unix::fs::chown(maildir.join(sub), owner, owner))
}

/// Writes the file `passwords` with one login.
pub(super) fn write_passwords(program: &Path, dir: &Path, login: &str) -> Result<(), SideError> {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut command = Command::new(program);
        command.current_dir(dir).args(["password", "--scram", login]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(format!("{PASSWORD}\n").as_bytes())?;
        }
        Ok(child.wait_with_output()?.stdout)
    };
    let line = ask().map_err(SideError::failed("posthaste password"))?;
    std::fs::write(dir.join("passwords"), line).map_err(SideError::failed("passwords"))
}
