//! Certificates obtained or made by the server, in addition to configured ones.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use posthaste_acme::Challenges;
use posthaste_config::Config;
use posthaste_net::{CertificateChooser, CertificateList};

use crate::config::self_made;

/// Certificates for all listeners. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnCertificates {
    /// Certificates from an authority.
    pub obtained: Arc<CertificateList>,
    self_made: Arc<CertificateList>,
    /// Challenges by which authorities verify our names.
    pub challenges: Challenges,
}

impl OwnCertificates {
    /// Chooses certificates for a listener; the configured ones take precedence.
    pub fn chooser(&self, configured: &Arc<CertificateList>) -> CertificateChooser {
        CertificateChooser::new(vec![Arc::clone(configured), Arc::clone(&self.obtained)], Arc::clone(&self.self_made))
    }

    /// Ensures that each listener with TLS has a certificate. Blocks.
    ///
    /// # Errors
    /// A self-made certificate cannot be used or made. An existing one stays in force.
    pub(super) fn prepare(&self, config: &Config) -> io::Result<()> {
        if self_made::users(config).next().is_none() {
            return Ok(());
        }
        self.self_made.set([self_made::open(&config.self_made_file(), &config.host_name, SystemTime::now())?]);
        Ok(())
    }
}
