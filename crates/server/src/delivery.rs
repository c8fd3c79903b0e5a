//! Local delivery and its spool as a service.

use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use posthaste_delivery::Owners;
use posthaste_delivery::local::{LocalDelivery, ReplayReport};
use posthaste_directory::Directory;
use posthaste_watch::Watch as Workers;
use tokio::time::Instant;

use crate::error::ServeError;
use crate::events::Events;
use crate::opening::open_store;
use crate::panics;
use crate::repeats::Repeats;
use crate::services::{Ended, Ending, OnFailure, Service, end_blocking};
use posthaste_config::{Config, OwnerRules};

/// What was accepted is written into mailboxes.
pub(crate) struct Delivery {
    store: LocalDelivery,
    owners: Current,
    failed: Ended,
}

impl Delivery {
    /// Opens the spool, which gets its workers watched by `workers`, and finishes what an earlier run left. The event log, if there is one, is a service of its own.
    ///
    /// # Errors
    /// [`ServeError::Storage`].
    pub async fn start(
        config: &Config,
        repeats: Arc<Repeats>,
        workers: Workers,
    ) -> Result<(Self, LocalDelivery, ReplayReport, Option<Events>), ServeError> {
        let owners = Current::new(OwnerRules::of(&config.domains));
        let failed = panics::of_delivery();
        let (store, report, events) = open_store(config, owners.owners(), repeats, workers).await?;
        Ok((Self { store: store.clone(), owners, failed }, store, report, events))
    }
}

impl Service for Delivery {
    fn name(&self) -> &'static str {
        "delivery"
    }

    /// Mail in the spool is safe, and a restart delivers it.
    fn on_failure(&self) -> OnFailure {
        OnFailure::Stop
    }

    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        self.owners.replace(OwnerRules::of(&config.domains));
        Vec::new()
    }

    /// What is not written by then stays in the spool; the server says how much that is when it has stopped.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
        Box::pin(async move {
            let intake = self.store.intake().clone();
            intake.close();
            self.store.shutdown_by(deadline.into_std()).await;
            end_blocking(move || intake.end(deadline.into_std())).await
        })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.failed.poll(cx)
    }
}

/// The rules in force, which a reload replaces.
#[derive(Debug, Clone)]
struct Current(Arc<RwLock<OwnerRules>>);

impl Current {
    fn new(rules: OwnerRules) -> Self {
        Self(Arc::new(RwLock::new(rules)))
    }

    fn replace(&self, rules: OwnerRules) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// For code that makes files.
    fn owners(&self) -> Owners {
        let rules = self.0.clone();
        Owners::new(move |path| rules.read().unwrap_or_else(PoisonError::into_inner).ownership(path))
    }
}
