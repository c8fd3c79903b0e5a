//! A machine that can be switched off: a disk, its mount point, and the server that runs on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste_loadgen::process::find_program;

use crate::account::Account;
use crate::disk::Disk;
use crate::fuse::Served;
use crate::image::Image;
use crate::mount::{FileSystem, Mounted, ToolError};
use crate::server::{DEFAULT_KIND, ServerError, Setup};

/// The reason why the rig did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RigError {
    /// This machine cannot run it; the text names the missing requirement.
    #[error("cannot run here: {0}")]
    Unavailable(String),
    /// A tool of the system failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The server did not start or stop.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// An error with files of the rig itself.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The server lost mail without any power cut, so that cuts would show nothing.
    #[error("without a power cut: {0}")]
    LostWithoutCut(Box<Account>),
    /// The server acknowledged none of the messages of the recorded run, so that a cut could not lose any.
    #[error("nothing was acknowledged, so there is nothing to look for after a cut")]
    NothingAcknowledged,
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

impl RigError {
    /// True if the server is at fault, and not something that this machine lacks.
    pub fn is_finding(&self) -> bool {
        match self {
            RigError::LostWithoutCut(_)
            | RigError::NothingAcknowledged
            | RigError::Server(ServerError::Ended { .. } | ServerError::Slow { .. }) => true,
            RigError::Server(ServerError::Start(_)) => false,
            RigError::Unavailable(_) | RigError::Tool(_) | RigError::Io(_) | RigError::Interrupted => false,
        }
    }
}

/// Settings shared by all rigs of a run.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The server's binary.
    pub program: PathBuf,
    /// How its spool keeps mail, as `storage.kind`.
    pub spool_kind: String,
    /// Directory for mount points and logs, on any file system.
    pub scratch: PathBuf,
    /// Set to make the rig clean up and end.
    pub interrupted: Arc<AtomicBool>,
}

impl Environment {
    /// Checks that this machine can run a rig with these file systems.
    ///
    /// # Errors
    /// [`RigError::Unavailable`] with the reason; [`RigError::Io`] if there is no server.
    pub fn check(&self, file_systems: &[FileSystem]) -> Result<(), RigError> {
        let lacks = |what: String| Err(RigError::Unavailable(what));
        if !is_root() {
            return lacks("mounting needs root".to_owned());
        }
        for device in ["/dev/fuse", "/dev/loop-control"] {
            if std::fs::File::options().read(true).write(true).open(device).is_err() {
                return lacks(format!("{device} cannot be opened"));
            }
        }
        for file_system in file_systems {
            if !is_installed(file_system.maker()) {
                return lacks(format!("{} is not installed", file_system.maker()));
            }
        }
        self.check_program()
    }

    fn check_program(&self) -> Result<(), RigError> {
        if self.program.is_file() {
            return Ok(());
        }
        // The machine lacks nothing, so this is not `Unavailable`.
        let missing = format!("there is no server at {}: build it or use --server", self.program.display());
        Err(std::io::Error::new(std::io::ErrorKind::NotFound, missing).into())
    }

    /// Checks that the server's program was built with this kind of spool.
    ///
    /// # Errors
    /// [`RigError::Unavailable`] with the program's own reason; [`RigError::Io`] if there is no server.
    pub fn check_kind(&self) -> Result<(), RigError> {
        self.check_program()?;
        let scratch = tempfile::Builder::new().prefix("powercut-kind-").tempdir_in(&self.scratch)?;
        let plain = Setup::plain(self.program.clone(), scratch.path());
        let refusal = Setup { kind: self.spool_kind.clone(), ..plain }.refusal()?;
        refusal.map_or(Ok(()), |why| Err(RigError::Unavailable(format!("{}: {why}", self.program.display()))))
    }

    /// Name of the system under test in tables, with the kind of its spool unless that is the default.
    pub fn system(&self, is_relayed: bool) -> String {
        let kind = Some(&*self.spool_kind).filter(|kind| *kind != DEFAULT_KIND);
        let words = [Some("Posthaste"), kind, is_relayed.then_some("relaying")];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Returns an error if the user has interrupted the rig; called between steps.
    ///
    /// # Errors
    /// [`RigError::Interrupted`].
    pub fn go_on(&self) -> Result<(), RigError> {
        if self.interrupted.load(Ordering::Relaxed) { Err(RigError::Interrupted) } else { Ok(()) }
    }
}

/// True if this process may mount.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// True if a program is in the directories of the system's tools.
pub fn is_installed(program: &str) -> bool {
    find_program(program).is_some()
}

/// One disk and its mount point. Fields are dropped in this order: the disk is taken away before its directory.
pub struct Rig {
    /// The disk, for faults.
    pub disk: Disk,
    served: Served,
    mount_point: PathBuf,
    scratch: tempfile::TempDir,
    file_system: FileSystem,
    environment: Environment,
}

impl Rig {
    /// Makes a file system on a new disk of `bytes`.
    ///
    /// # Errors
    /// See [`RigError`].
    pub fn new(environment: &Environment, file_system: FileSystem, bytes: u64) -> Result<Self, RigError> {
        let scratch = tempfile::Builder::new().prefix("powercut-").tempdir_in(&environment.scratch)?;
        let disk = Disk::new(Image::zeros(bytes.max(file_system.least_bytes())));
        let dir = scratch.path().join("fuse");
        std::fs::create_dir(&dir)?;
        let unavailable = |error| RigError::Unavailable(format!("FUSE cannot be mounted: {error}"));
        let served = Served::start(disk.clone(), &dir).map_err(unavailable)?;
        file_system.make(&served.file())?;
        let mount_point = scratch.path().join("mnt");
        Ok(Rig { disk, served, mount_point, scratch, file_system, environment: environment.clone() })
    }

    /// Mounts the disk's file system.
    ///
    /// # Errors
    /// The error of `mount`.
    pub fn mount(&self) -> Result<Mounted, ToolError> {
        self.file_system.mount(&self.served.file(), &self.mount_point)
    }

    /// The server on this disk, once it is mounted. Its ring is small, so that waiting mail moves into packs.
    pub fn setup(&self) -> Setup {
        let plain = Setup::plain(self.environment.program.clone(), self.scratch.path());
        let kind = self.environment.spool_kind.clone();
        Setup { kind, data: self.mount_point.join("data"), spool_segments: SEGMENTS_MIN, ..plain }
    }

    /// A directory beside the disk, for configurations and logs.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Mount point of the disk.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// File that contains the disk.
    pub fn device_file(&self) -> PathBuf {
        self.served.file()
    }
}

/// The fewest that the server's configuration allows.
pub const SEGMENTS_MIN: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_named_with_the_kind_of_its_spool() {
        let of = |kind: &str, is_relayed| {
            let environment = Environment {
                program: "none".into(),
                spool_kind: kind.to_owned(),
                scratch: "none".into(),
                interrupted: Arc::default(),
            };
            environment.system(is_relayed)
        };
        assert_eq!([of("ring", false), of("ring", true)], ["Posthaste", "Posthaste, relaying"]);
        assert_eq!([of("fjall", false), of("files", true)], ["Posthaste, fjall", "Posthaste, files, relaying"]);
    }

    #[test]
    fn faults_of_the_server_are_findings_and_lacks_are_none() {
        let io = || std::io::Error::from_raw_os_error(2);
        let findings = [
            RigError::LostWithoutCut(Box::default()),
            RigError::NothingAcknowledged,
            ServerError::Ended { status: "exit status: 1".to_owned(), log: String::new() }.into(),
            ServerError::Slow { what: "ended", log: String::new() }.into(),
        ];
        let others = [
            RigError::Unavailable("no /dev/fuse".to_owned()),
            ToolError::Start(io()).into(),
            ServerError::Start(io()).into(),
            io().into(),
            RigError::Interrupted,
        ];
        assert!(findings.iter().all(RigError::is_finding));
        assert!(!others.iter().any(RigError::is_finding));
    }
}
