//! Other mail systems under the same cuts, each as packaged, with the settings that its documentation calls safest.
//!
//! Fair by construction: they get an easier run than Posthaste does, without kill, blocked mailbox or cut in recovery.
//! Only acknowledged mail counts.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use posthaste_loadgen::process::{Guard, PATIENCE, Process, free_address, listens};

use crate::account::{Account, account};
use crate::campaign::{Finding, Outcome, positions};
use crate::load::{DOMAIN, Load, Protocol, Sent, send_over, user};
use crate::log::Cutter;
use crate::mount::{Mounted, run};
use crate::recorded::{Plan, Recorded, Waiting};
use crate::rig::{Environment, Rig, RigError, is_installed};

/// A mail system that delivers into Maildirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Postfix, with its queue and its virtual(8) deliveries on the disk.
    Postfix,
    /// Dovecot's LMTP server with `mail_fsync = optimized`, its default.
    DovecotOptimized,
    /// Dovecot's LMTP server with `mail_fsync = always`.
    DovecotAlways,
    /// The crate `mailrs-delivery-executor` with its defaults, served by the small SMTP server `powercut-mailrs`.
    Mailrs,
}

impl Peer {
    /// All of them.
    pub const ALL: [Peer; 4] = [Peer::Postfix, Peer::DovecotOptimized, Peer::DovecotAlways, Peer::Mailrs];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Postfix => "Postfix",
            Peer::DovecotOptimized => "Dovecot LMTP, mail_fsync=optimized",
            Peer::DovecotAlways => "Dovecot LMTP, mail_fsync=always",
            Peer::Mailrs => "mailrs-delivery-executor",
        }
    }

    /// Checks that it is installed.
    ///
    /// # Errors
    /// [`RigError::Unavailable`] says what is missing.
    pub fn check(self) -> Result<(), RigError> {
        let missing = match self {
            Peer::Postfix => (!is_installed("postfix")).then_some("postfix is not installed".to_owned()),
            Peer::DovecotOptimized | Peer::DovecotAlways => (!is_installed("dovecot")
                || !Path::new("/usr/lib/dovecot/lmtp").exists())
            .then_some("dovecot-lmtpd is not installed".to_owned()),
            Peer::Mailrs => mailrs_program()
                .err()
                .map(|_| "powercut-mailrs is not beside this program: build it with --features peers".to_owned()),
        };
        missing.map_or(Ok(()), |what| Err(RigError::Unavailable(what)))
    }

    fn protocol(self) -> Protocol {
        match self {
            Peer::Postfix | Peer::Mailrs => Protocol::Smtp,
            Peer::DovecotOptimized | Peer::DovecotAlways => Protocol::Lmtp,
        }
    }
}

fn mailrs_program() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("powercut-mailrs");
    program.metadata().map(|_| program)
}

/// Records one run of a peer and cuts it; `progress` is called after each cut. An interrupted run returns the outcome
/// of the cuts so far.
///
/// # Errors
/// See [`RigError`].
pub fn cut(
    peer: Peer,
    rig: &Rig,
    plan: &Plan,
    environment: &Environment,
    mut progress: impl FnMut(&Outcome),
) -> Result<Outcome, RigError> {
    let load = Load::mixed(plan.seed);
    let place = Place { peer, scratch: rig.scratch(), disk: rig.mount_point() };
    rig.disk.record();
    {
        let _mounted = rig.mount()?;
        let server = place.start()?;
        let sent: Sent =
            send_over(&[(peer.protocol(), server.address)], &load, plan.connections, 0..plan.messages, |promise| {
                rig.disk.mark(promise)
            });
        server.settle_and_stop()?;
        if sent.acknowledged.is_empty() {
            return Err(RigError::NothingAcknowledged);
        }
        let found = account(&place.mail(), &load, sent.acknowledged.iter().copied())?;
        if !found.lost.is_empty() {
            return Err(RigError::LostWithoutCut(Box::new(found)));
        }
    }
    let recorded = Recorded { recording: rig.disk.recorded(), load, waiting: Waiting::default(), is_relayed: false };
    let mut outcome = Outcome::of(plan, &recorded, peer.name().to_owned());
    let mut cutter = Cutter::new(&recorded.recording).sectors_of(plan.sector);
    for (position, seed) in positions(&recorded.recording, plan) {
        if environment.go_on().is_err() {
            break;
        }
        outcome.cuts += 1;
        rig.disk.exchange(cutter.cut(position, seed));
        let acknowledged: Vec<u64> = recorded.recording.marked_before(position).collect();
        let what = match rig.mount().map(|mounted| recover(&place, mounted)) {
            Ok(Ok(())) => {
                let found = account_after(&place, rig, &recorded.load, &acknowledged)?;
                outcome.add(&found, recorded.load.entries(&acknowledged));
                let [lost, duplicated, half] = [found.lost.len(), found.duplicated.len(), found.half.len()];
                (lost + duplicated + half > 0).then(|| format!("lost {lost}, duplicated {duplicated}, half {half}"))
            }
            Ok(Err(error)) => {
                outcome.broken += 1;
                Some(error.to_string())
            }
            Err(error) => {
                outcome.unmountable += 1;
                Some(format!("not mounted: {error}"))
            }
        };
        let finding = |what| Finding { position, seed, again: None, what, is_of_a_hole: false, recovery: None };
        outcome.findings.extend(what.map(finding));
        progress(&outcome);
    }
    Ok(outcome)
}

fn recover(place: &Place, _mounted: Mounted) -> Result<(), RigError> {
    place.start()?.settle_and_stop()
}

/// An acknowledged entry with only a part of its message is both lost and half.
fn account_after(place: &Place, rig: &Rig, load: &Load, acknowledged: &[u64]) -> Result<Account, RigError> {
    let _mounted = rig.mount()?;
    Ok(account(&place.mail(), load, acknowledged.iter().copied())?)
}

/// Directories of a peer: its configuration beside the disk, its mail and its queue on it.
struct Place<'a> {
    peer: Peer,
    scratch: &'a Path,
    disk: &'a Path,
}

impl Place<'_> {
    fn mail(&self) -> PathBuf {
        self.disk.join("mail")
    }

    fn start(&self) -> Result<Running<'_>, RigError> {
        let mail = self.mail();
        for mailbox in 0..Load::mixed(0).mailboxes {
            std::fs::create_dir_all(mail.join(DOMAIN).join(user(mailbox)))?;
        }
        // So that the mailboxes' own directories do not depend on the run.
        run(Command::new("sync").arg("-f").arg(&mail))?;
        // None of them can be told to take a free one and say which.
        let address = free_address()?;
        let held = match self.peer {
            Peer::Postfix => self.start_postfix(address)?,
            Peer::DovecotOptimized => self.start_dovecot(address, "optimized")?,
            Peer::DovecotAlways => self.start_dovecot(address, "always")?,
            Peer::Mailrs => {
                let mut command = Command::new(mailrs_program()?);
                command.arg(address.to_string()).arg(mail.join(DOMAIN));
                Held::Process(Process::start(&mut command, &self.scratch.join("mailrs"))?)
            }
        };
        let mut running = Running { place: self, address, held };
        running.wait_until_it_listens()?;
        Ok(running)
    }

    fn start_dovecot(&self, address: SocketAddr, fsync: &str) -> Result<Held, RigError> {
        give_to(&self.mail(), "dovecot")?;
        let config = self.scratch.join("dovecot.conf");
        let text = DOVECOT
            .replace("{scratch}", &self.scratch.to_string_lossy())
            .replace("{mail}", &self.mail().join(DOMAIN).to_string_lossy())
            .replace("{port}", &address.port().to_string())
            .replace("{fsync}", fsync);
        std::fs::write(&config, text)?;
        let mut command = Command::new("dovecot");
        command.args(["-F", "-c"]).arg(config);
        Ok(Held::Process(Process::start(&mut command, &self.scratch.join("dovecot"))?))
    }

    /// Starts Postfix, which has no parent process: the returned value kills its group if we are killed.
    fn start_postfix(&self, address: SocketAddr) -> Result<Held, RigError> {
        give_to(&self.mail(), "nobody")?;
        let (config, data, queue) = (self.scratch.join("postfix"), self.scratch.join("postfix-data"), self.queue());
        for dir in [&config, &data, &queue] {
            std::fs::create_dir_all(dir)?;
        }
        give_to(&data, "postfix")?;
        let text = POSTFIX_MAIN
            .replace("{queue}", &queue.to_string_lossy())
            .replace("{data}", &data.to_string_lossy())
            .replace("{config}", &config.to_string_lossy())
            .replace("{mail}", &self.mail().to_string_lossy());
        std::fs::write(config.join("main.cf"), text)?;
        std::fs::write(config.join("master.cf"), POSTFIX_MASTER.replace("{port}", &address.port().to_string()))?;
        let users = (0..Load::mixed(0).mailboxes).map(user);
        let map: String = users.map(|user| format!("{user}@{DOMAIN} {DOMAIN}/{user}/Maildir/\n")).collect();
        std::fs::write(config.join("users"), map)?;
        run(Command::new("postfix").arg("-c").arg(config).arg("start"))?;
        let master = std::fs::read_to_string(queue.join("pid/master.pid"))?;
        Ok(Held::Postfix(Guard::new("kill", &["-KILL", "--", &format!("-{}", master.trim())])?))
    }

    fn queue(&self) -> PathBuf {
        self.disk.join("queue")
    }
}

fn give_to(dir: &Path, owner: &str) -> Result<(), RigError> {
    Ok(run(Command::new("chown").arg("-R").arg(owner).arg(dir))?)
}

struct Running<'a> {
    place: &'a Place<'a>,
    address: SocketAddr,
    held: Held,
}

/// A running peer, stopped when dropped.
enum Held {
    Process(Process),
    Postfix(#[expect(dead_code, reason = "held for its drop")] Guard),
}

impl Running<'_> {
    fn wait_until_it_listens(&mut self) -> Result<(), RigError> {
        match &mut self.held {
            // One that has ended is told from a stranger who listens there.
            Held::Process(process) => Ok(process.wait_until_it_listens(self.address).map_err(std::io::Error::other)?),
            Held::Postfix(_) => wait_until("begun to listen", || listens(self.address)),
        }
    }

    fn settle_and_stop(mut self) -> Result<(), RigError> {
        if self.place.peer == Peer::Postfix {
            let config = self.place.scratch.join("postfix");
            let postfix = |what: &str| run(Command::new("postfix").arg("-c").arg(&config).arg(what));
            run(Command::new("postqueue").arg("-c").arg(&config).arg("-f"))?;
            wait_until("emptied its queue", || {
                ["maildrop", "incoming", "active", "deferred"].iter().all(|dir| is_empty(&self.place.queue().join(dir)))
            })?;
            postfix("stop")?;
            let pid = self.place.queue().join("pid/master.pid");
            return wait_until("ended", || !listens(self.address) && !is_running(&pid));
        }
        if let Held::Process(process) = &mut self.held {
            process.stop().map_err(std::io::Error::other)?;
        }
        wait_until("ended", || !listens(self.address))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.place.peer == Peer::Postfix {
            // Fails if it has been stopped already, which is the rule.
            let config = self.place.scratch.join("postfix");
            let _ = run(Command::new("postfix").arg("-c").arg(config).arg("abort"));
        }
    }
}

/// True if Postfix's queue below `dir` has no message, however deep. A file that is not executable was never completed:
/// no client got a 250 for it, and it will never be delivered.
fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).into_iter().flatten().flatten().all(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => is_empty(&entry.path()),
        Ok(about) => about.permissions().mode() & 0o100 == 0,
        // Delivered between the two looks.
        Err(_) => true,
    })
}

fn is_running(pid_file: &Path) -> bool {
    let pid = std::fs::read_to_string(pid_file).unwrap_or_default();
    !pid.trim().is_empty() && Path::new("/proc").join(pid.trim()).exists()
}

fn wait_until(what: &'static str, mut holds: impl FnMut() -> bool) -> Result<(), RigError> {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            return Err(std::io::Error::other(format!("the peer has not {what} in {} s", PATIENCE.as_secs())).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A minimal configuration to run beside the system's own. No delays, and no added header fields, so that the sent
/// octets can be recognised.
const POSTFIX_MAIN: &str = "\
compatibility_level = 3.6
queue_directory = {queue}
data_directory = {data}
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
maillog_file = {config}/log
maillog_file_prefixes = {config}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = peer.example
mydestination =
alias_maps =
mynetworks = 127.0.0.0/8
smtpd_peername_lookup = no
local_header_rewrite_clients =
in_flow_delay = 0
smtpd_client_connection_count_limit = 0
virtual_mailbox_domains = rig.example
virtual_mailbox_base = {mail}
virtual_mailbox_maps = texthash:{config}/users
virtual_mailbox_limit = 0
virtual_minimum_uid = 1
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
queue_run_delay = 1s
minimal_backoff_time = 1s
maximal_backoff_time = 2s
";

const POSTFIX_MASTER: &str = "\
127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
virtual unix - n n - - virtual
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
";

const DOVECOT: &str = "\
base_dir = {scratch}/dovecot-run
log_path = {scratch}/dovecot.log
protocols = lmtp
ssl = no
mail_uid = dovecot
mail_gid = dovecot
first_valid_uid = 1
mail_location = maildir:{mail}/%n/Maildir
mail_fsync = {fsync}
passdb {
  driver = static
  args = nopassword=y
}
userdb {
  driver = static
  args = uid=dovecot gid=dovecot home={scratch}/dovecot-home/%n allow_all_users=yes
}
service lmtp {
  inet_listener lmtp {
    address = 127.0.0.1
    port = {port}
  }
}
";
