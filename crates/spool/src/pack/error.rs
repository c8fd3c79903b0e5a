use std::io;

/// Why a pack, or a record in it, could not be read.
#[derive(Debug)]
pub(crate) enum PackError {
    /// The bytes differ from those written.
    Damaged(&'static str),
    Io(io::Error),
}

impl From<PackError> for io::Error {
    fn from(error: PackError) -> Self {
        match error {
            PackError::Damaged(what) => io::Error::new(io::ErrorKind::InvalidData, what),
            PackError::Io(error) => error,
        }
    }
}

impl PackError {
    /// Turns an error of opening a file into [`Damaged`](Self::Damaged) with `what` if the file is missing.
    pub fn of_missing(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::NotFound => PackError::Damaged(what),
            _ => PackError::Io(error),
        }
    }
}
