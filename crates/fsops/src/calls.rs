//! The calls, each made and recorded. Signatures and errors are `rustix`'s.
#![allow(missing_docs, reason = "they are rustix's, under the same names")]

use std::ffi::{CStr, CString};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{self, AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, StatVfs, Uid};
use rustix::io::{self, Errno};
use rustix::path::Arg;

use crate::declared::Declared;
use crate::event::FsEvent;
use crate::tree::NodeId;
use crate::world::{DeclaredSpace, HAS_BAD_SECTORS, World, lock, world};

pub fn open<P: Arg>(path: P, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    openat(CWD, path, flags, mode)
}

pub fn openat<P: Arg, Fd: AsFd>(dir: Fd, path: P, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    if flags.contains(OFlags::DIRECTORY) && !flags.contains(OFlags::TMPFILE) {
        return open_dir(dir, path, flags, mode);
    }
    let makes = flags.intersects(OFlags::CREATE | OFlags::TRUNC) || flags.contains(OFlags::TMPFILE);
    let Some(mut world) = world().filter(|_| makes) else { return fs::openat(dir, path, flags, mode) };
    let path = path.as_cow_c_str()?;
    let Some(place) = Place::of(&world, &dir, &path) else { return fs::openat(dir, &*path, flags, mode) };
    world.state(place.machine).may_change(place.dir)?;
    if flags.contains(OFlags::TMPFILE) {
        // Known from now on, and on record once it gets a name.
        let file = fs::openat(dir, &*path, flags, mode)?;
        world.watch(place.machine, place.dir, identity(&fs::fstat(&file)?));
        return Ok(file);
    }
    let before = place.identity();
    let file = fs::openat(&place.dir_fd, &*place.name, flags, mode)?;
    if let Some(node) = before.and_then(|identity| world.node(identity)) {
        if flags.contains(OFlags::TRUNC) {
            world.state(place.machine).push(FsEvent::Truncate { node: node.1, len: 0 });
        }
    } else {
        place.record_made(&mut world, identity(&fs::fstat(&file)?), false);
    }
    Ok(file)
}

fn open_dir<P: Arg, Fd: AsFd>(dir: Fd, path: P, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let world = world();
    let opened = fs::openat(dir, path, flags, mode)?;
    if let Some(mut world) = world
        && let Some((machine, _)) = world.node(identity(&fs::fstat(&opened)?))
    {
        world.state(machine).dirs_opened += 1;
    }
    Ok(opened)
}

pub fn mkdir<P: Arg>(path: P, mode: Mode) -> io::Result<()> {
    mkdirat(CWD, path, mode)
}

pub fn mkdirat<P: Arg, Fd: AsFd>(dir: Fd, path: P, mode: Mode) -> io::Result<()> {
    let Some(mut world) = world() else { return fs::mkdirat(dir, path, mode) };
    let path = path.as_cow_c_str()?;
    let Some(place) = Place::of(&world, &dir, &path) else { return fs::mkdirat(dir, &*path, mode) };
    world.state(place.machine).may_change(place.dir)?;
    fs::mkdirat(&place.dir_fd, &*place.name, mode)?;
    let made = place.identity().ok_or(Errno::NOENT)?;
    place.record_made(&mut world, made, true);
    Ok(())
}

pub fn unlink<P: Arg>(path: P) -> io::Result<()> {
    unlinkat(CWD, path, AtFlags::empty())
}

pub fn unlinkat<P: Arg, Fd: AsFd>(dir: Fd, path: P, flags: AtFlags) -> io::Result<()> {
    let Some(mut world) = world() else { return fs::unlinkat(dir, path, flags) };
    let path = path.as_cow_c_str()?;
    let Some(place) = Place::of(&world, &dir, &path) else { return fs::unlinkat(dir, &*path, flags) };
    world.state(place.machine).may_change(place.dir)?;
    let stat = place.stat();
    place.no_mount(&mut world)?;
    fs::unlinkat(&place.dir_fd, &*place.name, flags)?;
    if let Some((stat, node)) = stat.and_then(|stat| Some((stat, world.node(identity(&stat))?.1))) {
        // Who has a directory open can still make a nameless file that belongs to it.
        if stat.st_nlink <= 1 && !flags.contains(AtFlags::REMOVEDIR) {
            world.forget(identity(&stat));
        }
        world.state(place.machine).push(FsEvent::Remove { dir: place.dir, name: place.name(), node });
    }
    Ok(())
}

pub fn rename<P: Arg, Q: Arg>(from: P, to: Q) -> io::Result<()> {
    renameat(CWD, from, CWD, to)
}

pub fn renameat<P: Arg, Q: Arg, A: AsFd, B: AsFd>(from_dir: A, from: P, to_dir: B, to: Q) -> io::Result<()> {
    renameat_with(from_dir, from, to_dir, to, RenameFlags::empty())
}

pub fn renameat_with<P: Arg, Q: Arg, A: AsFd, B: AsFd>(
    from_dir: A,
    from: P,
    to_dir: B,
    to: Q,
    flags: RenameFlags,
) -> io::Result<()> {
    let Some(mut world) = world() else { return fs::renameat_with(from_dir, from, to_dir, to, flags) };
    let from = from.as_cow_c_str()?;
    let to = to.as_cow_c_str()?;
    let places = (Place::of(&world, &from_dir, &from), Place::of(&world, &to_dir, &to));
    let (Some(old), Some(new)) = places else { return fs::renameat_with(from_dir, &*from, to_dir, &*to, flags) };
    world.state(old.machine).may_change(old.dir)?;
    world.state(old.machine).same_mount(old.dir, new.dir)?;
    old.no_mount(&mut world)?;
    new.no_mount(&mut world)?;
    if flags.contains(RenameFlags::EXCHANGE) {
        let nodes = [&old, &new].map(|place| place.identity().and_then(|identity| world.node(identity)));
        fs::renameat_with(&old.dir_fd, &*old.name, &new.dir_fd, &*new.name, flags)?;
        if let [Some((machine, first)), Some((_, second))] = nodes {
            let first = (old.dir, old.name(), first);
            let second = (new.dir, new.name(), second);
            world.state(machine).push(FsEvent::Exchange { first, second });
        }
        return Ok(());
    }
    let replaced = new.stat().filter(|stat| stat.st_nlink <= 1);
    fs::renameat_with(&old.dir_fd, &*old.name, &new.dir_fd, &*new.name, flags)?;
    if let Some(replaced) = replaced {
        world.forget(identity(&replaced));
    }
    if let Some((_, node)) = new.identity().and_then(|identity| world.node(identity)) {
        let event = FsEvent::Rename { from: (old.dir, old.name()), to: (new.dir, new.name()), node };
        world.state(old.machine).push(event);
    }
    Ok(())
}

pub fn linkat<P: Arg, Q: Arg, A: AsFd, B: AsFd>(
    from_dir: A,
    from: P,
    to_dir: B,
    to: Q,
    flags: AtFlags,
) -> io::Result<()> {
    let Some(mut world) = world() else { return fs::linkat(from_dir, from, to_dir, to, flags) };
    let to = to.as_cow_c_str()?;
    let Some(place) = Place::of(&world, &to_dir, &to) else {
        return fs::linkat(from_dir, from, to_dir, &*to, flags);
    };
    world.state(place.machine).may_change(place.dir)?;
    let from = from.as_cow_c_str()?;
    let follow = if flags.contains(AtFlags::SYMLINK_FOLLOW) { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    if let Some((_, node)) = world.node(identity(&fs::statat(&from_dir, &*from, follow)?)) {
        world.state(place.machine).same_mount(node, place.dir)?;
    }
    fs::linkat(from_dir, &*from, &place.dir_fd, &*place.name, flags)?;
    if let Some((_, node)) = place.identity().and_then(|identity| world.node(identity)) {
        world.state(place.machine).push(FsEvent::Link { dir: place.dir, name: place.name(), node });
    }
    Ok(())
}

pub fn write<Fd: AsFd>(fd: Fd, bytes: &[u8]) -> io::Result<usize> {
    writev(fd, &[IoSlice::new(bytes)])
}

pub fn pread<Fd: AsFd>(fd: Fd, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let read = io::pread(&fd, &mut *bytes, offset)?;
    if HAS_BAD_SECTORS.load(Ordering::Acquire) {
        let mut world = lock();
        if let Some((machine, _)) = world.node(identity(&fs::fstat(&fd)?)) {
            world.state(machine).may_read(&bytes[..read])?;
        }
    }
    Ok(read)
}

pub fn writev<Fd: AsFd>(fd: Fd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    written(&fd, parts, || fs::tell(&fd), |parts| io::writev(&fd, parts))
}

pub fn pwritev<Fd: AsFd>(fd: Fd, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
    written(&fd, parts, || Ok(offset), |parts| io::pwritev(&fd, parts, offset))
}

fn written(
    fd: &impl AsFd,
    parts: &[IoSlice<'_>],
    offset: impl FnOnce() -> io::Result<u64>,
    call: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
) -> io::Result<usize> {
    let Some(mut world) = world() else { return call(parts) };
    let Some((machine, node)) = world.node(identity(&fs::fstat(fd)?)) else { return call(parts) };
    let mut left = world.state(machine).may_write(node, parts.iter().map(|part| part.len()).sum())?;
    let mut taken = Vec::with_capacity(parts.len());
    for part in parts {
        let bytes = &part[..part.len().min(left)];
        left -= bytes.len();
        taken.push(IoSlice::new(bytes));
    }
    let offset = offset()?;
    let written = call(&taken)?;
    let bytes = parts.iter().flat_map(|part| part.iter().copied()).take(written).collect();
    world.state(machine).push(FsEvent::Write { node, offset, bytes });
    Ok(written)
}

pub fn ftruncate<Fd: AsFd>(fd: Fd, len: u64) -> io::Result<()> {
    let Some(mut world) = world() else { return fs::ftruncate(fd, len) };
    let Some((machine, node)) = world.node(identity(&fs::fstat(&fd)?)) else { return fs::ftruncate(fd, len) };
    world.state(machine).may_change(node)?;
    fs::ftruncate(fd, len)?;
    world.state(machine).push(FsEvent::Truncate { node, len });
    Ok(())
}

pub fn fchown<Fd: AsFd>(fd: Fd, owner: Option<Uid>, group: Option<Gid>) -> io::Result<()> {
    attributes(&fd, || fs::fchown(&fd, owner, group))
}

pub fn fchmod<Fd: AsFd>(fd: Fd, mode: Mode) -> io::Result<()> {
    attributes(&fd, || fs::fchmod(&fd, mode))
}

/// Owner and mode, set before a file has its name, reach the disk with the file: no event of their own.
fn attributes(fd: &impl AsFd, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let Some(mut world) = world() else { return call() };
    if let Some((machine, node)) = world.node(identity(&fs::fstat(fd)?)) {
        world.state(machine).may_change(node)?;
    }
    call()
}

pub fn fsync<Fd: AsFd>(fd: Fd) -> io::Result<()> {
    let Some(world) = world() else { return fs::fsync(fd) };
    match world.node(identity(&fs::fstat(&fd)?)) {
        Some((machine, node)) => World::while_it_hangs(world, machine).state(machine).sync(node),
        None => {
            // A real sync takes long; others need not wait for it.
            drop(world);
            fs::fsync(fd)
        }
    }
}

pub fn fdatasync<Fd: AsFd>(fd: Fd) -> io::Result<()> {
    let Some(world) = world() else { return fs::fdatasync(fd) };
    match world.node(identity(&fs::fstat(&fd)?)) {
        Some((machine, node)) => World::while_it_hangs(world, machine).state(machine).sync(node),
        None => {
            drop(world);
            fs::fdatasync(fd)
        }
    }
}

pub fn syncfs<Fd: AsFd>(fd: Fd) -> io::Result<()> {
    let Some(mut world) = world() else { return fs::syncfs(fd) };
    match world.node(identity(&fs::fstat(&fd)?)) {
        Some((machine, node)) => {
            world = World::while_it_hangs(world, machine);
            let state = world.state(machine);
            state.sync_all(state.mounts.of(node), fd.as_fd().as_raw_fd())
        }
        None => {
            drop(world);
            fs::syncfs(fd)
        }
    }
}

/// The declaration of the file system of `fd`; `None` if it is a real one.
pub fn declared(fd: impl AsFd) -> Option<Declared> {
    let mut world = world()?;
    let (machine, node) = world.node(identity(&fs::fstat(&fd).ok()?))?;
    let state = world.state(machine);
    // To be asked when a descriptor is opened that is to sync a file system.
    state.opened(state.mounts.of(node), fd.as_fd().as_raw_fd());
    Some(Declared {
        device: state.mounts.of(node),
        syncfs_trusted: state.syncfs_trusted,
        ordered_log: state.ordered_log,
        life: state.life,
        is_read_only: state.is_read_only(node),
    })
}

/// Mount points below `dir`, if it lies in a watched directory; empty for a real one.
pub fn mounts_below(dir: &std::path::Path) -> Option<Vec<std::path::PathBuf>> {
    let mut world = world()?;
    let (machine, _) = world.node(identity(&fs::stat(dir).ok()?))?;
    let below = |point: &&std::path::PathBuf| point.starts_with(dir) && *point != dir;
    Some(world.state(machine).mount_points.iter().filter(below).cloned().collect())
}

pub fn statvfs(path: &std::path::Path) -> io::Result<StatVfs> {
    let space = declared_space(path);
    let real = fs::statvfs(path)?;
    Ok(match space {
        Some(space) => space.stat(real),
        None => real,
    })
}

/// The declared space on the file system of `path`, unbounded if none is declared; `None` if it is a real one.
fn declared_space(path: &std::path::Path) -> Option<DeclaredSpace> {
    let mut world = world()?;
    let (machine, node) = world.node(identity(&fs::stat(path).ok()?))?;
    let state = world.state(machine);
    let unbounded = DeclaredSpace::Fixed { bytes: u64::MAX, inodes: u64::MAX };
    Some(state.spaces.get(&state.mounts.of(node)).cloned().unwrap_or(unbounded))
}

/// A name in a watched directory.
struct Place {
    machine: u64,
    dir: NodeId,
    dir_fd: OwnedFd,
    name: CString,
}

impl Place {
    fn of(world: &World, at: &impl AsFd, path: &CStr) -> Option<Self> {
        let bytes = path.to_bytes();
        let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
            None => (c".".to_owned(), bytes),
            Some(0) => return None,
            Some(slash) => (CString::new(&bytes[..slash]).ok()?, &bytes[slash + 1..]),
        };
        let dir_fd = fs::openat(at, &parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let (machine, dir) = world.node(identity(&fs::fstat(&dir_fd).ok()?))?;
        Some(Place { machine, dir, dir_fd, name: CString::new(name).ok()? })
    }

    fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn stat(&self) -> Option<fs::Stat> {
        fs::statat(&self.dir_fd, &*self.name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.stat().map(|stat| identity(&stat))
    }

    fn no_mount(&self, world: &mut World) -> io::Result<()> {
        let node = self.identity().and_then(|identity| world.node(identity));
        node.map_or(Ok(()), |(machine, node)| world.state(machine).no_mount(node))
    }

    fn record_made(&self, world: &mut World, identity: (u64, u64), is_dir: bool) {
        let node = world.watch(self.machine, self.dir, identity);
        world.state(self.machine).push(FsEvent::Create { dir: self.dir, name: self.name(), node, is_dir });
    }
}

fn identity(stat: &fs::Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
