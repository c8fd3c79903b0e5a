//! An engine in memory that fails in every way that the contract allows, by a seed. For tests and simulations.

mod cells;
mod log;

pub use cells::{CellFault, MemoryCells};
pub use log::{Fault, LATE_MAX, LogFaults, MemoryLog};
