//! Requests about the queues of all nodes of a cluster. The node that is asked asks the others for their parts, and adds them up. The last line has how many have
//! answered. A message is of one shard: its owner alone is asked.

mod list;
mod parts;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use posthaste_admin::AskRefusal;
use posthaste_control::{
    By, CountLine, Doing, NodeAnswers, Request, SummaryEnd, SuppressionFilter, UnansweredNode, Which,
};
use posthaste_spool::Lsn;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::parts::{add_numbers, merge_summaries};
use super::queues::merge_scope;
use super::{Answer, Asker, as_json, is_other, of_this_node, scopes, shared};
use crate::receive::cluster::{NodeControl, OtherNodes};
use crate::receive::handler::Receiver;

/// A request that a node passes on, and for whom.
#[derive(Debug, Serialize, Deserialize)]
struct PeerQuestion {
    request: Request,
    uid: u32,
    token: String,
    tenant: Option<String>,
}

/// The part of a node: the lines of its answer, and the last one.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PeerPart {
    lines: Vec<Value>,
    end: Value,
    /// Further lines did not fit.
    #[serde(default)]
    has_more: bool,
    /// In place of the last line.
    #[serde(default)]
    error: Option<String>,
}

impl PeerPart {
    fn failed(why: &str) -> Self {
        Self { error: Some(why.to_owned()), ..Self::default() }
    }
}

/// True if the queues of all nodes answer it.
pub(super) fn concerns(request: &Request) -> bool {
    matches!(
        request,
        Request::List { .. }
            | Request::Summary { .. }
            | Request::Count { .. }
            | Request::Act { .. }
            | Request::Suspensions {}
            | Request::Diversions {}
            | Request::Divert { .. }
            | Request::Undivert { .. }
            | Request::Suppressions { .. }
    )
}

/// Answers the question of another node. Blocks.
pub(super) fn answer_peer(receiver: Option<&Receiver>, question: &[u8]) -> Bytes {
    let part = match (receiver, serde_json::from_slice(question)) {
        (Some(receiver), Ok(PeerQuestion { request, uid, token, tenant })) if concerns(&request) => {
            let asker = Asker { uid, token, tenant, is_peer: true };
            own_part(receiver, &request, &asker, PART_BYTES_MAX)
        }
        (None, _) => PeerPart::failed("it is stopping"),
        _ => PeerPart::failed("its release does not know this request"),
    };
    serde_json::to_vec(&part).expect("texts and numbers").into()
}

/// This node's part. Lines beyond so many bytes are left out.
fn own_part(receiver: &Receiver, request: &Request, asker: &Asker, bytes_max: usize) -> PeerPart {
    let taken = std::cell::RefCell::new((Vec::new(), 0, false));
    let take = |line: Value| {
        let (lines, bytes, has_more) = &mut *taken.borrow_mut();
        *bytes += if bytes_max < usize::MAX { line.to_string().len() } else { 0 };
        *has_more |= *bytes > bytes_max;
        if !*has_more {
            lines.push(line);
        }
        !*has_more
    };
    let outcome = of_this_node(request, asker, receiver, &take);
    let (lines, _, has_more) = taken.into_inner();
    match outcome {
        Ok(end) => PeerPart { lines, end, has_more, error: None },
        Err(AskRefusal::Refused(why) | AskRefusal::Unknown(why)) => PeerPart::failed(&why),
        // Numbers are compared by the node that passes the request on.
        Err(AskRefusal::Changed { .. }) => PeerPart::failed("it was changed meanwhile"),
    }
}

/// The refusal of a request whose selection, on all nodes, is no longer what was shown.
pub(super) fn changed(
    receiver: &Receiver,
    node: &dyn NodeControl,
    request: &Request,
    asker: &Asker,
) -> Option<AskRefusal> {
    let (expected, of, action) = match request {
        Request::Act { of, action, expect, .. } => ((*expect)?, of.clone(), *action),
        // Which mail hosts a recipient has is known for some only. No transport has mail that could be put on hold.
        Request::Suspend { scope, expect, .. } | Request::Divert { scope, expect, .. } if scope.site.is_none() => {
            ((*expect)?, scopes::which(scope), Doing::Hold)
        }
        _ => return None,
    };
    let end = perform(receiver, node, &Request::Count { of, action }, asker, &|_| true).ok()?;
    let now = end["done"].as_u64().unwrap_or_default();
    is_other(expected, now).then_some(AskRefusal::Changed { expected, now })
}

/// Answers for all nodes. Blocks, for hardly longer than the slowest node or the patience with it.
pub(super) fn perform(
    receiver: &Receiver,
    node: &dyn NodeControl,
    request: &Request,
    asker: &Asker,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    let own =
        |request: &Request| Some(own_part(receiver, request, &Asker { is_peer: true, ..asker.clone() }, usize::MAX));
    let others = node.others();
    if let Some(message) = message_of(request) {
        return match owner_elsewhere(receiver, others, message) {
            Some(owner) => of_owner(others, owner, request, asker, answer),
            None => of_this_node(request, asker, receiver, answer),
        };
    }
    if let Request::Suppressions { of } = request {
        return suppressions(node, of, request, asker, answer);
    }
    let mut round = Round::begin(others, asker);
    match request {
        Request::List { of, limit, after } => {
            let end = list::list(&mut round, &wanted(of, *limit, asker), after.clone(), &own, answer)?;
            Ok(round.end(end))
        }
        Request::Summary { of, by, top } => {
            // A name that has few at one node may have many at another.
            let asked = top.map(|top| top.saturating_mul(NAMES_FOR_EACH));
            let request = Request::Summary { of: of.clone(), by: *by, top: asked };
            let parts = round.whole(&request, &own)?;
            let (lines, end) = merge_summaries(parts, top.map_or(usize::MAX, |top| top as usize));
            let _ = lines.iter().all(|line| answer(as_json(line)));
            Ok(round.end(as_json(&end)))
        }
        Request::Suspensions {} | Request::Diversions {} => {
            let mut lines = Vec::new();
            let parts = round.whole(request, &own)?;
            parts.into_iter().flat_map(|part| part.lines).for_each(|line| merge_scope(&mut lines, line));
            let done = lines.len();
            let _ = lines.into_iter().all(answer);
            Ok(round.end(json!({ "done": done })))
        }
        _ => {
            let parts = round.whole(&without_expected(request), &own)?;
            let is_sum = matches!(request, Request::Count { .. } | Request::Act { .. });
            let end = add_numbers(parts.iter().map(|part| &part.end), is_sum);
            Ok(round.end(end))
        }
    }
}

/// The busiest domains of all nodes, or of a tenant's mail there. `None`: this is no node of a cluster, or nobody answers. Blocks.
pub(crate) fn busiest_domains(
    receiver: &Receiver,
    tenant: Option<&str>,
    top: u32,
) -> Option<(Vec<CountLine>, SummaryEnd, NodeAnswers)> {
    let node = receiver.cluster()?;
    let tenant = tenant.map(str::to_owned);
    let of = Which { tenant: tenant.clone(), ..Which::default() };
    let lines = std::cell::RefCell::new(Vec::new());
    let take = |line: Value| {
        lines.borrow_mut().extend(serde_json::from_value(line));
        true
    };
    let request = Request::Summary { of, by: By::Domain, top: Some(top) };
    let end = perform(receiver, &**node, &request, &Asker { tenant, ..Asker::default() }, &take).ok()?;
    let answers = serde_json::from_value(end["cluster"].clone()).ok()?;
    Some((lines.into_inner(), serde_json::from_value(end).ok()?, answers))
}

/// It was compared with all.
fn without_expected(request: &Request) -> Request {
    let mut request = request.clone();
    if let Request::Act { expect, .. } | Request::Divert { expect, .. } = &mut request {
        *expect = None;
    }
    request
}

fn message_of(request: &Request) -> Option<Lsn> {
    match request {
        Request::List { of, .. }
        | Request::Summary { of, .. }
        | Request::Count { of, .. }
        | Request::Act { of, .. } => of.message,
        _ => None,
    }
}

/// The other node that owns the shard of a message.
fn owner_elsewhere(receiver: &Receiver, others: &dyn OtherNodes, message: Lsn) -> Option<String> {
    if receiver.remote().relay_with(message).is_some() {
        return None;
    }
    others.owner_of(message.shard()).filter(|owner| owner != others.me())
}

fn of_owner(
    others: &dyn OtherNodes,
    owner: String,
    request: &Request,
    asker: &Asker,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    let shard = message_of(request).map_or(0, Lsn::shard);
    let mut round = Round { others, asker, nodes: vec![owner.clone()], answers: NodeAnswers::default() };
    let end = match request {
        Request::List { of, limit, after } => {
            list::list(&mut round, &wanted(of, *limit, asker), after.clone(), &|_| None, answer)
        }
        _ => round.whole(&without_expected(request), &|_| None).map(|parts| {
            let mut end = json!({ "done": 0 });
            for part in parts {
                let _ = part.lines.into_iter().all(answer);
                end = part.end;
            }
            end
        }),
    };
    end.map_err(|refusal| match refusal {
        AskRefusal::Refused(why) => AskRefusal::Refused(format!("{owner}, which owns shard {shard}: {why}")),
        refusal => refusal,
    })
}

fn wanted<'a>(of: &'a Which, limit: Option<u64>, asker: &Asker) -> list::Wanted<'a> {
    // At the socket a list is whole.
    list::Wanted { of, most: limit.unwrap_or(u64::MAX), is_bounded: !asker.token.is_empty() }
}

/// This node's list, and what others have not shared yet.
fn suppressions(
    node: &dyn NodeControl,
    of: &SuppressionFilter,
    request: &Request,
    asker: &Asker,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    let end = shared::perform(node, request, asker, answer).map_err(AskRefusal::Refused)?;
    let mut done = end["done"].as_u64().unwrap_or_default();
    let mut round = Round::begin(node.others(), asker);
    let parts = round.whole(request, &|_| Some(PeerPart::default()))?;
    for line in parts.into_iter().flat_map(|part| part.lines) {
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        let same = SuppressionFilter { tenant: text("tenant"), address: text("address"), ..of.clone() };
        let mut is_known = false;
        let known = node.suppressed(&same, &mut |_| {
            is_known = true;
            false
        });
        known.map_err(AskRefusal::Refused)?;
        if !is_known {
            done += 1;
            if !answer(line) {
                break;
            }
        }
    }
    Ok(round.end(json!({ "done": done })))
}

/// Finds the part of this node; `None`: it is not asked.
type Own<'a> = &'a dyn Fn(&Request) -> Option<PeerPart>;

/// Questions to all nodes, with the nodes that have not answered one.
struct Round<'a> {
    others: &'a dyn OtherNodes,
    asker: &'a Asker,
    /// The other nodes that have answered so far.
    nodes: Vec<String>,
    answers: NodeAnswers,
}

impl<'a> Round<'a> {
    fn begin(others: &'a dyn OtherNodes, asker: &'a Asker) -> Self {
        let nodes = others.list();
        let answers = NodeAnswers { nodes: nodes.len() + 1, ..NodeAnswers::default() };
        Self { others, asker, nodes, answers }
    }

    /// Asks the nodes that have answered so far, and this one by `own`. A part is that of a node, or of this one: `None`.
    fn ask(&mut self, request: &Request, own: Own<'_>) -> Vec<(Option<String>, PeerPart)> {
        let mut parts = Vec::new();
        match own(request) {
            Some(PeerPart { error: Some(why), .. }) => self.note(self.others.me().to_owned(), why),
            Some(part) => parts.push((None, part)),
            None => {}
        }
        let nodes = self.nodes.clone();
        parts.extend(self.ask_nodes(&nodes, request).into_iter().map(|(node, part)| (Some(node), part)));
        parts
    }

    /// Asks these nodes. One that does not answer is noted, and not asked again.
    fn ask_nodes(&mut self, nodes: &[String], request: &Request) -> Vec<(String, PeerPart)> {
        let Asker { uid, token, tenant, .. } = self.asker.clone();
        let question = as_json(&PeerQuestion { request: request.clone(), uid, token, tenant }).to_string();
        let answers = self.others.ask_each(nodes, &question.into(), patience(request));
        let mut parts = Vec::new();
        for (node, answer) in nodes.iter().cloned().zip(answers) {
            let unknown = |_| "its release answers otherwise".to_owned();
            match answer.and_then(|bytes| serde_json::from_slice::<PeerPart>(&bytes).map_err(unknown)) {
                Ok(PeerPart { error: Some(why), .. }) | Err(why) => self.note(node, why),
                Ok(part) => parts.push((node, part)),
            }
        }
        parts
    }

    /// The parts of all nodes that answer.
    ///
    /// # Errors
    /// None does.
    fn whole(&mut self, request: &Request, own: Own<'_>) -> Result<Vec<PeerPart>, AskRefusal> {
        let parts = self.ask(request, own);
        if parts.is_empty() {
            return Err(self.refusal());
        }
        let partial = parts.iter().filter(|(_, part)| part.has_more).filter_map(|(node, _)| node.clone());
        self.answers.partial.extend(partial);
        Ok(parts.into_iter().map(|(_, part)| part).collect())
    }

    fn note(&mut self, node: String, why: String) {
        self.nodes.retain(|known| *known != node);
        self.answers.unanswered.push(UnansweredNode { node, why });
    }

    /// If no node answers: this one's reason comes first.
    fn refusal(&self) -> AskRefusal {
        AskRefusal::Refused(self.answers.unanswered.first().map_or_else(String::new, |of| of.why.clone()))
    }

    /// The last line, with the nodes that have answered.
    fn end(self, mut end: Value) -> Value {
        let mut answers = self.answers;
        answers.answered = answers.nodes.saturating_sub(answers.unanswered.len());
        end["cluster"] = as_json(&answers);
        end
    }
}

/// A change may take longer than a look: one that is not waited for is made all the same.
fn patience(request: &Request) -> Duration {
    match request {
        Request::Act { .. } | Request::Divert { .. } | Request::Undivert { .. } => CHANGE_PATIENCE,
        _ => LOOK_PATIENCE,
    }
}

const LOOK_PATIENCE: Duration = Duration::from_secs(4);
const CHANGE_PATIENCE: Duration = Duration::from_secs(20);
/// Names asked for at each node, for each that is shown.
const NAMES_FOR_EACH: u32 = 4;
/// Bytes of the lines of a part, well below the bound of an answer between nodes.
const PART_BYTES_MAX: usize = 700 << 10;
