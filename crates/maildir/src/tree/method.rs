//! System calls one by one, or io_uring.

/// Method of looking at files and reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMethod {
    /// The faster method by measurement: single calls until a sample shows that files are not cached, batches from
    /// there on.
    #[default]
    Best,
    /// One system call after the other.
    OneByOne,
    /// Batches through io_uring, where the kernel allows it; otherwise single calls.
    Batched,
}

/// Environment variable that disables io_uring if set to `1`.
pub const DISABLE_IO_URING: &str = "POSTHASTE_DISABLE_IO_URING";
