//! Messages that are passed over because of a tag, as notmuch does with `search.exclude_tags`.

use clap::{Args, ValueEnum};
use posthaste_search::query::{Leaf, Pattern, Query};
use posthaste_search::{Bitmap, Searcher};

use crate::search_common::Failure;

#[derive(Args)]
pub struct Exclude {
    /// Tags of messages that are not found unless the query names the tag
    #[arg(
        long,
        value_name = "TAG,TAG",
        value_delimiter = ',',
        default_value = "deleted,spam",
        env = "POSTHASTE_EXCLUDE_TAGS"
    )]
    exclude_tags: Vec<String>,
    /// Whether they are left out: `all` also where they are part of a thread that was found
    #[arg(long, value_enum, default_value = "true")]
    exclude: Which,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    True,
    All,
    False,
}

impl Exclude {
    /// What matches and is not left out.
    pub fn find(&self, searcher: &Searcher, query: &Query) -> Result<Bitmap, Failure> {
        let found = searcher.find(query)?;
        if self.exclude == Which::False { Ok(found) } else { self.without(searcher, query, found) }
    }

    /// All messages of the threads that have one of these, which `query` found.
    pub fn whole_threads(&self, searcher: &Searcher, query: &Query, found: &Bitmap) -> Result<Bitmap, Failure> {
        let all = searcher.whole_threads(found)?;
        if self.exclude == Which::All { self.without(searcher, query, all) } else { Ok(all) }
    }

    fn without(&self, searcher: &Searcher, query: &Query, mut found: Bitmap) -> Result<Bitmap, Failure> {
        let sets = &searcher.directory().tag_sets;
        for tag in &self.exclude_tags {
            // A tag that no message has costs no look at the messages.
            if sets.iter().any(|set| set.contains(tag)) && !query.names_tag(tag) {
                let mut others = searcher.find(&Query::Leaf(Leaf::Tag(Pattern::Is(tag.clone()))))?;
                others.not();
                found.and(&others);
            }
        }
        Ok(found)
    }
}
