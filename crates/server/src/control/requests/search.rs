//! Words in mail, found with the search index.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_search::query::{Leaf, Query};
use posthaste_search::state::StateError;
use posthaste_search::{FoundMessage, IndexError, SearchPlan, Searcher};
use serde_json::{Value, json};

use super::answering::{Answer, Outcome};
use super::mail::short;
use crate::receive::handler::Receiver;

/// A part of the results.
pub(super) struct Part {
    /// Maximum age in seconds, by date.
    pub secs: Option<u64>,
    /// Number of the newest results to skip.
    pub skip: u32,
    /// Maximum number of messages.
    pub limit: Option<u32>,
}

/// Messages that match, the newest first, a line for each.
pub(super) fn search(receiver: &Receiver, query: &str, part: &Part, answer: Answer<'_>) -> Outcome {
    let settings = receiver.settings();
    let dir = settings.search.as_deref().ok_or("mail is not indexed: set `index = true` in [search]")?;
    let searcher = Searcher::open(dir).map_err(|error| match error {
        IndexError::State(StateError::Missing(_)) => "the search index is not ready yet".to_owned(),
        error => error.to_string(),
    })?;
    let query = searcher.query(query).map_err(|error| error.to_string())?;
    let query = match part.secs {
        None => query,
        Some(secs) => Query::And(vec![query, Query::Leaf(Leaf::Date(since(secs)..i64::MAX))]),
    };
    let limit = part.limit.unwrap_or(ROWS_MAX).clamp(1, ROWS_MAX);
    let limit = limit as usize;
    let skip = part.skip.min(SKIP_MAX) as usize;
    let plan = SearchPlan { offset: skip, limit: Some(limit), ..SearchPlan::default() };
    let failed = |error: IndexError| error.to_string();
    let found = plan.page(&searcher, &query).map_err(failed)?;
    let is_full = found.len() == limit && skip + limit <= SKIP_MAX as usize;
    // As the index names its trees.
    let mail = std::path::absolute(&settings.mail).unwrap_or_else(|_| settings.mail.clone());
    let messages = searcher.messages(&found).map_err(failed)?;
    let lines = messages.iter().filter_map(|message| line_of(message, &mail));
    let done = lines.take_while(|line| answer(line.clone())).count();
    let next = is_full.then_some(skip + limit);
    Ok(json!({ "done": done, "next": next, "index": dir.display().to_string() }))
}

/// `None` for a file outside the mail directory: the index may cover other mail, too.
fn line_of(message: &FoundMessage, mail: &Path) -> Option<Value> {
    let name = message.path.file_name()?.to_str()?;
    let mailbox = message.path.parent()?.parent()?.strip_prefix(mail).ok()?.to_str()?;
    Some(json!({
        "mailbox": mailbox,
        "name": name.split(':').next()?,
        "date": message.date,
        "from": short(&message.head.from),
        "to": short(&message.head.to),
        "subject": short(&message.head.subject),
    }))
}

fn since(secs: u64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(now.saturating_sub(secs)).unwrap_or(i64::MAX)
}

const ROWS_MAX: u32 = 100;
/// Results that can be skipped; to see more, narrow the search.
const SKIP_MAX: u32 = 10_000;
