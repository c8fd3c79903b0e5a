//! A share of the limits, for one of several senders.

use std::sync::Arc;

use super::file::Total;
use super::rules::Values;
use super::{ShapingError, ShapingRules, Sourced};

impl ShapingRules {
    /// The rules for one of `parts` senders. Connections are divided, and so are the rates of automatic slow-downs,
    /// which is noted in the source of each value. Other rates are not divided: their tokens are
    /// [lent](crate::limits::Lender).
    ///
    /// The connections to which automation slows a site are at least 1: `parts` senders may exceed such a limit.
    ///
    /// # Errors
    /// [`ShapingError::Meaning`] for connections below `parts`.
    pub fn share(mut self, parts: u32) -> Result<ShapingRules, ShapingError> {
        if parts <= 1 {
            return Ok(self);
        }
        for section in &mut self.sections {
            let Values { connections, connections_per_address, .. } = &mut section.values;
            for said in [connections, connections_per_address].into_iter().flatten() {
                said.value = share_of(said.value, parts, &said.from)?;
                said.from = shared(&said.from, parts);
            }
            section.total.iter_mut().try_for_each(|said| share_total(said, parts))?;
        }
        self.limits.values_mut().try_for_each(|said| share_total(said, parts))?;
        self.automation.share(parts);
        Ok(self)
    }
}

fn share_total(said: &mut Sourced<Total>, parts: u32) -> Result<(), ShapingError> {
    if let Some(most) = &mut said.value.connections {
        *most = share_of(*most, parts, &said.from)?;
        said.from = shared(&said.from, parts);
    }
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
