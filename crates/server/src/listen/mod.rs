//! Sockets: listeners of SMTP and LMTP, of IMAP and POP3, and the part common to all protocols.

pub(crate) mod bound;
pub(crate) mod listening;
pub(crate) mod reading;
pub(crate) mod rules;
pub(crate) mod text_search;
