//! Threading: J. Zawinski's algorithm, as REFERENCES in RFC 5256, on hashes of message ids.
//!
//! Each message claims the last id it refers to as its parent. The ids before that one are linked in order, except
//! those that already have a parent. A claim that would close a cycle is skipped. Then threads that only share a
//! subject are joined, see [`SubjectRule`]. Time and memory are linear in messages plus references.

use std::collections::HashMap;

use crate::state::NO_PARENT;

/// A message's data for threading.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// The message's number.
    pub number: u32,
    /// Hash of its id; 0 if it has none.
    pub id: u64,
    /// Hashes of the ids it refers to, oldest first.
    pub references: &'a [u64],
    /// Hash of its base subject (RFC 5256 section 2.1); 0 if that is empty.
    pub subject: u64,
    /// True if the subject marks a reply or forward.
    pub is_reply: bool,
    /// Seconds since 1970.
    pub date: i64,
}

/// Condition under which threads with the same base subject are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectRule {
    /// Always, as RFC 5256 specifies for IMAP THREAD=REFERENCES: even two "Weekly report" of different years.
    Rfc5256,
    /// A reply whose references are all unknown joins the newest earlier thread with the same subject, if the thread is
    /// older by at most this many seconds.
    Replies {
        /// Seconds.
        within: i64,
    },
}

impl Default for SubjectRule {
    /// Replies within 90 days.
    fn default() -> Self {
        Self::Replies { within: 90 * 86_400 }
    }
}

/// A message's place in a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadPlace {
    /// The smallest number of the thread's messages.
    pub thread: u32,
    /// Number of the parent message, or [`NO_PARENT`].
    pub parent: u32,
}

/// Returns the place of every message, in the order of `items`. That order breaks ties. Of messages with the same id
/// the first counts as the original, and the others hang under it; messages of the same second keep their order.
pub fn thread(items: &[Item<'_>], rule: SubjectRule) -> Vec<ThreadPlace> {
    let mut forest = Forest::default();
    let own: Vec<usize> = items.iter().enumerate().map(|(index, item)| forest.message(index, item.id)).collect();
    for (item, &node) in items.iter().zip(&own) {
        let last = item.references.iter().rev().find(|&&id| id != item.id);
        if let Some(&id) = last {
            let parent = forest.of_id(id);
            forest.link(parent, node);
        }
    }
    for item in items {
        for pair in item.references.windows(2).filter(|pair| pair[0] != pair[1]) {
            let parent = forest.of_id(pair[0]);
            let child = forest.of_id(pair[1]);
            forest.link(parent, child);
        }
    }
    join_by_subject(items, &own, &mut forest, rule);
    forest.places(items, &own)
}

const NONE: usize = usize::MAX;

/// Zawinski's containers: one for each message, and one for each id that is only referred to.
#[derive(Default)]
struct Forest {
    by_id: HashMap<u64, usize>,
    /// Index of the message, or `NONE`.
    message: Vec<usize>,
    parent: Vec<usize>,
    /// Union-find over linked containers: finds a cycle without following a thread of any depth.
    union: Vec<usize>,
    /// The container without a parent, for each representative in `union`.
    top: Vec<usize>,
}

impl Forest {
    fn add(&mut self, message: usize) -> usize {
        let node = self.message.len();
        self.message.push(message);
        self.parent.push(NONE);
        self.union.push(node);
        self.top.push(node);
        node
    }

    fn of_id(&mut self, id: u64) -> usize {
        match self.by_id.get(&id) {
            Some(&node) => node,
            None => {
                let node = self.add(NONE);
                self.by_id.insert(id, node);
                node
            }
        }
    }

    fn message(&mut self, index: usize, id: u64) -> usize {
        if id == 0 {
            return self.add(index);
        }
        let node = self.of_id(id);
        if self.message[node] == NONE {
            self.message[node] = index;
            return node;
        }
        let copy = self.add(index);
        self.link(node, copy);
        copy
    }

    fn find(&mut self, mut node: usize) -> usize {
        while self.union[node] != node {
            self.union[node] = self.union[self.union[node]];
            node = self.union[node];
        }
        node
    }

    /// The container at the top of the tree that `node` is in.
    fn root(&mut self, node: usize) -> usize {
        let set = self.find(node);
        self.top[set]
    }

    /// Links `child` under `parent`, unless it has a parent or that would close a cycle.
    fn link(&mut self, parent: usize, child: usize) {
        if self.parent[child] != NONE || self.root(parent) == child {
            return;
        }
        self.parent[child] = parent;
        let above = self.find(parent);
        let below = self.find(child);
        // Path halving alone keeps `find` logarithmic; `top` stays that of the upper tree.
        self.union[below] = above;
    }

    fn places(&mut self, items: &[Item<'_>], own: &[usize]) -> Vec<ThreadPlace> {
        let roots: Vec<usize> = own.iter().map(|&node| self.root(node)).collect();
        let mut smallest = HashMap::new();
        for (item, root) in items.iter().zip(&roots) {
            let number = smallest.entry(*root).or_insert(item.number);
            *number = item.number.min(*number);
        }
        let near = self.nearest_messages();
        let parent = |node: usize| match near[node] {
            NONE => NO_PARENT,
            message => items[message].number,
        };
        own.iter()
            .zip(&roots)
            .map(|(&node, root)| ThreadPlace { thread: smallest[root], parent: parent(node) })
            .collect()
    }

    /// For each container the nearest ancestor with a message, or `NONE`. Visits each link once.
    fn nearest_messages(&self) -> Vec<usize> {
        const UNKNOWN: usize = usize::MAX - 1;
        let mut near = vec![UNKNOWN; self.message.len()];
        let mut path = Vec::new();
        for start in 0..near.len() {
            let mut at = start;
            while near[at] == UNKNOWN {
                let above = self.parent[at];
                if above == NONE {
                    near[at] = NONE;
                } else if self.message[above] != NONE {
                    near[at] = self.message[above];
                } else {
                    path.push(at);
                    at = above;
                }
            }
            let found = near[at];
            path.drain(..).for_each(|node| near[node] = found);
        }
        near
    }
}

/// RFC 5256 section 3, THREAD=REFERENCES, step 5.
fn join_by_subject(items: &[Item<'_>], own: &[usize], forest: &mut Forest, rule: SubjectRule) {
    // The first message of each thread, oldest thread first: its subject is the thread's.
    let mut first: HashMap<usize, usize> = HashMap::new();
    for (index, &node) in own.iter().enumerate() {
        let root = forest.root(node);
        // A top without message is represented by the oldest message below it.
        let key = |index: usize| (forest.message[root] != index, items[index].date, index);
        let oldest = first.entry(root).or_insert(index);
        if key(index) < key(*oldest) {
            *oldest = index;
        }
    }
    let mut threads: Vec<(usize, usize)> = first.into_iter().filter(|(_, index)| items[*index].subject != 0).collect();
    threads.sort_unstable_by_key(|&(_, index)| (items[index].date, index));
    let mut by_subject: HashMap<u64, usize> = HashMap::new();
    for (root, index) in threads {
        let item = &items[index];
        let Some(&known) = by_subject.get(&item.subject) else {
            by_subject.insert(item.subject, index);
            continue;
        };
        let join = match rule {
            SubjectRule::Rfc5256 => true,
            SubjectRule::Replies { within } => item.is_reply && item.date.saturating_sub(items[known].date) <= within,
        };
        if join {
            let onto = if item.is_reply { own[known] } else { forest.root(own[known]) };
            forest.link(onto, root);
        } else {
            by_subject.insert(item.subject, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(number: u32, references: &[u64]) -> Item<'_> {
        Item { number, id: u64::from(number) + 100, references, subject: 0, is_reply: false, date: i64::from(number) }
    }

    fn check(items: &[Item<'_>], rule: SubjectRule, expected: &[(u32, u32)]) {
        let places = thread(items, rule);
        let found: Vec<(u32, u32)> = places.iter().map(|place| (place.thread, place.parent)).collect();
        assert_eq!(found, expected);
    }

    const N: u32 = NO_PARENT;

    #[test]
    fn replies_hang_under_what_they_answer_in_any_order() {
        check(
            &[item(0, &[]), item(1, &[100]), item(2, &[100, 101])],
            SubjectRule::default(),
            &[(0, N), (0, 0), (0, 1)],
        );
        check(
            &[item(2, &[100, 101]), item(1, &[100]), item(0, &[])],
            SubjectRule::default(),
            &[(0, 1), (0, 0), (0, N)],
        );
    }

    #[test]
    fn a_missing_message_keeps_its_answers_together() {
        check(&[item(1, &[999]), item(2, &[999])], SubjectRule::default(), &[(1, N), (1, N)]);
        check(&[item(0, &[]), item(2, &[100, 999])], SubjectRule::default(), &[(0, N), (0, 0)]);
    }

    #[test]
    fn circles_and_references_to_oneself_are_passed_over() {
        check(&[item(0, &[100])], SubjectRule::default(), &[(0, N)]);
        check(&[item(0, &[101]), item(1, &[100])], SubjectRule::default(), &[(0, 1), (0, N)]);
        let places = thread(&[item(0, &[102]), item(1, &[100]), item(2, &[101])], SubjectRule::default());
        assert!(places.iter().all(|place| place.thread == 0) && places.iter().any(|place| place.parent == N));
    }

    #[test]
    fn copies_of_a_message_hang_under_the_first() {
        let mut copy = item(5, &[]);
        copy.id = 100;
        check(&[item(0, &[]), copy], SubjectRule::default(), &[(0, N), (0, 0)]);
        let nameless = |number| Item { id: 0, ..item(number, &[]) };
        check(&[nameless(0), nameless(1)], SubjectRule::default(), &[(0, N), (1, N)]);
    }

    #[test]
    fn a_subject_joins_what_references_do_not() {
        let with = |number, is_reply, date| Item { subject: 7, is_reply, date, ..item(number, &[]) };
        let day = 86_400;
        let reply = [with(0, false, 0), with(1, true, day)];
        check(&reply, SubjectRule::default(), &[(0, N), (0, 0)]);
        let years_later = [with(0, false, 0), with(1, true, 1000 * day)];
        check(&years_later, SubjectRule::default(), &[(0, N), (1, N)]);
        let reports = [with(0, false, 0), with(1, false, day)];
        check(&reports, SubjectRule::default(), &[(0, N), (1, N)]);
        check(&reports, SubjectRule::Rfc5256, &[(0, N), (0, 0)]);
    }

    #[test]
    fn numbers_do_not_decide_what_a_subject_joins() {
        let with = |number, is_reply, date| Item { subject: 7, is_reply, date, ..item(number, &[]) };
        for [first, second, reply] in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let items = [with(first, false, 0), with(second, false, 0), with(reply, true, 1)];
            let places = thread(&items, SubjectRule::default());
            assert_eq!(places.iter().map(|place| place.parent).collect::<Vec<_>>(), [N, N, second]);
        }
    }

    #[test]
    fn a_chain_of_any_length_takes_linear_time() {
        let references: Vec<[u64; 1]> = (0..200_000u64).map(|n| [n + 99]).collect();
        let items: Vec<Item<'_>> = references.iter().zip(0..).map(|(reference, n)| item(n, reference)).collect();
        let places = thread(&items, SubjectRule::default());
        assert!(places.iter().all(|place| place.thread == 0));
        let backwards: Vec<Item<'_>> = items.into_iter().rev().collect();
        assert!(thread(&backwards, SubjectRule::default()).iter().all(|place| place.thread == 0));
    }
}
