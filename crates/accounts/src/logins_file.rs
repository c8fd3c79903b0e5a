//! Changes of the file of passwords. Comments, other lines and the file's owner and mode are preserved.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use posthaste_directory::Directory;
use posthaste_fsops::{put_in_place, unfinished};
use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};

use crate::logins::{Logins, LoginsError};

/// The file of passwords, open for a change. Other `LoginsFile`s of the same file wait.
#[derive(Debug)]
pub struct LoginsFile {
    path: PathBuf,
    text: String,
    /// User and group of the file.
    owner: (u32, u32),
    mode: Mode,
    /// Lock on the file's directory.
    _lock: File,
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginEntry {
    /// The normalised name.
    pub login: String,
    /// Words about the account, without SCRAM keys.
    pub words: Vec<String>,
    /// True if it has keys of SCRAM-SHA-256.
    pub scram: bool,
}

/// Error of a change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeLoginsError {
    /// The file is malformed, before or after the change.
    #[error(transparent)]
    Wrong(#[from] LoginsError),
    /// The file cannot be read or written.
    #[error("{}: {error}", file.display())]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The name already has a line.
    #[error("login {0} already exists")]
    Exists(String),
    /// The name has no line.
    #[error("there is no login {0}")]
    Absent(String),
    /// The name is invalid.
    #[error("`{0}` is not a name, such as ann@example.org")]
    Name(String),
}

impl LoginsFile {
    /// Opens the file, or begins one that gets `owner`: a user and a group. Blocks while another process changes it.
    ///
    /// # Errors
    /// The file cannot be read, or a line is malformed.
    pub fn open(path: &Path, directory: &Directory, owner: (u32, u32)) -> Result<Self, ChangeLoginsError> {
        let failed = |error: io::Error| ChangeLoginsError::Io { file: path.to_owned(), error };
        // Not a link, but the file that it leads to is replaced.
        let path = match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            real => real.map_err(failed)?,
        };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let lock = File::open(dir).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let (text, owner, mode) = match std::fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), owner, Mode::RUSR | Mode::WUSR),
            Err(error) => return Err(failed(error)),
            Ok(found) => {
                let text = std::fs::read_to_string(&path).map_err(failed)?;
                (text, (found.uid(), found.gid()), Mode::from_raw_mode(found.mode() & 0o777))
            }
        };
        let file = Self { path, text, owner, mode, _lock: lock };
        file.check(directory)?;
        Ok(file)
    }

    fn check(&self, directory: &Directory) -> Result<(), LoginsError> {
        let wrong = |(line, why)| LoginsError { file: self.path.clone(), line: Some(line), why };
        Logins::parse(&self.text, directory).map(drop).map_err(wrong)
    }

    /// Logins of the file, in order.
    pub fn entries(&self, directory: &Directory) -> Vec<LoginEntry> {
        let entry = |line: &str| {
            let (name, rest) = line.split_once(':')?;
            let words = rest.split_once(':').map_or("", |(_, words)| words);
            let (scram, words) = words.split_ascii_whitespace().partition::<Vec<_>, _>(|word| is_scram(word));
            let words = words.into_iter().map(str::to_owned).collect();
            Some(LoginEntry { login: directory.login_name(name)?, words, scram: !scram.is_empty() })
        };
        self.text.lines().filter_map(login_line).filter_map(entry).collect()
    }

    /// Adds a login. `rest` is its hash and, after a colon, words about the account.
    ///
    /// # Errors
    /// [`ChangeLoginsError::Exists`]; [`ChangeLoginsError::Name`]; [`ChangeLoginsError::Wrong`] for malformed words.
    pub fn add(&mut self, name: &str, rest: &str, directory: &Directory) -> Result<String, ChangeLoginsError> {
        let login = login_of(name, directory)?;
        if self.line_of(&login, directory).is_some() {
            return Err(ChangeLoginsError::Exists(login));
        }
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text += &format!("{login}:{rest}\n");
        self.check(directory)?;
        Ok(login)
    }

    /// Changes a login's password. Its words stay; `scram` makes new keys in place of old ones.
    ///
    /// # Errors
    /// [`ChangeLoginsError::Absent`]; [`ChangeLoginsError::Name`].
    pub fn set_password<E: From<ChangeLoginsError>>(
        &mut self,
        name: &str,
        hash: &str,
        scram: impl FnOnce() -> Result<String, E>,
        directory: &Directory,
    ) -> Result<String, E> {
        let login = login_of(name, directory)?;
        let Some(line) = self.line_of(&login, directory) else {
            return Err(ChangeLoginsError::Absent(login).into());
        };
        let text = self.text[line.clone()].trim_start();
        let (named, rest) = text.split_once(':').unwrap_or((text, ""));
        let words = rest.split_once(':').map_or("", |(_, words)| words);
        let (old, words) = words.split_ascii_whitespace().partition::<Vec<_>, _>(|word| is_scram(word));
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if !old.is_empty() {
            words.push(format!("scram={}", scram()?));
        }
        let mut changed = format!("{named}:{hash}");
        if !words.is_empty() {
            changed += &format!(":{}", words.join(" "));
        }
        self.text.replace_range(line, &changed);
        self.check(directory).map_err(ChangeLoginsError::from)?;
        Ok(login)
    }

    /// Removes a login.
    ///
    /// # Errors
    /// [`ChangeLoginsError::Absent`]; [`ChangeLoginsError::Name`].
    pub fn remove(&mut self, name: &str, directory: &Directory) -> Result<String, ChangeLoginsError> {
        let login = login_of(name, directory)?;
        let Some(line) = self.line_of(&login, directory) else { return Err(ChangeLoginsError::Absent(login)) };
        let end = self.text[line.end..].find('\n').map_or(self.text.len(), |at| line.end + at + 1);
        self.text.replace_range(line.start..end, "");
        Ok(login)
    }

    /// Replaces the file by the changed text. Durable on return.
    ///
    /// # Errors
    /// [`ChangeLoginsError::Io`]: the old content is in force, unless a sync failed.
    pub fn save(&self) -> Result<(), ChangeLoginsError> {
        self.replace().map_err(|error| ChangeLoginsError::Io { file: self.path.clone(), error })
    }

    fn replace(&self) -> io::Result<()> {
        let unfinished = unfinished(&self.path);
        // One that a kill has left may have another owner.
        match posthaste_fsops::unlink(&unfinished) {
            Err(rustix::io::Errno::NOENT) => {}
            removed => removed?,
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = posthaste_fsops::open(&unfinished, flags, Mode::RUSR | Mode::WUSR)?;
        let written = self.write(&file).and_then(|()| Ok(put_in_place(&file, &unfinished, &self.path)?));
        written.inspect_err(|_| {
            let _ = posthaste_fsops::unlink(&unfinished);
        })
    }

    fn write(&self, file: &rustix::fd::OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(file)?;
        let (uid, gid) = self.owner;
        if (stat.st_uid, stat.st_gid) != (uid, gid) {
            posthaste_fsops::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        posthaste_fsops::fchmod(file, self.mode)?;
        posthaste_fsops::write_all(file, self.text.as_bytes())
    }

    /// Range of a login's line, without its line end.
    fn line_of(&self, login: &str, directory: &Directory) -> Option<std::ops::Range<usize>> {
        let mut start = 0;
        for line in self.text.split_inclusive('\n') {
            let end = start + line.trim_end_matches(['\n', '\r']).len();
            let name = login_line(line).and_then(|line| line.split_once(':'));
            if name.is_some_and(|(name, _)| directory.login_name(name).as_deref() == Some(login)) {
                return Some(start..end);
            }
            start += line.len();
        }
        None
    }
}

fn login_of(name: &str, directory: &Directory) -> Result<String, ChangeLoginsError> {
    let is_plain = !name.contains([':', '\n', '\r']) && !name.starts_with('#') && name.trim() == name;
    let login = directory.login_name(name).filter(|_| is_plain);
    login.ok_or_else(|| ChangeLoginsError::Name(name.to_owned()))
}

/// The trimmed line, unless it is a comment.
fn login_line(line: &str) -> Option<&str> {
    Some(line.trim()).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn is_scram(word: &str) -> bool {
    word.starts_with("scram=")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use posthaste_directory::{Domain, Users};

    use super::*;

    const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";

    fn directory() -> Directory {
        let mut domain = Domain::named("example.org");
        domain.users = Users::Listed(vec!["ann".to_owned(), "bob".to_owned()]);
        Directory::new(&[domain], "Maildir").unwrap()
    }

    fn open(path: &Path) -> LoginsFile {
        let metadata = std::fs::metadata(path.parent().unwrap()).unwrap();
        LoginsFile::open(path, &directory(), (metadata.uid(), metadata.gid())).unwrap()
    }

    fn keys() -> Result<String, ChangeLoginsError> {
        Ok(posthaste_scram::ScramKeys::new("password", 5000).unwrap().to_string())
    }

    #[test]
    fn a_change_keeps_comments_other_lines_and_the_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwords");
        let keys_of_bob = keys().unwrap();
        let text = format!(
            "# our people\r\n\r\n  Ann:{HASH}:tenant=news scram={keys_of_bob} senders=any  \r\n# bob@example.org:no\nbob:{HASH}"
        );
        std::fs::write(&path, &text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let directory = directory();
        let slow = HASH.replace("t=1", "t=2");
        let mut file = open(&path);
        assert_eq!(file.entries(&directory)[0].words, ["tenant=news", "senders=any"]);
        assert_eq!(file.set_password("ann@EXAMPLE.org", &slow, keys, &directory).unwrap(), "ann@example.org");
        file.set_password("bob", &slow, || -> Result<String, ChangeLoginsError> { panic!("it has none") }, &directory)
            .unwrap();
        assert_eq!(
            file.add("app@else.example", &format!("{HASH}:tenant=news"), &directory).unwrap(),
            "app@else.example"
        );
        file.save().unwrap();
        let now = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = now.split('\n').collect();
        assert_eq!((lines[0], lines[1], lines[3]), ("# our people\r", "\r", "# bob@example.org:no"));
        assert!(lines[2].starts_with(&format!("Ann:{slow}:tenant=news senders=any scram=SCRAM-SHA-256$")), "{now}");
        assert!(lines[2].ends_with('\r') && !lines[2].contains(&keys_of_bob), "{now}");
        assert_eq!(lines[4..], [&format!("bob:{slow}"), &format!("app@else.example:{HASH}:tenant=news"), ""]);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        drop(file);
        let mut file = open(&path);
        file.remove("ann", &directory).unwrap();
        file.remove("app@else.example", &directory).unwrap();
        file.save().unwrap();
        let now = std::fs::read_to_string(&path).unwrap();
        assert_eq!(now, format!("# our people\r\n\r\n# bob@example.org:no\nbob:{slow}\n"));
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwords");
        let directory = directory();
        let mut file = open(&path);
        file.add("ann", HASH, &directory).unwrap();
        file.save().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = |error: ChangeLoginsError| error.to_string();
        assert_eq!(
            text(file.add("ANN@example.org", HASH, &directory).unwrap_err()),
            "login ann@example.org already exists"
        );
        for name in ["a:b", "a\nb", "#x", " x", "", "a b@example.org"] {
            assert!(text(file.add(name, HASH, &directory).unwrap_err()).contains("is not a name"), "{name:?}");
        }
        assert_eq!(text(file.remove("bob", &directory).unwrap_err()), "there is no login bob@example.org");
        let wrong = text(file.add("bob", &format!("{HASH}:uid=5"), &directory).unwrap_err());
        assert!(wrong.contains("`uid=5` is unknown"), "{wrong}");
        drop(file);
        std::fs::write(&path, "nonsense\n").unwrap();
        let error = LoginsFile::open(&path, &directory, (0, 0)).unwrap_err().to_string();
        assert!(error.contains("passwords:1: "), "{error}");
    }

    #[test]
    fn a_link_to_the_file_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let mut file = open(&link);
        file.add("ann", HASH, &directory()).unwrap();
        file.save().unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("ann@example.org:{HASH}\n"));
    }
}
