//! Serves waiting mail: wakes an idle connection of a site, or opens one more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_random::mix;

use super::shared::Shared;
use super::site::{Admitted, Share, Site, State, Wanted};

/// Starts a connection that its site has counted.
pub(super) fn connect(shared: &Arc<Shared>, site: &Arc<Site>, admitted: Admitted) {
    let seed = mix(shared.seed ^ mix(shared.serial.fetch_add(1, Ordering::Relaxed)));
    (shared.start_connection)(shared, site, admitted, seed);
}

/// Serves the sites that have waited for the end of a connection, then the rest of its own site's mail.
pub(super) fn connection_ended(shared: &Arc<Shared>, site: &Arc<Site>) {
    serve_waiting_sites(shared);
    serve(shared, site);
}

/// Assigns a connection to a site's waiting mail, if any.
pub(super) fn serve(shared: &Arc<Shared>, site: &Arc<Site>) {
    serve_with(shared, site, |state| state.share(site, &shared.sites.sharing));
    // If a connection has ended since the site was queued.
    serve_waiting_sites(shared);
}

/// `share`: takes the site's share for one more connection.
fn serve_with(shared: &Arc<Shared>, site: &Arc<Site>, share: impl FnOnce(&mut State) -> Option<Share>) {
    if shared.is_ending() || !shared.outcomes.recorder.budget.may_begin() {
        return;
    }
    let wanted = {
        let mut state = site.state();
        if state.is_retired || !site.source.is_usable() || !shared.queue().has_waiting(state.ready) {
            return;
        }
        if !state.may_send(site, &shared.alarm) {
            return;
        }
        // It would wait for a connection that it does not make.
        if state.standing.is_paused(tokio::time::Instant::now()) {
            state.idle.wake_latest();
            return;
        }
        state.wanted(site, &shared.alarm, share)
    };
    if let Wanted::Connect(admitted) = wanted {
        connect(shared, site, admitted);
    }
}

/// Gives free connections to the sites that have waited longest and still have mail.
pub(super) fn serve_waiting_sites(shared: &Arc<Shared>) {
    while let Some((site, share)) = shared.sites.sharing.next() {
        site.state().place = None;
        serve_with(shared, &site, |_| Some(share));
    }
}
