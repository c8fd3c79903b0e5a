//! Attacks by one client.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::{Attack, PATIENCE};
use crate::load::{DOMAIN, user};
use crate::rig::RigError;

/// A client that sends exactly the given octets.
struct Raw(BufReader<TcpStream>);

impl Raw {
    fn connect(attack: &Attack) -> Result<Self, RigError> {
        let stream = TcpStream::connect(attack.address())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut raw = Raw(BufReader::new(stream));
        raw.reply()?;
        Ok(raw)
    }

    /// Connects and proceeds into a message's body.
    fn in_data(attack: &Attack, mailbox: u64) -> Result<Self, RigError> {
        let mut raw = Self::connect(attack)?;
        for line in begin(mailbox).split_inclusive('\n') {
            raw.say(line.as_bytes())?;
            raw.reply()?;
        }
        Ok(raw)
    }

    fn say(&mut self, octets: &[u8]) -> Result<(), RigError> {
        Ok(self.0.get_mut().write_all(octets)?)
    }

    fn reply(&mut self) -> Result<String, RigError> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Ok(String::new());
            }
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(line.trim_end().to_owned());
            }
        }
    }
}

/// The commands up to the body of a message.
fn begin(mailbox: u64) -> String {
    format!("EHLO hostile.example\r\nMAIL FROM:<hostile@{DOMAIN}>\r\nRCPT TO:<{}@{DOMAIN}>\r\nDATA\r\n", user(mailbox))
}

/// Describes an unexpected reply.
fn expect(what: &str, reply: &str, code: &str) -> Vec<String> {
    if reply.starts_with(code) { Vec::new() } else { vec![format!("{what} was answered {reply:?}, not {code}")] }
}

pub fn endless_command(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut raw = Raw::connect(attack)?;
    let piece = vec![b'A'; PIECE];
    for _ in 0..(256 << 20) / PIECE {
        raw.say(&piece)?;
    }
    raw.say(b"\r\n")?;
    Ok(expect("a command of 256 MiB", &raw.reply()?, "500"))
}

pub fn endless_line(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut raw = Raw::in_data(attack, 1)?;
    raw.say(b"Subject: endless\r\n\r\n")?;
    let piece = vec![b'a'; PIECE];
    for _ in 0..(100 << 20) / PIECE {
        raw.say(&piece)?;
    }
    raw.say(b"\r\n.\r\n")?;
    Ok(expect("a line of 100 MiB", &raw.reply()?, "552 5.3.4"))
}

pub fn large_header(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut raw = Raw::in_data(attack, 1)?;
    let piece = filler();
    for _ in 0..(100 << 20) / PIECE {
        raw.say(&piece)?;
    }
    raw.say(b"\r\nbody\r\n.\r\n")?;
    Ok(expect("a header of 100 MiB", &raw.reply()?, "552 5.3.4"))
}

/// Fields of [`PIECE`] octets or a little more.
fn filler() -> Vec<u8> {
    let field = b"X-Filler: one of very many fields, all of them quite ordinary\r\n";
    field.repeat(PIECE.div_ceil(field.len()))
}

pub fn million_to(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut raw = Raw::in_data(attack, 1)?;
    let piece = b"To: somebody@example.net\r\n".repeat(1000);
    for _ in 0..1000 {
        raw.say(&piece)?;
    }
    raw.say(b"\r\nbody\r\n.\r\n")?;
    Ok(expect("a million To: lines", &raw.reply()?, "552 5.3.4"))
}

pub fn nested(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut raw = Raw::in_data(attack, 1)?;
    raw.say(&nested_mime(10_000))?;
    raw.say(b"\r\n.\r\n")?;
    Ok(expect("MIME nested 10,000 deep", &raw.reply()?, "250"))
}

/// Like [`nested`], for a server that indexes its mail: the index's parser must survive it, too.
pub fn nested_indexed(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut problems = nested(attack)?;
    let deadline = Instant::now() + INDEX_PATIENCE;
    while !is_found(attack, "deep")? {
        if Instant::now() > deadline {
            problems.push("the message is not found in the index".to_owned());
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(problems)
}

/// True if the server's index has a message with this word in its subject.
fn is_found(attack: &Attack, subject: &str) -> Result<bool, RigError> {
    let mut find = std::process::Command::new(&attack.setup.program);
    find.args(["find", "--fields", "subject", "--index"]).arg(attack.setup.index()).arg(format!("subject:{subject}"));
    let output = find.output()?;
    Ok(memchr::memmem::find(&output.stdout, subject.as_bytes()).is_some())
}

/// A message of multiparts within multiparts.
pub fn nested_mime(depth: usize) -> Vec<u8> {
    let mut message = b"Subject: deep\r\nMIME-Version: 1.0\r\n".to_vec();
    for level in 0..depth {
        let part = format!("Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n--b{level}\r\n");
        message.extend_from_slice(part.as_bytes());
    }
    message.extend_from_slice(b"\r\nthe innermost\r\n");
    message
}

pub fn half_closed(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut problems = Vec::new();
    let whole = format!("{}Subject: {HALF_CLOSED}\r\n\r\nbody\r\n.\r\nQUIT\r\n", begin(2));
    let mut accepted = 0;
    // After all of it, and in the midst of a line, of a header, of a body.
    for (octets, last) in [(whole.len(), "221"), (5, ""), (40, ""), (begin(2).len() + 9, ""), (whole.len() - 8, "")] {
        let mut stream = TcpStream::connect(attack.address())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&whole.as_bytes()[..octets])?;
        stream.shutdown(Shutdown::Write)?;
        let mut replies = String::new();
        // A session that goes on is read from in vain until that is over.
        if let Err(error) = stream.read_to_string(&mut replies) {
            problems.push(format!("half closed after {octets} octets: {error}"));
        }
        let after_data = replies.lines().skip_while(|reply| !reply.starts_with("354")).nth(1).unwrap_or_default();
        accepted += usize::from(after_data.starts_with("250"));
        if !last.is_empty() && !replies.lines().last().unwrap_or_default().starts_with(last) {
            problems.push(format!("half closed after {octets} octets: the last reply was not {last}: {replies:?}"));
        }
    }
    // The one that was sent to its end.
    if accepted != 1 {
        problems.push(format!("{accepted} of the five half-closed messages were accepted"));
    }
    let deadline = Instant::now() + PATIENCE;
    while delivered(attack, 2, HALF_CLOSED)? < accepted && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let there = delivered(attack, 2, HALF_CLOSED)?;
    if there != accepted {
        problems.push(format!("{accepted} half-closed messages were accepted and {there} delivered"));
    }
    Ok(problems)
}

/// Number of messages that contain a text in the `new/` of a mailbox.
fn delivered(attack: &Attack, mailbox: u64, text: &str) -> std::io::Result<usize> {
    let mut count = 0;
    let new = attack.setup.mail().join(DOMAIN).join(user(mailbox)).join("Maildir/new");
    for file in std::fs::read_dir(new).into_iter().flatten() {
        let octets = std::fs::read(file?.path())?;
        count += usize::from(memchr::memmem::find(&octets, text.as_bytes()).is_some());
    }
    Ok(count)
}

pub fn reset_anywhere(attack: &Attack) -> Result<Vec<String>, RigError> {
    let data = format!("{}Subject: reset\r\n\r\nbody\r\n.\r\nQUIT\r\n", begin(3));
    let bdat = data.replace("DATA\r\n", "BDAT 18\r\n").replace("body\r\n.\r\n", "BDAT 6 LAST\r\nbody\r\n");
    for (whole, wait_for_reply) in [(&data, false), (&data, true), (&bdat, false), (&bdat, true)] {
        for octets in 0..=whole.len() {
            let mut stream = TcpStream::connect(attack.address())?;
            stream.set_read_timeout(Some(PATIENCE))?;
            // Closing with this set sends RST and no FIN.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).map_err(std::io::Error::from)?;
            stream.write_all(&whole.as_bytes()[..octets])?;
            if wait_for_reply {
                let _ = stream.read(&mut [0; 512])?;
            }
        }
    }
    // That none of them is left open is looked at for all attacks alike.
    Ok(Vec::new())
}

/// Mail without end from clients that read no reply: the server must stop reading, and so stop them.
pub fn never_reads(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut crowd = Vec::new();
    for _ in 0..DEAF {
        let stream = TcpStream::connect(attack.address())?;
        // So that little fits between.
        let io = std::io::Error::from;
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).map_err(io)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).map_err(io)?;
        stream.set_nonblocking(true)?;
        crowd.push((stream, 0));
    }
    // The longest replies to the shortest commands; nothing but those would be cut off.
    let hello = "EHLO deaf\r\n".repeat(150);
    let mail = format!("MAIL FROM:<hostile@{DOMAIN}>\r\nRCPT TO:<{}@{DOMAIN}>\r\n", user(6));
    let message = format!("{hello}{mail}BDAT 17 LAST\r\nSubject: deaf\r\n\r\n");
    Ok(write_until_stopped(&mut crowd, message.as_bytes()))
}

/// Writes a message again and again over each connection, which does not block, until the server stops reading. Gives the problems.
pub fn write_until_stopped(crowd: &mut [(TcpStream, usize)], message: &[u8]) -> Vec<String> {
    let deadline = Instant::now() + 2 * PATIENCE;
    let mut quiet_since = Instant::now();
    let mut taken = 0;
    while quiet_since.elapsed() < QUIET {
        if Instant::now() > deadline {
            return vec![format!("the server still reads after {taken} octets")];
        }
        for (stream, sent) in crowd.iter_mut() {
            match stream.write(&message[*sent..]) {
                Ok(octets) => {
                    taken += octets;
                    *sent = (*sent + octets) % message.len();
                    quiet_since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return vec![format!("a client that reads nothing was cut off: {error}")],
            }
        }
        // A message each at a time: what is tried is whether they are stopped, not how many commands a second can be answered.
        std::thread::sleep(Duration::from_millis(50));
    }
    Vec::new()
}

/// Each look-alike in front of a second transaction, which would be accepted if it ended the message. The sequences are
/// those of the scanners for SMTP smuggling of SEC Consult (The-Login/SMTP-Smuggling-Tools) and hannob/smtpsmug, and
/// some more.
pub fn look_alikes(attack: &Attack) -> Result<Vec<String>, RigError> {
    let mut problems = Vec::new();
    for fake in LOOK_ALIKES {
        let mut raw = Raw::in_data(attack, 4)?;
        let smuggled = format!("MAIL FROM:<forged@{DOMAIN}>\r\nRCPT TO:<{}@{DOMAIN}>\r\nDATA\r\nforged", user(5));
        raw.say(b"Subject: look-alike\r\n\r\ntext")?;
        raw.say(fake)?;
        raw.say(smuggled.as_bytes())?;
        raw.say(b"\r\n.\r\nNOOP\r\nQUIT\r\n")?;
        let mut replies = String::new();
        raw.0.read_to_string(&mut replies)?;
        // One reply to the message, one to NOOP, one to QUIT.
        if replies.lines().count() != 3 {
            problems.push(format!("{}: {replies:?}", fake.escape_ascii()));
        }
    }
    let forged = delivered(attack, 5, "forged")?;
    if forged > 0 {
        problems.push(format!("{forged} smuggled messages were delivered"));
    }
    Ok(problems)
}

const LOOK_ALIKES: [&[u8]; 18] = [
    b"\n.\n",
    b"\n.\r",
    b"\n.\r\n",
    b"\r.\r",
    b"\r.\n",
    b"\r.\r\n",
    b"\r\n.\n",
    b"\r\n.\r",
    b"\r\n.\r\r\n",
    b"\r\r\n.\r\r\n",
    b"\r\n\0.\r\n",
    b"\r\n.\0\r\n",
    b"\r\n.\r\0\n",
    b"\r\0\n.\r\n",
    b"\n\n.\n\n",
    b"\r\n\r.\r\n",
    b"\r\n..\r\n",
    b"\r\n. \r\n",
];

const PIECE: usize = 64 << 10;
/// Time limit for the index, which has the lowest priority and so waits on a busy machine.
const INDEX_PATIENCE: Duration = Duration::from_secs(120);
const HALF_CLOSED: &str = "half closed";
/// Number of clients that read nothing. The kernel alone buffers some MiB for each.
const DEAF: usize = 8;
/// Time without input after which reading ends.
const QUIET: Duration = Duration::from_secs(2);
