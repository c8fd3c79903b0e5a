//! Maildirs on the disk of this machine, one thing in each file.

mod files;
mod mailbox;
mod prop;
mod tree;
