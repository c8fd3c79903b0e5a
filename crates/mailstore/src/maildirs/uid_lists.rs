//! `posthaste-uids` in each used mailbox: its UIDs for people, and for rebuilding the mailbox. The table takes
//! precedence, and the file is not durable.

/// Next UID and number of messages: a list written with the same values has the same UIDs.
pub(super) type Extent = (u32, usize);

/// The list of a mailbox.
#[derive(Debug, Default)]
pub(super) struct UidListState {
    written: Option<Extent>,
    /// Extent at the last check.
    seen: Option<Extent>,
}

impl UidListState {
    /// True if the list has changed, and the mailbox is idle or the server ends. A list that cannot be written is not
    /// tried again before it has changed.
    pub fn is_to_write(&mut self, extent: Extent, is_ending: bool) -> bool {
        let is_idle = self.seen.replace(extent) == Some(extent);
        if self.written == Some(extent) || !(is_idle || is_ending) {
            return false;
        }
        self.written = Some(extent);
        true
    }
}
