//! The ring's spool on the disk of this machine, one thing in each file.

mod basics;
mod closed;
mod damaged;
mod front;
mod lost_ring;
mod pressure;
mod scrub;
mod snapshots;
mod stuck;
