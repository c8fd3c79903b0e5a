//! Logins in sessions of SMTP: what a session keeps of one, and what a client is told that has none.

use std::sync::Arc;

use posthaste_accounts::{Login, LoginFailure, PasswordHash};
use posthaste_directory::Directory;
use posthaste_smtp::{Reply, ReversePath, driver};

/// A session of this server. Its state is what the password of its login was checked against, so that a login ends with its password.
pub(crate) type Session = driver::Session<Option<Arc<PasswordHash>>>;

/// The reply to AUTH.
pub(crate) fn refusal(failure: LoginFailure) -> Reply {
    match failure {
        LoginFailure::Wrong(_) => Reply::new(535, "5.7.8", "Authentication credentials invalid"),
        LoginFailure::Blocked => {
            Reply::new(421, "4.7.0", "Too many wrong passwords from your address, try again later")
        }
        LoginFailure::Busy => Reply::new(454, "4.7.0", "Passwords cannot be checked now, try again later"),
    }
}

/// Whether a login may send mail from there. Notifications have no sender, and everybody may send them.
pub(crate) fn may_send_as(login: &Login, name: &str, sender: &ReversePath, directory: &Directory) -> bool {
    *sender == ReversePath::Null || login.may_send_as(sender.address(), name, directory)
}
