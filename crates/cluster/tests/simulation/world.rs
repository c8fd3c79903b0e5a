//! Time, network, nodes and faults, all by a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use posthaste_cluster::{
    CellKey, LogError, LogPosition, NodeName, OwnershipConfig, OwnershipRules, OwnershipTimes, ReaderRules,
    SenderRules, ShardOwnership, StopReason,
};
use posthaste_random::Random;

use crate::engine::{Answer, Engine, Request};
use crate::member::{Disk, Member};

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub ownership: OwnershipRules,
    pub reader: ReaderRules,
    pub sender: SenderRules,
}

impl Rules {
    pub fn all() -> Self {
        Rules { ownership: OwnershipRules::ALL, reader: ReaderRules::default(), sender: SenderRules::default() }
    }
}

pub struct World {
    pub now: u64,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    pub random: Random,
    pub rules: Rules,
    pub times: OwnershipTimes,
    pub engine: Engine,
    pub engine_paused_until: u64,
    pub nodes: Vec<Node>,
    /// Shard `n` is at home at node `n % homes`.
    homes: usize,
    pub shards: u16,
    /// Appends, of a thousand, that are refused without a reason, or stored after their answer is given up.
    pub append_faults: u64,
    /// Milliseconds until a request counts as unanswered.
    pub timeout: u64,
    /// Shortest and longest time of a body, in milliseconds; most are short if there is none.
    pub bodies: Option<(u64, u64)>,
    /// Clients send while this is true.
    pub has_clients: bool,
    next_message: u64,
    pub acknowledged: BTreeSet<u64>,
    /// Of each message: shard and epochs of its deliveries.
    pub delivered: BTreeMap<u64, (u16, Vec<u64>)>,
    /// The highest epoch that has acted, by shard, and the first time of each epoch.
    pub acted: BTreeMap<u16, u64>,
    pub first_act: BTreeMap<(u16, u64), u64>,
    pub stopped: Vec<(usize, u16, StopReason)>,
    pub names_taken: usize,
    pub cuts: usize,
    /// Node, shard and time of each take-over from a silent owner.
    pub taken: Vec<(usize, u16, u64)>,
    pub violations: Vec<String>,
}

pub struct Node {
    pub name: NodeName,
    pub boot: u64,
    /// SIGSTOP until then.
    pub frozen_until: u64,
    /// The clock stands still from then on.
    pub clock_stopped_at: Option<u64>,
    /// Milliseconds that the clock has lost.
    clock_lost: u64,
    pub has_bad_clock: bool,
    pub to_engine: Link,
    pub from_engine: Link,
    pub disks: Vec<Disk>,
    pub process: Option<Process>,
}

#[derive(Default)]
pub struct Link {
    free_at: u64,
    pub held_until: u64,
    /// Lost, of a thousand messages.
    pub loss: u64,
    /// More delay, in milliseconds.
    pub delay: u64,
}

pub struct Process {
    pub ownership: ShardOwnership,
    pub members: Vec<Member>,
    /// By number, with the time of sending.
    pub pending: BTreeMap<u64, (u64, Request, Purpose)>,
    next: u64,
    pub ticks: u64,
}

#[derive(Clone, Copy)]
pub enum Purpose {
    Own(u64),
    Append {
        shard: u16,
        generation: u64,
        send: u64,
    },
    SenderRead {
        shard: u16,
        generation: u64,
    },
    Follow {
        shard: u16,
        generation: u64,
    },
    End {
        shard: u16,
    },
    /// The position that the member had applied before.
    State {
        shard: u16,
        applied: LogPosition,
    },
    Nothing,
}

pub enum Event {
    Tick {
        node: usize,
        boot: u64,
    },
    Arrives {
        node: usize,
        boot: u64,
        number: u64,
        request: Request,
    },
    Answered {
        node: usize,
        boot: u64,
        number: u64,
        answer: Answer,
    },
    Seen {
        node: usize,
        boot: u64,
        key: CellKey,
        value: Bytes,
        revision: u64,
    },
    Synced {
        node: usize,
        boot: u64,
        shard: u16,
    },
    /// The body of a transaction was sent.
    Ends {
        node: usize,
        boot: u64,
        shard: u16,
        epoch: u64,
        message: u64,
    },
    Starts {
        node: usize,
    },
    Client,
}

impl World {
    pub fn new(seed: u64, nodes: usize, shards: u16, rules: Rules) -> Self {
        let times = OwnershipTimes { keep: (Duration::from_secs(8), 20_000), ..OwnershipTimes::default() };
        let mut world = World {
            now: 1,
            events: BTreeMap::new(),
            sequence: 0,
            random: Random::of(seed, 0x51),
            rules,
            times: OwnershipTimes { digest: Duration::from_secs(15), ..times },
            engine: Engine::default(),
            engine_paused_until: 0,
            nodes: Vec::new(),
            homes: nodes,
            shards,
            append_faults: 0,
            timeout: 5_000,
            bodies: None,
            has_clients: true,
            next_message: 0,
            acknowledged: BTreeSet::new(),
            delivered: BTreeMap::new(),
            acted: BTreeMap::new(),
            first_act: BTreeMap::new(),
            stopped: Vec::new(),
            names_taken: 0,
            cuts: 0,
            taken: Vec::new(),
            violations: Vec::new(),
        };
        for node in 0..nodes {
            let name = NodeName::new(&format!("n{node}")).unwrap();
            world.add_node(name);
        }
        world.after(0, Event::Client);
        world
    }

    pub fn add_node(&mut self, name: NodeName) -> usize {
        let disks = (0..self.shards).map(|_| Disk::new(self.random.next())).collect();
        self.nodes.push(Node {
            name,
            boot: 0,
            frozen_until: 0,
            clock_stopped_at: None,
            clock_lost: 0,
            has_bad_clock: false,
            to_engine: Link::default(),
            from_engine: Link::default(),
            disks,
            process: None,
        });
        let node = self.nodes.len() - 1;
        self.start(node);
        node
    }

    pub fn after(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + delay, self.sequence), event);
    }

    pub fn violation(&mut self, what: String) {
        self.violations.push(format!("{} ms: {what}", self.now));
    }

    /// CLOCK_BOOTTIME of a node. Each machine was started at another time.
    pub fn clock(&self, node: usize) -> Duration {
        let it = &self.nodes[node];
        let shown = it.clock_stopped_at.unwrap_or(self.now) - it.clock_lost;
        Duration::from_millis(shown + 1_000_000 * (node as u64 + 1))
    }

    /// True if its process is running at this moment.
    pub fn runs(&self, node: usize) -> bool {
        self.nodes[node].process.is_some() && self.nodes[node].frozen_until <= self.now
    }

    pub fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_some() {
            return;
        }
        let config = OwnershipConfig {
            node: self.nodes[node].name.clone(),
            incarnation: self.random.next(),
            times: self.times,
            rules: self.rules.ownership,
        };
        let mut ownership = ShardOwnership::new(config);
        (0..self.shards).for_each(|shard| ownership.add(shard, usize::from(shard) % self.homes == node));
        let reader = self.rules.reader;
        let it = &mut self.nodes[node];
        it.boot += 1;
        let members = (0..).zip(&it.disks).map(|(shard, disk)| Member::new(shard, disk, reader)).collect();
        it.process = Some(Process { ownership, members, pending: BTreeMap::new(), next: 0, ticks: 0 });
        let boot = it.boot;
        self.send(node, Request::Watch, Purpose::Nothing);
        self.after(0, Event::Tick { node, boot });
    }

    pub fn kill(&mut self, node: usize) {
        self.nodes[node].process = None;
        self.nodes[node].frozen_until = 0;
    }

    /// Kills it, and makes its disks empty.
    pub fn wipe(&mut self, node: usize) {
        self.kill(node);
        for shard in 0..usize::from(self.shards) {
            self.nodes[node].disks[shard] = Disk { wiped_at: Some(self.now), ..Disk::new(self.random.next()) };
        }
    }

    pub fn freeze(&mut self, node: usize, time: u64) {
        self.nodes[node].frozen_until = self.now + time;
    }

    pub fn stop_clock(&mut self, node: usize) {
        self.nodes[node].clock_stopped_at = Some(self.now);
        self.nodes[node].has_bad_clock = true;
    }

    pub fn start_clock(&mut self, node: usize) {
        let now = self.now;
        let it = &mut self.nodes[node];
        if let Some(at) = it.clock_stopped_at.take() {
            it.clock_lost += now - at;
        }
    }

    /// The owner of a shard that acts, if one does.
    pub fn owner(&self, shard: u16) -> Option<usize> {
        let epoch = self.engine.shard_cell(shard)?.epoch;
        let acts = |it: &Node| it.process.as_ref().is_some_and(|it| it.members[usize::from(shard)].acts == Some(epoch));
        self.nodes.iter().position(acts)
    }

    pub fn send(&mut self, node: usize, request: Request, purpose: Purpose) {
        let Some(process) = &mut self.nodes[node].process else { return };
        process.next += 1;
        let number = process.next;
        process.pending.insert(number, (self.now, request.clone(), purpose));
        let boot = self.nodes[node].boot;
        let at = transit(&mut self.nodes[node].to_engine, &mut self.random, self.now);
        if let Some(at) = at {
            self.after(at - self.now, Event::Arrives { node, boot, number, request });
        }
    }

    fn answer(&mut self, node: usize, boot: u64, number: u64, answer: Answer) {
        let at = transit(&mut self.nodes[node].from_engine, &mut self.random, self.now);
        if let Some(at) = at {
            self.after(at - self.now, Event::Answered { node, boot, number, answer });
        }
    }

    /// Runs until a time.
    pub fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.events.first_entry() {
            let at = entry.key().0;
            if at > end {
                break;
            }
            let event = entry.remove();
            self.now = self.now.max(at);
            self.handle(event);
        }
        self.now = end;
    }

    pub fn run_for(&mut self, time: u64) {
        self.run_until(self.now + time);
    }

    /// Runs until something is so, but not for longer than `most`. False if it is not so then.
    pub fn run_until_so(&mut self, most: u64, is_so: impl Fn(&World) -> bool) -> bool {
        let end = self.now + most;
        while !is_so(self) {
            if self.now >= end {
                return false;
            }
            self.run_for(50);
        }
        true
    }

    fn handle(&mut self, event: Event) {
        let (node, boot) = match &event {
            Event::Tick { node, boot }
            | Event::Answered { node, boot, .. }
            | Event::Seen { node, boot, .. }
            | Event::Synced { node, boot, .. }
            | Event::Ends { node, boot, .. } => (*node, *boot),
            Event::Arrives { .. } | Event::Client | Event::Starts { .. } => return self.handle_outside(event),
        };
        let it = &self.nodes[node];
        if it.process.is_none() || it.boot != boot {
            return;
        }
        if it.frozen_until > self.now {
            let wait = it.frozen_until - self.now;
            return self.after(wait, event);
        }
        self.handle_in_process(node, event);
    }

    fn handle_outside(&mut self, event: Event) {
        match event {
            // Some are lost with the connection.
            Event::Arrives { .. } if self.engine_paused_until > self.now => {
                if self.random.one_in(2) {
                    self.after(self.engine_paused_until - self.now, event);
                }
            }
            Event::Arrives { node, boot, number, request } => {
                let is_append = matches!(request, Request::Append { .. });
                if is_append && self.random.below(1000) < self.append_faults {
                    self.fault_of_append(node, boot, number, request)
                } else {
                    self.at_engine(node, boot, number, &request)
                }
            }
            Event::Starts { node } => self.start(node),
            Event::Client => {
                if self.has_clients {
                    self.client();
                }
                let pause = 60 + self.random.below(150);
                self.after(pause, Event::Client);
            }
            _ => unreachable!("an event of a process"),
        }
    }

    fn fault_of_append(&mut self, node: usize, boot: u64, number: u64, request: Request) {
        if self.random.one_in(2) {
            let refused = LogError::Refused("for no reason".to_owned());
            return self.answer(node, boot, number, Answer::Appended(Err(refused)));
        }
        // About when the sender decides: nobody waits for this answer.
        let late = self.timeout + self.random.below(700);
        self.after(late, Event::Arrives { node, boot, number: u64::MAX, request });
    }

    pub fn at_engine(&mut self, node: usize, boot: u64, number: u64, request: &Request) {
        match request {
            Request::Watch => {
                let cells: Vec<_> = self.engine.cells.iter().map(|(key, cell)| (key.clone(), cell.clone())).collect();
                for (key, (value, revision)) in cells {
                    self.show(node, boot, CellKey::of(&key).unwrap(), value, revision);
                }
            }
            Request::Cut { shard, below } => self.note_cut(*shard, *below),
            Request::Swap(CellKey::Shard(shard), revision, value) => {
                self.note_take_over(node, *shard, *revision, value)
            }
            _ => {}
        }
        let answer = self.engine.handle(request);
        if let (Request::Swap(key, _, value), Answer::Swapped(Ok(revision))) = (request, &answer) {
            for other in 0..self.nodes.len() {
                let boot = self.nodes[other].boot;
                self.show(other, boot, key.clone(), value.clone(), *revision);
            }
        }
        self.answer(node, boot, number, answer);
    }

    /// A watch loses nothing, and keeps the order.
    fn show(&mut self, node: usize, boot: u64, key: CellKey, value: Bytes, revision: u64) {
        let link = &mut self.nodes[node].from_engine;
        let loss = std::mem::take(&mut link.loss);
        let at = transit(link, &mut self.random, self.now).expect("nothing is lost");
        self.nodes[node].from_engine.loss = loss;
        self.after(at - self.now, Event::Seen { node, boot, key, value, revision });
    }

    /// Two disks at least must have all that is cut, but for one that somebody has wiped a moment ago.
    fn note_cut(&mut self, shard: u16, below: LogPosition) {
        self.cuts += 1;
        let disks: Vec<&Disk> = self.nodes.iter().map(|node| &node.disks[usize::from(shard)]).collect();
        let has = disks.iter().filter(|disk| disk.position().next() >= below).count();
        let wiped = disks.iter().filter(|it| it.wiped_at.is_some_and(|at| at + 6_000 > self.now)).count();
        if has + wiped < 2 {
            self.violation(format!(
                "the log of shard {shard} is cut below {below}, and {has} disks have what is before"
            ));
        }
    }

    fn note_take_over(&mut self, node: usize, shard: u16, revision: u64, value: &Bytes) {
        let Some(before) = self.engine.cells.get(&CellKey::Shard(shard).to_string()) else { return };
        let (Some(old), Some(new)) = (self.engine.shard_cell(shard), posthaste_cluster::ShardCell::decode(value))
        else {
            return;
        };
        if before.1 != revision || new.epoch == old.epoch || old.owner.is_none() {
            return;
        }
        self.taken.push((node, shard, self.now));
    }

    fn client(&mut self) {
        let shard = self.random.below(u64::from(self.shards)) as u16;
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let clock = self.clock(node);
        if !self.runs(node) {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let member = &mut process.members[usize::from(shard)];
        if member.acts.is_none() || member.is_releasing || !process.ownership.may_begin(shard, clock) {
            return;
        }
        self.next_message += 1;
        member.intake.push(self.next_message);
        self.act(node);
    }

    /// The sink hears of an owner's act.
    pub fn acts(&mut self, node: usize, shard: u16, epoch: u64) {
        let highest = self.acted.entry(shard).or_default();
        if epoch < *highest && !self.nodes[node].has_bad_clock {
            let highest = *highest;
            return self.violation(format!("node {node} acts for shard {shard} in epoch {epoch}, after {highest}"));
        }
        *highest = epoch.max(*highest);
        self.first_act.entry((shard, epoch)).or_insert(self.now);
    }
}

/// The time of arrival; `None` if it is lost.
fn transit(link: &mut Link, random: &mut Random, now: u64) -> Option<u64> {
    if random.below(1000) < link.loss {
        return None;
    }
    let at = now.max(link.held_until) + link.delay + 1 + random.below(8);
    link.free_at = at.max(link.free_at);
    Some(link.free_at)
}
