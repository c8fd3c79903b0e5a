//! A TCP relay on loopback that fails as a network does: it delays bytes, stalls one way or both, and resets connections.
//!
//! A test switches it while connections are open. Each switch holds for all bytes that have not passed yet once its method returns.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod link;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use link::Link;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A direction of the bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// A relay to one server. Dropping it closes all connections.
pub struct TcpRelay {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// The state has changed in a way that a test waits for.
    changed: Condvar,
    /// Written to when the relay's thread is to look at the state.
    bell: UnixStream,
}

/// By [`Way`].
type Ways = [WayState; 2];

#[derive(Default)]
struct State {
    ways: Ways,
    /// All connections are to be reset.
    resets: bool,
    ends: bool,
    /// Connections that were accepted.
    accepted: usize,
}

/// A direction of all connections.
#[derive(Default, Clone, Copy)]
struct WayState {
    delay: Duration,
    is_stalled: bool,
    /// Bytes that were read and have not passed.
    held: usize,
}

impl TcpRelay {
    /// Listens on a free port of 127.0.0.1 and connects each client to `server`.
    ///
    /// # Errors
    /// Of the sockets.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), bell });
        let relay = Loop { shared: shared.clone(), listener, rung, server, links: Vec::new() };
        let thread = std::thread::Builder::new().name("tcp-relay".to_owned()).spawn(move || relay.run())?;
        Ok(TcpRelay { address, shared, thread: Some(thread) })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that are read from now on pass after this time.
    pub fn delay(&self, way: Way, delay: Duration) {
        self.shared.set(|state| state.ways[way as usize].delay = delay);
    }

    /// Lets nothing pass, neither bytes nor the end of a connection. Up to 1 MiB of each connection is held; then the peer's writes wait.
    pub fn stall(&self, way: Way) {
        self.shared.set(|state| state.ways[way as usize].is_stalled = true);
    }

    /// Lets pass what a stall has held, and all that follows.
    pub fn resume(&self, way: Way) {
        self.shared.set(|state| state.ways[way as usize].is_stalled = false);
    }

    /// Resets all connections (RST), on both ends. Held bytes are lost. Returns when that is done. Clients may connect again.
    pub fn reset(&self) {
        self.shared.set(|state| state.resets = true);
        self.shared.wait(|state| !state.resets);
    }

    /// Waits until so many bytes of a way are held, in all connections.
    pub fn wait_until_held(&self, way: Way, bytes: usize) {
        self.shared.wait(|state| state.ways[way as usize].held >= bytes);
    }

    /// Waits until so many clients have connected, in all.
    pub fn wait_until_accepted(&self, count: usize) {
        self.shared.wait(|state| state.accepted >= count);
    }
}

impl Drop for TcpRelay {
    fn drop(&mut self) {
        self.shared.set(|state| state.ends = true);
        let ended = self.thread.take().expect("it is dropped once").join();
        if !std::thread::panicking() {
            ended.expect("the relay does not panic");
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        // A full bell has been rung.
        let _ = io::Write::write(&mut &self.bell, &[0]);
    }

    fn wait(&self, is_so: impl Fn(&State) -> bool) {
        let state = self.changed.wait_while(self.state(), |state| !is_so(state));
        drop(state.expect("nothing panics while it is held"));
    }
}

/// The relay's thread.
struct Loop {
    shared: Arc<Shared>,
    listener: TcpListener,
    rung: UnixStream,
    server: SocketAddr,
    links: Vec<Link>,
}

impl Loop {
    fn run(mut self) {
        while let Some(timeout) = self.turn() {
            self.wait(timeout);
        }
    }

    /// Passes on all that may pass now. The time until more may, if nothing else happens; `None` at the end.
    fn turn(&mut self) -> Option<Option<Duration>> {
        let shared = self.shared.clone();
        // A switch that was set while this goes on holds after it.
        let mut state = shared.state();
        if state.ends {
            return None;
        }
        if std::mem::take(&mut state.resets) {
            self.links.drain(..).for_each(Link::reset);
        }
        state.accepted += self.accept();
        let now = Instant::now();
        let mut left = Vec::new();
        for mut link in self.links.drain(..) {
            match link.pass(now, &state.ways) {
                Ok(true) => left.push(link),
                Ok(false) => {}
                Err(_) => link.reset(),
            }
        }
        self.links = left;
        for way in [Way::ToServer, Way::ToClient] {
            state.ways[way as usize].held = self.links.iter().map(|link| link.held(way)).sum();
        }
        shared.changed.notify_all();
        let next = self.links.iter().filter_map(|link| link.next_due(&state.ways)).min();
        Some(next.map(|due| due.saturating_duration_since(now)))
    }

    /// The number of new clients.
    fn accept(&mut self) -> usize {
        let mut count = 0;
        while let Ok((client, _)) = self.listener.accept() {
            // A client whose server is away is closed.
            if let Ok(link) = TcpStream::connect(self.server).and_then(|server| Link::new(client, server)) {
                self.links.push(link);
            }
            count += 1;
        }
        count
    }

    fn wait(&self, timeout: Option<Duration>) {
        let state = self.shared.state();
        let mut polls = vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.rung, PollFlags::IN)];
        for link in &self.links {
            polls.extend(link.polls(&state.ways));
        }
        drop(state);
        let timeout = timeout
            .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) });
        match poll(&mut polls, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
        let mut rings = [0; 64];
        while matches!(io::Read::read(&mut &self.rung, &mut rings), Ok(1..)) {}
    }
}

#[cfg(test)]
mod tests;
