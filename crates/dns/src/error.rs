/// Why a domain has no host to connect to. Each text is for a DSN.
///
/// All recipients of the domain share it. [`is_final`](Self::is_final) decides between a bounce and a retry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DnsError {
    /// The text is not a domain, and no address literal of RFC 5321 section 4.1.3.
    #[error("`{0}` is not a domain")]
    NotADomain(String),
    /// NXDOMAIN.
    #[error("the domain {0} does not exist")]
    NoSuchDomain(String),
    /// A null MX (RFC 7505).
    #[error("the domain {0} accepts no mail")]
    NullMx(String),
    /// No answer in time, or SERVFAIL, REFUSED and the like.
    #[error("DNS has no answer for {name}: {why}")]
    Unanswered {
        /// The name that was asked for.
        name: String,
        /// The resolver's error.
        why: String,
    },
    /// The mail hosts have no address that can be used, and all answers are final.
    #[error("no mail host of {0} has an address")]
    NoAddress(String),
    /// No mail host is better than ourselves (RFC 5321 section 5.1).
    #[error("mail for {0} would come back to this host")]
    Loop(String),
    /// The domain's policy permits none of its mail hosts (RFC 8461 section 4.1).
    #[error("the MTA-STS policy of {0} permits none of its mail hosts")]
    NotPermitted(String),
}

impl DnsError {
    /// The enhanced status code (RFC 3463, RFC 7505 section 4).
    pub fn status(&self) -> &'static str {
        match self {
            DnsError::NotADomain(_) | DnsError::NoSuchDomain(_) => "5.1.2",
            DnsError::NullMx(_) => "5.1.10",
            DnsError::Unanswered { .. } => "4.4.3",
            DnsError::NoAddress(_) => "5.4.4",
            DnsError::Loop(_) => "5.4.6",
            DnsError::NotPermitted(_) => "4.7.5",
        }
    }

    /// True if a later attempt is pointless.
    pub fn is_final(&self) -> bool {
        !matches!(self, DnsError::Unanswered { .. } | DnsError::NotPermitted(_))
    }
}

/// Why a resolver cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Without `servers`, `/etc/resolv.conf` names them.
    #[error("/etc/resolv.conf: {0}")]
    System(String),
    /// The hosts file cannot be read.
    #[error("{path}: {error}")]
    HostsFile {
        /// Path of the file.
        path: std::path::PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A line of the hosts file is not an address and names.
    #[error("{path}, line {line}: not an address followed by names")]
    HostsLine {
        /// Path of the file.
        path: std::path::PathBuf,
        /// From 1.
        line: usize,
    },
    /// A name in `hosts` or in the hosts file.
    #[error("`{0}` is not a host name")]
    HostName(String),
}
