//! Changes of files that no entry has.

/// A change of a message's file that is durable. No entry says so: a commit that is lost has it done once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileNote {
    /// The file is in `cur/`, and its name shows the flags that the message had at a MODSEQ.
    Shown {
        /// The mailbox.
        mailbox: u32,
        /// The message.
        uid: u32,
        /// A later change is not in the name.
        modseq: u64,
    },
    /// The file of an expunged message has left the Maildir.
    Left {
        /// The mailbox.
        mailbox: u32,
        /// The message.
        uid: u32,
    },
    /// The directory of a mailbox was renamed or removed, as a batch says it.
    DirectoryDone {
        /// The mailbox.
        mailbox: u32,
        /// A later batch is not done.
        lsn: u64,
    },
}
