//! Sessions over sockets, with feature `tokio`: a [`Pop3Service`] for the listeners of `posthaste-net`.

mod serve;
mod service;

pub use service::{Pop3Authenticator, Pop3Service, Pop3Timeouts};
