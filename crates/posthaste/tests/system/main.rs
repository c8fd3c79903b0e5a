//! Tests through the real server process. One program, so that what they share is compiled once.

mod cli;
mod corpus;
mod crash;
mod search;
mod serve;
mod support;
