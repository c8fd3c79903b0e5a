//! Parts of a running server besides the listeners: the spool, destinations, pickup, webhooks, watches.

pub(crate) mod cluster;
pub(crate) mod indexing;
pub(crate) mod inject;
pub(crate) mod mailboxes;
pub(crate) mod maildirs;
pub(crate) mod opening;
pub(crate) mod panics;
pub(crate) mod pickup;
pub(crate) mod relay;
pub(crate) mod relay_log;
pub(crate) mod relay_signatures;
pub(crate) mod renders;
pub(crate) mod tidy;
pub(crate) mod transports;
pub(crate) mod watch;
pub(crate) mod webhooks;
