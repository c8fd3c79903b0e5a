//! The state machine with its owner. Sessions whose time is short are a program of their own.

mod common;
mod conform;
mod prop;
