//! The login at the engine of a cluster.

use std::fmt;

use posthaste_config::Config;

use crate::config::error::ServeError;

/// The login at the engine, if configured.
#[derive(Default)]
pub(crate) struct EngineLogin(
    /// User and password.
    pub Option<(String, String)>,
);

impl EngineLogin {
    /// Reads the password. Blocks.
    ///
    /// # Errors
    /// The password cannot be read, or this program was built without clusters.
    pub fn read(config: &Config) -> Result<Self, ServeError> {
        let Some(cluster) = &config.cluster else { return Ok(Self::default()) };
        if cfg!(not(feature = "cluster")) {
            let why = "this program was built without the feature `cluster`, so it cannot be a node";
            return Err(ServeError::Cluster(why.to_owned()));
        }
        let Some((user, file)) = cluster.user.as_ref().zip(cluster.password_file.as_ref()) else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(file)
            .map_err(|error| ServeError::Cluster(format!("password_file: {}: {error}", file.display())))?;
        Ok(Self(Some((user.clone(), text.lines().next().unwrap_or_default().to_owned()))))
    }
}

impl fmt::Debug for EngineLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineLogin").field(&self.0.as_ref().map(|(user, _)| user)).finish()
    }
}
