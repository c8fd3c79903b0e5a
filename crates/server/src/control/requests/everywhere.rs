//! Requests about the queues of all nodes of a cluster. The asked node collects the parts of the others and merges
//! them. The last line says how many have answered. A message belongs to one shard, so only the shard's owner is asked
//! about it.

mod list;
mod parts;
mod round;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use posthaste_admin::AskRefusal;
use posthaste_control::{By, CountLine, Doing, NodeAnswers, Request, SummaryEnd, SuppressionFilter, Which};
use posthaste_spool::Lsn;
use serde_json::{Value, json};

use self::parts::{add_numbers, merge_summaries};
use self::round::{PeerPart, PeerQuestion, Round};
use super::answering::{OpenRequest, as_json};
use super::asker::Asker;
use super::queues::merge_scope;
use super::this_node::{self, is_other};
use super::{scopes, shared};
use crate::receive::cluster::{NodeControl, OtherNodes};
use crate::receive::handler::Receiver;

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

/// This node's part. Lines beyond `bytes_max` are left out.
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
    let outcome = this_node::perform(OpenRequest { request, asker, receiver, answer: &take });
    let (lines, _, has_more) = taken.into_inner();
    match outcome {
        Ok(end) => PeerPart { lines, end, has_more, error: None },
        Err(AskRefusal::Refused(why) | AskRefusal::Unknown(why)) => PeerPart::failed(&why),
        // Numbers are compared by the node that passes the request on.
        Err(AskRefusal::Changed { .. }) => PeerPart::failed("it was changed meanwhile"),
    }
}

/// The refusal of a request whose selection, on all nodes, is no longer what was shown.
pub(super) fn changed(node: &dyn NodeControl, open: OpenRequest<'_>) -> Option<AskRefusal> {
    let (expected, of, action) = match open.request {
        Request::Act { of, action, expect, .. } => ((*expect)?, of.clone(), *action),
        // Which mail hosts a recipient has is known for some only. No transport has mail that could be put on hold.
        Request::Suspend { scope, expect, .. } | Request::Divert { scope, expect, .. } if scope.site.is_none() => {
            ((*expect)?, scopes::which(scope), Doing::Hold)
        }
        _ => return None,
    };
    let count = OpenRequest { request: &Request::Count { of, action }, answer: &|_| true, ..open };
    let end = perform(node, count).ok()?;
    let now = end["done"].as_u64().unwrap_or_default();
    is_other(expected, now).then_some(AskRefusal::Changed { expected, now })
}

/// Answers for all nodes. Blocks, for hardly longer than the slowest node or the patience with it.
pub(super) fn perform(node: &dyn NodeControl, open: OpenRequest<'_>) -> Result<Value, AskRefusal> {
    let OpenRequest { request, asker, receiver, answer } = open;
    let own =
        |request: &Request| Some(own_part(receiver, request, &Asker { is_peer: true, ..asker.clone() }, usize::MAX));
    let others = node.others();
    if let Some(message) = message_of(request) {
        return match owner_elsewhere(receiver, others, message) {
            Some(owner) => of_owner(others, owner, open),
            None => this_node::perform(open),
        };
    }
    if let Request::Suppressions { of } = request {
        return suppressions(node, of, open);
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

/// The busiest domains of all nodes, or of a tenant's mail there. `None`: this is not a node of a cluster, or nobody answers. Blocks.
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
    let asker = Asker { tenant, ..Asker::default() };
    let end = perform(&**node, OpenRequest { request: &request, asker: &asker, receiver, answer: &take }).ok()?;
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

fn of_owner(others: &dyn OtherNodes, owner: String, open: OpenRequest<'_>) -> Result<Value, AskRefusal> {
    let OpenRequest { request, asker, answer, .. } = open;
    let shard = message_of(request).map_or(0, Lsn::shard);
    let mut round = Round::of_node(others, owner.clone(), asker);
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
fn suppressions(node: &dyn NodeControl, of: &SuppressionFilter, open: OpenRequest<'_>) -> Result<Value, AskRefusal> {
    let end = shared::perform(node, open).map_err(AskRefusal::Refused)?;
    let mut done = end["done"].as_u64().unwrap_or_default();
    let mut round = Round::begin(node.others(), open.asker);
    let parts = round.whole(open.request, &|_| Some(PeerPart::default()))?;
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
            if !(open.answer)(line) {
                break;
            }
        }
    }
    Ok(round.end(json!({ "done": done })))
}

/// Names asked for at each node, for each that is shown.
const NAMES_FOR_EACH: u32 = 4;
/// Bytes of the lines of a part, well below the bound of an answer between nodes.
const PART_BYTES_MAX: usize = 700 << 10;
