//! Sessions against servers of every temper.

mod losses;
mod replies;
mod support;
