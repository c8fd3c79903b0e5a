//! Dovecot with configuration and state in a scratch directory. Needs root, as Dovecot does.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use posthaste_loadgen::process::{Process, free_address};

use super::{is_root, program, write};
use crate::suite::SideError;

/// A running Dovecot that serves one Maildir by IMAP to any login with any password, or takes mail by LMTP for any user; stopped when dropped.
#[derive(Debug)]
pub struct Dovecot {
    process: Process,
    /// Address of its listener.
    pub address: SocketAddr,
}

impl Dovecot {
    pub const DURABILITY: &str = "index written, not synced";
    pub const LMTP_DURABILITY: &str = "message synced, index not";
    /// Owner of the mail (Debian's nobody): Dovecot refuses to serve mail of root.
    pub const OWNER: u32 = 65534;

    /// Starts it on a free port, with the mail in `maildir`, whose directories belong to [`Self::OWNER`].
    ///
    /// # Errors
    /// When it is not installed, when we are not root, or when it does not start.
    pub fn start(dir: &Path, maildir: &Path) -> Result<Self, SideError> {
        let address = free_address().map_err(SideError::failed("a free port"))?;
        let place = maildir.display().to_string();
        Self::launch(dir, &DovecotMail { protocol: "imap", package: "dovecot-imapd", place }, address)
    }

    /// Starts it on a free port for LMTP: each user has a Maildir of that name in `mail`, which is made here.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_lmtp(dir: &Path, mail: &Path) -> Result<Self, SideError> {
        let address = free_address().map_err(SideError::failed("a free port"))?;
        std::fs::create_dir_all(mail).map_err(SideError::failed("Dovecot's mail"))?;
        let place = format!("{}/%n", mail.display());
        let package = DovecotMail { protocol: "lmtp", package: "dovecot-lmtpd", place };
        if is_root() {
            let owner = Some(Self::OWNER);
            std::os::unix::fs::chown(mail, owner, owner).map_err(SideError::failed("owner of Dovecot's mail"))?;
        }
        Self::launch(dir, &package, address)
    }

    fn launch(dir: &Path, mail: &DovecotMail, address: SocketAddr) -> Result<Self, SideError> {
        let DovecotMail { protocol, package, .. } = mail;
        let program = program("dovecot", package)?;
        if !Path::new("/usr/lib/dovecot").join(protocol).exists() {
            return Err(SideError::Absent(format!("Dovecot's {protocol} is not installed (package {package})")));
        }
        if !is_root() {
            return Err(SideError::Absent("Dovecot has to be started as root to read another user's mail".into()));
        }
        let file = dir.join("dovecot.conf");
        // Its sockets have short paths only: at most 107 octets.
        std::fs::set_permissions(dir, Permissions::from_mode(0o755))
            .map_err(SideError::failed("Dovecot's directory"))?;
        write(&file, &configuration(dir, mail, address))?;
        let mut command = Command::new(program);
        command.arg("-F").arg("-c").arg(&file);
        let mut process = Process::start(&mut command, &dir.join("dovecot")).map_err(SideError::failed("dovecot"))?;
        if let Err(error) = process.wait_until_it_listens(address) {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            return Err(SideError::Failed(format!("Dovecot: {error}; {}", log.lines().last().unwrap_or_default())));
        }
        Ok(Self { process, address })
    }

    /// Process id of its master, the ancestor of all other processes.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for Dovecot {
    fn drop(&mut self) {
        let _ = self.process.stop();
    }
}

/// Protocol and mail of one Dovecot.
struct DovecotMail {
    protocol: &'static str,
    /// Debian's package of the protocol.
    package: &'static str,
    /// The Maildir; `%n` stands for the user.
    place: String,
}

/// Dovecot's defaults except for directories, port, users and the number of sessions.
fn configuration(dir: &Path, mail: &DovecotMail, address: SocketAddr) -> String {
    let (dir, owner) = (dir.display(), Dovecot::OWNER);
    let DovecotMail { protocol, place, .. } = mail;
    let services = match *protocol {
        "imap" => imap_services(address),
        _ => lmtp_service(address),
    };
    format!(
        "base_dir = {dir}/run
state_dir = {dir}/run
log_path = {dir}/log
protocols = {protocol}
ssl = no
disable_plaintext_auth = no
first_valid_uid = 1
mail_location = maildir:{place}
mail_max_userip_connections = 0
default_process_limit = 4096
default_client_limit = 16384
default_internal_user = nobody
default_internal_group = nogroup
default_login_user = nobody
userdb {{
  driver = static
  args = uid={owner} gid={owner} home={place} allow_all_users=yes
}}
passdb {{
  driver = static
  args = nopassword=y
}}
{services}"
    )
}

fn imap_services(address: SocketAddr) -> String {
    format!(
        "service imap {{
  process_limit = 4096
}}
service imap-login {{
  inet_listener imap {{
    address = {ip}
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
",
        ip = address.ip(),
        port = address.port()
    )
}

fn lmtp_service(address: SocketAddr) -> String {
    format!(
        "service lmtp {{
  process_limit = 4096
  inet_listener lmtp {{
    address = {ip}
    port = {port}
  }}
}}
",
        ip = address.ip(),
        port = address.port()
    )
}
