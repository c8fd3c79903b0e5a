//! Files of the data directory: certificates, each with its key, and the account.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_fsops::replace_file;
use posthaste_net::{certificate_has_name, tls, x509};
use rcgen::KeyPair;
use rustix::fs::Mode;
use rustls::sign::CertifiedKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::AcmeError;

/// The file of a name's key and certificate.
pub fn certificate_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.pem"))
}

/// File of the key for a name's next certificate, if keys change.
pub fn next_key_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.next-key"))
}

/// The key of a name's next certificate. A new one is made if it is missing, readable by others, or already in use.
/// Blocks.
///
/// # Errors
/// [`AcmeError::File`]: it can be neither read nor written.
pub(crate) fn next_key(dir: &Path, name: &str, present: Option<&KeyPair>) -> Result<KeyPair, AcmeError> {
    let file = next_key_file(dir, name);
    let is_secret = std::fs::metadata(&file).is_ok_and(|found| found.is_file() && found.mode() & 0o077 == 0);
    let known = is_secret.then(|| std::fs::read_to_string(&file).ok()).flatten();
    let known = known.and_then(|pem| KeyPair::from_pem(&pem).ok());
    let is_used = |key: &KeyPair| present.is_some_and(|present| present.public_key_raw() == key.public_key_raw());
    if let Some(key) = known.filter(|key| !is_used(key)) {
        return Ok(key);
    }
    let made = KeyPair::generate().map_err(|error| AcmeError::File(error.to_string()))?;
    write(&file, made.serialize_pem().as_bytes())?;
    Ok(made)
}

/// The key in the file of a name, if it can be read. Blocks.
pub(crate) fn present_key(dir: &Path, name: &str) -> Option<KeyPair> {
    KeyPair::from_pem(&std::fs::read_to_string(certificate_file(dir, name)).ok()?).ok()
}

/// A stored certificate with its key.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub key: Arc<CertifiedKey>,
    /// Start of validity, in seconds since 1970.
    pub not_before: u64,
    pub not_after: u64,
}

impl Kept {
    /// `None` if it is for another name or has no validity.
    pub fn of(key: Arc<CertifiedKey>, name: &str) -> Option<Self> {
        let (not_before, not_after) = x509::validity(key.cert.first()?)?;
        certificate_has_name(&key, name).then_some(Self { key, not_before, not_after })
    }

    /// Reads a name's file. Blocks. An unusable file counts as missing.
    ///
    /// # Errors
    /// [`AcmeError::File`]: others can read its key.
    pub fn read(dir: &Path, name: &str) -> Result<Option<Self>, AcmeError> {
        let file = certificate_file(dir, name);
        let Ok(found) = std::fs::metadata(&file) else { return Ok(None) };
        if found.mode() & 0o077 != 0 {
            let why = "others can read this private key: remove the file, so that there is a new one";
            return Err(AcmeError::File(format!("{}: {why}", file.display())));
        }
        Ok(tls::certified_key(&file, &file).ok().and_then(|key| Self::of(key, name)))
    }
}

/// Makes the directory with access for the owner only. Blocks.
pub(crate) fn make_dir(dir: &Path) -> Result<(), AcmeError> {
    match std::fs::DirBuilder::new().mode(0o700).recursive(true).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(dir, &error)),
        _ => Ok(()),
    }
}

/// Writes a file that only the owner can read. Blocks.
pub(crate) fn write(file: &Path, content: &[u8]) -> Result<(), AcmeError> {
    replace_file(file, Mode::RUSR | Mode::WUSR, content).map_err(|error| failed(file, &std::io::Error::from(error)))
}

/// Reads a file written by [`write_json`]. Blocks. `None` if it is missing or damaged.
pub(crate) fn read_json<T: DeserializeOwned>(file: &Path) -> Option<T> {
    serde_json::from_str(posthaste_fsops::checked(&std::fs::read(file).ok()?)?).ok()
}

/// Writes JSON and a line with its checksum. Blocks.
pub(crate) fn write_json(file: &Path, content: &impl Serialize) -> Result<(), AcmeError> {
    let text = serde_json::to_string(content).map_err(|error| AcmeError::File(error.to_string()))?;
    write(file, posthaste_fsops::with_checksum(text + "\n").as_bytes())
}

/// An account at an authority.
#[derive(Serialize, Deserialize)]
pub(crate) struct AccountFile {
    pub directory: String,
    /// Account credentials in the form of the library.
    pub credentials: Value,
}

impl AccountFile {
    fn path(dir: &Path) -> PathBuf {
        dir.join("account.json")
    }

    /// Reads the account at `directory`, if it exists. Blocks.
    pub fn read(dir: &Path, directory: &str) -> Option<Self> {
        read_json::<Self>(&Self::path(dir)).filter(|account| account.directory == directory)
    }

    /// Writes the account's file. Blocks.
    pub fn write(&self, dir: &Path) -> Result<(), AcmeError> {
        write_json(&Self::path(dir), self)
    }

    /// Removes an account that the authority no longer knows. Blocks.
    pub fn forget(dir: &Path) {
        // Without it there is nothing to forget.
        let _ = std::fs::remove_file(Self::path(dir));
    }
}

fn failed(path: &Path, error: &std::io::Error) -> AcmeError {
    AcmeError::File(format!("{}: {error}", path.display()))
}
