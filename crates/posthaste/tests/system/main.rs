//! Tests through the real server process. One program, so that what they share is compiled once.

mod bounds;
mod cli;
mod corpus;
mod crash;
mod load;
mod search;
mod serve;
mod sink;
mod support;
mod undelivered;
