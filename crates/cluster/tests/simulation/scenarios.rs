//! Single faults, with what must come of them.

use posthaste_cluster::{CellKey, NodeCell, StopReason};

use crate::engine::Request;
use crate::world::{Event, Rules, World};

impl World {
    pub fn hand_over(&mut self, node: usize, shard: u16) {
        let clock = self.clock(node);
        if self.runs(node) {
            self.process(node).ownership.hand_over(clock, shard, None);
            self.act(node);
        }
    }

    /// An operator at another node takes it off the list.
    fn remove_node(&mut self, node: usize) {
        let key = CellKey::Node(self.nodes[node].name.clone());
        let revision = self.engine.cells[&key.to_string()].1;
        let removed = NodeCell { is_removed: true, ..NodeCell::default() };
        let (other, swap) = ((node + 1) % self.nodes.len(), Request::Swap(key, revision, removed.encode()));
        self.at_engine(other, self.nodes[other].boot, u64::MAX, &swap);
    }

    /// With an owner for each shard, mail in them, and all nodes in sync.
    pub fn begun(seed: u64, nodes: usize, shards: u16, rules: Rules) -> Result<Self, String> {
        let mut world = World::new(seed, nodes, shards, rules);
        let is_begun = |world: &World| {
            (0..world.shards).all(|shard| {
                let in_sync = world.engine.shard_cell(shard).map_or(0, |cell| cell.in_sync.len());
                world.owner(shard).is_some() && in_sync == world.nodes.len()
            }) && world.acknowledged.len() > 20
        };
        if world.run_until_so(60_000, is_begun) { Ok(world) } else { Err("no shard begins".to_owned()) }
    }

    fn owner_of(&self, shard: u16) -> Result<usize, String> {
        self.owner(shard).ok_or_else(|| format!("nobody owns shard {shard}"))
    }

    fn epoch(&self, shard: u16) -> u64 {
        self.engine.shard_cell(shard).map_or(0, |cell| cell.epoch)
    }
}

fn holds(is_so: bool, what: &str) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(what.to_owned()) }
}

/// The owner is killed: another delivers within 25 s, or 31 if the cell had just changed hands.
pub fn killed_owner(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    let epoch = world.epoch(0);
    let killed = world.now;
    world.kill(owner);
    let acts = |world: &World| world.first_act.keys().any(|(_, at)| *at > epoch);
    holds(world.run_until_so(25_000, acts), "nobody takes over within 25 s")?;
    holds(world.now - killed > 15_000, "the lease of the dead owner was not waited for")?;
    world.settle();
    world.check()
}

/// A process that starts again at once waits as all others do.
pub fn restarted_owner(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    let epoch = world.epoch(0);
    world.kill(owner);
    world.run_for(200);
    world.start(owner);
    world.run_for(14_000);
    let is_quiet = (0..3).all(|node| world.process(node).members[0].acts.is_none());
    holds(is_quiet && world.epoch(0) == epoch, "a process acts as the one before it")?;
    world.settle();
    world.check()
}

/// SIGSTOP for 30 s: another takes over, and the first one finds that when it wakes up.
pub fn paused_owner(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    world.freeze(owner, 30_000);
    world.run_for(29_000);
    holds(world.owner_of(0)? != owner, "nobody takes over")?;
    world.settle();
    world.check()
}

/// Answers come 13 s late, then requests do not arrive: the lease has begun when the last renewal was sent.
pub fn late_answers(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, 1, rules);
    world.timeout = 14_000;
    holds(world.run_until_so(60_000, |world| world.acknowledged.len() > 20), "no shard begins")?;
    holds(world.run_until_so(60_000, |world| world.engine.shard_cell(0).unwrap().in_sync.len() == 3), "not in sync")?;
    let owner = world.owner_of(0)?;
    world.bodies = Some((15_000, 30_000));
    world.run_for(12_000);
    world.nodes[owner].from_engine.delay = 13_000;
    // A renewal is on its way at each two seconds.
    world.run_for(2_100);
    world.nodes[owner].to_engine.held_until = world.now + 40_000;
    world.run_for(45_000);
    world.bodies = None;
    world.settle();
    world.check()
}

/// The engine pauses: no shard changes hands.
pub fn paused_engine(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 2, rules)?;
    let before = (world.epoch(0), world.epoch(1));
    for time in [25_000, 14_000, 14_000] {
        world.engine_paused_until = world.now + time;
        world.run_for(time + 6_000);
    }
    world.settle();
    holds((world.epoch(0), world.epoch(1)) == before, "a shard has changed hands")?;
    world.check()
}

/// The owner and the engine's leader die at once: the engine pauses for 5 s.
pub fn common_fault(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 2, rules)?;
    let owner = world.owner_of(0)?;
    world.kill(owner);
    world.engine_paused_until = world.now + 5_000;
    world.run_for(40_000);
    holds(world.owner_of(0)? != owner, "nobody takes over")?;
    world.settle();
    world.check()
}

/// A node with three shards dies: no other takes two of them at a time.
pub fn many_shards(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 4, rules)?;
    let owner = world.owner_of(0)?;
    for other in (0..3).filter(|node| *node != owner) {
        world.kill(other);
    }
    // The last one takes all; then the two others come back as standbys.
    holds(
        world.run_until_so(90_000, |world| (0..4).all(|shard| world.owner(shard) == Some(owner))),
        "not all shards are taken",
    )?;
    let times: Vec<u64> = world.taken.iter().filter(|it| it.0 == owner).map(|it| it.2).collect();
    holds(times.is_sorted_by(|one, other| one + 4_000 < *other), "it takes two shards at a time")?;
    world.settle();
    world.check()
}

/// The log loses records that a member has.
pub fn rolled_back_log(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    let ahead = (owner + 1) % 3;
    let behind = (owner + 2) % 3;
    // One standby hears nothing new; the other reports what it has.
    world.nodes[behind].to_engine.held_until = world.now + 3_000;
    world.run_for(2_800);
    world.kill(owner);
    world.kill(ahead);
    let end = world.engine.log(0).end;
    let has = world.nodes[behind].disks[0].position().get();
    holds(has + 6 < end, "the standby is not behind")?;
    world.engine.log(0).roll_back(has + 1);
    world.run_for(60_000);
    world.start(ahead);
    world.run_for(40_000);
    let is_named = world.stopped.iter().any(|it| matches!(it.2, StopReason::LogRolledBack { .. }));
    holds(is_named, "a log that lacks what a member has is not noticed")?;
    holds(world.violations.is_empty(), "somebody acts wrongly")
}

/// The owner cuts only what another disk has, whoever is away.
pub fn away_standbys(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    for other in (0..3).filter(|node| *node != owner) {
        world.nodes[other].to_engine.held_until = world.now + 40_000;
    }
    world.run_for(45_000);
    world.settle();
    world.check()
}

/// The owner and its disk are gone right after a cut: the others have all that was cut.
pub fn lost_after_a_cut(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let cuts = world.cuts;
    holds(world.run_until_so(60_000, |world| world.cuts > cuts + 3), "nothing is cut")?;
    let owner = world.owner_of(0)?;
    world.wipe(owner);
    world.run_for(30_000);
    holds(world.owner_of(0)? != owner, "nobody takes over")?;
    world.settle();
    world.check()
}

/// A standby dies and is wiped: its last report says nothing about its disk.
pub fn wiped_standby(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 2, 1, rules)?;
    let owner = world.owner_of(0)?;
    world.wipe(1 - owner);
    world.run_for(40_000);
    holds(world.violations.is_empty(), &world.violations.join("; "))
}

/// A member that was wiped after a cut comes back under its name: it is never the owner.
pub fn wiped_and_back(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    holds(world.run_until_so(60_000, |world| world.engine.logs[&0].first > 1), "nothing is cut")?;
    let owner = world.owner_of(0)?;
    let wiped = (owner + 1) % 3;
    let other = (owner + 2) % 3;
    world.wipe(wiped);
    world.start(wiped);
    world.kill(owner);
    world.kill(other);
    world.run_for(50_000);
    holds(world.owner(0).is_none(), "a wiped member owns the shard")?;
    world.settle();
    world.check()
}

/// The state of a standby differs from what the log says: it leaves the members in sync.
pub fn unlike_standby(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    // Nothing is delivered, so that messages are open.
    let owner = world.owner_of(0)?;
    let unlike = (owner + 1) % 3;
    let name = world.nodes[unlike].name.clone();
    // A message that no one delivers.
    world.nodes[unlike].disks[0].queue.forget(u64::MAX);
    world.run_for(40_000);
    let cell = world.engine.shard_cell(0).unwrap();
    holds(cell.seeding.contains_key(&name) && !cell.in_sync.contains_key(&name), "it is still in sync")?;
    world.kill(owner);
    world.run_for(40_000);
    holds(world.owner(0) != Some(unlike), "it has taken over")?;
    world.settle();
    world.check()
}

/// The data directory of a node is copied, and started under the same name.
pub fn cloned_node(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let copied = (world.owner_of(0)? + 1) % 3;
    let clone = world.add_node(world.nodes[copied].name.clone());
    world.nodes[clone].disks = world.nodes[copied].disks.clone();
    world.kill(clone);
    world.start(clone);
    world.run_for(30_000);
    holds(world.names_taken == 1, "two processes go on with one name")?;
    holds(world.nodes[clone].process.is_none(), "the copy goes on")?;
    holds(world.violations.is_empty(), &world.violations.join("; "))
}

/// It is taken off the list while it is silent: its process ends when it wakes, and so does the next one.
pub fn removed_node(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    world.freeze(owner, 40_000);
    world.run_for(5_000);
    world.remove_node(owner);
    world.run_for(34_000);
    let in_sync = world.engine.shard_cell(0).map_or(0, |cell| cell.in_sync.len());
    holds(world.owner_of(0)? != owner && in_sync == 2, "the log waits for the removed node")?;
    world.run_for(10_000);
    holds(world.nodes[owner].process.is_none(), "the removed node goes on")?;
    world.start(owner);
    world.run_for(30_000);
    holds(world.nodes[owner].process.is_none(), "the removed node starts again")?;
    holds(world.violations.is_empty(), &world.violations.join("; "))
}

/// The clock of the owner stands still for 60 s, the process runs on.
pub fn stopped_clock(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    world.stop_clock(owner);
    world.run_for(60_000);
    world.start_clock(owner);
    world.settle();
    world.check()
}

/// A guest is stopped, and its clock with it.
pub fn stopped_guest(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    world.stop_clock(owner);
    world.freeze(owner, 60_000);
    world.run_for(59_999);
    world.start_clock(owner);
    world.settle();
    world.check()
}

/// Planned hand-overs are fast, double nothing, and can be repeated.
pub fn hand_overs(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    for _ in 0..12 {
        let owner = world.owner_of(0)?;
        let epoch = world.epoch(0);
        world.hand_over(owner, 0);
        let is_done = |world: &World| world.epoch(0) > epoch && world.owner(0).is_some_and(|it| it != owner);
        // Open transactions take up to 20 s.
        holds(world.run_until_so(23_000, is_done), "the shard is not handed over")?;
        world.run_for(3_000);
    }
    world.settle();
    let doubled = world.delivered.values().filter(|it| it.1.len() > 1).count();
    holds(doubled == 0, "a planned hand-over doubles mail")?;
    world.check()
}

/// A shard goes back to its home, once that is there again.
pub fn back_home(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let home = world.owner_of(0)?;
    holds(home == 0, "the home opens its shard")?;
    world.kill(home);
    world.after(5_000, Event::Starts { node: home });
    world.run_for(40_000);
    holds(world.owner_of(0)? != home, "nobody takes over")?;
    holds(world.run_until_so(100_000, |world| world.owner(0) == Some(0)), "the home does not get it back")?;
    world.settle();
    world.check()
}

/// Cells that the engine lost, as after a restore of old data.
pub fn cells_rolled_back(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::begun(seed, 3, 1, rules)?;
    let owner = world.owner_of(0)?;
    world.engine.cells.clear();
    world.run_for(60_000);
    holds(!world.stopped.is_empty(), "lost cells are not noticed")?;
    let clock = world.clock(owner);
    let acts = world.process(owner).ownership.may_act(0, clock);
    holds(!acts, "the owner goes on")?;
    holds(world.violations.is_empty(), &world.violations.join("; "))
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod each {
            $(#[test]
            fn $name() {
                for seed in 0..6 {
                    super::$name(seed, crate::world::Rules::all()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
            })*
        }
    };
}

scenarios!(
    killed_owner,
    restarted_owner,
    paused_owner,
    late_answers,
    paused_engine,
    common_fault,
    many_shards,
    rolled_back_log,
    away_standbys,
    lost_after_a_cut,
    wiped_standby,
    wiped_and_back,
    unlike_standby,
    cloned_node,
    removed_node,
    stopped_clock,
    stopped_guest,
    hand_overs,
    back_home,
    cells_rolled_back,
);
