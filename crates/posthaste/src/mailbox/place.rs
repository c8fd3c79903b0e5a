//! The INBOX of an account, and the table of mailboxes.

use std::io::ErrorKind;
use std::path::PathBuf;

use posthaste_config::Config;

use crate::queue::AnyError;

/// The path of an account's INBOX.
pub fn inbox_of(config: &Config, account: &str) -> String {
    let directory = config.directory();
    let login = directory.login_name(account).unwrap_or_else(|| account.to_owned());
    let inbox = directory.maildir_of(&login);
    inbox.map_or(login, |path| path.to_string())
}

/// The directory of the table of mailboxes.
pub fn table_dir(config: &Config) -> Result<PathBuf, AnyError> {
    let dir = config.mailstore_dir();
    match dir.metadata() {
        Ok(_) => Ok(dir),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("{} does not exist: no server has served mailboxes yet", dir.display()).into())
        }
        Err(error) => Err(format!("{}: {error}; ask as root or as the server's user", dir.display()).into()),
    }
}
