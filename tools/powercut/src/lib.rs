//! Cuts the power under a mail server, on real file systems, as often as one likes, and accounts for every message.
//!
//! Shows that a server keeps what it acknowledged, in this project's own checks. The server is a program that is
//! started and spoken to over SMTP, so the rig works with any other that delivers into Maildirs. Not published.
//!
//! A small FUSE file system ([`fuse`]) shows a [`Disk`](disk::Disk) in memory as a file. A loop device on that file
//! carries ext4, XFS or btrfs ([`mount`]). The disk records writes, flushes, discards, and a mark for each 250 *after*
//! the client received it ([`log`]). [`campaign`] builds from one recording any number of disks that a power cut may
//! leave. Flushed writes are there; the rest is kept, dropped or torn at sectors. Each disk is mounted, the server
//! started on it, and every message accounted for ([`account`]). The recovery is recorded and cut again.
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
