//! Settings of a session.

use crate::server::Protocol;

/// Settings of a [`Machine`](super::Machine).
#[derive(Debug, Clone)]
pub struct Config {
    /// Client name for EHLO, HELO or LHLO.
    pub helo_name: String,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Transfer of bodies.
    pub transfer: Transfer,
    /// Handling of messages with BODY=8BITMIME for a server that does not offer it.
    pub eight_bit: EightBit,
}

impl Config {
    /// SMTP, with bodies by DATA.
    pub fn new(helo_name: impl Into<String>) -> Self {
        Self {
            helo_name: helo_name.into(),
            protocol: Protocol::Smtp,
            transfer: Transfer::Data,
            eight_bit: EightBit::Send,
        }
    }
}

/// Handling of a message with BODY=8BITMIME where the server does not offer 8BITMIME (RFC 6152 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EightBit {
    /// Send it without the parameter: servers that do not offer it accept octets above 127 all the same.
    #[default]
    Send,
    /// Refuse it here: [`Stage::Local`](super::Stage::Local), 554 5.6.3.
    Refuse,
}

/// Transfer of bodies. BDAT is used only if it was offered and the body is [`MessageBody::Whole`](super::MessageBody::Whole).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfer {
    /// DATA: understood everywhere.
    #[default]
    Data,
    /// BDAT after the first accepted recipient.
    Bdat,
    /// BDAT directly after the recipients, without waiting: one round trip for a message. The body is wasted if no
    /// recipient is accepted.
    BdatAtOnce,
}
