//! Dropping privileges: from root to the server's user, once the sockets are bound.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Gid, Mode, OFlags, Uid, access};
use rustix::process::{getegid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use posthaste_config::{Config, Loaded, OwnerRules, Rights, UserIdentity};

/// Why the server does not run as the configured user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// The process was not started by root.
    #[error("only root can become `{user}`: start as root, or as that user and without `user` in the configuration")]
    NotRoot {
        /// The configured user.
        user: String,
    },
    /// A directory cannot be made or given to the user.
    #[error("{}: {error}", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The user cannot use existing files or directories.
    #[error("{} belongs to uid {owner}, and `{user}` cannot write to it; run chown -R {user}: {}", path.display(), above.display())]
    Owner {
        /// The path.
        path: PathBuf,
        /// The directory to give to the user with its content.
        above: PathBuf,
        /// The present owner's number.
        owner: u32,
        /// The required owner.
        user: String,
    },
    /// A server within another program does not change that program's user.
    #[error(
        "the process runs as uid {uid}, but the configuration says user = `{user}`: switch to that user first, or leave `user` out"
    )]
    OtherUser {
        /// The user to run as.
        user: String,
        /// The process's user.
        uid: u32,
    },
    /// `owner` gives mail to other users, but the server will lack the right to do so.
    #[error("{0}; or leave `owner` out")]
    OwnerRightsMissing(String),
    /// Programs and files would have the rights of root.
    #[error("mail goes to `{0}`, and programs and files are not used as root: set `user`, or start as another user")]
    Root(String),
    /// Another user could make the server run programs.
    #[error("{0}")]
    ConfigFile(String),
    /// The kernel refused the change, or it had no effect.
    #[error("cannot become `{user}`: {error}")]
    Kernel {
        /// The user.
        user: String,
        /// Error of the system.
        error: io::Error,
    },
}

/// Switches to the configured user, if any. Missing directories are made for that user first.
///
/// Call it while the process has one thread: the kernel changes only the calling thread, and later threads inherit its
/// user.
///
/// # Errors
/// See [`PrivilegeError`].
pub(crate) fn give_up(config: &Config) -> Result<(), PrivilegeError> {
    let identity = config.identity().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
    check_owners(config)?;
    check_transports(config)?;
    let Some(identity) = identity else { return Ok(()) };
    let directories = directories(config);
    if !geteuid().is_root() {
        if geteuid().as_raw() != identity.uid {
            return Err(PrivilegeError::NotRoot { user: identity.name });
        }
        return check_directories(&directories, &identity);
    }
    for path in &directories {
        make_for(path, &identity, dir_mode(config, path))
            .map_err(|error| PrivilegeError::Directory { path: path.clone(), error })?;
    }
    become_user(&identity).map_err(|error| PrivilegeError::Kernel { user: identity.name.clone(), error })?;
    check_directories(&directories, &identity)
}

/// Checks that the process runs as the configured user, if any.
///
/// # Errors
/// [`PrivilegeError::OtherUser`].
pub(crate) fn check_user(config: &Config) -> Result<(), PrivilegeError> {
    let identity = config.identity().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
    let uid = geteuid().as_raw();
    let gid = getegid().as_raw();
    match identity.filter(|identity| (identity.uid, identity.gid) != (uid, gid)) {
        Some(identity) => Err(PrivilegeError::OtherUser { user: identity.name, uid }),
        None => Ok(()),
    }
}

/// The future group of a server started as root: earlier files get this group.
pub(crate) fn group_to_be(config: &Config) -> Option<u32> {
    let identity = config.identity().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
    identity.filter(|_| geteuid().is_root()).map(|identity| identity.gid)
}

fn directories(config: &Config) -> Vec<PathBuf> {
    let storage = &config.storage;
    // The mail first: others may have to get through what lies above it.
    let mut all = vec![storage.mail.clone(), storage.data.clone(), storage.spool.clone()];
    if config.search.index {
        all.push(config.search.dir.clone());
    }
    if config.events.enabled {
        all.push(config.events.dir.clone());
    }
    all
}

/// Mode of a new directory: users other than the server may have to pass through to the mail.
fn dir_mode(config: &Config, path: &Path) -> u32 {
    let is_passed = *path == config.storage.mail && OwnerRules::of(&config.domains).are_for_others();
    if is_passed { 0o711 } else { 0o700 }
}

/// Checks that mail can be given to its owners.
///
/// # Errors
/// [`PrivilegeError::OwnerRightsMissing`].
pub(crate) fn check_owners(config: &Config) -> Result<(), PrivilegeError> {
    // Who is not root any more does not become somebody else.
    let rights = config.rights().filter(|_| geteuid().is_root()).unwrap_or_else(Rights::of_this_process);
    OwnerRules::of(&config.domains).check(&rights).map_err(|why| PrivilegeError::OwnerRightsMissing(why.to_string()))
}

/// Checks that no program runs, and no file is written, with the rights of root.
///
/// # Errors
/// [`PrivilegeError::Root`].
pub(crate) fn check_transports(config: &Config) -> Result<(), PrivilegeError> {
    let identity = config.identity().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
    let uid = identity.map_or(geteuid().as_raw(), |identity| identity.uid);
    match config.transports().iter().find(|transport| transport.acts_here()) {
        Some(transport) if uid == 0 => Err(PrivilegeError::Root(transport.to_string())),
        _ => Ok(()),
    }
}

/// Checks that only root, the server's user and the user that starts it can change a configuration with programs or
/// files.
///
/// # Errors
/// [`PrivilegeError::ConfigFile`].
pub(crate) fn check_file(loaded: &Loaded) -> Result<(), PrivilegeError> {
    let (Some(path), config) = (&loaded.file, &loaded.config) else { return Ok(()) };
    let transports = config.transports();
    let Some(transport) = transports.iter().find(|transport| transport.acts_here()) else { return Ok(()) };
    let problem = |why: String| {
        let why = format!("{} names `{transport}`, but {why}", path.display());
        Err(PrivilegeError::ConfigFile(why))
    };
    let identity = config.identity().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
    let trusted = [Some(0), Some(geteuid().as_raw()), identity.map(|identity| identity.uid)];
    let file = match std::fs::metadata(path) {
        Ok(file) => file,
        Err(error) => return problem(error.to_string()),
    };
    match file.mode() & 0o002 {
        _ if !trusted.contains(&Some(file.uid())) => {
            problem(format!("belongs to uid {}, who is neither root nor the server's user", file.uid()))
        }
        0 => Ok(()),
        _ => problem("everybody can write to it: run chmod o-w".to_owned()),
    }
}

/// Makes a missing mail directory that the owners of the mail can pass through.
pub(crate) fn make_mail_directory(config: &Config) -> io::Result<()> {
    let mail = &config.storage.mail;
    let own =
        UserIdentity { name: String::new(), uid: geteuid().as_raw(), gid: getegid().as_raw(), groups: Vec::new() };
    match dir_mode(config, mail) {
        0o700 => Ok(()),
        mode => make_for(mail, &own, mode),
    }
}

/// Makes a directory and missing ones above it, for a user. Existing ones are not changed.
fn make_for(path: &Path, identity: &UserIdentity, mode: u32) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.exists() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), |parent| make_for(parent, identity, mode))?;
    rustix::fs::mkdir(path, Mode::RWXU)?;
    // Not through a link: the directory above may be the user's, who could put one in its place.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::fchown(&made, Some(Uid::from_raw(identity.uid)), Some(Gid::from_raw(identity.gid)))?;
    Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?)
}

fn become_user(identity: &UserIdentity) -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads are running already")));
    }
    set_identity_of_thread(identity)?;
    if identity.uid != 0 && set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok() {
        return Err(io::Error::other("root privileges could be regained"));
    }
    Ok(())
}

fn set_identity_of_thread(identity: &UserIdentity) -> io::Result<()> {
    let uid = Uid::from_raw(identity.uid);
    let gid = Gid::from_raw(identity.gid);
    let groups: Vec<Gid> = identity.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    // In this order: without the user's rights the others could not be set any more.
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// The server's user, if this process is root and the user is another one: the configured user, else the owner of the
/// data directory.
pub(crate) fn servers_user(config: &Config) -> Option<UserIdentity> {
    let owner = || {
        let found = std::fs::metadata(&config.storage.data).ok()?;
        UserIdentity::of(&found.uid().to_string(), Some(&found.gid().to_string())).ok()
    };
    let identity = config.identity().ok().flatten().or_else(owner);
    identity.filter(|identity| geteuid().is_root() && identity.uid != 0)
}

/// Runs `act` with the rights of the [server's user](servers_user), if there is one, and returns the user as well.
pub(crate) fn as_servers_user<T: Send>(config: &Config, act: impl FnOnce() -> T + Send) -> Option<(UserIdentity, T)> {
    let identity = servers_user(config)?;
    // The kernel has users of threads: this one ends with its own.
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| set_identity_of_thread(&identity).ok().map(|()| act()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    done.map(|done| (identity, done))
}

/// Checks that the configured user could use the existing directories. Does not switch users: root checks owner and
/// permission bits.
///
/// # Errors
/// [`PrivilegeError::NotRoot`], [`PrivilegeError::Owner`].
pub(crate) fn check_storage(config: &Config) -> Result<(), PrivilegeError> {
    let identity = config.identity().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
    let Some(identity) = identity else { return Ok(()) };
    let directories = directories(config);
    let checked = match geteuid().as_raw() {
        own if own == identity.uid => check_directories(&directories, &identity),
        0 => check_directories_by(&directories, &identity, |_, metadata| identity.may_write(metadata)),
        _ => return Err(PrivilegeError::NotRoot { user: identity.name }),
    };
    // What cannot be read at all is no question of the user.
    checked.or_else(|error| match error {
        PrivilegeError::Directory { .. } => Ok(()),
        error => Err(error),
    })
}

/// Refuses directories that a server with another user has left unusable: at the start instead of when mail arrives.
fn check_directories(directories: &[PathBuf], identity: &UserIdentity) -> Result<(), PrivilegeError> {
    check_directories_by(directories, identity, |path, metadata| access(path, needed(metadata)).is_ok())
}

/// Access that the server needs to its own files and directories.
fn needed(metadata: &Metadata) -> Access {
    if metadata.is_dir() { Access::WRITE_OK | Access::EXEC_OK } else { Access::WRITE_OK }
}

/// Checks directories with `may_write`, which decides for each file and directory.
fn check_directories_by(
    directories: &[PathBuf],
    identity: &UserIdentity,
    may_write: impl Fn(&Path, &Metadata) -> bool,
) -> Result<(), PrivilegeError> {
    for above in directories {
        let within = |error| PrivilegeError::Directory { path: above.clone(), error };
        let entries = std::fs::read_dir(above).map(|entries| entries.map_while(Result::ok).map(|entry| entry.path()));
        let entries: Vec<PathBuf> = match entries {
            Ok(entries) => entries.collect(),
            // The first start makes it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            Err(error) => return Err(within(error)),
        };
        for path in std::iter::once(above).chain(&entries) {
            let metadata = match std::fs::symlink_metadata(path) {
                // Somebody has removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(within)?,
            };
            if !metadata.is_symlink() && !may_write(path, &metadata) {
                let path = path.clone();
                let above = above.clone();
                let owner = metadata.uid();
                return Err(PrivilegeError::Owner { path, above, owner, user: identity.name.clone() });
            }
        }
    }
    Ok(())
}

/// Advice for a process without the right to a port.
pub(crate) const LOW_PORTS: &str =
    "ports below 1024 need root (with `user`, to drop it after binding) or CAP_NET_BIND_SERVICE";

/// True if only privileged users may listen on this port: the kernel's limit is configurable.
pub(crate) fn is_low(port: u16) -> bool {
    let limit = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
    port != 0 && port < limit.and_then(|limit| limit.trim().parse().ok()).unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_first_start_has_yet_to_make_is_no_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let identity = UserIdentity { name: "me".into(), uid: geteuid().as_raw(), gid: 0, groups: vec![] };
        let there = dir.path().join("there");
        std::fs::create_dir(&there).unwrap();
        std::fs::write(there.join("file"), "").unwrap();
        check_directories(&[there, dir.path().join("missing/spool")], &identity).unwrap();
    }

    #[test]
    fn owner_and_permission_bits_tell_whether_a_user_could_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let found = std::fs::metadata(&file).unwrap();
        let may = |uid: u32, gid: u32, mode: u32, path: &Path| {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode)).unwrap();
            let identity = UserIdentity { name: "x".into(), uid, gid, groups: vec![] };
            identity.may_write(&std::fs::metadata(path).unwrap())
        };
        let (uid, gid) = (found.uid(), found.gid());
        let other = (uid + 1, gid + 1);
        assert!(may(uid, gid, 0o600, &file) && !may(uid, gid, 0o466, &file));
        assert!(may(other.0, gid, 0o060, &file) && !may(other.0, gid, 0o606, &file));
        assert!(may(other.0, other.1, 0o602, &file) && !may(other.0, other.1, 0o660, &file));
        assert!(!may(other.0, other.1, 0o702, dir.path()), "a directory has to be passed through as well");
        assert!(may(other.0, other.1, 0o703, dir.path()));
    }

    #[test]
    fn a_socket_made_by_root_belongs_to_the_servers_group() {
        let parse = |text: &str| Config::parse(Path::new("x"), text).unwrap();
        let expected = geteuid().is_root().then_some(65533);
        assert_eq!(group_to_be(&parse("user = 65534\ngroup = 65533\n")), expected);
        assert_eq!(group_to_be(&parse("")), None);
    }

    #[tokio::test]
    async fn a_server_in_another_program_refuses_a_foreign_user() {
        let dir = tempfile::tempdir().unwrap();
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let start = |uid: u32| {
            let data = dir.path().join("data");
            let text = format!(
                "user = {uid}\ngroup = {gid}\n[storage]\ndata = \"{}\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n",
                data.display()
            );
            crate::MailServer::start(Config::parse(Path::new("x"), &text).unwrap())
        };
        let error = start(uid + 1).await.err().expect("it is somebody else").to_string();
        assert!(error.contains(&format!("uid {uid}, but the configuration says user = `{}`", uid + 1)), "{error}");
        assert!(!dir.path().join("data").exists());
        start(uid).await.expect("it is the user").shutdown().await;
    }

    #[test]
    fn a_link_is_not_followed_where_a_directory_is_to_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let metadata = std::fs::metadata(dir.path()).unwrap();
        let identity = UserIdentity { name: "me".into(), uid: metadata.uid(), gid: metadata.gid(), groups: vec![] };
        let (link, elsewhere) = (dir.path().join("link"), dir.path().join("elsewhere"));
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        assert!(make_for(&link, &identity, 0o711).is_err() && !elsewhere.exists());
        make_for(&dir.path().join("a/b"), &identity, 0o711).unwrap();
        assert!(dir.path().join("a/b").is_dir());
    }
}
