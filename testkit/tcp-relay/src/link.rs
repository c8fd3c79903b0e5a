//! One connection: a client, a server, and what is on its way between them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::set_socket_linger;

use crate::{Way, Ways};

pub(crate) struct Link {
    /// The source of each way: client, server.
    sockets: [TcpStream; 2],
    pipes: [Pipe; 2],
}

/// Bytes on their way.
#[derive(Default)]
struct Pipe {
    parts: VecDeque<Part>,
    bytes: usize,
    /// The source has ended: nothing more is read.
    has_ended: bool,
    /// The end has passed.
    is_over: bool,
}

struct Part {
    due: Instant,
    what: What,
    /// Bytes that have passed.
    passed: usize,
}

enum What {
    Bytes(Vec<u8>),
    End,
    Reset,
}

impl Link {
    pub fn new(client: TcpStream, server: TcpStream) -> io::Result<Self> {
        let sockets = [client, server];
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        Ok(Link { sockets, pipes: Default::default() })
    }

    /// Reads and writes what it can. False once both ways are over.
    ///
    /// # Errors
    /// An end was reset.
    pub fn pass(&mut self, now: Instant, ways: &Ways) -> io::Result<bool> {
        for (way, pipe) in self.pipes.iter_mut().enumerate() {
            pipe.fill(&mut &self.sockets[way], now + ways[way].delay);
            if !ways[way].is_stalled {
                pipe.drain(&self.sockets[1 - way], now)?;
            }
        }
        Ok(!self.pipes.iter().all(|pipe| pipe.is_over))
    }

    /// Closes both ends with RST.
    pub fn reset(self) {
        for socket in &self.sockets {
            // One that is closed already needs none.
            let _ = set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    pub fn held(&self, way: Way) -> usize {
        self.pipes[way as usize].bytes
    }

    /// The moment at which something may pass that waits for its time.
    pub fn next_due(&self, ways: &Ways) -> Option<Instant> {
        let waits = self.pipes.iter().zip(ways).filter(|(_, way)| !way.is_stalled);
        waits.filter_map(|(pipe, _)| Some(pipe.parts.front()?.due)).min()
    }

    /// The events that let something pass. A part that waits for its time waits for no socket; one that is due does.
    pub fn polls(&self, ways: &Ways) -> impl Iterator<Item = PollFd<'_>> {
        let now = Instant::now();
        let mut wanted = [PollFlags::empty(); 2];
        for (way, pipe) in self.pipes.iter().enumerate() {
            if pipe.has_room() {
                wanted[way] |= PollFlags::IN;
            }
            if !ways[way].is_stalled && pipe.parts.front().is_some_and(|part| part.due <= now) {
                wanted[1 - way] |= PollFlags::OUT;
            }
        }
        let polls = self.sockets.iter().zip(wanted).filter(|(_, wanted)| !wanted.is_empty());
        polls.map(|(socket, wanted)| PollFd::new(socket, wanted))
    }
}

impl Pipe {
    fn has_room(&self) -> bool {
        !self.has_ended && self.bytes < HELD_BYTES_MAX
    }

    /// Reads what is there. The end of a source is kept behind its bytes.
    fn fill(&mut self, source: &mut &TcpStream, due: Instant) {
        let mut buffer = [0; 16 << 10];
        while self.has_room() {
            let what = match source.read(&mut buffer) {
                Ok(0) => What::End,
                Ok(len) => What::Bytes(buffer[..len].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => What::Reset,
            };
            match &what {
                What::Bytes(bytes) => self.bytes += bytes.len(),
                What::End | What::Reset => self.has_ended = true,
            }
            self.parts.push_back(Part { due, what, passed: 0 });
        }
    }

    /// Writes what is due.
    fn drain(&mut self, mut target: &TcpStream, now: Instant) -> io::Result<()> {
        while let Some(part) = self.parts.front_mut().filter(|part| part.due <= now) {
            match &part.what {
                What::Bytes(bytes) => match target.write(&bytes[part.passed..]) {
                    Ok(len) => {
                        part.passed += len;
                        self.bytes -= len;
                        if part.passed < bytes.len() {
                            continue;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                },
                What::End => {
                    target.shutdown(Shutdown::Write)?;
                    self.is_over = true;
                }
                What::Reset => return Err(ErrorKind::ConnectionReset.into()),
            }
            self.parts.pop_front();
        }
        Ok(())
    }
}

/// Bytes of one way of a connection.
const HELD_BYTES_MAX: usize = 1 << 20;
