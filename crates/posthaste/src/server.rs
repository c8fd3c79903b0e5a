//! Re-exports of the server crate. Commands import from here only.

pub use posthaste_server::logging::error_line;
pub use posthaste_server::{
    ServeError, ServeFailure, ServeOptions, check_config, open_closed, open_routes, serve, set_copy_aside,
};
