//! A client that says what it is told to and reads whole replies.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Client<S = TcpStream> {
    pub stream: S,
    input: Vec<u8>,
}

impl Client {
    /// Connects; the greeting is not read yet.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout is set");
        Self::over(stream)
    }

    /// Connects and says EHLO.
    pub fn hello(address: SocketAddr) -> Self {
        let mut client = Self::connect(address);
        assert_eq!(client.code(), 220);
        assert_eq!(client.say("EHLO client.example"), 250);
        client
    }
}

impl<S: Read + Write> Client<S> {
    pub fn over(stream: S) -> Self {
        Self { stream, input: Vec::new() }
    }

    pub fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).expect("written");
        self.stream.flush().expect("flushed");
    }

    /// Writes a line and reads the reply's code, 0 if the connection was closed instead.
    pub fn say(&mut self, line: &str) -> u16 {
        self.write(&format!("{line}\r\n"));
        self.code()
    }

    /// The code of the next reply, 0 if the connection was closed instead.
    pub fn code(&mut self) -> u16 {
        self.reply().map_or(0, |reply| reply[..3].parse().expect("a code"))
    }

    /// The next reply, all its lines, without the last line end; `None` if the connection was closed or reset instead.
    pub fn reply(&mut self) -> Option<String> {
        let mut start = 0;
        loop {
            while let Some(end) = self.input[start..].windows(2).position(|pair| pair == b"\r\n") {
                let is_last = self.input[start + 3] == b' ';
                start += end + 2;
                if is_last {
                    let reply: Vec<u8> = self.input.drain(..start).collect();
                    return Some(String::from_utf8(reply[..start - 2].to_vec()).expect("UTF-8"));
                }
            }
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => return None,
                Ok(n) => self.input.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// True if the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.reply().is_none()
    }

    /// Sends a message (dots doubled already) and tells the reply to the first stage that is refused, or to the end of
    /// data. Behind a refused RCPT the transaction is taken back.
    pub fn send(&mut self, from: &str, to: &[&str], message: &str) -> u16 {
        assert_eq!(self.say(&format!("MAIL FROM:<{from}>")), 250);
        for to in to {
            let code = self.say(&format!("RCPT TO:<{to}>"));
            if code != 250 {
                assert_eq!(self.say("RSET"), 250);
                return code;
            }
        }
        assert_eq!(self.say("DATA"), 354);
        self.write(message);
        self.say(".")
    }
}
