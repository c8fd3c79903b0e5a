//! Hosts that end each session: how often they are asked, and what is told of them.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::relay_events::wait_for;
use crate::relaying::{EVENTS, config, wait_for_queue};
use crate::support::Server;

/// A host at a port of loopback that does this with each connection.
struct FailingHost {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl FailingHost {
    fn start(act: fn(TcpStream) -> std::io::Result<()>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<AtomicUsize>::default();
        let counted = connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                // The relay may be gone.
                let _ = act(stream);
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
fn a_host_that_ends_each_session_is_asked_twice_a_second_at_most() {
    let host = FailingHost::start(|mut stream| {
        stream.write_all(b"220 there\r\n")?;
        BufReader::new(stream.try_clone()?).read_line(&mut String::new())?;
        stream.write_all(b"250 there\r\n")
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
