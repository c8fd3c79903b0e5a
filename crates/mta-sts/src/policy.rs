//! The text of a policy (RFC 8461 section 3.2).

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StsPolicy {
    /// The demand on senders.
    pub mode: Mode,
    /// Host names, and patterns such as `*.example.net`, in lower case. Empty in the mode `none`.
    pub hosts: Vec<String>,
    /// Validity in seconds from the fetch, at most a year.
    pub max_age_secs: u64,
}

/// The demand of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Mail is sent to permitted hosts with verified certificates, or not at all.
    Enforce,
    /// Failures may be reported. Mail is sent as without a policy.
    Testing,
    /// `none`: no policy.
    None,
}

/// A text that is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The first field is not `version: STSv1`.
    #[error("it does not begin with `version: STSv1`")]
    Version,
    /// A field is missing, or its value is not allowed.
    #[error("its `{0}` is missing or not allowed")]
    Field(&'static str),
}

impl StsPolicy {
    /// Parses a policy. Unknown fields are ignored. The first of duplicate fields counts.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let mut fields = text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key, value.trim()));
        if fields.next() != Some(("version", "STSv1")) {
            return Err(PolicyError::Version);
        }
        let fields: Vec<(&str, &str)> = fields.collect();
        let one = |name| fields.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let mode = match one("mode") {
            Some("enforce") => Mode::Enforce,
            Some("testing") => Mode::Testing,
            Some("none") => Mode::None,
            _ => return Err(PolicyError::Field("mode")),
        };
        let is_age = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let max_age = one("max_age").filter(is_age).ok_or(PolicyError::Field("max_age"))?;
        let hosts = fields.iter().filter(|(key, _)| *key == "mx" && mode != Mode::None);
        let hosts: Vec<String> = hosts.map(|(_, value)| value.to_ascii_lowercase()).collect();
        if mode != Mode::None && hosts.is_empty()
            || hosts.len() > HOSTS_MAX
            || !hosts.iter().all(|host| is_pattern(host))
        {
            return Err(PolicyError::Field("mx"));
        }
        // More digits than a number has are more than a year.
        let max_age_secs = max_age.parse().unwrap_or(YEAR_SECS).min(YEAR_SECS);
        Ok(Self { mode, hosts, max_age_secs })
    }

    /// The policy's text, without unknown fields.
    pub fn text(&self) -> String {
        let mode = match self.mode {
            Mode::Enforce => "enforce",
            Mode::Testing => "testing",
            Mode::None => "none",
        };
        let hosts: String = self.hosts.iter().map(|host| format!("mx: {host}\n")).collect();
        format!("version: STSv1\nmode: {mode}\n{hosts}max_age: {}\n", self.max_age_secs)
    }

    /// True if the policy permits a mail host, given in lower case and without a final dot (section 4.1). A `*` matches
    /// one label.
    pub fn permits(&self, host: &str) -> bool {
        self.hosts.iter().any(|pattern| match pattern.strip_prefix("*.") {
            Some(above) => host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == above),
            None => pattern == host,
        })
    }
}

fn is_pattern(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

/// The longest time that a policy may ask for (section 3.2).
const YEAR_SECS: u64 = 31_557_600;
/// Far more than any domain has.
const HOSTS_MAX: usize = 100;
/// Octets of a name in DNS (RFC 1035 section 2.3.4).
const NAME_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RFC: &str = "version: STSv1\nmode: enforce\nmx: mail.example.com\nmx: *.example.net\nmx: backupmx.example.com\nmax_age: 604800\n";

    #[test]
    fn the_example_of_the_rfc_is_read() {
        let policy = StsPolicy::parse(RFC).unwrap();
        assert_eq!((policy.mode, policy.max_age_secs), (Mode::Enforce, 604_800));
        assert_eq!(policy.hosts, ["mail.example.com", "*.example.net", "backupmx.example.com"]);
        assert_eq!(StsPolicy::parse(&RFC.replace('\n', "\r\n")).as_ref(), Ok(&policy));
        assert_eq!(policy.text(), RFC);
        let more = RFC.replace("mode", "new: 1\nmode").replace("mx: *", "mode: none\nmx: *");
        assert_eq!(StsPolicy::parse(&more), Ok(policy), "unknown fields, and a second mode, are passed over");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            (String::new(), PolicyError::Version),
            ("mode: enforce\nversion: STSv1\n".into(), PolicyError::Version),
            (RFC.replace("STSv1", "STSv2"), PolicyError::Version),
            (RFC.replace("enforce", "Enforce"), PolicyError::Field("mode")),
            (RFC.replace("mode: enforce\n", ""), PolicyError::Field("mode")),
            (RFC.replace("604800", "-1"), PolicyError::Field("max_age")),
            (RFC.replace("604800", ""), PolicyError::Field("max_age")),
            ("version: STSv1\nmode: enforce\nmax_age: 1\n".into(), PolicyError::Field("mx")),
            (RFC.replace("*.example.net", "*.*.example.net"), PolicyError::Field("mx")),
            (RFC.replace("*.example.net", "*"), PolicyError::Field("mx")),
            (RFC.replace("*.example.net", ""), PolicyError::Field("mx")),
            (RFC.replace("mx: *", &("mx: a\n".repeat(100) + "mx: *")), PolicyError::Field("mx")),
        ] {
            assert_eq!(StsPolicy::parse(&text), Err(expected), "{text}");
        }
        let none = StsPolicy::parse("version: STSv1\nmode: none\nmx: ?\nmax_age: 99999999999999999999999\n").unwrap();
        assert_eq!((none.mode, none.max_age_secs), (Mode::None, YEAR_SECS));
    }

    #[test]
    fn a_star_is_one_label() {
        let policy = StsPolicy::parse(RFC).unwrap();
        let is_permitted = ["mail.example.com", "a.example.net", "backupmx.example.com"];
        let is_not = ["example.com", "example.net", "a.b.example.net", ".example.net", "a.mail.example.com", ""];
        assert!(is_permitted.iter().all(|host| policy.permits(host)));
        assert!(!is_not.iter().any(|host| policy.permits(host)));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,200}", begin in "version: STSv1\n|") {
            let _ = StsPolicy::parse(&(begin + &text)).map(|policy| policy.permits("mx.example"));
        }
    }
}
