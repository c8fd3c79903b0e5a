//! States of webhooks, for the page and metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// States of the configured webhooks, by name.
#[derive(Debug, Default)]
pub(crate) struct WebhookStates(Mutex<BTreeMap<String, WebhookState>>);

/// State of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookState {
    /// Time since which events wait; `None` if none do.
    pub behind_since: Option<Instant>,
    /// Why it receives no events now.
    pub trouble: Option<String>,
}

impl WebhookStates {
    /// Removes all webhooks except these.
    pub fn keep(&self, names: &[&str]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| names.contains(&name.as_str()));
    }

    /// The webhook has received all events.
    pub fn caught_up(&self, name: &str) {
        self.change(name, |state| *state = WebhookState { behind_since: None, trouble: None });
    }

    /// Notes that events wait for the webhook.
    pub fn has_more(&self, name: &str) {
        self.change(name, |state| _ = state.behind_since.get_or_insert_with(Instant::now));
    }

    /// Notes that posting to the webhook fails, and why.
    pub fn fails(&self, name: &str, why: &str) {
        self.change(name, |state| {
            state.behind_since.get_or_insert_with(Instant::now);
            state.trouble = Some(why.to_owned());
        });
    }

    /// Notes that posting to the webhook works again.
    pub fn works(&self, name: &str) {
        self.change(name, |state| state.trouble = None);
    }

    /// All webhooks.
    pub fn all(&self) -> Vec<(String, WebhookState)> {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.iter().map(|(name, state)| (name.clone(), state.clone())).collect()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut WebhookState)) {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = WebhookState { behind_since: None, trouble: None };
        change(states.entry(name.to_owned()).or_insert(new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_behind_from_its_first_event_that_is_not_told() {
        let states = WebhookStates::default();
        let of = |name: &str| states.all().into_iter().find(|(known, _)| known == name).map(|(_, state)| state);
        states.has_more("crm");
        let since = of("crm").unwrap().behind_since;
        assert!(since.is_some());
        states.fails("crm", "502");
        states.has_more("crm");
        assert_eq!(of("crm"), Some(WebhookState { behind_since: since, trouble: Some("502".to_owned()) }));
        states.works("crm");
        assert_eq!(of("crm").unwrap(), WebhookState { behind_since: since, trouble: None });
        states.caught_up("crm");
        states.caught_up("old");
        assert_eq!(of("crm"), Some(WebhookState { behind_since: None, trouble: None }));
        states.keep(&["crm"]);
        assert_eq!((of("old"), states.all().len()), (None, 1));
    }
}
