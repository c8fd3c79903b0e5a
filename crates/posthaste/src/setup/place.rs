//! Directories that setup uses: those of the machine, or others for a trial.

use std::path::{Path, PathBuf};

use posthaste_config::SYSTEM_FILE;
use rustix::process::geteuid;

use crate::queue::AnyError;

/// The directories of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Directory of the configuration and the passwords.
    pub config_dir: PathBuf,
    /// `storage.data`.
    pub data: PathBuf,
    /// True for the machine's own server, with installed program, user and unit.
    pub is_system: bool,
}

impl Place {
    /// # Errors
    /// Only root can set up the machine's server. A trial needs both directories.
    pub fn new(config_dir: Option<PathBuf>, data: Option<PathBuf>) -> Result<Self, AnyError> {
        match (config_dir, data) {
            (Some(config_dir), Some(data)) => {
                let [config_dir, data] = [std::path::absolute(config_dir)?, std::path::absolute(data)?];
                if config_dir == data {
                    return Err("--data must differ from --config-dir, which others may read".into());
                }
                Ok(Self { config_dir, data, is_system: false })
            }
            (None, None) if geteuid().is_root() => {
                let config_dir = Path::new(SYSTEM_FILE).parent().unwrap_or(Path::new("/")).to_owned();
                Ok(Self { config_dir, data: DATA.into(), is_system: true })
            }
            (None, None) => Err("this needs root; to try a server of your own, use --config-dir and --data".into()),
            _ => Err("--config-dir and --data go together: a server of your own has both".into()),
        }
    }

    pub fn config(&self) -> PathBuf {
        self.config_dir.join("posthaste.toml")
    }

    pub fn passwords(&self) -> PathBuf {
        self.config_dir.join("passwords")
    }

    /// The password for a smarthost.
    pub fn smarthost_password(&self) -> PathBuf {
        self.config_dir.join("smarthost.password")
    }

    /// Exists while a run is incomplete.
    pub fn unfinished(&self) -> PathBuf {
        self.config_dir.join("setup.unfinished")
    }

    /// The server's program file.
    ///
    /// # Errors
    /// The system does not tell the path of this program.
    pub fn program(&self) -> std::io::Result<PathBuf> {
        if self.is_system { Ok(PROGRAM.into()) } else { std::env::current_exe() }
    }
}

/// The user of the machine's server.
pub const USER: &str = "posthaste";
pub const PROGRAM: &str = "/usr/local/bin/posthaste";
/// The program while it is copied.
pub const TEMPORARY: &str = "/usr/local/bin/posthaste.new";
/// Another program was replaced.
pub const REPLACED: &str = "/usr/local/bin/posthaste.old";
pub const UNIT: &str = "/etc/systemd/system/posthaste.service";
const DATA: &str = "/var/lib/posthaste";

/// True if systemd runs this machine.
pub fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}
