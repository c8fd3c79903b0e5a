//! Compresses closed files and removes old ones on its own thread, so that the writer does not wait.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use posthaste_consumer::Pulse;
use posthaste_fsops::put_in_place;

use crate::files::{file_name, numbers, open_file, packed_name, sync_dir, unlink_if_there};

/// Steps of its thread.
pub(crate) const STEPS: &[&str] = &["", "looking for old files", "compressing a file"];

pub(crate) struct Packer {
    pub dir: PathBuf,
    pub compress: bool,
    /// Maximum age of files; zero: unlimited.
    pub max_age: Duration,
    pub stop: Arc<AtomicBool>,
}

impl Packer {
    /// Runs until the writer has ended. `closed` receives the number below which files are closed for good: their lines
    /// precede a durable cursor.
    pub fn run(&self, closed: &Receiver<u64>, pulse: &Pulse) {
        let mut before = 0;
        loop {
            match closed.recv_timeout(LOOK_INTERVAL) {
                Ok(number) => before = before.max(number),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // What fails is tried again at the next look: a disk that fails is the writer's trouble first.
            let _ = self.look(before, pulse);
            pulse.step(0);
        }
    }

    fn look(&self, before: u64, pulse: &Pulse) -> io::Result<()> {
        pulse.step(1);
        for number in numbers(&self.dir)?.into_iter().filter(|number| *number < before) {
            if self.is_too_old(number)? {
                unlink_if_there(&self.dir.join(file_name(number)))?;
                unlink_if_there(&self.dir.join(packed_name(number)))?;
                // One by one: a power cut must not leave the older of two.
                sync_dir(&self.dir)?;
            } else if self.compress {
                pulse.step(2);
                pack(&self.dir, number, &self.stop)?;
            }
        }
        Ok(())
    }

    fn is_too_old(&self, number: u64) -> io::Result<bool> {
        if self.max_age.is_zero() {
            return Ok(false);
        }
        let plain = std::fs::metadata(self.dir.join(file_name(number)));
        let modified = plain.or_else(|_| std::fs::metadata(self.dir.join(packed_name(number))))?.modified()?;
        Ok(SystemTime::now().duration_since(modified).is_ok_and(|age| age > self.max_age))
    }
}

/// Compresses a closed file. After a kill or a power cut the plain file exists, or the compressed one, or both with the
/// same lines.
pub(crate) fn pack(dir: &Path, number: u64, stop: &AtomicBool) -> io::Result<()> {
    let path = dir.join(file_name(number));
    let partial = dir.join(PARTIAL);
    let mut plain = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    unlink_if_there(&partial)?;
    let named = write_packed(&mut plain, &partial, stop).and_then(|packed| match packed {
        Some(packed) => Ok(put_in_place(&packed, &partial, &dir.join(packed_name(number))).map(|()| true)?),
        None => Ok(false),
    });
    if !matches!(named, Ok(true)) {
        // A full disk gets back what there was no room to finish.
        unlink_if_there(&partial)?;
        return named.map(drop);
    }
    unlink_if_there(&path)?;
    sync_dir(dir)
}

/// Writes the compressed file; `None` if it was stopped before the end.
fn write_packed(plain: &mut File, path: &Path, stop: &AtomicBool) -> io::Result<Option<File>> {
    let mut packed = GzEncoder::new(open_file(path)?, Compression::fast());
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match plain.read(&mut block)? {
            0 => break,
            read => packed.write_all(&block[..read])?,
        }
    }
    let packed = packed.finish()?;
    // Its age is that of its lines.
    packed.set_modified(plain.metadata()?.modified()?)?;
    Ok(Some(packed))
}

/// Temporary name, distinct from log files.
const PARTIAL: &str = "packing";
const BLOCK_BYTES: usize = 256 << 10;
/// Interval between checks for expired files.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use posthaste_watch::Watch;

    use super::*;

    #[test]
    fn only_closed_files_are_compressed_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        for number in 1..=3 {
            std::fs::write(dir.path().join(file_name(number)), format!("{number}\n").repeat(1000)).unwrap();
        }
        let old = SystemTime::now() - Duration::from_secs(7200);
        File::options().write(true).open(dir.path().join(file_name(1))).unwrap().set_modified(old).unwrap();
        let packer = Packer {
            dir: dir.path().to_owned(),
            compress: true,
            max_age: Duration::from_secs(3600),
            stop: Arc::default(),
        };
        let (tell, told) = channel();
        tell.send(3).unwrap();
        drop(tell);
        packer.run(&told, Watch::default().worker("pack", STEPS, Duration::from_secs(60)).pulse());
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [packed_name(2), file_name(3)]);
        assert!(std::fs::metadata(dir.path().join(packed_name(2))).unwrap().len() < 200);
        // Stopped: nothing is left of it.
        pack(dir.path(), 3, &AtomicBool::new(true)).unwrap();
        assert!(dir.path().join(file_name(3)).exists() && !dir.path().join(PARTIAL).exists());
    }
}
