//! Rates that all shards share: the owner of a shard is the *home* of some limits, and lends their tokens to all shards.
//!
//! In any window of `W` seconds, all shards together use at most `burst + rate * (W + 0.5)` tokens of a limit, however
//! the network is cut:
//!
//! - A token dies [`VALID`] after its request was sent, by the clock of the borrower. One that dies unused goes back.
//! - The home lends while it owns its shard. It begins without tokens, and with a number of its own: what a shard has
//!   heard from an earlier home counts nothing.
//! - A shard that has heard nothing from a home for [`ALONE`] uses its own share of the rate, and begins without tokens.
//!   It stops as soon as it hears the home.
//! - The home keeps the share of a shard whose requests do not name an answer of the last [`ECHO`]. Whatever that shard
//!   has heard is older than [`ALONE`] before it uses the share.
//!
//! The state machines do no IO. Times are nanoseconds of a [`LeaseClock`](crate::LeaseClock): each side reads its own.
//!
//! [`ALONE`]: rules::ALONE
//! [`ECHO`]: rules::ECHO

mod borrower;
mod frame;
mod home;
mod rules;

pub use borrower::{Borrower, LendingCounts};
pub use frame::{Heard, TokenAnswer, TokenAsk, TokenGrant, TokenRequest, TokensReturned};
pub use home::TokenHome;
pub use rules::{LendingRules, LendingShards, PACE, VALID, limit_key};
