//! Measures the server's state machine alone: whole transactions (MAIL, RCPT, DATA, body) of one session, in messages/s
//! and MB/s of body. The body arrives in reads of 16 KiB. Leaves out sockets, tokio, storage. `cargo bench` runs it
//! whole, `cargo test --benches` tiny so that it cannot rot.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use posthaste_smtp::server::{Config, Event, Machine, MessageOutcome};
use posthaste_smtp::{BareNewlines, Limits, LongLines, NulOctets};

const READ_BYTES: usize = 16 << 10;

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--bench") { 7 } else { 1 };
    let total_bytes = if rounds > 1 { 1 << 30 } else { 1 << 20 };
    let plain = |bytes| message(bytes, b"An ordinary line of an ordinary message, seventy-six octets wide, no more.");
    let dots = |bytes| message(bytes, b".");
    run("10 KiB, 76-octet lines", &plain(10 << 10), total_bytes, rounds, LongLines::Accept);
    run("100 KiB, 76-octet lines", &plain(100 << 10), total_bytes, rounds, LongLines::Accept);
    run("100 KiB, line limit on", &plain(100 << 10), total_bytes, rounds, LongLines::Reject);
    run("100 KiB, every line a dot", &dots(100 << 10), total_bytes / 8, rounds, LongLines::Accept);
}

fn message(bytes: usize, line: &[u8]) -> Vec<u8> {
    let mut out = b"From: <a@example.org>\r\nTo: <b@example.org>\r\nSubject: bench\r\n\r\n".to_vec();
    while out.len() < bytes {
        if line[0] == b'.' {
            out.push(b'.');
        }
        out.extend_from_slice(line);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b".\r\n");
    out
}

fn run(name: &str, body: &[u8], total_bytes: usize, rounds: usize, long_lines: LongLines) {
    let messages = total_bytes / body.len();
    let mut seconds: Vec<f64> = (0..rounds).map(|_| round(body, messages, long_lines)).collect();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[rounds / 2];
    let rate = messages as f64 / median;
    let megabytes = rate * body.len() as f64 / 1e6;
    println!("{name:28} {rate:>10.0} messages/s {megabytes:>8.0} MB/s (median of {rounds})");
}

fn round(body: &[u8], messages: usize, long_lines: LongLines) -> f64 {
    let limits = Limits { message_bytes: 1 << 40, ..Limits::default() };
    let config = Config {
        limits,
        long_lines,
        bare_newlines: BareNewlines::Reject,
        nul_octets: NulOctets::Reject,
        ..Config::new("mx.example.org")
    };
    let mut machine = Machine::new(Arc::new(config));
    machine.greet(Ok(()));
    let mut session = Session { machine, input: BytesMut::new(), received: 0 };
    session.read(b"EHLO client.example\r\n");
    let started = Instant::now();
    for _ in 0..messages {
        session.read(b"MAIL FROM:<sender@example.org>\r\n");
        session.read(b"RCPT TO:<recipient@example.org>\r\n");
        session.read(b"DATA\r\n");
        for read in body.chunks(READ_BYTES) {
            session.read(read);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(session.received, messages);
    seconds
}

struct Session {
    machine: Machine,
    input: BytesMut,
    received: usize,
}

impl Session {
    /// Copying into the buffer stands for the kernel's copy and is part of the measurement.
    fn read(&mut self, bytes: &[u8]) {
        self.input.reserve(bytes.len());
        self.input.extend_from_slice(bytes);
        loop {
            match self.machine.step(&mut self.input) {
                Event::NeedInput => break,
                Event::Mail | Event::Rcpt => self.machine.answer(Ok(())),
                Event::BodyEnd => {
                    self.received += 1;
                    self.machine.finish(&MessageOutcome::accepted("kept"));
                }
                event => {
                    black_box(event);
                }
            }
        }
        self.machine.output_mut().clear();
    }
}
