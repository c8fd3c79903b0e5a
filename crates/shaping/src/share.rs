//! A share of all limits, for one of several senders that count by themselves.

use std::sync::Arc;

use super::file::Total;
use super::rules::Values;
use super::{ShapingError, ShapingRules, Sourced};

impl ShapingRules {
    /// The rules for one of `parts` senders that count by themselves. Rates, bursts and connections are divided; the
    /// source of each value tells that.
    ///
    /// A burst is at least 1, and so are the connections to which automation slows a site: `parts` senders may exceed
    /// such a limit.
    ///
    /// # Errors
    /// [`ShapingError::Meaning`] for connections below `parts`.
    pub fn share(mut self, parts: u32) -> Result<ShapingRules, ShapingError> {
        if parts <= 1 {
            return Ok(self);
        }
        for section in &mut self.sections {
            let Values { connections, connection_rate, connections_per_address, message_rate, .. } =
                &mut section.values;
            for said in [connections, connections_per_address].into_iter().flatten() {
                said.value = share_of(said.value, parts, &said.from)?;
                said.from = shared(&said.from, parts);
            }
            for said in [connection_rate, message_rate].into_iter().flatten() {
                said.value = said.value.share(parts);
                said.from = shared(&said.from, parts);
            }
            section.total.iter_mut().try_for_each(|said| share_total(said, parts))?;
        }
        self.limits.values_mut().try_for_each(|said| share_total(said, parts))?;
        for said in self.tenants.values_mut().filter_map(|tenant| tenant.message_rate.as_mut()) {
            said.value = said.value.share(parts);
            said.from = shared(&said.from, parts);
        }
        self.automation.share(parts);
        Ok(self)
    }
}

fn share_total(said: &mut Sourced<Total>, parts: u32) -> Result<(), ShapingError> {
    let Total { connections, connection_rate, message_rate } = &mut said.value;
    if let Some(most) = connections {
        *most = share_of(*most, parts, &said.from)?;
    }
    for rate in [connection_rate, message_rate].into_iter().flatten() {
        *rate = rate.share(parts);
    }
    said.from = shared(&said.from, parts);
    Ok(())
}

fn share_of(connections: u32, parts: u32, from: &str) -> Result<u32, ShapingError> {
    if connections < parts {
        let why = format!("{parts} shards cannot share {connections} connections: allow {parts} at least");
        return Err(ShapingError::Meaning { section: from.to_owned(), why });
    }
    Ok(connections / parts)
}

fn shared(from: &str, parts: u32) -> Arc<str> {
    format!("{from}, shared by {parts} shards").into()
}
