//! `posthaste cluster …`: the shards of this node of a cluster, in a running server.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use posthaste_control::{
    ClusterOrder, ClusterStatus, MemberStatus, NodeState, NodeStatus, Request, ShardOpening, ShardRole, ShardStatus,
};
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::queue::{AnyError, ServerArgs, answer, columns};
use crate::server::set_copy_aside;
use crate::terminal::{complain, confirmed, harmless, print, print_json};

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Show this node's shards with owner, members and queue, and all nodes; exit status 1 if a shard has no owner or has stopped
    Status {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Give this node's shards to others and take none until the next start, before a stop or an upgrade
    Drain {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Give a shard that this node owns to another node
    Move {
        /// The shard's number
        shard: u16,
        /// The node that gets it, one in sync; default: the one with the most of the log
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take a dead node off the list: nothing waits for it any more, and it cannot start until it is added
    Remove {
        /// The node's name; it must not run
        node: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Have this node take a shard that nobody acts for, though it may not be in sync; says before what may be lost
    Open {
        /// The shard's number
        shard: u16,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Set this node's copy of a shard aside, while the server is stopped: at its start it builds a new one from the log
    Reseed {
        /// The shard's number
        shard: u16,
        /// Remove the log, too: the shard begins anew, without the mail of all copies
        #[arg(long)]
        new_log: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Let a node that was taken off the list start again
    Add {
        /// The node's name
        node: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub fn run(command: ClusterCommand) -> Result<ExitCode, AnyError> {
    match command {
        ClusterCommand::Status { server } => {
            let status = status(&server)?;
            if server.json {
                print_json(&format!("{}\n", json!(status)))?;
            } else {
                print(&table(&status))?;
            }
            Ok(ExitCode::from(u8::from(!status.shards.iter().all(is_well))))
        }
        ClusterCommand::Drain { server } => {
            answer(&server, &Request::Cluster { order: Some(ClusterOrder::Drain) })?;
            if server.json {
                print_json("{\"drained\":true}\n")?;
            } else {
                print("this node owns no shard and takes none until its next start: it may be stopped\n")?;
            }
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Move { shard, to, server } => move_shard(&server, shard, to),
        ClusterCommand::Remove { node, server } => {
            answer(&server, &Request::Cluster { order: Some(ClusterOrder::Remove { node: node.clone() }) })?;
            tell(
                &server,
                json!({ "removed": node }),
                &format!("{} was taken off the list and cannot start\n", harmless(&node)),
            )
        }
        ClusterCommand::Open { shard, yes, server } => open_shard(&server, shard, yes),
        ClusterCommand::Reseed { shard, new_log, yes, config } => reseed(shard, new_log, yes, &config),
        ClusterCommand::Add { node, server } => {
            answer(&server, &Request::Cluster { order: Some(ClusterOrder::Add { node: node.clone() }) })?;
            tell(&server, json!({ "added": node }), &format!("{} may start\n", harmless(&node)))
        }
    }
}

fn tell(server: &ServerArgs, as_json: Value, text: &str) -> Result<ExitCode, AnyError> {
    if server.json {
        print_json(&format!("{as_json}\n"))?;
    } else {
        print(text)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn status(server: &ServerArgs) -> Result<ClusterStatus, AnyError> {
    let lines = answer(server, &Request::Cluster { order: None })?;
    Ok(serde_json::from_value(lines.into_iter().next().unwrap_or_default())?)
}

/// Prints what may be lost, opens the shard on this node, and waits until this node owns it.
fn open_shard(server: &ServerArgs, shard: u16, yes: bool) -> Result<ExitCode, AnyError> {
    complain(&format!("shard {shard}: waiting half a minute for a sign of an owner"));
    let look = Request::Cluster { order: Some(ClusterOrder::Open { shard, revision: None }) };
    let found = answer(server, &look)?.into_iter().next().unwrap_or_default();
    let ShardOpening { revision, risks } = serde_json::from_value(found)?;
    risks.iter().for_each(|risk| complain(risk));
    let risk = if risks.is_empty() { "nothing is known to be lost" } else { "see above what may be lost" };
    if !yes && !confirmed(&format!("Open shard {shard} with the copy of this node? ({risk})"))? {
        return Err("nothing is opened without --yes".into());
    }
    answer(server, &Request::Cluster { order: Some(ClusterOrder::Open { shard, revision: Some(revision) }) })?;
    let node = status(server)?.node;
    let deadline = Instant::now() + MOVE_PATIENCE;
    while Instant::now() < deadline {
        let status = status(server)?;
        if status.shards.iter().any(|it| it.shard == shard && it.role == ShardRole::Owner) {
            let as_json = json!({ "shard": shard, "owner": node, "risks": risks });
            return tell(server, as_json, &format!("shard {shard}: {} owns it\n", harmless(&node)));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Err(format!("shard {shard}: {node} has not opened it in time; see `posthaste cluster status`").into())
}

fn reseed(shard: u16, new_log: bool, yes: bool, config: &ConfigArg) -> Result<ExitCode, AnyError> {
    let config = config.load()?.config;
    let mut may = |what: &str| {
        complain(what);
        yes || confirmed("Go on?").unwrap_or_default()
    };
    let Some(aside) = set_copy_aside(&config, shard, new_log, &mut may)? else {
        return Err("nothing is changed without --yes".into());
    };
    print(&format!(
        "the copy of shard {shard} is in {}; the next start of the server builds a new one\n",
        aside.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Moves the shard, and waits until it has its new owner.
fn move_shard(server: &ServerArgs, shard: u16, to: Option<String>) -> Result<ExitCode, AnyError> {
    let from = status(server)?.node;
    let order = ClusterOrder::Move { shard, to: to.clone() };
    answer(server, &Request::Cluster { order: Some(order) })?;
    let deadline = Instant::now() + MOVE_PATIENCE;
    while Instant::now() < deadline {
        let status = status(server)?;
        let owner = status.shards.iter().find(|it| it.shard == shard).and_then(|it| it.owner.as_deref());
        if let Some(owner) = owner.filter(|owner| *owner != from) {
            if server.json {
                print_json(&format!("{}\n", json!({ "shard": shard, "from": from, "to": owner })))?;
            } else {
                print(&format!("shard {shard}: {from} -> {}\n", harmless(owner)))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let other = to.as_deref().unwrap_or("a member in sync");
    let secs = MOVE_PATIENCE.as_secs();
    Err(format!(
        "shard {shard} is still at {from} after {secs} s: does {other} run? See `posthaste cluster status` there"
    )
    .into())
}

/// True if a node acts for the shard.
pub fn is_well(shard: &ShardStatus) -> bool {
    let cannot_act = shard.role == ShardRole::Owner && shard.queue_error.is_some();
    shard.role != ShardRole::Stopped && shard.owner.is_some() && !cannot_act
}

fn table(status: &ClusterStatus) -> String {
    let draining = if status.is_draining { ", draining: it takes no shard until its next start" } else { "" };
    let mut out = format!("node {}, engine {}{draining}\n", harmless(&status.node), harmless(&status.engine));
    let rows = status.shards.iter().map(|it| {
        let role = match it.role {
            ShardRole::Owner => "owner",
            ShardRole::Standby => "standby",
            ShardRole::Stopped => "stopped",
        };
        [
            it.shard.to_string(),
            it.home.clone(),
            it.owner.clone().unwrap_or_else(|| "-".to_owned()),
            it.epoch.to_string(),
            role.to_owned(),
            it.queued.map_or(String::new(), |queued| queued.to_string()),
            used_percent(it).map_or(String::new(), |used| format!("{used} %")),
            members(it),
        ]
    });
    let heading = ["shard", "home", "owner", "epoch", "here", "queued", "log", "members"];
    out += &columns(heading, rows, "no shards");
    for shard in &status.shards {
        for trouble in &shard.troubles {
            out += &format!("shard {}: {}\n", shard.shard, harmless(trouble));
        }
        if let Some(error) = &shard.queue_error {
            out += &format!("shard {}: its queue cannot be opened here: {}\n", shard.shard, harmless(error));
        }
    }
    for trouble in &status.troubles {
        out += &format!("{}\n", harmless(trouble));
    }
    if !status.nodes.is_empty() {
        out += &columns(["node", "state", "release", "last write"], status.nodes.iter().map(row_of_node), "no nodes");
    }
    out
}

fn row_of_node(of: &NodeStatus) -> [String; 4] {
    let state = match of.state {
        NodeState::Runs => "runs",
        NodeState::Silent => "silent",
        NodeState::Removed => "removed",
        NodeState::New => "has never run",
    };
    let ago = of.silent_secs.map_or(String::new(), |secs| format!("{secs} s ago"));
    [of.node.clone(), state.to_owned(), of.version.clone().unwrap_or_default(), ago]
}

/// The used part of the log's space.
pub fn used_percent(shard: &ShardStatus) -> Option<u64> {
    let used = shard.used_bytes?;
    let limit = shard.limit_bytes?;
    Some((u128::from(used) * 100 / u128::from(limit.max(1))) as u64)
}

/// Records that a member lacks.
pub fn behind(shard: &ShardStatus, member: &MemberStatus) -> u64 {
    shard.end.unwrap_or(member.applied).saturating_sub(member.applied)
}

fn members(shard: &ShardStatus) -> String {
    let word = |member: &MemberStatus| {
        let name = &member.node;
        let behind = match behind(shard, member) {
            0 => String::new(),
            records => format!(" {records} behind"),
        };
        match name {
            _ if shard.seeding.contains(name) => format!("{name} needs seeding"),
            _ if shard.in_sync.contains(name) => format!("{name}{behind}"),
            _ => format!("{name} not in sync{behind}"),
        }
    };
    let silent = |name: &&String| !shard.members.iter().any(|member| member.node == **name);
    let silent =
        shard.in_sync.iter().chain(&shard.seeding).filter(silent).map(|name| format!("{name} has not reported"));
    shard.members.iter().map(word).chain(silent).collect::<Vec<_>>().join(", ")
}

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time for open transactions: half a minute.
const MOVE_PATIENCE: Duration = Duration::from_secs(40);

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn shard(number: u16) -> ShardStatus {
        let member = |node: &str, applied| MemberStatus { node: node.into(), applied };
        ShardStatus {
            shard: number,
            home: "a".into(),
            role: ShardRole::Owner,
            owner: Some("a".into()),
            epoch: 7,
            in_sync: vec!["a".into(), "b".into(), "d".into()],
            seeding: Vec::new(),
            members: vec![member("a", 900), member("b", 888), member("c", 12)],
            end: Some(900),
            used_bytes: Some(3 << 30),
            limit_bytes: Some(16 << 30),
            queued: Some(42),
            queue_error: None,
            troubles: Vec::new(),
        }
    }

    #[test]
    fn a_table_has_a_row_for_each_shard_and_its_troubles() {
        let mut stopped = shard(2);
        (stopped.role, stopped.owner, stopped.queued) = (ShardRole::Stopped, None, None);
        stopped.seeding = vec!["b".into()];
        stopped.troubles = vec!["the log is shorter".into()];
        stopped.queue_error = Some("no disk".into());
        assert!(is_well(&shard(1)) && !is_well(&stopped));
        let node = "a".into();
        let engine = "nats".into();
        let of_node = |node: &str, state, silent_secs: Option<u64>| NodeStatus {
            node: node.into(),
            state,
            version: silent_secs.map(|_| "0.1.0".into()),
            silent_secs,
        };
        let troubles = vec!["the control shard is away".into()];
        let nodes = vec![of_node("a", NodeState::Runs, Some(0)), of_node("b", NodeState::New, None)];
        let status =
            ClusterStatus { node, engine, is_draining: true, shards: vec![shard(1), stopped], nodes, troubles };
        let wanted = "\
node a, engine nats, draining: it takes no shard until its next start
shard  home  owner  epoch  here     queued  log   members
1      a     a      7      owner    42      18 %  a, b 12 behind, c not in sync 888 behind, d has not reported
2      a     -      7      stopped          18 %  a, b needs seeding, c not in sync 888 behind, d has not reported
shard 2: the log is shorter
shard 2: its queue cannot be opened here: no disk
the control shard is away
node  state          release  last write
a     runs           0.1.0    0 s ago
b     has never run
";
        assert_eq!(table(&status), wanted);
    }
}
