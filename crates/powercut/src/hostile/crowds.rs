//! Many at once.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::Attack;
use crate::load::{Client, Load, user};
use crate::rig::RigError;
use crate::server::DOMAIN;

/// Where a slow sender stands: what it sends at once, and what it goes on with, octet by octet.
fn states() -> [(String, &'static [u8]); 6] {
    let hello = "EHLO slow.example\r\n".to_owned();
    let mail = format!("{hello}MAIL FROM:<slow@{DOMAIN}>\r\n");
    let rcpt = format!("{mail}RCPT TO:<{}@{DOMAIN}>\r\n", user(0));
    [
        (String::new(), b"EHLO a.very.long.name.that.never.ends.because.it.is.sent.so.slowly."),
        (hello, b"MAIL FROM:<somebody.with.a.name.as.long.as.this.one.is.and.longer."),
        (mail, b"RCPT TO:<somebody.else.whose.name.is.no.shorter.than.his.and.goes.on."),
        (rcpt.clone(), b"DATAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        (format!("{rcpt}DATA\r\n"), b"Subject: slow\r\n\r\nThis text comes one octet in a second, and on, and on."),
        (
            format!("{rcpt}BDAT 100000\r\n"),
            b"Subject: slow\r\n\r\nThis text comes one octet in a second, and on, and on.",
        ),
    ]
}

pub fn slow_senders(attack: &Attack) -> Result<Vec<String>, RigError> {
    let states = states();
    let mut crowd = Vec::with_capacity(attack.size.crowd);
    for number in 0..attack.size.crowd {
        let mut stream = TcpStream::connect(attack.address())?;
        let (prologue, drip) = &states[number % states.len()];
        stream.write_all(prologue.as_bytes())?;
        stream.set_nonblocking(true)?;
        crowd.push((stream, drip.iter().cycle()));
    }
    let mut broken = 0;
    let begun = Instant::now();
    let mut second = 0;
    while begun.elapsed() < attack.size.stay {
        crowd.retain_mut(|(stream, drip)| {
            let octet = *drip.next().expect("it goes round");
            // A full send buffer means a server that does not read, which is its right.
            let alive = match stream.write(&[octet]) {
                Ok(_) => true,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
            broken += usize::from(!alive);
            alive
        });
        second += 1;
        let next = begun + Duration::from_secs(second);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let mut problems = Vec::new();
    if broken > 0 {
        problems
            .push(format!("{broken} of {} slow senders were cut off within {:?}", attack.size.crowd, attack.size.stay));
    }
    Ok(problems)
}

pub fn bursts(attack: &Attack) -> Result<Vec<String>, RigError> {
    let load = Load { large_one_in: u64::MAX, body_bytes_max: 4 << 10, mailboxes: 4, ..Load::mixed(52) };
    let (mut problems, mut wait_max) = (Vec::new(), Duration::ZERO);
    let deadline = Instant::now() + attack.size.stay;
    let mut number = 0;
    while Instant::now() < deadline {
        // All are connected before one of them says anything: the burst.
        let streams: Vec<_> = (0..BURST).map(|_| Client::connect(attack.address())).collect::<Result<_, _>>()?;
        let waits: Vec<_> = std::thread::scope(|scope| {
            let (load, all) = (&load, streams.into_iter().zip(number..));
            let sending: Vec<_> = all
                .map(|(mut client, number)| {
                    scope.spawn(move || {
                        let begun = Instant::now();
                        client.send(&load.letter(number)).map(|reply| (reply, begun.elapsed()))
                    })
                })
                .collect();
            sending.into_iter().map(|sending| sending.join().expect("a client does not panic")).collect()
        });
        number += BURST as u64;
        for wait in waits {
            match wait {
                Ok((reply, wait)) if reply.starts_with('2') => wait_max = wait_max.max(wait),
                other => problems.push(format!("a client of a burst: {other:?}")),
            }
        }
    }
    if wait_max >= attack.size.wait_max {
        problems.push(format!("a client of a burst waited {} ms", wait_max.as_millis()));
    }
    problems.truncate(5);
    Ok(problems)
}

pub fn flood(attack: &Attack) -> Result<Vec<String>, RigError> {
    let deadline = Instant::now() + attack.size.stay;
    let mut connections = 0_u64;
    while Instant::now() < deadline {
        let mut stream = TcpStream::connect(attack.address())?;
        // Every other one says something before it goes, and some go with a reset because a greeting is unread.
        if connections.is_multiple_of(2) {
            let _ = stream.write_all(b"EHLO flood.example\r\nMAIL FROM:<>\r\n");
        }
        connections += 1;
        // So fast that the ports of this machine do not run out: a closed one rests for a minute.
        if connections.is_multiple_of(100) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(Vec::new())
}

/// Connections of a burst.
const BURST: usize = 500;
