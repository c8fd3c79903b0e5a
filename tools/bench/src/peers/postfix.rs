//! Postfix with queue, configuration and mailboxes in a scratch directory. Needs root, as Postfix does.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use posthaste_loadgen::process::{Guard, free_address, listens};

use super::{is_root, program, write};
use crate::suite::SideError;

/// A running Postfix; stopped when dropped.
#[derive(Debug)]
pub struct Postfix {
    program: PathBuf,
    etc: PathBuf,
    queue: PathBuf,
    pid: u32,
    pub address: SocketAddr,
    /// Directory of its mailboxes.
    pub mail: PathBuf,
    _guard: Guard,
}

/// The distribution's list of services, the basis of ours.
const SERVICES: [&str; 2] = ["/usr/share/postfix/master.cf.dist", "/etc/postfix/master.cf"];
const PATIENCE: Duration = Duration::from_secs(30);
/// Limit on processes of one kind, as on a server configured for load: more connections than that wait.
pub const PROCESSES_MAX: usize = 200;

impl Postfix {
    pub const DURABILITY: &str = "queue file synced before 250";

    /// Starts it on a free port; mail for user1 to the number of `mailboxes` at localhost goes to Maildirs.
    ///
    /// # Errors
    /// When it is not installed, when we are not root, or when it does not start.
    pub fn start(dir: &Path, mailboxes: u64) -> Result<Self, SideError> {
        Self::start_with(dir, mailboxes, "")
    }

    /// Like [`start`](Self::start), with STARTTLS: `pair` has a key and its certificate. It resumes no sessions.
    ///
    /// # Errors
    /// Errors of [`start`](Self::start).
    pub fn start_with_tls(dir: &Path, mailboxes: u64, pair: &Path) -> Result<Self, SideError> {
        let tls = format!("smtpd_tls_security_level = may\nsmtpd_tls_chain_files = {}\n", pair.display());
        Self::start_with(dir, mailboxes, &tls)
    }

    /// Starts it on a free port; all mail goes on to `next_hop`.
    ///
    /// # Errors
    /// Errors of [`start`](Self::start).
    pub fn start_as_relay(dir: &Path, next_hop: SocketAddr) -> Result<Self, SideError> {
        let relayhost = format!("relayhost = [{}]:{}\n", next_hop.ip(), next_hop.port());
        Self::start_with(dir, 0, &relayhost)
    }

    /// Like [`start_as_relay`](Self::start_as_relay); all mail passes a milter first, without which none is taken.
    ///
    /// # Errors
    /// Errors of [`start`](Self::start).
    pub fn start_as_relay_with(dir: &Path, next_hop: SocketAddr, milter: SocketAddr) -> Result<Self, SideError> {
        let relayhost = format!("relayhost = [{}]:{}\n", next_hop.ip(), next_hop.port());
        let milter = format!("smtpd_milters = inet:{milter}\nmilter_default_action = tempfail\n");
        Self::start_with(dir, 0, &(relayhost + &milter))
    }

    fn start_with(dir: &Path, mailboxes: u64, also: &str) -> Result<Self, SideError> {
        let program = program("postfix", "postfix")?;
        if !is_root() {
            return Err(SideError::Absent("Postfix has to be started as root".into()));
        }
        let services = SERVICES.iter().find_map(|file| std::fs::read_to_string(file).ok());
        let services = services.ok_or_else(|| SideError::Absent(format!("none of {SERVICES:?} is there")))?;
        let address = free_address().map_err(SideError::failed("a free port"))?;
        let etc = dir.join("etc");
        for (name, owner) in [("etc", None), ("queue", None), ("data", Some("postfix")), ("mail", Some("nobody"))] {
            directory(&dir.join(name), owner)?;
        }
        write(&etc.join("main.cf"), &(main_cf(dir, mailboxes) + also))?;
        write(&etc.join("master.cf"), &master_cf(&services, address))?;
        // Its master has no parent that would miss it.
        let stop: [&OsStr; 3] = ["-c".as_ref(), etc.as_os_str(), "stop".as_ref()];
        let guard = Guard::new(&program, &stop).map_err(SideError::failed("a guard for Postfix"))?;
        let (queue, mail) = (dir.join("queue"), dir.join("mail"));
        let mut postfix = Self { program, etc, queue, pid: 0, address, mail, _guard: guard };
        postfix.control("start")?;
        let begun = Instant::now();
        while !listens(address) {
            if begun.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(dir.join("postfix.log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                return Err(SideError::Failed(format!("Postfix does not listen: {last}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = std::fs::read_to_string(dir.join("queue/pid/master.pid")).unwrap_or_default();
        postfix.pid = pid.trim().parse().map_err(SideError::failed("Postfix's master.pid"))?;
        Ok(postfix)
    }

    /// Process id of its master, the ancestor of all other processes.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// True if everything that it acknowledged was delivered.
    pub fn queue_is_empty(&self) -> bool {
        ["maildrop", "incoming", "active", "deferred"].iter().all(|name| has_no_file(&self.queue.join(name)))
    }

    fn control(&self, word: &str) -> Result<(), SideError> {
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&self.etc).arg(word).stdin(Stdio::null()).stdout(Stdio::null());
        let output = command.stderr(Stdio::piped()).output().map_err(SideError::failed("postfix"))?;
        if output.status.success() {
            Ok(())
        } else {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            Err(SideError::Failed(format!("postfix {word}: {said}")))
        }
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let _ = self.control("stop");
    }
}

/// True if there is no file in `dir`, however deep.
fn has_no_file(dir: &Path) -> bool {
    let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.all(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && has_no_file(&entry.path()))
}

fn directory(path: &Path, owner: Option<&str>) -> Result<(), SideError> {
    let name = path.display().to_string();
    std::fs::create_dir(path).map_err(SideError::failed(&name))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).map_err(SideError::failed(&name))?;
    let Some(owner) = owner else { return Ok(()) };
    let user = user_id(owner).ok_or_else(|| SideError::Absent(format!("there is no user {owner}")))?;
    std::os::unix::fs::chown(path, Some(user), None).map_err(SideError::failed(&name))
}

/// The number of a user of this machine (passwd(5)).
fn user_id(name: &str) -> Option<u32> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

/// The main.cf. `virtual` needs each mailbox in a map: it allows no path made from a pattern.
fn main_cf(dir: &Path, mailboxes: u64) -> String {
    let dir = dir.display();
    let user = |n: u64| format!("{{user{n}@localhost=user{n}/Maildir/}} ");
    let users: String = (1..=mailboxes).map(user).collect();
    format!(
        "compatibility_level = 3.6
queue_directory = {dir}/queue
data_directory = {dir}/data
maillog_file = {dir}/postfix.log
maillog_file_prefixes = {dir}
myhostname = localhost
mydestination =
virtual_mailbox_domains = localhost
virtual_mailbox_base = {dir}/mail
virtual_mailbox_maps = inline:{{{users}}}
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
local_header_rewrite_clients =
inet_interfaces = 127.0.0.1
in_flow_delay = 0
default_process_limit = {PROCESSES_MAX}
smtpd_client_connection_count_limit = 0
smtpd_client_connection_rate_limit = 0
smtpd_client_message_rate_limit = 0
smtpd_recipient_restrictions = permit_mynetworks, reject
"
    )
}

/// The distribution's services with our port, none of them in a chroot.
fn master_cf(services: &str, address: SocketAddr) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["smtp", "inet", ..] => format!("{address} inet n - n - {PROCESSES_MAX} smtpd"),
            // name, kind, private, unprivileged, chroot
            [name, kind @ ("unix" | "fifo"), private, unprivileged, "y", ..] if !line.starts_with(['#', ' ']) => {
                [&[name, kind, private, unprivileged, "n"][..], &words[5..]].concat().join(" ")
            }
            _ => line.to_owned(),
        }
    };
    services.lines().map(|text| line(text) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_get_our_port_and_no_chroot() {
        let services = "# service type\nsmtp      inet  n       -       y       -       -       smtpd\n\
                        #smtps inet n - y - - smtpd\npickup    unix  n       -       y       60      1       pickup\n\
                        maildrop  unix  -       n       n       -       -       pipe\n  flags=DRXhu user=vmail\n";
        let ours = master_cf(services, "127.0.0.1:3100".parse().unwrap());
        assert_eq!(
            ours,
            "# service type\n127.0.0.1:3100 inet n - n - 200 smtpd\n#smtps inet n - y - - smtpd\n\
             pickup unix n - n 60 1 pickup\nmaildrop  unix  -       n       n       -       -       pipe\n  \
             flags=DRXhu user=vmail\n"
        );
    }
}
