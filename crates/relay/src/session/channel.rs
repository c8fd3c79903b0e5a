//! Protection of a session.

/// The protection of a session, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Readable by everybody on the path.
    Clear,
    /// TLS without a verified name: readable by an active attacker.
    Encrypted,
    /// TLS with a verified name.
    Verified,
}
