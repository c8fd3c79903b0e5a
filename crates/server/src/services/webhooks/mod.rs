//! Posts events to HTTP servers: a thread for each, reading the files of the event log.
//!
//! The threads share nothing with the queue of mail: a hook that is down costs a file descriptor.

mod batch;
mod hook;
mod place;
mod post;
mod stop;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use posthaste_consumer::PoisonWatch;
use posthaste_directory::Directory;
use tokio::time::Instant;

use crate::lifecycle::{Ending, OnFailure, Service, Unfinished};
use crate::receive::webhook_states::WebhookStates;
use hook::Hook;
use posthaste_config::{Config, Webhook};
use stop::Stop;

/// The running webhooks.
pub(crate) struct Webhooks {
    dir: PathBuf,
    poison: PoisonWatch,
    states: Arc<WebhookStates>,
    running: Vec<Running>,
}

struct Running {
    name: String,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Webhooks {
    /// Starts the configured ones.
    pub fn begin(config: &Config, poison: PoisonWatch, states: Arc<WebhookStates>) -> Self {
        let mut webhooks = Self { dir: config.events.dir.clone(), poison, states, running: Vec::new() };
        webhooks.change(&config.webhooks);
        webhooks
    }

    /// Ends all after their current request, and starts the wanted ones: one of the same name continues at the old
    /// position. Unchanged ones restart, too, as the content of their files may have changed.
    fn change(&mut self, wanted: &[Webhook]) {
        let mut old: HashMap<String, Running> =
            self.running.drain(..).map(|running| (running.name.clone(), running)).collect();
        old.values().for_each(|running| running.stop.set());
        self.states.keep(&wanted.iter().map(|webhook| &*webhook.name).collect::<Vec<_>>());
        for webhook in wanted {
            let before = old.remove(&webhook.name).and_then(|before| before.thread);
            self.running.push(start(&self.dir, webhook, &self.poison, &self.states, before));
        }
    }
}

/// Why a webhook cannot be posted to: it retries until its files exist.
pub(crate) fn unusable(webhook: &Webhook) -> Option<String> {
    post::Poster::new(webhook).err().map(|why| format!("webhook {}: {why}", webhook.name))
}

fn start(
    dir: &Path,
    webhook: &Webhook,
    poison: &PoisonWatch,
    states: &Arc<WebhookStates>,
    before: Option<JoinHandle<()>>,
) -> Running {
    let stop = Arc::<Stop>::default();
    let poison = poison.clone();
    let states = Arc::clone(states);
    let hook = Hook { dir: dir.to_owned(), webhook: webhook.clone(), poison, states, stop: stop.clone() };
    let run = move || {
        if let Some(before) = before {
            let _ = before.join();
        }
        hook.run();
    };
    let thread = std::thread::Builder::new().name("webhook".to_owned()).spawn(run);
    if let Err(error) = &thread {
        tracing::error!(
            webhook = webhook.name,
            error = error.to_string(),
            "no thread for a webhook; send SIGHUP to try again"
        );
    }
    Running { name: webhook.name.clone(), stop, thread: thread.ok() }
}

impl Service for Webhooks {
    fn name(&self) -> &'static str {
        "webhooks"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("webhooks are told nothing; what is in the event log comes with the next start")
    }

    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        self.change(&config.webhooks);
        Vec::new()
    }

    /// Waits for requests in progress; unfinished ones are repeated later.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
        self.running.iter().for_each(|running| running.stop.set());
        Box::pin(async move {
            let threads: Vec<_> = self.running.into_iter().filter_map(|running| running.thread).collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                if Instant::now() >= deadline {
                    return Err(Unfinished(
                        "a webhook does not answer; its events are posted again after the next start",
                    ));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
    }

    fn poll_failed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // A thread that panics ends its own hook; the next reload brings it back.
        Poll::Pending
    }
}
