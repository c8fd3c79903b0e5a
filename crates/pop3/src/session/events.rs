//! Settings, events and answers of a session.

use posthaste_scram::{ScramFirst, ScramProof};

/// Settings of a session.
#[derive(Debug, Clone)]
pub struct Pop3Config {
    /// Our name in the greeting.
    pub host_name: String,
    /// Offer STLS. Set it only if the driver can do the handshake.
    pub stls: bool,
    /// Logins need TLS even from this machine.
    pub needs_tls: bool,
    /// Bounds of a session.
    pub limits: Pop3Limits,
}

impl Pop3Config {
    /// Default settings with this host name.
    pub fn new(host_name: impl Into<String>) -> Self {
        Self { host_name: host_name.into(), stls: false, needs_tls: false, limits: Pop3Limits::default() }
    }
}

/// Bounds of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pop3Limits {
    /// Maximum octets of a line with its end. RFC 2449 requires 255; passwords of AUTH may be longer. Default 4 KiB.
    pub line_bytes: usize,
    /// Maximum consecutive invalid commands; then the client is disconnected. Default 20.
    pub errors: u32,
}

impl Default for Pop3Limits {
    fn default() -> Self {
        Self { line_bytes: 4 << 10, errors: 20 }
    }
}

/// Maximum messages of a session: from a larger mailbox, a driver lists the oldest ones.
pub const MESSAGES_MAX: u32 = 1_000_000;

/// Requests of the machine to its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Pop3Event {
    /// Everything in the buffer is done: write the output, then read more.
    NeedInput,
    /// The output is large: write it, then continue.
    Flush,
    /// Write the output and close. There is no further output.
    Close,
    /// *Asks*: write the output, do the handshake, then call [`Pop3Machine::tls_started`](super::Pop3Machine::tls_started). The input is empty.
    StartTls,
    /// *Asks*: answer with [`Pop3Machine::logged_in`](super::Pop3Machine::logged_in).
    Login(Pop3Credentials),
    /// *Asks* for the user's keys at the start of an exchange. Answer with [`Pop3Machine::scram_begun`](super::Pop3Machine::scram_begun).
    ScramKeys(Box<ScramFirst>),
    /// *Asks* to verify the proof of a password. Answer with [`Pop3Machine::scram_checked`](super::Pop3Machine::scram_checked).
    ScramProof(Box<ScramProof>),
    /// The messages for the following [`Pop3Event::NextRow`]: numbers from `first` to `last`, inclusive. `sizes`: sizes
    /// are needed.
    Rows { first: u32, last: u32, sizes: bool },
    /// *Asks* for the next of these messages. Answer with [`Pop3Machine::row`](super::Pop3Machine::row).
    NextRow,
    /// *Asks* for the length of a message, which will be read next. Answer with [`Pop3Machine::opened`](super::Pop3Machine::opened).
    Open { message: u32 },
    /// *Asks* for octets of the open message from `from` on, as many as fit. Answer with [`Pop3Machine::octets`](super::Pop3Machine::octets).
    Read { from: u64 },
    /// *Asks* to set `\Seen` on the messages of [`Pop3Machine::retrieved`](super::Pop3Machine::retrieved), and to remove those of [`Pop3Machine::deleted`](super::Pop3Machine::deleted), all or none, durably.
    /// Answer with [`Pop3Machine::updated`](super::Pop3Machine::updated).
    Update,
}

/// Credentials of a client.
#[derive(Clone, PartialEq, Eq)]
pub struct Pop3Credentials {
    /// Login that the password is for.
    pub user: String,
    /// The password.
    pub password: String,
    /// The authorization identity (PLAIN); `None`: the login itself.
    pub acts_for: Option<String>,
}

/// Without the password.
impl std::fmt::Debug for Pop3Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pop3Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Why a login failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pop3LoginRefusal {
    /// Wrong name or password: `-ERR [AUTH]` (RFC 3206).
    Wrong,
    /// Passwords cannot be checked now: `-ERR [SYS/TEMP]`. Clients then do not ask for another password.
    Busy,
    /// The password is right, and the mailbox cannot be opened: `-ERR [SYS/TEMP]`.
    Unavailable,
    /// Too many wrong guesses from the client's address: the connection ends.
    Blocked,
}

/// Why a message cannot be read or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pop3Refusal {
    /// Another session has removed it.
    Gone,
    /// A temporary failure: `-ERR [SYS/TEMP]`.
    Unavailable,
    /// A failure that needs the operator: `-ERR [SYS/PERM]`.
    Impossible,
}

/// A message of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pop3Row {
    /// Message number in this session.
    pub message: u32,
    /// Size in octets, if requested and known.
    pub size: Option<u64>,
    /// Its unique-id (RFC 1939 section 7): 1 to 70 characters from 0x21 to 0x7E.
    pub unique_id: String,
}
