//! Results as threads, drawn as trees of messages and replies.

use std::collections::HashMap;

use super::FoundMessage;
use crate::state::NO_PARENT;

/// Levels drawn; more cannot be read, and a thread may be as deep as it is long.
const DEPTH_MAX: usize = 60;

/// One line of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeLine {
    /// Index into the messages.
    pub index: usize,
    /// True for each level above on which more lines follow, the innermost 60 levels only. Empty for the first message
    /// of a thread.
    pub more: Vec<bool>,
}

impl TreeLine {
    /// Draws the branch, `│ ├▸`: two cells for each level, of the innermost `levels_max`.
    pub fn branch(&self, levels_max: usize) -> String {
        let Some((last, above)) = self.more.split_last() else { return String::new() };
        let above = &above[self.more.len().saturating_sub(levels_max.max(1))..];
        let mut drawn: String = above.iter().map(|more| if *more { "│ " } else { "  " }).collect();
        drawn.push_str(if *last { "├▸" } else { "└▸" });
        drawn
    }
}

/// Sorts messages by thread. Threads are in the order of their first message in `messages`; replies are below their
/// parent, by date. A reply whose parent is missing stands as a first message in its thread.
pub fn tree(messages: &[FoundMessage]) -> Vec<TreeLine> {
    let at: HashMap<u32, usize> = messages.iter().enumerate().map(|(index, message)| (message.number, index)).collect();
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut tops: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut threads = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        tops.entry(message.thread).or_insert_with(|| {
            threads.push(message.thread);
            Vec::new()
        });
        match at.get(&message.parent).filter(|_| message.parent != NO_PARENT) {
            Some(&parent) => children.entry(parent).or_default().push(index),
            None => tops.entry(message.thread).or_default().push(index),
        }
    }
    let by_date = |indexes: &mut Vec<usize>| indexes.sort_unstable_by_key(|&index| messages[index].age());
    children.values_mut().chain(tops.values_mut()).for_each(by_date);
    let mut lines = Vec::with_capacity(messages.len());
    for thread in threads {
        for &top in &tops[&thread] {
            // Not recursive: a thread may be as deep as it is long.
            let mut stack = vec![(top, Vec::new())];
            while let Some((index, more)) = stack.pop() {
                let below = children.get(&index).map_or(&[][..], Vec::as_slice);
                for (position, &child) in below.iter().enumerate().rev() {
                    let outermost = (more.len() + 1).saturating_sub(DEPTH_MAX);
                    let mut deeper: Vec<bool> = more[outermost..].to_vec();
                    deeper.push(position + 1 < below.len());
                    stack.push((child, deeper));
                }
                lines.push(TreeLine { index, more });
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_index::Head;

    fn message(number: u32, thread: u32, parent: u32) -> FoundMessage {
        FoundMessage {
            number,
            date: i64::from(number),
            size: 0,
            flags: 0,
            thread,
            parent,
            tags: Vec::new(),
            folder: String::new(),
            path: std::path::PathBuf::new(),
            id: number.to_string(),
            head: Head::default(),
        }
    }

    #[test]
    fn answers_stand_below_what_they_answer() {
        let none = NO_PARENT;
        let messages = [
            message(9, 9, none),
            message(3, 0, 1),
            message(1, 0, 0),
            message(0, 0, none),
            message(2, 0, 0),
            message(7, 0, 77),
        ];
        let drawn: Vec<String> = tree(&messages)
            .iter()
            .map(|line| format!("{}{}", line.branch(DEPTH_MAX), messages[line.index].number))
            .collect();
        assert_eq!(drawn, ["9", "0", "├▸1", "│ └▸3", "└▸2", "7"]);
        assert_eq!(tree(&[]), []);
        let deep = TreeLine { index: 0, more: vec![true, false, true, false] };
        let drawn = |levels| deep.branch(levels);
        assert_eq!([drawn(60), drawn(4), drawn(2), drawn(0)], ["│   │ └▸", "│   │ └▸", "│ └▸", "└▸"]);
    }

    #[test]
    fn a_thread_may_be_as_deep_as_it_is_long() {
        let parent = |number: u32| number.checked_sub(1).unwrap_or(NO_PARENT);
        let messages: Vec<FoundMessage> = (0..20_000).map(|number| message(number, 0, parent(number))).collect();
        let lines = tree(&messages);
        assert_eq!(lines.len(), messages.len());
        assert_eq!(lines.iter().map(|line| line.more.len()).max(), Some(DEPTH_MAX));
    }
}
