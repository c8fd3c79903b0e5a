//! The files of an export, as an import reads them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde::de::DeserializeOwned;

type AnyError = Box<dyn std::error::Error>;

/// Opens files with the rights with which the command was started. An export made by root is readable by root only, and
/// the import itself becomes the owner of the new spool.
pub struct ExportFiles {
    dir: PathBuf,
    asked: Sender<PathBuf>,
    opened: Receiver<io::Result<File>>,
}

impl ExportFiles {
    /// To be called before the thread changes its user: the other thread keeps the present one.
    pub fn new(dir: &Path) -> Self {
        let ((asked, paths), (tell, opened)) = (channel::<PathBuf>(), channel());
        std::thread::spawn(move || paths.iter().try_for_each(|path| tell.send(File::open(path))));
        Self { dir: dir.to_owned(), asked, opened }
    }

    /// # Errors
    /// Errors of `open`.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let gone = || io::Error::other("the thread that opens files has ended");
        self.asked.send(self.dir.join(name)).map_err(|_| gone())?;
        self.opened.recv().map_err(|_| gone())?
    }

    /// # Errors
    /// Errors of reading, with the file.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, AnyError> {
        let mut bytes = Vec::new();
        let read = self.open(name).and_then(|mut file| file.read_to_end(&mut bytes));
        read.map_err(|error| self.named(name, error))?;
        Ok(bytes)
    }

    /// # Errors
    /// Errors of reading, and JSON of something else, with the file.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, AnyError> {
        serde_json::from_slice(&self.read(name)?).map_err(|error| self.named(name, error))
    }

    /// An error with the file's name.
    pub fn named(&self, name: &str, error: impl std::fmt::Display) -> AnyError {
        format!("{}: {error}", self.dir.join(name).display()).into()
    }
}
