//! Commands about messages.

use super::events::{Pop3Event, Pop3Refusal, Pop3Row};
use super::listing::{Listing, RowsFor, Sending};
use super::machine::{Pop3Machine, State};
use super::maildrop::Maildrop;
use crate::command::Pop3Command;
use crate::stuffing::Stuffer;

impl Pop3Machine {
    pub(super) fn with_mail(&mut self, command: Pop3Command) -> Option<Pop3Event> {
        match command {
            Pop3Command::Stat => return self.stat(),
            Pop3Command::List(None) => return self.list_all(RowsFor::List),
            Pop3Command::Uidl(None) => return self.list_all(RowsFor::Uidl),
            Pop3Command::List(Some(message)) => return self.list_one(message, RowsFor::ListOne),
            Pop3Command::Uidl(Some(message)) => return self.list_one(message, RowsFor::UidlOne),
            Pop3Command::Retr(message) => return self.open(message, None),
            Pop3Command::Top { message, lines } => return self.open(message, Some(lines)),
            Pop3Command::Dele(message) => {
                if self.check(message) {
                    let maildrop = self.maildrop();
                    maildrop.deleted.insert(message);
                    maildrop.octets = None;
                    self.line(&format!("+OK Message {message} will be deleted"));
                }
            }
            Pop3Command::Rset => {
                let maildrop = self.maildrop();
                let retrieved = std::mem::take(&mut maildrop.retrieved);
                *maildrop = Maildrop { retrieved, ..Maildrop::new(maildrop.messages) };
                self.line("+OK Nothing is deleted");
            }
            _ => self.line("+OK"),
        }
        None
    }

    fn maildrop(&mut self) -> &mut Maildrop {
        self.maildrop.as_mut().expect("somebody has logged in")
    }

    /// True if the message exists; otherwise sends an error.
    fn check(&mut self, message: u32) -> bool {
        let has = self.maildrop().has(message);
        if !has {
            self.line("-ERR No such message");
        }
        has
    }

    fn stat(&mut self) -> Option<Pop3Event> {
        let maildrop = self.maildrop();
        match maildrop.octets {
            Some(octets) => {
                let text = format!("+OK {} {octets}", maildrop.left());
                self.line(&text);
                None
            }
            None => self.list_all(RowsFor::Stat(0)),
        }
    }

    fn list_all(&mut self, wanted: RowsFor) -> Option<Pop3Event> {
        let last = self.maildrop().messages;
        Some(self.ask_rows(1, last, wanted))
    }

    fn list_one(&mut self, message: u32, wanted: RowsFor) -> Option<Pop3Event> {
        self.check(message).then(|| self.ask_rows(message, message, wanted))
    }

    fn ask_rows(&mut self, first: u32, last: u32, wanted: RowsFor) -> Pop3Event {
        self.state = State::Listing(Listing { wanted, has_begun: false });
        Pop3Event::Rows { first, last, sizes: !matches!(wanted, RowsFor::Uidl | RowsFor::UidlOne) }
    }

    /// Answers [`Pop3Event::NextRow`]; `None` at the end.
    ///
    /// # Panics
    /// If [`Pop3Event::NextRow`] is not pending.
    pub fn row(&mut self, row: Result<Option<&Pop3Row>, Pop3Refusal>) {
        let State::Listing(mut listing) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a row in {:?}", self.state)
        };
        let is_list = matches!(listing.wanted, RowsFor::List | RowsFor::Uidl);
        if is_list && row.is_ok() && !std::mem::replace(&mut listing.has_begun, true) {
            let left = self.maildrop().left();
            self.line(&format!("+OK {left} messages"));
        }
        match row {
            Ok(Some(row)) => {
                if self.maildrop().has(row.message) {
                    self.tell_row(row, &mut listing);
                }
                self.state = State::Listing(listing);
            }
            Ok(None) => self.end_rows(&listing),
            // The client waits for the end of the list, which cannot be told to be missing.
            Err(_) if is_list && listing.has_begun => self.state = State::Closed,
            Err(_) if listing.has_begun => {}
            Err(why) => self.refuse(why),
        }
    }

    fn tell_row(&mut self, row: &Pop3Row, listing: &mut Listing) {
        let Pop3Row { message, size, unique_id } = row;
        // A message that cannot be read has its place in the list all the same.
        let size = size.unwrap_or(0);
        match &mut listing.wanted {
            RowsFor::List => self.line(&format!("{message} {size}")),
            RowsFor::Uidl => self.line(&format!("{message} {unique_id}")),
            RowsFor::ListOne => self.line(&format!("+OK {message} {size}")),
            RowsFor::UidlOne => self.line(&format!("+OK {message} {unique_id}")),
            RowsFor::Stat(octets) => {
                *octets = octets.saturating_add(size);
                return;
            }
        }
        listing.has_begun = true;
    }

    fn end_rows(&mut self, listing: &Listing) {
        match listing.wanted {
            RowsFor::List | RowsFor::Uidl => self.line("."),
            RowsFor::ListOne | RowsFor::UidlOne if listing.has_begun => {}
            RowsFor::ListOne | RowsFor::UidlOne => self.refuse(Pop3Refusal::Gone),
            RowsFor::Stat(octets) => {
                let maildrop = self.maildrop();
                maildrop.octets = Some(octets);
                let text = format!("+OK {} {octets}", maildrop.left());
                self.line(&text);
            }
        }
    }

    fn open(&mut self, message: u32, lines: Option<u64>) -> Option<Pop3Event> {
        self.check(message).then(|| {
            self.state = State::Opening { message, lines };
            Pop3Event::Open { message }
        })
    }

    /// Answers [`Pop3Event::Open`] with the message's octets.
    ///
    /// # Panics
    /// If [`Pop3Event::Open`] is not pending.
    pub fn opened(&mut self, len: Result<u64, Pop3Refusal>) {
        let State::Opening { message, lines } = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a message in {:?}", self.state)
        };
        let len = match len {
            Ok(len) => len,
            Err(why) => return self.refuse(why),
        };
        match lines {
            None => self.line(&format!("+OK {len} octets")),
            Some(lines) => self.line(&format!("+OK Header and up to {lines} lines")),
        }
        self.send(Sending { message, from: 0, len, stuffer: Stuffer::new(lines), is_whole: lines.is_none() });
    }

    /// Answers [`Pop3Event::Read`]; empty or [`Err`]: the read failed. The client waits for the end of the message, so
    /// the connection is closed.
    ///
    /// # Panics
    /// If [`Pop3Event::Read`] is not pending.
    pub fn octets(&mut self, octets: Result<&[u8], Pop3Refusal>) {
        let State::Sending(mut sending) = std::mem::replace(&mut self.state, State::Closed) else {
            panic!("octets in {:?}", self.state)
        };
        let Some(octets) = octets.ok().filter(|octets| !octets.is_empty()) else { return };
        sending.stuffer.write(octets, &mut self.out);
        sending.from += octets.len() as u64;
        self.send(sending);
    }

    fn send(&mut self, sending: Sending) {
        if sending.from < sending.len && !sending.stuffer.is_done() {
            self.state = State::Sending(sending);
            return;
        }
        if sending.is_whole {
            self.maildrop().retrieved.insert(sending.message);
        }
        sending.stuffer.finish(&mut self.out);
        self.state = State::Command;
    }

    fn refuse(&mut self, why: Pop3Refusal) {
        self.line(match why {
            Pop3Refusal::Gone => "-ERR That message is gone",
            Pop3Refusal::Unavailable => "-ERR [SYS/TEMP] The mailbox cannot be read now, try again later",
            Pop3Refusal::Impossible => "-ERR [SYS/PERM] That message cannot be read",
        });
    }
}
