//! The answer to SEARCH, SORT and THREAD, sent in pieces.

use crate::session::ImapMachine;
use crate::session::fetch::unread;
use crate::session::ordering::Order;
use crate::session::searching::{SearchStep, Searching};
use crate::session::state::State;
use crate::session::threads::Threads;
use crate::set::NumberSet;
use crate::write;

/// Maximum numbers in one piece of an answer.
const NUMBERS_MAX: usize = 1000;

impl ImapMachine {
    pub(super) fn end_search(&mut self) {
        let State::Searching(mut searching) = std::mem::replace(&mut self.state, State::Command) else { return };
        if let Some(order) = &mut searching.order {
            order.finish();
            let name = order.name();
            searching.step = SearchStep::TellOrder(0);
            self.state = State::Searching(searching);
            return self.text(&format!("* {name}"));
        }
        match searching.returns {
            Some(returns) if returns.is_silent() => self.finish_search(*searching),
            None => {
                // An empty answer is one, too (decision 35).
                self.text("* SEARCH");
                searching.step = SearchStep::Tell { range: 0, from: 0 };
                self.state = State::Searching(searching);
            }
            Some(returns) => {
                self.text("* ESEARCH (TAG ");
                write::string(&mut self.out, searching.tag.as_bytes());
                self.text(if searching.uid { ") UID" } else { ")" });
                let found = &searching.found;
                let end = |wanted: bool, name: &str, number: Option<u64>| match number.filter(|_| wanted) {
                    Some(number) => format!(" {name} {number}"),
                    None => String::new(),
                };
                let text = end(returns.min, "MIN", found.first().map(u64::from))
                    + &end(returns.max, "MAX", found.last().map(u64::from))
                    + &end(returns.count, "COUNT", Some(found.len()));
                self.text(&text);
                if returns.all && !found.is_empty() {
                    self.text(" ALL ");
                    searching.step = SearchStep::Tell { range: 0, from: 0 };
                    self.state = State::Searching(searching);
                    return;
                }
                self.finish_search(*searching);
            }
        }
    }

    /// Sends some of the numbers: one by one, or as ranges in an extended answer.
    pub(super) fn tell_numbers(&mut self, mut range: usize, mut from: u32) {
        let State::Searching(mut searching) = std::mem::replace(&mut self.state, State::Command) else { return };
        let ranges = searching.found.ranges();
        for _ in 0..NUMBERS_MAX {
            let Some(next) = ranges.get(range) else { break };
            if searching.returns.is_some() {
                if range > 0 {
                    self.out.push(b',');
                }
                let first = next.start();
                let last = next.end();
                self.text(&if first == last { first.to_string() } else { format!("{first}:{last}") });
                range += 1;
                continue;
            }
            let number = from.max(*next.start());
            write_number(&mut self.out, number);
            if number == *next.end() {
                range += 1;
            }
            from = number.saturating_add(1);
        }
        if range < ranges.len() {
            searching.step = SearchStep::Tell { range, from };
            self.state = State::Searching(searching);
            return;
        }
        self.finish_search(*searching);
    }

    pub(super) fn tell_order(&mut self, mut told: usize) {
        let State::Searching(mut searching) = std::mem::replace(&mut self.state, State::Command) else { return };
        let is_done = match searching.order.as_ref().expect("it has an order") {
            Order::Sorted(numbers) => {
                let next = &numbers[told..numbers.len().min(told + NUMBERS_MAX)];
                next.iter().for_each(|number| write_number(&mut self.out, *number));
                told += next.len();
                told == numbers.len()
            }
            Order::Threaded(threads) => self.tell_threads(threads, &mut told),
            order => unreachable!("{} is not finished", order.name()),
        };
        if is_done {
            return self.finish_search(*searching);
        }
        searching.step = SearchStep::TellOrder(told);
        self.state = State::Searching(searching);
    }

    fn tell_threads(&mut self, threads: &Threads, told: &mut usize) -> bool {
        if *told == 0 && !threads.roots.is_empty() {
            self.out.push(b' ');
        }
        for &root in threads.roots.iter().skip(*told).take(NUMBERS_MAX) {
            threads.write(root, &mut self.out);
            *told += 1;
        }
        *told == threads.roots.len()
    }

    fn finish_search(&mut self, searching: Searching) {
        if searching.returns.is_some_and(|returns| returns.save) {
            // After a search that failed there is nothing (RFC 5182 section 2.1).
            self.saved = match searching.failure.and_then(unread) {
                None => searching.saved_uids(),
                Some(_) => NumberSet::default(),
            };
        }
        // RFC 7162 sections 3.1.5 and 3.1.6.
        let tells_modseq = searching.test.has_modseq() && searching.modseq > 0;
        if !searching.returns.is_some_and(|returns| returns.is_silent()) {
            self.line(&if tells_modseq && !matches!(searching.order, Some(Order::Threaded(_))) {
                if searching.returns.is_some() {
                    format!(" MODSEQ {}", searching.modseq)
                } else {
                    format!(" (MODSEQ {})", searching.modseq)
                }
            } else {
                String::new()
            });
        }
        let name = searching.order.as_ref().map_or("SEARCH", Order::name);
        let uid = if searching.uid { "UID " } else { "" };
        let text = match searching.failure.and_then(unread) {
            Some(text) => text.into(),
            None => format!("OK {uid}{name} completed"),
        };
        self.finish_with(searching.tag, text, searching.uid);
    }
}

/// Writes a space and a number.
fn write_number(out: &mut Vec<u8>, number: u32) {
    out.push(b' ');
    write::number(out, number.into());
}
