//! Mailboxes over Maildirs through their traits, one thing in each file.

mod changes;
mod maildirs;
mod view;
