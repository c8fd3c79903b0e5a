//! Changes of a mailbox: one leader computes waiting changes one by one, and makes them durable in one batch.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::answers::{PATIENCE, no_answer, refusal};
use super::change_queue::{Leading, Outcome, WaitingChange};
use super::core::MailboxCore;
use super::keywords::MailboxKeywords;
use super::locks::lock;
use super::names_out::begin_writing_names;
use super::opening::load;
use super::scratch::{NewKeywords, Operation, Scratch};
use super::told::Oddities;
use crate::error::MailstoreError;
use crate::store::StoredFlags;

/// Makes a change, durably. If the future is dropped, the change is made nevertheless.
///
/// # Errors
/// See [`MailstoreError`]. Nothing was changed, unless the spool has failed.
pub(super) async fn change(core: &Arc<MailboxCore>, operation: Operation) -> Result<StoredFlags, MailstoreError> {
    let (answer, mut outcome) = oneshot::channel();
    let (number, is_leader) = core.changes.push(operation, answer);
    if is_leader {
        let core = Arc::clone(core);
        drop(spawn_blocking(move || lead(&core)));
    }
    if let Ok(outcome) = timeout(PATIENCE, &mut outcome).await {
        return outcome.unwrap_or_else(|_| Err(ended()));
    }
    if core.changes.withdraw(number) {
        Err(no_answer())
    } else {
        // A batch has it, and may be durable.
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> MailstoreError {
    MailstoreError::Unavailable("the server ends".to_owned())
}

/// Makes all waiting changes, and those that arrive meanwhile.
fn lead(core: &Arc<MailboxCore>) {
    let _leading = Leading(&core.changes);
    while let Some((operations, last)) = core.changes.next() {
        for (answer, outcome) in make(core, &operations, last) {
            // A session that has ended needs no answer.
            let _ = answer.send(outcome);
        }
        begin_writing_names(core);
    }
}

/// Makes changes in one batch, and returns the outcome of each. They may be withdrawn until the batch begins, so a
/// hanging directory does not block their sessions.
fn make(core: &MailboxCore, operations: &[Arc<Operation>], last: u64) -> Vec<(oneshot::Sender<Outcome>, Outcome)> {
    let _one = lock(&core.changing);
    let named = name_keywords(core, operations);
    let taken = core.changes.take(last);
    if taken.is_empty() {
        return Vec::new();
    }
    let outcomes = named.and_then(|(named, known)| {
        // Names of withdrawn changes use up nothing, and refuse no other change.
        let named = named.only_of(taken.iter().map(|waiting| &*waiting.operation), known);
        append(core, named, &taken)
    });
    let outcomes = outcomes.unwrap_or_else(|error| taken.iter().map(|_| Err(error.clone())).collect());
    taken.into_iter().map(|waiting| waiting.answer).zip(outcomes).collect()
}

fn unloaded() -> MailstoreError {
    MailstoreError::Unavailable("the mailbox has left memory".to_owned())
}

/// Loads the mailbox, and gives keywords their letters. The directory may hang. Also returns the keywords without new
/// ones.
fn name_keywords(
    core: &MailboxCore,
    operations: &[Arc<Operation>],
) -> Result<(NewKeywords, MailboxKeywords), MailstoreError> {
    load(core, core.reader().ok().as_ref(), &mut Oddities::default())?;
    let known = lock(&core.state).as_ref().map(|state| state.keywords.clone()).ok_or_else(unloaded)?;
    // Before the state is locked: letters are in a file.
    let named = NewKeywords::of(operations.iter().map(Arc::as_ref), known.clone(), |name| core.letter_of(name));
    Ok((named, known))
}

/// Makes changes durable. Waits for the spool only.
fn append(core: &MailboxCore, named: NewKeywords, taken: &[WaitingChange]) -> Result<Vec<Outcome>, MailstoreError> {
    let (outcomes, entries) = {
        let guard = lock(&core.state);
        let state = guard.as_ref().ok_or_else(unloaded)?;
        let mut scratch = Scratch::new(state, named);
        let outcomes: Vec<_> = taken.iter().map(|waiting| scratch.apply(&waiting.operation)).collect();
        (outcomes, scratch.entries(core.id))
    };
    if !entries.is_empty() {
        core.shared.ledger.append(&entries).map_err(|error| refusal(&error))?;
        core.catch_up();
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Place;
    use super::*;

    #[tokio::test]
    async fn a_withdrawn_change_uses_up_no_keywords() {
        let mut place = Place::new();
        std::fs::write(place.path("cur/1.a:2,"), "x").unwrap();
        place.settled_look().await;
        let core = Arc::clone(place.mailbox().core());
        let names = |numbers: std::ops::Range<u32>| numbers.map(|number| format!("k{number}")).collect();
        let (first, second) = (Arc::new(Operation::Name(names(0..54))), Arc::new(Operation::Name(names(50..60))));
        let operations = [Arc::clone(&first), Arc::clone(&second)];
        let (named, known) = name_keywords(&core, &operations).unwrap();
        assert!(named.flag("k0").is_some() && named.flag("k59").is_none(), "the first takes all room");
        // Then its session gives up, before the batch begins.
        let named = named.only_of([&*second].into_iter(), known);
        let (answer, _outcome) = oneshot::channel();
        let taken = [WaitingChange { number: 2, operation: second, answer }];
        assert!(append(&core, named, &taken).unwrap()[0].is_ok());
        let keywords = lock(&core.state).as_ref().unwrap().keywords.clone();
        assert!(keywords.flag("k0").is_none() && keywords.flag("k50").is_some() && keywords.flag("k59").is_some());
    }
}
