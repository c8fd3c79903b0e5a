//! A process: it drives the real ownership, senders and readers, and the model of the rest.

use posthaste_cluster::{
    Effect, Invalid, LogError, LogRecord, LogState, MemberReport, OwnReport, OwnerIdentity, OwnershipEffect, Read,
    Sender,
};

use crate::engine::{Answer, Records, Request};
use crate::member::{Member, Valid};
use crate::world::{Event, Process, Purpose, World};

impl World {
    pub fn handle_in_process(&mut self, node: usize, event: Event) {
        let clock = self.clock(node);
        match event {
            Event::Tick { boot, .. } => {
                self.tick(node);
                self.act(node);
                self.after(TICK, Event::Tick { node, boot });
                return;
            }
            Event::Seen { key, value, revision, .. } => {
                self.process(node).ownership.seen(clock, &key, &value, revision);
            }
            Event::Answered { number, answer, .. } => {
                let Some((_, request, purpose)) = self.process(node).pending.remove(&number) else { return };
                self.answered(node, &request, purpose, answer);
            }
            Event::Synced { shard, .. } => {
                let acknowledged = self.sync(node, shard);
                self.acknowledged.extend(acknowledged);
            }
            Event::Ends { shard, epoch, message, .. } => self.end_transaction(node, shard, epoch, message),
            Event::Arrives { .. } | Event::Client | Event::Starts { .. } => unreachable!("not an event of a process"),
        }
        self.act(node);
    }

    pub fn process(&mut self, node: usize) -> &mut Process {
        self.nodes[node].process.as_mut().expect("it runs")
    }

    pub fn member(&mut self, node: usize, shard: u16) -> &mut Member {
        &mut self.process(node).members[usize::from(shard)]
    }

    fn sync(&mut self, node: usize, shard: u16) -> Vec<u64> {
        let it = &mut self.nodes[node];
        let member = &mut it.process.as_mut().expect("it runs").members[usize::from(shard)];
        member.sync(&mut it.disks[usize::from(shard)])
    }

    /// Requests that were not answered in time.
    fn expire(&mut self, node: usize) {
        let old = self.now.saturating_sub(self.timeout);
        while let Some(first) = self.process(node).pending.first_entry().filter(|first| first.get().0 <= old) {
            let (_, request, purpose) = first.remove();
            self.answered(node, &request, purpose, request.lost());
        }
    }

    fn tick(&mut self, node: usize) {
        self.expire(node);
        let clock = self.clock(node);
        let now = self.now;
        self.process(node).ticks += 1;
        let is_second = self.process(node).ticks % 4 == 1;
        for shard in 0..self.shards {
            let it = &mut self.nodes[node];
            let disk = &it.disks[usize::from(shard)];
            let process = it.process.as_mut().expect("it runs");
            let member = &mut process.members[usize::from(shard)];
            if member.is_stopped {
                process.ownership.needs_seeding(shard);
                continue;
            }
            let log = disk.history.map_or(0, |history| history.log);
            let report = MemberReport { spool: disk.spool, log, applied: disk.position(), digest: disk.digest };
            let lag = std::time::Duration::from_millis(member.behind_since.map_or(0, |since| now - since));
            process.ownership.report(shard, OwnReport { report, lag });
        }
        self.process(node).ownership.tick(clock);
        for shard in 0..self.shards {
            if is_second && self.member(node, shard).acts.is_some() {
                let applied = self.nodes[node].disks[usize::from(shard)].position();
                self.send(node, Request::State { shard }, Purpose::State { shard, applied });
            }
            self.follow(node, shard);
            self.begin_transactions(node, shard);
        }
    }

    /// A standby reads on.
    fn follow(&mut self, node: usize, shard: u16) {
        let position = self.nodes[node].disks[usize::from(shard)].position();
        let member = self.member(node, shard);
        if member.sender.is_some() || member.is_reading || member.is_stopped {
            return;
        }
        member.is_reading = true;
        let from = if member.is_verified { member.reader.position().next() } else { position };
        let generation = member.generation;
        self.send(node, Request::Read { shard, from }, Purpose::Follow { shard, generation });
    }

    fn begin_transactions(&mut self, node: usize, shard: u16) {
        let clock = self.clock(node);
        let it = &self.nodes[node];
        let Some(process) = &it.process else { return };
        let member = &process.members[usize::from(shard)];
        let Some(epoch) = member.acts else { return };
        if member.is_releasing || !process.ownership.may_act(shard, clock) {
            return;
        }
        let is_new = |id: &&u64| !member.open_transactions.contains(id) && !member.unrecorded.contains(id);
        let room = TRANSACTIONS_MAX.saturating_sub(member.open_transactions.len());
        let room = room.min(UNRECORDED_MAX.saturating_sub(member.unrecorded.len()));
        let begun: Vec<u64> =
            it.disks[usize::from(shard)].queue.open.iter().filter(is_new).take(room).copied().collect();
        let boot = it.boot;
        for message in begun {
            self.acts(node, shard, epoch);
            self.member(node, shard).open_transactions.insert(message);
            let time = match self.bodies {
                Some((least, most)) => least + self.random.below(most - least),
                None if self.random.one_in(16) => self.random.below(20_000),
                None => 20 + self.random.below(700),
            };
            self.after(time, Event::Ends { node, boot, shard, epoch, message });
        }
    }

    /// The body was sent: the final dot follows, if the owner may still act.
    fn end_transaction(&mut self, node: usize, shard: u16, epoch: u64, message: u64) {
        let clock = self.clock(node);
        let may_act = self.process(node).ownership.may_act(shard, clock);
        let member = self.member(node, shard);
        if member.acts != Some(epoch) || !member.open_transactions.remove(&message) || !may_act {
            return;
        }
        member.unrecorded.insert(message);
        member.outcomes.push(message);
        self.acts(node, shard, epoch);
        self.delivered.entry(message).or_insert_with(|| (shard, Vec::new())).1.push(epoch);
        self.begin_transactions(node, shard);
    }

    fn answered(&mut self, node: usize, request: &Request, purpose: Purpose, answer: Answer) {
        let clock = self.clock(node);
        match (purpose, answer) {
            (Purpose::Own(number), Answer::Got(outcome)) => {
                self.process(node).ownership.got(clock, number, outcome);
            }
            (Purpose::Own(number), Answer::Swapped(outcome)) => {
                self.process(node).ownership.swapped(clock, number, outcome);
            }
            (Purpose::Append { shard, generation, send }, Answer::Appended(outcome)) => {
                let member = self.member(node, shard);
                if member.generation != generation {
                    return;
                }
                let is_answered = outcome.is_ok();
                if let Some(sender) = &mut member.sender {
                    sender.answer(send, outcome);
                }
                if is_answered {
                    self.process(node).ownership.appended(clock, shard);
                }
            }
            (Purpose::SenderRead { shard, generation }, Answer::Read(outcome))
                if self.member(node, shard).generation == generation =>
            {
                self.sender_read(node, shard, request, outcome);
            }
            (Purpose::Follow { shard, generation }, Answer::Read(outcome))
                if self.member(node, shard).generation == generation =>
            {
                self.member(node, shard).is_reading = false;
                self.followed(node, shard, outcome);
            }
            (Purpose::End { shard }, Answer::State(outcome)) => {
                let outcome = outcome.map(|state| state.1);
                self.process(node).ownership.log_end(clock, shard, outcome);
            }
            (Purpose::State { shard, applied }, Answer::State(outcome)) => {
                let state = outcome.ok().map(|(first, end, bytes, stored)| {
                    let room = (stored, 1 << 30);
                    LogState { applied, first, end, bytes, room, is_current: true }
                });
                self.process(node).ownership.log_state(clock, shard, state);
            }
            _ => {}
        }
    }

    fn sender_read(&mut self, node: usize, shard: u16, request: &Request, outcome: Result<Records, LogError>) {
        let Request::Read { from, .. } = request else { return };
        let member = self.member(node, shard);
        let generation = member.generation;
        let Some(sender) = &mut member.sender else { return };
        match outcome {
            Ok((records, end)) => {
                let mut last = None;
                for (position, bytes) in &records {
                    sender.read(*position, bytes);
                    last = Some(*position);
                }
                if last.is_none_or(|last| last >= end) {
                    sender.read_to_end();
                } else if !sender.is_ended() {
                    let from = sender.position().next();
                    self.send(node, Request::Read { shard, from }, Purpose::SenderRead { shard, generation });
                }
            }
            Err(LogError::Gap(position)) => {
                sender.read_failed(Invalid::Hole { position, why: "it is not there".to_owned() });
            }
            Err(LogError::Cut { first }) => sender.read_failed(Invalid::Cut { position: *from, first }),
            Err(_) => self.send(node, request.clone(), Purpose::SenderRead { shard, generation }),
        }
    }

    fn followed(&mut self, node: usize, shard: u16, outcome: Result<Records, LogError>) {
        let now = self.now;
        let it = &mut self.nodes[node];
        let disk = &it.disks[usize::from(shard)];
        let member = &mut it.process.as_mut().expect("it runs").members[usize::from(shard)];
        let (records, end) = match outcome {
            Ok(read) => read,
            // The record itself may be cut, and those after it be there.
            Err(LogError::Cut { .. }) if !member.is_verified => return member.is_verified = true,
            Err(LogError::Cut { .. } | LogError::Gap(_)) => return member.is_stopped = true,
            Err(_) => return,
        };
        let mut is_new = false;
        for (position, bytes) in &records {
            if !member.is_verified {
                member.is_verified = true;
                let is_same =
                    LogRecord::decode(bytes).is_ok_and(|it| disk.history.is_some_and(|last| last.crc == it.crc));
                if !is_same {
                    member.is_stopped = true;
                    break;
                }
                continue;
            }
            match member.reader.read(*position, bytes) {
                Ok(Read::Valid(record)) => {
                    let history = *member.reader.history().expect("a record was read");
                    member.unsynced.push_back(Valid { record, history, acknowledges: Vec::new() });
                    is_new = true;
                }
                Ok(Read::Skipped(_)) => {}
                Err(_) => {
                    member.is_stopped = true;
                    break;
                }
            }
        }
        // It was rolled back to before the last record on the disk.
        if !member.is_verified {
            member.is_stopped = true;
        }
        let is_behind = member.reader.position() < end;
        member.behind_since = if is_behind { member.behind_since.or(Some(now)) } else { None };
        if is_new {
            self.sync_soon(node, shard);
        }
        if is_behind {
            self.follow(node, shard);
        }
    }

    fn sync_soon(&mut self, node: usize, shard: u16) {
        let boot = self.nodes[node].boot;
        let time = 1 + self.random.below(25);
        self.after(time, Event::Synced { node, boot, shard });
    }

    /// Does all that ownership and senders ask for.
    pub fn act(&mut self, node: usize) {
        loop {
            let mut has_acted = false;
            while let Some(effect) = self.nodes[node].process.as_mut().and_then(|it| it.ownership.effect()) {
                self.own_effect(node, effect);
                has_acted = true;
            }
            for shard in 0..self.shards {
                if self.nodes[node].process.is_none() {
                    return;
                }
                has_acted |= self.act_for(node, shard);
            }
            if !has_acted {
                return;
            }
        }
    }

    fn act_for(&mut self, node: usize, shard: u16) -> bool {
        let mut has_acted = false;
        loop {
            let member = self.member(node, shard);
            let generation = member.generation;
            let Some(sender) = &mut member.sender else { break };
            let Some(effect) = sender.effect() else {
                if !sender.is_ready() {
                    break;
                }
                let Some((content, load)) = member.next_record() else { break };
                member.sender.as_mut().expect("it is there").push(content, load);
                continue;
            };
            has_acted = true;
            match effect {
                Effect::Append { after, record, send } => {
                    let request = Request::Append { shard, after, record };
                    self.send(node, request, Purpose::Append { shard, generation, send });
                }
                Effect::Read { from } => {
                    self.send(node, Request::Read { shard, from }, Purpose::SenderRead { shard, generation });
                }
                Effect::Valid { record, history, load } => {
                    let acknowledges = load.unwrap_or_default();
                    member.unsynced.push_back(Valid { record, history, acknowledges });
                    self.sync_soon(node, shard);
                }
                Effect::Ended { end, .. } => self.process(node).ownership.ended(shard, end),
            }
        }
        let process = self.process(node);
        let member = &mut process.members[usize::from(shard)];
        let is_open = member.sender.as_ref().is_some_and(Sender::is_open);
        if member.is_opening && is_open && member.unsynced.is_empty() {
            member.is_opening = false;
            process.ownership.opened(shard);
            return true;
        }
        if member.is_releasing && member.acts.is_some() && member.is_quiet() {
            member.acts = None;
            process.ownership.released(shard);
        }
        has_acted
    }

    fn own_effect(&mut self, node: usize, effect: OwnershipEffect) {
        let reader_rules = self.rules.reader;
        let sender_rules = self.rules.sender;
        match effect {
            OwnershipEffect::Get { key, request } => self.send(node, Request::Get(key), Purpose::Own(request)),
            OwnershipEffect::Swap { key, revision, value, request } => {
                self.send(node, Request::Swap(key, revision, value), Purpose::Own(request));
            }
            OwnershipEffect::LogEnd { shard } => self.send(node, Request::State { shard }, Purpose::End { shard }),
            OwnershipEffect::Open { shard, epoch, nonce } => {
                let log = self.random.next();
                let it = &mut self.nodes[node];
                let member = &mut it.process.as_mut().expect("it runs").members[usize::from(shard)];
                member.demote(shard, &it.disks[usize::from(shard)], reader_rules);
                let identity = OwnerIdentity { nonce, log, epoch: Some(epoch) };
                member.sender = Some(Sender::new(member.reader.clone(), identity, sender_rules));
                member.is_opening = true;
            }
            OwnershipEffect::Promote { shard } => {
                let epoch = self.process(node).ownership.epoch(shard);
                self.member(node, shard).acts = epoch;
            }
            OwnershipEffect::Release { shard } => self.member(node, shard).is_releasing = true,
            OwnershipEffect::Demote { shard } => {
                let it = &mut self.nodes[node];
                let disk = &it.disks[usize::from(shard)];
                it.process.as_mut().expect("it runs").members[usize::from(shard)].demote(shard, disk, reader_rules);
            }
            OwnershipEffect::Cut { shard, below } => {
                self.send(node, Request::Cut { shard, below }, Purpose::Nothing);
            }
            OwnershipEffect::Digest { shard } => self.member(node, shard).wants_digest = true,
            OwnershipEffect::Differs { .. } => {}
            OwnershipEffect::Stopped { shard, why } => self.stopped.push((node, shard, why)),
            OwnershipEffect::NameTaken | OwnershipEffect::Removed => {
                self.names_taken += 1;
                self.kill(node);
            }
        }
    }
}

/// Milliseconds between two looks at the time.
const TICK: u64 = 250;
/// Transactions of an owner at a time.
const TRANSACTIONS_MAX: usize = 4;
/// Deliveries that are not recorded.
const UNRECORDED_MAX: usize = 40;
