//! The file of a key: its state in lines of text, then the key as PEM (RFC 7468). Other programs pass over the text.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::key::{KeyError, SigningKey};

/// The use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyState {
    /// Will sign once its record is published.
    Next,
    /// Signs mail.
    Active,
    /// Signs no more; its record is needed until all mail that it signed has arrived.
    Old,
}

impl KeyState {
    /// Its name in a file and in lists.
    pub fn name(self) -> &'static str {
        match self {
            KeyState::Next => "next",
            KeyState::Active => "active",
            KeyState::Old => "old",
        }
    }
}

/// The contents of a key's file.
#[derive(Debug)]
pub struct KeyFile {
    /// Its state; active if the file names none, as for files of other programs.
    pub state: KeyState,
    /// Start of this state, in seconds since 1970; 0 if unknown.
    pub since: u64,
    /// The key.
    pub key: SigningKey,
}

/// Why a file is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// More than [`KEY_FILE_BYTES_MAX`].
    #[error("it is larger than {KEY_FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// No `BEGIN PRIVATE KEY`, or no end of it.
    #[error("it has no `{BEGIN}`")]
    NoKey,
    /// The lines in between are not base64.
    #[error("its key is not base64")]
    Encoding,
    /// The checksum is wrong.
    #[error("it is damaged: its checksum is wrong")]
    Damaged,
    /// A line in front of the key.
    #[error("its line `{0}` is not known")]
    Line(String),
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl KeyFile {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`KeyFileError`].
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        if text.len() > KEY_FILE_BYTES_MAX {
            return Err(KeyFileError::TooLarge);
        }
        let (front, rest) = text.split_once(BEGIN).ok_or(KeyFileError::NoKey)?;
        let (encoded, _) = rest.split_once(END).ok_or(KeyFileError::NoKey)?;
        let (mut state, mut since, mut check) = (KeyState::Active, 0, None);
        for line in front.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let unknown = || KeyFileError::Line(line.chars().take(100).collect());
            match line.split_once(": ").ok_or_else(unknown)? {
                ("state", value) => {
                    let states = [KeyState::Next, KeyState::Active, KeyState::Old];
                    state = states.into_iter().find(|state| state.name() == value).ok_or_else(unknown)?;
                }
                ("since", value) => since = value.parse().map_err(|_| unknown())?,
                ("check", value) => check = Some(value),
                _ => return Err(unknown()),
            }
        }
        let encoded: String = encoded.split_ascii_whitespace().collect();
        let pkcs8 = STANDARD.decode(encoded).map_err(|_| KeyFileError::Encoding)?;
        let file = Self { state, since, key: SigningKey::from_pkcs8(pkcs8)? };
        // A file that another program made has none.
        if check.is_some_and(|check| check != file.check()) {
            return Err(KeyFileError::Damaged);
        }
        Ok(file)
    }

    /// Checksum of state, time and key. Any 32 octets are a valid Ed25519 key, so a flipped bit would go unnoticed
    /// without it.
    fn check(&self) -> String {
        let of = [self.state.name().as_bytes(), &self.since.to_be_bytes(), self.key.pkcs8()].concat();
        digest(&SHA256, &of).as_ref()[..8].iter().map(|octet| format!("{octet:02x}")).collect()
    }
}

/// The whole file, key included.
impl fmt::Display for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, since, key } = self;
        writeln!(f, "# A secret: the DKIM key of a domain, changed by `posthaste dkim`.")?;
        writeln!(f, "state: {}\nsince: {since}\ncheck: {}\n{BEGIN}", state.name(), self.check())?;
        let encoded = STANDARD.encode(key.pkcs8());
        for at in (0..encoded.len()).step_by(64) {
            writeln!(f, "{}", &encoded[at..encoded.len().min(at + 64)])?;
        }
        writeln!(f, "{END}")
    }
}

/// Octets of a file. A key of RSA with 4096 bits has about 3,300.
pub const KEY_FILE_BYTES_MAX: usize = 16 << 10;
const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::generate;
    use crate::key::Algorithm;

    #[test]
    fn a_file_comes_back_as_it_was_written() {
        for (state, since) in [(KeyState::Next, 0), (KeyState::Active, 1_795_000_000), (KeyState::Old, u64::MAX)] {
            let file = KeyFile { state, since, key: generate(Algorithm::Ed25519).unwrap() };
            let text = file.to_string();
            let again = KeyFile::parse(&text).unwrap();
            assert_eq!((again.state, again.since, again.key.public()), (state, since, file.key.public()));
            for cut in 0..text.len() - 1 {
                assert!(KeyFile::parse(&text[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_file_of_which_a_bit_is_flipped_is_no_other_key() {
        for algorithm in [Algorithm::Ed25519, Algorithm::Rsa] {
            let file = KeyFile { state: KeyState::Next, since: 1_795_000_000, key: generate(algorithm).unwrap() };
            let text = file.to_string();
            // Each character of the front, and a part of the others: reading a key of RSA takes milliseconds.
            let step = if algorithm == Algorithm::Rsa { 41 } else { 1 };
            let is_tried = |bit: &usize| bit % 8 < 7 && (*bit < 250 * 8 || bit.is_multiple_of(step));
            for bit in (0..text.len() * 8).filter(is_tried) {
                let mut octets = text.clone().into_bytes();
                octets[bit / 8] ^= 1 << (bit % 8);
                let read = KeyFile::parse(std::str::from_utf8(&octets).unwrap());
                if let Ok(read) = read {
                    assert_eq!((read.state, read.since, read.key.pkcs8()), (file.state, file.since, file.key.pkcs8()));
                }
            }
        }
    }

    #[test]
    fn a_file_of_another_program_is_an_active_key() {
        // As OpenSSL writes it; the key of RFC 8032 section 7.1, test 1.
        let text = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";
        let file = KeyFile::parse(text).unwrap();
        assert_eq!((file.state, file.since), (KeyState::Active, 0));
        assert_eq!(STANDARD.encode(file.key.public()), "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
        let check = |text: &str, expected: KeyFileError| assert_eq!(KeyFile::parse(text).unwrap_err(), expected);
        check(&format!("state: late\n{text}"), KeyFileError::Line("state: late".into()));
        check(&format!("Proc-Type: 4\n{text}"), KeyFileError::Line("Proc-Type: 4".into()));
        check(&text.replace("MC4C", "MC!C"), KeyFileError::Encoding);
        check(&text.replace("PRIVATE", "RSA PRIVATE"), KeyFileError::NoKey);
        check(&" ".repeat(KEY_FILE_BYTES_MAX + 1), KeyFileError::TooLarge);
        assert!(matches!(KeyFile::parse(&text.replace("MC4C", "MC4D")), Err(KeyFileError::Key(_))));
    }
}
