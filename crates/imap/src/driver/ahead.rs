//! Prefetches answers about the next messages: for single messages the thread switch would cost more than the work.

use std::collections::VecDeque;

use posthaste_mailstore::{MailstoreError, MessageRow, Uid};

/// Maximum messages in one request.
const AHEAD_MAX: usize = 128;

/// Answers about messages, such as their bodies, requested in advance. Messages come in the order of their UIDs.
pub(super) struct Ahead<T> {
    found: VecDeque<(u32, Result<T, MailstoreError>)>,
    /// Messages requested by the last step.
    count: usize,
    /// True if an answer of the last step was not used.
    has_passed: bool,
}

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self { found: VecDeque::new(), count: 0, has_passed: false }
    }
}

impl<T> Ahead<T> {
    /// Messages to request together with this one; empty if its answer is present. `next`: the rows after it. The
    /// number grows while all answers of the last step were used.
    pub fn missing(&mut self, uid: u32, next: &VecDeque<MessageRow>) -> Vec<Uid> {
        while let Some((found, _)) = self.found.front() {
            if *found == uid {
                return Vec::new();
            }
            self.found.pop_front();
            self.has_passed = true;
        }
        let Some(first) = Uid::new(uid) else { return Vec::new() };
        self.count = if std::mem::take(&mut self.has_passed) { 1 } else { (self.count * 2).clamp(1, AHEAD_MAX) };
        [first].into_iter().chain(next.iter().map(|row| row.uid)).take(self.count).collect()
    }

    /// Stores the answers about these messages.
    pub fn put(&mut self, uids: &[Uid], answers: Result<Vec<Result<T, MailstoreError>>, MailstoreError>) {
        let answers = answers.unwrap_or_else(|error| vec![Err(error)]);
        self.found.extend(uids.iter().map(|uid| uid.get()).zip(answers));
    }

    /// Drops answers about later messages. They are requested once more, the first one alone.
    pub fn give_back(&mut self) {
        (self.found, self.count) = (VecDeque::new(), 0);
    }

    /// The answer about a message.
    pub fn take(&mut self, uid: u32) -> Result<T, MailstoreError> {
        match self.found.pop_front() {
            Some((found, answer)) if found == uid => answer,
            _ => Err(MailstoreError::Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use posthaste_mailstore::{MessageFlags, ModSeq};

    use super::*;

    fn row(uid: u32) -> MessageRow {
        MessageRow {
            number: uid,
            uid: Uid::new(uid).unwrap(),
            flags: MessageFlags::NONE,
            recent: false,
            modseq: ModSeq(1),
            size: None,
            internal_date: SystemTime::UNIX_EPOCH,
        }
    }

    /// Asks about messages up to a thousand, of which `is_needed` says which. Gives the numbers of messages of each question.
    fn questions(answers_max: usize, is_needed: impl Fn(u32) -> bool) -> Vec<usize> {
        let (mut asked, mut ahead) = (Vec::new(), Ahead::default());
        let mut next: VecDeque<MessageRow> = (1..=1000).map(row).collect();
        while let Some(MessageRow { uid, .. }) = next.pop_front() {
            if is_needed(uid.get()) {
                let uids = ahead.missing(uid.get(), &next);
                if !uids.is_empty() {
                    asked.push(uids.len());
                    ahead.put(&uids, Ok(uids.iter().take(answers_max).map(|uid| Ok(uid.get())).collect()));
                }
                assert_eq!(ahead.take(uid.get()), Ok(uid.get()));
            }
        }
        asked
    }

    #[test]
    fn messages_in_a_row_are_asked_for_together() {
        let all = questions(usize::MAX, |_| true);
        assert_eq!(all[..7], [1, 2, 4, 8, 16, 32, 64]);
        assert!(all.len() <= 6 + 1000_usize.div_ceil(AHEAD_MAX), "{all:?}");
        // Of long messages the store answers a few.
        assert_eq!(questions(3, |_| true).len(), 2 + (1000_usize - 3).div_ceil(3));
        assert_eq!(Ahead::<u32>::default().take(7), Err(MailstoreError::Gone));
        // One here and there.
        assert!(questions(usize::MAX, |uid| uid % 10 == 0).iter().all(|asked| *asked <= 2));
    }
}
