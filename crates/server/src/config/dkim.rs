//! DKIM keys of all domains, in memory, and signing with them.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste_config::{Config, Dkim};
use posthaste_dkim::{DomainKeys, Draft, DraftError, KeyDirectory, KeyState, KeyStoreError, SignError, Signer};

/// The keys that sign.
#[derive(Debug, Default)]
pub(crate) struct DomainSigners {
    /// Signers by domain, in lower-case A-labels.
    by_domain: HashMap<String, DomainSigner>,
    section: Dkim,
}

#[derive(Debug)]
struct DomainSigner {
    active: Vec<Signer>,
    /// Why one of its keys is unusable, with its file.
    unreadable: Option<String>,
}

/// Why no mail can be signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DkimError {
    /// The directory of keys cannot be read.
    #[error("dkim.dir: {0}")]
    Store(#[from] KeyStoreError),
}

/// Why a message is not signed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSigned {
    /// A key cannot be used now.
    Key(String),
    /// The header can never be signed.
    Draft(DraftError),
}

impl DomainSigners {
    /// Reads the keys. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read, or others can read a key in it. An unreadable key affects its own domain only.
    pub fn read(config: &Config) -> Result<Arc<Self>, DkimError> {
        let section = config.dkim.clone();
        let domains = KeyDirectory::new(&section.dir).read()?;
        let by_domain = domains.into_iter().map(|keys| (keys.domain.clone(), DomainSigner::of(keys)));
        Ok(Arc::new(Self { by_domain: by_domain.collect(), section }))
    }

    /// True if no domain has a key.
    pub fn is_empty(&self) -> bool {
        self.by_domain.is_empty()
    }

    /// True if mail of programs on this machine is signed.
    pub fn signs_local(&self) -> bool {
        self.section.local_users_sign
    }

    /// Keys that cannot be used, for the operator.
    pub fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.by_domain.values().filter_map(|signer| signer.unreadable.as_deref())
    }

    /// The nearest domain with a key, at or above this one.
    pub fn at_or_above<'a>(&self, domain: &'a str) -> Option<&'a str> {
        let above = domain.match_indices('.').map(|(dot, _)| &domain[dot + 1..]);
        std::iter::once(domain).chain(above).find(|domain| self.by_domain.contains_key(*domain))
    }

    /// The signature fields of a message from `domain`, in lower-case A-labels, that may leave `hold_secs` after `now`, in seconds since 1970. Empty without a key.
    ///
    /// # Errors
    /// See [`NotSigned`].
    pub fn sign(&self, domain: &str, draft: &Draft, now: u64, hold_secs: u64) -> Result<String, NotSigned> {
        let Some(DomainSigner { active, unreadable }) = self.by_domain.get(domain) else { return Ok(String::new()) };
        if let Some(why) = unreadable.as_ref().filter(|_| !self.section.unsigned) {
            return Err(NotSigned::Key(why.clone()));
        }
        let expires = Some(self.section.expire).filter(|secs| *secs > 0).map(|secs| now + hold_secs + secs);
        let mut fields = String::new();
        for signer in active {
            fields += &signer.sign(draft, now, expires).map_err(|error| match error {
                SignError::Draft(error) => NotSigned::Draft(error),
                error => NotSigned::Key(format!("{domain}: {error}")),
            })?;
        }
        Ok(fields)
    }
}

impl DomainSigner {
    fn of(DomainKeys { domain, keys }: DomainKeys) -> Self {
        let mut active = Vec::new();
        let mut unreadable = None;
        for key in keys {
            match key.file {
                Ok(file) if file.state == KeyState::Active => {
                    active.extend(Signer::new(&domain, &key.selector, file.key));
                }
                Ok(_) => {}
                Err(why) => unreadable = Some(format!("{}: {why}", key.path.display())),
            }
        }
        Self { active, unreadable }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use posthaste_dkim::Algorithm;

    use super::*;

    fn config(dir: &std::path::Path, more: &str) -> Config {
        let text = format!("[dkim]\ndir = '{}'\n{more}", dir.display());
        Config::parse(std::path::Path::new("x"), &text).unwrap()
    }

    #[test]
    fn one_unreadable_key_stops_the_mail_of_its_domain() {
        let place = tempfile::tempdir().unwrap();
        let store = KeyDirectory::new(place.path());
        for domain in ["a.example", "b.example"] {
            store.create(domain, &[Algorithm::Ed25519], "2611", 1).unwrap();
        }
        let path = place.path().join("a.example/2611r.pem");
        std::fs::write(&path, "no key").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut draft = Draft::default();
        draft.field(b"From: ann@a.example\r\n");
        let signers = DomainSigners::read(&config(place.path(), "")).unwrap();
        assert!(
            matches!(signers.sign("a.example", &draft, 1, 0), Err(NotSigned::Key(why)) if why.contains("2611r.pem"))
        );
        assert!(signers.sign("b.example", &draft, 1, 0).unwrap().contains("s=2611e; t=1;"));
        assert_eq!(signers.sign("c.example", &draft, 1, 0).unwrap(), "");
        assert_eq!(signers.unreadable().count(), 1);
        let signers = DomainSigners::read(&config(place.path(), "unsigned = true\n")).unwrap();
        assert!(signers.sign("a.example", &draft, 1, 0).unwrap().contains("s=2611e;"), "the other key");
    }

    #[test]
    fn only_active_keys_sign_and_a_signature_ends_when_asked() {
        let place = tempfile::tempdir().unwrap();
        let store = KeyDirectory::new(place.path());
        store.create("a.example", &[Algorithm::Ed25519], "2611", 1).unwrap();
        store.rotate("a.example", "2612", 2).unwrap();
        let sign = |hold| {
            let signers = DomainSigners::read(&config(place.path(), "expire = '2h'\n")).unwrap();
            signers.sign("a.example", &Draft::default(), 100, hold).unwrap()
        };
        let before = sign(50);
        assert!(before.contains("s=2611e;") && before.contains("x=7350;"), "{before}");
        assert!(!before.contains("s=2612e"));
        store.activate("a.example", 3).unwrap();
        let after = sign(0);
        assert!(after.contains("s=2612e;") && !after.contains("s=2611e"), "{after}");
    }

    #[test]
    fn the_nearest_domain_above_signs_for_a_host() {
        let place = tempfile::tempdir().unwrap();
        KeyDirectory::new(place.path()).create("a.example", &[Algorithm::Ed25519], "2611", 1).unwrap();
        let signers = DomainSigners::read(&config(place.path(), "")).unwrap();
        assert_eq!(signers.at_or_above("mx.b.a.example"), Some("a.example"));
        assert_eq!(signers.at_or_above("a.example"), Some("a.example"));
        assert_eq!(signers.at_or_above("ba.example"), None);
    }
}
