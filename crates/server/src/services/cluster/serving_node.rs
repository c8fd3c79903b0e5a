//! The operator's view of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use posthaste_cluster::{
    BootTime, Cells, ClusterNode, HandOpening, HandOpeningError, LeaseClock, NodeName, NodeNews, ShardLog,
    SurveyedNode, look_at_opening, survey,
};
use posthaste_config::ClusterShard;
use posthaste_control::{
    CheckedNode, ClusterCheck, ClusterStatus, MemberStatus, Named, ShardOpening, ShardRole, ShardStatus, Suppressed,
    SuppressionFilter,
};
use posthaste_events::{EventKind, ShardTrouble};

use super::control::ControlDesk;
use super::engine_view::{Call, EngineView, ShardView, ask_all};
use super::nodes::{NodeList, status_of};
use super::others::EngineNodes;
use super::shard::ShardState;
use crate::receive::cluster::{Begun, ENGINE_PATIENCE, NodeControl, OtherNodes};
use crate::receive::shared::{SharedChange, SharedSuspension, Spread};
use crate::receive::success::random_id;

/// A running node, as operators see it.
pub(super) struct ServingNode {
    pub node: String,
    pub running: Arc<ClusterNode>,
    pub cells: Arc<dyn Cells>,
    pub shards: Vec<ServedShard>,
    pub nodes: NodeList,
    pub control: ControlDesk,
    pub others: EngineNodes,
    pub roles: Arc<Roles>,
    pub is_draining: AtomicBool,
}

pub(super) struct ServedShard {
    pub config: ClusterShard,
    pub log: Arc<dyn ShardLog>,
    pub state: Arc<ShardState>,
}

/// The role of this node in each shard, and why it has stopped.
#[derive(Default)]
pub(super) struct Roles(Mutex<BTreeMap<u16, (ShardRole, Option<String>)>>);

impl Roles {
    /// Notes and logs news of the node. True if the process must end.
    pub fn note(&self, news: &NodeNews) -> bool {
        let set = |shard: u16, role, why| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(shard, (role, why));
        };
        match news {
            NodeNews::Owner { shard, epoch } => {
                tracing::info!(shard, epoch, "this node owns the shard");
                set(*shard, ShardRole::Owner, None);
            }
            // A shard that stops is given up after that was told.
            NodeNews::Standby { shard } if self.of(*shard).0 == ShardRole::Stopped => {}
            NodeNews::Standby { shard } => {
                tracing::info!(shard, "this node is a standby of the shard");
                set(*shard, ShardRole::Standby, None);
            }
            NodeNews::Differs { shard, node } => {
                let node = node.as_str();
                tracing::error!(
                    shard,
                    node,
                    "the queue of this member differs from the owner's: it cannot take over until it is reseeded"
                );
            }
            NodeNews::Stopped { shard, why } => {
                let why = why.to_string();
                tracing::error!(shard, why, "the shard has stopped: its mail waits until an operator has looked at it");
                set(*shard, ShardRole::Stopped, Some(why));
            }
            NodeNews::MemberStopped { shard, why } => {
                tracing::error!(
                    shard,
                    why = &**why,
                    "this member of the shard has stopped, and cannot take over until a restart"
                );
                // The member of a shard that has stopped stops for the same cause.
                let first = self.of(*shard).1;
                set(*shard, ShardRole::Stopped, first.or_else(|| Some(why.to_string())));
            }
            NodeNews::NameTaken => {
                tracing::error!("another process runs under this node's name: exiting");
                return true;
            }
            NodeNews::Removed => {
                tracing::error!("this node was removed from the cluster: exiting");
                return true;
            }
        }
        false
    }

    fn of(&self, shard: u16) -> (ShardRole, Option<String>) {
        let roles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        roles.get(&shard).cloned().unwrap_or((ShardRole::Standby, None))
    }
}

/// The event of news that needs an operator. `here`: this node.
pub(super) fn event_of(news: &NodeNews, here: &str) -> Option<EventKind> {
    let (shard, state, node, why) = match news {
        NodeNews::Differs { shard, node } => (*shard, "differs", node.as_str(), String::new()),
        NodeNews::Stopped { shard, why } => (*shard, "stopped", here, why.to_string()),
        NodeNews::MemberStopped { shard, why } => (*shard, "member stopped", here, why.to_string()),
        NodeNews::Owner { .. } | NodeNews::Standby { .. } | NodeNews::NameTaken | NodeNews::Removed => return None,
    };
    Some(EventKind::Shard(ShardTrouble { shard, state: state.into(), node: node.into(), why: why.into() }))
}

impl ServingNode {
    fn status_of(&self, shard: &ServedShard, view: &mut EngineView) -> ShardStatus {
        let number = shard.config.number;
        let (role, why) = self.roles.of(number);
        let ShardView { cell, end, room, troubles: unanswered } = view.take_shard(number);
        let troubles = why.into_iter().chain(unanswered).collect();
        let names = |of: &BTreeMap<NodeName, u64>| of.keys().map(ToString::to_string).collect();
        let member = |node: &str| {
            let applied = view.applied(number, &NodeName::new(node)?)?;
            Some(MemberStatus { node: node.to_owned(), applied: applied.get() })
        };
        ShardStatus {
            shard: number,
            home: shard.config.home.clone(),
            role,
            owner: cell.owner.as_ref().map(|owner| owner.node.to_string()),
            epoch: cell.epoch,
            in_sync: names(&cell.in_sync),
            seeding: names(&cell.seeding),
            members: shard.config.members().filter_map(member).collect(),
            end: end.map(|end| end.get()),
            used_bytes: room.map(|(used, _)| used),
            limit_bytes: room.map(|(_, limit)| limit),
            queued: shard.state.queued(),
            queue_error: shard.state.queue_error(),
            troubles,
        }
    }

    /// See [`look_at_opening`]. A member that has stopped takes nothing before its next start.
    fn opening(&self, number: u16, pause: &dyn Fn(Duration)) -> Result<HandOpening, String> {
        let here = &self.node;
        let shard = self.shards.iter().find(|shard| shard.config.number == number);
        let shard = shard.ok_or_else(|| format!("{here} is not a member of shard {number}"))?;
        if let (ShardRole::Stopped, why) = self.roles.of(number) {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            return Err(format!(
                "the member of {here} has stopped, and takes over nothing until the server restarts{why}"
            ));
        }
        let here = NodeName::new(here).expect("the configuration was checked");
        let members: Vec<NodeName> = shard.config.members().filter_map(NodeName::new).collect();
        let opening = look_at_opening((&*self.cells, &*shard.log), number, &here, &members, pause);
        opening.map_err(|error| error.to_string())
    }

    /// The shards under which it takes mail, its home first.
    fn mail_shards(&self, must_be_home: bool) -> impl Iterator<Item = &ServedShard> {
        let is_home = |shard: &&ServedShard| shard.config.home == self.node;
        let others = self.shards.iter().filter(move |shard| !must_be_home && !is_home(shard));
        self.shards.iter().filter(is_home).chain(others)
    }

    /// All members of this node's shards.
    fn members(&self) -> Vec<NodeName> {
        let members = self.shards.iter().flat_map(|shard| shard.config.members());
        let nodes: BTreeSet<NodeName> = members.filter_map(NodeName::new).collect();
        nodes.into_iter().collect()
    }
}

fn checked(of: SurveyedNode) -> CheckedNode {
    let version = of.cell.map(|cell| cell.version);
    CheckedNode { node: of.node.to_string(), version, clock_ms: of.clock_ms }
}

impl NodeControl for ServingNode {
    fn status(&self) -> ClusterStatus {
        let logs = self.shards.iter().map(|shard| (shard.config.number, shard.log.clone())).collect();
        let now = BootTime.wall();
        let mut view = EngineView::ask(&self.cells, logs, self.nodes.names(), STATUS_PATIENCE);
        let nodes = view.nodes.iter().map(|(name, cell)| status_of(name, cell.as_ref(), now)).collect();
        ClusterStatus {
            node: self.node.clone(),
            engine: "nats".to_owned(),
            is_draining: self.is_draining.load(Ordering::Relaxed),
            shards: self.shards.iter().map(|shard| self.status_of(shard, &mut view)).collect(),
            nodes,
            troubles: self.control.trouble().into_iter().collect(),
        }
    }

    fn check(&self) -> ClusterCheck {
        let mut check = ClusterCheck::default();
        let calls = self.shards.iter().map(|shard| -> Call<_> {
            let log = shard.log.clone();
            Box::new(move || log.check())
        });
        for answer in ask_all(calls.collect(), CHECK_PATIENCE) {
            match answer {
                Some(Ok(wrong)) => check.wrong.extend(wrong),
                Some(Err(error)) => check.unanswered.push(error.to_string()),
                None => check.unanswered.push("it has not answered in time".to_owned()),
            }
        }
        match survey(&*self.cells, &self.members(), &|| BootTime.wall(), &std::thread::sleep) {
            Ok(nodes) => check.nodes = nodes.into_iter().map(checked).collect(),
            Err(error) => check.unanswered.push(error.to_string()),
        }
        // A server's settings are looked at for each shard.
        for lines in [&mut check.wrong, &mut check.unanswered] {
            lines.sort();
            lines.dedup();
        }
        check
    }

    fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        self.running.drain();
    }

    fn move_shard(&self, shard: u16, to: Option<&str>) {
        self.running.hand_over(shard, to.and_then(NodeName::new));
    }

    fn remove_node(&self, node: &str) -> Result<(), String> {
        self.nodes.remove(node)
    }

    fn add_node(&self, node: &str) -> Result<(), String> {
        self.nodes.add(node)
    }

    fn look_at_opening(&self, shard: u16) -> Result<ShardOpening, String> {
        let opening = self.opening(shard, &std::thread::sleep)?;
        let risks = opening.risks.iter().map(ToString::to_string).collect();
        Ok(ShardOpening { revision: opening.revision, risks })
    }

    fn open_shard(&self, shard: u16, revision: u64) -> Result<(), String> {
        let opening = self.opening(shard, &|_| ())?;
        if opening.revision != revision {
            return Err(HandOpeningError::Written { shard }.to_string());
        }
        opening.order(&*self.cells, random_id() as u64).map_err(|error| error.to_string())
    }

    fn share(&self, changes: &[SharedChange]) -> Result<Spread, String> {
        self.control.share(changes)
    }

    fn suppressed(&self, wanted: &SuppressionFilter, show: &mut dyn FnMut(Suppressed) -> bool) -> Result<(), String> {
        self.control.suppressed(wanted, show)
    }

    fn unshared(&self, wanted: &SuppressionFilter, show: &mut dyn FnMut(Suppressed) -> bool) -> Result<(), String> {
        self.control.unshared(wanted, show)
    }

    fn others(&self) -> &dyn OtherNodes {
        &self.others
    }

    fn suspension(&self, scope: &Named) -> Option<SharedSuspension> {
        self.control.suspension(scope)
    }

    fn begin(&self, must_be_home: bool) -> Option<Begun> {
        self.mail_shards(must_be_home).find_map(|shard| shard.state.begin())
    }

    fn waits_for_engine(&self, must_be_home: bool) -> bool {
        self.mail_shards(must_be_home).any(|shard| shard.state.may_begin_within(ENGINE_PATIENCE))
    }
}

/// Timeout of commands for the engine, which answers in milliseconds.
const STATUS_PATIENCE: Duration = Duration::from_secs(3);
/// Timeout of a check of the settings, which asks each server of the engine: some may be down.
const CHECK_PATIENCE: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use posthaste_cluster::StopReason;

    use super::*;

    #[test]
    fn a_member_that_differs_is_an_event() {
        let node = NodeName::new("b").unwrap();
        let of = |news| match event_of(&news, "a") {
            Some(EventKind::Shard(it)) => {
                Some((it.shard, it.state.to_string(), it.node.to_string(), it.why.to_string()))
            }
            _ => None,
        };
        let texts = |shard, [state, node, why]: [&str; 3]| Some((shard, state.into(), node.into(), why.into()));
        assert_eq!(of(NodeNews::Differs { shard: 3, node }), texts(3, ["differs", "b", ""]));
        let stopped = NodeNews::MemberStopped { shard: 4, why: "a hole".into() };
        assert_eq!(of(stopped), texts(4, ["member stopped", "a", "a hole"]));
        assert_eq!(of(NodeNews::Standby { shard: 3 }), None);
    }

    #[test]
    fn a_stopped_shard_is_shown_as_stopped_once_it_is_given_up() {
        let roles = Roles::default();
        assert!(!roles.note(&NodeNews::Owner { shard: 3, epoch: 1 }));
        assert!(!roles.note(&NodeNews::Stopped { shard: 3, why: StopReason::CellDamaged }));
        assert!(!roles.note(&NodeNews::Standby { shard: 3 }));
        let (role, why) = roles.of(3);
        assert!(role == ShardRole::Stopped && why.is_some());
        assert_eq!(roles.of(4).0, ShardRole::Standby);
        assert!(!roles.note(&NodeNews::MemberStopped { shard: 4, why: "a hole".into() }));
        assert_eq!(roles.of(4), (ShardRole::Stopped, Some("a hole".to_owned())));
        assert!(!roles.note(&NodeNews::MemberStopped { shard: 3, why: "it is shorter".into() }));
        assert_eq!(roles.of(3), (ShardRole::Stopped, why), "the first cause stays");
    }
}
