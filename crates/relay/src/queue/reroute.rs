//! Routes that end before their time.

use std::sync::Arc;

use super::Queue;
use super::destinations::QueueId;
use super::entry::Key;
use super::pick::pick;

impl Queue {
    /// All routes end: whatever is due, and whatever becomes due, is [routed](Self::route) anew. The sources or the rules have changed.
    pub fn reroute_all(&mut self) {
        for id in self.destinations.ids() {
            self.reroute(id);
        }
    }

    /// The routes to a site end. Each queue is looked at.
    pub fn reroute_site(&mut self, site: &str) {
        for id in self.destinations.ids() {
            if self.site(id).is_some_and(|of_queue| &*of_queue == site) {
                self.reroute(id);
            }
        }
    }

    /// Queues with a route that is too old are routed anew if anything is due, even if nothing is taken from their ready queues.
    pub fn reroute_old(&mut self) {
        for id in self.destinations.ids() {
            if self.destinations.at(id.place).route_until <= self.now {
                self.list_unrouted(id.place);
            }
        }
    }

    fn reroute(&mut self, id: QueueId) {
        self.destinations.at_mut(id.place).route_until = 0;
        self.list_unrouted(id.place);
    }

    /// The source and the site that a recipient waits for; `None` while its queue has no route.
    pub fn route_of(&self, key: Key) -> Option<(Arc<str>, Arc<str>)> {
        let recipient = self.table.get(self.table.find(key)?);
        let lanes = &self.destinations.at(recipient.queue).lanes;
        let ready = lanes.get(pick(lanes, key.message))?.ready?;
        let ready = &self.ready[ready as usize];
        Some((ready.source.clone(), ready.site.clone()))
    }
}
