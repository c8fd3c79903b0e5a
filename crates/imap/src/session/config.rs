//! Settings of a session.

use super::names::NameForm;

/// Settings of an [`ImapMachine`](super::ImapMachine).
#[derive(Debug, Clone)]
pub struct ImapConfig {
    /// Our name in the greeting.
    pub host_name: String,
    /// Offer STARTTLS. Set it only if the driver can do the handshake.
    pub starttls: bool,
    /// Offer COMPRESS=DEFLATE. Set it only if the driver can do it.
    pub compress: bool,
    /// Logins need TLS even from this machine.
    pub needs_tls: bool,
    /// The form of mailbox names.
    pub names: NameForm,
    /// The answer to ID, keys and values (RFC 2971). Never empty: Microsoft's cloud gives up without an answer.
    pub id: Vec<(String, String)>,
    /// Bounds of a session.
    pub limits: ImapLimits,
}

impl ImapConfig {
    /// Default settings with this host name.
    pub fn new(host_name: impl Into<String>) -> Self {
        let id = vec![("name".into(), "Posthaste".into())];
        let names = NameForm::default();
        let limits = ImapLimits::default();
        Self { host_name: host_name.into(), starttls: false, compress: false, needs_tls: false, names, id, limits }
    }
}

/// Bounds of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImapLimits {
    /// Octets of a command before login, with its literals. Default 8 KiB.
    pub command_bytes_before_login: usize,
    /// Octets of a command after login, with its literals. Default 64 KiB.
    pub command_bytes: usize,
    /// Maximum consecutive invalid commands; then the client is disconnected. Default 20.
    pub errors: u32,
    /// Octets of a message that are read at once to find its parts. In a longer message, a part cut off there extends
    /// to the end. Default 32 MiB.
    pub structure_bytes: u64,
    /// Maximum octets of an APPEND message. Default 50 MiB.
    pub append_bytes: u64,
    /// Maximum octets that one SORT or THREAD collects. Default 64 MiB.
    pub order_bytes: usize,
}

impl Default for ImapLimits {
    fn default() -> Self {
        Self {
            command_bytes_before_login: 8 << 10,
            command_bytes: 64 << 10,
            errors: 20,
            structure_bytes: 32 << 20,
            append_bytes: 50 << 20,
            order_bytes: 64 << 20,
        }
    }
}
