//! `posthaste doctor cluster`: the state of a cluster seen from one node, in red, yellow and green lines.

use std::fmt;
use std::process::ExitCode;

use posthaste_control::{
    CheckedNode, ClusterCheck, ClusterOrder, ClusterStatus, NodeState, Request, ShardRole, ShardStatus,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::{behind, used_percent};
use crate::queue::{AnyError, ServerArgs, answer};
use crate::terminal::{harmless, print, print_json};

/// Severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Colour {
    /// Mail waits, or one more failure would lose mail.
    Red,
    /// It works, with less redundancy than intended.
    Yellow,
    Green,
}

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ClusterFinding {
    colour: Colour,
    about: String,
    found: String,
    /// A safe next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Exit status 1 for a red line.
pub fn run(server: &ServerArgs) -> Result<ExitCode, AnyError> {
    let lines = answer(server, &Request::Cluster { order: Some(ClusterOrder::Check) })?;
    let mut lines = lines.into_iter();
    let mut line = || lines.next().unwrap_or(Value::Null);
    let status = serde_json::from_value(line())?;
    let check = serde_json::from_value(line())?;
    let findings = findings(&status, &check);
    if server.json {
        print_json(&format!("{:#}\n", json!(findings)))?;
    } else {
        print(&text(&findings))?;
    }
    Ok(ExitCode::from(u8::from(findings.iter().any(|it| it.colour == Colour::Red))))
}

/// The worst first.
fn findings(status: &ClusterStatus, check: &ClusterCheck) -> Vec<ClusterFinding> {
    let mut found = of_engine(status, check);
    let away = |trouble: &String| line(Colour::Yellow, "control shard".to_owned(), trouble, CONTROL);
    found.extend(status.troubles.iter().map(away));
    found.extend(status.shards.iter().flat_map(of_shard));
    found.extend(check.nodes.iter().map(|it| of_node(it, status, check)));
    if status.is_draining {
        let next = "start the server again: then it takes shards";
        found.push(line(Colour::Yellow, format!("node {}", status.node), "it takes no shards", next));
    }
    found.sort_by_key(|it| it.colour);
    found
}

fn line(colour: Colour, about: String, found: impl Into<String>, next: &str) -> ClusterFinding {
    let next = Some(next).filter(|next| !next.is_empty()).map(str::to_owned);
    ClusterFinding { colour, about, found: found.into(), next }
}

fn of_engine(status: &ClusterStatus, check: &ClusterCheck) -> Vec<ClusterFinding> {
    let about = || format!("engine {}", status.engine);
    let wrong = check.wrong.iter().map(|it| line(Colour::Red, about(), it, SETTINGS));
    let unanswered = check.unanswered.iter().map(|it| line(Colour::Red, about(), it, ENGINE));
    let mut found: Vec<_> = wrong.chain(unanswered).collect();
    if found.is_empty() {
        found.push(line(Colour::Green, about(), "its settings keep the promise", ""));
    }
    found
}

fn of_shard(shard: &ShardStatus) -> Vec<ClusterFinding> {
    let about = || format!("shard {}", shard.shard);
    let mut found = Vec::new();
    for trouble in &shard.troubles {
        let (colour, next) = match shard.role {
            ShardRole::Stopped => (Colour::Red, STOPPED),
            _ => (Colour::Yellow, ENGINE),
        };
        found.push(line(colour, about(), trouble, next));
    }
    if shard.role == ShardRole::Stopped && shard.troubles.is_empty() {
        found.push(line(Colour::Red, about(), "this node's member has stopped", STOPPED));
    }
    if let Some(error) = &shard.queue_error {
        let is_elsewhere = shard.role != ShardRole::Owner && shard.owner.is_some();
        let colour = if is_elsewhere { Colour::Yellow } else { Colour::Red };
        found.push(line(colour, about(), format!("its queue cannot be opened on this node: {error}"), QUEUE));
    }
    let ready = shard.in_sync.join(" or ");
    match &shard.owner {
        None if ready.is_empty() => found.push(line(Colour::Red, about(), "its owner is not known", ENGINE)),
        None => {
            let next = format!("start {ready}: the first one that runs takes it within half a minute");
            found.push(line(Colour::Red, about(), "it has no owner: its mail waits", &next));
        }
        Some(_) if shard.in_sync.len() < 2 => {
            let what = format!("only {ready} has all of it: if that node is lost, mail is lost");
            found.push(line(Colour::Red, about(), what, "start its other members, and wait until they are in sync"));
        }
        Some(_) => {}
    }
    for node in &shard.seeding {
        let what = format!("the state of {node} differs from the owner's: it cannot take over");
        found.push(line(Colour::Red, about(), what, SEEDING));
    }
    for member in shard.members.iter().filter(|it| !shard.in_sync.contains(&it.node)) {
        if !shard.seeding.contains(&member.node) {
            let what = format!("{} is not in sync, {} records behind", member.node, behind(shard, member));
            found.push(line(
                Colour::Yellow,
                about(),
                what,
                "see that it runs and has room on its disk; it catches up by itself",
            ));
        }
    }
    match used_percent(shard) {
        Some(used @ 80..) => {
            found.push(line(Colour::Red, about(), format!("its log is {used} % full: new mail is refused"), ROOM))
        }
        Some(used @ 70..) => found.push(line(
            Colour::Yellow,
            about(),
            format!("its log is {used} % full; at 80 % new mail is refused"),
            ROOM,
        )),
        _ => {}
    }
    if found.is_empty() {
        let owner = shard.owner.as_deref().unwrap_or_default();
        let epoch = shard.epoch;
        let what = format!("{owner} owns it in epoch {epoch}; {} are in sync", shard.in_sync.join(", "));
        found.push(line(Colour::Green, about(), what, ""));
    }
    found
}

fn of_node(node: &CheckedNode, status: &ClusterStatus, check: &ClusterCheck) -> ClusterFinding {
    let about = format!("node {}", node.node);
    if status.nodes.iter().any(|it| it.node == node.node && it.state == NodeState::Removed) {
        return line(Colour::Green, about, "it is off the list: nothing waits for it", "");
    }
    let own = check.nodes.iter().find(|it| it.node == status.node).and_then(|it| it.version.as_ref());
    let (Some(clock), Some(version)) = (node.clock_ms, &node.version) else {
        let what = match node.version {
            Some(_) => "it does not write to the engine: it is down or cut off",
            None => "it has never run with this engine and prefix",
        };
        return line(Colour::Yellow, about, what, "start it; if it runs, look at its log for the engine");
    };
    let secs = clock.unsigned_abs() as f64 / 1000.0;
    let side = if clock < 0 { "behind" } else { "ahead of" };
    let is_other = own.is_some_and(|own| own != version);
    if clock.unsigned_abs() > CLOCK_MS_MAX {
        let what = format!("its clock is {secs:.1} s {side} this node's");
        return line(
            Colour::Yellow,
            about,
            what,
            "set both clocks, such as by NTP: retry times go by them, leases do not",
        );
    }
    if is_other {
        let what = format!("it runs release {version}, and this node {}", own.map_or("", String::as_str));
        return line(
            Colour::Yellow,
            about,
            what,
            "go on with the upgrade: standbys first, `posthaste cluster drain` before each stop",
        );
    }
    line(Colour::Green, about, format!("release {version}, clock {secs:.1} s {side} this node's"), "")
}

fn text(findings: &[ClusterFinding]) -> String {
    let mut out = String::new();
    for it in findings {
        out += &format!("{:<7} {}: {}\n", it.colour.to_string(), harmless(&it.about), harmless(&it.found));
    }
    match findings.iter().find_map(|it| Some((it, it.next.as_ref()?))) {
        Some((it, next)) => out += &format!("\nnext safe step, for {}: {}\n", harmless(&it.about), harmless(next)),
        None => out += "\nnothing to do\n",
    }
    out
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Colour::Red => "red",
            Colour::Yellow => "yellow",
            Colour::Green => "green",
        })
    }
}

/// Larger differences between clocks are reported.
const CLOCK_MS_MAX: u64 = 2000;
const CONTROL: &str =
    "see that the engine is reached from here: suppressions and suspensions of other nodes are missing until then";
const SETTINGS: &str =
    "set it, and restart one server of the engine at a time; go on to the next once all replicas are current";
const ENGINE: &str =
    "see that two of three servers of the engine run and are reached from here; change nothing in their directories";
const STOPPED: &str = "restart no server yet; save its mail with `posthaste queue export --all --shard`, then see docs/cluster.md, Operations";
const QUEUE: &str =
    "mend the cause on this node: it tries again by itself, and another member in sync takes the shard meanwhile";
const SEEDING: &str = "the other members in sync keep the mail; `posthaste cluster reseed`, with its server stopped, builds its copy anew";
const ROOM: &str = "raise `log_bytes` and the stream's `max_bytes`, or bring back the member that the log waits for";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::shard;

    fn well() -> (ClusterStatus, ClusterCheck) {
        let mut shard = shard(1);
        shard.members.retain(|it| it.node != "c");
        shard.in_sync.retain(|it| it != "d");
        let (node, engine, nodes) = ("a".into(), "nats".into(), Vec::new());
        let status =
            ClusterStatus { node, engine, is_draining: false, shards: vec![shard], nodes, troubles: Vec::new() };
        let node = |node: &str| CheckedNode { node: node.into(), version: Some("0.1.0".into()), clock_ms: Some(-40) };
        (status, ClusterCheck { nodes: vec![node("a"), node("b")], ..ClusterCheck::default() })
    }

    #[track_caller]
    fn check(change: impl Fn(&mut ClusterStatus, &mut ClusterCheck), colour: Colour, words: &str) {
        let (mut status, mut checked) = well();
        change(&mut status, &mut checked);
        let found = findings(&status, &checked);
        let worst = &found[0];
        assert!(worst.colour == colour && worst.found.contains(words), "{}", text(&found));
        assert!(worst.next.is_some(), "{}", text(&found));
    }

    #[test]
    fn a_cluster_that_is_well_is_green() {
        let (status, check) = well();
        let wanted = "\
green   engine nats: its settings keep the promise
green   shard 1: a owns it in epoch 7; a, b are in sync
green   node a: release 0.1.0, clock 0.0 s behind this node's
green   node b: release 0.1.0, clock 0.0 s behind this node's

nothing to do
";
        assert_eq!(text(&findings(&status, &check)), wanted);
    }

    #[test]
    fn mail_that_waits_or_has_one_copy_is_red() {
        check(|_, it| it.wrong.push("sync_interval must be always".into()), Colour::Red, "sync_interval");
        check(|_, it| it.unanswered.push("no answer".into()), Colour::Red, "no answer");
        check(|it, _| it.shards[0].owner = None, Colour::Red, "no owner");
        check(|it, _| it.shards[0].in_sync.truncate(1), Colour::Red, "only a has all");
        check(|it, _| it.shards[0].seeding.push("c".into()), Colour::Red, "the state of c differs");
        check(|it, _| it.shards[0].used_bytes = Some(13 << 30), Colour::Red, "81 % full");
        let stop = |it: &mut ClusterStatus, _: &mut ClusterCheck| {
            (it.shards[0].role, it.shards[0].troubles) = (ShardRole::Stopped, vec!["the log is shorter".into()]);
        };
        check(stop, Colour::Red, "the log is shorter");
        check(|it, _| it.shards[0].queue_error = Some("no disk".into()), Colour::Red, "opened on this node: no disk");
    }

    #[test]
    fn less_reserve_is_yellow() {
        let member =
            |it: &mut ClusterStatus, _: &mut ClusterCheck| it.shards[0].members.push(shard(1).members.remove(2));
        check(member, Colour::Yellow, "c is not in sync, 888 records behind");
        check(|it, _| it.shards[0].used_bytes = Some(12 << 30), Colour::Yellow, "75 % full");
        let given_up = |it: &mut ClusterStatus, _: &mut ClusterCheck| {
            let shard = &mut it.shards[0];
            (shard.role, shard.queue_error) = (ShardRole::Standby, Some("no disk".into()));
        };
        check(given_up, Colour::Yellow, "opened on this node: no disk");
        check(|it, _| it.is_draining = true, Colour::Yellow, "takes no shards");
        check(|_, it| it.nodes[1].clock_ms = None, Colour::Yellow, "does not write");
        check(|_, it| it.nodes[1].version = None, Colour::Yellow, "never run");
        check(|_, it| it.nodes[1].clock_ms = Some(2001), Colour::Yellow, "2.0 s ahead of");
        check(|_, it| it.nodes[1].version = Some("0.2.0".into()), Colour::Yellow, "release 0.2.0, and this node 0.1.0");
    }
}
