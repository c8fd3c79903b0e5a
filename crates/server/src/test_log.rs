//! The lines that a piece of code logs, for tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

use crate::log_format::PlainFields;

#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Kept {
    type Writer = Kept;

    fn make_writer(&self) -> Kept {
        self.clone()
    }
}

/// Lines that this thread logs in `act`, from level info on: `LEVEL text key=value …`.
pub(crate) fn logged(act: impl FnOnce()) -> Vec<String> {
    let kept = Kept::default();
    let subscriber = tracing_subscriber::fmt().fmt_fields(PlainFields).with_writer(kept.clone());
    let subscriber = subscriber.with_ansi(false).without_time().with_target(false);
    tracing::subscriber::with_default(subscriber.finish(), act);
    kept.text().lines().map(|line| line.trim_start().to_owned()).collect()
}
