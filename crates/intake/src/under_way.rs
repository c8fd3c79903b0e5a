//! Cancellation of a message on its way into the spool.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;

use posthaste_spool::{Cancelled, Ticket};

use crate::error::IntakeError;

/// The batch to cancel if the message is given up. Dropping it also cancels.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<Stage>);

#[derive(Debug, Default)]
enum Stage {
    /// No batch was appended yet.
    #[default]
    Prepared,
    /// The batch has been written, or waits to be.
    Appended(Ticket),
    /// The message was given up: no batch may be appended any more.
    GivenUp,
}

impl UnderWay {
    /// Notes the batch that was just appended.
    pub fn appended(&self, ticket: Ticket) {
        *self.stage() = Stage::Appended(ticket);
    }

    /// Call when the batch was refused. False if the message was given up meanwhile, so that no other batch may follow.
    pub fn may_append_again(&self) -> bool {
        let mut stage = self.stage();
        let is_wanted = !matches!(*stage, Stage::GivenUp);
        if is_wanted {
            *stage = Stage::Prepared;
        }
        is_wanted
    }

    /// False if the spool has already decided; its answer is on its way.
    fn give_up(&self) -> bool {
        match std::mem::replace(&mut *self.stage(), Stage::GivenUp) {
            Stage::Prepared | Stage::GivenUp => true,
            Stage::Appended(ticket) => ticket.cancel() != Cancelled::TooLate,
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().expect("nothing panics while it is held")
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Runs `work`, which notes its appends in `under_way`, until `give_up` completes.
///
/// # Errors
/// As for `work`, or [`IntakeError::Cancelled`]: then no recipient gets the message.
pub(crate) async fn unless<T>(
    under_way: &UnderWay,
    work: impl Future<Output = Result<T, IntakeError>>,
    give_up: impl Future<Output = ()>,
) -> Result<T, IntakeError> {
    let mut work = pin!(work);
    let mut give_up = pin!(give_up);
    let mut is_given_up = false;
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        // The answer of a batch that cannot be cancelled any more comes at once: its callback is being called.
        if !is_given_up && give_up.as_mut().poll(cx).is_ready() {
            is_given_up = true;
            if under_way.give_up() {
                return Poll::Ready(Err(IntakeError::Cancelled));
            }
        }
        Poll::Pending
    })
    .await
}
