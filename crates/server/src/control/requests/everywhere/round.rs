//! A round of questions to the other nodes, and their answers.

use std::time::Duration;

use posthaste_admin::AskRefusal;
use posthaste_control::{NodeAnswers, Request, UnansweredNode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::requests::answering::as_json;
use crate::control::requests::asker::Asker;
use crate::receive::cluster::{OtherNode, OtherNodes};

/// A request that a node passes on, and for whom.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PeerQuestion {
    pub request: Request,
    pub uid: u32,
    pub token: String,
    pub tenant: Option<String>,
}

/// The part of a node: the lines of its answer, and the last one.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerPart {
    pub lines: Vec<Value>,
    pub end: Value,
    /// Further lines did not fit.
    #[serde(default)]
    pub has_more: bool,
    /// In place of the last line.
    #[serde(default)]
    pub error: Option<String>,
}

impl PeerPart {
    pub fn failed(why: &str) -> Self {
        Self { error: Some(why.to_owned()), ..Self::default() }
    }
}

/// Finds the part of this node; `None`: it is not asked.
pub(super) type Own<'a> = &'a dyn Fn(&Request) -> Option<PeerPart>;

/// Questions to all nodes, with the nodes that have not answered one.
pub(super) struct Round<'a> {
    others: &'a dyn OtherNodes,
    asker: &'a Asker,
    /// The other nodes that have answered so far.
    nodes: Vec<OtherNode>,
    answers: NodeAnswers,
}

impl<'a> Round<'a> {
    pub fn begin(others: &'a dyn OtherNodes, asker: &'a Asker) -> Self {
        let nodes = others.list();
        let answers = NodeAnswers { nodes: nodes.len() + 1, ..NodeAnswers::default() };
        Self { others, asker, nodes, answers }
    }

    /// Questions to one node.
    pub fn of_node(others: &'a dyn OtherNodes, node: String, asker: &'a Asker) -> Self {
        let nodes = vec![OtherNode { name: node, is_silent: false }];
        Self { others, asker, nodes, answers: NodeAnswers::default() }
    }

    /// Asks the nodes that have answered so far, and this one by `own`. Each part comes with its node; `None`: this
    /// one.
    pub fn ask(&mut self, request: &Request, own: Own<'_>) -> Vec<(Option<OtherNode>, PeerPart)> {
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
    pub fn ask_nodes(&mut self, nodes: &[OtherNode], request: &Request) -> Vec<(OtherNode, PeerPart)> {
        let Asker { uid, token, tenant, .. } = self.asker.clone();
        let question = as_json(&PeerQuestion { request: request.clone(), uid, token, tenant }).to_string();
        let answers = self.others.ask_each(nodes, &question.into(), patience(request));
        let mut parts = Vec::new();
        for (node, answer) in nodes.iter().cloned().zip(answers) {
            let unknown = |_| "its release answers otherwise".to_owned();
            match answer.and_then(|bytes| serde_json::from_slice::<PeerPart>(&bytes).map_err(unknown)) {
                Ok(PeerPart { error: Some(why), .. }) | Err(why) => self.note(node.name, why),
                Ok(part) => parts.push((node, part)),
            }
        }
        parts
    }

    /// The parts of all nodes that answer.
    ///
    /// # Errors
    /// No node answers.
    pub fn whole(&mut self, request: &Request, own: Own<'_>) -> Result<Vec<PeerPart>, AskRefusal> {
        let parts = self.ask(request, own);
        if parts.is_empty() {
            return Err(self.refusal());
        }
        let partial = parts.iter().filter(|(_, part)| part.has_more).filter_map(|(node, _)| node.as_ref());
        self.answers.partial.extend(partial.map(|node| node.name.clone()));
        Ok(parts.into_iter().map(|(_, part)| part).collect())
    }

    fn note(&mut self, node: String, why: String) {
        self.nodes.retain(|known| known.name != node);
        self.answers.unanswered.push(UnansweredNode { node, why });
    }

    /// If no node answers: this one's reason comes first.
    pub fn refusal(&self) -> AskRefusal {
        AskRefusal::Refused(self.answers.unanswered.first().map_or_else(String::new, |of| of.why.clone()))
    }

    /// The last line, with the nodes that have answered.
    pub fn end(self, mut end: Value) -> Value {
        let mut answers = self.answers;
        answers.answered = answers.nodes.saturating_sub(answers.unanswered.len());
        end["cluster"] = as_json(&answers);
        end
    }
}

/// A change may take longer than a query. It is made even if nobody waits for its answer any more.
fn patience(request: &Request) -> Duration {
    match request {
        Request::Act { .. } | Request::Divert { .. } | Request::Undivert { .. } => CHANGE_PATIENCE,
        _ => LOOK_PATIENCE,
    }
}

const LOOK_PATIENCE: Duration = Duration::from_secs(4);
const CHANGE_PATIENCE: Duration = Duration::from_secs(20);
