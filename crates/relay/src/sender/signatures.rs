//! New signatures of mail that the map `generic` changes: all transactions of a message carry the same octets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_message::rewrite::AddressMap;
use posthaste_spool::Lsn;

use super::messages::NotSigned;

/// Signatures of the latest messages sent.
#[derive(Default)]
pub(super) struct Signatures(Mutex<VecDeque<Arc<Signature>>>);

struct Signature {
    message: Lsn,
    /// The map that changed the header.
    generic: Weak<AddressMap>,
    begun: Instant,
    fields: Mutex<Option<Bytes>>,
}

impl Signatures {
    /// The signature fields of a message as this map changes it. Concurrent callers for one message wait for the first.
    /// Blocks.
    ///
    /// # Errors
    /// Errors of `sign`.
    pub fn of(
        &self,
        message: Lsn,
        generic: &Arc<AddressMap>,
        sign: impl FnOnce() -> Result<Bytes, NotSigned>,
    ) -> Result<Bytes, NotSigned> {
        let signature = self.begun(message, generic);
        let mut fields = signature.fields.lock().unwrap_or_else(PoisonError::into_inner);
        match &*fields {
            Some(known) => Ok(known.clone()),
            None => Ok(fields.insert(sign()?).clone()),
        }
    }

    fn begun(&self, message: Lsn, generic: &Arc<AddressMap>) -> Arc<Signature> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|of| of.begun.elapsed() < SIGNATURE_AGE_MAX);
        let is_same = |of: &&Arc<Signature>| {
            of.message == message && std::ptr::eq(Weak::as_ptr(&of.generic), Arc::as_ptr(generic))
        };
        if let Some(found) = all.iter().find(is_same) {
            return Arc::clone(found);
        }
        all.truncate(SIGNATURES_MAX - 1);
        let new = Arc::new(Signature {
            message,
            generic: Arc::downgrade(generic),
            begun: Instant::now(),
            fields: Mutex::default(),
        });
        all.push_front(Arc::clone(&new));
        new
    }
}

/// Messages whose signatures are kept, about 1 KiB each.
const SIGNATURES_MAX: usize = 64;
/// Lifetime of a kept signature: it contains its time, and keys change.
const SIGNATURE_AGE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_octets_are_signed_once_and_others_anew() {
        let signatures = Signatures::default();
        let maps = [Arc::new(AddressMap::default()), Arc::new(AddressMap::default())];
        let mut made = 0;
        let mut sign = |message: u64, map: &Arc<AddressMap>, is_possible: bool| {
            let fields = signatures.of(Lsn::new(message), map, || {
                made += 1;
                let text = format!("{made}");
                if is_possible { Ok(text.into()) } else { Err(NotSigned::Now(text)) }
            });
            fields.ok().map(|fields| String::from_utf8(fields.to_vec()).unwrap())
        };
        assert_eq!(sign(1, &maps[0], false), None, "what failed is tried again");
        assert_eq!(sign(1, &maps[0], true).as_deref(), Some("2"));
        assert_eq!(sign(1, &maps[0], true).as_deref(), Some("2"));
        assert_eq!(sign(1, &maps[1], true).as_deref(), Some("3"), "another map");
        assert_eq!(sign(2, &maps[0], true).as_deref(), Some("4"), "another message");
        for message in 3..100 {
            sign(message, &maps[0], true);
        }
        assert_eq!(signatures.0.lock().unwrap().len(), SIGNATURES_MAX);
        assert_eq!(sign(1, &maps[0], true).as_deref(), Some("102"), "the oldest made room");
    }
}
