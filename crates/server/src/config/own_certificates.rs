//! Certificates obtained or made by the server, in addition to configured ones: kept fresh while it runs.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_directory::Directory;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::config::acme::Acme;
use crate::config::certificate_lists::OwnCertificates;
use crate::config::error::ServeError;
use crate::lifecycle::{Ending, OnFailure, Service};
use posthaste_config::Config;

/// Renews the server's own certificates.
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

    /// Handle to request certificates.
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
            tracing::error!(
                error,
                "no certificates are obtained or renewed from the authority until this is corrected"
            );
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
