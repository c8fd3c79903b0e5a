//! The keys of all domains in a directory: `DOMAIN/SELECTOR.pem`, each written by `rename`.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::generate::{GenerateError, generate};
use crate::key::{Algorithm, KeyError};
use crate::key_file::{KEY_FILE_BYTES_MAX, KeyFile, KeyState};
use crate::names::{is_domain, is_selector};
use crate::record::KeyRecord;

/// The directory of keys.
#[derive(Debug, Clone)]
pub struct KeyDirectory {
    dir: PathBuf,
}

/// The keys of a domain, in the order of their selectors.
#[derive(Debug)]
pub struct DomainKeys {
    /// Name of the domain in lower-case A-labels.
    pub domain: String,
    /// Keys, at least one; some may be unreadable.
    pub keys: Vec<StoredKey>,
}

/// A key in its file.
#[derive(Debug)]
pub struct StoredKey {
    /// The selector of its record.
    pub selector: String,
    /// File of the key.
    pub path: PathBuf,
    /// The contents, or why they cannot be used.
    pub file: Result<KeyFile, String>,
}

/// Records of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRecords {
    /// Selectors and records (RFC 6376 section 3.6.1).
    pub records: Vec<(String, String)>,
    /// Keys that cannot be used: the file, and why.
    pub unusable: Vec<String>,
}

/// Why the key directory cannot be used or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyStoreError {
    /// A file or directory cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The read error.
        error: io::Error,
    },
    /// Other users could read or change a key.
    #[error("{}: other users can open it; run chmod 600, and make a new key if they may have read it", .0.display())]
    Exposed(PathBuf),
    /// No name of a domain in lower-case A-labels.
    #[error("`{0}` is not a domain")]
    Domain(String),
    /// The domain has keys already.
    #[error("{0} has keys; `posthaste dkim rotate {0}` makes the next ones")]
    Known(String),
    /// The domain has no key that signs.
    #[error("{0} has no key; `posthaste dkim new {0}` makes the first ones")]
    Unknown(String),
    /// The domain already has next keys.
    #[error("{0} has its next keys; `posthaste dkim activate {0}` puts them to use")]
    HasNext(String),
    /// The domain has no next key.
    #[error("{0} has no next key; `posthaste dkim rotate {0}` makes it")]
    NoNext(String),
    /// A key of the domain is unreadable, so no key of it is changed.
    #[error("{}: {why}", path.display())]
    Unreadable {
        /// File of the key.
        path: PathBuf,
        /// Description of the mistake.
        why: String,
    },
    /// The key generation failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A key that was good is refused.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl KeyDirectory {
    /// The keys below `dir`, which may be missing.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// All keys, by domain; empty without the directory. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read, or others can read a key. An unusable key is reported in its place.
    pub fn read(&self) -> Result<Vec<DomainKeys>, KeyStoreError> {
        let mut all = Vec::new();
        for name in names(&self.dir)? {
            let path = self.dir.join(&name);
            if !path.is_dir() {
                continue;
            }
            let domain = name.to_ascii_lowercase();
            let keys = if is_domain(&name) {
                self.keys(&name)?
            } else if is_domain(&domain) && !self.dir.join(&domain).exists() && has_keys(&path)? {
                // Passed over, mail of the domain would leave unsigned.
                let why = format!("the name must be in lower case: rename this directory to {domain}");
                vec![StoredKey { selector: UNKNOWN.to_owned(), path, file: Err(why) }]
            } else {
                Vec::new()
            };
            if !keys.is_empty() {
                all.push(DomainKeys { domain, keys });
            }
        }
        Ok(all)
    }

    /// The keys of a domain in the order of their selectors. Blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn keys(&self, domain: &str) -> Result<Vec<StoredKey>, KeyStoreError> {
        if !is_domain(domain) {
            return Err(KeyStoreError::Domain(domain.chars().take(300).collect()));
        }
        let dir = self.dir.join(domain);
        let names = match names(&dir) {
            // As a key that cannot be read: nobody knows if there is one.
            Err(KeyStoreError::Io { path, error }) => {
                return Ok(vec![StoredKey { selector: UNKNOWN.to_owned(), path, file: Err(error.to_string()) }]);
            }
            names => names?,
        };
        let selectors = names.iter().filter(|name| is_key(name)).filter_map(|name| name.strip_suffix(SUFFIX));
        selectors
            .map(|selector| {
                let path = dir.join(format!("{selector}{SUFFIX}"));
                if !is_selector(selector) {
                    return Ok(StoredKey { selector: UNKNOWN.to_owned(), path, file: Err(NO_SELECTOR.to_owned()) });
                }
                let file = read_file(&path)?;
                Ok(StoredKey { selector: selector.to_owned(), path, file })
            })
            .collect()
    }

    /// Records of a domain's keys: those that sign now or next, and those that signed since `since`, as their mail may
    /// be in transit. In seconds since 1970. Blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn records(&self, domain: &str, since: u64) -> Result<KeyRecords, KeyStoreError> {
        let mut all = KeyRecords::default();
        for StoredKey { selector, path, file } in self.keys(domain)? {
            match file {
                Ok(file) if file.state == KeyState::Old && file.since < since => {}
                Ok(file) => all.records.push((selector, KeyRecord::of(&file.key).to_string())),
                Err(why) => all.unusable.push(format!("{}: {why}", path.display())),
            }
        }
        Ok(all)
    }

    /// Makes the first keys of a domain, active at once. Their selectors begin with `month`, such as `2611`. `now` is
    /// in seconds since 1970. Blocks.
    ///
    /// # Errors
    /// [`KeyStoreError::Known`], or a key cannot be made or written.
    pub fn create(
        &self,
        domain: &str,
        algorithms: &[Algorithm],
        month: &str,
        now: u64,
    ) -> Result<Vec<StoredKey>, KeyStoreError> {
        let _lock = self.lock()?;
        if !self.keys(domain)?.is_empty() {
            return Err(KeyStoreError::Known(domain.to_owned()));
        }
        self.make(domain, algorithms, (month, KeyState::Active, now))
    }

    /// Makes a next key for each active one of a domain; they wait for [`activate`](Self::activate). Blocks.
    ///
    /// # Errors
    /// [`KeyStoreError::Unknown`], [`KeyStoreError::HasNext`], or a key cannot be read, made or written.
    pub fn rotate(&self, domain: &str, month: &str, now: u64) -> Result<Vec<StoredKey>, KeyStoreError> {
        let _lock = self.lock()?;
        let keys = readable(self.keys(domain)?)?;
        let of = |state| keys.iter().filter(move |(_, file)| file.state == state).map(|(_, file)| file.key.algorithm());
        if of(KeyState::Next).next().is_some() {
            return Err(KeyStoreError::HasNext(domain.to_owned()));
        }
        let mut algorithms: Vec<Algorithm> = of(KeyState::Active).collect();
        algorithms.sort();
        algorithms.dedup();
        if algorithms.is_empty() {
            return Err(KeyStoreError::Unknown(domain.to_owned()));
        }
        self.make(domain, &algorithms, (month, KeyState::Next, now))
    }

    /// Activates the next keys of a domain, then retires the previous ones. Returns all of its keys. Blocks.
    ///
    /// # Errors
    /// [`KeyStoreError::NoNext`], or a key cannot be read or written.
    pub fn activate(&self, domain: &str, now: u64) -> Result<Vec<StoredKey>, KeyStoreError> {
        let _lock = self.lock()?;
        let keys = readable(self.keys(domain)?)?;
        if !keys.iter().any(|(_, file)| file.state == KeyState::Next) {
            return Err(KeyStoreError::NoNext(domain.to_owned()));
        }
        // After a crash in between, old and new keys sign.
        for (from, to) in [(KeyState::Next, KeyState::Active), (KeyState::Active, KeyState::Old)] {
            for (path, file) in keys.iter().filter(|(_, file)| file.state == from) {
                write(path, &KeyFile { state: to, since: now, key: file.key.again()? })?;
            }
        }
        self.keys(domain)
    }

    fn make(
        &self,
        domain: &str,
        algorithms: &[Algorithm],
        (month, state, since): (&str, KeyState, u64),
    ) -> Result<Vec<StoredKey>, KeyStoreError> {
        let dir = self.dir.join(domain);
        make_dir(&dir)?;
        let mut made = Vec::new();
        for algorithm in algorithms {
            let letter = if *algorithm == Algorithm::Rsa { 'r' } else { 'e' };
            let numbered = (2..).map(|number| format!("{month}{letter}{number}"));
            let mut selectors = std::iter::once(format!("{month}{letter}")).chain(numbered);
            let path = |selector: &str| dir.join(format!("{selector}{SUFFIX}"));
            let selector = selectors.find(|selector| !path(selector).exists()).expect("numbers have no end");
            let path = path(&selector);
            let file = KeyFile { state, since, key: generate(*algorithm)? };
            write(&path, &file)?;
            made.push(StoredKey { selector, path, file: Ok(file) });
        }
        Ok(made)
    }

    /// One change at a time.
    fn lock(&self) -> Result<fs::File, KeyStoreError> {
        make_dir(&self.dir)?;
        let path = self.dir.join("lock");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow()).open(&path);
        let locked = file.and_then(|file| {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
        locked.map_err(at(&path))
    }
}

/// The names in a directory, sorted; empty without it.
fn names(dir: &Path) -> Result<Vec<String>, KeyStoreError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(at(dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is not text is none of ours.
        names.extend(entry.map_err(at(dir))?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// True for the name of a key's file. A hidden file is being written, or is a program's own.
fn is_key(name: &str) -> bool {
    name.ends_with(SUFFIX) && !name.starts_with('.')
}

fn has_keys(dir: &Path) -> Result<bool, KeyStoreError> {
    Ok(names(dir)?.iter().any(|name| is_key(name)))
}

fn readable(keys: Vec<StoredKey>) -> Result<Vec<(PathBuf, KeyFile)>, KeyStoreError> {
    let each = keys.into_iter().map(|StoredKey { path, file, .. }| match file {
        Ok(file) => Ok((path, file)),
        Err(why) => Err(KeyStoreError::Unreadable { path, why }),
    });
    each.collect()
}

fn read_file(path: &Path) -> Result<Result<KeyFile, String>, KeyStoreError> {
    let mut text = String::new();
    let mut read = || {
        let file = OpenOptions::new().read(true).custom_flags(nofollow()).open(path)?;
        let found = file.metadata()?;
        let is_exposed = found.mode() & 0o007 != 0;
        if found.is_file() && !is_exposed {
            file.take(KEY_FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
        }
        Ok::<_, io::Error>((found.is_file(), is_exposed))
    };
    match read() {
        Err(error) => Ok(Err(error.to_string())),
        Ok((false, _)) => Ok(Err("this is not a regular file".to_owned())),
        Ok((true, true)) => Err(KeyStoreError::Exposed(path.to_owned())),
        Ok((true, false)) => Ok(KeyFile::parse(&text).map_err(|error| error.to_string())),
    }
}

fn write(path: &Path, file: &KeyFile) -> Result<(), KeyStoreError> {
    let text = file.to_string();
    let written = posthaste_fsops::replace_file(path, Mode::RUSR | Mode::WUSR, text.as_bytes());
    written.map_err(|error| at(path)(error.into()))
}

fn make_dir(dir: &Path) -> Result<(), KeyStoreError> {
    posthaste_fsops::make_dir(dir).map_err(at(dir))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> KeyStoreError {
    move |error| KeyStoreError::Io { path: path.to_owned(), error }
}

/// Flags that follow no link, and do not block on a pipe.
fn nofollow() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

const SUFFIX: &str = ".pem";
/// In place of an unknown selector.
const UNKNOWN: &str = "?";
const NO_SELECTOR: &str =
    "the name before .pem is not a selector: rename the file, with lower-case letters, digits, hyphens and dots alone";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ED: [Algorithm; 1] = [Algorithm::Ed25519];

    fn states(keys: &[StoredKey]) -> Vec<(&str, KeyState, u64)> {
        let state = |key: &StoredKey| key.file.as_ref().map(|file| (file.state, file.since)).unwrap();
        keys.iter().map(|key| (key.selector.as_str(), state(key).0, state(key).1)).collect()
    }

    #[test]
    fn keys_are_made_rotated_and_activated() {
        let place = tempfile::tempdir().unwrap();
        let store = KeyDirectory::new(&place.path().join("dkim"));
        assert!(store.read().unwrap().is_empty());
        assert!(matches!(store.rotate("a.example", "2611", 1), Err(KeyStoreError::Unknown(_))));
        let made = store.create("a.example", &[Algorithm::Rsa, Algorithm::Ed25519], "2611", 5).unwrap();
        assert_eq!(states(&made), [("2611r", KeyState::Active, 5), ("2611e", KeyState::Active, 5)]);
        assert_eq!(fs::metadata(&made[0].path).unwrap().mode() & 0o7777, 0o600);
        assert!(matches!(store.create("a.example", &ED, "2611", 6), Err(KeyStoreError::Known(_))));
        assert!(matches!(store.activate("a.example", 6), Err(KeyStoreError::NoNext(_))));
        store.rotate("a.example", "2611", 7).unwrap();
        assert!(matches!(store.rotate("a.example", "2612", 7), Err(KeyStoreError::HasNext(_))));
        let all = store.activate("a.example", 8).unwrap();
        let expected = [
            ("2611e", KeyState::Old, 8),
            ("2611e2", KeyState::Active, 8),
            ("2611r", KeyState::Old, 8),
            ("2611r2", KeyState::Active, 8),
        ];
        assert_eq!(states(&all), expected);
        let read = store.read().unwrap();
        assert_eq!((read.len(), read[0].domain.as_str(), states(&read[0].keys)), (1, "a.example", expected.to_vec()));
        let key = |keys: &[StoredKey], at: usize| keys[at].file.as_ref().unwrap().key.public();
        assert_eq!(key(&all, 2), key(&made, 0), "a state changes, and no key");
        let records = |since| {
            let records = store.records("a.example", since).unwrap().records;
            records.into_iter().map(|(selector, _)| selector).collect::<Vec<_>>()
        };
        assert_eq!(records(8), ["2611e", "2611e2", "2611r", "2611r2"], "their mail may be on its way");
        assert_eq!(records(9), ["2611e2", "2611r2"]);
    }

    #[test]
    fn a_key_whose_name_is_wrong_is_told() {
        let place = tempfile::tempdir().unwrap();
        let store = KeyDirectory::new(place.path());
        let made = store.create("a.example", &ED, "2611", 1).unwrap();
        let copied = |to: &str| fs::copy(&made[0].path, place.path().join(to)).unwrap();
        for to in ["a.example/Mail.pem", "a.example/a b.pem", "a.example/.x.pem", "a.example/mail.key"] {
            copied(to);
        }
        for dir in ["B.Example", "A.example", "no-key.Example", "no domain"] {
            fs::create_dir(place.path().join(dir)).unwrap();
        }
        for to in ["B.Example/x.pem", "A.example/x.pem", "no domain/x.pem"] {
            copied(to);
        }
        let mut told = Vec::new();
        for DomainKeys { domain, keys } in store.read().unwrap() {
            for StoredKey { selector, path, file } in keys {
                let why = file.err().map(|why| why.split(':').next().unwrap_or_default().to_owned());
                told.push((domain.clone(), selector, path, why));
            }
        }
        let line = |domain: &str, selector: &str, file: &str, why: Option<&str>| {
            (domain.to_owned(), selector.to_owned(), place.path().join(file), why.map(str::to_owned))
        };
        let no_selector = Some("the name before .pem is not a selector");
        let expected = [
            line("b.example", "?", "B.Example", Some("the name must be in lower case")),
            line("a.example", "2611e", "a.example/2611e.pem", None),
            line("a.example", "?", "a.example/Mail.pem", no_selector),
            line("a.example", "?", "a.example/a b.pem", no_selector),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn no_name_leaves_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let store = KeyDirectory::new(place.path());
        for name in ["", "..", "../x", "/tmp", "A.example", "a/b"] {
            assert!(matches!(store.create(name, &ED, "2611", 1), Err(KeyStoreError::Domain(_))), "{name}");
        }
    }

    #[test]
    fn one_unreadable_key_is_told_and_an_exposed_one_stops_all() {
        let place = tempfile::tempdir().unwrap();
        let store = KeyDirectory::new(place.path());
        for domain in ["a.example", "b.example"] {
            store.create(domain, &ED, "2611", 1).unwrap();
        }
        let path = place.path().join("a.example/2611e.pem");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let all = store.read().unwrap();
        assert!(all[0].keys[0].file.is_err() && all[1].keys[0].file.is_ok());
        for changed in [store.rotate("a.example", "2612", 2), store.activate("a.example", 2)] {
            assert!(matches!(changed, Err(KeyStoreError::Unreadable { .. })));
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(place.path().join("b.example/2611e.pem"), &path).unwrap();
        assert!(store.read().unwrap()[0].keys[0].file.is_err(), "a link is not followed");
        fs::remove_file(&path).unwrap();
        fs::write(&path, &text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(store.read(), Err(KeyStoreError::Exposed(_))));
    }
}
