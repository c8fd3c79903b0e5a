//! The only import of the server: commands call its functions by these names, and know nothing else of it.

pub use posthaste_server::logging::error_line;
pub use posthaste_server::{
    ServeError, ServeFailure, ServeOptions, check_config, open_closed, open_routes, serve, set_copy_aside,
};
