//! Accounts for acknowledged messages: each must be stored once for each recipient, octet for octet.

mod compare;
mod ledger;
mod stores;
#[cfg(test)]
mod tests;
mod text;

pub use compare::{Account, Copies, Finding, Waiting, WaitingCopies, account};
pub use ledger::{Expected, Ledger, LedgerFileError, MESSAGES_MAX};
pub use stores::{AccountError, signatures};
