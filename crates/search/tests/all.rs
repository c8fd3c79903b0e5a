//! The index and its scan beside other readers of the same mail. The watch, and changes under way, are programs of their own.

mod common;
mod containing;
mod differential;
mod headers;
mod needles;
mod oracle;
mod scan;
