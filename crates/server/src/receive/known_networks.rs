//! Keeps the networks with successful logins over a restart.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::lifecycle::{Ending, OnFailure, Service, end_blocking};
use crate::receive::handler::Receiver;
use crate::receive::logins::save_gate;

/// Regularly saves the networks with successful logins.
pub(crate) struct KnownNetworksService {
    saving: JoinHandle<()>,
    receiver: Receiver,
}

impl KnownNetworksService {
    pub fn begin(receiver: Receiver) -> Self {
        let of_task = receiver.clone();
        let saving = tokio::spawn(async move {
            loop {
                sleep(SAVE_INTERVAL).await;
                let receiver = of_task.clone();
                let _ = spawn_blocking(move || save_gate(receiver.gate())).await;
            }
        });
        Self { saving, receiver }
    }
}

impl Service for KnownNetworksService {
    fn name(&self) -> &'static str {
        "known networks"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("networks that log in are not known after a restart")
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        self.saving.abort();
        end_blocking(move || save_gate(self.receiver.gate()))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        std::pin::Pin::new(&mut self.saving).poll(cx).map(drop)
    }
}

const SAVE_INTERVAL: Duration = Duration::from_secs(60);
