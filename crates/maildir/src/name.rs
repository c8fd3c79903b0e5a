//! File names: `<secs>.<unique>.<host>,S=<size>,W=<wire size>[:2,<flags>]`.
//!
//! | part | meaning |
//! | --- | --- |
//! | `secs` | seconds since 1970 of the delivery |
//! | `unique` | what makes it unique on this host: `M<µs>P<pid>Q<count>R<random>`, or the caller's own (a journal record's id) |
//! | `host` | host name, `/` written `\057` and `:` written `\072` |
//! | `S=` | bytes on disk |
//! | `W=` | bytes on the wire, line ends counted as CRLF; equal to `S` means that the file is served as it is |
//! | `:2,` | flags, single letters in ASCII order; absent in `new/` |
//!
//! `<secs>.<unique>.<host>` is the *key*: it stays the same while other programs change flags or drop the sizes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::path::COMPONENT_BYTES_MAX;

/// Maximum bytes of the host part, after replacement. Longer ones are cut, because the key must fit into 255 bytes.
pub const HOST_BYTES_MAX: usize = 64;

/// A host name made fit for a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host(Box<str>);

impl Host {
    /// Replaces characters that a file name cannot hold: `/` by `\057`, `:` by `\072`; `,`, blanks, control and
    /// non-ASCII characters by `_`. An empty name becomes `localhost`. The rest beyond 64 octets is cut off.
    pub fn new(host_name: &str) -> Self {
        let mut fit = String::with_capacity(host_name.len());
        for c in host_name.chars() {
            let mut utf8 = [0; 4];
            let piece: &str = match c {
                '/' => "\\057",
                ':' => "\\072",
                ',' => "_",
                c if c.is_ascii_graphic() => c.encode_utf8(&mut utf8),
                _ => "_",
            };
            if fit.len() + piece.len() > HOST_BYTES_MAX {
                break;
            }
            fit.push_str(piece);
        }
        if fit.is_empty() {
            fit.push_str("localhost");
        }
        Self(fit.into_boxed_str())
    }

    /// The machine's own name (`uname`).
    pub fn of_this_machine() -> Self {
        Self::new(&rustix::system::uname().nodename().to_string_lossy())
    }

    /// The name as it stands in file names.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A message's file name, without the directory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UniqueName(Box<str>);

impl UniqueName {
    /// Builds a name without flags, as it stands in `tmp/` and `new/`.
    ///
    /// # Panics
    /// If `unique` is empty, longer than 100 bytes, or holds anything but ASCII letters, digits, `_` and `-`. It
    /// comes from the program, never from a peer.
    pub fn new(secs: u64, unique: &str, host: &Host, disk_size: u64, wire_size: u64) -> Self {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        assert!((1..=100).contains(&unique.len()) && unique.bytes().all(allowed), "unique part {unique:?}");
        let name = format!("{secs}.{unique}.{},S={disk_size},W={wire_size}", host.as_str());
        // 20 + 1 + 100 + 1 + 64 + 3 + 20 + 3 + 20 = 232 <= 255
        debug_assert!(name.len() <= COMPONENT_BYTES_MAX);
        Self(name.into_boxed_str())
    }

    /// Takes a name found in a directory, of any program.
    ///
    /// `None` if it cannot be a message: empty, beginning with a dot, holding `/`, NUL or control characters, or above
    /// 255 bytes. A name by another program may lack any part: the getters then return `None`.
    pub fn parse(name: &str) -> Option<Self> {
        let bad = name.starts_with('.') || crate::path::check_component(name).is_err();
        (!bad).then(|| Self(name.into()))
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that never changes: everything before the first `,` or `:`.
    pub fn key(&self) -> &str {
        key_of(&self.0)
    }

    /// Seconds since 1970, from the first part.
    pub fn secs(&self) -> Option<u64> {
        self.key().split('.').next()?.parse().ok()
    }

    /// The middle part of the key.
    pub fn unique(&self) -> Option<&str> {
        self.key().split('.').nth(1)
    }

    /// The host part, still in its replaced form; it may hold dots.
    pub fn host(&self) -> Option<&str> {
        self.key().splitn(3, '.').nth(2)
    }

    /// `S=`: bytes on disk.
    pub fn disk_size(&self) -> Option<u64> {
        self.field("S=")
    }

    /// `W=`: bytes on the wire.
    pub fn wire_size(&self) -> Option<u64> {
        self.field("W=")
    }

    /// True if the file is served byte for byte (`W` equals `S`), false if LF becomes CRLF; `None` if the name does
    /// not say.
    pub fn is_verbatim(&self) -> Option<bool> {
        Some(self.disk_size()? == self.wire_size()?)
    }

    /// The letters after `:2,`; empty if there are none.
    pub fn flag_letters(&self) -> &str {
        self.0.split_once(":2,").map_or("", |(_, flags)| flags)
    }

    /// Everything before the flags.
    pub fn without_flags(&self) -> &str {
        self.0.split(':').next().unwrap_or("")
    }

    fn field(&self, tag: &str) -> Option<u64> {
        let fields = self.without_flags().split(',').skip(1);
        let mut values = fields.filter_map(|field| field.strip_prefix(tag));
        values.next()?.parse().ok()
    }
}

/// The key of any file name: everything before the first `,` or `:`.
pub(crate) fn key_of(name: &str) -> &str {
    name.split([',', ':']).next().unwrap_or("")
}

impl fmt::Display for UniqueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for UniqueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Makes names that no other process on any host makes: time, process id, a counter, and 32 random bits (two
/// containers may share host name and process id).
#[derive(Debug)]
pub struct NameSource {
    host: Host,
    pid: u32,
    random: u32,
    count: AtomicU64,
}

impl NameSource {
    /// A source for this process. Takes 4 random bytes from the kernel.
    ///
    /// # Errors
    /// If the kernel has no random bytes to give.
    pub fn new(host: Host) -> std::io::Result<Self> {
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self { host, pid: std::process::id(), random: u32::from_ne_bytes(random), count: AtomicU64::new(0) })
    }

    /// Makes the next name. The counter keeps names unique, so a clock that stands still does no harm.
    pub fn next(&self, now: SystemTime, disk_size: u64, wire_size: u64) -> UniqueName {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let unique = format!("M{}P{}Q{count}R{:08x}", since.subsec_micros(), self.pid, self.random);
        UniqueName::new(since.as_secs(), &unique, &self.host, disk_size, wire_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_parts() {
        let host = Host::new("mx/1:a.example");
        let name = UniqueName::new(1700000000, "J17", &host, 990, 1000);
        assert_eq!(name.as_str(), "1700000000.J17.mx\\0571\\072a.example,S=990,W=1000");
        assert_eq!(name.key(), "1700000000.J17.mx\\0571\\072a.example");
        assert_eq!(name.unique(), Some("J17"));
        assert_eq!(name.is_verbatim(), Some(false));
        let seen = UniqueName::parse(&format!("{name}:2,FSa")).expect("a message's name");
        assert_eq!(seen.flag_letters(), "FSa");
        assert_eq!((seen.disk_size(), seen.wire_size()), (Some(990), Some(1000)));
        assert_eq!(seen.without_flags(), name.as_str());
    }

    #[test]
    fn foreign_names_parse_with_parts_missing() {
        let name = UniqueName::parse("msg:2,S").expect("a message's name");
        assert_eq!((name.secs(), name.disk_size(), name.key()), (None, None, "msg"));
        assert_eq!(UniqueName::parse(".hidden"), None);
        assert_eq!(UniqueName::parse("a/b"), None);
        assert_eq!(UniqueName::parse(&"n".repeat(256)), None);
    }

    #[test]
    fn the_longest_name_fits() {
        let host = Host::new(&"h".repeat(300));
        let name = UniqueName::new(u64::MAX, &"u".repeat(100), &host, u64::MAX, u64::MAX);
        assert!(UniqueName::parse(name.as_str()).is_some(), "{}", name.as_str().len());
    }

    #[test]
    fn a_source_never_repeats_itself_while_the_clock_stands() {
        let source = NameSource::new(Host::new("h")).expect("random bytes");
        let names: std::collections::HashSet<_> = (0..1000).map(|_| source.next(UNIX_EPOCH, 1, 1)).collect();
        assert_eq!(names.len(), 1000);
    }
}
