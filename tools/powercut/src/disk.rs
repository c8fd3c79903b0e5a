//! A disk that records all requests and can be made to fail.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use posthaste_random::Random;

use crate::image::Image;
use crate::log::{Cutter, Event, Recording, Unflushed};

/// Faults that the disk injects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Writes and discards end with EIO.
    pub writes_fail: bool,
    /// Writes that contain these bytes end with EIO: a file's data fails, and the file system's own log still works.
    pub writes_fail_with: Option<Vec<u8>>,
    /// Flushes end with EIO. Written data stays readable until the disk is cut.
    pub flushes_fail: bool,
    /// All requests hang until this is reset.
    pub hangs: bool,
}

/// An injected failure of the disk.
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
    // Requests that were failed or withheld since the faults were set.
    hit: u64,
}

impl Disk {
    /// A disk that holds `image`.
    pub fn new(image: Image) -> Self {
        let state = State { image, recording: None, faults: Faults::default(), hit: 0 };
        Disk { inner: Arc::new(Inner { state: Mutex::new(state), no_longer_hangs: Condvar::new() }) }
    }

    /// Bytes of the disk.
    pub fn len(&self) -> u64 {
        self.state().image.len()
    }

    /// True if the disk has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the content, as if the machine were switched off and on with another disk in it.
    pub fn exchange(&self, image: Image) {
        let mut state = self.state();
        state.image = image;
        state.recording = None;
    }

    /// Content of the disk, flushed or not.
    pub fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// Starts a recording, based on the current content.
    pub fn record(&self) {
        let mut state = self.state();
        let base = state.image.clone();
        state.recording = Some(Recording { base, events: Vec::new() });
    }

    /// Ends the recording and returns the requests since [`Disk::record`].
    pub fn recorded(&self) -> Recording {
        self.state().recording.take().expect("record() was called")
    }

    /// The disk after a power cut now that drops all unflushed writes since the recording began.
    pub fn after_a_cut(&self) -> Image {
        let state = self.state();
        let recording = state.recording.as_ref().expect("record() was called");
        Cutter::new(recording).cut_with(recording.events.len(), Unflushed::Dropped, &mut Random::new(0))
    }

    /// Records that the client was told that this message is safe.
    pub fn mark(&self, number: u64) {
        self.state().note(|| Event::Mark(number));
    }

    /// Records that the next hop is responsible for this recipient from here on.
    pub fn taken(&self, number: u64) {
        self.state().note(|| Event::Taken(number));
    }

    /// Records a start of the server.
    pub fn started(&self) {
        self.state().note(|| Event::Started);
    }

    /// Records that the server has ended in order.
    pub fn ended(&self) {
        self.state().note(|| Event::Ended);
    }

    /// The last message marked in this recording.
    pub fn last_mark(&self) -> Option<u64> {
        let state = self.state();
        let events = state.recording.as_ref().map_or(&[][..], |recording| &recording.events);
        events.iter().rev().find_map(|event| match event {
            Event::Mark(number) => Some(*number),
            _ => None,
        })
    }

    /// Sets the faults. Hanging requests go on if the new faults do not hang.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state();
        state.faults = faults;
        state.hit = 0;
        drop(state);
        self.inner.no_longer_hangs.notify_all();
    }

    /// Requests that were failed or withheld since the faults were set.
    pub fn faults_hit(&self) -> u64 {
        self.state().hit
    }

    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.answering().image.read(offset, buffer)
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failed> {
        let mut state = self.answering();
        let contains = |wanted: &Vec<u8>| memchr::memmem::find(data, wanted).is_some();
        if state.faults.writes_fail || state.faults.writes_fail_with.as_ref().is_some_and(contains) {
            return state.fail();
        }
        state.image.write(offset, data);
        state.note(|| Event::Write { offset, data: data.into() });
        Ok(())
    }

    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Failed> {
        let mut state = self.answering();
        if state.faults.writes_fail {
            return state.fail();
        }
        state.image.clear(offset, len);
        state.note(|| Event::Discard { offset, len });
        Ok(())
    }

    pub fn flush(&self) -> Result<(), Failed> {
        let mut state = self.answering();
        if state.faults.flushes_fail {
            return state.fail();
        }
        state.note(|| Event::Flush);
        Ok(())
    }

    fn answering(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.hit += u64::from(state.faults.hangs);
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
    fn fail(&mut self) -> Result<(), Failed> {
        self.hit += 1;
        Err(Failed)
    }

    fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(recording) = &mut self.recording {
            recording.events.push(event());
        }
    }
}
