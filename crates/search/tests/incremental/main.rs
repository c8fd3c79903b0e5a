//! However mail came, moved, changed flags and went: the index is the one that a first run over the same mail makes.

#[path = "../common/mod.rs"]
mod common;

mod changes;
mod crashes;
mod history;
mod support;
