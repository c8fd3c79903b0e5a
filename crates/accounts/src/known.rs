//! Networks with an earlier successful login.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::guesses::{NETWORKS_MAX, prefix48};

/// Networks of clients with successful logins, each with the time of the last one.
#[derive(Debug)]
pub(crate) struct KnownNetworks {
    table: Mutex<KnownTable>,
    /// File that keeps them across restarts, if any. Locked while it is written.
    file: Option<Mutex<PathBuf>>,
    opened: Instant,
    /// `opened` as a time since 1970. Later times are computed from it, so setting the system's clock makes no login
    /// look old.
    opened_at: Duration,
}

#[derive(Debug, Default)]
struct KnownTable {
    /// Last login of each network, as a time since 1970.
    last_logins: HashMap<IpAddr, Duration>,
    is_saved: bool,
}

impl Default for KnownNetworks {
    /// Without a file.
    fn default() -> Self {
        Self { table: Mutex::default(), file: None, opened: Instant::now(), opened_at: wall_clock() }
    }
}

impl KnownNetworks {
    /// Reads the file, if it exists: lines of an address and the second of the last login. Malformed lines are skipped,
    /// as a power cut may leave some. Blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(file: PathBuf) -> io::Result<Self> {
        Self::open_at(wall_clock(), file)
    }

    fn open_at(now: Duration, file: PathBuf) -> io::Result<Self> {
        let mut known = Self { opened_at: now, ..Self::default() };
        let mut octets = Vec::new();
        match File::open(&file) {
            Ok(opened) => _ = opened.take(FILE_BYTES_MAX).read_to_end(&mut octets)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let line = |line: &str| {
            let (ip, at) = line.split_once(' ')?;
            // The clock may have been set back since.
            let at = Duration::from_secs(at.parse().ok()?).min(known.opened_at);
            (known.opened_at - at < KNOWN_FOR).then_some((ip.parse().ok()?, at))
        };
        let last_logins = String::from_utf8_lossy(&octets).lines().filter_map(line).take(NETWORKS_MAX).collect();
        known.table = Mutex::new(KnownTable { last_logins, is_saved: true });
        known.file = Some(Mutex::new(file));
        Ok(known)
    }

    /// Writes the file if anything has changed, without a sync: at worst a network has to log in again. Blocks.
    ///
    /// # Errors
    /// The file cannot be written. The next call tries again.
    pub fn save(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let text = {
            let mut table = self.lock();
            if table.is_saved {
                return Ok(());
            }
            table.is_saved = true;
            table.last_logins.iter().fold(String::new(), |mut text, (ip, at)| {
                let _ = writeln!(text, "{ip} {}", at.as_secs());
                text
            })
        };
        let new = file.with_extension("new");
        let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
        let written = written.and_then(|mut open| open.write_all(text.as_bytes()));
        written.and_then(|()| std::fs::rename(&new, &*file)).inspect_err(|_| self.lock().is_saved = false)
    }

    fn lock(&self) -> MutexGuard<'_, KnownTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.opened_at + self.opened.elapsed()
    }

    pub fn has(&self, client: IpAddr) -> bool {
        self.lock().last_logins.get(&client).is_some_and(|at| self.now().saturating_sub(*at) < KNOWN_FOR)
    }

    pub fn add(&self, client: IpAddr) {
        let now = self.now();
        let mut table = self.lock();
        table.is_saved = false;
        let known = &mut table.last_logins;
        if !known.contains_key(&client) {
            // One account with a whole /48 cannot displace the networks of others.
            let prefix = prefix48(client);
            let is_near = |ip: &IpAddr| prefix.is_some() && prefix48(*ip) == prefix;
            let is_prefix_full = known.keys().filter(|ip| is_near(ip)).count() >= PREFIX_NETWORKS_MAX;
            if is_prefix_full || known.len() >= NETWORKS_MAX {
                let candidates = known.iter().filter(|(ip, _)| !is_prefix_full || is_near(ip));
                let oldest = candidates.min_by_key(|(_, at)| **at).map(|(ip, _)| *ip);
                oldest.inspect(|ip| _ = known.remove(ip));
            }
        }
        known.insert(client, now);
    }
}

/// Current time since 1970.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Maximum known networks of one /48.
const PREFIX_NETWORKS_MAX: usize = 16;
/// Time for which a network stays known after its last login.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// Bound of the file: a line takes up to 60 octets.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn known_networks_of_a_48_displace_each_other_only() {
        let known = KnownNetworks::default();
        let near = |network: u32| format!("2001:db8:1:{network:x}::").parse().unwrap();
        let (other, v4) = ("2001:db8:2::".parse().unwrap(), "192.0.2.1".parse().unwrap());
        known.add(other);
        known.add(v4);
        for network in 0..=PREFIX_NETWORKS_MAX as u32 {
            tokio::time::advance(Duration::from_secs(1)).await;
            known.add(near(network));
        }
        assert!(known.has(other) && known.has(v4));
        assert_eq!(known.lock().last_logins.len(), PREFIX_NETWORKS_MAX + 2);
        assert!(!known.has(near(0)) && known.has(near(1)), "the one of the oldest login goes");
    }

    #[tokio::test(start_paused = true)]
    async fn known_networks_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownNetworks::open(dir.path().join("known")).unwrap();
        for number in 0..NETWORKS_MAX as u32 {
            known.add(ip(number));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        known.add(ip(0));
        known.add(ip(1_000_000));
        assert_eq!(known.lock().last_logins.len(), NETWORKS_MAX);
        assert!(known.has(ip(0)) && !known.has(ip(1)), "the one of the oldest login goes");
        known.save().unwrap();
        let all = KnownNetworks::open(dir.path().join("known")).unwrap();
        assert_eq!(all.lock().last_logins.len(), NETWORKS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn known_networks_outlive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known");
        let known = KnownNetworks::open(file.clone()).unwrap();
        known.save().unwrap();
        assert!(!file.exists(), "nothing has changed");
        known.add(ip(1));
        tokio::time::advance(KNOWN_FOR / 2).await;
        known.add("2001:db8::".parse().unwrap());
        known.save().unwrap();
        let restarted_at = known.now() + Duration::from_secs(1);
        let again = KnownNetworks::open_at(restarted_at, file.clone()).unwrap();
        assert!(again.has(ip(1)) && again.has("2001:db8::".parse().unwrap()));
        tokio::time::advance(KNOWN_FOR / 2).await;
        assert!(!again.has(ip(1)) && again.has("2001:db8::".parse().unwrap()));
        again.add(ip(2));
        again.save().unwrap();
        assert!(KnownNetworks::open_at(again.now(), file).unwrap().has(ip(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_are_none_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known");
        let now = wall_clock().as_secs();
        let old = now - KNOWN_FOR.as_secs() - 1;
        let text = format!(
            "\n192.0.2.1\n192.0.2.2 \n192.0.2.3 {old}\n192.0.2.4 {now} x\nx {now}\n192.0.2.5 -1\n\u{0}\u{0}\n192.0.2.6 {now}\n192.0.2.7 {}\n",
            u64::MAX
        );
        std::fs::write(&file, [text.as_bytes(), b"\xff 1\n"].concat()).unwrap();
        let known = KnownNetworks::open(file).unwrap();
        let mut found: Vec<_> = known.lock().last_logins.keys().map(ToString::to_string).collect();
        found.sort();
        // The last has its time from a clock that went wrong.
        assert_eq!(found, ["192.0.2.6", "192.0.2.7"]);
        KnownNetworks::open(dir.path().to_owned()).unwrap_err();
    }
}
