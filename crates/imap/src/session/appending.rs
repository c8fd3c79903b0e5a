//! An APPEND in progress.

/// An APPEND that waits for its message.
#[derive(Debug)]
pub(super) struct Appending {
    pub(super) tag: String,
    /// Remaining octets of the message.
    pub(super) left: u64,
    /// True if the client waits for a continuation before it sends the message.
    pub(super) waits: bool,
    pub(super) step: AppendStep,
    pub(super) after_cr: bool,
    /// Number of messages so far, including this one.
    pub(super) messages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AppendStep {
    /// Waits for the driver's answer.
    Asked,
    /// Waits for octets of the message, then the end of the line.
    Read,
}
