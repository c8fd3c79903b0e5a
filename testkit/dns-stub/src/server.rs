use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::wire::{Kind, Question};
use crate::zone::Zone;

/// A running server. Dropping it ends its threads.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    udp: UdpSocket,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A received question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// In lower case, without a final dot; other octets than UTF-8 replaced.
    pub name: String,
    /// The record type.
    pub kind: Kind,
    /// Over TCP, not UDP.
    pub over_tcp: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    zone: Zone,
    asked: Vec<Asked>,
    held: bool,
    /// Questions over UDP, and their senders.
    unanswered: Vec<(Vec<u8>, SocketAddr)>,
    ended: bool,
}

impl Server {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If no port is free for both UDP and TCP.
    pub fn start(zone: Zone) -> Server {
        let (udp, tcp) = (0..100).find_map(|_| bind().ok()).expect("no port of loopback is free for UDP and TCP");
        Self::serve(udp, tcp, zone)
    }

    /// Listens on one free port of several addresses, such as 127.0.0.1 and 127.0.0.2, each with its own zone: servers
    /// that are named by address alone.
    ///
    /// # Panics
    /// If no port is free at all of them.
    pub fn start_beside<const N: usize>(servers: [(Ipv4Addr, Zone); N]) -> [Server; N] {
        let bound = (0..100).find_map(|_| {
            let (udp, tcp) = bind().ok()?;
            let port = udp.local_addr().ok()?.port();
            drop((udp, tcp));
            let bind = |(ip, _): &(Ipv4Addr, Zone)| {
                Some((UdpSocket::bind((*ip, port)).ok()?, TcpListener::bind((*ip, port)).ok()?))
            };
            servers.iter().map(bind).collect::<Option<Vec<_>>>()
        });
        let mut bound = bound.expect("no port is free at all addresses").into_iter();
        servers.map(|(_, zone)| {
            let (udp, tcp) = bound.next().expect("one for each server");
            Self::serve(udp, tcp, zone)
        })
    }

    fn serve(udp: UdpSocket, tcp: TcpListener, zone: Zone) -> Server {
        let address = udp.local_addr().expect("a bound socket has an address");
        let state = State { zone, asked: Vec::new(), held: false, unanswered: Vec::new(), ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let for_thread = udp.try_clone().expect("a socket can be cloned");
        let (for_udp, for_tcp) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || for_udp.serve_udp(&for_thread)),
            std::thread::spawn(move || for_tcp.serve_tcp(&tcp)),
        ];
        Server { address, udp, shared, threads }
    }

    /// Address and port, of UDP and of TCP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the zone for later answers.
    pub fn change(&self, zone: Zone) {
        self.shared.lock().zone = zone;
    }

    /// All questions so far, in order.
    pub fn questions(&self) -> Vec<Asked> {
        self.shared.lock().asked.clone()
    }

    /// Names that were asked for after the first `after` questions, each once, and before `name` was.
    pub fn asked_before(&self, after: usize, name: &str) -> HashSet<String> {
        let state = self.shared.lock();
        let names = state.asked.iter().skip(after).map(|asked| &asked.name);
        names.take_while(|asked| *asked != name).cloned().collect()
    }

    /// Number of times this was asked, over UDP or TCP.
    pub fn asked(&self, name: &str, kind: Kind) -> usize {
        let name = name.to_ascii_lowercase();
        self.shared.lock().asked.iter().filter(|asked| asked.name == name && asked.kind == kind).count()
    }

    /// Keeps back all answers until [`release`](Self::release). Over TCP the next question is read after that, too.
    pub fn hold(&self) {
        self.shared.lock().held = true;
    }

    /// Sends the answers that [`hold`](Self::hold) has delayed.
    pub fn release(&self) {
        let unanswered = {
            let mut state = self.shared.lock();
            state.held = false;
            std::mem::take(&mut state.unanswered)
        };
        self.shared.changed.notify_all();
        for (message, client) in unanswered {
            self.shared.answer_udp(&self.udp, &message, client);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        (state.ended, state.held) = (true, false);
        drop(state);
        self.shared.changed.notify_all();
        // Each thread waits for its socket; what arrives wakes it.
        let wake = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.send_to(&[], self.address));
        let connected = TcpStream::connect(self.address);
        if wake.is_ok() && connected.is_ok() {
            for thread in self.threads.drain(..) {
                // Its panic was printed already, and a second one while dropping would abort.
                let _ = thread.join();
            }
        }
    }
}

/// Binds a port that is free for both UDP and TCP.
fn bind() -> std::io::Result<(UdpSocket, TcpListener)> {
    bind_beside(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))
}

fn bind_beside(mut udp: impl FnMut() -> std::io::Result<UdpSocket>) -> std::io::Result<(UdpSocket, TcpListener)> {
    let mut passed_over = Vec::new();
    loop {
        let udp = udp()?;
        match TcpListener::bind(udp.local_addr()?) {
            Ok(tcp) => return Ok((udp, tcp)),
            // While it is held, the next one is another.
            Err(error) if error.kind() == ErrorKind::AddrInUse && passed_over.len() < PORTS_MAX => {
                passed_over.push(udp)
            }
            Err(error) => return Err(error),
        }
    }
}

/// Ports to try.
const PORTS_MAX: usize = 100;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the lock")
    }

    fn serve_udp(&self, socket: &UdpSocket) {
        let mut buffer = [0; 4096];
        loop {
            let received = socket.recv_from(&mut buffer);
            if self.lock().ended {
                return;
            }
            // An ICMP error of a client that has gone.
            let Ok((length, client)) = received else { continue };
            let message = &buffer[..length];
            let Some(question) = Question::read(message) else { continue };
            let mut state = self.lock();
            state.note(&question, false);
            if state.held {
                state.unanswered.push((message.to_vec(), client));
                continue;
            }
            drop(state);
            self.answer_udp(socket, message, client);
        }
    }

    fn answer_udp(&self, socket: &UdpSocket, message: &[u8], client: SocketAddr) {
        let Some(question) = Question::read(message) else { return };
        if let Some(answer) = self.lock().answer(&question, false) {
            // The client may have gone.
            let _ = socket.send_to(&answer, client);
        }
    }

    fn serve_tcp(&self, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.lock().ended {
                return;
            }
            if let Ok((stream, _)) = accepted {
                self.serve_stream(stream);
            }
        }
    }

    /// Serves a connection until the client closes it, or is silent while another one waits.
    fn serve_stream(&self, mut stream: TcpStream) {
        let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(500)));
        let mut length = [0; 2];
        while stream.read_exact(&mut length).is_ok() {
            let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
            if stream.read_exact(&mut message).is_err() {
                return;
            }
            let Some(question) = Question::read(&message) else { return };
            let mut state = self.lock();
            state.note(&question, true);
            let state = self.changed.wait_while(state, |state| state.held).expect("no thread panics with the lock");
            let Some(answer) = state.answer(&question, true) else { continue };
            drop(state);
            let mut out =
                u16::try_from(answer.len()).expect("an answer has at most 65,535 octets").to_be_bytes().to_vec();
            out.extend(answer);
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    }
}

impl State {
    fn note(&mut self, question: &Question, over_tcp: bool) {
        let name = question.name();
        let name = name.iter().map(|label| String::from_utf8_lossy(label)).collect::<Vec<_>>().join(".");
        self.asked.push(Asked { name, kind: question.kind, over_tcp });
    }

    fn answer(&self, question: &Question, over_tcp: bool) -> Option<Vec<u8>> {
        let mut answer = self.zone.answer(&question.name(), question.kind, over_tcp)?;
        if let Some(octets) = &answer.raw {
            return Some(question.raw_answer(octets));
        }
        let bytes = question.answer(&answer);
        if over_tcp || bytes.len() <= question.udp_bytes_max {
            return Some(bytes);
        }
        (answer.records, answer.authority, answer.additional) = Default::default();
        answer.truncated = true;
        Some(question.answer(&answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{labels, write_name};

    /// A query for `name` without EDNS.
    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut out = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        write_name(&mut out, &labels(name));
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out
    }

    fn over_udp(server: &Server, name: &str, kind: u16) -> Vec<u8> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.send_to(&query(name, kind), server.address()).unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    }

    /// Flags, answer code and number of answers.
    fn head(answer: &[u8]) -> (bool, u8, u16) {
        assert_eq!(answer[..2], [7, 9]);
        (answer[2] & 2 != 0, answer[3] & 15, u16::from_be_bytes([answer[6], answer[7]]))
    }

    #[test]
    fn each_name_is_answered_as_the_zone_says() {
        let mut zone = Zone::default().a("a.example", Ipv4Addr::new(192, 0, 2, 1)).cname("b.example", "A.example.");
        zone = zone.fails("c.example").is_truncated("d.example").cname("loop.example", "loop.example");
        for number in 0..100 {
            zone = zone.mx("many.example", number, "mx.example");
        }
        let server = Server::start(zone);
        for (name, kind, expected) in [
            ("A.Example", 1, (false, 0, 1)),
            ("a.example", 15, (false, 0, 0)),
            ("b.example", 1, (false, 0, 2)),
            ("c.example", 1, (false, 2, 0)),
            ("d.example", 1, (true, 0, 0)),
            ("none.example", 1, (false, 3, 0)),
            ("loop.example", 1, (false, 0, 1)),
            ("many.example", 15, (true, 0, 0)),
        ] {
            assert_eq!(head(&over_udp(&server, name, kind)), expected, "{name} {kind}");
        }
        let answer = over_udp(&server, "a.example", 1);
        assert_eq!(answer[answer.len() - 6..], [0, 4, 192, 0, 2, 1]);
        assert_eq!((server.asked("a.example", Kind::A), server.asked("a.example", Kind::Mx)), (2, 1));
    }

    #[test]
    fn held_questions_are_answered_when_they_are_released() {
        let server = Server::start(Zone::default().a("a.example", Ipv4Addr::new(192, 0, 2, 1)));
        server.hold();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.send_to(&query("a.example", 1), server.address()).unwrap();
        while server.asked("a.example", Kind::A) == 0 {
            std::thread::yield_now();
        }
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        server.release();
        socket.set_nonblocking(false).unwrap();
        socket.recv(&mut buffer).unwrap();
        assert_eq!(head(&buffer), (false, 0, 1));
    }

    #[test]
    fn ports_that_tcp_has_already_are_passed_over() {
        let (first, tcp) = bind().unwrap();
        let mut first = Some(first);
        let (udp, _) =
            bind_beside(|| first.take().map_or_else(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)), Ok)).unwrap();
        assert_ne!(udp.local_addr().unwrap().port(), tcp.local_addr().unwrap().port());
    }

    #[test]
    fn tcp_has_what_udp_truncates() {
        let server = Server::start(Zone::default().mx("d.example", 1, "mx.example").is_truncated("d.example"));
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let query = query("d.example", 15);
        stream.write_all(&(query.len() as u16).to_be_bytes()).unwrap();
        stream.write_all(&query).unwrap();
        let mut answer = [0; 14];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(head(&answer[2..]), (false, 0, 1));
        assert!(server.questions()[0].over_tcp);
    }
}
