//! Reads all input files named in a configuration: certificates, passwords, keys, secrets, rules, templates. Used by a
//! start, before it binds, and by `config check`, so that the two cannot differ.

use std::sync::Arc;

use posthaste_accounts::{Logins, LoginsError};
use posthaste_directory::Directory;
use posthaste_dns::{Resolver, SetupError};
use posthaste_relay::sender::{BounceFiles, Notices, Routing};
use posthaste_shaping::ShapingRules;

use crate::config::certificate_lists::OwnCertificates;
use crate::config::certificates::TlsInForce;
use crate::config::dkim::DomainSigners;
use crate::config::engine_login::EngineLogin;
use crate::config::error::ServeError;
use crate::config::forward::Forwarding;
use crate::config::resolver::resolver;
use posthaste_config::Config;

/// Files that a start has read.
#[derive(Debug)]
pub(crate) struct StartFiles {
    /// TLS of each listener, in their order.
    pub tls: Vec<TlsInForce>,
    /// Certificates in addition to the configured ones.
    pub own: OwnCertificates,
    pub logins: Arc<Logins>,
    pub signers: Arc<DomainSigners>,
    pub relay: RelayFiles,
    /// The login at the engine of a cluster.
    pub engine: EngineLogin,
}

/// Files for the relay.
#[derive(Debug)]
pub(crate) struct RelayFiles {
    pub bounces: BounceFiles,
    pub forwarding: Forwarding,
    pub notices: Notices,
    /// The resolver; an error concerns this machine: without `dns.servers` it must name some. Not needed without mail
    /// to other hosts.
    pub resolver: Result<Arc<Resolver>, SetupError>,
    pub routing: Routing,
    pub shaping: Arc<ShapingRules>,
}

impl StartFiles {
    /// Reads everything. Blocks.
    ///
    /// # Errors
    /// All problems, at least one.
    pub fn read(config: &Config, directory: &Directory) -> Result<Self, Vec<ServeError>> {
        let mut problems = Vec::new();
        let own = OwnCertificates::default();
        let tls = kept(TlsInForce::load_all(config, &own), &mut problems);
        let logins = kept(load_logins(config, directory), &mut problems);
        let signers = kept(DomainSigners::read(config), &mut problems);
        let engine = kept(EngineLogin::read(config), &mut problems);
        match (tls, logins, signers, engine, RelayFiles::read(config)) {
            (Some(tls), Some(logins), Some(signers), Some(engine), Ok(relay)) => {
                Ok(Self { tls, own, logins, signers, relay, engine })
            }
            (.., relay) => {
                problems.extend(relay.err().unwrap_or_default());
                Err(problems)
            }
        }
    }

    /// Reads everything, up to the first problem. Blocks.
    ///
    /// # Errors
    /// The first problem.
    pub fn read_or_first(config: &Config, directory: &Directory) -> Result<Self, ServeError> {
        Self::read(config, directory).map_err(|problems| problems.into_iter().next().expect("a problem"))
    }
}

impl RelayFiles {
    /// Reads the relay's files. Blocks.
    ///
    /// # Errors
    /// All problems, at least one.
    pub fn read(config: &Config) -> Result<Self, Vec<ServeError>> {
        let section = &config.relay;
        let mut problems = Vec::new();
        let bounces = kept(BounceFiles::read(&section.bounces, section.return_path.as_ref()), &mut problems);
        let forwarding = kept(Forwarding::open(section.srs.as_ref()), &mut problems);
        let notices = kept(section.notices.read(), &mut problems);
        let routing = kept(section.routing(), &mut problems);
        let shaping = kept(section.shaping_rules(config.limit_shares()), &mut problems);
        let resolver = resolver(config).map(Arc::new);
        if let Err(error) = &resolver
            && !matches!(error, SetupError::System(_))
        {
            problems.push(ServeError::Dns(format!("dns: {error}")));
        }
        match (bounces, forwarding, notices, routing, shaping) {
            (Some(bounces), Some(forwarding), Some(notices), Some(routing), Some(shaping)) if problems.is_empty() => {
                Ok(Self { bounces, forwarding, notices, resolver, routing, shaping })
            }
            _ => Err(problems),
        }
    }
}

/// The logins of `[auth]`. Blocks.
///
/// # Errors
/// The file cannot be used.
pub(crate) fn load_logins(config: &Config, directory: &Directory) -> Result<Arc<Logins>, LoginsError> {
    match config.auth.file() {
        Some(file) => Logins::load(file, directory).map(Arc::new),
        None => Ok(Arc::default()),
    }
}

fn kept<T, E: Into<ServeError>>(read: Result<T, E>, problems: &mut Vec<ServeError>) -> Option<T> {
    read.map_err(|error| problems.push(error.into())).ok()
}
