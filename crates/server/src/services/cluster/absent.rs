//! Replaces a node in a program without the feature `cluster`, whose configuration cannot ask for one.

use std::path::PathBuf;
use std::sync::Arc;

use posthaste_config::Config;
use posthaste_intake::Intake;

use crate::config::engine_login::EngineLogin;
use crate::config::error::ServeError;
use crate::config::start_files::RelayFiles;
use crate::receive::handler::Receiver;
use crate::repeats::Repeats;
use crate::services::relay::RelayService;

/// This program is not a node: see [`EngineLogin::read`].
///
/// # Errors
/// Always returns an error.
pub fn set_copy_aside(
    config: &Config,
    _: u16,
    _: bool,
    _: &mut dyn FnMut(&str) -> bool,
) -> Result<Option<PathBuf>, ServeError> {
    EngineLogin::read(config)?;
    Err(ServeError::Cluster("the configuration has no [cluster]".to_owned()))
}

/// The shards of this node: there are none.
pub(crate) enum OpenShards {}

impl OpenShards {
    /// Does nothing: see [`EngineLogin::read`].
    ///
    /// # Errors
    /// Never fails.
    pub async fn open(_: &Config, _: EngineLogin, _: Arc<Repeats>) -> Result<Option<Self>, ServeError> {
        Ok(None)
    }

    pub fn intake(&self) -> &Intake {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never fails.
    pub async fn start(self, _: &Config, _: RelayFiles, _: Receiver) -> Result<RelayService, ServeError> {
        match self {}
    }
}
