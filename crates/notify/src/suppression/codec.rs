//! An entry in the file. The key is the tenant, a zero octet and the address; addresses of a tenant lie together.
//!
//! The value: version (u8: 1), source (u8: 0 operator, 1 bounce, 2 complaint), added and expires (u64 each,
//! little-endian, Unix seconds; expires 0 for never), and the reason in UTF-8.

use posthaste_smtp::ForwardPath;
use serde::{Deserialize, Serialize};

/// An entry of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suppressed {
    /// The address, whatever the case of letters.
    pub address: String,
    /// The tenant; empty: everybody.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The cause of the entry.
    #[serde(default)]
    pub source: SuppressionSource,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it was added, in Unix seconds.
    #[serde(default)]
    pub added: u64,
    /// When it ends, in Unix seconds; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

impl Suppressed {
    /// Checks that it can be on a list.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<(), SuppressionEntryError> {
        encode(self).map(drop)
    }

    /// True before its expiry. `now` in Unix seconds.
    pub fn is_valid(&self, now: u64) -> bool {
        self.lasts() > now
    }

    /// The time of expiry, in Unix seconds.
    pub fn lasts(&self) -> u64 {
        self.expires.unwrap_or(u64::MAX)
    }
}

/// The cause of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuppressionSource {
    /// A person, or an import.
    #[default]
    Operator,
    /// A host's reply that the address does not exist.
    Bounce,
    /// A complaint of the recipient.
    Complaint,
}

/// The reason why something cannot be on a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuppressionEntryError {
    /// Not an address.
    #[error("`{0}` is not an address")]
    Address(String),
    /// The tenant is too long, or has control characters.
    #[error("`{0}` cannot name a tenant")]
    Tenant(String),
}

/// Longest name of a tenant, in octets.
pub const TENANT_BYTES_MAX: usize = 255;
/// Longest reason, in octets; the rest is cut.
pub const REASON_BYTES_MAX: usize = 500;
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 18;

/// The form in which addresses are compared: lower case, no final dot.
pub(super) fn canonical(address: &str) -> String {
    address.trim().trim_end_matches('.').to_lowercase()
}

pub(super) fn key(tenant: &str, address: &str) -> String {
    format!("{tenant}\0{}", canonical(address))
}

pub(super) fn encode(entry: &Suppressed) -> Result<(String, Vec<u8>), SuppressionEntryError> {
    let Suppressed { address, tenant, source, reason, added, expires } = entry;
    let is_address =
        ForwardPath::parse(&format!("<{}>", canonical(address))).is_ok_and(|path| path.address().is_some());
    if !is_address {
        return Err(SuppressionEntryError::Address(address.chars().take(100).collect()));
    }
    if tenant.len() > TENANT_BYTES_MAX || tenant.contains(char::is_control) {
        return Err(SuppressionEntryError::Tenant(tenant.chars().take(100).collect()));
    }
    let source = match source {
        SuppressionSource::Operator => 0,
        SuppressionSource::Bounce => 1,
        SuppressionSource::Complaint => 2,
    };
    let mut value = vec![VERSION, source];
    value.extend(added.to_le_bytes());
    value.extend(expires.unwrap_or(0).to_le_bytes());
    let reason = reason.replace(char::is_control, " ");
    value.extend(&reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES_MAX)]);
    Ok((key(tenant, address), value))
}

/// Decodes an entry. `None`: damaged, or of a later version.
pub(super) fn decode(key: &str, value: &[u8]) -> Option<Suppressed> {
    let (tenant, address) = key.split_once('\0')?;
    let (head, reason) = value.split_at_checked(HEAD_BYTES)?;
    let source = match head[..2] {
        [VERSION, 0] => SuppressionSource::Operator,
        [VERSION, 1] => SuppressionSource::Bounce,
        [VERSION, 2] => SuppressionSource::Complaint,
        _ => return None,
    };
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight octets"));
    Some(Suppressed {
        address: address.to_owned(),
        tenant: tenant.to_owned(),
        source,
        reason: std::str::from_utf8(reason).ok()?.to_owned(),
        added: number(2),
        expires: Some(number(10)).filter(|expires| *expires != 0),
    })
}
