use std::time::Duration;

/// Time limits of a session (decision 16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImapTimeouts {
    /// From the connection to the login, handshake included. Default 60 s.
    pub login: Duration,
    /// Timeout without a command. IDLE is unlimited. Default 30 min.
    pub idle: Duration,
    /// Longest stall of the client: output that it does not read, or an APPEND without a new octet. Default 2 min.
    pub write: Duration,
    /// Timeout of one search. Default 10 s.
    pub search: Duration,
    /// Timeout of one SORT or THREAD, which read the headers of all messages. Default 60 s.
    pub order: Duration,
    /// Interval of progress responses during SORT and THREAD. Default 10 s.
    pub progress: Duration,
    /// Interval between two signs of life in IDLE. Default 2 min.
    pub still_here: Duration,
    /// Interval of checks of the mailbox in IDLE, besides the store's own notifications. Default 30 s.
    pub idle_look: Duration,
    /// Time for which the client's octets are read after the last response. Default 1 s.
    pub linger: Duration,
}

impl Default for ImapTimeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            login: secs(60),
            idle: secs(30 * 60),
            write: secs(120),
            search: secs(10),
            order: secs(60),
            progress: secs(10),
            still_here: secs(120),
            idle_look: secs(30),
            linger: secs(1),
        }
    }
}
