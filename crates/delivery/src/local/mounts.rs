//! Maps a mailbox to its mail mount by its path alone, without I/O on a mount that may hang.

use std::io;
use std::path::Path;
use std::sync::Arc;

use posthaste_maildir::mounts_below;

/// Mount points below the mail root. A mailbox below none of them is on the root's own file system.
///
/// A stream is named by the mount's path below the root, and bound to the file system first found there: see
/// [`identity`](super::identity). The [`SessionTag`](crate::SessionTag), which differs with each mount, shows if the
/// page cache can be trusted for earlier mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPoints(Vec<Arc<str>>);

/// Prefix of the streams' names; the mount point below the mail root follows, empty for the root itself.
const STREAM: &str = "local:";
/// Longest mount point with its own stream; mail below a longer one belongs to the outer mount.
const POINT_BYTES_MAX: usize = 190;

impl MountPoints {
    /// Reads the kernel's table of mounts. `root` is the mail root.
    ///
    /// # Errors
    /// An error of resolving the root's path or of reading `/proc/self/mountinfo`.
    pub fn below(root: &Path) -> io::Result<Self> {
        Ok(Self::of_points(mounts_below(root)?.iter().map(|point| &**point)))
    }

    fn of_points<'a>(points: impl Iterator<Item = &'a str>) -> Self {
        let is_own = |point: &&str| !point.is_empty() && point.len() <= POINT_BYTES_MAX;
        let mut points: Vec<Arc<str>> = points.filter(is_own).map(Arc::from).collect();
        points.push("".into());
        // Inner mounts first.
        points.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        points.dedup();
        MountPoints(points)
    }

    /// Adds mount points known from streams and not mounted now: mail waits for them, or they are bound to a file
    /// system.
    pub fn with_streams<'a>(self, streams: impl Iterator<Item = &'a str>) -> Self {
        Self::of_points(self.0.iter().map(|point| &**point).chain(streams.filter_map(|name| point_of(name))))
    }

    /// All mount points, the root's included.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter()
    }

    /// Index in [`iter`](Self::iter) of a mailbox's mount.
    pub fn of(&self, mailbox: &str) -> usize {
        let is_above = |point: &Arc<str>| is_at_or_below(mailbox, point);
        self.0.iter().position(is_above).expect("everything lies below the root")
    }
}

/// True if a path below the mail root equals or lies below another; all paths lie below the empty one.
pub(crate) fn is_at_or_below(path: &str, other: &str) -> bool {
    other.is_empty() || path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The name of a mount's stream.
pub(crate) fn stream_of(point: &str) -> String {
    format!("{STREAM}{point}")
}

/// The mount point of a stream's name; `None` if it is not a mount's.
pub(crate) fn point_of(stream: &str) -> Option<&str> {
    stream.strip_prefix(STREAM)
}

/// True if a stream is a mail mount's.
pub(crate) fn is_of_mount(stream: &str) -> bool {
    point_of(stream).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(all: &[&str]) -> MountPoints {
        MountPoints::of_points(all.iter().copied())
    }

    #[test]
    fn a_mailbox_lies_on_the_innermost_mount_above_it() {
        let points = points(&["big", "big/inner", "", "other", "big"]);
        let of = |mailbox: &str| &**points.iter().nth(points.of(mailbox)).expect("its place");
        for (mailbox, point) in [
            ("big/ann", "big"),
            ("big/inner/ann", "big/inner"),
            ("big/inner", "big/inner"),
            ("bigger/ann", ""),
            ("ann", ""),
            ("other", "other"),
        ] {
            assert_eq!(of(mailbox), point, "{mailbox}");
        }
        assert_eq!(points.iter().count(), 4, "each once");
    }

    #[test]
    fn mail_for_an_unmounted_point_stays_in_its_stream() {
        let points = points(&["here"]).with_streams(["local:gone", "local:", "events"].into_iter());
        assert_eq!(points.iter().map(|point| &**point).collect::<Vec<_>>(), ["gone", "here", ""]);
    }
}
