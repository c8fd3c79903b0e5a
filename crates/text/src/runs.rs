//! Runs of letters and digits in ASCII text, found 64 octets at a time.
//!
//! Most text is ASCII and most of its words are short. Octet by octet, the processor would mispredict the end of each
//! word. Here a block becomes a number with a bit for each octet, and words end where bits change.

const BLOCK_BYTES: usize = 64;

/// Calls `each` with the start and end of every run of letters and digits, up to the first octet that is not ASCII. A
/// run that ends there is left out, as it may continue. Returns where it stopped: at that run, at that octet, or at the
/// end.
#[inline]
pub(super) fn ascii_runs(bytes: &[u8], mut each: impl FnMut(usize, usize)) -> usize {
    let mut at = 0;
    let mut start = 0;
    // 1 if the block before ended within a run, which began at `start`.
    let mut open = 0;
    while at < bytes.len() {
        let block = block_at(bytes, at);
        let foreign = if block.is_ascii() { None } else { block.iter().position(|octet| !octet.is_ascii()) };
        let below = foreign.map_or(u64::MAX, |place| (1 << place) - 1);
        let bits = word_bits(&block) & below;
        let before = bits << 1 | open;
        let mut starts = bits & !before;
        let mut ends = !bits & before & below;
        if open == 0 {
            start = at + starts.trailing_zeros() as usize;
            starts &= starts.wrapping_sub(1);
        }
        while ends != 0 {
            each(start, at + ends.trailing_zeros() as usize);
            ends &= ends - 1;
            start = at + starts.trailing_zeros() as usize;
            starts &= starts.wrapping_sub(1);
        }
        if let Some(place) = foreign {
            return if before >> place & 1 == 1 { start } else { at + place };
        }
        open = bits >> 63;
        at += BLOCK_BYTES;
    }
    if open == 1 {
        each(start, bytes.len());
    }
    bytes.len()
}

/// A block with zeros after the end of the text, which are in no word.
#[inline]
fn block_at(bytes: &[u8], at: usize) -> [u8; BLOCK_BYTES] {
    match bytes[at..].first_chunk() {
        Some(block) => *block,
        None => {
            let mut block = [0; BLOCK_BYTES];
            block[..bytes.len() - at].copy_from_slice(&bytes[at..]);
            block
        }
    }
}

/// A bit for each octet that is a letter or a digit, the lowest for the first.
#[inline]
fn word_bits(block: &[u8; BLOCK_BYTES]) -> u64 {
    // The compiler makes this loop one of 16 octets at a time.
    let flags = block.map(|octet| {
        let is_letter = (octet | 0x20).wrapping_sub(b'a') < 26;
        let is_digit = octet.wrapping_sub(b'0') < 10;
        u8::from(is_letter | is_digit)
    });
    let mut bits = 0;
    for (place, eight) in flags.as_chunks::<8>().0.iter().enumerate() {
        // Puts the lowest bits of the eight octets beside each other, into the highest octet.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= gathered << (8 * place);
    }
    bits
}

/// The 8 octets from `at` on as a little-endian number; zeros after the end.
#[inline]
pub fn eight_at(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(eight) => u64::from_le_bytes(*eight),
        None => rest.iter().rev().fold(0, |eight, octet| eight << 8 | u64::from(*octet)),
    }
}

#[cfg(test)]
mod tests {
    use posthaste_random::Random;

    use super::*;

    /// A reference implementation, octet by octet.
    fn plainly(bytes: &[u8]) -> (Vec<(usize, usize)>, usize) {
        let end = bytes.iter().position(|octet| !octet.is_ascii()).unwrap_or(bytes.len());
        let (mut runs, mut start) = (Vec::new(), None);
        for (at, octet) in bytes[..end].iter().enumerate() {
            match (start, octet.is_ascii_alphanumeric()) {
                (None, true) => start = Some(at),
                (Some(from), false) => {
                    runs.push((from, at));
                    start = None;
                }
                _ => {}
            }
        }
        match start {
            Some(start) if end == bytes.len() => runs.push((start, end)),
            Some(start) => return (runs, start),
            None => {}
        }
        (runs, end)
    }

    fn check(bytes: &[u8]) {
        let mut runs = Vec::new();
        let stopped = ascii_runs(bytes, |start, end| runs.push((start, end)));
        assert_eq!((runs, stopped), plainly(bytes), "{bytes:?}");
    }

    #[test]
    fn runs_are_those_of_a_plain_loop() {
        (0..=255).for_each(|octet| check(&[b'a', octet, b'b']));
        let mut random = Random::new(7);
        for round in 0..20_000 {
            let length = round % 300;
            let bytes = (0..length).map(|_| {
                match random.next() >> 40 {
                    n if n % 50 == 7 && round % 3 == 0 => 0xc3,
                    // Long runs and long gaps too.
                    n if n % (1 + length / 10) == 0 => b" -\n@[`{/:"[n as usize / 50 % 9],
                    n => b"abcXYZ0189"[n as usize / 50 % 10],
                }
            });
            check(&bytes.collect::<Vec<u8>>());
        }
        for length in 0..200 {
            check(&vec![b'x'; length]);
            check(&vec![b' '; length]);
            check(&[vec![b'x'; length], vec![0xe9, b'x']].concat());
        }
    }
}
