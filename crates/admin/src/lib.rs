//! The HTTP side of a mail server: tokens, checks of requests, the API and the page.
//!
//! For any server that has something to show: it implements [`ServerView`]. This crate decides nothing about mail, and
//! does not know how mail is stored.
//!
//! A request passes `guard.rs` (the credential, checks against other sites), `routes.rs` (`authenticate` checks the
//! token, then its scopes and its route), and `ask.rs` (the call of [`ServerView`]). The tokens are in `token_file.rs`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod arrival;
mod ask;
mod authentication;
mod body;
mod client;
mod connection;
mod file_state;
mod guard;
mod heads;
mod history;
mod inject_from;
mod live;
mod login;
mod looks;
mod metrics;
mod openapi;
mod page;
mod rates;
mod routes;
mod scope;
mod service;
mod session;
mod shared;
mod streams;
mod token;
mod token_bounds;
mod token_file;
mod unpack;
mod view;

pub use body::BodyShare;
pub use client::ClientAddress;
pub use guard::HostNames;
pub use heads::{HeadRefusal, Heads};
pub use history::{CHECK_METHODS, CHECK_RESULTS, CheckCounts, Counters};
pub use inject_from::InjectNetworks;
pub use routes::INJECT_PATH;
pub use scope::{Scope, UnknownScope};
pub use service::{AdminApi, AdminService, HttpListener, HttpSettings};
pub use session::{LINK_SECS, PageLinks};
pub use token::{Secret, Token, TokenError, TokenHash, hash as secret_hash, is_page_link};
pub use token_bounds::{TokenBounds, TokenBoundsError};
pub use token_file::{TOKEN_FILE, TokenFile, TokenFileError, TokenFileErrorKind};
pub use view::{
    AskRefusal, Attention, CertificateEnd, DestinationCount, DiskRoom, Distribution, DnsStatus, FollowEvents, Guess,
    InjectCall, InjectReply, PageSelection, PublicFile, QueueStatus, Readiness, RelayStatus, ServerStatus, ServerView,
    StreamStatus, Urgency, WebhookStatus,
};
