//! Sessions against all kinds of servers.

mod any_policy;
mod any_server;
mod losses;
mod replies;
mod runs;
mod smuggling;
mod support;
mod timed;
mod tls;
mod verify;
