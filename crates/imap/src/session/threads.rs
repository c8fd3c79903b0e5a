//! THREAD (RFC 5256 section 3): the tree of messages and their replies.
//!
//! Message ids are hashed with a secret key, so that nobody can cause collisions. Time and memory grow with messages
//! and their references, however these are linked.

use std::collections::HashMap;

/// The threading data of a message.
#[derive(Debug, Clone, Default)]
pub(super) struct ThreadMail {
    /// Number or UID of the message.
    pub number: u32,
    /// Date of sending, in seconds since 1970.
    pub date: i64,
    /// Hash of the message id; 0 if there is none.
    pub id: u64,
    /// Hashes of referenced message ids, oldest first.
    pub references: Box<[u64]>,
    /// Hash of the base subject; 0 if it is empty.
    pub subject: u64,
    /// The subject is that of a reply or a forward.
    pub is_reply: bool,
}

/// Threads, ready for the answer.
#[derive(Debug, Default)]
pub(super) struct Threads {
    nodes: Vec<Node>,
    /// Top-level threads in order.
    pub roots: Vec<usize>,
}

#[derive(Debug, Default)]
struct Node {
    /// Message number; `None` for a node that only groups others.
    number: Option<u32>,
    /// Date and number of the message, or else of the oldest one below it.
    order: (i64, u32),
    subject: u64,
    is_reply: bool,
    children: Vec<usize>,
}

const NONE: usize = usize::MAX;

impl Threads {
    /// ORDEREDSUBJECT: the first message with a base subject is the parent of all others.
    pub fn by_subject(mail: &[ThreadMail]) -> Self {
        let mut threads = Self::of(mail);
        let mut order: Vec<usize> = (0..mail.len()).collect();
        order.sort_unstable_by_key(|&at| (mail[at].date, mail[at].number));
        let mut first: HashMap<u64, usize> = HashMap::new();
        for at in order {
            match *first.entry(mail[at].subject).or_insert(at) {
                known if known == at => threads.roots.push(at),
                known => threads.nodes[known].children.push(at),
            }
        }
        threads
    }

    /// REFERENCES.
    pub fn by_references(mail: &[ThreadMail]) -> Self {
        let mut threads = Self::of(mail);
        let mut forest = Forest::of(mail);
        threads.roots = forest.hang(&mut threads.nodes);
        threads.sort_roots();
        threads.join_subjects();
        for at in 0..threads.nodes.len() {
            let mut children = std::mem::take(&mut threads.nodes[at].children);
            children.sort_unstable_by_key(|&child| threads.nodes[child].order);
            if let (None, Some(&first)) = (threads.nodes[at].number, children.first()) {
                threads.nodes[at].order = threads.nodes[first].order;
            }
            threads.nodes[at].children = children;
        }
        threads.sort_roots();
        threads
    }

    fn of(mail: &[ThreadMail]) -> Self {
        let node = |mail: &ThreadMail| {
            let ThreadMail { number, date, subject, is_reply, .. } = *mail;
            Node { number: Some(number), order: (date, number), subject, is_reply, children: Vec::new() }
        };
        Self { nodes: mail.iter().map(node).collect(), roots: Vec::new() }
    }

    /// Sorts siblings by date. A node without a message has the date of its oldest child.
    fn sort_roots(&mut self) {
        let mut roots = std::mem::take(&mut self.roots);
        roots.sort_unstable_by_key(|&root| self.nodes[root].order);
        self.roots = roots;
    }

    /// Step 5: joins threads with the same base subject.
    fn join_subjects(&mut self) {
        let mut by_subject: HashMap<u64, usize> = HashMap::new();
        for &root in &self.roots {
            let subject = self.nodes[root].subject;
            if subject == 0 {
                continue;
            }
            let known = *by_subject.entry(subject).or_insert(root);
            let is_dummy = self.nodes[root].number.is_none();
            let was_dummy = self.nodes[known].number.is_none();
            let is_reply = |root: usize| self.nodes[root].is_reply;
            if is_dummy && !was_dummy || was_dummy == is_dummy && is_reply(known) && !is_reply(root) {
                by_subject.insert(subject, root);
            }
        }
        let mut left = Vec::with_capacity(self.roots.len());
        // Those that were put into another one on the way.
        let mut inside = vec![false; self.nodes.len()];
        for root in std::mem::take(&mut self.roots) {
            let Node { subject, is_reply, .. } = self.nodes[root];
            let Some(known) = by_subject.get(&subject).copied().filter(|&known| subject != 0 && known != root) else {
                left.push(root);
                continue;
            };
            let known_is_dummy = self.nodes[known].number.is_none();
            if known_is_dummy && self.nodes[root].number.is_none() {
                let mut children = std::mem::take(&mut self.nodes[root].children);
                self.nodes[known].children.append(&mut children);
            } else if known_is_dummy || is_reply && !self.nodes[known].is_reply {
                self.nodes[known].children.push(root);
            } else {
                let both = self.nodes.len();
                self.nodes.push(Node { subject, children: vec![known, root], ..Node::default() });
                inside[known] = true;
                by_subject.insert(subject, both);
                left.push(both);
            }
        }
        left.retain(|&root| inside.get(root) != Some(&true));
        self.roots = left;
    }

    /// Writes a thread: `(3 6 (4 23)(44 7 96))`.
    pub fn write(&self, root: usize, out: &mut Vec<u8>) {
        let mut left = vec![Some(root)];
        while let Some(next) = left.pop() {
            let Some(mut at) = next else {
                out.push(b')');
                continue;
            };
            out.push(b'(');
            left.push(None);
            loop {
                let node = &self.nodes[at];
                if let Some(number) = node.number {
                    crate::write::number(out, number.into());
                }
                if node.number.is_some() && !node.children.is_empty() {
                    out.push(b' ');
                }
                match node.children[..] {
                    [only] => at = only,
                    _ => break left.extend(node.children.iter().rev().map(|&child| Some(child))),
                }
            }
        }
    }
}

/// Message ids, and the known part of their order. Each message has a container, and so has each id that is only
/// referenced.
#[derive(Default)]
struct Forest {
    by_id: HashMap<u64, usize>,
    parent: Vec<usize>,
    /// Index of the container's message, or `NONE`.
    message: Vec<usize>,
    /// Union-find over linked containers: finds cycles without following a thread upwards, however deep it is.
    union: Vec<usize>,
    /// The topmost container, for each representative in `union`.
    top: Vec<usize>,
}

impl Forest {
    /// Steps 1 and 2. A message's own reference to its parent takes precedence over references in other messages.
    fn of(mail: &[ThreadMail]) -> Self {
        let mut forest = Self::default();
        for (at, mail) in mail.iter().enumerate() {
            let container = forest.add(at);
            // Of two messages with one id the first has it.
            if mail.id != 0 {
                forest.by_id.entry(mail.id).or_insert(container);
            }
        }
        for (at, mail) in mail.iter().enumerate() {
            if let Some(&last) = mail.references.iter().rev().find(|&&id| id != mail.id) {
                let parent = forest.of_id(last);
                forest.link(parent, at);
            }
        }
        for pair in mail.iter().flat_map(|mail| mail.references.windows(2)) {
            let parent = forest.of_id(pair[0]);
            let child = forest.of_id(pair[1]);
            forest.link(parent, child);
        }
        forest
    }

    fn add(&mut self, message: usize) -> usize {
        let container = self.parent.len();
        self.parent.push(NONE);
        self.message.push(message);
        self.union.push(container);
        self.top.push(container);
        container
    }

    fn of_id(&mut self, id: u64) -> usize {
        if let Some(&known) = self.by_id.get(&id) {
            return known;
        }
        let container = self.add(NONE);
        self.by_id.insert(id, container);
        container
    }

    fn find(&mut self, mut at: usize) -> usize {
        while self.union[at] != at {
            self.union[at] = self.union[self.union[at]];
            at = self.union[at];
        }
        at
    }

    /// Makes `child` a child of `parent`, unless it has a parent or that would form a cycle.
    fn link(&mut self, parent: usize, child: usize) {
        let above = self.find(parent);
        if self.parent[child] != NONE || self.top[above] == child {
            return;
        }
        self.parent[child] = parent;
        // Path halving alone keeps `find` logarithmic; `top` stays that of the upper tree.
        let below = self.find(child);
        self.union[below] = above;
    }

    /// Step 3: attaches messages to their nearest ancestor message. Several with only a common id above them get a node
    /// that groups them.
    fn hang(&mut self, nodes: &mut Vec<Node>) -> Vec<usize> {
        let nearest = self.nearest_messages();
        let mut below_top: HashMap<usize, Vec<usize>> = HashMap::new();
        let count = nodes.len();
        for (at, &above) in nearest.iter().enumerate().take(count) {
            if above != NONE {
                nodes[above].children.push(at);
                continue;
            }
            let set = self.find(at);
            below_top.entry(self.top[set]).or_default().push(at);
        }
        let root = |mut messages: Vec<usize>| {
            if messages.len() == 1 {
                return messages.swap_remove(0);
            }
            let oldest = messages.iter().map(|&at| &nodes[at]).min_by_key(|node| node.order).expect("it has messages");
            let Node { order, subject, is_reply, .. } = *oldest;
            nodes.push(Node { number: None, order, subject, is_reply, children: messages });
            nodes.len() - 1
        };
        below_top.into_values().map(root).collect()
    }

    /// For each container the nearest ancestor message, or `NONE`. Each link is followed once.
    fn nearest_messages(&self) -> Vec<usize> {
        const UNKNOWN: usize = usize::MAX - 1;
        let mut nearest = vec![UNKNOWN; self.parent.len()];
        let mut path = Vec::new();
        for start in 0..nearest.len() {
            let mut at = start;
            while nearest[at] == UNKNOWN {
                let above = self.parent[at];
                if above == NONE {
                    nearest[at] = NONE;
                } else if self.message[above] != NONE {
                    nearest[at] = self.message[above];
                } else {
                    path.push(at);
                    at = above;
                }
            }
            let found = nearest[at];
            path.drain(..).for_each(|at| nearest[at] = found);
        }
        nearest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of id 100 and its number, sent in the order of numbers.
    fn mail(number: u32, references: &[u64], subject: u64, is_reply: bool) -> ThreadMail {
        let (date, id) = (number.into(), u64::from(number) + 100);
        ThreadMail { number, date, id, references: references.into(), subject, is_reply }
    }

    fn told(threads: &Threads) -> String {
        let mut out = Vec::new();
        threads.roots.iter().for_each(|&root| threads.write(root, &mut out));
        String::from_utf8(out).unwrap()
    }

    fn check(all: &[ThreadMail], expected: &str) {
        assert_eq!(told(&Threads::by_references(all)), expected);
    }

    #[test]
    fn replies_are_below_what_they_answer() {
        let plain = |number, references: &[u64]| mail(number, references, 0, false);
        check(&[plain(1, &[]), plain(2, &[101]), plain(3, &[101, 102])], "(1 2 3)");
        check(&[plain(3, &[101, 102]), plain(2, &[101]), plain(1, &[])], "(1 2 3)");
        // The example of RFC 5256 section 4.
        let tree = [
            plain(2, &[]),
            plain(3, &[]),
            plain(6, &[103]),
            plain(4, &[106]),
            plain(23, &[104]),
            plain(44, &[106]),
            plain(7, &[144]),
            plain(96, &[107]),
        ];
        check(&tree, "(2)(3 6 (4 23)(44 7 96))");
        // Two answers to a message that is not here, and one alone.
        check(&[plain(3, &[900]), plain(5, &[900]), plain(4, &[901])], "((3)(5))(4)");
        check(&[plain(1, &[]), plain(3, &[101, 900]), plain(2, &[101, 900])], "(1 (2)(3))");
        check(&[], "");
    }

    #[test]
    fn circles_copies_and_nameless_messages_are_threads() {
        let plain = |number, references: &[u64]| mail(number, references, 0, false);
        check(&[plain(1, &[101]), plain(2, &[103]), plain(3, &[102])], "(1)(3 2)");
        check(&[plain(1, &[]), ThreadMail { id: 101, ..plain(2, &[]) }, plain(3, &[101])], "(1 3)(2)");
        check(&[ThreadMail { id: 0, ..plain(1, &[]) }, ThreadMail { id: 0, ..plain(2, &[]) }], "(1)(2)");
    }

    #[test]
    fn a_subject_joins_threads() {
        check(&[mail(1, &[], 7, false), mail(2, &[], 7, true), mail(3, &[], 8, true)], "(1 2)(3)");
        check(&[mail(1, &[], 7, true), mail(2, &[], 7, false)], "(2 1)");
        check(&[mail(1, &[], 7, false), mail(2, &[], 7, false), mail(3, &[], 7, true)], "((1)(2)(3))");
        check(&[mail(1, &[900], 7, true), mail(2, &[900], 7, true), mail(3, &[], 7, false)], "((1)(2)(3))");
        let [one, two] = [900, 901].map(|id| [mail(1, &[id], 7, true), mail(2, &[id], 7, true)]);
        let two = two.map(|mail| ThreadMail { number: mail.number + 2, id: mail.id + 2, date: mail.date + 2, ..mail });
        check(&[one, two].concat(), "((1)(2)(3)(4))");
    }

    #[test]
    fn a_thread_by_subject_hangs_on_its_first_message() {
        let all = [mail(3, &[], 7, true), mail(1, &[], 7, false), mail(2, &[], 8, false), mail(4, &[], 7, true)];
        assert_eq!(told(&Threads::by_subject(&all)), "(1 (3)(4))(2)");
        assert_eq!(told(&Threads::by_subject(&all[..3])), "(1 3)(2)");
        assert_eq!(told(&Threads::by_subject(&[])), "");
    }

    #[test]
    fn a_chain_of_any_length_takes_linear_time() {
        let all: Vec<ThreadMail> =
            (1..200_000).map(|number| mail(number, &[u64::from(number) + 99], 7, true)).collect();
        let expected: Vec<String> = (1..200_000).map(|number| number.to_string()).collect();
        check(&all, &format!("({})", expected.join(" ")));
        let mut others: Vec<ThreadMail> = (1..200_000).map(|number| mail(number, &[], 7, true)).collect();
        others.reverse();
        assert!(told(&Threads::by_references(&others)).starts_with("((1)(2)(3)"));
        assert_eq!(Threads::by_subject(&others).roots.len(), 1);
    }
}
