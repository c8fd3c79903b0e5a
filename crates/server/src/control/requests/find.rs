//! Stories of mail, from the event log.

use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_directory::Directory;
use posthaste_events::packed_name;
use posthaste_events::story::{StoriesFound, Wanted, Within, search};
use serde_json::json;

use super::answering::{Answer, Outcome};

/// The search of a request.
pub(super) fn wanted(directory: &Directory, what: Option<&String>, user: Option<&String>, events: &[String]) -> Wanted {
    match (what, user) {
        (Some(what), _) => Wanted::Named(what.clone()),
        (None, Some(user)) => Wanted::User(directory.login_name(user).unwrap_or_else(|| user.clone())),
        (None, None) => Wanted::Newest(events.to_vec()),
    }
}

/// Bounds of the search in the log.
pub(super) struct Bounds<'a> {
    /// Maximum age in seconds.
    pub secs: Option<u64>,
    /// Maximum number of messages.
    pub limit: Option<u32>,
    /// Only this tenant's mail.
    pub tenant: Option<&'a str>,
}

/// Messages that fit, the newest first, a line for each with its events.
pub(super) fn find(events: Option<&Path>, wanted: &Wanted, bounds: &Bounds<'_>, answer: Answer<'_>) -> Outcome {
    let dir = events.ok_or("the event log is off: `enabled = false` in [events]")?;
    let most = bounds.limit.unwrap_or(MESSAGES).clamp(1, MESSAGES_MAX) as usize;
    let tenant = bounds.tenant.map(str::to_owned);
    let within = Within { tenant, ..Within::last(bounds.secs, most, Instant::now() + PATIENCE) };
    let found = search(dir, wanted, &within).map_err(|error| format!("{}: {error}", dir.display()))?;
    let StoriesFound { stories, is_cut, is_late, damaged } = found;
    let count = stories.len();
    let _ = stories.iter().rev().all(|(message, events)| answer(json!({ "message": message, "events": events })));
    let damaged: Vec<String> = damaged.into_iter().map(packed_name).collect();
    Ok(json!({ "done": count, "cut": is_cut, "late": is_late, "damaged": damaged }))
}

const MESSAGES: u32 = 100;
const MESSAGES_MAX: u32 = 1000;
/// Timeout for a large log: then the answer has only older lines.
const PATIENCE: Duration = Duration::from_secs(20);
