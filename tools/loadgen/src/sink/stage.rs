//! The stages of a session at which an answer is given.

/// A stage of a session at which an answer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// In place of the greeting.
    Connect,
    /// HELO, EHLO or LHLO.
    Ehlo,
    /// MAIL.
    Mail,
    /// RCPT.
    Rcpt,
    /// DATA, before 354. BDAT has no such stage.
    Data,
    /// After the message.
    EndOfData,
}

impl Stage {
    /// All stages, in their order.
    pub const ALL: [Self; 6] = [Self::Connect, Self::Ehlo, Self::Mail, Self::Rcpt, Self::Data, Self::EndOfData];

    /// Name in rule files, options and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Ehlo => "ehlo",
            Self::Mail => "mail",
            Self::Rcpt => "rcpt",
            Self::Data => "data",
            Self::EndOfData => "end-of-data",
        }
    }
}
