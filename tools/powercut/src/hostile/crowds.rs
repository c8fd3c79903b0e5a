//! Attacks by many clients at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::{Attack, PATIENCE};
use crate::load::{Client, DOMAIN, Load, Protocol, user};
use crate::rig::RigError;

/// Position of a slow sender in the protocol.
struct State {
    protocol: Protocol,
    /// Input sent at once.
    prologue: String,
    /// Expected replies to the prologue.
    replies: &'static [&'static str],
    /// Input sent after it, octet by octet, repeated.
    drip: &'static [u8],
}

fn states() -> [State; 10] {
    let hello = "EHLO slow.example\r\n".to_owned();
    let mail = format!("{hello}MAIL FROM:<slow@{DOMAIN}>\r\n");
    let rcpt = format!("{mail}RCPT TO:<{}@{DOMAIN}>\r\n", user(0));
    let (data, bdat) = (format!("{rcpt}DATA\r\n"), format!("{rcpt}BDAT 100000\r\n"));
    let text = b"Subject: slow\r\n\r\nThis text comes one octet in a second, and on, and on.";
    let (too_long, nul) = (format!("{hello}NOOP {}", "A".repeat(4096)), format!("{data}Subject: a\0b\r\n\r\n"));
    let chunked = format!("{rcpt}BDAT 15\r\nSubject: slow\r\n");
    let state = |prologue, replies, drip| State { protocol: Protocol::Smtp, prologue, replies, drip };
    [
        state(String::new(), &["220"], b"EHLO a.very.long.name.that.never.ends.because.it.is.sent.so.slowly."),
        state(hello, &["220", "250"], b"MAIL FROM:<somebody.with.a.name.as.long.as.this.one.is.and.longer."),
        state(mail, &["220", "250", "250"], b"RCPT TO:<somebody.else.whose.name.is.no.shorter.than.his.and.goes.on."),
        state(
            rcpt,
            &["220", "250", "250", "250"],
            b"DATAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        ),
        state(data, &["220", "250", "250", "250", "354"], text),
        // A chunk is answered when it is complete.
        state(bdat, &["220", "250", "250", "250"], text),
        state(
            chunked,
            &["220", "250", "250", "250", "250"],
            b"BDAT 1000000000000000000000000000000000000000000000000000",
        ),
        // Both are refused when they end.
        state(too_long, &["220", "250"], b"A"),
        state(nul, &["220", "250", "250", "250", "354"], text),
        State {
            protocol: Protocol::Lmtp,
            ..state(String::new(), &["220"], b"LHLO a.very.long.name.that.is.sent.so.slowly.")
        },
    ]
}

pub fn slow_senders(attack: &Attack) -> Result<Vec<String>, RigError> {
    let states = states();
    let mut crowd = Vec::with_capacity(attack.size.crowd);
    for state in states.iter().cycle().take(attack.size.crowd) {
        let address = if state.protocol == Protocol::Lmtp { attack.server.lmtp } else { attack.address() };
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(state.prologue.as_bytes())?;
        stream.set_nonblocking(true)?;
        crowd.push((stream, state, state.drip.iter().cycle()));
    }
    let begun = Instant::now();
    let mut second = 0;
    while begun.elapsed() < attack.size.stay {
        for (stream, _, drip) in &mut crowd {
            // A full send buffer means a server that does not read, which is its right. Who was cut off is looked for at the end.
            let _ = stream.write(&[*drip.next().expect("it goes round")]);
        }
        second += 1;
        let next = begun + Duration::from_secs(second);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let mut problems = Vec::new();
    for (mut stream, state, _) in crowd {
        stream.set_nonblocking(false)?;
        let was_told = replies(&mut stream, state.replies.len());
        if !was_told.as_ref().is_ok_and(|replies| replies == state.replies) {
            problems.push(format!("a slow sender was told {was_told:?}, not {:?}", state.replies));
        }
        stream.set_nonblocking(true)?;
        let then = stream.read(&mut [0]).map_err(|error| error.kind());
        if then != Err(ErrorKind::WouldBlock) {
            problems.push(format!("a slow sender was cut off, or told more: {then:?}"));
        }
    }
    let more = problems.len().saturating_sub(SHOWN_MAX);
    problems.truncate(SHOWN_MAX);
    problems.extend((more > 0).then(|| format!("and {more} more")));
    Ok(problems)
}

/// The codes of the next replies; fewer if the connection ends.
fn replies(stream: &mut TcpStream, count: usize) -> std::io::Result<Vec<String>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut codes, mut line) = (Vec::new(), Vec::new());
    // Octet by octet: what follows them stays where it is.
    let mut octet = [0];
    while codes.len() < count && stream.read(&mut octet)? == 1 {
        line.push(octet[0]);
        if octet == *b"\n" {
            if line.get(3) == Some(&b' ') {
                codes.push(String::from_utf8_lossy(&line[..3]).into_owned());
            }
            line.clear();
        }
    }
    Ok(codes)
}

pub fn bursts(attack: &Attack) -> Result<Vec<String>, RigError> {
    let load = Load { large_one_in: u64::MAX, body_bytes_max: 4 << 10, mailboxes: 4, ..Load::mixed(52) };
    let mut problems = Vec::new();
    let deadline = Instant::now() + attack.size.stay;
    // Half of a small crowd: what all messages of a burst take together must be far below the second that is allowed, also in a debug
    // build.
    let size = BURST.min(attack.size.crowd as u64 / 2);
    let mut number = 0;
    while Instant::now() < deadline {
        for client in burst(attack.address(), &load, number..number + size) {
            match client {
                Ok((reply, wait)) if reply.starts_with('2') => attack.waited(wait),
                other => problems.push(format!("a client of a burst: {other:?}")),
            }
        }
        number += size;
    }
    problems.truncate(SHOWN_MAX);
    Ok(problems)
}

/// Connects all clients at the same moment. Returns each one's last reply, and the time since before its connect. So a
/// late greeting, or a connection that the kernel has to retry, counts.
fn burst(address: SocketAddr, load: &Load, numbers: Range<u64>) -> Vec<std::io::Result<(String, Duration)>> {
    let together = Barrier::new((numbers.end - numbers.start) as usize);
    let client = |number: u64| {
        let letter = load.letter(number);
        together.wait();
        let begun = Instant::now();
        Client::connect(address)?.send(&letter).map(|reply| (reply, begun.elapsed()))
    };
    let client = &client;
    std::thread::scope(|scope| {
        let all: Vec<_> = numbers.map(|number| scope.spawn(move || client(number))).collect();
        all.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
    })
}

pub fn flood(attack: &Attack) -> Result<Vec<String>, RigError> {
    let deadline = Instant::now() + attack.size.stay;
    let one = || -> Result<Vec<String>, RigError> {
        let mut problems = Vec::new();
        for connection in 0_u32.. {
            let begun = Instant::now();
            if begun >= deadline {
                break;
            }
            let mut stream = TcpStream::connect(attack.address())?;
            match connection % 3 {
                0 => {
                    let greeting = replies(&mut stream, 1)?;
                    attack.waited(begun.elapsed());
                    if greeting != ["220"] {
                        problems.push(format!("a client of the flood was greeted with {greeting:?}"));
                    }
                }
                // Gone with a reset, because a greeting is unread; or silently.
                1 => {
                    let _ = stream.write_all(b"EHLO flood.example\r\nMAIL FROM:<>\r\n");
                }
                _ => {}
            }
            // So fast that the ports of this machine do not run out: a closed one rests for a minute.
            if connection % FLOOD_STEP == FLOOD_STEP - 1 {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(problems)
    };
    let mut problems = Vec::new();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..FLOODERS).map(|_| scope.spawn(one)).collect();
        for flooder in all {
            problems.extend(flooder.join().expect("a client does not panic")?);
        }
        Ok::<_, RigError>(())
    })?;
    problems.truncate(SHOWN_MAX);
    Ok(problems)
}

/// Limit on connections of a burst.
const BURST: u64 = 500;
/// Threads of a flood, and how many times each connects before it rests.
const FLOODERS: usize = 8;
const FLOOD_STEP: u32 = 12;
/// Limit on reported problems of one kind.
const SHOWN_MAX: usize = 5;
