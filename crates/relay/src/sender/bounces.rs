//! Bounces: classes of replies, the suppression list, signed return paths.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use posthaste_message::DateTime;
use posthaste_smtp::{Reply, ReversePath};
use posthaste_units::values;
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, check_bounds};
use serde::{Deserialize, Serialize};

use super::messages::Envelope;
use super::status::keys_of;
use crate::classify::{Classifier, RulesError, line_of};
use crate::session::FateScope;
use posthaste_notify::originals::{Original, Originals, OriginalsError};
use posthaste_notify::return_path::{Bounced, PrefixError, ReturnPathError, ReturnPaths};
use posthaste_notify::secrets::{SecretFileError, Secrets};
use posthaste_notify::suppression::{Suppressed, SuppressionError, SuppressionSource, Suppressions};
use posthaste_queue::{RecipientKey, Transaction};

/// `[relay.bounces]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BounceSection {
    /// A file of rules for classes of replies, in front of those that are built in. SIGHUP reads it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes_file: Option<PathBuf>,
    /// Put addresses that other hosts refuse as bad on the suppression list.
    pub suppress_bounces: bool,
    /// Put recipients that complain on it. Complaints are recognized only with `[relay.return_path]`.
    pub suppress_complaints: bool,
    /// Time on the list, 180 days if not set; 0: for ever.
    #[serde(deserialize_with = "values::secs")]
    pub suppress_secs: u64,
}

impl Default for BounceSection {
    fn default() -> Self {
        Self { classes_file: None, suppress_bounces: false, suppress_complaints: false, suppress_secs: 180 * 86_400 }
    }
}

impl BounceSection {
    /// These keys with the reloadable ones of `new`: the file of classes.
    pub(super) fn reloaded(&self, new: &Self) -> Self {
        Self { classes_file: new.classes_file.clone(), ..self.clone() }
    }

    pub(super) fn check(&self) -> Result<(), Problem> {
        check_bounds("relay.bounces", &[("suppress_secs", self.suppress_secs, 0, 10 * A_YEAR)])
    }
}

/// `[relay.return_path]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReturnPathSection {
    /// The domain of the signed senders. Its mail has to come here. Default: (required).
    pub domain: String,
    /// A file with secrets of at least 8 bytes, one on each line. The first signs, all are valid. Default: (required).
    pub secret_file: PathBuf,
    /// Text before the `+` in the signed senders. Default: `"bounce"`.
    #[serde(default = "bounce")]
    pub prefix: String,
}

fn bounce() -> String {
    "bounce".to_owned()
}

impl ReturnPathSection {
    pub(super) fn mistake(&self) -> Option<(&'static str, String)> {
        let nobody = Secrets::new(["only the prefix is checked"]).expect("it is long enough");
        if !posthaste_message::address::is_domain(&self.domain) {
            return Some(("domain", format!("`{}` is not a domain", self.domain)));
        }
        ReturnPaths::new(&nobody, &self.prefix).err().map(|error| ("prefix", error.to_string()))
    }

    /// Reads the secrets. Also returns the domain of the signed paths.
    fn read(&self) -> Result<(ReturnPaths, String), BouncesError> {
        let secrets = Secrets::read(&self.secret_file)?;
        Ok((ReturnPaths::new(&secrets, &self.prefix)?, self.domain.clone()))
    }
}

/// Error in setting up `[relay.bounces]` or `[relay.return_path]`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BouncesError {
    /// The rules of classes cannot be read.
    #[error("relay.bounces.classes_file: {}: {error}", file.display())]
    Classes {
        /// Path of the file.
        file: PathBuf,
        /// The read error.
        error: io::Error,
    },
    /// The rules have a mistake.
    #[error("relay.bounces.classes_file: {}: {error}", file.display())]
    Rules {
        /// Path of the file.
        file: PathBuf,
        /// The mistake.
        error: RulesError,
    },
    /// The suppression list cannot be opened.
    #[error(transparent)]
    Suppression(#[from] SuppressionError),
    /// The table of signed return paths cannot be opened.
    #[error(transparent)]
    Originals(#[from] OriginalsError),
    /// The secrets of return paths cannot be read.
    #[error("relay.return_path: {0}")]
    Secret(#[from] SecretFileError),
    /// The prefix of signed senders is invalid.
    #[error("relay.return_path: {0}")]
    Prefix(#[from] PrefixError),
}

/// Rules that can be replaced while in use.
#[derive(Debug, Default)]
pub struct Classes(RwLock<Arc<Classifier>>);

impl Classes {
    /// The classes in force.
    pub fn now(&self) -> Arc<Classifier> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads a file of rules, or takes the built-in ones.
    ///
    /// # Errors
    /// [`BouncesError::Classes`] and [`BouncesError::Rules`]: the earlier rules stay in force.
    pub fn load(&self, file: Option<&Path>) -> Result<(), BouncesError> {
        let text = match file {
            None => String::new(),
            Some(path) => read(path).map_err(|error| BouncesError::Classes { file: path.to_owned(), error })?,
        };
        let classifier = Classifier::new(&text)
            .map_err(|error| BouncesError::Rules { file: file.unwrap_or(Path::new("")).to_owned(), error })?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(classifier);
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = fs::metadata(path)?.len();
    if bytes > RULES_BYTES_MAX {
        return Err(io::Error::other("it is too large"));
    }
    fs::read_to_string(path)
}

/// Name of the suppression list in the data directory.
const SUPPRESSIONS: &str = "suppression.redb";
/// Name of the table of signed return paths in the data directory.
const ORIGINALS: &str = "return-paths.redb";
const RULES_BYTES_MAX: u64 = 4 << 20;

/// Signs the senders of outgoing mail.
#[derive(Debug, Clone)]
pub struct SignedPaths {
    paths: ReturnPaths,
    domain: String,
    originals: Arc<Originals>,
}

impl SignedPaths {
    /// Reads the secrets, and opens the table of sent mail in the file `originals`.
    ///
    /// # Errors
    /// [`BouncesError::Secret`], [`BouncesError::Prefix`] and [`BouncesError::Originals`].
    pub fn open(section: &ReturnPathSection, originals: &Path) -> Result<Self, BouncesError> {
        let (paths, domain) = section.read()?;
        Self::keeping(paths, domain, originals)
    }

    fn keeping(paths: ReturnPaths, domain: String, originals: &Path) -> Result<Self, BouncesError> {
        Ok(SignedPaths { paths, domain, originals: Arc::new(Originals::open(originals)?) })
    }

    /// The signed sender for a recipient; notes the original for reports.
    pub fn sign(&self, key: RecipientKey, original: &Original) -> String {
        self.originals.feed(key, original, wall_secs());
        format!("{}@{}", self.paths.sign(key, wall_time()), self.domain)
    }

    /// The original sender of a recipient's mail; `None` if unknown. May read from the disk.
    ///
    /// # Errors
    /// [`OriginalsError`].
    pub fn original(&self, key: RecipientKey) -> Result<Option<Original>, OriginalsError> {
        self.originals.find(key)
    }

    /// True if entries wait to become durable.
    pub(super) fn is_fed(&self) -> bool {
        self.originals.is_fed()
    }

    /// Makes the originals of signed senders durable. Blocks.
    ///
    /// # Errors
    /// [`OriginalsError`].
    pub(super) fn flush(&self) -> Result<(), OriginalsError> {
        self.originals.flush(wall_secs())
    }

    /// Verifies the recipient of incoming mail as a signed return path.
    ///
    /// # Errors
    /// See [`ReturnPathError`].
    pub fn verify(&self, local_part: &str, domain: &str) -> Result<Bounced, ReturnPathError> {
        if !domain.eq_ignore_ascii_case(&self.domain) {
            return Err(ReturnPathError::NotOurs);
        }
        self.paths.verify(local_part, wall_time())
    }
}

/// Bounce handling of a relay.
#[derive(Debug, Clone, Default)]
pub struct Bounces {
    /// Rules for classes of replies.
    pub classes: Arc<Classes>,
    /// The suppression list; `None` if there is none.
    pub suppressions: Option<Arc<Suppressions>>,
    /// Adds addresses refused as bad to the suppression list.
    pub suppress_bounces: bool,
    /// Adds complaining recipients to the suppression list.
    pub suppress_complaints: bool,
    /// How long an address stays on the list; `None`: for ever.
    pub suppressed_for: Option<Duration>,
    /// Replaces senders by signed ones.
    pub return_path: Option<SignedPaths>,
}

/// Content of the files that the configuration names for bounces.
#[derive(Debug, Clone, Default)]
pub struct BounceFiles {
    classes: Arc<Classes>,
    return_path: Option<(ReturnPaths, String)>,
}

impl BounceFiles {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// See [`BouncesError`].
    pub fn read(section: &BounceSection, return_path: Option<&ReturnPathSection>) -> Result<Self, BouncesError> {
        let classes = Classes::default();
        classes.load(section.classes_file.as_deref())?;
        Ok(Self { classes: Arc::new(classes), return_path: return_path.map(ReturnPathSection::read).transpose()? })
    }
}

impl Bounces {
    /// Opens the files in the directory `data`. Blocks.
    ///
    /// # Errors
    /// [`BouncesError::Suppression`] and [`BouncesError::Originals`].
    pub fn open(files: BounceFiles, section: &BounceSection, data: &Path) -> Result<Self, BouncesError> {
        let originals = data.join(ORIGINALS);
        Ok(Bounces {
            classes: files.classes,
            suppressions: Some(Arc::new(Suppressions::open(&data.join(SUPPRESSIONS))?)),
            suppress_bounces: section.suppress_bounces,
            suppress_complaints: section.suppress_complaints,
            suppressed_for: (section.suppress_secs > 0).then(|| Duration::from_secs(section.suppress_secs)),
            return_path: files
                .return_path
                .map(|(paths, domain)| SignedPaths::keeping(paths, domain, &originals))
                .transpose()?,
        })
    }

    /// True if entries wait to become durable.
    pub(super) fn is_fed(&self) -> bool {
        self.suppressions.as_ref().is_some_and(|list| list.is_fed())
            || self.return_path.as_ref().is_some_and(SignedPaths::is_fed)
    }

    /// The suppression list; `None` if it is empty.
    pub(super) fn suppressed(&self) -> Option<&Suppressions> {
        self.suppressions.as_deref().filter(|list| !list.is_empty())
    }

    /// Adds an address to the suppression list, if the configuration says so for this source.
    pub fn suppress(&self, source: SuppressionSource, tenant: &str, address: &str, reason: String) {
        let is_wanted = match source {
            SuppressionSource::Bounce => self.suppress_bounces,
            SuppressionSource::Complaint => self.suppress_complaints,
            SuppressionSource::Operator => true,
        };
        let Some(list) = self.suppressions.as_ref().filter(|_| is_wanted) else { return };
        let added = wall_secs();
        let expires = self.suppressed_for.map(|time| added.saturating_add(time.as_secs()));
        let address = address.to_owned();
        let tenant = tenant.to_owned();
        // An invalid address was never sent to.
        let _ = list.feed(&Suppressed { address, tenant, source, reason, added, expires });
    }

    /// Adds a permanently refused recipient to the suppression list, if configured, and if the reply is certainly about
    /// the address.
    pub(super) fn suppress_refused(
        &self,
        envelope: &Envelope,
        number: u16,
        reply: &Reply,
        scope: FateScope,
        is_alone: bool,
    ) {
        let is_of_recipient = scope == FateScope::Recipient || scope == FateScope::Accepted && is_alone;
        if !self.suppress_bounces || !is_of_recipient {
            return;
        }
        let classes = self.classes.now();
        let class = classes.classify_reply(reply);
        if let Some(recipient) = envelope.recipient(number).filter(|_| class.is_address_bad()) {
            let reason = format!("{}: {}", class.name(), line_of(reply));
            self.suppress(SuppressionSource::Bounce, &envelope.queued.tenant, &recipient.address, reason);
        }
    }

    /// The signed sender of a transaction, which then has one recipient; `None` if its sender stays unchanged.
    pub(super) fn signed_sender(&self, transaction: &Transaction, envelope: &Envelope) -> Option<ReversePath> {
        let signed = self.return_path.as_ref()?;
        let key = keys_of(transaction).next()?;
        let queued = &envelope.queued;
        // A signed sender already leads back by itself; a chain of them would be unbounded.
        let is_signed =
            |(local_part, domain): (&str, &str)| signed.verify(local_part, domain) != Err(ReturnPathError::NotOurs);
        if queued.sender.is_empty() || queued.sender.rsplit_once('@').is_some_and(is_signed) {
            return None;
        }
        let original = Original {
            tenant: queued.tenant.to_string(),
            sender: queued.sender.to_string(),
            recipient: envelope.recipient(key.number)?.address.to_string(),
        };
        ReversePath::parse(&format!("<{}>", signed.sign(key, &original))).ok()
    }
}

/// Unix seconds of the wall clock.
pub fn wall_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn wall_time() -> DateTime {
    DateTime::from_unix(wall_secs().cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_spool::Lsn;

    #[test]
    fn rules_are_replaced_and_wrong_ones_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("classes.toml");
        let class = |classes: &Classes| classes.now().classify("550 gone fishing").name().to_owned();
        let classes = Classes::default();
        assert_eq!(class(&classes), "other");
        fs::write(&file, "[[class]]\nname = \"angler\"\npatterns = [\"fishing\"]\n").unwrap();
        classes.load(Some(&file)).unwrap();
        assert_eq!(class(&classes), "angler");
        fs::write(&file, "[[class]]\nname = \"angler\"\npatterns = [\"(\"]\n").unwrap();
        assert!(matches!(classes.load(Some(&file)), Err(BouncesError::Rules { .. })));
        fs::remove_file(&file).unwrap();
        let error = classes.load(Some(&file)).unwrap_err().to_string();
        assert!(error.starts_with("relay.bounces.classes_file: ") && error.contains("classes.toml"), "{error}");
        assert_eq!(class(&classes), "angler");
        classes.load(None).unwrap();
        assert_eq!(class(&classes), "other");
    }

    #[test]
    fn only_what_is_wanted_is_suppressed() {
        let dir = tempfile::tempdir().unwrap();
        let section = BounceSection { suppress_complaints: true, ..BounceSection::default() };
        let bounces = Bounces::open(BounceFiles::default(), &section, dir.path()).unwrap();
        bounces.suppress(SuppressionSource::Bounce, "", "bob@a.example", "no such user".to_owned());
        assert!(bounces.suppressed().is_none());
        bounces.suppress(SuppressionSource::Complaint, "news", "bob@a.example", "abuse".to_owned());
        let found = bounces.suppressed().unwrap().find("news", "bob@a.example", wall_secs()).unwrap().unwrap();
        assert_eq!(found.expires, Some(found.added + 180 * 86_400));
    }

    #[test]
    fn signed_senders_are_known_again_in_their_domain_only() {
        let dir = tempfile::tempdir().unwrap();
        let secret_file = dir.path().join("secret");
        fs::write(&secret_file, "a secret for tests\n").unwrap();
        let section = ReturnPathSection { domain: "b.example".into(), secret_file, prefix: bounce() };
        assert!(section.mistake().is_none());
        let signed = SignedPaths::open(&section, &dir.path().join("originals")).unwrap();
        let text = |text: &str| text.to_owned();
        let original = Original { tenant: text(""), sender: text("ann@b.example"), recipient: text("bob@c.example") };
        let key = RecipientKey { message: Lsn::new(4711), number: 3 };
        let sender = signed.sign(key, &original);
        assert_eq!(signed.original(key).unwrap(), Some(original));
        let (local_part, domain) = sender.split_once('@').unwrap();
        assert_eq!(signed.verify(local_part, &domain.to_uppercase()).unwrap().key, key);
        assert_eq!(signed.verify(local_part, "c.example").unwrap_err(), ReturnPathError::NotOurs);
        for (domain, prefix) in [("no domain", "bounce"), ("b.example", "a+b"), ("b.example", "")] {
            let section = ReturnPathSection { domain: domain.into(), prefix: prefix.into(), ..section.clone() };
            assert!(section.mistake().is_some(), "{section:?}");
        }
    }
}
