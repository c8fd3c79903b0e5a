//! The service over sockets: a store of mailboxes, clocks, large messages, a shutdown.
#![cfg(feature = "tokio")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use posthaste_mailstore::{
    FakeMessage, FakeStore, MailboxName, Mailstore as _, MailstoreError, MessageFlags, MessageSet, RowOptions,
    SelectMode, Uid,
};
use posthaste_net::{
    Admission, Connection, CurrentPhase, GateLimits, Grant, ListenPlace, Listeners, Peer, Proxies, Rules, Service,
    Stream,
};
use posthaste_pop3::driver::{Pop3Authenticator, Pop3Service, Pop3Timeouts};
use posthaste_pop3::session::{Pop3Config, Pop3Credentials, Pop3LoginRefusal};
use posthaste_scram::{ScramClient, ScramKeys, ScramProof};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

struct Judge;

impl Pop3Authenticator for Judge {
    async fn login(&self, _: &Peer, credentials: Pop3Credentials) -> Result<Grant, Pop3LoginRefusal> {
        common::judge(&credentials).map(Grant::from)
    }

    fn offers_scram(&self) -> bool {
        true
    }

    async fn scram_keys(&self, _: &Peer, user: &str) -> Result<Option<ScramKeys>, Pop3LoginRefusal> {
        common::scram_keys(user)
    }

    async fn scram_login(&self, _: &Peer, proof: &ScramProof) -> Result<Grant, Pop3LoginRefusal> {
        common::scram_login(proof).map(Grant::from)
    }
}

struct Client<S> {
    stream: S,
    heard: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Everything up to and with `end`; empty if the connection was closed before.
    async fn hear(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.heard.windows(end.len()).position(|heard| heard == end.as_bytes()) {
                let heard: Vec<u8> = self.heard.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&heard).into_owned();
            }
            let read = tokio::time::timeout(Duration::from_secs(60), self.stream.read_buf(&mut self.heard)).await;
            if read.expect("an answer").unwrap_or(0) == 0 {
                return String::new();
            }
        }
    }

    async fn ask(&mut self, command: &str, end: &str) -> String {
        self.say(&format!("{command}\r\n")).await;
        self.hear(end).await
    }

    async fn log_in(&mut self) -> String {
        self.hear("ready\r\n").await;
        self.ask("USER ann", "\r\n").await;
        self.ask("PASS secret", "\r\n").await
    }
}

fn open(store: &FakeStore, timeouts: Pop3Timeouts) -> (Client<UnixStream>, JoinHandle<()>) {
    let (ours, stream) = UnixStream::pair().unwrap();
    let config = Pop3Config::new("mail.example.org");
    let service = Pop3Service::new(Arc::new(store.clone()), Judge, config).with_timeouts(timeouts);
    let phase = Arc::new(CurrentPhase::default());
    let connection = Connection { id: 1, stream: Stream::Unix(ours), peer: Peer::Unix, phase };
    let serving = tokio::spawn(async move { service.serve(connection).await });
    (Client { stream, heard: Vec::new() }, serving)
}

fn store() -> FakeStore {
    let store = FakeStore::new("ann");
    store.add("INBOX", FakeMessage::new("Subject: one\r\n\r\n.1\r\n"));
    store.set_uid_next("INBOX", 0x2a);
    store.add("INBOX", FakeMessage { octets: None, ..FakeMessage::new("") });
    store.add("INBOX", FakeMessage::new("Subject: three\r\n\r\n3"));
    store
}

#[tokio::test]
async fn a_session_has_the_list_of_its_login() {
    let store = store();
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    assert_eq!(client.log_in().await, "+OK 3 messages\r\n");
    store.add("INBOX", FakeMessage::new("Subject: later\r\n\r\n"));
    store.expunge("INBOX", Uid::new(0x2b).unwrap());
    assert_eq!(client.ask("STAT", "\r\n").await, "+OK 3 39\r\n");
    assert_eq!(client.ask("LIST", "\r\n.\r\n").await, "+OK 3 messages\r\n1 20\r\n2 0\r\n3 19\r\n.\r\n");
    let uidl = "+OK 3 messages\r\n1 00000001000003e9\r\n2 0000002a000003e9\r\n3 0000002b000003e9\r\n.\r\n";
    assert_eq!(client.ask("UIDL", "\r\n.\r\n").await, uidl);
    assert_eq!(client.ask("RETR 1", "\r\n.\r\n").await, "+OK 20 octets\r\nSubject: one\r\n\r\n..1\r\n.\r\n");
    assert_eq!(client.ask("RETR 2", "\r\n").await, "-ERR [SYS/PERM] That message cannot be read\r\n");
    assert_eq!(
        client.ask("TOP 3 1", "\r\n.\r\n").await,
        "+OK Header and up to 1 lines\r\nSubject: three\r\n\r\n3\r\n.\r\n"
    );
    assert_eq!(client.ask("LIST 4", "\r\n").await, "-ERR No such message\r\n");
    assert_eq!(client.ask("QUIT", "\r\n").await, "+OK Bye\r\n");
    assert_eq!(client.hear("\r\n").await, "");
}

#[tokio::test]
async fn quit_removes_what_was_deleted_and_marks_what_was_read() {
    let store = store();
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    client.log_in().await;
    client.ask("TOP 3 0", "\r\n.\r\n").await;
    client.ask("RETR 1", "\r\n.\r\n").await;
    client.ask("DELE 2", "\r\n").await;
    assert_eq!(client.ask("RSET", "\r\n").await, "+OK Nothing is deleted\r\n");
    client.ask("DELE 2", "\r\n").await;
    assert_eq!(client.ask("QUIT", "\r\n").await, "+OK Bye; 1 removed\r\n");
    assert_eq!(flags(&store).await, [(1, MessageFlags::SEEN), (0x2b, MessageFlags::NONE)]);
    // Another session takes no \Recent away, and one that breaks off changes nothing.
    let (mut client, serving) = open(&store, Pop3Timeouts::default());
    client.log_in().await;
    client.ask("RETR 2", "\r\n.\r\n").await;
    client.ask("DELE 1", "\r\n").await;
    drop(client);
    serving.await.unwrap();
    assert_eq!(flags(&store).await, [(1, MessageFlags::SEEN), (0x2b, MessageFlags::NONE)]);
}

#[tokio::test]
async fn messages_removed_by_another_session_are_no_error_at_quit() {
    let store = store();
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    client.log_in().await;
    client.ask("DELE 1", "\r\n").await;
    store.expunge("INBOX", Uid::new(1).unwrap());
    assert_eq!(client.ask("QUIT", "\r\n").await, "+OK Bye; 1 removed\r\n");
}

/// UIDs and flags of INBOX, in which everything is still \Recent.
async fn flags(store: &FakeStore) -> Vec<(u32, MessageFlags)> {
    let account = store.account("ann").await.unwrap();
    let inbox = account.find(&MailboxName::inbox()).await.unwrap().unwrap();
    let view = account.select(inbox, SelectMode::ReadOnly).await.unwrap();
    assert_eq!(view.recent(), view.exists());
    let rows = view.rows(&MessageSet::all(), RowOptions::default()).next().await.unwrap();
    rows.iter().map(|row| (row.uid.get(), row.flags)).collect()
}

#[tokio::test]
async fn deleted_messages_that_stay_are_told_at_quit() {
    let store = store();
    store.refuse_changes(Some(MailstoreError::Unavailable("as the test wants it".into())));
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    client.log_in().await;
    client.ask("RETR 1", "\r\n.\r\n").await;
    assert_eq!(client.ask("QUIT", "\r\n").await, "+OK Bye\r\n");
    store.refuse_changes(Some(MailstoreError::ReadOnly));
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    client.log_in().await;
    assert_eq!(client.ask("DELE 1", "\r\n").await, "+OK Message 1 will be deleted\r\n");
    assert_eq!(client.ask("STAT", "\r\n").await, "+OK 2 19\r\n");
    assert_eq!(client.ask("QUIT", "\r\n").await, "-ERR [SYS/PERM] Some deleted messages were not removed\r\n");
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    assert_eq!(client.log_in().await, "+OK 3 messages\r\n");
}

#[tokio::test]
async fn a_large_message_comes_whole_and_what_follows_after_it() {
    let store = FakeStore::new("ann");
    let line = ".0123456789abcd\r\n";
    store.add("INBOX", FakeMessage::new(format!("Subject: large\r\n\r\n{}", line.repeat(200_000))));
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    client.log_in().await;
    client.say("RETR 1\r\nNOOP\r\n").await;
    let answer = client.hear("\r\n.\r\n+OK\r\n").await;
    let expected =
        format!("+OK 3400018 octets\r\nSubject: large\r\n\r\n{}.\r\n+OK\r\n", format!(".{line}").repeat(200_000));
    assert!(answer == expected, "{} octets, not {}", answer.len(), expected.len());
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off() {
    let store = FakeStore::new("ann");
    store.add("INBOX", FakeMessage::new("x".repeat(16 << 20)));
    let timeouts = Pop3Timeouts { write: Duration::from_millis(100), ..Pop3Timeouts::default() };
    let (mut client, serving) = open(&store, timeouts);
    client.log_in().await;
    client.say("RETR 1\r\n").await;
    tokio::time::timeout(Duration::from_secs(60), serving).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn who_does_not_log_in_or_falls_asleep_is_cut_off_in_silence() {
    let short = Duration::from_millis(50);
    let (mut client, _serving) = open(&store(), Pop3Timeouts { login: short, ..Pop3Timeouts::default() });
    client.hear("ready\r\n").await;
    assert_eq!(client.hear("\r\n").await, "");
    let (mut client, _serving) = open(&store(), Pop3Timeouts { idle: 20 * short, ..Pop3Timeouts::default() });
    assert_eq!(client.log_in().await, "+OK 3 messages\r\n");
    assert_eq!(client.hear("\r\n").await, "");
}

#[tokio::test]
async fn a_shutdown_ends_sessions_between_commands() {
    let mut listeners = Listeners::new(GateLimits::default()).unwrap();
    let (bound, ()) = posthaste_net::bind(vec![(ListenPlace::Tcp("127.0.0.1:0".into()), ())], &GateLimits::default())
        .unwrap()
        .remove(0);
    let address = bound.local_addr().unwrap();
    let service = Pop3Service::new(Arc::new(store()), Judge, Pop3Config::new("mail.example.org"));
    listeners.serve(bound.listen().unwrap(), &Admission::new(Rules::default()), service);
    let stream = TcpStream::connect(address).await.unwrap();
    let mut client = Client { stream, heard: Vec::new() };
    client.log_in().await;
    client.ask("DELE 1", "\r\n").await;
    let ended = tokio::spawn(listeners.shutdown(Duration::from_secs(30)));
    assert_eq!(client.hear("\r\n").await, "-ERR [SYS/TEMP] Server is shutting down\r\n");
    assert_eq!(client.hear("\r\n").await, "");
    assert!(ended.await.unwrap(), "a session is left over");
}

#[tokio::test]
async fn an_unreadable_mailbox_is_no_wrong_password() {
    let store = store();
    store.make_unreadable();
    let (mut client, _serving) = open(&store, Pop3Timeouts::default());
    let refused = client.log_in().await;
    assert!(refused.starts_with("-ERR [SYS/TEMP]"), "{refused}");
}

/// Who may not connect is told so, and a proxy whose header is broken is not a client.
#[tokio::test]
async fn refused_connections_hear_the_right_reason() {
    let networks = |text: &str| vec![text.parse().unwrap()];
    let elsewhere = Rules { allow: Some(networks("192.0.2.0/24")), ..Rules::default() };
    let proxied = Rules { proxies: Some(Proxies::new(networks("127.0.0.1/32"))), ..Rules::default() };
    for (rules, told) in
        [(elsewhere, "-ERR [SYS/PERM] Clients of your address may not connect here\r\n"), (proxied, "")]
    {
        let mut listeners = Listeners::new(GateLimits::default()).unwrap();
        let places = vec![(ListenPlace::Tcp("127.0.0.1:0".into()), ())];
        let (bound, ()) = posthaste_net::bind(places, &GateLimits::default()).unwrap().remove(0);
        let address = bound.local_addr().unwrap();
        let service = Pop3Service::new(Arc::new(store()), Judge, Pop3Config::new("mail.example.org"));
        listeners.serve(bound.listen().unwrap(), &Admission::new(rules), service);
        let mut client = Client { stream: TcpStream::connect(address).await.unwrap(), heard: Vec::new() };
        client.say("no header of a proxy\r\n").await;
        assert_eq!(client.hear("\r\n").await, told);
        listeners.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_password_is_shown_by_scram() {
    for (password, is_let_in) in [("wrong", false), ("pencil", true)] {
        let (mut client, _serving) = open(&store(), Pop3Timeouts::default());
        client.hear("ready\r\n").await;
        assert!(client.ask("CAPA", "\r\n.\r\n").await.contains("\r\nSASL SCRAM-SHA-256 PLAIN LOGIN\r\n"));
        let mut scram = ScramClient::new("user", password, None, posthaste_scram::nonce().unwrap());
        let begin = format!("AUTH SCRAM-SHA-256 {}", BASE64.encode(scram.first()));
        let last = scram.last(&challenge(&client.ask(&begin, "\r\n").await)).unwrap();
        let answer = client.ask(&BASE64.encode(last), "\r\n").await;
        if is_let_in {
            assert!(scram.is_shown(&challenge(&answer)), "{answer}");
            assert!(client.ask("", "\r\n").await.starts_with("+OK "));
            assert!(client.ask("STAT", "\r\n").await.starts_with("+OK "));
        } else {
            assert_eq!(answer, "-ERR [AUTH] Name or password is wrong\r\n");
        }
    }
}

/// Text of a challenge.
fn challenge(line: &str) -> String {
    let base64 = line.strip_prefix("+ ").and_then(|line| line.strip_suffix("\r\n")).expect("a challenge");
    String::from_utf8(BASE64.decode(base64).unwrap()).unwrap()
}
