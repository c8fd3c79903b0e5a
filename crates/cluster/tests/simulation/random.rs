//! Faults by a seed.

use posthaste_random::Random;

use crate::world::{Event, Rules, World};

/// A run: faults for two minutes, then none.
pub fn run(seed: u64, size: (usize, u16), rules: Rules) -> Result<(), String> {
    let mut random = Random::of(seed, 0xfa);
    // A member that was never in sync may find that the log was cut.
    let mut world = World::begun(seed, size.0, size.1, rules)?;
    let end = world.now + FAULTS;
    if random.one_in(3) {
        let loss = random.below(30);
        for node in &mut world.nodes {
            (node.to_engine.loss, node.from_engine.loss) = (loss, loss);
        }
    }
    if random.one_in(3) {
        world.append_faults = 20 + random.below(60);
    }
    while world.now < end {
        fault(&mut world, &mut random);
        let pause = 500 + random.below(9_000);
        world.run_for(pause);
    }
    world.settle();
    world.check()
}

fn fault(world: &mut World, random: &mut Random) {
    let node = random.below(world.nodes.len() as u64) as usize;
    let shard = random.below(u64::from(world.shards)) as u16;
    // Owners meet most of them.
    let node = if random.one_in(2) { world.owner(shard).unwrap_or(node) } else { node };
    let time = 200 + random.below(28_000);
    match random.below(10) {
        0 | 1 => {
            world.kill(node);
            world.after(time, Event::Starts { node });
        }
        2 => world.freeze(node, time),
        3 => world.engine_paused_until = world.now + time / 2,
        4 => world.nodes[node].to_engine.held_until = world.now + time,
        5 => world.nodes[node].from_engine.held_until = world.now + time,
        6 => {
            let until = world.now + time;
            (world.nodes[node].to_engine.held_until, world.nodes[node].from_engine.held_until) = (until, until);
        }
        7 => world.hand_over(node, shard),
        8 => {
            // All machines lose their power.
            for node in 0..world.nodes.len() {
                world.kill(node);
                let time = 100 + random.below(15_000);
                world.after(time, Event::Starts { node });
            }
        }
        _ => {
            let loss = if random.one_in(2) { 0 } else { random.below(200) };
            (world.nodes[node].to_engine.loss, world.nodes[node].from_engine.loss) = (loss, loss);
        }
    }
}

/// Milliseconds.
const FAULTS: u64 = 90_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn size() -> (usize, u16) {
    let size = std::env::var("POSTHASTE_CLUSTER_SIZE").ok();
    size.and_then(|it| it.split_once('x').map(|(nodes, shards)| (nodes.parse().unwrap(), shards.parse().unwrap())))
        .unwrap_or((3, 2))
}

fn check(part: u64) {
    if let Some(seed) = number("POSTHASTE_CLUSTER_SEED") {
        return run(seed, size(), Rules::all()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let seeds = number("POSTHASTE_CLUSTER_SEEDS").unwrap_or(300);
    for seed in (0..seeds).filter(|seed| seed % PARTS == part) {
        run(seed, size(), Rules::all()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Parts of the seeds, which run at the same time.
const PARTS: u64 = 2;

#[test]
fn faults_by_seeds_lose_and_double_nothing_one_half() {
    check(0);
}

#[test]
fn faults_by_seeds_lose_and_double_nothing_other_half() {
    check(1);
}

#[test]
fn a_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut world = World::new(seed, 3, 2, Rules::all());
        world.run_for(20_000);
        (world.acknowledged.clone(), world.delivered.clone(), world.first_act.clone())
    };
    assert!(trace(5) == trace(5) && trace(5) != trace(6));
}
