use std::net::IpAddr;

use hickory_resolver::proto::rr::{RData, RecordType};

use crate::tlsa::{self, TlsaRecord};
use crate::zone_reply::{address, host_text, text};
use crate::{DnsError, OwnServers, Resolver, names};

/// The source of a domain's records.
#[derive(Debug, Clone, Copy)]
pub enum RecordSource<'a> {
    /// A caching resolver: recent changes may be missing.
    Resolver(&'a Resolver),
    /// The domain's own servers.
    OwnServers(&'a OwnServers<'a>),
}

impl<'a> RecordSource<'a> {
    /// The resolver that both kinds use.
    pub(crate) fn resolver(self) -> &'a Resolver {
        match self {
            RecordSource::Resolver(resolver) => resolver,
            RecordSource::OwnServers(servers) => servers.resolver(),
        }
    }

    /// The records of a name; empty if it does not exist.
    async fn records(self, name: &str, kind: RecordType) -> Result<Vec<RData>, DnsError> {
        let found = match self {
            RecordSource::Resolver(resolver) => {
                let name = names::domain(name).ok_or_else(|| DnsError::NotADomain(name.chars().take(100).collect()))?;
                resolver.records(&name, kind).await
            }
            RecordSource::OwnServers(servers) => servers.records(name, kind).await,
        };
        match found {
            Err(DnsError::NoSuchDomain(_)) => Ok(Vec::new()),
            found => found,
        }
    }

    pub(crate) async fn texts(self, name: &str) -> Result<Vec<String>, DnsError> {
        Ok(self.records(name, RecordType::TXT).await?.iter().filter_map(text).collect())
    }

    /// Mail hosts; an empty name is a null MX (RFC 7505).
    pub(crate) async fn mail_hosts(self, domain: &str) -> Result<Vec<String>, DnsError> {
        let records = self.records(domain, RecordType::MX).await?;
        Ok(records.iter().map(|record| host_text(record).unwrap_or_default()).collect())
    }

    /// Hosts and ports of a service.
    pub(crate) async fn services(self, name: &str) -> Result<Vec<(String, u16)>, DnsError> {
        let of = |record: &RData| match record {
            RData::SRV(srv) => Some((host_text(record).unwrap_or_default(), srv.port)),
            _ => None,
        };
        Ok(self.records(name, RecordType::SRV).await?.iter().filter_map(of).collect())
    }

    pub(crate) async fn names_of_address(self, reverse_name: &str) -> Result<Vec<String>, DnsError> {
        Ok(self.records(reverse_name, RecordType::PTR).await?.iter().filter_map(host_text).collect())
    }

    /// The TLSA records of a host's TCP port (RFC 6698 section 3), sorted and not validated.
    ///
    /// # Errors
    /// [`DnsError::Unanswered`]: it may have some.
    pub async fn tlsa(self, host: &str, port: u16) -> Result<Vec<TlsaRecord>, DnsError> {
        let records = self.records(&format!("_{port}._tcp.{host}"), RecordType::TLSA).await?;
        let mut found: Vec<TlsaRecord> = records.iter().filter_map(tlsa::record).collect();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// All addresses of a host, IPv4 first, at most 16 of each family.
    ///
    /// # Errors
    /// [`DnsError::Unanswered`]: it may have others.
    pub async fn addresses(self, host: &str) -> Result<Vec<IpAddr>, DnsError> {
        let mut found = Vec::new();
        for kind in [RecordType::A, RecordType::AAAA] {
            found.extend(self.records(host, kind).await?.iter().filter_map(address).take(ADDRESSES_MAX));
        }
        Ok(found)
    }
}

const ADDRESSES_MAX: usize = 16;
