//! FETCH or SEARCH: answers the machine's questions about messages from a view, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_mailstore::{KeptKind, MailBody, MailboxView, MessageRow, MessageRows, RowOptions, Uid};
use posthaste_net::SessionEnd;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::ahead::Ahead;
use super::binary::measure;
use super::connection::{Line, unless_stalled};
use super::octets::{read, send, send_decoded};
use super::{Authenticator, ImapService, mail};
use crate::session::{ImapEvent, MessageChoice};

/// Rows after which the loop yields to other tasks and looks at the clock. A store in memory never makes it wait.
const ROWS_BEFORE_YIELD: u32 = 256;

/// Messages of a view that a command is about.
pub(super) struct Messages<'v, 's> {
    view: &'v dyn MailboxView,
    rows: Box<dyn MessageRows + 'v>,
    /// Rows after the last answered one.
    next: VecDeque<MessageRow>,
    /// The message of the last row, if it was opened.
    body: Option<Arc<dyn MailBody>>,
    headers: Ahead<Bytes>,
    fields: Ahead<Bytes>,
    structures: Ahead<Option<Bytes>>,
    keys: Ahead<Option<Bytes>>,
    bodies: Ahead<Arc<dyn MailBody>>,
    clock: SearchClock<'s>,
    /// Rows since the last yield to other tasks.
    rows_in_turn: u32,
    /// True if more than a row was requested for the message.
    has_read: bool,
}

impl<'v, 's> Messages<'v, 's> {
    pub fn new(view: &'v dyn MailboxView, set: &MessageChoice, sizes: bool) -> Self {
        Self {
            view,
            rows: view.rows(&mail::message_set(set), RowOptions { sizes }),
            next: VecDeque::new(),
            body: None,
            headers: Ahead::default(),
            fields: Ahead::default(),
            structures: Ahead::default(),
            keys: Ahead::default(),
            bodies: Ahead::default(),
            clock: SearchClock::new(),
            rows_in_turn: 0,
            has_read: true,
        }
    }

    /// Answers events until the first that is about something else, and returns it.
    pub async fn answer<A: Authenticator>(
        &mut self,
        line: &mut Line,
        service: &'s ImapService<A>,
    ) -> Result<ImapEvent, SessionEnd> {
        loop {
            match line.machine.step(&mut line.input) {
                ImapEvent::NextRow => self.next_row(line, &service.orders).await?,
                ImapEvent::FindText(keys) => {
                    let found = match &service.text {
                        // Without names of files each message is read.
                        Some(text) => match self.view.files().await {
                            Ok(Some(files)) => text.find(files, keys).await,
                            _ => Vec::new(),
                        },
                        None => Vec::new(),
                    };
                    line.machine.text_found(found);
                }
                ImapEvent::Keys { uid } => self.keys(line, uid).await,
                ImapEvent::Header { uid, whole } => {
                    self.header(line, uid, whole).await;
                    self.keep(KeptKind::Keys, line.machine.made_keys());
                }
                ImapEvent::Structure { uid } => self.structure(line, uid).await,
                ImapEvent::Open { uid } => self.open(line, uid).await,
                ImapEvent::Read { octets } => {
                    read(line, self.opened(), octets, &service.structures).await?;
                    self.keep(KeptKind::Structure, line.machine.made_structure());
                }
                ImapEvent::Send(range) => {
                    let body = self.opened_now();
                    self.written(send(line, &*body, range)).await?;
                }
                ImapEvent::Decode { range, encoding } => {
                    let length = measure(self.opened(), range, encoding).await;
                    line.machine.decoded(length);
                }
                ImapEvent::SendDecoded { range, encoding, octets } => {
                    let body = self.opened_now();
                    self.written(send_decoded(line, &*body, range, encoding, octets)).await?;
                }
                ImapEvent::Flush => self.written(line.flush()).await?,
                other => return Ok(other),
            }
        }
    }

    fn opened(&self) -> &dyn MailBody {
        self.body.as_deref().expect("the message was opened")
    }

    fn opened_now(&self) -> Arc<dyn MailBody> {
        Arc::clone(self.body.as_ref().expect("the message was opened"))
    }

    /// Waits for a write. If it takes long, prefetched answers are dropped: else many slow clients would hold several
    /// hundred KiB each.
    async fn written<T>(&mut self, write: impl Future<Output = T>) -> T {
        unless_stalled(write, || {
            self.headers.give_back();
            self.fields.give_back();
            self.structures.give_back();
            self.keys.give_back();
            self.bodies.give_back();
        })
        .await
    }

    async fn next_row(&mut self, line: &mut Line, orders: &'s Semaphore) -> Result<(), SessionEnd> {
        self.body = None;
        let is_turn_over = self.rows_in_turn >= ROWS_BEFORE_YIELD;
        if is_turn_over {
            self.rows_in_turn = 0;
            yield_now().await;
            if line.stream.has_ended() {
                return Err(SessionEnd::Gone);
            }
        }
        // Rows alone take no time that counts.
        let is_due = std::mem::take(&mut self.has_read) || is_turn_over;
        if is_due && !self.clock.may_go_on(line, orders).await? {
            line.machine.give_up_search();
            return Ok(());
        }
        let row = match self.next.pop_front() {
            Some(row) => Ok(Some(row)),
            None => self.rows.next().await.map(|more| {
                self.next = more.into();
                self.next.pop_front()
            }),
        };
        let row = row.as_ref().map(|row| row.as_ref().map(mail::row));
        self.rows_in_turn += 1;
        line.machine.row(row.map_err(mail::refusal));
        // Most rows need nothing but themselves: an event for each would take longer than they do.
        while line.machine.wants_row()
            && let Some(row) = self.next.pop_front()
        {
            self.rows_in_turn += 1;
            line.machine.row(Ok(Some(mail::row(&row))));
        }
        Ok(())
    }

    async fn header(&mut self, line: &mut Line, uid: u32, whole: bool) {
        self.has_read = true;
        let header = match &self.body {
            Some(body) if whole => body.header().await,
            _ => {
                let headers = if whole { &mut self.headers } else { &mut self.fields };
                let missing = headers.missing(uid, &self.next);
                if !missing.is_empty() {
                    let asked = if whole { self.view.headers(&missing) } else { self.view.fields(&missing) };
                    headers.put(&missing, asked.await);
                }
                headers.take(uid)
            }
        };
        line.machine.header(header.as_deref().map_err(mail::refusal));
    }

    async fn structure(&mut self, line: &mut Line, uid: u32) {
        let kept = Self::kept(self.view, KeptKind::Structure, &mut self.structures, &self.next, uid).await;
        self.has_read = true;
        line.machine.structure(kept.as_deref());
    }

    async fn keys(&mut self, line: &mut Line, uid: u32) {
        let kept = Self::kept(self.view, KeptKind::Keys, &mut self.keys, &self.next, uid).await;
        line.machine.keys(kept.as_deref());
    }

    /// Cached data of a message. Requests the data of the next messages together with it.
    async fn kept(
        view: &dyn MailboxView,
        kind: KeptKind,
        ahead: &mut Ahead<Option<Bytes>>,
        next: &VecDeque<MessageRow>,
        uid: u32,
    ) -> Option<Bytes> {
        let missing = ahead.missing(uid, next);
        if !missing.is_empty() {
            ahead.put(&missing, view.kept(kind, &missing).await);
        }
        // Whoever opens the message is told why it cannot be had.
        ahead.take(uid).ok().flatten()
    }

    fn keep(&self, kind: KeptKind, made: Option<(u32, Vec<u8>)>) {
        if let Some((uid, made)) = made
            && let Some(uid) = Uid::new(uid)
        {
            self.view.keep(kind, uid, &made);
        }
    }

    async fn open(&mut self, line: &mut Line, uid: u32) {
        self.has_read = true;
        let missing = self.bodies.missing(uid, &self.next);
        if !missing.is_empty() {
            self.bodies.put(&missing, self.view.bodies(&missing).await);
        }
        let opened = self.bodies.take(uid);
        line.machine.opened(opened.as_ref().map(|body| body.len()).map_err(mail::refusal));
        self.body = opened.ok();
    }
}

/// Time and memory limits of a search, and progress reports to its client.
struct SearchClock<'s> {
    begun: Instant,
    told: Instant,
    /// Memory for the keys that a SORT or THREAD has collected.
    memory: Option<SemaphorePermit<'s>>,
}

impl<'s> SearchClock<'s> {
    fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, told: now, memory: None }
    }

    async fn may_go_on(&mut self, line: &mut Line, memory: &'s Semaphore) -> Result<bool, SessionEnd> {
        let Some(bytes) = line.machine.order_bytes() else {
            return Ok(!line.machine.is_searching() || self.begun.elapsed() <= line.timeouts.search);
        };
        if self.told.elapsed() > line.timeouts.progress {
            self.told = Instant::now();
            line.machine.tell_progress();
            line.flush().await?;
        }
        Ok(self.begun.elapsed() <= line.timeouts.order && self.has_room(bytes, memory))
    }

    /// Reserves memory in steps, so that most messages need no call.
    fn has_room(&mut self, bytes: usize, memory: &'s Semaphore) -> bool {
        const STEP_KIB: u32 = 64;
        let held = self.memory.as_ref().map_or(0, SemaphorePermit::num_permits);
        if bytes >> 10 < held {
            return true;
        }
        match memory.try_acquire_many(STEP_KIB) {
            Ok(more) => {
                match &mut self.memory {
                    Some(memory) => memory.merge(more),
                    none => *none = Some(more),
                }
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::connection::STALL;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_read_ahead_is_given_back_to_slow_clients() {
        let of_write = async |time: Duration| {
            let mut ahead = Ahead::default();
            let uids: Vec<Uid> = (1..=3).filter_map(Uid::new).collect();
            ahead.put(&uids, Ok(uids.iter().map(|uid| Ok(uid.get())).collect()));
            unless_stalled(tokio::time::sleep(time), || ahead.give_back()).await;
            ahead.missing(2, &VecDeque::new())
        };
        assert_eq!(of_write(STALL / 2).await, Vec::<Uid>::new(), "the next message is in memory");
        assert_eq!(of_write(STALL * 2).await, [Uid::new(2).unwrap()]);
    }
}
