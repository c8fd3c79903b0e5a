//! One thing that happens to homes and borrowers in each, faults by a seed, and the switches that break the rules.

use posthaste_random::Random;

use super::world::{Demand, MS, Rules, SECOND, World};
use posthaste_cluster::LendingRules;

type Scenario = fn(u64, Rules) -> Result<(), String>;

/// Ten each second with a burst of one; and others.
const RATES: [&str; 5] = ["100/second", "10/second, burst 1", "30/minute, burst 2", "20/second, burst 60", "5/second"];

fn holds(is_so: bool, why: &str) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(why.to_owned()) }
}

fn any(random: &mut Random, most: usize) -> usize {
    random.below(most as u64) as usize
}

/// Faults for a minute and a half, then none.
fn by_seed(seed: u64, rules: Rules) -> Result<(), String> {
    let mut random = Random::of(seed, 0xfa);
    let mut world = World::new(seed, 3, &RATES, rules);
    let end = world.now + 90 * SECOND;
    while world.now < end {
        for demand in world.demand.iter_mut().flatten() {
            let all = [Demand::Nothing, Demand::All, Demand::Late, Demand::Wasted, Demand::Some, Demand::Slow];
            if random.one_in(3) {
                *demand = all[any(&mut random, all.len())];
            }
        }
        fault(&mut world, &mut random);
        let pause = MS * (300 + random.below(7_000));
        world.run_for(pause);
    }
    world.heal();
    world.set_all(Demand::All);
    world.run_for(45 * SECOND);
    world.check()?;
    uses_all(&world, 10)
}

fn fault(world: &mut World, random: &mut Random) {
    let (one, other) = (any(random, world.nodes()), any(random, world.nodes()));
    let (shard, half) = (any(random, world.nodes()), random.one_in(2));
    match random.below(10) {
        0 => world.kill(one),
        1 => world.frozen_until[one] = world.now + MS * random.below(25_000),
        2 | 3 => world.links[one][other].is_cut = half,
        4 => world.cut(one, half),
        5 => world.engine[one].is_cut = half,
        6 => world.hand_over(shard, one),
        7 => world.links[one][other].delay = MS * random.below(400),
        8 => world.links[one][other].loss = random.below(600),
        _ => world.heal(),
    }
}

/// All shards together have used the whole rate lately.
fn uses_all(world: &World, secs: u64) -> Result<(), String> {
    for (number, limit) in world.limits.iter().enumerate() {
        let used: usize = world.used_since(number, world.now - secs * SECOND).iter().sum();
        let whole = secs * SECOND / limit.rate.interval();
        holds(used as u64 + 1 >= whole * 9 / 10, &format!("{used} tokens of {} in {secs} s", limit.rate))?;
    }
    Ok(())
}

/// One shard with mail uses the whole rate; then each gets its part.
fn one_then_all(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &RATES, rules);
    for limit in 0..RATES.len() {
        world.demand[1][limit] = Demand::All;
    }
    world.run_for(30 * SECOND);
    uses_all(&world, 20)?;
    world.set_all(Demand::All);
    world.run_for(30 * SECOND);
    uses_all(&world, 20)?;
    for (number, limit) in world.limits.iter().enumerate() {
        let used = world.used_since(number, world.now - 20 * SECOND);
        let least = 20 * SECOND / limit.rate.interval() / 5;
        holds(used.iter().all(|used| *used as u64 >= least), &format!("{used:?} of {}", limit.rate))?;
    }
    world.check()
}

/// Without messages, each shard uses its share, and all together the burst.
fn all_apart(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["9/second, burst 3", "1/second, burst 1", "30/second"], rules);
    world.run_for(20 * SECOND);
    world.set_all(Demand::All);
    world.run_for(5 * SECOND);
    (0..3).for_each(|node| world.cut(node, true));
    world.set_all(Demand::Late);
    world.run_for(10 * SECOND);
    world.set_all(Demand::All);
    world.run_for(60 * SECOND);
    world.check()?;
    for limit in [0, 2] {
        let (used, home) = (world.used_since(limit, world.now - 10 * SECOND), world.home_of(limit));
        let least = 10 * SECOND / world.limits[limit].rate.interval() / 4;
        holds(used.iter().all(|used| *used as u64 >= least), &format!("{used:?} with the home at {home}"))?;
    }
    Ok(())
}

/// Only the answers to one shard, or only its requests, are lost.
fn one_way(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &RATES, rules);
    world.set_all(Demand::All);
    world.run_for(5 * SECOND);
    for (from, to) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
        world.links[from][to].is_cut = true;
        world.run_for(15 * SECOND);
        let used = world.used_since(0, world.now - 5 * SECOND);
        holds(used.iter().all(|used| *used > 100), &format!("{used:?} while {to} does not hear {from}"))?;
        world.heal();
        world.run_for(5 * SECOND);
    }
    world.check()
}

/// A shard is cut off and back again and again.
fn flapping(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["2/second, burst 30", "30/second, burst 3"], rules);
    world.run_for(20 * SECOND);
    for round in 0..12 {
        world.set_all(if round % 2 == 0 { Demand::All } else { Demand::Late });
        world.cut(round % 3, true);
        world.run_for(2_600 * MS);
        world.cut(round % 3, false);
        world.run_for(400 * MS);
    }
    world.check()
}

/// The home dies: nobody has its tokens for a while, and the next one begins without.
fn killed_home(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["2/second, burst 40", "50/second"], rules);
    world.run_for(30 * SECOND);
    world.set_all(Demand::All);
    world.run_for(2 * SECOND);
    world.kill(world.owner(world.home_of(0)));
    world.run_for(40 * SECOND);
    world.check()?;
    uses_all(&world, 10)
}

/// The node of the home loses the engine, and the others do not.
fn home_without_engine(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["10/second", "50/second"], rules);
    world.set_all(Demand::All);
    let node = world.owner(world.home_of(0));
    world.engine[node].is_cut = true;
    world.run_for(60 * SECOND);
    world.check()
}

/// The node of a home has lost it and does not know. One shard reaches now that node, now the next home.
fn two_homes(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["50/second"], rules);
    world.set_all(Demand::All);
    let shard = world.home_of(0);
    let before = world.owner(shard);
    world.engine[before].is_cut = true;
    world.run_for(25 * SECOND);
    let after = world.owner(shard);
    let third = 3 - before - after;
    for round in 0..150 {
        world.links[third][before].is_cut = round % 2 == 0;
        world.links[third][after].is_cut = round % 2 == 1;
        world.run_for(200 * MS);
    }
    world.check()
}

/// The node of a shard has lost it, and hears the home. The next owner may not.
fn two_borrowers(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["40/second, burst 3"], rules);
    world.set_all(Demand::All);
    let home = world.home_of(0);
    let (shard, deaf) = ((home + 1) % 3, (home + 2) % 3);
    world.run_for(5 * SECOND);
    world.cut(deaf, true);
    world.engine[shard].is_cut = true;
    world.run_for(45 * SECOND);
    world.check()
}

/// Planned hand-overs of all shards, again and again.
fn hand_overs(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["2/second, burst 40", "50/second"], rules);
    world.run_for(30 * SECOND);
    world.set_all(Demand::All);
    for round in 0..20 {
        world.hand_over(round % 3, round / 2 % 3);
        world.run_for(900 * MS);
    }
    world.run_for(10 * SECOND);
    world.check()?;
    uses_all(&world, 5)
}

/// A shard moves between a node that hears its home and one that does not.
fn deaf_half(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["40/second, burst 3"], rules);
    let home = world.home_of(0);
    let (shard, deaf) = ((home + 1) % 3, (home + 2) % 3);
    world.set_all(Demand::All);
    world.cut(deaf, true);
    world.run_for(5 * SECOND);
    for _ in 0..15 {
        world.hand_over(shard, deaf);
        world.run_for(950 * MS);
        world.hand_over(shard, home);
        world.run_for(950 * MS);
    }
    world.check()
}

/// A shard is cut off for less than it takes to count by itself.
fn short_cuts(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["30/second, burst 3"], rules);
    let away = (world.home_of(0) + 1) % 3;
    world.set_all(Demand::All);
    world.run_for(5 * SECOND);
    for _ in 0..20 {
        world.cut(away, true);
        world.run_for(950 * MS);
        world.cut(away, false);
        world.run_for(300 * MS);
    }
    world.check()
}

/// A shard has saved tokens of its share when it hears the home again.
fn kept_share(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["2/second, burst 30"], rules);
    let away = (world.home_of(0) + 1) % 3;
    world.run_for(20 * SECOND);
    world.cut(away, true);
    world.run_for(20 * SECOND);
    world.cut(away, false);
    world.run_for(15 * SECOND);
    world.set_all(Demand::Wasted);
    world.run_for(150 * MS);
    world.set_all(Demand::All);
    world.run_for(2 * SECOND);
    world.check()
}

/// The answer to a shard comes late, when the home has as much for another.
fn late_answers(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["20/second, burst 60"], rules);
    world.patience = 10 * SECOND;
    let home = world.home_of(0);
    let (late, other) = ((home + 1) % 3, (home + 2) % 3);
    world.run_for(20 * SECOND);
    for _ in 0..4 {
        world.links[home][late].delay = 3 * SECOND;
        world.demand[late][0] = Demand::Wasted;
        world.run_for(150 * MS);
        world.demand[late][0] = Demand::Nothing;
        world.run_for(2_700 * MS);
        world.demand[other][0] = Demand::Wasted;
        world.run_for(150 * MS);
        world.set_all(Demand::All);
        world.run_for(300 * MS);
        world.set_all(Demand::Nothing);
        world.heal();
        world.run_for(5 * SECOND + MS * 10 * (seed % 10));
    }
    world.check()
}

/// A shard keeps tokens until they die. They come back when the limit has gained as many, and has lent them to another.
fn late_returns(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["5/second, burst 60"], rules);
    let home = world.home_of(0);
    let (wastes, uses) = ((home + 1) % 3, (home + 2) % 3);
    world.run_for(20 * SECOND);
    world.demand[wastes][0] = Demand::Wasted;
    world.run_for(130 * MS);
    world.demand[wastes][0] = Demand::Nothing;
    world.links[wastes][home].delay = 13 * SECOND;
    world.run_for(12_870 * MS);
    world.demand[uses][0] = Demand::Wasted;
    world.run_for(150 * MS);
    world.demand[uses][0] = Demand::All;
    world.run_for(2 * SECOND);
    world.check()
}

/// One shard never has an owner. The others share what is not its part, also of a burst of one.
fn ownerless(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["10/minute, burst 1", "10/second, burst 1", "20/second, burst 5"], rules);
    let homes: Vec<usize> = (0..3).map(|limit| world.home_of(limit)).collect();
    let away = (homes[0] + 1 + seed as usize % 2) % 3;
    world.orphan(away);
    world.set_all(Demand::All);
    world.run_for(120 * SECOND);
    world.check()?;
    for (number, limit) in world.limits.iter().enumerate().filter(|(number, _)| homes[*number] != away) {
        let used = world.used_since(number, world.now - 90 * SECOND);
        let least = 90 * SECOND / limit.rate.interval() / 4;
        let is_used = (0..3).all(|shard| shard == away || used[shard] as u64 >= least);
        holds(is_used, &format!("{used:?} of {}", limit.rate))?;
    }
    Ok(())
}

/// Messages that take longer from their choice to MAIL than a token lives.
fn slow_messages(seed: u64, rules: Rules) -> Result<(), String> {
    let mut world = World::new(seed, 3, &["10/minute, burst 1", "2/second, burst 1"], rules);
    world.demand[1].fill(Demand::Slow);
    world.run_for(120 * SECOND);
    world.check()?;
    let used = [0, 1].map(|limit| world.used_since(limit, world.now - 90 * SECOND)[1]);
    holds(used[0] >= 10 && used[1] >= 30, &format!("{used:?}"))
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod each {
            $(#[test]
            fn $name() {
                for seed in 0..6 {
                    super::$name(seed, super::Rules::ALL).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
            })*
        }
    };
}

scenarios!(
    one_then_all,
    all_apart,
    one_way,
    flapping,
    killed_home,
    home_without_engine,
    two_homes,
    two_borrowers,
    hand_overs,
    deaf_half,
    short_cuts,
    kept_share,
    late_answers,
    late_returns,
    ownerless,
    slow_messages,
);

#[test]
fn no_fault_makes_shards_exceed_a_limit() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("POSTHASTE_CLUSTER_SEED") {
        Some(seed) => seed..seed + 1,
        // Half a second each in a debug build.
        None => 0..number("POSTHASTE_CLUSTER_SEEDS").unwrap_or(20),
    };
    for seed in seeds {
        by_seed(seed, Rules::ALL).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Some seed of the scenario fails with these rules.
fn is_noticed(scenario: Scenario, rules: Rules, seeds: u64) -> bool {
    (0..seeds).any(|seed| scenario(seed, rules).is_err())
}

macro_rules! switches {
    ($($name:ident: $scenario:expr, $seeds:expr;)*) => {
        mod broken {
            $(#[test]
            fn $name() {
                let lending = super::LendingRules { $name: false, ..super::LendingRules::ALL };
                let rules = super::Rules { lending, ..super::Rules::ALL };
                assert!(super::is_noticed($scenario, rules, $seeds), "nothing notices that {} is broken", stringify!($name));
            })*
        }
    };
}

switches! {
    tokens_die: super::by_seed, 100;
    from_request: super::late_answers, 6;
    empty_share: super::flapping, 6;
    keeps_share: super::one_way, 6;
    echo: super::one_way, 6;
    late_share: super::short_cuts, 6;
    waits_at_start: super::deaf_half, 6;
    share_ends: super::kept_share, 6;
    whole_burst: super::all_apart, 6;
    returned_late: super::late_returns, 6;
}

#[test]
fn home_lease() {
    let rules = Rules { home_lease: false, ..Rules::ALL };
    assert!(is_noticed(two_homes, rules, 6), "nothing notices that a home lends without its lease");
}

#[test]
fn asks_in_lease() {
    let rules = Rules { asks_in_lease: false, ..Rules::ALL };
    assert!(is_noticed(two_borrowers, rules, 12), "nothing notices that a shard asks without its lease");
}
