//! The list of recipients of all nodes, in the order of the ids of their messages.

use std::collections::VecDeque;

use posthaste_admin::AskRefusal;
use posthaste_control::{Request, Which};
use posthaste_queue::RecipientKey;
use serde_json::{Value, json};

use super::round::{Own, PeerPart, Round};
use crate::control::requests::answering::Answer;
use crate::control::requests::list::key;
use crate::receive::cluster::OtherNode;

/// The wanted part.
pub(super) struct Wanted<'a> {
    pub of: &'a Which,
    /// Maximum number of recipients.
    pub most: u64,
    /// Each node reads only a part of a long queue; the client continues after it.
    pub is_bounded: bool,
}

/// The rows of a node that are not shown yet.
struct Rows {
    /// `None`: this node.
    node: Option<OtherNode>,
    rows: VecDeque<(Place, Value)>,
    /// It may have more after this recipient.
    next: Option<RecipientKey>,
}

/// Recipients at other hosts come first, by their ids; then those of transports.
type Place = (bool, Option<RecipientKey>);

/// Lists up to `most`, after a recipient. Holds one part of each node.
///
/// # Errors
/// No node answers, or `after` is not a recipient.
pub(super) fn list(
    round: &mut Round<'_>,
    wanted: &Wanted<'_>,
    after: Option<String>,
    own: Own<'_>,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    after.as_deref().map(key).transpose().map_err(AskRefusal::Refused)?;
    let parts = round.ask(&wanted.request(after), own);
    if parts.is_empty() {
        return Err(round.refusal());
    }
    let mut all: Vec<Rows> = parts.into_iter().map(|(node, part)| Rows::of(node, part)).collect();
    let mut count = 0;
    loop {
        // Rows beyond it may follow others that no node has told yet.
        let bound = all.iter().filter_map(|rows| rows.next).min();
        let mut ready: Vec<(Place, Value)> = all.iter_mut().flat_map(|rows| rows.up_to(bound)).collect();
        ready.sort_by_key(|(place, _)| *place);
        for ((_, recipient), row) in ready {
            if count == wanted.most || !answer(row) {
                return Ok(json!({ "done": count }));
            }
            count += 1;
            if let (true, Some(recipient)) = (count == wanted.most, recipient) {
                return Ok(json!({ "done": count, "next": id(recipient) }));
            }
        }
        let Some(bound) = bound else { return Ok(json!({ "done": count })) };
        if wanted.is_bounded || count == wanted.most {
            return Ok(json!({ "done": count, "next": id(bound) }));
        }
        let request = wanted.request(Some(id(bound)));
        // Those that have told all up to there.
        let is_asked = |rows: &Rows| rows.next == Some(bound);
        let nodes: Vec<OtherNode> =
            all.iter().filter(|rows| is_asked(rows)).filter_map(|rows| rows.node.clone()).collect();
        let is_own_asked = all.iter().any(|rows| is_asked(rows) && rows.node.is_none());
        all.retain(|rows| !is_asked(rows));
        all.extend(round.ask_nodes(&nodes, &request).into_iter().map(|(node, part)| Rows::of(Some(node), part)));
        if is_own_asked {
            all.extend(own(&request).map(|part| Rows::of(None, part)));
        }
    }
}

impl Wanted<'_> {
    fn request(&self, after: Option<String>) -> Request {
        Request::List { of: self.of.clone(), limit: Some(self.most.min(ROWS_AT_ONCE)), after }
    }
}

impl Rows {
    fn of(node: Option<OtherNode>, part: PeerPart) -> Self {
        let PeerPart { lines, end, has_more, .. } = part;
        let mut rows: VecDeque<(Place, Value)> = lines.into_iter().map(|row| (place(&row), row)).collect();
        let last = rows.back().and_then(|(place, _)| place.1);
        let next = end["next"].as_str().and_then(|id| key(id).ok());
        let next = if has_more { last } else { next };
        if next.is_some() {
            // They come again at the end.
            rows.retain(|(place, _)| place.1.is_some());
        }
        Self { node, rows, next }
    }

    /// The rows up to a recipient; `None`: all.
    fn up_to(&mut self, bound: Option<RecipientKey>) -> Vec<(Place, Value)> {
        let is_before = |place: &Place| bound.is_none_or(|bound| place.1.is_some_and(|recipient| recipient <= bound));
        let count = self.rows.iter().take_while(|(place, _)| is_before(place)).count();
        self.rows.drain(..count).collect()
    }
}

fn place(row: &Value) -> Place {
    let recipient = row["id"].as_str().filter(|_| row["transport"].is_null()).and_then(|id| key(id).ok());
    (recipient.is_none(), recipient)
}

fn id(recipient: RecipientKey) -> String {
    let RecipientKey { message, number } = recipient;
    format!("{message}.{number}")
}

/// Rows of one part of a node.
const ROWS_AT_ONCE: u64 = 1000;
