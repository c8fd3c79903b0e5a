//! Clients while the spool's disk hangs or its ring is nearly full, the checks of each stage, and the outcomes of messages.

use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_delivery::local::{LocalConfig, LocalDelivery};
use posthaste_fsops::{Faults, Machine};
use posthaste_smtp::driver::{Client, RunningServer, Server};
use posthaste_smtp::{Address, MailFrom, Protocol, RcptTo, Reply, client, server};
use posthaste_spool::{Batch, Body, Entry, PAUSE_MAX};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::config::start_files::RelayFiles;
use crate::lifecycle::Service;
use crate::receive::destinations::Destinations;
use crate::receive::handler::Receiver;
use crate::receive::handler::receiver::{AtRcpt, Check, CheckList, Checking, ReadMessage, Stop};
use crate::receive::handler::recipient::{DirectoryLookup, PlaceBounds};
use crate::receive::logins::Session;
use crate::receive::settings::Settings;
use crate::services::relay::RelayService;
use posthaste_config::Config;

/// Patience of these tests: only a hang takes longer.
const LONG: Duration = Duration::from_secs(60);
/// Longer than a disk takes in memory; a message that takes longer all the same is sent again.
const PATIENCE: Duration = Duration::from_millis(100);

/// Sends one message.
async fn send(server: &RunningServer, protocol: Protocol) -> Reply {
    send_to(server, protocol, "b@example.org").await
}

async fn send_to(server: &RunningServer, protocol: Protocol, rcpt: &str) -> Reply {
    let config = client::Config { protocol, ..client::Config::new("c.example") };
    let address = server.local_addr_for(protocol).expect("it listens");
    let mut client = Client::builder("c.example").config(config).connect(address).await.expect("connected");
    send_by(&mut client, "a@example.net", rcpt, &format!("by {protocol:?}")).await
}

async fn send_by(client: &mut Client, from: &str, to: &str, subject: &str) -> Reply {
    let (mail, rcpt) = (from.parse::<Address>().unwrap(), to.parse::<Address>().unwrap());
    let text = format!("Subject: {subject}\r\n\r\nx\r\n");
    let outcome = client.send(MailFrom::new(mail), vec![RcptTo::new(rcpt)], vec![text.into()]).await;
    outcome.expect("sent").recipients.remove(0).reply.into()
}

fn messages(mail: &Path, protocol: Protocol) -> usize {
    let Ok(entries) = std::fs::read_dir(mail.join("example.org/b/Maildir/new")) else { return 0 };
    let subject = format!("Subject: by {protocol:?}\n");
    let texts = entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    texts.filter(|text| text.contains(&subject)).count()
}

/// A store with a ring of four segments of 4 MiB, and a server in front of it that takes mail for example.org and sends the rest on.
async fn serve(
    machine: &Machine,
    patience: Duration,
    has_keeper: bool,
) -> (LocalDelivery, RunningServer, RelayService) {
    serve_checked(machine, patience, has_keeper, super::checks::all()).await
}

async fn serve_checked(
    machine: &Machine,
    patience: Duration,
    has_keeper: bool,
    checks: CheckList,
) -> (LocalDelivery, RunningServer, RelayService) {
    let mut config = LocalConfig::new(machine.path().join("spool"), machine.path().join("mail"));
    (config.spool.ring.segment_bytes, config.spool.ring.max_segments) = (4 << 20, 4);
    config.spool.keeper = has_keeper;
    let (store, _) = LocalDelivery::open(config).expect("opens");
    let listeners = "[[listener]]\naddress = \"127.0.0.1:0\"\n".repeat(2);
    let relay = "[relay]\nnetworks = [\"127.0.0.1\"]\n[dns]\nservers = [\"127.0.0.1:9\"]\n";
    let config = format!("{listeners}[[domain]]\nname = \"example.org\"\nusers = \"any\"\n{relay}");
    let mut config = Config::parse(Path::new("x"), &config).expect("a configuration");
    config.storage.data = machine.path().to_owned();
    let receiver = Receiver::with_patience(
        Settings::new(&config, config.directory().into(), Default::default()),
        Destinations::new(store.clone(), None, None),
        patience,
    )
    .with_checks(checks);
    let files = RelayFiles::read(&config).expect("nothing is missing");
    let relay = RelayService::start(&config, files, receiver.clone()).await.expect("a relay");
    let lmtp = server::Config { protocol: Protocol::Lmtp, ..server::Config::new("mx.example.org") };
    let builder = Server::builder().listen("127.0.0.1:0").config(lmtp).listen("127.0.0.1:0");
    (store, builder.start(receiver).await.expect("started"), relay)
}

#[tokio::test]
async fn mail_held_by_a_hanging_disk_is_refused_and_later_comes_once() {
    let machine = Machine::new().expect("a machine");
    let mail = machine.path().join("mail");
    let (store, server, relay) = serve(&machine, PATIENCE, true).await;
    for protocol in [Protocol::Smtp, Protocol::Lmtp] {
        machine.set_faults(Faults { hang_syncs: Some(Vec::new()), ..Faults::default() });
        let reply = send(&server, protocol).await.to_string();
        assert_eq!(reply, "452 4.3.1 The storage is too slow, try again later");
        machine.set_faults(Faults::default());
        let deadline = Instant::now() + LONG;
        while !send(&server, protocol).await.is_positive() {
            assert!(Instant::now() < deadline, "the disk works again");
        }
    }
    assert!(server.shutdown(LONG).await);
    Box::new(relay).stop(tokio::time::Instant::now() + LONG).await.expect("ended");
    // Everything that was accepted is visible after that.
    store.shutdown().await;
    for protocol in [Protocol::Smtp, Protocol::Lmtp] {
        assert_eq!(messages(&mail, protocol), 1, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_message_waits_while_the_ring_is_nearly_full() {
    let machine = Machine::new().expect("a machine");
    let (store, server, relay) = serve(&machine, LONG, false).await;
    let spool = store.intake().spool().clone();
    let other = spool.stream("nobody takes it").expect("a stream");
    while store.intake().pause(false) < PAUSE_MAX / 2 {
        let (tell, told) = tokio::sync::oneshot::channel();
        let payload = vec![b'x'; 60 << 10].into();
        let batch = Batch { entries: vec![Entry { stream: other, needs_body: false, payload }], body: Body::None };
        spool.append(batch, Box::new(|outcome| drop(tell.send(outcome))));
        told.await.expect("an answer").expect("the ring is not full yet");
    }
    let (begun, pause) = (Instant::now(), store.intake().pause(false));
    assert!(send(&server, Protocol::Smtp).await.is_positive());
    assert!(begun.elapsed() >= pause && pause <= PAUSE_MAX, "{:?} of {pause:?}", begun.elapsed());
    drop(spool);
    assert!(server.shutdown(LONG).await);
    Box::new(relay).stop(tokio::time::Instant::now() + LONG).await.expect("ended");
    store.shutdown().await;
    assert_eq!(messages(&machine.path().join("mail"), Protocol::Smtp), 1);
}

#[tokio::test]
async fn a_message_for_another_host_waits_while_the_queue_asks_for_it() {
    let machine = Machine::new().expect("a machine");
    let (store, server, relay) = serve(&machine, LONG, true).await;
    store.intake().spool().pressure().set_queue(1.0);
    let begun = Instant::now();
    assert!(send_to(&server, Protocol::Smtp, "c@other.example").await.is_positive());
    assert!(begun.elapsed() >= PAUSE_MAX, "{:?}", begun.elapsed());
    assert_eq!(store.intake().pause(false), Duration::ZERO);
    assert!(server.shutdown(LONG).await);
    Box::new(relay).stop(tokio::time::Instant::now() + LONG).await.expect("ended");
    store.shutdown().await;
}

/// Says something at each stage, of clients and addresses with certain names.
struct Probe;

impl Check for Probe {
    fn hello<'a>(&'a self, session: &'a Session) -> Checking<'a> {
        Checking::Done(match session.helo.as_deref() {
            Some("unwanted.example") => Err(Reply::new(450, "4.7.1", "Not now").into()),
            _ => Ok(()),
        })
    }

    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        let local = at.rcpt.forward_path.to_string();
        match local.as_str() {
            "<moved@example.org>" => at.rcpt = Cow::Owned(RcptTo::new("b@example.org".parse::<Address>().unwrap())),
            "<gone@example.org>" => return Checking::Waiting(Box::pin(async { Err(refused("has gone").into()) })),
            _ => {}
        }
        Checking::Done(Ok(()))
    }

    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        match message.envelope.mail.reverse_path.to_string().as_str() {
            "<spam@example.net>" => Checking::Done(Err(Stop::because(refused("spam"), "it is spam".to_owned()))),
            "<late@example.net>" => Checking::Waiting(Box::pin(async {
                LATE.begun.notify_one();
                LATE.goes_on.notified().await;
                Ok(())
            })),
            "<slow@example.net>" => Checking::Waiting(Box::pin(std::future::pending())),
            "<copied@example.net>" => {
                let copy = RcptTo::new("b@example.org".parse::<Address>().unwrap());
                Checking::Done(message.receiver.add_copy(message.transaction, &copy).map_err(Stop::from))
            }
            _ => Checking::Done(Ok(())),
        }
    }
}

/// A check that waits until the test lets it go on.
struct Late {
    begun: Notify,
    goes_on: Notify,
}

static LATE: Late = Late { begun: Notify::const_new(), goes_on: Notify::const_new() };

fn refused(text: &'static str) -> Reply {
    Reply::new(550, "5.7.1", text)
}

/// Lets nobody in.
struct Closed;

impl Check for Closed {
    fn connect<'a>(&'a self, _: &'a Session) -> Checking<'a> {
        Checking::Done(Err(Reply::new(554, "5.7.1", "Closed").into()))
    }
}

async fn end(machine: &Machine, (store, server, relay): (LocalDelivery, RunningServer, RelayService)) -> usize {
    assert!(server.shutdown(LONG).await);
    Box::new(relay).stop(tokio::time::Instant::now() + LONG).await.expect("ended");
    store.shutdown().await;
    messages(&machine.path().join("mail"), Protocol::Smtp)
}

#[tokio::test]
async fn a_check_refuses_defers_and_changes_at_each_stage() {
    static CHECKS: [&dyn Check; 3] = [&Probe, &DirectoryLookup, &PlaceBounds];
    let machine = Machine::new().expect("a machine");
    let checks = CheckList { checks: &CHECKS, patience: LONG };
    let served = serve_checked(&machine, LONG, true, checks).await;
    let address = served.1.local_addr_for(Protocol::Smtp).expect("it listens");
    let unwanted = Client::builder("unwanted.example").connect(address).await;
    let told = unwanted.expect_err("deferred").to_string();
    assert!(told.contains("450 4.7.1 Not now"), "{told}");
    let mut client = Client::builder("c.example").connect(address).await.expect("connected");
    let cases = [
        ("a@example.net", "gone@example.org", "550 5.7.1 has gone"),
        ("spam@example.net", "b@example.org", "550 5.7.1 spam"),
        ("a@example.net", "moved@example.org", "250 2."),
        ("copied@example.net", "c@example.org", "250 2."),
    ];
    for (from, to, expected) in cases {
        let reply = send_by(&mut client, from, to, "by Smtp").await.to_string();
        assert!(reply.starts_with(expected), "{from} to {to}: {reply}");
    }
    drop(client);
    // One that was sent to another address, and one copy.
    assert_eq!(end(&machine, served).await, 2);
}

#[tokio::test]
async fn a_check_at_connect_is_told_in_place_of_the_greeting() {
    static CHECKS: [&dyn Check; 1] = [&Closed];
    let machine = Machine::new().expect("a machine");
    let checks = CheckList { checks: &CHECKS, patience: LONG };
    let served = serve_checked(&machine, LONG, true, checks).await;
    let address = served.1.local_addr_for(Protocol::Smtp).expect("it listens");
    let told = Client::builder("c.example").connect(address).await.expect_err("refused").to_string();
    assert!(told.contains("554 5.7.1 Closed"), "{told}");
    assert_eq!(end(&machine, served).await, 0);
}

#[tokio::test]
async fn checks_that_take_too_long_defer_the_message() {
    static CHECKS: [&dyn Check; 2] = [&DirectoryLookup, &Probe];
    let machine = Machine::new().expect("a machine");
    let checks = CheckList { checks: &CHECKS, patience: Duration::from_millis(20) };
    let served = serve_checked(&machine, LONG, true, checks).await;
    let address = served.1.local_addr_for(Protocol::Smtp).expect("it listens");
    let mut client = Client::builder("c.example").connect(address).await.expect("connected");
    let reply = send_by(&mut client, "slow@example.net", "b@example.org", "by Smtp").await.to_string();
    assert_eq!(reply, "451 4.3.0 The message could not be checked in time, try again later");
    assert!(send_by(&mut client, "a@example.net", "b@example.org", "by Smtp").await.is_positive());
    drop(client);
    assert_eq!(end(&machine, served).await, 1);
}

/// Lines of a client that ends with the final dot, and what it says after that.
const LATE_MESSAGE: [&str; 6] = [
    "EHLO c.example\r\n",
    "MAIL FROM:<late@example.net>\r\n",
    "RCPT TO:<b@example.org>\r\n",
    "DATA\r\n",
    "Subject: by Smtp\r\n\r\nx\r\n",
    ".\r\n",
];

#[tokio::test]
async fn a_message_whose_client_hung_up_during_the_checks_is_not_kept() {
    static CHECKS: [&dyn Check; 2] = [&DirectoryLookup, &Probe];
    let machine = Machine::new().expect("a machine");
    let served = serve_checked(&machine, LONG, true, CheckList { checks: &CHECKS, patience: LONG }).await;
    let address = served.1.local_addr_for(Protocol::Smtp).expect("it listens");
    for (last, is_kept) in [("", false), ("QUIT\r\n", true)] {
        let mut client = BufReader::new(TcpStream::connect(address).await.expect("connected"));
        let mut line = String::new();
        client.read_line(&mut line).await.expect("a greeting");
        for said in LATE_MESSAGE {
            client.write_all(said.as_bytes()).await.expect("it takes more");
            let is_of_body = said.starts_with("Subject") || said == ".\r\n";
            if is_of_body {
                continue;
            }
            line.clear();
            while line.lines().last().is_none_or(|last| last.as_bytes().get(3) != Some(&b' ')) {
                client.read_line(&mut line).await.expect("a reply");
            }
        }
        client.write_all(last.as_bytes()).await.expect("it takes more");
        LATE.begun.notified().await;
        // As a script does that reads the replies at the end, and as one that has given up.
        client.shutdown().await.expect("closed");
        // The reactor sees that before the check goes on.
        tokio::task::yield_now().await;
        LATE.goes_on.notify_one();
        let mut replies = String::new();
        client.read_to_string(&mut replies).await.expect("the end");
        assert_eq!(replies.contains("250 2.0.0 Kept"), is_kept, "{replies}");
    }
    assert_eq!(end(&machine, served).await, 1);
}
