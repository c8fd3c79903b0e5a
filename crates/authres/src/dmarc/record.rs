/// The treatment that a domain asks for mail that is not its own (RFC 9989 section 4.7), the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// No special treatment.
    None,
    /// Treat as suspicious.
    Quarantine,
    /// Refused.
    Reject,
}

impl Policy {
    /// Its name in a record.
    pub fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Quarantine => "quarantine",
            Policy::Reject => "reject",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Policy::None, Policy::Quarantine, Policy::Reject]
            .into_iter()
            .find(|known| text.eq_ignore_ascii_case(known.name()))
    }

    /// The next milder policy.
    pub(super) fn milder(self) -> Self {
        match self {
            Policy::Reject => Policy::Quarantine,
            _ => Policy::None,
        }
    }
}

/// A record of `_dmarc.DOMAIN`. Other tags, such as `pct`, `rf` and `ri`, are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmarcRecord {
    /// `p=`
    pub policy: Policy,
    /// `sp=`, for domains below.
    pub below: Option<Policy>,
    /// `np=`, for domains below that do not exist; defaults to `sp=`.
    pub missing: Option<Policy>,
    /// `psd=`: true for a public suffix, false for an organisational domain.
    pub is_public_suffix: Option<bool>,
    /// `t=y`
    pub is_test: bool,
    /// `adkim=s`
    pub is_dkim_strict: bool,
    /// `aspf=s`
    pub is_spf_strict: bool,
}

impl DmarcRecord {
    /// Parses a record (RFC 9989 section 4.7). `None`: other text, or no policy that can be understood. The first of
    /// two equal tags counts.
    pub fn parse(text: &str) -> Option<Self> {
        let is_blank = |letter: char| matches!(letter, ' ' | '\t');
        let mut tags = text.split(';').take(TAGS_MAX).map(|tag| {
            let (name, value) = tag.split_once('=').unwrap_or((tag, ""));
            (name.trim_matches(is_blank), value.trim_matches(is_blank))
        });
        if tags.next()? != ("v", "DMARC1") {
            return None;
        }
        let tags: Vec<(&str, &str)> = tags.collect();
        let tag = |name: &str| tags.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
        let is = |name: &str, wanted: &str| tag(name).is_some_and(|value| value.eq_ignore_ascii_case(wanted));
        let optional = |name: &str| tag(name).map_or(Ok(None), |value| Policy::parse(value).map(Some).ok_or(()));
        // Without `p` it is as with `p=none`.
        let policies =
            optional("p").and_then(|policy| Ok((policy.unwrap_or(Policy::None), optional("sp")?, optional("np")?)));
        let (policy, below, missing) = match policies {
            Ok(policies) => policies,
            // Someone wants reports, so there is a record (RFC 9989 section 4.10.1).
            Err(()) if tag("rua").is_some_and(|rua| rua.to_ascii_lowercase().contains("mailto:")) => {
                (Policy::None, None, None)
            }
            Err(()) => return None,
        };
        let is_public_suffix = if is("psd", "y") {
            Some(true)
        } else if is("psd", "n") {
            Some(false)
        } else {
            None
        };
        Some(Self {
            policy,
            below,
            missing,
            is_public_suffix,
            is_test: is("t", "y"),
            is_dkim_strict: is("adkim", "s"),
            is_spf_strict: is("aspf", "s"),
        })
    }
}

/// Maximum tags read.
const TAGS_MAX: usize = 64;
