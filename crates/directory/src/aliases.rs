//! The graph of aliases: followed when mail arrives, checked when the configuration is read.

use std::collections::HashSet;

use crate::route::{DirectoryRefusal, Mailbox, Mailboxes, Place, Route};

/// Identifies an alias; aliases of patterns and of a catch-all have no other name.
pub(crate) type AliasId = u32;

/// The action of an alias.
#[derive(Debug)]
pub(crate) enum Action {
    /// Targets, at least one.
    To(Box<[Target]>),
    Discard,
    Refuse(DirectoryRefusal),
}

#[derive(Debug)]
pub(crate) enum Target {
    Mailbox(Mailbox),
    Alias(AliasId),
}

/// All aliases, by their ids. Loops were found by the check: an alias on a loop has its own mailbox as a target.
#[derive(Debug, Default)]
pub(crate) struct Aliases(Vec<Action>);

impl Aliases {
    pub fn action(&self, id: AliasId) -> &Action {
        &self.0[id as usize]
    }

    /// True if an alias leads to another host.
    pub fn has_remote(&self) -> bool {
        let is_remote = |target: &Target| matches!(target, Target::Mailbox(Mailbox { place: Place::Remote, .. }));
        self.0.iter().any(|action| matches!(action, Action::To(targets) if targets.iter().any(is_remote)))
    }

    /// Adds the mailboxes of `start`. Calls `visit` with each alias that it passes. A transport of `start` itself gets
    /// the mail as `address`, those of other aliases as the address of that alias.
    ///
    /// # Errors
    /// Mail for one of them is refused.
    pub fn follow(
        &self,
        start: AliasId,
        address: impl Fn() -> String,
        found: &mut Found,
        mut visit: impl FnMut(AliasId),
    ) -> Result<(), DirectoryRefusal> {
        let mut waiting = Vec::from_iter(found.aliases.insert(start).then_some(start));
        let mut next = 0;
        while let Some(&id) = waiting.get(next) {
            next += 1;
            visit(id);
            match self.action(id) {
                Action::Discard => {}
                Action::Refuse(refusal) => return Err(refusal.clone()),
                Action::To(targets) => {
                    for target in targets {
                        match target {
                            Target::Mailbox(Mailbox { place: place @ Place::Transport(_), .. }) if id == start => {
                                found.add(Mailbox { place: place.clone(), address: address().into() });
                            }
                            Target::Mailbox(mailbox) => found.add(mailbox.clone()),
                            Target::Alias(id) => waiting.extend(found.aliases.insert(*id).then_some(*id)),
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// The targets found on the way from one recipient.
#[derive(Debug, Default)]
pub(crate) struct Found {
    mailboxes: Vec<Mailbox>,
    identities: HashSet<(Box<str>, Option<Box<str>>)>,
    aliases: HashSet<AliasId>,
}

impl Found {
    /// Each mailbox counts once, under the first address that led to it.
    pub fn add(&mut self, mailbox: Mailbox) {
        let (text, address) = mailbox.identity();
        if self.identities.insert((text.into(), address.map(Into::into))) {
            self.mailboxes.push(mailbox);
        }
    }

    pub fn route(self) -> Result<Route, DirectoryRefusal> {
        match self.mailboxes.len() {
            0..=MAILBOXES_MAX => Ok(Mailboxes::several(self.mailboxes).map_or(Route::Discard, Route::Local)),
            _ => Err(DirectoryRefusal::TooManyMailboxes),
        }
    }
}

/// An invalid alias, with the target at fault.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub alias: AliasId,
    pub target: usize,
    pub message: String,
}

/// The findings of a check.
pub(crate) struct Checked {
    pub aliases: Aliases,
    /// True for each alias whose mail reaches a mailbox.
    pub delivers: Vec<bool>,
}

/// Finds loops and excessive expansions. An alias on a loop keeps mail for the mailbox of its own name, which `own`
/// knows; `name` returns an alias's name. Linear in the number of targets.
pub(crate) fn check(
    mut actions: Vec<Action>,
    own: impl Fn(AliasId) -> Option<Mailbox>,
    name: impl Fn(AliasId) -> String,
) -> Result<Checked, Wrong> {
    let mut search = Search::new(&actions, &name);
    for id in 0..actions.len() as AliasId {
        if search.nodes[id as usize].order == 0 {
            search.visit(id, 1)?;
        }
    }
    let Search { nodes, mut loops, .. } = search;
    // In a fixed order, so that every run reports the same mistake first.
    loops.sort_unstable_by_key(|(id, _)| *id);
    for (id, target) in loops {
        let Some(mailbox) = own(id) else {
            let name = name(id);
            let message = format!("the alias `{name}` leads back to itself, and there is no user of that name");
            return Err(Wrong { alias: id, target, message });
        };
        let Action::To(targets) = &mut actions[id as usize] else { unreachable!("only what has targets is on a loop") };
        let others =
            std::mem::take(targets).into_iter().filter(|target| !matches!(target, Target::Alias(to) if *to == id));
        *targets = std::iter::once(Target::Mailbox(mailbox)).chain(others).collect();
    }
    Ok(Checked { aliases: Aliases(actions), delivers: nodes.iter().map(|node| node.delivers).collect() })
}

/// Tarjan's search for strongly connected components. Aliases that lead to each other form one, which comes after all
/// that it leads to.
struct Search<'a, N> {
    actions: &'a [Action],
    name: &'a N,
    nodes: Vec<Node>,
    stack: Vec<AliasId>,
    visited: u32,
    /// Aliases that lead back to themselves, and the target through which.
    loops: Vec<(AliasId, usize)>,
}

#[derive(Clone, Default)]
struct Node {
    /// Order of its visit, from 1 on; 0: not visited.
    order: u32,
    /// The first alias in `order` that it leads back to.
    low: u32,
    is_done: bool,
    delivers: bool,
    /// Mailboxes that it leads to, counted once for each path.
    mailboxes: u32,
    /// Aliases on the longest path.
    hops: u32,
}

impl<'a, N: Fn(AliasId) -> String> Search<'a, N> {
    fn new(actions: &'a [Action], name: &'a N) -> Self {
        let nodes = vec![Node::default(); actions.len()];
        Self { actions, name, nodes, stack: Vec::new(), visited: 0, loops: Vec::new() }
    }

    fn targets(&self, id: AliasId) -> impl Iterator<Item = (usize, AliasId)> + use<'a, N> {
        let targets: &'a [Target] = if let Action::To(targets) = &self.actions[id as usize] { targets } else { &[] };
        targets.iter().enumerate().filter_map(|(index, target)| match target {
            Target::Alias(id) => Some((index, *id)),
            Target::Mailbox(_) => None,
        })
    }

    /// `depth` bounds the recursion: the length of a path of distinct aliases.
    fn visit(&mut self, id: AliasId, depth: u32) -> Result<(), Wrong> {
        self.visited += 1;
        let order = self.visited;
        self.nodes[id as usize] = Node { order, low: order, ..Node::default() };
        self.stack.push(id);
        for (index, to) in self.targets(id) {
            if let Action::Refuse(_) = self.actions[to as usize] {
                let to = (self.name)(to);
                let name = (self.name)(id);
                let message = format!("mail for `{to}` is refused, so all mail for `{name}` would be");
                return Err(Wrong { alias: id, target: index, message });
            }
            if self.nodes[to as usize].order == 0 {
                if depth == HOPS_MAX {
                    return Err(too_long(id, index));
                }
                self.visit(to, depth + 1)?;
                self.lead_back(id, self.nodes[to as usize].low);
            } else if !self.nodes[to as usize].is_done {
                self.lead_back(id, self.nodes[to as usize].order);
            }
        }
        if self.nodes[id as usize].low == order {
            let start = self.stack.iter().rposition(|&other| other == id).expect("it was put there");
            let component = self.stack.split_off(start);
            self.finish(&component)?;
        }
        Ok(())
    }

    fn lead_back(&mut self, id: AliasId, to: u32) {
        let low = &mut self.nodes[id as usize].low;
        *low = to.min(*low);
    }

    /// Sums the mailboxes of a component.
    fn finish(&mut self, component: &[AliasId]) -> Result<(), Wrong> {
        let mut sum = Node { is_done: true, hops: component.len() as u32, ..Node::default() };
        for &id in component {
            // Every reachable alias that is not done is in this component.
            let back = self.targets(id).find(|(_, to)| !self.nodes[*to as usize].is_done);
            self.loops.extend(back.map(|(index, _)| (id, index)));
            let own = u32::from(back.is_some());
            sum.mailboxes = sum.mailboxes.saturating_add(own);
            let Action::To(targets) = &self.actions[id as usize] else {
                sum.mailboxes = sum.mailboxes.saturating_add(1);
                continue;
            };
            for (index, target) in targets.iter().enumerate() {
                let (mailboxes, hops, delivers) = match target {
                    Target::Mailbox(_) => (1, 0, true),
                    Target::Alias(to) => match &self.nodes[*to as usize] {
                        node if node.is_done => (node.mailboxes, node.hops, node.delivers),
                        _ => (1, 0, true),
                    },
                };
                sum.mailboxes = sum.mailboxes.saturating_add(mailboxes);
                sum.hops = sum.hops.max(hops + component.len() as u32);
                sum.delivers |= delivers;
                if sum.mailboxes as usize > MAILBOXES_MAX {
                    let name = (self.name)(id);
                    let message = format!("`{name}` leads to more than {MAILBOXES_MAX} mailboxes");
                    return Err(Wrong { alias: id, target: index, message });
                }
                if sum.hops > HOPS_MAX {
                    return Err(too_long(id, index));
                }
            }
        }
        for &id in component {
            let node = &mut self.nodes[id as usize];
            *node = Node { order: node.order, low: node.low, ..sum.clone() };
        }
        Ok(())
    }
}

fn too_long(alias: AliasId, target: usize) -> Wrong {
    Wrong { alias, target, message: format!("leads through more than {HOPS_MAX} aliases") }
}

/// Maximum entries for one message to an alias; a mailbox on two paths counts twice here.
const MAILBOXES_MAX: usize = 1000;
/// Longest chain of aliases.
const HOPS_MAX: u32 = 100;
