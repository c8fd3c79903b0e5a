//! A session over TCP, encrypted or not, for the tables of `matrix`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::matrix::Talk;

pub struct TcpTalk {
    stream: Option<Stream>,
    tls: Arc<ClientConfig>,
    heard: Vec<u8>,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl TcpTalk {
    /// Connects and hears the greeting.
    pub fn open(address: SocketAddr, tls: Arc<ClientConfig>, implicit_tls: bool) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut talk = Self { stream: Some(Stream::Plain(stream)), tls, heard: Vec::new() };
        if implicit_tls {
            talk.start_tls();
        }
        assert_eq!(talk.hear(), Some(220));
        talk
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.heard.iter().position(|&octet| octet == b'\n') {
                return Some(self.heard.drain(..=end).collect());
            }
            let mut octets = [0; 4096];
            let read = match self.stream.as_mut().unwrap() {
                Stream::Plain(stream) => stream.read(&mut octets),
                Stream::Tls(stream) => stream.read(&mut octets),
            };
            match read.unwrap() {
                0 => return None,
                read => self.heard.extend_from_slice(&octets[..read]),
            }
        }
    }
}

impl Talk for TcpTalk {
    fn say(&mut self, octets: &[u8]) {
        match self.stream.as_mut().unwrap() {
            Stream::Plain(stream) => stream.write_all(octets).unwrap(),
            Stream::Tls(stream) => stream.write_all(octets).unwrap(),
        }
    }

    fn hear(&mut self) -> Option<u16> {
        loop {
            let line = String::from_utf8(self.line()?).unwrap();
            if line.as_bytes()[3] == b' ' {
                return Some(line[..3].parse().unwrap());
            }
        }
    }

    fn start_tls(&mut self) {
        let Some(Stream::Plain(stream)) = self.stream.take() else { panic!("encrypted twice") };
        assert!(self.heard.is_empty());
        let session = ClientConnection::new(Arc::clone(&self.tls), "localhost".try_into().unwrap()).unwrap();
        self.stream = Some(Stream::Tls(Box::new(StreamOwned::new(session, stream))));
    }
}
