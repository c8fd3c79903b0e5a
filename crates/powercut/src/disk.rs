//! A disk that remembers what reached it, and that can be made to fail.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::image::Image;
use crate::log::{Event, Recording};

/// What goes wrong with the disk from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Writes and discards end with EIO.
    pub writes_fail: bool,
    /// Flushes end with EIO. What was written stays readable until the disk is cut.
    pub flushes_fail: bool,
    /// Nothing is answered until this is taken back.
    pub hangs: bool,
}

/// The disk failed as it was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// A disk with a write cache, in memory. Clones are the same disk.
#[derive(Clone)]
pub struct Disk {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    no_longer_hangs: Condvar,
}

struct State {
    image: Image,
    recording: Option<Recording>,
    faults: Faults,
}

impl Disk {
    /// A disk that holds `image`.
    pub fn new(image: Image) -> Self {
        let state = State { image, recording: None, faults: Faults::default() };
        Disk { inner: Arc::new(Inner { state: Mutex::new(state), no_longer_hangs: Condvar::new() }) }
    }

    /// Bytes of the disk.
    pub fn len(&self) -> u64 {
        self.state().image.len()
    }

    /// Whether the disk has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the disk: the machine is switched off and on with another one in it.
    pub fn exchange(&self, image: Image) {
        let mut state = self.state();
        state.image = image;
        state.recording = None;
    }

    /// What lies on the disk, flushed or not.
    pub fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// Records from now on, beginning with what is there.
    pub fn record(&self) {
        let mut state = self.state();
        let base = state.image.clone();
        state.recording = Some(Recording { base, events: Vec::new() });
    }

    /// Ends recording and hands out what was recorded since [`Disk::record`].
    pub fn recorded(&self) -> Recording {
        self.state().recording.take().expect("record() was called")
    }

    /// The client has been told that this message is safe.
    pub fn mark(&self, number: u64) {
        self.state().note(|| Event::Mark(number));
    }

    /// The message that was marked last in this recording.
    pub fn last_mark(&self) -> Option<u64> {
        let state = self.state();
        let events = state.recording.as_ref().map_or(&[][..], |recording| &recording.events);
        events.iter().rev().find_map(|event| match event {
            Event::Mark(number) => Some(*number),
            _ => None,
        })
    }

    /// What goes wrong from now on; what hung goes on if nothing hangs any more.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
        self.inner.no_longer_hangs.notify_all();
    }

    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.answering().image.read(offset, buffer)
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failed> {
        let mut state = self.answering();
        if state.faults.writes_fail {
            return Err(Failed);
        }
        state.image.write(offset, data);
        state.note(|| Event::Write { offset, data: data.into() });
        Ok(())
    }

    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Failed> {
        let mut state = self.answering();
        if state.faults.writes_fail {
            return Err(Failed);
        }
        state.image.clear(offset, len);
        state.note(|| Event::Discard { offset, len });
        Ok(())
    }

    pub fn flush(&self) -> Result<(), Failed> {
        let mut state = self.answering();
        if state.faults.flushes_fail {
            return Err(Failed);
        }
        state.note(|| Event::Flush);
        Ok(())
    }

    fn answering(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while state.faults.hangs {
            state = self.inner.no_longer_hangs.wait(state).expect("disk lock");
        }
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().expect("disk lock")
    }
}

impl State {
    fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(recording) = &mut self.recording {
            recording.events.push(event());
        }
    }
}
