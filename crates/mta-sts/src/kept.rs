//! Policies on disk: a file for each domain, with two lines of ours in front of the policy.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Mode as FileMode;

use crate::policy::StsPolicy;

/// A fetched policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptPolicy {
    /// Id of the DNS record that announced the policy.
    pub id: String,
    /// Seconds since 1970.
    pub fetched: u64,
    pub policy: StsPolicy,
}

impl KeptPolicy {
    /// True if its `max_age` has not passed. A clock set back does not end it.
    pub fn is_valid(&self, now: u64) -> bool {
        now.saturating_sub(self.fetched) < self.policy.max_age_secs
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = posthaste_fsops::checked(bytes)?.strip_prefix("id: ")?.split_once('\n')?;
        let (fetched, policy) = rest.strip_prefix("fetched: ")?.split_once('\n')?;
        Some(Self { id: id.to_owned(), fetched: fetched.parse().ok()?, policy: StsPolicy::parse(policy).ok()? })
    }
}

/// The directory of the files. `None`: nothing is stored.
#[derive(Debug, Default)]
pub struct KeptPolicies {
    dir: Option<PathBuf>,
    /// Domains with a file: most domains have no policy, and need no disk access.
    domains: Mutex<HashSet<String>>,
}

impl KeptPolicies {
    /// Opens or creates the directory. Removes invalid files, and policies a month after their expiry, as the clock may
    /// be wrong at a start.
    ///
    /// # Errors
    /// The directory cannot be made or listed.
    pub fn open(dir: &Path, now: u64) -> io::Result<Self> {
        posthaste_fsops::make_dir(dir)?;
        let mut domains = HashSet::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let domain = entry.file_name().into_string().ok().filter(|name| is_file_name(name));
            // A file that cannot be read may be read later.
            let Ok(bytes) = fs::read(entry.path()) else { continue };
            let is_kept = KeptPolicy::parse(&bytes).is_some_and(|kept| kept.is_valid(now.saturating_sub(MONTH_SECS)));
            match domain.filter(|_| is_kept) {
                Some(domain) => drop(domains.insert(domain)),
                None => drop(fs::remove_file(entry.path())),
            }
        }
        Ok(Self { dir: Some(dir.to_owned()), domains: Mutex::new(domains) })
    }

    /// True if a policy of the domain may be stored. No system call.
    pub fn has(&self, domain: &str) -> bool {
        self.domains().contains(domain)
    }

    /// The valid policy of a domain, read from its file.
    pub fn get(&self, domain: &str, now: u64) -> Option<KeptPolicy> {
        let path = self.dir.as_ref()?.join(is_file_name(domain).then_some(domain)?);
        read(&path).filter(|kept| kept.is_valid(now))
    }

    /// Stores a policy durably. Beyond [`FILES_MAX`] domains a new one is not stored.
    ///
    /// # Errors
    /// The file cannot be written; an existing one stays.
    pub fn put(&self, domain: &str, id: &str, fetched: u64, policy: &StsPolicy) -> io::Result<()> {
        let has_room = |domains: &HashSet<String>| domains.len() < FILES_MAX || domains.contains(domain);
        let Some(dir) = self.dir.as_ref().filter(|_| is_file_name(domain) && has_room(&self.domains())) else {
            return Ok(());
        };
        let content = posthaste_fsops::with_checksum(format!("id: {id}\nfetched: {fetched}\n{}", policy.text()));
        posthaste_fsops::replace_file(&dir.join(domain), FileMode::from_raw_mode(0o644), content.as_bytes())?;
        self.domains().insert(domain.to_owned());
        Ok(())
    }

    fn domains(&self) -> MutexGuard<'_, HashSet<String>> {
        self.domains.lock().expect("the domains")
    }
}

/// Seconds since 1970.
pub fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn read(path: &Path) -> Option<KeptPolicy> {
    KeptPolicy::parse(&fs::read(path).ok()?)
}

/// True for a domain in A-labels, the form of file names: without separators, a leading dot, or the suffix of
/// unfinished files.
fn is_file_name(domain: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    domain.len() <= 253
        && domain.contains('.')
        && domain.bytes().all(is_plain)
        && !domain.starts_with('.')
        && !domain.ends_with(".new")
}

/// Maximum domains with a file: their names take about 4 MB.
const FILES_MAX: usize = 50_000;
const MONTH_SECS: u64 = 30 * 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version: STSv1\nmode: enforce\nmx: mx.a.example\nmax_age: 100\n";

    #[test]
    fn a_policy_outlives_its_process_until_its_time_has_passed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptPolicies::open(dir.path(), 1000).unwrap();
        let policy = StsPolicy::parse(TEXT).unwrap();
        kept.put("a.example", "one", 1000, &policy).unwrap();
        kept.put("b.example", "two", 1050, &policy).unwrap();
        let again = KeptPolicies::open(dir.path(), 1099).unwrap();
        assert_eq!(again.get("a.example", 1099).map(|kept| kept.id).as_deref(), Some("one"));
        assert_eq!(again.get("a.example", 1100), None);
        assert!(again.get("a.example", 10).is_some(), "the clock was set back");
        let later = KeptPolicies::open(dir.path(), 1100 + MONTH_SECS).unwrap();
        assert!(!later.has("a.example") && later.has("b.example") && !dir.path().join("a.example").exists());
        assert_eq!(later.get("b.example", 1150), None);
    }

    #[test]
    fn a_policy_of_which_a_bit_is_flipped_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptPolicies::open(dir.path(), 1000).unwrap();
        kept.put("a.example", "one", 1000, &StsPolicy::parse(TEXT).unwrap()).unwrap();
        let path = dir.path().join("a.example");
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).unwrap();
            assert_eq!(kept.get("a.example", 1000), None, "bit {bit}");
        }
    }

    #[test]
    fn half_files_and_strange_names_count_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in
            [("a.example", "id: x\nfetched: 1\nversion: STS"), ("b.example.new", TEXT), ("c.example", "")]
        {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let kept = KeptPolicies::open(dir.path(), 1).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        for name in
            ["../a.example", "/etc/passwd.x", ".a", "a/b.example", "localhost", "a.example.new", "A.example", "a\0.b"]
        {
            kept.put(name, "x", 1, &StsPolicy::parse(TEXT).unwrap()).unwrap();
            assert_eq!(kept.get(name, 1), None, "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
