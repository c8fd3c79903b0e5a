//! The load generator: many client sessions, few system calls, and a strict schedule.
//!
//! One thread drives many connections through an event queue. A session is a state machine without IO, and a worker
//! moves its bytes. The [`Plan`] defines the messages, and [`run`] collects the results.

mod arrivals;
mod client;
mod connection;
mod content;
mod corpus;
mod failure;
mod http;
mod outages;
mod output;
mod plan;
mod replies;
mod run;
mod schedule;
mod session;
mod stop;
mod worker;

pub use arrivals::{Arrivals, Pace};
pub use content::{GENERATED_OCTETS_MAX, Pool};
pub use corpus::{CorpusError, read_corpus};
pub use failure::{Cause, Class, Failure, Stage};
pub use outages::{Kill, Outages, kill_pauses};
pub use plan::{Auth, AuthMechanism, Injecting, Pipelining, Plan, Recipients, Server};
pub use posthaste_smtp::tls::{TlsError, TlsTrust, client_config};
pub use run::{ErrorCount, Outcome, Progress, Round, RunError, fresh_run, run};
pub use stop::Stop;

/// For fuzzing only: code and octets of each reply in a server's output, and true if other octets follow them.
#[doc(hidden)]
pub fn replies_in(mut input: &[u8]) -> (Vec<(u16, usize)>, bool) {
    let mut found = Vec::new();
    loop {
        match replies::next(input) {
            Ok(Some(reply)) => {
                found.push((reply.code, reply.wire.len()));
                input = &input[reply.wire.len()..];
            }
            Ok(None) => return (found, false),
            Err(replies::Garbage) => return (found, true),
        }
    }
}
