//! Messages and recipients in pages, in the order of their LSNs: 24 bytes per recipient and 8 per message, or 10 in
//! pages where a message has several.
//!
//! A page has the recipients of consecutive messages; a message with many may continue in the next page. Circular lists
//! link recipients by id. A list has its own head, so a recipient leaves it without knowing which it is. Settled
//! recipients leave holes; a page half full of holes is compacted, and sparse neighbours are merged. That changes ids:
//! outside the lists a [`RecipientKey`] names a recipient.

use posthaste_spool::Lsn;

use super::change::RecipientKey;
use super::clock::Secs;
use super::digest::{DigestSum, RecordedState};
use super::recipient::{BUSY, Id, NONE, OPEN, Recipient};
use super::tally::Tallies;

const HEAD: Id = 1 << 31;
const PAGE_BITS: u32 = 10;
/// Number of recipients of a page.
const PAGE: usize = 1 << PAGE_BITS;
/// Recipients up to which an arriving message is kept in one page.
const UNDIVIDED: usize = 64;
/// Recipients at most: the range of ids, with room for holes.
pub(super) const RECIPIENTS_MAX: u64 = 1 << 30;

/// A message, or its part in one page.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// LSN of the message minus the page's.
    offset: u32,
    received: Secs,
}

#[derive(Debug, Default)]
struct Page {
    base: u64,
    parts: Vec<Part>,
    /// Index of each part's first recipient. Empty while each part but the last has one recipient: most pages need
    /// none.
    firsts: Vec<u16>,
    recipients: Vec<Recipient>,
    open: u16,
}

impl Page {
    fn part_of(&self, index: usize) -> usize {
        if self.firsts.is_empty() {
            index.min(self.parts.len() - 1)
        } else {
            self.firsts.partition_point(|first| usize::from(*first) <= index) - 1
        }
    }

    fn range(&self, part: usize) -> std::ops::Range<usize> {
        let first = |part: usize| if self.firsts.is_empty() { part } else { usize::from(self.firsts[part]) };
        let is_last = part + 1 == self.parts.len();
        first(part)..if is_last { self.recipients.len() } else { first(part + 1) }
    }

    fn lsn(&self, part: usize) -> u64 {
        self.base + u64::from(self.parts[part].offset)
    }

    fn last_lsn(&self) -> u64 {
        self.lsn(self.parts.len() - 1)
    }

    fn begin_part(&mut self, lsn: u64, received: Secs) {
        let offset = u32::try_from(lsn - self.base).expect("a page of near messages");
        if self.firsts.is_empty() && self.parts.len() != self.recipients.len() {
            self.firsts.extend(0..self.parts.len() as u16);
        }
        if !self.firsts.is_empty() {
            self.firsts.push(self.recipients.len() as u16);
        }
        self.parts.push(Part { offset, received });
    }
}

#[derive(Debug)]
pub(super) struct Table {
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Pages in the order of their messages.
    order: Vec<u32>,
    heads: Vec<(Id, Id)>,
    free_heads: Vec<Id>,
    open: u64,
    digest: DigestSum,
    /// Counts of recipients; only this file changes a recipient, and counts it.
    pub tallies: Tallies,
}

impl Table {
    pub fn new() -> Self {
        Table {
            pages: Vec::new(),
            free: Vec::new(),
            order: Vec::new(),
            heads: Vec::new(),
            free_heads: Vec::new(),
            open: 0,
            digest: DigestSum::default(),
            tallies: Tallies::default(),
        }
    }

    /// Number of unsettled recipients.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// See [`Queue::digest`](super::Queue::digest).
    pub fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// Appends a message after all others; calls `added` for each of its recipients.
    pub fn push(
        &mut self,
        lsn: Lsn,
        received: Secs,
        mut recipients: &[Recipient],
        mut added: impl FnMut(&mut Self, Id),
    ) {
        recipients.iter().for_each(|recipient| self.digest.add(lsn, recipient));
        let lsn = lsn.get();
        while !recipients.is_empty() {
            let place = self.page_for(lsn, recipients.len());
            let page = &mut self.pages[place as usize];
            let first = page.recipients.len();
            let (here, later) = recipients.split_at(recipients.len().min(PAGE - first));
            page.begin_part(lsn, received);
            page.recipients.extend_from_slice(here);
            page.open += here.len() as u16;
            self.open += here.len() as u64;
            here.iter().for_each(|recipient| self.tallies.push(recipient, received));
            (first..first + here.len()).for_each(|index| added(self, place << PAGE_BITS | index as Id));
            recipients = later;
        }
    }

    fn page_for(&mut self, lsn: u64, recipients: usize) -> u32 {
        if let Some(&last) = self.order.last() {
            let page = &self.pages[last as usize];
            assert!(lsn >= page.last_lsn(), "LSNs ascend: {lsn} after {}", page.last_lsn());
            let room = PAGE - page.recipients.len();
            let fits = room > 0 && (recipients <= room || recipients > UNDIVIDED);
            if fits && lsn - page.base <= u64::from(u32::MAX) {
                return last;
            }
            self.shrink(last);
        }
        let mut page = Page { base: lsn, ..Page::default() };
        page.recipients.reserve_exact(PAGE);
        let place = self.place(page);
        self.order.push(place);
        place
    }

    fn place(&mut self, page: Page) -> u32 {
        if let Some(place) = self.free.pop() {
            self.pages[place as usize] = page;
            return place;
        }
        self.pages.push(page);
        let place = self.pages.len() as u32 - 1;
        assert!(place < HEAD >> PAGE_BITS, "{place} pages: recipients are bounded");
        place
    }

    fn shrink(&mut self, place: u32) {
        let page = &mut self.pages[place as usize];
        page.parts.shrink_to_fit();
        page.firsts.shrink_to_fit();
        page.recipients.shrink_to_fit();
    }

    pub fn get(&self, id: Id) -> &Recipient {
        &self.pages[(id >> PAGE_BITS) as usize].recipients[id as usize % PAGE]
    }

    /// Changes a recipient, and updates the counts.
    pub fn change<R>(&mut self, id: Id, change: impl FnOnce(&mut Recipient) -> R) -> R {
        let before = *self.get(id);
        let changed = change(self.get_mut(id));
        let after = *self.get(id);
        self.tallies.change(&before, &after);
        if RecordedState::of(&before) != RecordedState::of(&after) {
            let message = self.message(id).0;
            self.digest.remove(message, &before);
            self.digest.add(message, &after);
        }
        changed
    }

    /// Access without counting: for links, and at its end.
    fn get_mut(&mut self, id: Id) -> &mut Recipient {
        &mut self.pages[(id >> PAGE_BITS) as usize].recipients[id as usize % PAGE]
    }

    /// The open recipient with a key.
    pub fn find(&self, key: RecipientKey) -> Option<Id> {
        self.parts_of(key.message).find_map(|(place, part)| {
            let page = &self.pages[place as usize];
            let range = page.range(part);
            let index = page.recipients[range.clone()].binary_search_by_key(&key.number, |one| one.number).ok()?;
            let index = range.start + index;
            page.recipients[index].is(OPEN).then_some(place << PAGE_BITS | index as Id)
        })
    }

    /// True if a message has open recipients.
    pub fn has(&self, message: Lsn) -> bool {
        self.parts_of(message).any(|(place, part)| {
            let page = &self.pages[place as usize];
            page.recipients[page.range(part)].iter().any(|one| one.is(OPEN))
        })
    }

    /// True if a recipient of a message waits for its first attempt.
    pub fn has_untried(&self, message: Lsn) -> bool {
        self.parts_of(message).any(|(place, part)| {
            let page = &self.pages[place as usize];
            let is_untried = |one: &Recipient| one.is(OPEN) && !one.is(BUSY) && one.attempts == 0;
            page.recipients[page.range(part)].iter().any(is_untried)
        })
    }

    /// The parts of a message, the last first.
    fn parts_of(&self, message: Lsn) -> impl Iterator<Item = (u32, usize)> {
        let lsn = message.get();
        let end = self.order.partition_point(|place| self.pages[*place as usize].base <= lsn);
        let pages = self.order[..end].iter().rev();
        let pages = pages.take_while(move |place| self.pages[**place as usize].last_lsn() >= lsn);
        pages.flat_map(move |place| {
            let page = &self.pages[*place as usize];
            let offset = lsn - page.base;
            let from = page.parts.partition_point(|part| u64::from(part.offset) < offset);
            let same = page.parts[from..].iter().take_while(move |part| u64::from(part.offset) == offset).count();
            (from..from + same).map(|part| (*place, part))
        })
    }

    pub fn key(&self, id: Id) -> RecipientKey {
        RecipientKey { message: self.message(id).0, number: self.get(id).number }
    }

    /// The message of a recipient, and when it was received.
    pub fn message(&self, id: Id) -> (Lsn, Secs) {
        let page = &self.pages[(id >> PAGE_BITS) as usize];
        let part = page.part_of(id as usize % PAGE);
        (Lsn::new(page.lsn(part)), page.parts[part].received)
    }

    /// Nearby recipients of the same message, itself included: a message with many is in several parts.
    pub fn siblings(&self, id: Id) -> std::ops::Range<Id> {
        let place = id >> PAGE_BITS;
        let page = &self.pages[place as usize];
        let range = page.range(page.part_of(id as usize % PAGE));
        (place << PAGE_BITS | range.start as Id)..(place << PAGE_BITS) + range.end as Id
    }

    /// The open recipients of the first page that has any from `from` on, and the key to continue from. `None` at the
    /// end.
    pub fn open_from(&self, from: RecipientKey) -> Option<(Vec<Id>, RecipientKey)> {
        let lsn = from.message.get();
        let mut at = self.order.partition_point(|place| self.pages[*place as usize].last_lsn() < lsn);
        while let Some(&place) = self.order.get(at) {
            let page = &self.pages[place as usize];
            let ids = 0..page.recipients.len() as Id;
            let ids = ids.map(|index| place << PAGE_BITS | index);
            let ids: Vec<Id> = ids.filter(|id| self.get(*id).is(OPEN)).collect();
            let ids: Vec<Id> = if page.base < lsn || page.lsn(0) == lsn {
                ids.into_iter().filter(|id| self.key(*id) >= from).collect()
            } else {
                ids
            };
            if let Some(&last) = ids.last() {
                return Some((ids, self.key(last).next()));
            }
            at += 1;
        }
        None
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.order.len()
    }

    /// Removes a settled recipient, which must be in no list. Ids may change.
    pub fn settle(&mut self, id: Id) {
        let recipient = *self.get(id);
        assert!(recipient.is(OPEN) && recipient.next == NONE, "an open recipient in no list: {recipient:?}");
        self.tallies.remove(&recipient);
        let message = self.message(id).0;
        self.digest.remove(message, &recipient);
        self.get_mut(id).bits = 0;
        self.open -= 1;
        let place = id >> PAGE_BITS;
        let page = &mut self.pages[place as usize];
        page.open -= 1;
        let open = usize::from(page.open);
        let len = page.recipients.len();
        let base = page.base;
        let last = page.last_lsn();
        if open * 2 > len || (open > 0 && len < 64) {
            return;
        }
        let at = self.order_of(place, base, last);
        if open == 0 {
            self.order.remove(at);
            self.drop_page(place);
            return;
        }
        // The last page stays open for messages; others merge up to half a page.
        let is_last = |at: usize| at + 1 == self.order.len();
        if is_last(at) {
            return;
        }
        let merges = |first: usize, second: usize| {
            let [first, second] = [first, second].map(|at| &self.pages[self.order[at] as usize]);
            let is_near = second.last_lsn() - first.base <= u64::from(u32::MAX);
            is_near && usize::from(first.open) + usize::from(second.open) <= PAGE / 2
        };
        if !is_last(at + 1) && merges(at, at + 1) {
            self.rebuild(at, 2);
        } else if at > 0 && merges(at - 1, at) {
            self.rebuild(at - 1, 2);
        } else {
            self.rebuild(at, 1);
        }
    }

    fn order_of(&self, place: u32, base: u64, last: u64) -> usize {
        let mut at = self.order.partition_point(|other| self.pages[*other as usize].last_lsn() < last);
        while self.order[at] != place {
            at += 1;
        }
        debug_assert_eq!(self.pages[self.order[at] as usize].base, base);
        at
    }

    fn drop_page(&mut self, place: u32) {
        self.pages[place as usize] = Page::default();
        self.free.push(place);
    }

    /// Moves the open recipients of some pages into a new one.
    fn rebuild(&mut self, at: usize, count: usize) {
        let old: Vec<u32> = self.order[at..at + count].to_vec();
        let open: usize = old.iter().map(|place| usize::from(self.pages[*place as usize].open)).sum();
        let mut page = Page { base: self.pages[old[0] as usize].base, open: open as u16, ..Page::default() };
        page.recipients.reserve_exact(open);
        let place = self.place(page);
        for from in &old {
            for part in 0..self.pages[*from as usize].parts.len() {
                let source = &self.pages[*from as usize];
                let lsn = source.lsn(part);
                let received = source.parts[part].received;
                let range = source.range(part);
                let mut is_begun = false;
                for index in range {
                    let recipient = self.pages[*from as usize].recipients[index];
                    if !recipient.is(OPEN) {
                        continue;
                    }
                    let target = &mut self.pages[place as usize];
                    if !std::mem::replace(&mut is_begun, true) {
                        target.begin_part(lsn, received);
                    }
                    let id = place << PAGE_BITS | target.recipients.len() as Id;
                    target.recipients.push(recipient);
                    if recipient.next != NONE {
                        *self.links_mut(recipient.prev).0 = id;
                        *self.links_mut(recipient.next).1 = id;
                    }
                }
            }
        }
        self.shrink(place);
        self.order.splice(at..at + count, [place]);
        old.into_iter().for_each(|place| self.drop_page(place));
    }

    /// A new empty list.
    pub fn list(&mut self) -> Id {
        let head = self.free_heads.pop().unwrap_or_else(|| {
            self.heads.push((NONE, NONE));
            HEAD | (self.heads.len() - 1) as Id
        });
        self.heads[(head & !HEAD) as usize] = (head, head);
        head
    }

    /// Returns an empty list.
    pub fn drop_list(&mut self, head: Id) {
        assert!(self.first(head).is_none(), "an empty list");
        self.free_heads.push(head);
    }

    pub fn first(&self, head: Id) -> Option<Id> {
        let (first, _) = self.heads[(head & !HEAD) as usize];
        (first != head).then_some(first)
    }

    pub fn push_back(&mut self, head: Id, id: Id) {
        let prev = self.heads[(head & !HEAD) as usize].1;
        self.insert(prev, id, head);
    }

    pub fn push_front(&mut self, head: Id, id: Id) {
        let next = self.heads[(head & !HEAD) as usize].0;
        self.insert(head, id, next);
    }

    fn insert(&mut self, prev: Id, id: Id, next: Id) {
        let recipient = self.get_mut(id);
        assert_eq!(recipient.next, NONE, "in no list");
        (recipient.next, recipient.prev) = (next, prev);
        *self.links_mut(prev).0 = id;
        *self.links_mut(next).1 = id;
    }

    /// Takes a recipient out of its list, if it is in one.
    pub fn unlink(&mut self, id: Id) {
        let recipient = self.get_mut(id);
        let next = recipient.next;
        let prev = recipient.prev;
        if next == NONE {
            return;
        }
        (recipient.next, recipient.prev) = (NONE, NONE);
        *self.links_mut(prev).0 = next;
        *self.links_mut(next).1 = prev;
    }

    fn links_mut(&mut self, id: Id) -> (&mut Id, &mut Id) {
        if id & HEAD != 0 {
            let (next, prev) = &mut self.heads[(id & !HEAD) as usize];
            return (next, prev);
        }
        let recipient = self.get_mut(id);
        (&mut recipient.next, &mut recipient.prev)
    }
}
