//! Start, reload and end of the process, and the requests of operators: control socket, API, page, commands.

pub(crate) mod banner;
pub(crate) mod config_check;
pub(crate) mod delays;
pub(crate) mod disks;
pub(crate) mod http;
pub(crate) mod outbound;
pub(crate) mod overview;
pub(crate) mod page_links;
pub(crate) mod public_files;
pub(crate) mod ready;
pub(crate) mod requests;
pub(crate) mod serve;
pub(crate) mod server;
