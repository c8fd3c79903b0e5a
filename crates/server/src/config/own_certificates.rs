//! Certificates obtained or made by the server, in addition to configured ones.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use posthaste_acme::Challenges;
use posthaste_directory::Directory;
use posthaste_net::{CertificateChooser, CertificateList};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::config::acme::Acme;
use crate::config::error::ServeError;
use crate::config::self_made;
use crate::lifecycle::{Ending, OnFailure, Service};
use posthaste_config::Config;

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
    /// The chooser of a listener with these configured certificates, which take precedence.
    pub fn chooser(&self, configured: &Arc<CertificateList>) -> CertificateChooser {
        CertificateChooser::new(vec![Arc::clone(configured), Arc::clone(&self.obtained)], Arc::clone(&self.self_made))
    }

    /// Ensures that each listener with TLS has a certificate. Blocks.
    ///
    /// # Errors
    /// The self-made one can be neither used nor made. A present one stays in force.
    fn prepare(&self, config: &Config) -> io::Result<()> {
        if self_made::users(config).next().is_none() {
            return Ok(());
        }
        self.self_made.set([self_made::open(&config.self_made_file(), &config.host_name, SystemTime::now())?]);
        Ok(())
    }
}

/// Keeps the server's own certificates fresh.
pub(crate) struct CertificateService {
    own: OwnCertificates,
    acme: Acme,
    daily: JoinHandle<()>,
}

const NAME: &str = "certificates";
/// Interval between checks of the self-made certificate.
const DAY: Duration = Duration::from_secs(86_400);

impl CertificateService {
    /// Starts it; the data directory must exist.
    ///
    /// # Errors
    /// [`ServeError::Service`]: a listener would have TLS without a certificate.
    pub async fn start(own: OwnCertificates, config: &Config) -> Result<Self, ServeError> {
        let first = own.clone();
        let of_config = config.clone();
        let prepared = spawn_blocking(move || first.prepare(&of_config)).await.map_err(io::Error::from).flatten();
        prepared.map_err(|error| ServeError::Service { service: NAME, error })?;
        let acme = Acme::default();
        let applied = acme.apply(config, &own).map_err(io::Error::other);
        applied.map_err(|error| ServeError::Service { service: NAME, error })?;
        Ok(Self { daily: daily(own.clone(), config.clone()), acme, own })
    }

    /// The handle to ask for certificates.
    pub fn acme(&self) -> Acme {
        self.acme.clone()
    }
}

fn daily(own: OwnCertificates, config: Config) -> JoinHandle<()> {
    let config = Arc::new(config);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(DAY).await;
            let own = own.clone();
            let config = Arc::clone(&config);
            let _ = spawn_blocking(move || told(own.prepare(&config))).await;
        }
    })
}

/// Logs an error; true without one.
fn told(prepared: io::Result<()>) -> bool {
    prepared.inspect_err(|error| tracing::error!(error = error.to_string(), "cannot make a certificate")).is_ok()
}

impl Service for CertificateService {
    fn name(&self) -> &'static str {
        NAME
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("the self-made certificate is not made anew before its end")
    }

    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        self.daily.abort();
        self.daily = daily(self.own.clone(), config.clone());
        let mut kept = Vec::new();
        if !told(self.own.prepare(config)) {
            kept.push("the self-made certificate");
        }
        if let Err(error) = self.acme.apply(config, &self.own) {
            tracing::error!(error, "certificates of an authority are neither obtained nor renewed");
            kept.push("acme");
        }
        kept
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        self.daily.abort();
        self.acme.stop();
        Box::pin(std::future::ready(Ok(())))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        std::pin::Pin::new(&mut self.daily).poll(cx).map(drop)
    }
}
