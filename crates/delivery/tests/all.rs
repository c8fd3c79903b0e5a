//! Mailboxes as a destination, one thing in each file.

mod locate;
mod small_ring;
mod standalone;
