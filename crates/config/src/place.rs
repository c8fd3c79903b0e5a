//! Default places of the configuration file.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Name of the configuration file in the working directory.
pub const DEFAULT_FILE: &str = "posthaste.toml";
/// The configuration of the server of this machine.
pub const SYSTEM_FILE: &str = "/etc/posthaste/posthaste.toml";
/// The environment variable that names a configuration.
pub const VARIABLE: &str = "POSTHASTE_CONFIG";

/// The file that a command or a server reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundFile {
    /// `None`: no file, so the defaults apply.
    pub path: Option<PathBuf>,
    /// Why [`DEFAULT_FILE`] in the working directory is ignored, if it exists.
    pub passed_over: Option<String>,
}

impl FoundFile {
    /// Finds the first of these: `named`, the file that [`VARIABLE`] names, [`DEFAULT_FILE`] in the working directory, [`SYSTEM_FILE`]. Only a file of
    /// the last two has to exist.
    ///
    /// For root, the file in the working directory counts only if nobody else can change it: root may work in any
    /// directory, and a configuration names programs.
    pub fn find(named: Option<&Path>) -> Self {
        let root = Some(0).filter(|_| rustix::process::geteuid().is_root());
        let variable = std::env::var_os(VARIABLE);
        find(named, variable.as_deref(), Path::new(DEFAULT_FILE), Path::new(SYSTEM_FILE), root)
    }

    /// Like [`FoundFile::find`], for a program started in any directory: the working directory is ignored, and
    /// [`SYSTEM_FILE`] must exist.
    pub fn find_elsewhere(named: Option<&Path>) -> Self {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let path = named.map(Path::to_owned).or(variable.map(PathBuf::from)).unwrap_or_else(|| SYSTEM_FILE.into());
        Self { path: Some(path), passed_over: None }
    }
}

/// `only`: the required owner of the file `here` and of its directory.
fn find(named: Option<&Path>, variable: Option<&OsStr>, here: &Path, system: &Path, only: Option<u32>) -> FoundFile {
    // A file that cannot be looked at is there: reading it says why it cannot. But who may not look into the working directory keeps no configuration there.
    let is_there = |path: &Path| path.try_exists().unwrap_or(true);
    let is_barred = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    let variable = variable.filter(|value| !value.is_empty()).map(Path::new);
    if let Some(path) = named.or(variable) {
        return FoundFile { path: Some(path.to_owned()), passed_over: None };
    }
    let is_here = here.try_exists().unwrap_or_else(|error| !is_barred(error));
    let passed_over = only.filter(|_| is_here).and_then(|owner| changed_by_others(here, owner));
    let path = if is_here && passed_over.is_none() { Some(here) } else { Some(system).filter(|path| is_there(path)) };
    FoundFile { path: path.map(Path::to_owned), passed_over }
}

/// How a user other than `owner` could change a file, if one can.
fn changed_by_others(file: &Path, owner: u32) -> Option<String> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    [file, dir].into_iter().find_map(|path| {
        let shown = path.display();
        match std::fs::metadata(path) {
            Err(error) => Some(format!("{shown}: {error}")),
            Ok(found) if found.uid() != owner => Some(format!("{shown} belongs to uid {}", found.uid())),
            Ok(found) if found.mode() & 0o022 != 0 => Some(format!("others can write to {shown}")),
            Ok(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_configuration_of_the_list_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (here, system) = (dir.path().join(DEFAULT_FILE), dir.path().join("system.toml"));
        let check = |named: Option<&str>, variable: Option<&str>, expected: Option<&Path>| {
            let found = find(named.map(Path::new), variable.map(OsStr::new), &here, &system, None);
            assert_eq!(found, FoundFile { path: expected.map(Path::to_owned), passed_over: None });
        };
        check(None, None, None);
        check(None, Some(""), None);
        write(&system, "").unwrap();
        check(None, None, Some(&system));
        write(&here, "").unwrap();
        check(None, Some(""), Some(&here));
        check(None, Some("no-such"), Some(Path::new("no-such")));
        check(Some("named"), Some("no-such"), Some(Path::new("named")));
    }

    #[test]
    fn a_directory_that_may_not_be_searched_holds_none() {
        let dir = tempfile::tempdir().unwrap();
        let (closed, system) = (dir.path().join("closed"), dir.path().join("system.toml"));
        create_dir(&closed).unwrap();
        for file in [&closed.join(DEFAULT_FILE), &system] {
            write(file, "").unwrap();
        }
        set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        // Root may search all: only this thread gives that up.
        let nobody = rustix::process::Uid::from_raw(65_534);
        let found = std::thread::scope(|scope| {
            let find = || {
                if rustix::process::geteuid().is_root() {
                    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                }
                find(None, None, &closed.join(DEFAULT_FILE), &system, None)
            };
            scope.spawn(find).join().unwrap()
        });
        set_permissions(&closed, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found, FoundFile { path: Some(system), passed_over: None });
    }

    #[test]
    fn a_file_that_others_can_change_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join("within");
        create_dir(&within).unwrap();
        let (here, system) = (within.join(DEFAULT_FILE), dir.path().join("system.toml"));
        for file in [&here, &system] {
            write(file, "").unwrap();
        }
        let own = rustix::process::geteuid().as_raw();
        let mode = |path: &Path, mode: u32| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let check = |owner: u32, expected: Option<&str>| {
            let found = find(None, None, &here, &system, Some(owner));
            assert_eq!(found.path.as_ref() == Some(&here), expected.is_none(), "{found:?}");
            assert_eq!(found.path.as_ref() == Some(&system), expected.is_some(), "{found:?}");
            let why = found.passed_over.unwrap_or_default();
            assert!(why.contains(expected.unwrap_or_default()), "{why}");
        };
        mode(&within, 0o755);
        mode(&here, 0o644);
        check(own, None);
        check(own + 1, Some(&format!("belongs to uid {own}")));
        for (path, bad, good) in [(&here, 0o666, 0o644), (&here, 0o664, 0o644), (&within, 0o777, 0o755)] {
            mode(path, bad);
            check(own, Some("others can write to "));
            mode(path, good);
        }
        check(own, None);
    }
}
