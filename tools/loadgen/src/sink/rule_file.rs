//! The rule file as written, and its parser.
//!
//! The reference with examples is docs/sink.md.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_units::words::{Mistake, Position, plain};
use serde::Deserialize;

use super::replies::Provider;
use super::stage::Stage;
use crate::values::{self, ValueError};

impl std::str::FromStr for Stage {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let found = Self::ALL.into_iter().find(|stage| stage.as_str() == text);
        found.ok_or_else(|| RuleError::Stage(text.to_owned()))
    }
}

/// The reason why rules cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{}", Mistake { file: path, position: position.as_ref(), message })]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Position in the file.
        position: Option<Position>,
        /// Description of the mistake.
        message: String,
    },
    /// The stage does not exist.
    #[error("no stage {0}; stages are connect, ehlo, mail, rcpt, data, end-of-data")]
    Stage(String),
    /// The percentages of one stage are negative or add up to more than 100.
    #[error("{0}: percentages, and their sum, must be from 0 to 100")]
    Percent(String),
    /// Not a reply, or not of the required kind.
    #[error("{place}: \"{text}\" is not a {wanted} reply such as \"{example}\"")]
    Reply {
        /// The list with the reply.
        place: String,
        /// The text.
        text: String,
        /// `4yz` or `5yz`.
        wanted: &'static str,
        /// A valid one.
        example: &'static str,
    },
    /// A domain's table has a rule for a stage at which the domain is not known yet.
    #[error("domain.\"{0}\": only [default] can have connect and ehlo: the domain is not known yet")]
    TooEarly(String),
    /// A time range that ends before it begins.
    #[error("{0}: the end of the delay is before its start")]
    Delay(String),
    /// Zero for a value that must be positive.
    #[error("{0} must be more than 0")]
    Zero(&'static str),
}

/// A rule file as written.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct RuleFile {
    /// Selects the messages to refuse. Default 0.
    pub seed: u64,
    /// For every domain without a table of its own, and for stages missing from such a table.
    pub default: DomainRules,
    /// By domain in lower case; `*.example.com` stands for every domain below `example.com`.
    pub domain: BTreeMap<String, DomainRules>,
    /// Greylisting of new mail. Default: none.
    pub greylist: Option<GreylistRule>,
    /// Slow reading of message bodies. Default: as fast as they come.
    pub slow_read: Option<SlowReadRule>,
    /// Limit on messages in one session, then 421 4.7.0. Default: no limit.
    pub messages_max: Option<u32>,
}

/// Rules for one domain's mail.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct DomainRules {
    /// Provider whose texts are used if a stage gives none. Default: that of `[default]`.
    pub provider: Option<Provider>,
    /// In place of the greeting; in `[default]` only.
    pub connect: Option<StageRule>,
    /// HELO, EHLO, LHLO; in `[default]` only.
    pub ehlo: Option<StageRule>,
    /// MAIL; the domain is the sender's.
    pub mail: Option<StageRule>,
    /// RCPT; the domain is the recipient's, from here on.
    pub rcpt: Option<StageRule>,
    /// DATA; the first recipient's domain.
    pub data: Option<StageRule>,
    /// After the message; in SMTP the first recipient's domain, in LMTP each recipient's.
    pub end_of_data: Option<StageRule>,
}

impl DomainRules {
    /// The rule of a stage, for setting it.
    pub fn stage_mut(&mut self, stage: Stage) -> &mut Option<StageRule> {
        match stage {
            Stage::Connect => &mut self.connect,
            Stage::Ehlo => &mut self.ehlo,
            Stage::Mail => &mut self.mail,
            Stage::Rcpt => &mut self.rcpt,
            Stage::Data => &mut self.data,
            Stage::EndOfData => &mut self.end_of_data,
        }
    }

    pub(super) fn stage(&self, stage: Stage) -> Option<&StageRule> {
        match stage {
            Stage::Connect => self.connect.as_ref(),
            Stage::Ehlo => self.ehlo.as_ref(),
            Stage::Mail => self.mail.as_ref(),
            Stage::Rcpt => self.rcpt.as_ref(),
            Stage::Data => self.data.as_ref(),
            Stage::EndOfData => self.end_of_data.as_ref(),
        }
    }
}

/// Rules for one stage. Percentages have two decimals and are exact over each 10,000 decisions.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct StageRule {
    /// Percent answered with 4yz.
    pub tempfail: f64,
    /// Percent answered with 5yz.
    pub permfail: f64,
    /// Percent of connections closed without an answer.
    pub drop: f64,
    /// Delay before every answer.
    pub delay: Delay,
    /// 4yz replies to choose from; empty for the provider's.
    pub tempfail_replies: Vec<String>,
    /// 5yz replies to choose from; empty for the provider's.
    pub permfail_replies: Vec<String>,
}

/// A delay: `"50ms"`, or a range with uniform distribution: `["10ms", "2s"]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenDelay")]
pub struct Delay {
    /// At least.
    pub from: Duration,
    /// At most.
    pub to: Duration,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a time such as \"50ms\", or a list of two")]
enum WrittenDelay {
    Fixed(String),
    Range(String, String),
}

impl TryFrom<WrittenDelay> for Delay {
    type Error = ValueError;

    fn try_from(written: WrittenDelay) -> Result<Self, Self::Error> {
        let (from, to) = match &written {
            WrittenDelay::Fixed(time) => (time, time),
            WrittenDelay::Range(from, to) => (from, to),
        };
        Ok(Self { from: values::duration(from)?, to: values::duration(to)? })
    }
}

/// Greylisting: the first attempt of client address, sender and recipient gets 450 4.2.0 until `wait` is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreylistRule {
    /// Time from the first attempt on.
    #[serde(deserialize_with = "duration")]
    pub wait: Duration,
    /// Limit on remembered attempts; beyond it the oldest are forgotten. Default 1,000,000 (about 60 MB).
    #[serde(default = "GreylistRule::default_entries")]
    pub entries: usize,
}

impl GreylistRule {
    /// Default number of entries.
    pub const fn default_entries() -> usize {
        1_000_000
    }
}

/// Bodies are read in small pieces with pauses between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowReadRule {
    /// Octets in one piece.
    pub octets: usize,
    /// Pause after each piece.
    #[serde(deserialize_with = "duration")]
    pub pause: Duration,
}

fn duration<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(input)?;
    values::duration(&text).map_err(serde::de::Error::custom)
}

/// Describes the right place of a misplaced key.
fn home_of(key: &str) -> Option<String> {
    let home = match key {
        "tempfail" | "permfail" | "drop" | "delay" | "tempfail-replies" | "permfail-replies" => {
            "below a stage, such as [default.rcpt] or [domain.\"a.example\".rcpt]"
        }
        "connect" | "ehlo" => "below [default]",
        "provider" | "mail" | "rcpt" | "data" | "end-of-data" => "below [default] or [domain.\"a.example\"]",
        "wait" | "entries" => "below [greylist]",
        "octets" | "pause" => "below [slow-read]",
        "seed" | "messages-max" => "to the top of the file, before the first table",
        _ => return None,
    };
    Some(home.to_owned())
}

impl RuleFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`RuleError::Read`], [`RuleError::Syntax`].
    pub fn load(path: &Path) -> Result<Self, RuleError> {
        let text = std::fs::read_to_string(path).map_err(|error| RuleError::Read { path: path.to_owned(), error })?;
        Self::parse_file(path, &text)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`RuleError::Syntax`].
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        Self::parse_file(Path::new("rules"), text)
    }

    fn parse_file(path: &Path, text: &str) -> Result<Self, RuleError> {
        toml::from_str(text).map_err(|error| RuleError::Syntax {
            path: path.to_owned(),
            position: error.span().map(|span| Position::of(text, span)),
            message: plain(error.message(), home_of),
        })
    }
}
