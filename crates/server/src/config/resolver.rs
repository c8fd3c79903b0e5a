//! The resolver of `[dns]`.

use posthaste_config::Config;
use posthaste_dns::{Resolver, SetupError};

/// A resolver with the configured settings, which skips this server as a mail host.
pub(crate) fn resolver(config: &Config) -> Result<Resolver, SetupError> {
    let own = config.listeners.iter().filter_map(|listener| listener.socket.address.as_ref()?.parse().ok());
    Ok(Resolver::new(&config.dns)?.with_own([&config.host_name], own))
}
