//! Options to exclude messages by tag.

use clap::{Args, ValueEnum};
use posthaste_search::Exclusion;

#[derive(Args)]
pub struct Exclude {
    /// Leave out messages with these tags unless the query names the tag
    #[arg(
        long,
        value_name = "TAG,TAG",
        value_delimiter = ',',
        default_value = "deleted,spam",
        env = "POSTHASTE_EXCLUDE_TAGS"
    )]
    exclude_tags: Vec<String>,
    /// Whether to leave them out; `all`: also from matching threads
    #[arg(long, value_enum, default_value = "true")]
    exclude: ExcludeMode,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExcludeMode {
    True,
    All,
    False,
}

impl Exclude {
    /// The exclusion that the options describe.
    pub fn rule(&self) -> Exclusion {
        let tags = if self.exclude == ExcludeMode::False { Vec::new() } else { self.exclude_tags.clone() };
        Exclusion { tags, from_threads: self.exclude == ExcludeMode::All }
    }
}
