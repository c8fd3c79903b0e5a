//! Input that tries to be two things at once: end-of-data look-alikes, refused chunks, endless lines, STARTTLS.

#[path = "../common/mod.rs"]
mod common;

mod chunks;
mod limits;
mod look_alikes;
mod replies;
mod support;
