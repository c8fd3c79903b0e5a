//! The first password: without `[auth]` and without a `[[listener]]`, it opens the mail of every account and the page,
//! from this machine only.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use posthaste_accounts::{NEW_PASSWORD_ALPHABET as ALPHABET, NEW_PASSWORD_LETTERS as LETTERS, new_password};
use rustix::fs::Mode;

/// A password in a file that only the server's user can read.
#[derive(Debug)]
pub(crate) struct FirstPassword {
    file: PathBuf,
    state: Mutex<State>,
}

struct State {
    password: String,
    /// Hashes of wrong passwords. Each counts once, since a program with an outdated password repeats it.
    wrong: HashSet<u64>,
    hasher: RandomState,
}

/// Without the password.
impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("wrong", &self.wrong.len()).finish_non_exhaustive()
    }
}

/// The name of the file in the data directory.
const FILE: &str = "password";
/// Number of different wrong passwords after which a new one is made.
const WRONG_MAX: usize = 10;

impl FirstPassword {
    /// Reads or creates the file. Blocks. A file without a password, or readable by others, is replaced.
    ///
    /// # Errors
    /// The file can be neither read nor created.
    pub fn open(data: &Path) -> io::Result<Self> {
        let file = data.join(FILE);
        let kept = std::fs::metadata(&file).ok().filter(|found| found.is_file() && found.mode() & 0o077 == 0);
        let password = kept.and_then(|_| std::fs::read_to_string(&file).ok()).map(|text| text.trim_end().to_owned());
        let password = match password.filter(|password| is_password(password)) {
            Some(password) => password,
            None => make(&file)?,
        };
        Ok(Self { file, state: Mutex::new(State { password, wrong: HashSet::new(), hasher: RandomState::new() }) })
    }

    /// File of the password.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The password, for the terminal only.
    pub fn reveal(&self) -> String {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).password.clone()
    }

    /// Like [`is_right`](Self::is_right), for the page. A text without the form of a password counts as a wrong token,
    /// not as a guess.
    pub fn opens_page(&self, presented: &str) -> bool {
        let is_guess = presented.len() == LETTERS && presented.bytes().all(|octet| ALPHABET.contains(&octet));
        is_guess && self.is_right(presented)
    }

    /// True if this is the password. Blocks: the tenth wrong guess makes a new password, which is logged.
    pub fn is_right(&self, presented: &str) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if is_same(state.password.as_bytes(), presented.as_bytes()) {
            return true;
        }
        let guess = state.hasher.hash_one(presented);
        state.wrong.insert(guess);
        if state.wrong.len() >= WRONG_MAX {
            let file = self.file.display().to_string();
            match make(&self.file) {
                Ok(password) => {
                    state.password = password;
                    state.wrong.clear();
                    tracing::warn!(file, "{WRONG_MAX} wrong passwords: a new password is in the file");
                }
                Err(error) => {
                    // Nobody gets in by more guesses.
                    state.password.clear();
                    let error = error.to_string();
                    tracing::error!(
                        file,
                        error,
                        "{WRONG_MAX} wrong passwords, and a new one cannot be written: no password is valid now"
                    );
                }
            }
        }
        false
    }
}

fn is_password(text: &str) -> bool {
    text.len() >= LETTERS && text.bytes().all(|octet| octet.is_ascii_graphic())
}

/// Compares in constant time.
fn is_same(password: &[u8], presented: &[u8]) -> bool {
    let differ = password.iter().zip(presented).fold(0, |differ, (one, other)| differ | (one ^ other));
    !password.is_empty() && password.len() == presented.len() && differ == 0
}

/// Writes a new password to a temporary file, then renames it.
fn make(file: &Path) -> io::Result<String> {
    let password = new_password()?;
    let line = format!("{password}\n");
    posthaste_fsops::replace_file(file, Mode::RUSR | Mode::WUSR, line.as_bytes()).map_err(io::Error::from)?;
    Ok(password)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn wrong_tokens_are_no_guesses_at_the_password() {
        let dir = tempfile::tempdir().unwrap();
        let first = FirstPassword::open(dir.path()).unwrap();
        let password = first.reveal();
        for number in 0..WRONG_MAX * 2 {
            assert!(!first.opens_page(&format!("pht_{number:040}")) && !first.opens_page(&format!("x{number}")));
        }
        assert!(first.opens_page(&password));
        for guess in ALPHABET.iter().take(WRONG_MAX + 1) {
            assert!(!first.opens_page(&char::from(*guess).to_string().repeat(LETTERS)));
        }
        assert!(!first.opens_page(&password) && first.opens_page(&first.reveal()), "guesses make a new one");
    }

    #[test]
    fn a_password_is_made_once_and_only_its_owner_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = FirstPassword::open(dir.path()).unwrap();
        let password = first.reveal();
        assert!(is_password(&password) && password.len() == LETTERS, "{password}");
        assert_eq!(std::fs::read_to_string(first.file()).unwrap(), format!("{password}\n"));
        assert_eq!(std::fs::metadata(first.file()).unwrap().mode() & 0o777, 0o600);
        assert!(first.is_right(&password));
        for wrong in ["", "x", &password[1..], &format!("{password}x")] {
            assert!(!first.is_right(wrong), "{wrong}");
        }
        assert_eq!(FirstPassword::open(dir.path()).unwrap().reveal(), password);
        assert!(!format!("{first:?}").contains(&password));
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_damaged_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let password = FirstPassword::open(dir.path()).unwrap().reveal();
        let file = dir.path().join(FILE);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let other = FirstPassword::open(dir.path()).unwrap().reveal();
        assert_ne!(other, password);
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        std::fs::write(&file, "").unwrap();
        assert!(is_password(&FirstPassword::open(dir.path()).unwrap().reveal()));
    }

    #[test]
    fn the_tenth_wrong_password_makes_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let first = FirstPassword::open(dir.path()).unwrap();
        let password = first.reveal();
        for guess in 0..WRONG_MAX - 1 {
            assert!(!first.is_right(&guess.to_string()));
            // The same one again is no other guess.
            assert!(!first.is_right(&guess.to_string()));
        }
        assert!(first.is_right(&password));
        assert!(!first.is_right("the tenth"));
        assert!(!first.is_right(&password), "the old one is still valid");
        assert_eq!(std::fs::read_to_string(first.file()).unwrap().trim_end(), first.reveal());
        assert!(first.is_right(&first.reveal()));
    }
}
