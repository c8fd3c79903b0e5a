//! Receiving mail: the handler, its checks, the list of destinations, and the records of each message.

pub(crate) mod author;
pub(crate) mod cluster;
pub(crate) mod destinations;
pub(crate) mod detail_folders;
pub(crate) mod events;
pub(crate) mod future;
pub(crate) mod handler;
pub(crate) mod head;
pub(crate) mod live;
pub(crate) mod logins;
pub(crate) mod maps;
pub(crate) mod message_log;
pub(crate) mod meters;
pub(crate) mod remote;
pub(crate) mod replies;
pub(crate) mod returned;
pub(crate) mod scope_names;
pub(crate) mod sender_checks;
pub(crate) mod settings;
pub(crate) mod shards;
pub(crate) mod shared;
pub(crate) mod stuck;
pub(crate) mod success;
pub(crate) mod tenants;
pub(crate) mod transaction;
pub(crate) mod webhook_states;
