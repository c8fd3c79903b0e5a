use crate::{Dns, NoAnswer, is_name};

use super::DmarcRecord;

/// The records from a domain up to the root (RFC 9989 section 4.10), the longest name first.
pub(super) struct Walk<'a> {
    start: &'a str,
    found: Vec<(&'a str, DmarcRecord)>,
}

/// Labels at which the walk of a longer name continues.
const LABELS_MAX: usize = 7;

impl<'a> Walk<'a> {
    /// Asks at most 8 questions.
    pub(super) async fn start<D: Dns>(dns: &D, domain: &'a str) -> Result<Self, NoAnswer> {
        let mut walk = Walk { start: domain, found: Vec::new() };
        let mut name = domain;
        loop {
            if let Some(record) = record_of(dns, name).await? {
                walk.found.push((name, record));
                if record.is_public_suffix.is_some() {
                    break;
                }
            }
            let above = name.split('.').count() - 1;
            if above == 0 {
                break;
            }
            name = last_labels(name, above.min(LABELS_MAX));
        }
        Ok(walk)
    }

    /// The organisational domain (RFC 9989 section 4.10.2).
    pub(super) fn organization(&self) -> &'a str {
        for (domain, record) in &self.found {
            match record.is_public_suffix {
                Some(false) => return domain,
                Some(true) if *domain != self.start => {
                    return last_labels(self.start, domain.split('.').count() + 1);
                }
                _ => {}
            }
        }
        self.found.last().map_or(self.start, |(domain, _)| domain)
    }

    /// The record that applies: of the author domain, else of the organisational domain, else of the public suffix
    /// above it.
    pub(super) fn policy(&self, organization: &str) -> Option<(&'a str, DmarcRecord)> {
        let of = |wanted: &str| self.found.iter().find(|(domain, _)| *domain == wanted);
        let suffix = || self.found.iter().find(|(_, record)| record.is_public_suffix == Some(true));
        of(self.start).or_else(|| of(organization)).or_else(suffix).copied()
    }
}

fn last_labels(name: &str, count: usize) -> &str {
    match name.rmatch_indices('.').nth(count - 1) {
        Some((dot, _)) => &name[dot + 1..],
        None => name,
    }
}

/// The only record of a name.
async fn record_of<D: Dns>(dns: &D, domain: &str) -> Result<Option<DmarcRecord>, NoAnswer> {
    let name = format!("_dmarc.{domain}");
    if !is_name(&name) {
        return Ok(None);
    }
    let texts = match dns.texts(&name).await {
        Err(NoAnswer::NoSuchName) => return Ok(None),
        texts => texts?,
    };
    let is_dmarc = |text: &&String| {
        text.split(';').next().is_some_and(|tag| {
            tag.split_once('=').is_some_and(|(name, value)| name.trim() == "v" && value.trim() == "DMARC1")
        })
    };
    let mut records = texts.iter().filter(is_dmarc);
    Ok(match (records.next(), records.next()) {
        (Some(record), None) => DmarcRecord::parse(record),
        _ => None,
    })
}
