//! Limits that all shards share. In any window of W seconds at most `burst + rate * (W + 0.5)` tokens of one are used,
//! whatever happens to nodes and network. Once that works again, the whole rate is used.

mod scenarios;
mod world;
