//! The next hop: a small mail server in this process, for SMTP and LMTP. It records each message before its 250 leaves.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use posthaste_loadgen::process::PATIENCE;
use posthaste_loadgen::stamp;
use posthaste_random::Random;

use super::known::mark_of;
use crate::account::front;
use crate::disk::Disk;
use crate::load::{DOMAIN, Entry, Load, user};

/// Manner of its answers. Recipients that begin with `permfail-` are refused permanently, unless it is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It takes everything.
    Open,
    /// It refuses half of the recipients and an eighth of the messages with 4yz, and silently closes the connection
    /// after a sixteenth of them.
    Moody,
    /// Like `Moody`, with a delay before the reply to each message.
    Slow,
    /// It takes everything, with a delay before the reply to each message.
    Unhurried,
    /// It defers every recipient.
    Busy,
    /// It takes one recipient in 64, and defers the others with long replies, so that their records take much space.
    Reluctant,
    /// 421 in place of a greeting.
    Closed,
}

/// Listens on a port of loopback until it is dropped.
pub struct NextHop {
    shared: Arc<Shared>,
    /// Address of its listener.
    pub address: SocketAddr,
}

struct Shared {
    load: Load,
    disk: Disk,
    state: Mutex<State>,
    is_closing: AtomicBool,
}

struct State {
    manner: Manner,
    rng: Random,
    connections: u64,
    /// Recipients deferred because it was busy.
    put_off: u64,
    /// Copies taken of each recipient's mail.
    taken: BTreeMap<Entry, u64>,
    /// Open sessions.
    sessions: u64,
    altered: Vec<String>,
}

impl NextHop {
    /// Starts it for the messages of `load`; each recipient taken is noted in the disk's recording.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn start(load: &Load, disk: &Disk, manner: Manner) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = State {
            manner,
            rng: Random::of(load.seed, u64::MAX),
            connections: 0,
            put_off: 0,
            taken: BTreeMap::new(),
            sessions: 0,
            altered: Vec::new(),
        };
        let (load, disk) = (load.clone(), disk.clone());
        let shared = Arc::new(Shared { load, disk, state: Mutex::new(state), is_closing: AtomicBool::new(false) });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepting.is_closing.load(Ordering::Relaxed) {
                    return;
                }
                let shared = accepting.clone();
                shared.state().sessions += 1;
                // It ends with the connection, which is the server's, and may break anywhere.
                std::thread::spawn(move || {
                    let _ = shared.serve(stream);
                    shared.state().sessions -= 1;
                });
            }
        });
        Ok(NextHop { shared, address })
    }

    /// Sets the manner of its answers from now on.
    pub fn set(&self, manner: Manner) {
        self.shared.state().manner = manner;
    }

    /// Recipients deferred because it was busy.
    pub fn put_off(&self) -> u64 {
        self.shared.state().put_off
    }

    /// Number of sessions.
    pub fn sessions(&self) -> u64 {
        self.shared.state().sessions
    }

    /// Waits until it has read all that a killed server had sent: only then it has taken all mail of that server. False
    /// after a minute.
    pub fn is_left_alone(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.sessions() > 0 {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Number of recipients taken, copies included.
    pub fn taken(&self) -> u64 {
        self.shared.state().taken.values().sum()
    }

    /// Copies taken of each recipient's mail.
    pub fn copies(&self) -> BTreeMap<Entry, u64> {
        self.shared.state().taken.clone()
    }

    /// Descriptions of messages that are not whole as sent, or arrived for other recipients.
    pub fn altered(&self) -> Vec<String> {
        self.shared.state().altered.clone()
    }
}

impl Drop for NextHop {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the next hop's state")
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (manner, has_chunking) = {
            let mut state = self.state();
            state.connections += 1;
            (state.manner, state.connections.is_multiple_of(2))
        };
        if manner == Manner::Closed {
            return stream.write_all(b"421 4.3.2 closed\r\n");
        }
        stream.write_all(b"220 hop ESMTP\r\n")?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut recipients, mut body) = (Vec::new(), Vec::new());
        let mut is_lmtp = false;
        loop {
            let line = line(&mut reader)?;
            let mut words = line.split([' ', ':']);
            let word = words.next().unwrap_or_default().to_ascii_uppercase();
            let mut replies = 1;
            let reply = match word.as_str() {
                "LHLO" => {
                    is_lmtp = true;
                    "250-hop\r\n250-PIPELINING\r\n250 8BITMIME"
                }
                "EHLO" if has_chunking => "250-hop\r\n250-PIPELINING\r\n250-CHUNKING\r\n250 8BITMIME",
                "EHLO" => "250-hop\r\n250-PIPELINING\r\n250 8BITMIME",
                "MAIL" | "RSET" => {
                    (recipients, body) = (Vec::new(), Vec::new());
                    "250 2.0.0 ok"
                }
                "RCPT" => match self.refusal(&line) {
                    Some(reply) => reply,
                    None => {
                        recipients.push(line.split(['<', '>']).nth(1).unwrap_or_default().to_owned());
                        "250 2.1.5 ok"
                    }
                },
                "DATA" if recipients.is_empty() => "554 5.5.1 no recipients",
                "DATA" => {
                    stream.write_all(b"354 go on\r\n")?;
                    replies = if is_lmtp { recipients.len() } else { 1 };
                    self.end(&mut recipients, data(&mut reader)?)?
                }
                "BDAT" => {
                    let bytes = words.next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
                    let is_last = words.next().is_some();
                    body.extend(chunk(&mut reader, bytes)?);
                    match (recipients.is_empty(), is_last) {
                        (true, _) => "503 5.5.1 no recipients",
                        (false, true) => self.end(&mut recipients, std::mem::take(&mut body))?,
                        (false, false) => "250 2.0.0 ok",
                    }
                }
                "QUIT" => return stream.write_all(b"221 2.0.0 bye\r\n"),
                _ => "502 5.5.1 what",
            };
            stream.write_all(format!("{reply}\r\n").repeat(replies).as_bytes())?;
        }
    }

    /// The reply to a refused RCPT; `None` if it is not refused.
    fn refusal(&self, line: &str) -> Option<&'static str> {
        let mut state = self.state();
        let manner = state.manner;
        let reply = match manner {
            Manner::Busy => NOT_NOW,
            Manner::Reluctant if !state.rng.one_in(64) => NOT_NOW_AT_LENGTH,
            Manner::Moody | Manner::Slow if state.rng.one_in(2) => return Some(NOT_NOW),
            _ => return line.contains("<permfail-").then_some("550 5.1.1 no such user"),
        };
        state.put_off += 1;
        Some(reply)
    }

    /// Draws the refusals of a moody host: true once in `many`.
    fn is_one_in(&self, many: u64) -> bool {
        let mut state = self.state();
        matches!(state.manner, Manner::Moody | Manner::Slow) && state.rng.one_in(many)
    }

    /// The reply to a whole message; an error if there is to be none.
    fn end(&self, recipients: &mut Vec<String>, body: Vec<u8>) -> io::Result<&'static str> {
        let recipients = std::mem::take(recipients);
        if matches!(self.state().manner, Manner::Slow | Manner::Unhurried) {
            std::thread::sleep(SLOWNESS);
        }
        if self.is_one_in(16) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.is_one_in(8) {
            return Ok("451 4.3.0 not now");
        }
        let stamp = stamp::find(&body).filter(|found| found.is_intact && found.id.run == self.load.seed);
        // A client of the rig's own has nothing in front.
        if front(&body) == 0 && !body.starts_with(stamp::FIELD.as_bytes()) {
            self.state().altered.push(format!("{stamp:?}: the fields in front are damaged"));
        }
        for recipient in recipients {
            match stamp.and_then(|found| self.entry(found.id.number, &recipient)) {
                Some(entry) => {
                    self.disk.taken(mark_of(&self.load, entry));
                    *self.state().taken.entry(entry).or_default() += 1;
                }
                None => self.state().altered.push(format!("to {recipient}: {} octets, {stamp:?}", body.len())),
            }
        }
        Ok("250 2.0.0 taken")
    }

    fn entry(&self, message: u64, recipient: &str) -> Option<Entry> {
        let mut mailboxes = self.load.recipients(message).into_iter();
        let mailbox = mailboxes.find(|mailbox| recipient == format!("{}@{DOMAIN}", user(*mailbox)))?;
        Some(Entry { message, mailbox })
    }
}

/// A command line without its line end.
fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut octets = Vec::new();
    reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut octets)?;
    match octets.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A body up to its final dot, with doubled dots undone.
fn data(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let begin = body.len();
        reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut body)?;
        if !body[begin..].ends_with(b"\r\n") || body.len() > BODY_BYTES_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if &body[begin..] == b".\r\n" {
            body.truncate(begin);
            return Ok(body);
        }
        if body[begin] == b'.' {
            body.remove(begin);
        }
    }
}

fn chunk(reader: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    if bytes > BODY_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut chunk = vec![0; bytes];
    reader.read_exact(&mut chunk)?;
    Ok(chunk)
}

const LOOK: Duration = Duration::from_millis(1);
/// Delay before the reply to a message.
const SLOWNESS: Duration = Duration::from_millis(20);
const NOT_NOW: &str = "451 4.2.1 not now";
const NOT_NOW_AT_LENGTH: &str = concat!(
    "451-4.2.1 not now, and this is said with so many words that a record of it fills a quarter of a block\r\n",
    "451-4.2.1 the mailbox is busy, as it has been all day, and nobody here can tell when it will not be\r\n",
    "451-4.2.1 the machine that has it is busy as well, since all of its other mailboxes are as busy as it\r\n",
    "451-4.2.1 what was said before holds for each of them, and what comes next holds for them no less than it\r\n",
    "451-4.2.1 come back in a while, and if that is too early, come back in a while that is longer than it was\r\n",
    "451 4.2.1 not now"
);
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Limit on a body: twice the largest message of a [`Load`].
const BODY_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::load::send;
    use crate::log::Event;

    #[test]
    fn each_accepted_recipient_is_recorded_and_changes_are_told() {
        let load = Load { several_one_in: 2, large_one_in: 1 << 40, ..Load::mixed(5) };
        let disk = Disk::new(Image::zeros(0));
        disk.record();
        let hop = NextHop::start(&load, &disk, Manner::Open).unwrap();
        let sent = send(&load, hop.address, 2, 0..20, |_| ());
        assert_eq!((sent.acknowledged.len(), hop.altered()), (20, Vec::new()));
        let other = Load { seed: 6, ..load.clone() };
        send(&other, hop.address, 1, 0..1, |_| ());
        assert_eq!(hop.altered().len(), other.recipients(0).len());
        let mut taken: Vec<u64> = disk
            .recorded()
            .events
            .iter()
            .filter_map(|event| if let Event::Taken(n) = event { Some(*n) } else { None })
            .collect();
        let mut expected: Vec<u64> =
            (0..20).flat_map(|number| load.promised(number)).map(|entry| mark_of(&load, entry)).collect();
        taken.sort_unstable();
        expected.sort_unstable();
        assert_eq!(taken, expected);
    }

    #[test]
    fn a_closed_one_says_so_and_a_moody_one_refuses_some() {
        let load = Load { several_one_in: 1, large_one_in: 1 << 40, ..Load::mixed(5) };
        let disk = Disk::new(Image::zeros(0));
        let hop = NextHop::start(&load, &disk, Manner::Closed).unwrap();
        assert!(send(&load, hop.address, 1, 0..1, |_| ()).acknowledged.is_empty());
        hop.set(Manner::Moody);
        let sent = send(&load, hop.address, 8, 0..100, |_| ());
        assert!(!sent.acknowledged.is_empty() && !sent.refused.is_empty(), "{sent:?}");
    }
}
