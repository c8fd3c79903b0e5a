//! Whether everything that was acknowledged is there: once for each recipient, octet for octet.

mod compare;
mod ledger;

pub use compare::{Account, AccountError, Copies, Finding, account};
pub use ledger::{Expected, Ledger, LedgerError, MESSAGES_MAX};
