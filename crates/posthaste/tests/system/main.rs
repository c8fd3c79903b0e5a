//! Tests through the real server process. One program, so that what they share is compiled once.

mod bounds;
mod cli;
mod compare;
mod compare_tags;
mod completions;
mod corpus;
mod crash;
mod documents;
mod forms;
mod indexing;
mod keywords;
mod load;
mod reading;
mod routes;
mod search;
mod serve;
mod sink;
mod spool;
mod support;
mod tagging;
mod terminal;
mod undelivered;
