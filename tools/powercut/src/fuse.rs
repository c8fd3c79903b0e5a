//! A file system with one file, `disk`: writes to it go to a [`Disk`].
//!
//! Direct I/O bypasses the page cache. So a loop device on the file passes on each write before it reports it done. Its
//! flushes, and the block layer's translation of FUA, arrive as `fsync`, its discards as `fallocate`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use crate::disk::Disk;
use crate::mount::SOURCE;

/// A mounted [`Disk`]; unmounted when dropped.
pub struct Served {
    session: Option<BackgroundSession>,
    mount_point: PathBuf,
}

impl Served {
    /// Shows `disk` as the file `disk` in the directory `mount_point`.
    ///
    /// # Errors
    /// Errors of `mount`: not root, no `/dev/fuse`.
    pub fn start(disk: Disk, mount_point: &Path) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(SOURCE.into())];
        let session = fuser::spawn_mount(OneFile { disk }, mount_point, &config)?;
        Ok(Served { session: Some(session), mount_point: mount_point.to_owned() })
    }

    /// Path of the file.
    pub fn file(&self) -> PathBuf {
        self.mount_point.join(NAME)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.umount_and_join()
        {
            eprintln!("powercut: {}: {error}", self.mount_point.display());
        }
    }
}

struct OneFile {
    disk: Disk,
}

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            FILE => (FileType::RegularFile, 0o600, self.disk.len()),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Refused if the kernel cannot; then writes come in smaller pieces.
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(attributes) if parent == INodeNo::ROOT && name == NAME => {
                reply.entry(&Duration::ZERO, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&Duration::ZERO, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = vec![0; size as usize];
        let n = self.disk.read(offset, &mut buffer);
        reply.data(&buffer[..n]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.disk.len()) {
            return reply.error(Errno::ENOSPC);
        }
        match self.disk.write(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.disk.flush() {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    // At close: nothing is kept back here.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, len: u64, mode: i32, reply: ReplyEmpty) {
        // The loop device discards by punching holes, and zeroes by zeroing ranges.
        if mode & (PUNCH_HOLE | ZERO_RANGE) == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let end = offset.saturating_add(len).min(self.disk.len());
        match self.disk.discard(offset, end.saturating_sub(offset)) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if offset == 0 {
            let _ = reply.add(FILE, 1, FileType::RegularFile, NAME);
        }
        reply.ok();
    }
}

const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// From `linux/falloc.h`.
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
