//! COMPRESS=DEFLATE (RFC 4978) over a socket.
#![cfg(feature = "tokio")]

use std::sync::Arc;
use std::time::Duration;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use posthaste_imap::driver::{Authenticator, ImapService, ImapTimeouts};
use posthaste_imap::session::{ImapConfig, ImapCredentials, LoginRefusal};
use posthaste_mailstore::{FakeMessage, FakeStore};
use posthaste_net::{Connection, CurrentPhase, Grant, Peer, Service, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::common;

struct Judge;

impl Authenticator for Judge {
    async fn login(&self, _: &Peer, credentials: ImapCredentials) -> Result<Grant, LoginRefusal> {
        common::judge(&credentials).map(Grant::from)
    }
}

/// A client that packs and unpacks once it was told to.
struct Client {
    stream: UnixStream,
    heard: Vec<u8>,
    deflate: Option<(Compress, Decompress)>,
    octets_in: usize,
}

impl Client {
    fn open(store: &FakeStore) -> Self {
        let (ours, stream) = UnixStream::pair().unwrap();
        let service = ImapService::new(Arc::new(store.clone()), Judge, ImapConfig::new("mail.example.org"))
            .with_timeouts(ImapTimeouts::default());
        let connection = Connection {
            id: 1,
            stream: Stream::Unix(ours),
            peer: Peer::Unix,
            phase: Arc::new(CurrentPhase::default()),
        };
        tokio::spawn(async move { service.serve(connection).await });
        Self { stream, heard: Vec::new(), deflate: None, octets_in: 0 }
    }

    async fn compressed(store: &FakeStore) -> Self {
        let mut client = Self::open(store);
        assert!(client.ask("a LOGIN ann secret").await.contains(" COMPRESS=DEFLATE] "));
        assert!(client.ask("b COMPRESS DEFLATE").await.ends_with("b OK DEFLATE active\r\n"));
        client.deflate = Some((Compress::new(Compression::best(), false), Decompress::new(false)));
        client
    }

    async fn say(&mut self, octets: &[u8]) {
        match &mut self.deflate {
            None => self.stream.write_all(octets).await.unwrap(),
            Some((deflate, _)) => {
                let mut packed = Vec::with_capacity(octets.len() + 1024);
                deflate.compress_vec(octets, &mut packed, FlushCompress::Sync).unwrap();
                // The server may have ended the session.
                let _ = self.stream.write_all(&packed).await;
            }
        }
    }

    /// All up to the end of these octets; all there is if the connection ends before.
    async fn hear(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.heard.windows(end.len()).position(|octets| octets == end.as_bytes()) {
                let heard: Vec<u8> = self.heard.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&heard).into_owned();
            }
            let mut octets = [0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(60), self.stream.read(&mut octets)).await;
            let mut octets = &octets[..read.expect("an answer").unwrap_or(0)];
            if octets.is_empty() {
                return String::from_utf8_lossy(&self.heard).into_owned();
            }
            self.octets_in += octets.len();
            let Some((_, inflate)) = &mut self.deflate else {
                self.heard.extend_from_slice(octets);
                continue;
            };
            loop {
                let mut unpacked = Vec::with_capacity(64 << 10);
                let before = inflate.total_in();
                inflate.decompress_vec(octets, &mut unpacked, FlushDecompress::Sync).unwrap();
                octets = &octets[(inflate.total_in() - before) as usize..];
                self.heard.extend_from_slice(&unpacked);
                if octets.is_empty() && unpacked.len() < unpacked.capacity() {
                    break;
                }
            }
        }
    }

    async fn ask(&mut self, command: &str) -> String {
        let tag = command.split(' ').next().unwrap();
        self.say(format!("{command}\r\n").as_bytes()).await;
        let answer = self.hear(&format!("{tag} ")).await;
        answer + &self.hear("\r\n").await
    }
}

#[tokio::test]
async fn both_directions_are_packed_and_each_answer_is_flushed() {
    let store = common::store();
    let long = format!("Subject: long\r\n\r\n{}", "the same line again and again\r\n".repeat(10_000));
    store.add("INBOX", FakeMessage::new(long.clone()));
    let mut client = Client::compressed(&store).await;
    assert!(client.ask("c SELECT INBOX").await.contains("* 4 EXISTS"));
    let capabilities = client.ask("d CAPABILITY").await;
    assert!(!capabilities.contains("COMPRESS") && capabilities.contains(" IDLE "), "{capabilities}");
    assert!(client.ask("e COMPRESS DEFLATE").await.starts_with("e NO [COMPRESSIONACTIVE] "));
    let before = client.octets_in;
    let told = client.ask("f FETCH 4 BODY.PEEK[]").await;
    assert!(told.contains(&long) && told.ends_with("f OK FETCH completed\r\n"));
    assert!(client.octets_in - before < long.len() / 20, "{} octets", client.octets_in - before);
    // Each line of IDLE comes by itself, also after the server has given its compressor back.
    client.say(b"g IDLE\r\n").await;
    client.hear("+ idling\r\n").await;
    for count in 5..8 {
        store.add("INBOX", FakeMessage::new("Subject: new\r\n\r\n"));
        assert!(client.hear("EXISTS\r\n").await.ends_with(&format!("* {count} EXISTS\r\n")));
    }
    client.say(b"DONE\r\nh APPEND INBOX {5+}\r\nhello\r\ni LOGOUT\r\n").await;
    assert!(client.hear("i OK LOGOUT completed\r\n").await.contains("h OK [APPENDUID "));
}

#[tokio::test]
async fn it_is_offered_to_those_who_have_logged_in_and_once() {
    let mut client = Client::open(&common::store());
    assert!(!client.hear("\r\n").await.contains("COMPRESS"));
    assert!(client.ask("a COMPRESS DEFLATE").await.starts_with("a BAD "));
    assert!(client.ask("b LOGIN ann secret").await.contains(" COMPRESS=DEFLATE]"), "the last capability");
    assert!(client.ask("c COMPRESS LZW").await.starts_with("c BAD "));
    // Somebody else may have put them there: nothing of them is a command.
    client.say(b"d COMPRESS DEFLATE\r\ne LOGOUT\r\n").await;
    assert_eq!(client.hear("e OK").await, "* BYE Octets after COMPRESS\r\n");
}

#[tokio::test]
async fn octets_that_unpack_to_a_gigabyte_end_like_a_long_line() {
    let mut client = Client::compressed(&common::store()).await;
    let (mut deflate, mut piece) = (Compress::new(Compression::best(), false), Vec::with_capacity(1 << 20));
    deflate.compress_vec(&vec![b'x'; 4 << 20], &mut piece, FlushCompress::Sync).unwrap();
    // Each is complete by itself.
    let packed = piece.repeat(256);
    assert!(packed.len() < 4 << 20, "{}", packed.len());
    // It is cut off before it has said all of it.
    let _ = client.stream.write_all(&packed).await;
    let told = client.hear("never").await;
    assert!(told.contains("TOOBIG"), "{told}");
}

/// A client that ends its stream with a command hears its answer.
#[tokio::test]
async fn a_command_in_the_final_block_is_carried_out() {
    let mut client = Client::compressed(&common::store()).await;
    let mut last = Vec::with_capacity(1 << 10);
    let mut deflate = Compress::new(Compression::best(), false);
    deflate.compress_vec(b"c STATUS INBOX (MESSAGES)\r\n", &mut last, FlushCompress::Finish).unwrap();
    client.stream.write_all(&last).await.unwrap();
    assert_eq!(client.hear("never").await, "* STATUS \"INBOX\" (MESSAGES 3)\r\nc OK STATUS completed\r\n");
}

#[tokio::test]
async fn octets_that_are_not_packed_end_the_session() {
    let mut client = Client::compressed(&common::store()).await;
    client.stream.write_all(&[7; 20]).await.unwrap();
    assert_eq!(client.hear("never").await, "");
}
