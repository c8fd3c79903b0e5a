//! Batches in flight to the local spool, in log order. If one is refused, nobody sees a later one first.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;

use posthaste_spool::{AppendError, Batch, Body, Entry, Lsn, Spool, StreamId, Then, Ticket};

use crate::entry::Place;
use crate::queue::Queue;

/// A batch to append, with retries.
pub(crate) struct Work {
    pub place: Place,
    pub entries: Vec<Entry>,
    pub body: Body,
    /// Called when the batch is durable.
    pub then: Option<Then>,
    /// Units of room reserved for it.
    pub room: u64,
}

/// Appends to the local spool. Used by one thread.
pub(crate) struct Pipeline {
    stream: StreamId,
    shared: Arc<Shared>,
    /// Batches appended or to be retried, in order, with their numbers here.
    works: VecDeque<(u64, Slot)>,
    next: u64,
    /// Number of the first record not appended.
    unsent: u64,
}

struct Slot {
    place: Place,
    entries: Vec<Entry>,
    body: Body,
    then: Arc<Mutex<Option<Then>>>,
    room: u64,
}

struct Shared {
    writer: ThreadId,
    state: Mutex<State>,
    changed: Condvar,
    /// A refusal on the writer's own thread, before the append returned.
    at_once: Mutex<Option<AppendError>>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct State {
    tickets: VecDeque<(u64, Ticket)>,
    /// Batches with lower numbers are durable.
    done: u64,
    failed: Option<(u64, AppendError)>,
}

impl Pipeline {
    /// Call it on the thread that will use the pipeline.
    pub fn new(stream: StreamId, queue: Arc<Queue>) -> Self {
        let writer = std::thread::current().id();
        let shared =
            Shared { writer, state: Mutex::default(), changed: Condvar::new(), at_once: Mutex::default(), queue };
        Pipeline { stream, shared: Arc::new(shared), works: VecDeque::new(), next: 0, unsent: 0 }
    }

    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// The next batch of the log. `lsn` is its number in the cluster.
    pub fn push(&mut self, local: &dyn Spool, work: Work, lsn: Lsn) {
        let Work { place, entries, body, then, room } = work;
        let then: Option<Then> = then.map(|then| -> Then { Box::new(move |outcome| then(outcome.map(|_| lsn))) });
        self.works.push_back((self.next, Slot { place, entries, body, then: Arc::new(Mutex::new(then)), room }));
        self.next += 1;
        self.send(local);
    }

    /// Waits until the oldest batch is durable or refused.
    pub fn wait(&self) {
        let Some((first, _)) = self.works.front() else { return };
        let is_waiting = |state: &mut State| state.done <= *first && state.failed.is_none();
        drop(self.shared.changed.wait_while(self.shared.state(), is_waiting).expect("nothing panics while it is held"));
    }

    /// Units of room of batches that have become durable since the last call.
    pub fn take_done(&mut self) -> u64 {
        let done = self.shared.state().done;
        let mut room = 0;
        while let Some((_, slot)) = self.works.pop_front_if(|(seq, _)| *seq < done) {
            room += slot.room;
        }
        room
    }

    /// The error of the first batch that was refused: it and all after it wait for [`send_again`](Self::send_again).
    pub fn failure(&self) -> Option<AppendError> {
        self.shared.state().failed.as_ref().map(|(_, error)| error.clone())
    }

    /// Retries from the refused batch on.
    pub fn send_again(&mut self, local: &dyn Spool) {
        if let Some((seq, _)) = self.shared.state().failed.take() {
            self.unsent = seq;
        }
        self.send(local);
    }

    /// Takes the callbacks of all batches here.
    pub fn take_all(&mut self) -> Vec<Then> {
        self.works.drain(..).filter_map(|(_, slot)| slot.then.lock().expect("nothing panics there").take()).collect()
    }

    fn send(&mut self, local: &dyn Spool) {
        while let Some(first) = self.works.front().map(|(seq, _)| *seq) {
            let at = (self.unsent - first) as usize;
            if at == self.works.len() || !self.send_one(local, at) {
                return;
            }
        }
    }

    /// Appends one batch; false if it or an earlier one was refused.
    fn send_one(&mut self, local: &dyn Spool, at: usize) -> bool {
        let (seq, slot) = &self.works[at];
        let own = Entry { stream: self.stream, needs_body: false, payload: slot.place.encode() };
        // First, so that its consumer hears of the batch before all others.
        let entries = std::iter::once(own).chain(slot.entries.iter().cloned()).collect();
        let batch = Batch { entries, body: copy(&slot.body) };
        let seq = *seq;
        let then = slot.then.clone();
        let shared = self.shared.clone();
        // Held over the append: the ring's thread cancels all that come after a refused one, and finds them all.
        let mut state = self.shared.state();
        if state.failed.is_some() {
            return false;
        }
        let ticket = local.append(
            batch,
            Box::new(move |outcome| match outcome {
                Ok(lsn) => {
                    if let Some(then) = { then.lock().expect("nothing panics there").take() } {
                        then(Ok(lsn));
                    }
                    shared.done(seq);
                }
                Err(error) => shared.failed(seq, error),
            }),
        );
        if let Some(error) = self.shared.at_once.lock().expect("nothing panics there").take() {
            state.failed = Some((seq, error));
            return false;
        }
        state.tickets.push_back((seq, ticket));
        self.unsent = seq + 1;
        true
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    fn done(&self, seq: u64) {
        {
            let mut state = self.state();
            state.done = seq + 1;
            while state.tickets.pop_front_if(|(ticket, _)| *ticket <= seq).is_some() {}
        }
        self.changed.notify_all();
        self.queue.put(|_| ());
    }

    fn failed(&self, seq: u64, error: AppendError) {
        if std::thread::current().id() == self.writer {
            *self.at_once.lock().expect("nothing panics there") = Some(error);
            return;
        }
        {
            let mut state = self.state();
            // The ring answers in order, on this thread: none after this one was shown, so each can be cancelled.
            for (later, ticket) in std::mem::take(&mut state.tickets) {
                if later > seq {
                    ticket.cancel();
                }
            }
            // A later one may have been refused at once.
            if state.failed.as_ref().is_none_or(|(failed, _)| seq < *failed) {
                state.failed = Some((seq, error));
            }
        }
        self.changed.notify_all();
        self.queue.put(|_| ());
    }
}

/// Clones a body.
fn copy(body: &Body) -> Body {
    match body {
        Body::None => Body::None,
        Body::Inline(front, parts) => Body::Inline(front.clone(), parts.clone()),
        Body::File(front, upload) => Body::File(front.clone(), upload.clone()),
    }
}
