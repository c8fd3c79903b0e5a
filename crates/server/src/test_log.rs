//! The lines that a piece of code logs, for tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

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

/// What this thread logs in `act`, from level info on: `LEVEL text key=value …`.
pub(crate) fn logged(act: impl FnOnce()) -> Vec<String> {
    let kept = Kept::default();
    let subscriber = tracing_subscriber::fmt().with_writer(kept.clone()).with_ansi(false).without_time();
    tracing::subscriber::with_default(subscriber.with_target(false).finish(), act);
    let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    text.lines().map(|line| line.trim_start().to_owned()).collect()
}
