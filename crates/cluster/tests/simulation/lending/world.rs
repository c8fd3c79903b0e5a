//! Shards that lend tokens to each other. Real are homes, borrowers and frames. Models are the ownership of shards, by
//! its contract, the network, and the mail.

use std::collections::BTreeMap;

use posthaste_cluster::{Borrower, LendingRules, LendingShards, PACE, TokenAnswer, TokenHome, TokenRequest, limit_key};
use posthaste_random::Random;
use posthaste_units::Rate;

/// Nanoseconds.
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
const STEP: u64 = 5 * MS;

#[derive(Clone, Copy)]
pub struct Rules {
    pub lending: LendingRules,
    /// A home lends while its node has the lease of the shard.
    pub home_lease: bool,
    /// A shard asks within that lease: its next owner may hear less.
    pub asks_in_lease: bool,
}

impl Rules {
    pub const ALL: Rules = Rules { lending: LendingRules::ALL, home_lease: true, asks_in_lease: true };
}

/// The wishes of a shard for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    Nothing,
    /// Uses each token at once.
    All,
    /// Asks for tokens, and uses all that are there at rare moments.
    Late,
    /// Asks for tokens, and uses none.
    Wasted,
    /// A message now and then.
    Some,
    /// One message after another: each reserves a token, and uses it some time later.
    Slow,
}

pub struct Limit {
    pub rate: Rate,
    key: u64,
    /// Times at the sink, and the shard.
    pub used: Vec<(u64, usize)>,
}

/// A process that owns a shard: its home of limits, and its relay.
struct Owner {
    home: TokenHome,
    borrower: Borrower,
    act_until: u64,
    renews_at: u64,
    /// For each home: the time of the next request, and the request without an answer.
    next: Vec<u64>,
    asked: BTreeMap<usize, u64>,
    /// For each limit: the time at which the message that holds a token uses it.
    slow: BTreeMap<u64, u64>,
}

/// A shard, and the cell of its owner.
struct Shard {
    epoch: u64,
    owner: usize,
    written_at: u64,
}

#[derive(Default, Clone)]
pub struct Link {
    pub is_cut: bool,
    pub delay: u64,
    /// Lost, of a thousand.
    pub loss: u64,
}

enum Message {
    Ask { home: usize, request: Vec<u8> },
    Answer { home: usize, sent_at: u64, answer: Vec<u8> },
    Renewed { sent_at: u64 },
}

struct Letter {
    /// Node, and shard and epoch of the process that sends or gets it.
    to: usize,
    from: usize,
    shard: usize,
    epoch: u64,
    sent_at: u64,
    message: Message,
}

pub struct World {
    pub now: u64,
    pub random: Random,
    rules: Rules,
    numbers: LendingShards,
    shards: Vec<Shard>,
    /// By node and shard.
    owners: BTreeMap<(usize, usize), Owner>,
    /// By node from and to.
    pub links: Vec<Vec<Link>>,
    /// The link of each node to the engine, for renewals of leases.
    pub engine: Vec<Link>,
    /// SIGSTOP until then.
    pub frozen_until: Vec<u64>,
    /// An answer that is not there by then is not waited for.
    pub patience: u64,
    letters: BTreeMap<(u64, u64), Letter>,
    sequence: u64,
    pub limits: Vec<Limit>,
    /// By shard and limit.
    pub demand: Vec<Vec<Demand>>,
}

impl Owner {
    /// A message holds a token for that time, and then uses it, if it is there.
    fn use_slowly(&mut self, key: u64, now: u64, time: u64) -> bool {
        match self.slow.get(&key) {
            Some(due) if *due > now => false,
            Some(_) => {
                self.slow.remove(&key);
                let is_used = self.borrower.take(key, now);
                self.borrower.hold(key, false, now);
                is_used
            }
            None if self.borrower.available(key, now) > 0 => {
                self.borrower.hold(key, true, now);
                self.slow.insert(key, now + time);
                false
            }
            None => {
                self.borrower.want(key, 1, now);
                false
            }
        }
    }
}

impl World {
    /// A node for each shard, which owns it.
    pub fn new(seed: u64, nodes: usize, rates: &[&str], rules: Rules) -> Self {
        let random = Random::of(seed, 0x1e4d);
        let numbers: LendingShards = (1..=u16::try_from(nodes).unwrap()).collect();
        let of = |(number, rate): (usize, &&str)| Limit {
            rate: rate.parse().unwrap(),
            key: limit_key(&format!("limit {number}")),
            used: Vec::new(),
        };
        let limits: Vec<Limit> = rates.iter().enumerate().map(of).collect();
        let link = Link { delay: MS, ..Link::default() };
        let mut world = World {
            now: 10 * SECOND,
            random,
            rules,
            numbers,
            shards: (0..nodes).map(|owner| Shard { epoch: 0, owner, written_at: 0 }).collect(),
            owners: BTreeMap::new(),
            links: vec![vec![link.clone(); nodes]; nodes],
            engine: vec![link; nodes],
            frozen_until: vec![0; nodes],
            patience: 500 * MS,
            letters: BTreeMap::new(),
            sequence: 0,
            demand: vec![vec![Demand::Nothing; limits.len()]; nodes],
            limits,
        };
        (0..nodes).for_each(|node| world.begin(node, node));
        world
    }

    pub fn nodes(&self) -> usize {
        self.shards.len()
    }

    pub fn owner(&self, shard: usize) -> usize {
        self.shards[shard].owner
    }

    /// The place of the shard at which a limit is at home.
    pub fn home_of(&self, limit: usize) -> usize {
        self.owners.values().next().unwrap().borrower.home_of(self.limits[limit].key)
    }

    /// A node begins to act for a shard.
    pub fn begin(&mut self, node: usize, shard: usize) {
        let state = &mut self.shards[shard];
        (state.epoch, state.owner, state.written_at) = (state.epoch + 1, node, self.now);
        let (numbers, rules) = (&self.numbers, self.rules.lending);
        let mut borrower = Borrower::new(numbers[shard], numbers.clone(), self.now, rules);
        self.limits.iter().for_each(|limit| borrower.set(limit.key, limit.rate, self.now));
        let owner = Owner {
            home: TokenHome::new(state.epoch << 8 | shard as u64, numbers.clone(), self.now, rules),
            borrower,
            act_until: self.now + LEASE,
            renews_at: self.now + RENEW,
            next: vec![0; numbers.len()],
            asked: BTreeMap::new(),
            slow: BTreeMap::new(),
        };
        self.owners.insert((node, shard), owner);
    }

    /// A planned hand-over: the owner before has ended.
    pub fn hand_over(&mut self, shard: usize, to: usize) {
        self.owners.remove(&(self.shards[shard].owner, shard));
        self.begin(to, shard);
    }

    /// A shard has no owner from now on.
    pub fn orphan(&mut self, shard: usize) {
        self.owners.retain(|(_, of), _| *of != shard);
        self.shards[shard].written_at = u64::MAX;
    }

    pub fn kill(&mut self, node: usize) {
        self.owners.retain(|(of, _), _| *of != node);
    }

    pub fn set_all(&mut self, demand: Demand) {
        self.demand.iter_mut().flatten().for_each(|of| *of = demand);
    }

    /// Cuts a node off from all others, or ends that.
    pub fn cut(&mut self, node: usize, is_cut: bool) {
        for other in (0..self.nodes()).filter(|other| *other != node) {
            self.links[node][other].is_cut = is_cut;
            self.links[other][node].is_cut = is_cut;
        }
    }

    pub fn heal(&mut self) {
        let link = Link { delay: MS, ..Link::default() };
        self.links.iter_mut().flatten().chain(&mut self.engine).for_each(|it| *it = link.clone());
        self.frozen_until.iter_mut().for_each(|until| *until = 0);
    }

    pub fn run_for(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.deliver();
            for key in self.owners.keys().copied().collect::<Vec<_>>() {
                if self.frozen_until[key.0] <= self.now {
                    self.turn(key);
                }
            }
            self.take_over();
        }
    }

    fn turn(&mut self, (node, shard): (usize, usize)) {
        let now = self.now;
        let Some(owner) = self.owners.get_mut(&(node, shard)) else { return };
        if owner.renews_at <= now {
            owner.renews_at = now + RENEW;
            self.renew(node, shard);
        }
        self.use_tokens(node, shard);
        self.ask(node, shard);
    }

    /// The cell is written, though the answer may be lost.
    fn renew(&mut self, node: usize, shard: usize) {
        let link = &self.engine[node];
        let state = &mut self.shards[shard];
        if link.is_cut || state.owner != node {
            return;
        }
        state.written_at = self.now;
        let (epoch, delay) = (state.epoch, 2 * link.delay);
        let message = Message::Renewed { sent_at: self.now };
        if !self.random.below(1000).lt(&link.loss) {
            self.send(delay, Letter { to: node, from: node, shard, epoch, sent_at: self.now, message });
        }
    }

    fn send(&mut self, delay: u64, letter: Letter) {
        self.sequence += 1;
        self.letters.insert((self.now + delay, self.sequence), letter);
    }

    /// By the link between two nodes.
    fn post(&mut self, letter: Letter) {
        let Link { is_cut, delay, loss } = self.links[letter.from][letter.to];
        let is_local = letter.from == letter.to;
        if !is_local && (is_cut || self.random.below(1000) < loss) {
            return;
        }
        // The order of answers differs.
        let delay = if is_local { 0 } else { delay + STEP * self.random.below(3) };
        self.send(delay, letter);
    }

    fn use_tokens(&mut self, node: usize, shard: usize) {
        let now = self.now;
        let owner = self.owners.get_mut(&(node, shard)).expect("it runs");
        if owner.act_until <= now {
            return;
        }
        for (limit, demand) in self.limits.iter_mut().zip(&self.demand[shard]) {
            let wants = match demand {
                Demand::Nothing => false,
                Demand::All | Demand::Wasted => true,
                Demand::Late => {
                    owner.borrower.want(limit.key, 1000, now);
                    self.random.one_in(60)
                }
                Demand::Some => self.random.one_in(100),
                Demand::Slow => {
                    if owner.use_slowly(limit.key, now, 300 * MS + self.random.below(900) * MS) {
                        limit.used.push((now, shard));
                    }
                    false
                }
            };
            if !wants {
                continue;
            }
            if *demand == Demand::Wasted {
                owner.borrower.want(limit.key, 1000, now);
                continue;
            }
            // Some have one message, the others any number.
            let most = if *demand == Demand::Some { 1 } else { usize::MAX };
            let before = limit.used.len();
            while limit.used.len() - before < most && owner.borrower.take(limit.key, now) {
                limit.used.push((now, shard));
            }
        }
    }

    fn ask(&mut self, node: usize, shard: usize) {
        if self.owners[&(node, shard)].act_until <= self.now && self.rules.asks_in_lease {
            return;
        }
        for home in 0..self.shards.len() {
            let owner = self.owners.get_mut(&(node, shard)).expect("it runs");
            if owner.asked.get(&home).is_some_and(|sent_at| self.now - sent_at < self.patience) {
                continue;
            }
            owner.asked.remove(&home);
            if owner.next[home] > self.now {
                continue;
            }
            owner.next[home] = self.now + PACE;
            let Some(request) = owner.borrower.request(home, self.now) else { continue };
            owner.asked.insert(home, self.now);
            let request = request.encode().to_vec();
            let epoch = self.shards[shard].epoch;
            // Every process that was told to be the home gets it; it may be the wrong one.
            let homes: Vec<usize> = self.owners.keys().filter(|it| it.1 == home).map(|it| it.0).collect();
            for to in homes {
                let message = Message::Ask { home, request: request.clone() };
                self.post(Letter { to, from: node, shard, epoch, sent_at: self.now, message });
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(due) = self.letters.first_entry().filter(|due| due.key().0 <= self.now) {
            let letter = due.remove();
            let until = self.frozen_until[letter.to];
            if until > self.now {
                self.send(until - self.now, letter);
                continue;
            }
            self.receive(letter);
        }
    }

    fn receive(&mut self, letter: Letter) {
        let Letter { to, from, shard, epoch, sent_at, message } = letter;
        let now = self.now;
        match message {
            Message::Ask { home, request } => {
                let Some(owner) = self.owners.get_mut(&(to, home)) else { return };
                if owner.act_until <= now && self.rules.home_lease {
                    return;
                }
                let request = TokenRequest::decode(&request).unwrap();
                let answer = owner.home.answer(&request, now).unwrap().encode().to_vec();
                let message = Message::Answer { home, sent_at, answer };
                self.post(Letter { to: from, from: to, shard, epoch, sent_at, message });
            }
            Message::Answer { home, sent_at, answer } => {
                let is_of_this = self.shards[shard].epoch == epoch || self.shards[shard].owner != to;
                let Some(owner) = self.owners.get_mut(&(to, shard)).filter(|_| is_of_this) else { return };
                // Only the latest request is waited for, and only so long.
                if owner.asked.get(&home) == Some(&sent_at) && now - sent_at < self.patience {
                    owner.asked.remove(&home);
                    owner.borrower.answered(home, sent_at, &TokenAnswer::decode(&answer).unwrap(), now);
                }
            }
            Message::Renewed { sent_at } => {
                let is_current = self.shards[shard].epoch == epoch;
                if let Some(owner) = self.owners.get_mut(&(to, shard)).filter(|_| is_current) {
                    owner.act_until = owner.act_until.max(sent_at + LEASE);
                }
            }
        }
    }

    /// A silent owner is followed by another node, which the engine answers.
    fn take_over(&mut self) {
        for shard in 0..self.shards.len() {
            if self.now.saturating_sub(self.shards[shard].written_at) < SILENT {
                continue;
            }
            let is_well = |node: &usize| !self.engine[*node].is_cut && self.frozen_until[*node] <= self.now;
            let owner = self.shards[shard].owner;
            let others: Vec<usize> = (0..self.nodes()).filter(|node| *node != owner).filter(is_well).collect();
            if !others.is_empty() {
                let node = others[self.random.below(others.len() as u64) as usize];
                self.begin(node, shard);
            }
        }
        // The owner before finds that out once the engine answers.
        let (shards, engine, now) = (&self.shards, &self.engine, self.now);
        self.owners.retain(|(node, shard), owner| {
            shards[*shard].owner == *node || engine[*node].is_cut || owner.act_until > now
        });
    }

    /// In each window of W seconds at most burst + rate * (W + 0.5) tokens are used.
    pub fn check(&self) -> Result<(), String> {
        for Limit { rate, used, .. } in &self.limits {
            let interval = i128::from(rate.interval());
            let allowed = i128::from(rate.burst()) * interval + i128::from(SECOND / 2);
            let (mut least, mut first) = (i128::MAX, 0);
            for (number, (time, _)) in used.iter().enumerate() {
                let position = number as i128 * interval - i128::from(*time);
                if position < least {
                    (least, first) = (position, number);
                }
                if position - least + interval > allowed {
                    let (count, secs) = (number - first + 1, (time - used[first].0) as f64 / 1e9);
                    return Err(format!("{count} tokens of {rate} in {secs} s from {} on", used[first].0));
                }
            }
        }
        Ok(())
    }

    /// Tokens of a limit used since then, by shard.
    pub fn used_since(&self, limit: usize, since: u64) -> Vec<usize> {
        let mut counts = vec![0; self.nodes()];
        let used = self.limits[limit].used.iter().rev().take_while(|(time, _)| *time > since);
        used.for_each(|(_, shard)| counts[*shard] += 1);
        counts
    }
}

/// The lease of an owner, its renewals, and the silence after which another takes the shard.
const LEASE: u64 = 15 * SECOND;
const RENEW: u64 = 2 * SECOND;
const SILENT: u64 = 20 * SECOND;
