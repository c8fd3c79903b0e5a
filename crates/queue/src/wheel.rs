//! A hierarchical timing wheel (Varghese and Lauck 1987): four levels of 256 lists, resolution one second, O(1).

use super::clock::Secs;
use super::recipient::Id;
use super::table::Table;

#[derive(Debug)]
pub(super) struct Wheel {
    lists: Vec<Id>,
    now: Secs,
}

const SLOTS: u32 = 256;

impl Wheel {
    pub fn new(table: &mut Table) -> Self {
        Wheel { lists: (0..4 * SLOTS).map(|_| table.list()).collect(), now: 0 }
    }

    /// Sets the time of an empty wheel.
    pub fn start(&mut self, now: Secs) {
        self.now = now;
    }

    /// Inserts a recipient due later than now, at the level of the highest byte in which the times differ.
    pub fn insert(&mut self, table: &mut Table, id: Id, due: Secs) {
        let level = (31 - ((due ^ self.now) | 1).leading_zeros()) / 8;
        table.push_back(self.list(level, due), id);
    }

    fn list(&self, level: u32, time: Secs) -> Id {
        self.lists[(level * SLOTS + (time >> (8 * level)) % SLOTS) as usize]
    }

    /// Advances towards `now`; removes and returns the next recipient due on the way. `None`: `now` is reached.
    pub fn advance(&mut self, table: &mut Table, now: Secs) -> Option<Id> {
        loop {
            if let Some(id) = table.first(self.list(0, self.now)) {
                table.unlink(id);
                return Some(id);
            }
            if self.now >= now {
                return None;
            }
            self.now += 1;
            for level in 1..4 {
                if !self.now.is_multiple_of(1 << (8 * level)) {
                    break;
                }
                self.cascade(table, level);
            }
        }
    }

    /// Spreads the list that the time has reached over the lower levels.
    fn cascade(&mut self, table: &mut Table, level: u32) {
        let list = self.list(level, self.now);
        while let Some(id) = table.first(list) {
            table.unlink(id);
            let due = table.get(id).due;
            self.insert(table, id, due);
        }
    }
}
