//! The service over sockets: changes, clocks, large messages, a shutdown.
#![cfg(feature = "tokio")]

mod common;
mod set {
    pub use posthaste_imap::NumberSet;
}

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use posthaste_imap::driver::{Authenticator, CurrentImapConfig, ImapService, ImapTimeouts, LoginSessions};
use posthaste_imap::session;
use posthaste_imap::session::{ImapConfig, ImapCredentials, LoginRefusal};
use posthaste_mailstore::{FakeMessage, FakeStore, MailstoreError, MessageFlags, Uid};
use posthaste_net::{
    Admission, Connection, CurrentPhase, GateLimits, Grant, ListenPlace, Listeners, Peer, Proxies, Rules, Service,
    Stream,
};
use posthaste_scram::{ScramClient, ScramKeys, ScramProof};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

struct Judge;

impl Authenticator for Judge {
    async fn login(&self, _: &Peer, credentials: ImapCredentials) -> Result<Grant, LoginRefusal> {
        common::judge(&credentials).map(Grant::from)
    }

    fn offers_scram(&self) -> bool {
        true
    }

    async fn scram_keys(&self, _: &Peer, user: &str) -> Result<Option<ScramKeys>, LoginRefusal> {
        common::scram_keys(user)
    }

    async fn scram_login(&self, _: &Peer, proof: &ScramProof) -> Result<Grant, LoginRefusal> {
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

    async fn ask(&mut self, command: &str) -> String {
        let tag = command.split(' ').next().unwrap();
        self.say(&format!("{command}\r\n")).await;
        let answer = self.hear(&format!("{tag} ")).await;
        answer + &self.hear("\r\n").await
    }
}

fn open(store: &FakeStore, timeouts: ImapTimeouts) -> (Client<UnixStream>, JoinHandle<()>) {
    let (ours, stream) = UnixStream::pair().unwrap();
    let config = ImapConfig::new("mail.example.org");
    let service = ImapService::new(Arc::new(store.clone()), Judge, config).with_timeouts(timeouts);
    let phase = Arc::new(CurrentPhase::default());
    let connection = Connection { id: 1, stream: Stream::Unix(ours), peer: Peer::Unix, phase };
    let serving = tokio::spawn(async move { service.serve(connection).await });
    (Client { stream, heard: Vec::new() }, serving)
}

async fn selected(store: &FakeStore, timeouts: ImapTimeouts) -> (Client<UnixStream>, JoinHandle<()>) {
    let (mut client, serving) = open(store, timeouts);
    client.ask("a LOGIN ann secret").await;
    assert!(client.ask("b SELECT INBOX").await.ends_with("b OK [READ-WRITE] SELECT completed\r\n"));
    (client, serving)
}

#[tokio::test]
async fn idle_hears_of_new_mail() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    client.say("c IDLE\r\n").await;
    client.hear("+ idling\r\n").await;
    store.add("INBOX", FakeMessage::new("Subject: new\r\n\r\n"));
    assert!(client.hear("EXISTS\r\n").await.ends_with("* 4 EXISTS\r\n"));
    client.say("DONE\r\n").await;
    assert!(client.hear("c OK IDLE completed\r\n").await.ends_with("c OK IDLE completed\r\n"));
}

/// Decision 57.
#[tokio::test]
async fn status_of_the_selected_mailbox_may_be_ahead() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    store.add("INBOX", FakeMessage::new("Subject: new\r\n\r\n"));
    let answer = client.ask("c STATUS INBOX (MESSAGES)").await;
    assert!(answer.contains("* STATUS \"INBOX\" (MESSAGES 4)"), "{answer}");
}

#[tokio::test]
async fn another_configuration_is_in_force_for_later_sessions() {
    let with_limit = |append_bytes| {
        let mut config = ImapConfig::new("mail.example.org");
        config.limits.append_bytes = append_bytes;
        config
    };
    let config = CurrentImapConfig::new(with_limit(500));
    let service = Arc::new(ImapService::new(Arc::new(common::store()), Judge, config.clone()));
    let open = || {
        let (ours, stream) = UnixStream::pair().unwrap();
        let phase = Arc::new(CurrentPhase::default());
        let connection = Connection { id: 1, stream: Stream::Unix(ours), peer: Peer::Unix, phase };
        let service = Arc::clone(&service);
        tokio::spawn(async move { service.serve(connection).await });
        Client { stream, heard: Vec::new() }
    };
    let mut before = open();
    before.ask("a LOGIN ann secret").await;
    config.set(with_limit(400));
    let mut after = open();
    after.ask("a LOGIN ann secret").await;
    for (client, limit) in [(&mut before, 500), (&mut after, 400)] {
        assert!(client.ask("b CAPABILITY").await.contains(&format!(" APPENDLIMIT={limit}")));
        assert!(client.ask(&format!("c APPEND INBOX {{{}}}", limit + 1)).await.starts_with("c NO [TOOBIG]"));
    }
}

#[tokio::test]
async fn an_expunge_is_told_where_numbers_may_change() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    store.expunge("INBOX", Uid::new(1).unwrap());
    // Decision 9: never in answer to FETCH, and the message can still be told of.
    assert!(!client.ask("c FETCH 1:3 UID").await.contains("EXPUNGE"));
    assert_eq!(client.ask("d NOOP").await, "* 1 EXPUNGE\r\n* 2 RECENT\r\nd OK NOOP completed\r\n");
    assert_eq!(client.ask("e FETCH 1 UID").await, "* 1 FETCH (UID 2)\r\ne OK FETCH completed\r\n");
    assert!(client.ask("f FETCH 3 UID").await.starts_with("f BAD"));
}

#[tokio::test]
async fn a_deleted_mailbox_ends_its_sessions() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    store.remove("INBOX");
    client.say("c NOOP\r\n").await;
    assert_eq!(client.hear("\r\n").await, "* BYE The selected mailbox was deleted\r\n");
    assert_eq!(client.hear("\r\n").await, "");
}

#[tokio::test]
async fn a_large_message_comes_whole_and_what_follows_after_it() {
    let store = FakeStore::new("ann");
    let mail = format!("Subject: large\r\n\r\n{}", "0123456789abcde\r\n".repeat(200_000));
    store.add("INBOX", FakeMessage::new(mail.clone()));
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    client.say("c FETCH 1 (BODY[] BODY[TEXT]<0.3>)\r\nd NOOP\r\n").await;
    let answer = client.hear("d OK NOOP completed\r\n").await;
    let expected = format!(
        "* 1 FETCH (BODY[] {{{}}}\r\n{mail} BODY[TEXT]<0> {{3}}\r\n012)\r\n\
         * 1 FETCH (UID 1 FLAGS (\\Seen \\Recent))\r\nc OK FETCH completed\r\nd OK NOOP completed\r\n",
        mail.len()
    );
    assert!(answer == expected, "{} octets, not {}", answer.len(), expected.len());
}

/// Short ones are written together, and each has its place among long ones and one that cannot be read.
#[tokio::test]
async fn messages_of_all_lengths_come_in_their_order() {
    let store = FakeStore::new("ann");
    let mut expected = String::new();
    for n in 1..=300 {
        let body = "0123456789abcde\r\n".repeat([0, 1, 100, 1_200, 5_000, 40][n % 6]);
        let mail = format!("Subject: {n}\r\n\r\n{body}");
        if n == 100 {
            store.add("INBOX", FakeMessage { octets: None, ..FakeMessage::new("") });
            expected += "* 100 FETCH (BODY[] NIL BODY[HEADER] NIL)\r\n";
            continue;
        }
        let header = format!("Subject: {n}\r\n\r\n");
        let (len, header_len) = (mail.len(), header.len());
        expected += &format!("* {n} FETCH (BODY[] {{{len}}}\r\n{mail} BODY[HEADER] {{{header_len}}}\r\n{header})\r\n");
        store.add("INBOX", FakeMessage::new(mail));
    }
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    let answer = client.ask("c FETCH 1:* (BODY.PEEK[] BODY.PEEK[HEADER])").await;
    expected += "c NO [CORRUPTION] Some messages are damaged\r\n";
    assert!(answer == expected, "{} octets, not {}", answer.len(), expected.len());
}

/// A second BODYSTRUCTURE comes from what was kept: damage to the messages is not noticed.
#[tokio::test]
async fn a_known_structure_opens_no_message() {
    let store = FakeStore::new("ann");
    let mails = [common::SIMPLE, common::MIXED, "\r\n"].map(|mail| store.add("INBOX", FakeMessage::new(mail)));
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    let first = client.ask("c FETCH 1:* (UID BODYSTRUCTURE)").await;
    assert!(first.contains("\"rfc822\"") && first.ends_with("c OK FETCH completed\r\n"), "{first}");
    let envelopes = client.ask("c FETCH 1:* (ENVELOPE BODYSTRUCTURE)").await;
    mails.into_iter().for_each(|uid| store.damage("INBOX", uid));
    client.ask("n NOOP").await;
    assert_eq!(client.ask("c FETCH 1:* (UID BODYSTRUCTURE)").await, first);
    // Whatever else is asked for is read.
    for (items, has_structure) in [("(BODYSTRUCTURE ENVELOPE)", true), ("BODY", false), ("BODY.PEEK[1]", false)] {
        let answer = client.ask(&format!("d FETCH 2 {items}")).await;
        assert!(answer.ends_with("d NO [CORRUPTION] Some messages are damaged\r\n"), "{items}: {answer}");
        assert_eq!(answer.contains("\"rfc822\""), has_structure, "{items}: {answer}");
    }
    // A message that came since has its own.
    store.add("INBOX", FakeMessage::new(common::MIXED));
    client.ask("n NOOP").await;
    let last = client.ask("c FETCH 4 (ENVELOPE BODYSTRUCTURE)").await;
    let of = |answer: &str, number: u32| {
        let line = answer.lines().find(|line| line.starts_with(&format!("* {number} FETCH")));
        line.map(|line| line.split_once(" FETCH ").unwrap().1.to_owned())
    };
    assert_eq!(of(&last, 4), of(&envelopes, 2));
}

#[tokio::test]
async fn a_large_message_is_appended_and_told_to_others() {
    let store = FakeStore::new("ann");
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    let (mut other, _other_serving) = selected(&store, ImapTimeouts::default()).await;
    other.say("c IDLE\r\n").await;
    other.hear("+ idling\r\n").await;
    let mail = format!("Subject: large\r\n\r\n{}", "0123456789abcde\r\n".repeat(200_000));
    client.say(&format!("c APPEND INBOX (\\Flagged) {{{}}}\r\n", mail.len())).await;
    assert_eq!(client.hear("\r\n").await, "+ OK\r\n");
    client.say(&mail).await;
    client.say("\r\nd FETCH 1 BODY.PEEK[]\r\n").await;
    let answer = client.hear("d OK FETCH completed\r\n").await;
    let expected = format!(
        "* 1 EXISTS\r\n* 1 RECENT\r\nc OK [APPENDUID 1001 1] APPEND completed\r\n\
         * 1 FETCH (BODY[] {{{}}}\r\n{mail})\r\nd OK FETCH completed\r\n",
        mail.len()
    );
    assert!(answer == expected, "{} octets, not {}", answer.len(), expected.len());
    assert!(other.hear("EXISTS\r\n").await.ends_with("* 1 EXISTS\r\n"));
}

/// Nothing is stored of a message that does not come whole, and its client does not stay for ever.
#[tokio::test]
async fn a_message_that_breaks_off_is_not_stored() {
    let store = FakeStore::new("ann");
    let short = ImapTimeouts { write: Duration::from_millis(50), ..ImapTimeouts::default() };
    for (timeouts, end) in [(ImapTimeouts::default(), ""), (short, "* BYE Autologout; idle for too long\r\n")] {
        let (mut client, serving) = selected(&store, timeouts).await;
        client.say("c APPEND INBOX {1000000+}\r\nSubject: half\r\n").await;
        if end.is_empty() {
            drop(client);
        } else {
            assert_eq!(client.hear("\r\n").await, end);
        }
        tokio::time::timeout(Duration::from_secs(60), serving).await.expect("it ends").unwrap();
    }
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    assert_eq!(client.ask("c SEARCH ALL").await, "* SEARCH\r\nc OK SEARCH completed\r\n");
}

/// Decisions 46 and 47: what cannot be made durable is NO, and the session stays.
#[tokio::test]
async fn refused_changes_are_told_and_reading_goes_on() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    for (error, code) in [
        (MailstoreError::Unavailable("as the test wants it".into()), "[UNAVAILABLE]"),
        (MailstoreError::NoSpace, "[OVERQUOTA]"),
        (MailstoreError::Limit, "[LIMIT]"),
        (MailstoreError::NoPermission, "[NOPERM]"),
        (MailstoreError::Cannot("No reason"), "[CANNOT] No reason"),
    ] {
        store.refuse_changes(Some(error));
        for command in [
            "STORE 1 +FLAGS (\\Deleted)",
            "EXPUNGE",
            "UID EXPUNGE 1",
            "CLOSE",
            "COPY 1 Sent",
            "UID MOVE 1 Sent",
            "APPEND INBOX {3}",
            "APPEND INBOX {3+}\r\nabc",
            "CREATE new",
            "DELETE Sent",
            "RENAME Sent new",
            "SUBSCRIBE Sent",
        ] {
            let answer = client.ask(&format!("c {command}")).await;
            assert!(answer.starts_with(&format!("c NO {code}")), "{command}: {answer}");
        }
        // \Seen is not set, and that costs nobody the message.
        assert!(client.ask("d FETCH 2 BODY[1]").await.ends_with("See below.)\r\nd OK FETCH completed\r\n"));
    }
    store.refuse_changes(Some(MailstoreError::ReadOnly));
    assert!(client.ask("q1 SELECT INBOX").await.ends_with("q1 OK [READ-ONLY] SELECT completed\r\n"));
    store.refuse_changes(None);
    assert_eq!(client.ask("f SEARCH SEEN").await, "* SEARCH 1\r\nf OK SEARCH completed\r\n");
}

/// Decision 10: a message that is gone for the store is still there for a client that was not told.
#[tokio::test]
async fn changes_of_a_message_that_is_gone_do_nothing() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    store.expunge("INBOX", Uid::new(1).unwrap());
    assert_eq!(
        client.ask("c STORE 1 +FLAGS (\\Flagged)").await,
        "* 1 FETCH (FLAGS (\\Seen \\Recent))\r\nc OK [EXPUNGEISSUED] STORE completed\r\n"
    );
    assert_eq!(
        client.ask("d UID STORE 1 +FLAGS.SILENT (\\Flagged)").await,
        "* 1 EXPUNGE\r\n* 2 RECENT\r\nd OK UID STORE completed\r\n"
    );
}

/// Another session's change of a message is told, also with the answer to a silent STORE of that message.
#[tokio::test]
async fn a_silent_store_hides_no_change_by_others() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    store.set_flags("INBOX", Uid::new(1).unwrap(), MessageFlags::ANSWERED);
    assert_eq!(
        client.ask("c STORE 1:2 +FLAGS.SILENT (\\Draft)").await,
        "* 1 FETCH (UID 1 FLAGS (\\Answered \\Draft \\Recent))\r\nc OK STORE completed\r\n"
    );
}

/// Between two looks: the flags are what they were, and the MODSEQ is another.
#[tokio::test]
async fn condstore_hears_of_flags_set_and_unset() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    let toggle = || {
        store.set_flags("INBOX", Uid::new(1).unwrap(), MessageFlags::DRAFT);
        store.set_flags("INBOX", Uid::new(1).unwrap(), MessageFlags::SEEN);
    };
    store.set_flags("INBOX", Uid::new(1).unwrap(), MessageFlags::SEEN);
    client.ask("c NOOP").await;
    toggle();
    assert_eq!(client.ask("d NOOP").await, "d OK NOOP completed\r\n");
    client.ask("e ENABLE CONDSTORE").await;
    toggle();
    let heard = client.ask("f NOOP").await;
    assert!(heard.starts_with("* 1 FETCH (UID 1 FLAGS (\\Seen \\Recent) MODSEQ ("), "{heard}");
}

/// Decision 53: who asks for changes after the MODSEQ that was told hears of all that were not.
#[tokio::test]
async fn a_modseq_that_is_told_passes_over_no_change() {
    for command in ["EXPUNGE", "CLOSE"] {
        let store = common::store();
        let (mut client, _serving) = open(&store, ImapTimeouts::default());
        for command in ["a LOGIN ann secret", "b ENABLE QRESYNC", "c SELECT INBOX"] {
            client.ask(command).await;
        }
        client.ask("d UID STORE 2 +FLAGS.SILENT (\\Deleted)").await;
        store.expunge("INBOX", Uid::new(1).unwrap());
        // Delayed, and so is the number.
        let heard = client.ask("e FETCH 2 (UID)").await;
        assert!(!heard.contains("VANISHED") && !heard.contains("HIGHESTMODSEQ"), "{heard}");
        store.set_flags("INBOX", Uid::new(7).unwrap(), MessageFlags::FLAGGED);
        let mut heard = client.ask(&format!("f {command}")).await;
        let told: u64 = heard.split_once("[HIGHESTMODSEQ ").unwrap().1.split_once(']').unwrap().0.parse().unwrap();
        heard += &client.ask(&format!("g SELECT INBOX (QRESYNC (1001 {told}))")).await;
        for change in ["* VANISHED ", " FETCH (UID 7 FLAGS (\\Flagged"] {
            assert!(heard.contains(change), "{command}: {change}: {heard}");
        }
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off() {
    let store = FakeStore::new("ann");
    store.add("INBOX", FakeMessage::new("x".repeat(16 << 20)));
    let timeouts = ImapTimeouts { write: Duration::from_millis(100), ..ImapTimeouts::default() };
    let (mut client, serving) = selected(&store, timeouts).await;
    client.say("c FETCH 1 BODY[]\r\n").await;
    tokio::time::timeout(Duration::from_secs(60), serving).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn who_does_not_log_in_or_falls_asleep_hears_bye() {
    let short = Duration::from_millis(50);
    let store = common::store();
    let (mut client, _serving) = open(&store, ImapTimeouts { login: short, ..ImapTimeouts::default() });
    assert!(client.hear("* BYE No login for too long\r\n").await.ends_with("long\r\n"));
    let (mut client, _serving) = selected(&store, ImapTimeouts { idle: 20 * short, ..ImapTimeouts::default() }).await;
    assert!(client.hear("* BYE Autologout; idle for too long\r\n").await.ends_with("long\r\n"));
    // IDLE has no end of its own, and shows that it lives.
    let timeouts = ImapTimeouts { idle: short, still_here: short, ..ImapTimeouts::default() };
    let (mut client, _serving) = open(&store, timeouts);
    client.say("a LOGIN ann secret\r\nb IDLE\r\n").await;
    for _ in 0..3 {
        assert!(client.hear("* OK Still here\r\n").await.ends_with("here\r\n"));
    }
}

/// The password is right: a client must not ask for another one.
#[tokio::test]
async fn a_login_has_a_limited_number_of_sessions() {
    let (store, sessions) = (common::store(), LoginSessions::default());
    let mut open = Vec::new();
    // Each on a listener of its own.
    let session = || {
        let (ours, stream) = UnixStream::pair().unwrap();
        let config = CurrentImapConfig::new(ImapConfig::new("mail.example.org"));
        config.set_connections_per_login(2);
        let service = ImapService::new(Arc::new(store.clone()), Judge, config).with_sessions(sessions.clone());
        let phase = Arc::new(CurrentPhase::default());
        let connection = Connection { id: 1, stream: Stream::Unix(ours), peer: Peer::Unix, phase };
        let serving = tokio::spawn(async move { service.serve(connection).await });
        (Client { stream, heard: Vec::new() }, serving)
    };
    for _ in 0..2 {
        let (mut client, serving) = session();
        assert!(client.ask("t1 LOGIN ann secret").await.ends_with("] Logged in\r\n"));
        open.push((client, serving));
    }
    let (mut third, _serving) = session();
    let refused = third.ask("t1 LOGIN ann secret").await;
    assert!(refused.ends_with("t1 NO [LIMIT] Too many connections of this login\r\n"), "{refused}");
    let (mut first, serving) = open.pop().unwrap();
    first.ask("t2 LOGOUT").await;
    drop(first);
    serving.await.unwrap();
    assert!(third.ask("t2 LOGIN ann secret").await.ends_with("] Logged in\r\n"), "the session may try again");
}

#[tokio::test]
async fn a_search_without_end_is_given_up() {
    let store = common::store();
    let (mut client, _serving) =
        selected(&store, ImapTimeouts { search: Duration::ZERO, ..ImapTimeouts::default() }).await;
    assert_eq!(client.ask("c SEARCH BODY x").await, "c NO [LIMIT] The search takes too long\r\n");
    assert!(client.ask("d FETCH 1 UID").await.ends_with("d OK FETCH completed\r\n"));
}

/// TRYCREATE would have the client make a mailbox that is there.
#[tokio::test]
async fn a_copy_of_a_missing_file_asks_for_no_mailbox() {
    let store = common::store();
    let (mut client, _serving) = selected(&store, ImapTimeouts::default()).await;
    store.refuse_changes(Some(posthaste_mailstore::MailstoreError::Gone));
    for command in ["COPY 1 Sent", "UID MOVE 1 Sent"] {
        let told = client.ask(&format!("c {command}")).await;
        assert!(told.starts_with("c NO [UNAVAILABLE] "), "{told}");
    }
    let told = client.ask("c COPY 1 Nowhere").await;
    assert!(told.starts_with("c NO [TRYCREATE] "), "{told}");
}

#[tokio::test]
async fn a_sort_is_given_up_and_shows_that_it_lives() {
    let store = common::store();
    let timeouts = ImapTimeouts { order: Duration::ZERO, ..ImapTimeouts::default() };
    let (mut client, _serving) = selected(&store, timeouts).await;
    assert_eq!(client.ask("c SORT (DATE) UTF-8 ALL").await, "c NO [LIMIT] That is too much to sort\r\n");
    assert!(client.ask("d SEARCH ALL").await.ends_with("d OK SEARCH completed\r\n"));
    let timeouts = ImapTimeouts { progress: Duration::ZERO, search: Duration::ZERO, ..ImapTimeouts::default() };
    let (mut client, _serving) = selected(&store, timeouts).await;
    let told = client.ask("c THREAD REFERENCES UTF-8 ALL").await;
    assert!(told.starts_with("* OK [INPROGRESS] "), "{told}");
    assert!(told.ends_with("* THREAD (2)(3)(1)\r\nc OK THREAD completed\r\n"), "{told}");
}

/// All sessions of a service share the memory for it.
#[tokio::test]
async fn a_sort_of_too_much_is_refused() {
    let store = FakeStore::new("ann");
    for number in 0..2000 {
        store.add("INBOX", FakeMessage::new(format!("Subject: {}{number}\r\n\r\n", "x".repeat(150))));
    }
    let mut config = ImapConfig::new("mail.example.org");
    config.limits.order_bytes = 100_000;
    let service = ImapService::new(Arc::new(store.clone()), Judge, config);
    let (ours, stream) = UnixStream::pair().unwrap();
    let phase = Arc::new(CurrentPhase::default());
    let connection = Connection { id: 1, stream: Stream::Unix(ours), peer: Peer::Unix, phase };
    let _serving = tokio::spawn(async move { service.serve(connection).await });
    let mut client = Client { stream, heard: Vec::new() };
    client.ask("a LOGIN ann secret").await;
    client.ask("b SELECT INBOX").await;
    for command in ["SORT (SUBJECT) UTF-8 ALL", "THREAD REFERENCES UTF-8 ALL"] {
        let told = client.ask(&format!("c {command}")).await;
        assert_eq!(told, "c NO [LIMIT] That is too much to sort\r\n");
    }
    let told = client.ask("d SORT (REVERSE ARRIVAL) UTF-8 1:100").await;
    assert!(told.starts_with("* SORT 1 2 3 4 "), "{told}");
}

#[tokio::test]
async fn a_shutdown_says_bye_to_idle_sessions() {
    let mut listeners = Listeners::new(GateLimits::default()).unwrap();
    let (bound, ()) = posthaste_net::bind(vec![(ListenPlace::Tcp("127.0.0.1:0".into()), ())], &GateLimits::default())
        .unwrap()
        .remove(0);
    let address = bound.local_addr().unwrap();
    let service = ImapService::new(Arc::new(common::store()), Judge, ImapConfig::new("mail.example.org"));
    listeners.serve(bound.listen().unwrap(), &Admission::new(Rules::default()), service);
    let mut clients = Vec::new();
    for command in ["b NOOP", "b IDLE"] {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut client = Client { stream, heard: Vec::new() };
        client.ask("a LOGIN ann secret").await;
        client.say(&format!("{command}\r\n")).await;
        client.hear(if command == "b IDLE" { "+ idling\r\n" } else { "completed\r\n" }).await;
        clients.push(client);
    }
    let ended = tokio::spawn(listeners.shutdown(Duration::from_secs(30)));
    for mut client in clients {
        assert_eq!(client.hear("\r\n").await, "* BYE Server is shutting down\r\n");
        assert_eq!(client.hear("\r\n").await, "");
    }
    assert!(ended.await.unwrap(), "a session is left over");
}

/// Who may not connect is told so, and a proxy whose header is broken is not a client.
#[tokio::test]
async fn refused_connections_hear_the_right_reason() {
    let networks = |text: &str| vec![text.parse().unwrap()];
    let elsewhere = Rules { allow: Some(networks("192.0.2.0/24")), ..Rules::default() };
    let proxied = Rules { proxies: Some(Proxies::new(networks("127.0.0.1/32"))), ..Rules::default() };
    for (rules, told) in [(elsewhere, "* BYE Clients of your address may not connect here\r\n"), (proxied, "")] {
        let mut listeners = Listeners::new(GateLimits::default()).unwrap();
        let places = vec![(ListenPlace::Tcp("127.0.0.1:0".into()), ())];
        let (bound, ()) = posthaste_net::bind(places, &GateLimits::default()).unwrap().remove(0);
        let address = bound.local_addr().unwrap();
        let service = ImapService::new(Arc::new(common::store()), Judge, ImapConfig::new("mail.example.org"));
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
        let (mut client, _serving) = open(&common::store(), ImapTimeouts::default());
        assert!(client.hear("\r\n").await.contains(" AUTH=SCRAM-SHA-256 AUTH=PLAIN]"));
        let mut scram = ScramClient::new("user", password, None, posthaste_scram::nonce().unwrap());
        client.say(&format!("a AUTHENTICATE SCRAM-SHA-256 {}\r\n", BASE64.encode(scram.first()))).await;
        let last = scram.last(&challenge(&client.hear("\r\n").await)).unwrap();
        client.say(&format!("{}\r\n", BASE64.encode(last))).await;
        let answer = client.hear("\r\n").await;
        if is_let_in {
            assert!(scram.is_shown(&challenge(&answer)), "{answer}");
            client.say("\r\n").await;
            assert!(client.hear("\r\n").await.starts_with("a OK [CAPABILITY "));
            assert!(client.ask("b SELECT INBOX").await.contains("b OK "));
        } else {
            assert_eq!(answer, "a NO [AUTHENTICATIONFAILED] Name or password is wrong\r\n");
        }
    }
}

/// Text of a challenge.
fn challenge(line: &str) -> String {
    let base64 = line.strip_prefix("+ ").and_then(|line| line.strip_suffix("\r\n")).expect("a challenge");
    String::from_utf8(BASE64.decode(base64).unwrap()).unwrap()
}
