//! Crowds of readers that do nothing, and floods of files beside a reader.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::readers::{Reader, Reading, SHOWN_MAX, beside_a_reader};
use super::{Attack, HONEST_PACE};
use crate::load::DOMAIN;
use crate::rig::RigError;

/// Files of another program for each client of a crowd: 100,000 with 500.
const FILES_EACH: usize = 200;
/// Time until all of them are messages.
const FOUND_PATIENCE: Duration = Duration::from_secs(180);

/// Places where sessions stay: commands after the login, if there was one, and octets that are not a whole command.
const STAYS: [(Reading, Option<&[&str]>, &str); 9] = [
    (Reading::Imap, None, ""),
    (Reading::Imap, None, "a LOGIN {100+}\r\nread"),
    (Reading::Imap, Some(&[]), ""),
    (Reading::Imap, Some(&["SELECT INBOX"]), ""),
    (Reading::Imap, Some(&["SELECT INBOX"]), "t IDLE\r\n"),
    (Reading::Imap, Some(&[]), "t APPEND INBOX {100000+}\r\nSubject: half a mess"),
    (Reading::Pop3, None, ""),
    (Reading::Pop3, None, "USER reader\r\nPASS "),
    (Reading::Pop3, Some(&["STAT"]), ""),
];

/// Connections whose TLS handshake has not begun, or has not got beyond its first octets.
const HANDSHAKES: [(Reading, &[u8]); 4] =
    [(Reading::Imap, b""), (Reading::Imap, HELLO), (Reading::Pop3, b""), (Reading::Pop3, HELLO)];
/// The beginning of a ClientHello of 512 octets.
const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc";

/// Sessions that do nothing, in each state. Those who have logged in and owe nothing are answered at the end.
pub fn idle(attack: &Attack) -> Result<Vec<String>, RigError> {
    beside_a_reader(attack, || {
        let mut crowd = Vec::with_capacity(attack.size.crowd);
        for (reading, commands, rest) in STAYS.into_iter().cycle().take(attack.size.crowd) {
            let mut reader = match commands {
                None => Reader::connect(attack, reading)?,
                Some(_) => Reader::logged_in(attack, reading)?,
            };
            for command in commands.unwrap_or_default() {
                reader.command(command)?;
            }
            reader.say(rest.as_bytes())?;
            crowd.push((reader, commands.is_some() && rest.is_empty()));
        }
        let mut handshakes = Vec::with_capacity(attack.size.crowd / STAYS.len());
        for (reading, octets) in HANDSHAKES.into_iter().cycle().take(attack.size.crowd / STAYS.len()) {
            let mut stream = reading.connect_to(attack, true)?;
            stream.write_all(octets)?;
            handshakes.push(stream);
        }
        std::thread::sleep(attack.size.stay);
        let free = crowd.iter_mut().filter(|(_, is_free)| *is_free);
        let problems = free.filter_map(|(reader, _)| reader.command("NOOP").err());
        Ok(problems.take(SHOWN_MAX).map(|error| format!("one of the crowd: {error}")).collect())
    })
}

/// Another program puts files into a mailbox that a client selects again and again. In the end all are there.
pub fn files(attack: &Attack) -> Result<Vec<String>, RigError> {
    let count = attack.size.crowd * FILES_EACH;
    beside_a_reader(attack, || {
        let mut reader = Reader::logged_in(attack, Reading::Imap)?;
        reader.command("CREATE Flood")?;
        let folder = attack.setup.mail().join(DOMAIN).join("reader/Maildir/.Flood");
        let done = AtomicBool::new(false);
        let write = || {
            let made = (0..count).try_for_each(|number| {
                let name = format!("{number}.flood.host");
                std::fs::write(folder.join("tmp").join(&name), "Subject: one of many\n\nx\n")?;
                std::fs::rename(folder.join("tmp").join(&name), folder.join("new").join(&name))
            });
            done.store(true, Ordering::Release);
            made
        };
        std::thread::scope(|scope| {
            let writing = scope.spawn(write);
            while !done.load(Ordering::Acquire) {
                let begun = Instant::now();
                reader.command("SELECT Flood")?;
                attack.waited(begun.elapsed());
                std::thread::sleep(HONEST_PACE);
            }
            writing.join().expect("the writer does not panic")
        })?;
        let deadline = Instant::now() + FOUND_PATIENCE;
        loop {
            let found = reader.messages("Flood")?;
            if found == count {
                return Ok(Vec::new());
            }
            if Instant::now() > deadline {
                return Ok(vec![format!("{found} of {count} files are messages")]);
            }
            std::thread::sleep(HONEST_PACE);
        }
    })
}
