use std::io::Read;
use std::path::Path;

use crate::queue::AnyError;

/// Reads a password file, up to [`PASSWORD_FILE_MAX`] bytes.
pub fn head_of(file: &Path) -> Result<String, AnyError> {
    let at = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut text = String::new();
    std::fs::File::open(file).map_err(at)?.take(PASSWORD_FILE_MAX).read_to_string(&mut text).map_err(at)?;
    Ok(text)
}

pub fn first_line(file: &Path) -> Result<String, AnyError> {
    match head_of(file)?.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => Err(format!("{}: no password in its first line", file.display()).into()),
    }
}

const PASSWORD_FILE_MAX: u64 = 8192;
