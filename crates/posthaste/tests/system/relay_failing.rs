//! Hosts that end each session: how often they are asked, and what is told of them.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::relay_events::wait_for;
use crate::relaying::{EVENTS, config, wait_for_queue};
use crate::support::Server;

/// A host at a port of loopback that does the same with each connection, or goes by its number.
struct FailingHost {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl FailingHost {
    fn start(act: fn(TcpStream) -> std::io::Result<()>) -> Self {
        Self::start_counting(move |_, stream| act(stream))
    }

    /// `act` has the number of the connection, from 0.
    fn start_counting(act: impl Fn(usize, TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<AtomicUsize>::default();
        let (counted, act) = (connections.clone(), Arc::new(act));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                let act = act.clone();
                // The relay may be gone.
                std::thread::spawn(move || drop(act(number, stream)));
            }
        });
        FailingHost { port, connections }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

#[test]
fn a_host_that_takes_no_mail_is_asked_once() {
    let host = FailingHost::start(|mut stream| stream.write_all(b"521 5.3.2 this host takes no mail\r\n"));
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(dir, &config(host.port, EVENTS));
    server.hello().try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    let line = wait_for(dir, "bounced", "recipient", "ann@there.example").remove(0);
    assert_eq!((&line["stage"], &line["host"]), (&"greeting".into(), &"there.example".into()), "{line}");
    assert_eq!((&line["code"], &line["reply"]), (&521.into(), &"521 5.3.2 this host takes no mail".into()), "{line}");
    let notice = server.wait_for_mail("here.example", "eve", 1)[0].text();
    assert!(notice.contains("521 5.3.2 this host takes no mail") && notice.contains("\nStatus: 5.3.2\n"), "{notice}");
    wait_for_queue(dir, "nothing waits", |waiting| waiting.is_empty());
    server.stop();
    assert_eq!(host.connections(), 1, "RFC 7504: not tried again");
}

#[test]
fn a_host_that_ends_each_session_is_tried_twice_a_second() {
    let host = FailingHost::start(|mut stream| {
        stream.write_all(b"220 there\r\n")?;
        let mut input = BufReader::new(stream.try_clone()?);
        input.read_line(&mut String::new())?;
        stream.write_all(b"250 there\r\n")?;
        // A close with unread octets would be a reset.
        stream.shutdown(Shutdown::Write)?;
        std::io::copy(&mut input, &mut std::io::sink()).map(drop)
    });
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(dir, &config(host.port, EVENTS));
    let begun = Instant::now();
    server.hello().try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    let told = server.wait_for_log("mail waits for these hosts");
    let (connections, secs) = (host.connections(), begun.elapsed().as_secs() as usize);
    assert!(connections > 1 && connections <= 2 * (secs + 1), "{connections} connections in {secs} s");
    assert!(told.contains("there.example") && told.contains("error="), "{told}");
    wait_for_queue(dir, "the queue says why", |waiting| {
        let why = waiting[0]["why"].as_str().unwrap_or_default();
        waiting[0]["attempts"] == 0 && why.contains("the server closed the connection")
    });
    server.stop();
}

/// Takes a message, and more if they come.
fn take(mut stream: TcpStream, taken: &AtomicUsize) -> std::io::Result<()> {
    stream.write_all(b"220 there\r\n")?;
    let (mut input, mut in_message) = (BufReader::new(stream.try_clone()?), false);
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let said = std::mem::take(&mut line);
        if in_message && said != ".\r\n" {
            continue;
        }
        taken.fetch_add(usize::from(in_message), Ordering::Relaxed);
        in_message = said.starts_with("DATA");
        stream.write_all(if in_message { b"354 go\r\n" } else { b"250 ok\r\n" })?;
    }
    Ok(())
}

#[test]
fn one_failed_session_in_twenty_stops_no_site() {
    const MESSAGES: usize = 100;
    let taken = Arc::<AtomicUsize>::default();
    let counted = taken.clone();
    let host = FailingHost::start_counting(move |number, mut stream| match number % 20 {
        0 => stream.write_all(b"421 4.7.0 too many connections\r\n"),
        _ => take(stream, &counted),
    });
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("limits.toml"), "[default]\nmessages_per_connection = 1\n").unwrap();
    // Once a site pauses it does so until the test has failed.
    let config = config(host.port, &format!("shaping = [\"limits.toml\"]\n{EVENTS}"));
    let server = Server::start(dir, &config.replace("unreachable_secs = 1\n", "unreachable_secs = 1800\n"));
    let mut client = server.hello();
    for _ in 0..MESSAGES {
        let reply = client.try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n");
        assert_eq!(reply.unwrap().code, 250);
    }
    wait_for_queue(dir, "all is sent", |waiting| waiting.is_empty());
    drop(client);
    let log = server.log_text();
    assert!(!log.contains("mail waits for these hosts"), "{log}");
    server.stop();
    assert_eq!(taken.load(Ordering::Relaxed), MESSAGES);
    assert!(host.connections() >= MESSAGES + MESSAGES / 20, "{} connections", host.connections());
}
