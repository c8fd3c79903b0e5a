//! A closed spool of a kind that writes its records in groups.

use std::sync::Arc;

use bytes::Bytes;

use crate::batch::Head;
use crate::events::Damage;
use crate::lsn_set::LsnSet;
use crate::store::groups::Medium;
use crate::{Lsn, StoreKind};

/// The records of a closed spool, and the damage found.
#[derive(Clone)]
pub(super) struct ClosedRecords {
    pub kind: StoreKind,
    pub medium: Arc<dyn Medium>,
    pub held: LsnSet,
}

impl ClosedRecords {
    /// Name of the records' directory in the spool.
    pub fn place(&self) -> &'static str {
        self.kind.dir()
    }

    pub(super) fn damage(&self, lsn: u64, what: &str) -> Damage {
        Damage { lsn: Some(Lsn::new(lsn)), place: self.place().to_owned(), what: what.to_owned() }
    }

    /// Total bytes of the records.
    pub fn bytes(&self) -> u64 {
        self.medium.bytes(&self.held)
    }

    /// The body region of a record, with placeholders if only its front fields are damaged.
    pub fn mended(&self, lsn: u64, head: &Head) -> Option<Bytes> {
        let crc = self.medium.header(Lsn::new(lsn)).ok()?.body_crc;
        head.front().mended(&self.medium.body_again(Lsn::new(lsn)).ok()?.0, crc)
    }
}

/// Description of the damage if a record is missing.
pub(crate) const RECORD_MISSING: &str = "its record is missing";
