//! State shared by all mail mounts.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use posthaste_maildir::Owners;
use posthaste_spool::{Lsn, Spool};

use super::identity::BoundMounts;
use super::observer::DeliveryObserver;
use crate::cache::OpenMaildirs;
use crate::seams::Seams;

/// State shared by the parts of one mount.
#[derive(Clone)]
pub(crate) struct Common {
    pub root_path: PathBuf,
    pub owners: Owners,
    pub bound: Arc<BoundMounts>,
    pub spool: Arc<dyn Spool>,
    pub seams: Arc<Seams>,
    pub observer: Option<Arc<dyn DeliveryObserver>>,
    /// See [`LocalConfig::expunged`](super::LocalConfig::expunged).
    pub expunged: Arc<HashSet<(Lsn, u16)>>,
    pub open: Arc<OpenMaildirs<Arc<str>>>,
}
