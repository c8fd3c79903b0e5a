//! Each rule has a switch that breaks it. With one set, the suite must fail.

use posthaste_cluster::{OwnershipRules, ReaderRules, SenderRules};

use crate::world::Rules;
use crate::{random, scenarios};

type Scenario = fn(u64, Rules) -> Result<(), String>;

fn by_seed(seed: u64, rules: Rules) -> Result<(), String> {
    random::run(seed, (3, 2), rules)
}

/// Some seed of the scenario fails with these rules.
fn is_noticed(scenario: Scenario, rules: Rules, seeds: u64) -> bool {
    // A broken rule may also make an assertion fail: that is noticed, too.
    let fails = |seed| {
        let run = std::panic::AssertUnwindSafe(|| scenario(seed, rules));
        std::panic::catch_unwind(run).map_or(true, |outcome| outcome.is_err())
    };
    (0..seeds).any(fails)
}

fn ownership(break_it: impl FnOnce(&mut OwnershipRules)) -> Rules {
    let mut rules = Rules::all();
    break_it(&mut rules.ownership);
    rules
}

macro_rules! switches {
    ($($name:ident: $scenario:expr, $seeds:expr;)*) => {
        $(#[test]
        fn $name() {
            let rules = ownership(|rules| rules.$name = false);
            assert!(is_noticed($scenario, rules, $seeds), "nothing notices that {} is broken", stringify!($name));
        })*
    };
}

switches! {
    lease_from_sending: scenarios::late_answers, 20;
    lease_ends: scenarios::late_answers, 20;
    count_answered: scenarios::paused_engine, 20;
    incarnation: scenarios::restarted_owner, 6;
    unknown_by_reading: by_seed, 100;
    end_check: scenarios::rolled_back_log, 6;
    in_sync_only: scenarios::unlike_standby, 20;
    cut_by_two: scenarios::away_standbys, 6;
    fresh_reports: scenarios::wiped_standby, 6;
    digests: scenarios::unlike_standby, 6;
    one_at_a_time: scenarios::many_shards, 6;
    one_name: scenarios::cloned_node, 6;
    removal: scenarios::removed_node, 6;
}

fn check(rules: Rules) {
    assert!(is_noticed(by_seed, rules, 150), "no seed notices {rules:?}");
}

#[test]
fn in_order() {
    check(Rules { sender: SenderRules { in_order: false, ..SenderRules::default() }, ..Rules::all() });
}

#[test]
fn alone() {
    check(Rules { sender: SenderRules { alone: false, ..SenderRules::default() }, ..Rules::all() });
}

#[test]
fn old_epochs() {
    check(Rules { reader: ReaderRules { old_epochs: false, ..ReaderRules::default() }, ..Rules::all() });
}

#[test]
fn barriers() {
    check(Rules { reader: ReaderRules { barriers: false, ..ReaderRules::default() }, ..Rules::all() });
}
