//! A session as a state machine: octets in, [`ImapEvent`]s and octets out.
//!
//! The owner (a *driver*) calls [`ImapMachine::step`] with its input until the answer is [`ImapEvent::NeedInput`], then
//! writes [`ImapMachine::output`] and reads more. After an event marked *asks* the machine waits for the answer. The
//! machine holds one row, one header or the beginning of one message at a time; the driver sends octets of messages
//! from given positions.

mod answer;
mod append;
mod appending;
mod auth;
mod changes;
mod changing;
mod config;
mod event;
mod fetch;
mod fetching;
mod listing;
mod machine;
mod mail_keys;
mod managing;
mod matching;
mod names;
mod ordering;
mod piece;
mod quota;
mod refuse;
mod rev2;
mod search;
mod searching;
mod select;
mod source;
mod state;
mod threads;
mod vanishing;

pub use crate::command::FlagChange;
pub use answer::{
    AppendedMail, ChangedRow, CopiedMail, DecodedLength, ExpungedRow, ListedName, LoginRefusal, MailChanges, MailQuota,
    MailRefusal, MailboxCounts, SelectedMailbox, StoredMail, ViewRow,
};
pub use config::{ImapConfig, ImapLimits};
pub use event::{
    FlagsUpdate, ImapCredentials, ImapEvent, MailboxChange, MessageChoice, MessageOffer, TextAnswer, TextKey,
};
pub use machine::ImapMachine;
pub use names::NameForm;
