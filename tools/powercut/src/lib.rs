//! Cuts the power under a mail server, on real file systems, as often as one likes, and accounts for every message.
//!
//! Shows whether a server keeps what it acknowledged: in this project's own checks, and, since the server is a program that is
//! started and spoken to over SMTP, for any other server that delivers into Maildirs. Not published.
//!
//! A [`Disk`](disk::Disk) in memory is shown as a file by a small FUSE file system ([`fuse`]); a loop device on that file carries
//! ext4, XFS or btrfs ([`mount`]). The disk records writes, flushes, discards, and a mark for each 250 *after* the client
//! received it ([`log`]). From one recording, [`campaign`] builds any number of disks that a power cut may leave: what was flushed is there,
//! the rest kept, dropped or torn at sectors. Each is mounted, the server started on it, and every message accounted for
//! ([`account`]); and what reached the disk meanwhile is cut again.
#![forbid(unsafe_code)]

pub mod account;
pub mod campaign;
pub mod disk;
pub mod faults;
pub mod fuse;
pub mod hostile;
pub mod image;
pub mod kill;
pub mod load;
pub mod log;
pub mod mailboxes;
pub mod mount;
pub mod peers;
pub mod recorded;
pub mod relay;
pub mod rig;
pub mod selftest;
pub mod server;
