//! Mail hosts of a domain: cached MX and address look-ups (RFC 5321 section 5.1), the meaning of missing records, and
//! TXT records.
//!
//! For every program that sends or checks mail. Users of one resolver share its cache, its limit of queries and its
//! memory of failures.
//!
//! [`Resolver::destination`] gives the list of hosts, [`Attempt`] walks through it, one host and its addresses at a
//! time. The resolvers should be recursive and caching, preferably on this machine. [`OwnServers`] asks a domain's own
//! servers. DNSSEC is not validated here: with [`Settings::trust_ad`] the resolvers are trusted to do so.
//!
//! ```
//! use std::sync::Arc;
//!
//! use posthaste_random::Random;
//! use posthaste_dns::{Attempt, Resolver, Settings};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let settings: Settings = toml::from_str("servers = ['127.0.0.1:5353']\n[hosts]\n'example.org' = ['192.0.2.1']\n").unwrap();
//! let resolver = Resolver::new(&settings).unwrap();
//! let destination = resolver.destination("Example.ORG").await.unwrap();
//! let mut attempt = Attempt::new(destination, 25, &mut Random::new(1));
//! let (host, addresses) = attempt.next(&resolver).await.unwrap().expect("the first host");
//! assert_eq!((&*host.name, addresses.all()[0].to_string()), ("example.org", "192.0.2.1".to_owned()));
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ad_trust;
mod addresses;
mod attempt;
mod authentic;
mod cache;
mod check;
mod client;
mod destination;
mod error;
mod hosts;
mod join_all;
mod meters;
mod names;
mod own;
mod own_servers;
mod plain;
mod resolver;
mod section;
mod slots;
mod source;
mod spf_merge;
mod tlsa;
mod wanted;
mod zone_reply;

pub use ad_trust::UnprovenAd;
pub use addresses::Addresses;
pub use attempt::Attempt;
pub use cache::{ANSWER_BYTES_MAX, Cache};
pub use check::{CheckError, DomainCheck, HostView, ask_own_servers};
pub use destination::{MailDestination, MailHost, Site};
pub use error::{DnsError, SetupError};
pub use join_all::join_all;
pub use meters::DnsStats;
pub use names::is_next_hop;
pub use own_servers::OwnServers;
pub use plain::PlainLookup;
pub use resolver::Resolver;
pub use section::{IpStrategy, Settings};
pub use slots::{Pace, Slot};
pub use source::RecordSource;
pub use spf_merge::{SPF_LOOKUPS_MAX, SpfMergeError};
pub use tlsa::TlsaRecord;
pub use wanted::{FoundRecord, OwnDomain, WEB_NAMES, WantedRecord};
