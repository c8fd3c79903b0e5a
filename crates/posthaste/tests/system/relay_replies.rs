//! Last replies of other hosts, as users see them.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::Value;

use crate::relaying::{self, list, queue, unused_port, wait_for_queue};
use crate::support::{Server, command};

/// A host at a port of loopback that ends the session with 421: at RCPT or at DATA, depending on the recipient's name.
/// It accepts all other mail.
struct Closing {
    port: u16,
    is_gone: Arc<AtomicBool>,
}

impl Closing {
    fn start(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let is_gone = Arc::<AtomicBool>::default();
        let gone = is_gone.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if gone.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::spawn(move || drop(serve(stream)));
            }
        });
        Closing { port, is_gone }
    }

    /// Closes the listener and waits until connections are refused.
    fn end(self) {
        self.is_gone.store(true, Ordering::Relaxed);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {}
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    stream.write_all(b"220 closing\r\n")?;
    let (mut line, mut recipient) = (String::new(), String::new());
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let word = line.get(..4).unwrap_or("");
        if word == "RCPT" {
            recipient.clone_from(&line);
        }
        if word == "RCPT" && line.contains("<rcpt@") || word == "DATA" && recipient.contains("<data@") {
            stream.write_all(format!("421 4.7.0 rate limited at {word}\r\n").as_bytes())?;
            stream.shutdown(Shutdown::Write)?;
            return std::io::copy(&mut input, &mut std::io::sink()).map(drop);
        }
        let mut reply = "250 ok\r\n";
        if word == "DATA" {
            stream.write_all(b"354 go\r\n")?;
            while line != ".\r\n" {
                line.clear();
                if input.read_line(&mut line)? == 0 {
                    return Ok(());
                }
            }
            reply = "250 2.0.0 taken\r\n";
        }
        stream.write_all(reply.as_bytes())?;
    }
}

const SAID: [&str; 2] =
    ["there.example (RCPT): 421 4.7.0 rate limited at RCPT", "other.example (DATA): 421 4.7.0 rate limited at DATA"];

/// Waits until the queue has both recipients, with the host, the stage and the words.
fn wait_for_words(dir: &Path) {
    let has = |waiting: &[Value], said: &str| waiting.iter().any(|line| line["why"] == said);
    wait_for_queue(dir, "both have their words", |waiting| {
        waiting.len() == 2 && SAID.iter().all(|said| has(waiting, said))
    });
    for line in list(dir, &[]) {
        let shown = command(dir, &["queue", "show", line["id"].as_str().unwrap()]).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(text.contains(&format!("\nwhy        {}\n", line["why"].as_str().unwrap())), "{text}");
    }
}

#[test]
fn stage_and_words_of_a_421_survive_kills_and_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let closing = Closing::start(unused_port());
    // The event log, which has them too, is off.
    let mut server = Server::start(dir, &relaying::config(closing.port, ""));
    let mut client = server.hello();
    for to in ["rcpt@there.example", "data@other.example"] {
        client.deliver(&[to], b"Subject: x\r\n\r\nx\r\n");
    }
    let is_told = |line: &Value| line["why"].as_str().is_some_and(|why| why.contains("421 4.7.0 rate limited"));
    wait_for_queue(dir, "both are told to wait", |waiting| waiting.len() == 2 && waiting.iter().all(is_told));
    // Nobody tries them any more, so that nothing else is said.
    for domain in ["there.example", "other.example"] {
        assert_eq!(queue(dir, &["suspend", "--domain", domain]).0, 0);
    }
    // The record of its delivery takes along what was said before.
    client.deliver(&["ann@open.example"], b"Subject: x\r\n\r\nx\r\n");
    wait_for_queue(dir, "the third is recorded", |waiting| waiting.len() == 2);
    server.signal(Signal::KILL);
    server.wait();
    drop(client);
    closing.end();
    let server = Server::start_as_it_is(dir);
    wait_for_words(dir);
    // Its end makes a snapshot.
    server.stop();
    let mut server = Server::start_as_it_is(dir);
    wait_for_words(dir);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir);
    wait_for_words(dir);
    server.stop();
}
