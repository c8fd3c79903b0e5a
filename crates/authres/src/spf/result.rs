//! Results of a check.

use std::fmt;

/// The result of a check (RFC 7208 section 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpfResult {
    /// There is no policy, or no domain.
    None,
    /// The domain makes no statement about the client.
    Neutral,
    /// The client may send.
    Pass,
    /// The client may not send.
    Fail,
    /// The client probably may not send.
    SoftFail,
    /// DNS did not answer.
    TempError,
    /// The policy has a syntax error, or needs too many look-ups.
    PermError,
}

impl SpfResult {
    /// The word of RFC 8601 section 2.7.2.
    pub fn name(self) -> &'static str {
        match self {
            SpfResult::None => "none",
            SpfResult::Neutral => "neutral",
            SpfResult::Pass => "pass",
            SpfResult::Fail => "fail",
            SpfResult::SoftFail => "softfail",
            SpfResult::TempError => "temperror",
            SpfResult::PermError => "permerror",
        }
    }
}

impl fmt::Display for SpfResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
