//! Message bodies: a pool made before the run, so that sending spends no time on content.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{LazyLock, OnceLock};
use std::time::SystemTime;

use bytes::Bytes;
use posthaste_message::DateTime;
use posthaste_random::mix;
use posthaste_smtp::client::Stuffer;
use xxhash_rust::xxh3::Xxh3;

use crate::stamp::{self, Id};
use crate::values::Sizes;

/// The constant part of messages to send: a message of the pool is sent again and again under new stamps.
#[derive(Debug)]
pub struct Pool {
    messages: Vec<Message>,
    /// Ends of the weight ranges; a number below the last one selects a message.
    weight_ends: Vec<u64>,
    /// True if each message gets a Message-ID: generated mail does, real mail keeps its own.
    has_fresh_message_id: bool,
}

/// A message without its stamp.
#[derive(Debug)]
pub struct Message {
    /// The message as stored: CRLF line ends, dots not stuffed.
    pub plain: Bytes,
    /// The message in the form of DATA, without the final dot. Shares memory with `plain` where no line starts with a
    /// dot.
    pub stuffed: Bytes,
    /// Digest of `plain`, valid if nothing fresh precedes it after the stamp.
    digest: u64,
    /// True if there are octets above 127.
    pub is_eight_bit: bool,
    /// See [`Message::escaped`].
    escaped: OnceLock<Bytes>,
}

impl Message {
    /// Normalises a message for SMTP: bare CR and LF become CRLF, the last line is completed.
    fn new(octets: Vec<u8>) -> Self {
        let stuffed = stuffed(Bytes::from(octets.clone()));
        let plain = unstuffed(&stuffed);
        let (plain, stuffed) = if plain.len() == stuffed.len() { (stuffed.clone(), stuffed) } else { (plain, stuffed) };
        let (digest, is_eight_bit) = (stamp::digest(&plain), !plain.is_ascii());
        Self { digest, is_eight_bit, plain, stuffed, escaped: OnceLock::new() }
    }

    /// The message as the content of a JSON string. Made once.
    ///
    /// # Panics
    /// The message is not UTF-8; see [`Pool::is_text`].
    pub fn escaped(&self) -> &Bytes {
        self.escaped.get_or_init(|| {
            let text = std::str::from_utf8(&self.plain).expect("a pool for HTTP is text");
            let quoted = serde_json::to_string(text).expect("a text has a form in JSON");
            let end = quoted.len() - 1;
            Bytes::from(quoted).slice(1..end)
        })
    }
}

/// Dot-stuffs the message for DATA, without the final dot.
fn stuffed(octets: Bytes) -> Bytes {
    let mut out = Vec::with_capacity(octets.len() + 64);
    let mut stuffer = Stuffer::default();
    stuffer.push(octets, &mut |piece| out.extend_from_slice(&piece));
    stuffer.finish(&mut |piece| out.extend_from_slice(&piece));
    assert!(out.ends_with(b".\r\n"), "a stuffed message ends with its dot");
    out.truncate(out.len() - 3);
    Bytes::from(out)
}

/// Undoes dot-stuffing, as a receiver does (RFC 5321 section 4.5.2).
fn unstuffed(stuffed: &Bytes) -> Bytes {
    let mut plain = Vec::with_capacity(stuffed.len());
    for line in stuffed.split_inclusive(|octet| *octet == b'\n') {
        plain.extend_from_slice(line.strip_prefix(b".").unwrap_or(line));
    }
    Bytes::from(plain)
}

/// Maximum octets of a generated message, and of a pool of them.
pub const GENERATED_OCTETS_MAX: usize = 256 << 20;

impl Pool {
    /// Generates text-like messages of these sizes, the same for the same `seed`. `fields` are added to each header.
    ///
    /// Sizes are met to within a few octets; a message is never smaller than its header and one line.
    pub fn generated(sizes: &Sizes, fields: &[String], sender: &str, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pool = Self { messages: Vec::new(), weight_ends: Vec::new(), has_fresh_message_id: true };
        let mut end = 0;
        let budget = GENERATED_OCTETS_MAX / sizes.classes.len();
        for &(first, last, weight) in &sizes.classes {
            let variants = if first == last { 16 } else { 64 };
            let variants = variants.min(budget.min(16 << 20) / last.max(1)).max(1);
            for _ in 0..variants {
                let size = random.usize(first..=last);
                pool.messages.push(Message::new(generate(size, fields, sender, &mut random)));
                end += u64::from(weight) * (VARIANT_WEIGHT / variants as u64);
                pool.weight_ends.push(end);
            }
        }
        pool
    }

    /// Real messages with equal weights. `fields` are added in front of each.
    ///
    /// # Panics
    /// Without messages.
    pub fn of_messages(messages: Vec<Vec<u8>>, fields: &[String]) -> Self {
        assert!(!messages.is_empty(), "a pool has messages");
        let mut prefix = String::new();
        fields.iter().for_each(|field| prefix.extend([field, "\r\n"]));
        let message = |octets: Vec<u8>| Message::new([prefix.as_bytes(), &octets].concat());
        let messages: Vec<_> = messages.into_iter().map(message).collect();
        Self { weight_ends: (1..=messages.len() as u64).collect(), messages, has_fresh_message_id: false }
    }

    /// The message for `number`, always the same one.
    pub fn pick(&self, number: u64) -> &Message {
        let last = *self.weight_ends.last().expect("a pool has messages");
        let draw = mix(number) % last;
        &self.messages[self.weight_ends.partition_point(|end| *end <= draw)]
    }

    /// Appends the part before `message`: the stamp, and fields that are fresh in each message.
    pub fn write_front(&self, id: Id, message: &Message, out: &mut Vec<u8>) {
        if !self.has_fresh_message_id {
            write!(out, "{}{id} {:016x}\r\n", stamp::FIELD, message.digest).expect("a Vec takes everything");
            return;
        }
        let stamp_start = out.len();
        write!(out, "{}{id} {:016x}\r\n", stamp::FIELD, 0).expect("a Vec takes everything");
        let fresh_start = out.len();
        write!(out, "Message-ID: <{id}@load.invalid>\r\n").expect("a Vec takes everything");
        // Every line end here is CRLF already, so the octets can be hashed as they are.
        let mut hasher = Xxh3::new();
        hasher.update(&out[fresh_start..]);
        hasher.update(&message.plain);
        let mut digits = &mut out[fresh_start - 18..fresh_start - 2];
        write!(digits, "{:016x}", hasher.digest()).expect("the digits fit");
        debug_assert!(stamp_start < fresh_start - 18);
    }

    /// True if JSON can carry each message: all are UTF-8.
    pub fn is_text(&self) -> bool {
        self.messages.iter().all(|message| std::str::from_utf8(&message.plain).is_ok())
    }

    /// Number of different messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Always false: a pool has messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// Divisible by all numbers of variants up to 16, and nearly by 64.
const VARIANT_WEIGHT: u64 = 720_720 * 64;

/// Octets of a stamp and a Message-ID whose numbers have six digits.
const FRONT_OCTETS: usize = 18 + 16 + 1 + 6 + 1 + 16 + 2 + 13 + 16 + 1 + 6 + 14 + 2;

fn generate(size: usize, fields: &[String], sender: &str, random: &mut fastrand::Rng) -> Vec<u8> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let date = DateTime::from_unix(i64::try_from(now).unwrap_or(i64::MAX));
    let mut text = format!("Date: {date}\r\nFrom: <{sender}>\r\nTo: undisclosed-recipients:;\r\nSubject: ");
    (0..random.usize(2..7)).for_each(|index| text.extend([if index > 0 { " " } else { "" }, word(random)]));
    text.push_str("\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=us-ascii\r\n");
    fields.iter().for_each(|field| write!(text, "{field}\r\n").expect("a String takes everything"));
    text.push_str("\r\n");
    let end = size.saturating_sub(FRONT_OCTETS).max(text.len() + 3);
    while text.len() < end {
        line(&mut text, random);
    }
    // Cut to size: the last line ends where the message does.
    text.truncate(end - 2);
    if text.ends_with('\r') {
        text.pop();
        text.push('.');
    }
    if text.ends_with('\n') {
        text.truncate(text.len() - 2);
        text.push_str("..");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// A line of prose; sometimes an empty one, or one that starts with a dot.
fn line(text: &mut String, random: &mut fastrand::Rng) {
    let start = text.len();
    match random.u8(..) {
        0..16 => return text.push_str("\r\n"),
        16..20 => text.push_str(".. "),
        _ => {}
    }
    let width = random.usize(56..76);
    loop {
        text.push_str(word(random));
        if text.len() - start >= width {
            break;
        }
        text.push_str(if random.u8(..) < 20 { ", " } else { " " });
    }
    text.push_str(if random.u8(..) < 40 { ".\r\n" } else { "\r\n" });
}

fn word(random: &mut fastrand::Rng) -> &'static str {
    // The square favours the front of the list, as language favours its short words.
    let draw = random.f64();
    WORDS[(draw * draw * WORDS.len() as f64) as usize]
}

/// English words, short and frequent ones first.
static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| TEXT.split_ascii_whitespace().collect());

const TEXT: &str = "\
    the of and to a in is that it for was on with as be at by this have from or had not are but we you they all
    one our there been has when who will more no if out so said what up its about than into them can only other
    new some could time these two may then do first any my now such like over even most made after also did many
    before must through back years where much your way well down should because each just those people how too
    little state good very make world still own see work long get here between both life being under never day
    same another know while last might great old year off come since against go came right used take letter
    meeting report project message invoice delivery schedule question answer attached tomorrow yesterday morning
    evening department customer agreement proposal document travel weather garden harbour mountain library
    railway kitchen measurement";

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = Id { run: 0xabc, number: 7 };

    fn whole(pool: &Pool, message: &Message) -> Vec<u8> {
        let mut octets = Vec::new();
        pool.write_front(ID, message, &mut octets);
        octets.extend_from_slice(&message.plain);
        octets
    }

    #[test]
    fn generated_messages_are_valid_text_of_the_size_asked_for() {
        let sizes: Sizes = "1-2000:3,10k,100k".parse().unwrap();
        let pool = Pool::generated(&sizes, &["X-Test: yes".into()], "a@example.org", 1);
        let mut dotted = 0;
        for message in &pool.messages {
            let octets = whole(&pool, message);
            assert!(octets.ends_with(b"\r\n"));
            for line in octets.strip_suffix(b"\r\n").unwrap().split(|octet| *octet == b'\n') {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                assert!(line.len() <= 998 && line.iter().all(|b| (b' '..127).contains(b)), "{line:?}");
            }
            assert_eq!(memchr::memmem::find_iter(&octets, "\r\n").count(), memchr::memchr_iter(b'\n', &octets).count());
            let found = stamp::find(&octets).expect("a stamp");
            assert!(found.is_intact && found.id == ID);
            assert!(memchr::memmem::find(&octets, b"\r\nX-Test: yes\r\n").is_some());
            assert_eq!(unstuffed(&message.stuffed), message.plain);
            dotted += usize::from(message.stuffed.len() > message.plain.len());
            assert!(!message.is_eight_bit);
        }
        assert!(dotted > 0, "some lines start with a dot");
        for (size, of) in [(10_240, 64 + 3), (102_400, 64 + 16 + 3)] {
            let len = whole(&pool, &pool.messages[of]).len();
            assert!(len.abs_diff(size) < 32, "{len} octets instead of {size}");
        }
    }

    #[test]
    fn every_size_around_a_line_end_gives_whole_lines() {
        for size in 300..700 {
            let octets = generate(size, &[], "a@b", &mut fastrand::Rng::with_seed(3));
            assert!(octets.ends_with(b"\r\n"), "size {size}");
            let text = String::from_utf8(octets).unwrap();
            assert!(!text.replace("\r\n", "").contains(['\r', '\n']), "size {size}");
        }
    }

    #[test]
    fn a_mix_is_drawn_by_weight_and_the_same_each_time() {
        let pool = Pool::generated(&"1k:3,20k:1".parse().unwrap(), &[], "a@b", 1);
        let large = (0..10_000).filter(|number| pool.pick(*number).plain.len() > 10_000).count();
        assert!((2300..2700).contains(&large), "{large} of 10000 with a weight of a quarter");
        assert!(std::ptr::eq(pool.pick(5), pool.pick(5)));
    }

    #[test]
    fn real_messages_are_made_fit_for_smtp_and_keep_their_digest() {
        let pool = Pool::of_messages(vec![b"Subject: x\n\n.dot\rtext".to_vec()], &["X-A: b".into()]);
        let message = &pool.messages[0];
        assert_eq!(&message.plain[..], b"X-A: b\r\nSubject: x\r\n\r\n.dot\r\ntext\r\n");
        assert_eq!(&message.stuffed[..], b"X-A: b\r\nSubject: x\r\n\r\n..dot\r\ntext\r\n");
        assert!(stamp::find(&whole(&pool, message)).unwrap().is_intact);
    }
}
