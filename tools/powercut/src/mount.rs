//! File systems on a [`Served`](crate::fuse::Served) disk: made, mounted through a loop device, and always unmounted
//! again.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

/// The file systems under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// ext4 as its tools make and mount it (`data=ordered`).
    Ext4,
    /// ext4 with `data=writeback`: metadata may reach the disk before its data.
    Ext4Writeback,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [FileSystem; 4] = [FileSystem::Ext4, FileSystem::Ext4Writeback, FileSystem::Xfs, FileSystem::Btrfs];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Ext4Writeback => "ext4, data=writeback",
            FileSystem::Xfs => "XFS",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// Name on the command line.
    pub fn argument(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Ext4Writeback => "ext4-writeback",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// Program that makes one.
    pub fn maker(self) -> &'static str {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => "mkfs.ext4",
            FileSystem::Xfs => "mkfs.xfs",
            FileSystem::Btrfs => "mkfs.btrfs",
        }
    }

    /// Size of the smallest disk that its tools accept without being forced.
    pub fn least_bytes(self) -> u64 {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => 64 << 20,
            FileSystem::Btrfs => 256 << 20,
            FileSystem::Xfs => 320 << 20,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    fn options(self) -> &'static str {
        match self {
            FileSystem::Ext4Writeback => "loop,data=writeback",
            _ => "loop",
        }
    }

    /// Makes a file system on the disk of `file`.
    ///
    /// # Errors
    /// The tool's error.
    pub fn make(self, file: &Path) -> Result<(), ToolError> {
        let quiet: &[&str] = match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => &["-q", "-F"],
            FileSystem::Xfs => &["-q", "-f"],
            FileSystem::Btrfs => &["-q", "-f"],
        };
        run(Command::new(self.maker()).args(quiet).arg(file))
    }

    /// Mounts the disk of `file` on the directory `on`.
    ///
    /// # Errors
    /// The error of `mount`: usually that the file system is damaged beyond repair by its own log.
    pub fn mount(self, file: &Path, on: &Path) -> Result<Mounted, ToolError> {
        std::fs::create_dir_all(on).map_err(ToolError::Start)?;
        wait_until_detached(file)?;
        // With `loop`, mount takes a free loop device that the kernel frees again when it is unmounted.
        run(Command::new("mount").args(["-t", self.kind(), "-o", self.options()]).arg(file).arg(on))?;
        Ok(Mounted { on: on.to_owned() })
    }
}

/// Waits until no loop device has the file. The kernel frees one some time after its unmounting, and until then `mount`
/// would use it again and see cached data of the previous disk.
fn wait_until_detached(file: &Path) -> Result<(), ToolError> {
    let file = file.canonicalize().map_err(ToolError::Start)?;
    let deadline = Instant::now() + BUSY_PATIENCE;
    while is_attached(Path::new("/sys/block"), &file).map_err(ToolError::Start)? {
        if Instant::now() > deadline {
            let said = format!("{} is still behind a loop device", file.display());
            return Err(ToolError::Refused { program: "mount".to_owned(), said });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// True if a loop device is backed by this file.
fn is_attached(devices: &Path, file: &Path) -> std::io::Result<bool> {
    let is_it = |device: std::io::Result<std::fs::DirEntry>| {
        // Most are not loop devices, or free.
        let backing = std::fs::read_to_string(device?.path().join("loop/backing_file"));
        Ok(backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == file))
    };
    std::fs::read_dir(devices)?.map(is_it).try_fold(false, |found, is_it: std::io::Result<bool>| Ok(found || is_it?))
}

/// Binds the directory `dir` to `on`.
///
/// # Errors
/// The error of `mount`.
pub fn bind(dir: &Path, on: &Path) -> Result<Mounted, ToolError> {
    run(Command::new("mount").arg("--bind").arg(dir).arg(on))?;
    Ok(Mounted { on: on.to_owned() })
}

/// A tool of the system failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The tool could not be started, or a directory for it could not be made.
    #[error("{0}")]
    Start(#[source] std::io::Error),
    /// The tool failed.
    #[error("{program}: {said}")]
    Refused {
        /// The tool's name.
        program: String,
        /// Its standard error.
        said: String,
    },
}

/// A mounted file system; dropping it unmounts it and so frees its loop device.
#[derive(Debug)]
pub struct Mounted {
    on: PathBuf,
}

impl Mounted {
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.on
    }

    /// Makes it read-only, or writable again; waits a while for files that are being written.
    ///
    /// # Errors
    /// The last error of `mount`.
    pub fn remount(&self, read_only: bool) -> Result<(), ToolError> {
        let options = if read_only { "remount,ro" } else { "remount,rw" };
        let deadline = Instant::now() + BUSY_PATIENCE;
        loop {
            match run(Command::new("mount").args(["-o", options]).arg(&self.on)) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                done => return done,
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let deadline = Instant::now() + BUSY_PATIENCE;
        // A killed server's last file is let go of a moment after its process was waited for.
        while let Err(error) = rustix::mount::unmount(&self.on, UnmountFlags::empty()) {
            if Instant::now() > deadline {
                eprintln!("powercut: {} stays busy, detached: {error}", self.on.display());
                let _ = rustix::mount::unmount(&self.on, UnmountFlags::DETACH);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Starts this program again in a mount namespace of its own, unless it is in one. A copy that another program makes of the machine's namespace, as a container does
/// at its start, would keep our disks in use. The mounts of a killed rig go with its last process.
///
/// # Errors
/// An error of `unshare`, or of starting again.
pub fn need_own_namespace() -> Result<(), ToolError> {
    if std::env::var_os(OWN_NAMESPACE).is_some() {
        return Ok(());
    }
    let own = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]).env(OWN_NAMESPACE, "1");
        command
    };
    // Tried first: once it has begun, its failures would be ours.
    run(own().arg("true"))?;
    let program = std::env::current_exe().map_err(ToolError::Start)?;
    Err(ToolError::Start(own().arg(program).args(std::env::args_os().skip(1)).exec()))
}

pub(crate) fn run(command: &mut Command) -> Result<(), ToolError> {
    let output = command.stdin(Stdio::null()).output().map_err(ToolError::Start)?;
    if output.status.success() {
        return Ok(());
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ToolError::Refused { program, said })
}

/// Source of a [`Served`](crate::fuse::Served) disk in the table of mounts.
pub(crate) const SOURCE: &str = "powercut";
/// In the environment of a rig in a namespace of its own.
const OWN_NAMESPACE: &str = "POWERCUT_OWN_NAMESPACE";
const BUSY_PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_device_is_known_by_its_file() {
        let devices = tempfile::tempdir().unwrap();
        for (name, backing) in [("loop0", Some("/a/disk\n")), ("loop1", None), ("sda", None)] {
            let dir = devices.path().join(name).join("loop");
            std::fs::create_dir_all(&dir).unwrap();
            backing.into_iter().for_each(|text| std::fs::write(dir.join("backing_file"), text).unwrap());
        }
        let is = |file: &str| is_attached(devices.path(), Path::new(file)).unwrap();
        assert!(is("/a/disk") && !is("/a/disk2") && !is(""));
    }
}
