//! Any octets are a recording of a disk or not; what was read is written and read as the same, gives the same disk at each cut, and no small file
//! asks for more memory than the table of a disk.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_powercut::image::Image;
use posthaste_powercut::log::{Cutter, Recording};

fuzz_target!(|octets: &[u8]| {
    let Ok(recording) = Recording::load(&mut &octets[..]) else { return };
    if recording.base.len() > DISK_BYTES_MAX {
        // That it could be read in time and memory was the question.
        return;
    }
    let saved = saved(&recording);
    let again = Recording::load(&mut &saved[..]).expect("what was written reads");
    assert_eq!(self::saved(&again), saved);
    assert!(recording.marked_before(recording.events.len()).eq(again.marked_before(again.events.len())));
    let seed = octets.len() as u64;
    let mut cutters = [Cutter::new(&recording).sectors_of(4096), Cutter::new(&again).sectors_of(4096)];
    for position in [recording.events.len() / 2, recording.events.len()] {
        let [one, other] = cutters.each_mut().map(|cutter| cutter.cut(position, seed));
        assert!(occupied(&one).eq(occupied(&other)));
    }
});

fn saved(recording: &Recording) -> Vec<u8> {
    let mut out = Vec::new();
    recording.save(&mut out).expect("a vector takes it");
    out
}

fn occupied(image: &Image) -> impl Iterator<Item = (u64, &[u8; 4096])> {
    image.occupied()
}

/// Of disks that are cut here: the table of a large one is copied for each cut.
const DISK_BYTES_MAX: u64 = 64 << 20;
