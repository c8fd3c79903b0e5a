//! Logins of a mail server: the file of passwords, the defence against guessing, quotas of recipients.
//!
//! For any server that has logins. It knows no protocol: the caller turns a [`LoginFailure`] into its reply.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod account_guesses;
mod gate;
mod guesses;
mod known;
mod last_uses;
mod login_use;
mod logins;
mod logins_file;
mod password;
mod quotas;
mod remembered;

pub use gate::{Guessed, LoggedIn, LoginGate, LoginStatus, PasswordClaim};
pub use guesses::GuessingClient;
pub use last_uses::LastUse;
pub use login_use::{LoginFailure, LoginOrigin, LoginUse};
pub use logins::{AuthorRight, Login, LoginSecrets, Logins, LoginsError};
pub use logins_file::{ChangeLoginsError, LoginEntry, LoginsFile};
pub use password::{
    HashError, NEW_PASSWORD_ALPHABET, NEW_PASSWORD_LETTERS, PASSWORD_BYTES_MAX, PasswordError, PasswordHash,
    hash_password, new_password, scram_keys,
};
pub use quotas::{QuotaReached, Quotas};
