//! The sink over real sockets: every rule at every stage, stores, account, TLS, bounds.

mod client;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Client;
use posthaste_loadgen::account::signatures;
use posthaste_loadgen::sink::{Certificate, Options, RuleFile, Sink, StoreKind, TlsMode};
use posthaste_loadgen::stamp;
use posthaste_maildir::{Maildir, Subdir, UniqueName};
use posthaste_smtp::Protocol;

const MESSAGE: &str = "From: a@client.example\r\nSubject: x\r\n\r\nHello\r\n";

fn options() -> Options {
    Options { listen: "127.0.0.1:0".into(), threads: 2, ..Options::default() }
}

fn with_rules(rules: &str) -> Sink {
    start(Options { rules: RuleFile::parse(rules).expect("rules"), ..options() })
}

fn start(options: Options) -> Sink {
    Sink::start(options).expect("the sink starts")
}

#[test]
fn everything_is_taken_and_counted() {
    let sink = start(options());
    let clients: Vec<_> = (0..8).map(|_| sink.local_addr()).collect();
    std::thread::scope(|scope| {
        for address in clients {
            scope.spawn(move || {
                let mut client = Client::hello(address);
                for _ in 0..20 {
                    assert_eq!(client.send("a@client.example", &["b@x.example", "c@x.example"], MESSAGE), 250);
                }
                // A whole transaction at once, and one octet at a time.
                let commands = "MAIL FROM:<>\r\nRCPT TO:<b@x.example>\r\nDATA\r\n";
                client.write(commands);
                assert_eq!([client.code(), client.code(), client.code()], [250, 250, 354]);
                for octet in format!("{MESSAGE}..\r\n.\r\n").as_bytes() {
                    client.stream.write_all(&[*octet]).unwrap();
                }
                assert_eq!(client.code(), 250);
                assert_eq!(client.say("QUIT"), 221);
                assert!(client.is_closed());
            });
        }
    });
    let counts = sink.stop().expect("ends well").counts;
    assert_eq!((counts.connections, counts.messages, counts.recipients), (8, 8 * 21, 8 * 41));
    assert_eq!(counts.octets, 8 * (21 * MESSAGE.len() as u64 + 3));
    assert_eq!((counts.aborted, counts.failed, counts.refused()), (0, 0, 0));
}

#[test]
fn the_most_connections_at_a_time_are_told() {
    let sink = start(options());
    let three: Vec<Client> = (0..3).map(|_| Client::hello(sink.local_addr())).collect();
    drop(three);
    let begun = Instant::now();
    while sink.counts().open_connections > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", sink.counts());
        std::thread::sleep(Duration::from_millis(5));
    }
    let _one = Client::hello(sink.local_addr());
    let counts = sink.stop().expect("ends well").counts;
    assert_eq!((counts.connections, counts.open_connections_max), (4, 3));
}

/// Plays one transaction and tells the code of each stage until one is no yes; 0 for a closed connection.
fn stages(sink: &Sink) -> Vec<u16> {
    let mut client = Client::connect(sink.local_addr());
    let mut codes = vec![client.code()];
    for line in ["EHLO c.example", "MAIL FROM:<a@c.example>", "RCPT TO:<b@x.example>", "DATA", "x: y\r\n\r\n."] {
        if codes.last().is_some_and(|code| !(200..400).contains(code)) {
            break;
        }
        codes.push(client.say(line));
    }
    codes
}

#[test]
fn every_stage_can_be_refused_deferred_and_dropped() {
    let good = [220, 250, 250, 250, 354, 250];
    for (index, stage) in ["connect", "ehlo", "mail", "rcpt", "data", "end-of-data"].into_iter().enumerate() {
        for (kind, class) in [("tempfail", 4), ("permfail", 5), ("drop", 0)] {
            let sink = with_rules(&format!("[default]\n{stage}.{kind} = 100"));
            let codes = stages(&sink);
            assert_eq!(codes[..index], good[..index], "{kind} at {stage}");
            assert_eq!(codes[index] / 100, class, "{kind} at {stage}: {codes:?}");
            let counts = sink.stop().expect("ends well").counts;
            assert_eq!(
                (counts.messages, counts.dropped, counts.refused()),
                (0, u64::from(class == 0), u64::from(class != 0))
            );
            if class != 0 {
                assert_eq!(counts.refusals[stage][&codes[index]], 1);
            }
        }
    }
    assert_eq!(stages(&start(options())), good);
}

#[test]
fn a_drop_takes_no_answer_that_was_given_before() {
    let sink = with_rules("[default]\ndata.drop = 100");
    let mut client = Client::hello(sink.local_addr());
    client.write("MAIL FROM:<a@c.example>\r\nRCPT TO:<b@x.example>\r\nDATA\r\n");
    assert_eq!([client.code(), client.code(), client.code()], [250, 250, 0]);
}

#[test]
fn percentages_are_exact_over_ten_thousand_recipients() {
    let sink = with_rules(
        "seed = 3\n[default]\nrcpt.tempfail = 5\nrcpt.permfail = 10\n\
         [domain.\"busy.example\"]\nrcpt = { tempfail = 50, tempfail-replies = [\"452 4.2.2 Full\"] }",
    );
    let mut codes = std::collections::BTreeMap::<u16, u32>::new();
    let mut client = Client::hello(sink.local_addr());
    for round in 0..20 {
        let domain = if round % 2 == 0 { "x.example" } else { "busy.example" };
        assert_eq!(client.say("MAIL FROM:<a@c.example>"), 250);
        for batch in 0..10 {
            let lines: Vec<_> = (0..100).map(|n| format!("RCPT TO:<u{batch}-{n}@{domain}>\r\n")).collect();
            client.write(&lines.concat());
            for _ in 0..100 {
                let code = client.code();
                let class = if domain == "busy.example" { code } else { code / 100 };
                *codes.entry(class).or_default() += 1;
            }
        }
        assert_eq!(client.say("RSET"), 250);
    }
    // Two domains, ten thousand recipients each.
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), [(2, 8500), (4, 500), (5, 1000), (250, 5000), (452, 5000)]);
}

#[test]
fn recipients_order_their_answer() {
    let sink = with_rules("[default]\nrcpt.permfail = 100");
    let mut client = Client::hello(sink.local_addr());
    assert_eq!(client.say("MAIL FROM:<a@c.example>"), 250);
    for (recipient, reply) in [
        ("tempfail@x.example", "450 4.0.0 tempfail requested"),
        ("permfail@x.example", "550 5.0.0 permfail requested"),
        ("450-not-now@x.example", "450 you said 450-not-now"),
        ("250-yes@x.example", "250 2.1.5 Recipient OK"),
        ("421-bye@x.example", "421 you said 421-bye"),
    ] {
        client.write(&format!("RCPT TO:<{recipient}>\r\n"));
        assert_eq!(client.reply().unwrap(), reply);
    }
    assert!(client.is_closed());
}

#[test]
fn what_a_recipient_orders_is_said_whatever_the_rules_say() {
    let sink = with_rules(
        "greylist = { wait = \"1h\" }\n[default]\nrcpt.tempfail = 100\ndata.drop = 100\nend-of-data.permfail = 100",
    );
    let mut client = Client::hello(sink.local_addr());
    for (recipient, rcpt, end) in [("250-yes", 250, 250), ("552-eod-large", 250, 552), ("451-eod-later", 250, 451)] {
        assert_eq!(client.say("MAIL FROM:<a@c.example>"), 250);
        assert_eq!(client.say(&format!("RCPT TO:<{recipient}@x.example>")), rcpt, "{recipient}");
        assert_eq!(client.say("DATA"), 354, "{recipient}");
        assert_eq!(client.say("x: y\r\n\r\n."), end, "{recipient}");
    }
    assert_eq!(client.say("MAIL FROM:<a@c.example>"), 250);
    for (recipient, code) in [("tempfail", 450), ("permfail", 550), ("554-no", 554), ("421-bye", 421)] {
        client.write(&format!("RCPT TO:<{recipient}@x.example>\r\n"));
        assert_eq!(client.code(), code, "{recipient}");
    }
    assert_eq!(sink.stop().unwrap().counts.greylisted, 0);
}

#[test]
fn lmtp_answers_each_recipient_by_its_own_rule() {
    let rules = "[domain.\"full.example\"]\nend-of-data = { tempfail = 100, tempfail-replies = [\"452 4.2.2 Full\"] }";
    let sink = start(Options { protocol: Protocol::Lmtp, rules: RuleFile::parse(rules).unwrap(), ..options() });
    let mut client = Client::connect(sink.local_addr());
    assert_eq!(client.code(), 220);
    assert_eq!(client.say("LHLO c.example"), 250);
    client.write("MAIL FROM:<a@c.example>\r\nRCPT TO:<a@x.example>\r\nRCPT TO:<b@full.example>\r\n");
    client.write("RCPT TO:<552-eod-large@x.example>\r\nDATA\r\n");
    assert_eq!((0..5).map(|_| client.code()).collect::<Vec<_>>(), [250, 250, 250, 250, 354]);
    client.write("x: y\r\n\r\n.\r\n");
    assert_eq!((0..3).map(|_| client.code()).collect::<Vec<_>>(), [250, 452, 552]);
    let counts = sink.stop().unwrap().counts;
    assert_eq!((counts.messages, counts.refused()), (1, 2));
}

#[test]
fn a_delay_holds_the_answer_back_and_loses_nothing_behind_it() {
    let sink = with_rules("[default]\nmail.delay = \"150ms\"\nend-of-data.delay = [\"100ms\", \"120ms\"]");
    let mut client = Client::hello(sink.local_addr());
    let started = Instant::now();
    // All at once: what follows a delayed answer waits for it and is then read.
    client.write("MAIL FROM:<a@c.example>\r\nRCPT TO:<b@x.example>\r\nBDAT 4 LAST\r\na\r\n\r");
    assert_eq!([client.code(), client.code()], [250, 250]);
    assert!(started.elapsed() >= Duration::from_millis(150), "{:?}", started.elapsed());
    assert_eq!(client.code(), 550, "a bare CR at the end");
    assert_eq!(client.send("a@c.example", &["b@x.example"], MESSAGE), 250);
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
}

#[test]
fn slow_reads_take_their_time() {
    let sink = with_rules("slow-read = { octets = 512, pause = \"20ms\" }");
    let mut client = Client::hello(sink.local_addr());
    let message = format!("x: y\r\n\r\n{}\r\n", "z".repeat(5000));
    let started = Instant::now();
    assert_eq!(client.send("a@c.example", &["b@x.example"], &message), 250);
    // Ten bites at least.
    assert!(started.elapsed() >= Duration::from_millis(200), "{:?}", started.elapsed());
}

#[test]
fn greylisting_lets_in_whoever_comes_back() {
    let sink = with_rules("greylist = { wait = \"300ms\" }");
    let mut client = Client::hello(sink.local_addr());
    let started = Instant::now();
    assert_eq!(client.say("MAIL FROM:<a@c.example>"), 250);
    assert_eq!(client.say("RCPT TO:<b@x.example>"), 450);
    while client.say("RCPT TO:<b@x.example>") != 250 {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(client.say("RCPT TO:<other@x.example>"), 450);
    let counts = sink.stop().unwrap().counts;
    assert_eq!(counts.greylisted, counts.refusals["rcpt"][&450]);
}

/// Two messages, the second with what an mbox has to quote, stored as `kind`.
fn stored(kind: StoreKind) -> [String; 2] {
    let messages = [MESSAGE.to_owned(), "x: y\r\n\r\nFrom me\r\n>From you\r\n.dot\r\nend\r\n".to_owned()];
    let sink = start(Options { store: Some(kind), ..options() });
    let mut client = Client::hello(sink.local_addr());
    for message in &messages {
        let stuffed = message.replace("\r\n.", "\r\n..");
        assert_eq!(client.send("a@c.example", &["b@x.example", "c@x.example"], &stuffed), 250);
    }
    assert_eq!(sink.stop().unwrap().counts.messages, 2);
    messages
}

#[test]
fn a_maildir_holds_what_came() {
    let dir = tempfile::tempdir().unwrap();
    let messages = stored(StoreKind::Maildir(dir.path().join("mail")));
    let maildir = Maildir::open(dir.path().join("mail")).unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir.path().join("mail/new")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let bytes = maildir.read(Subdir::New, &name).unwrap();
        let name = UniqueName::parse(&name).unwrap();
        assert_eq!(name.disk_size(), Some(bytes.len() as u64));
        let crlf = String::from_utf8(bytes).unwrap().replace('\n', "\r\n");
        assert_eq!(name.wire_size(), Some(crlf.len() as u64));
        found.push(crlf);
    }
    found.sort();
    assert_eq!(found, messages);
}

#[test]
fn an_mbox_holds_what_came_with_from_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mbox");
    let messages = stored(StoreKind::Mbox(file.clone()));
    let text = std::fs::read_to_string(file).unwrap();
    let entries: Vec<_> = text.split("From a@c.example ").skip(1).collect();
    assert_eq!(entries.len(), 2);
    for (entry, message) in entries.iter().zip(&messages) {
        let (_, stored) = entry.split_once('\n').unwrap();
        let quoted = message.replace("\r\n", "\n").replace("\n>From", "\n>>From").replace("\nFrom me", "\n>From me");
        assert_eq!(stored, quoted + "\n");
    }
}

#[test]
fn a_directory_holds_what_came_and_who_for() {
    let dir = tempfile::tempdir().unwrap();
    let messages = stored(StoreKind::Dir(dir.path().to_owned()));
    for (number, message) in messages.iter().enumerate() {
        let file = dir.path().join(format!("{:08}.eml", number + 1));
        assert_eq!(&std::fs::read_to_string(file).unwrap(), message);
    }
    let index = std::fs::read_to_string(dir.path().join("index.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(index.lines().nth(1).unwrap()).unwrap();
    let expected = serde_json::json!({
        "file": "00000002.eml", "from": "a@c.example", "to": ["b@x.example", "c@x.example"]
    });
    assert_eq!(line, expected);
}

#[test]
fn a_message_that_cannot_be_stored_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("out");
    let sink = start(Options { store: Some(StoreKind::Dir(place.clone())), ..options() });
    std::fs::remove_dir_all(&place).unwrap();
    let mut client = Client::hello(sink.local_addr());
    assert_eq!(client.send("a@c.example", &["b@x.example"], MESSAGE), 451);
    let counts = sink.stop().unwrap().counts;
    assert_eq!((counts.messages, counts.store_errors), (0, 1));
}

#[test]
fn the_account_has_a_line_for_each_accepted_stamped_message() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("account.jsonl");
    let sink = start(Options { account: Some(file.clone()), ..options() });
    let stamped = |number, rest: &str| stamp::field(stamp::Id { run: 0xfeed, number }, rest.as_bytes()) + rest;
    let large = format!("x: y\r\n\r\n{}", "An ordinary line of text.\r\n".repeat(20_000));
    let mut client = Client::hello(sink.local_addr());
    for (message, recipient, code) in [
        (stamped(1, MESSAGE), "b@x.example", 250),
        (MESSAGE.to_owned(), "b@x.example", 250),
        (stamped(2, MESSAGE).replace("Hello", "Jello"), "b@x.example", 250),
        (stamped(3, MESSAGE), "554-eod-no@x.example", 554),
        (format!("Received: by x\r\n{}", stamped(4, &large)), "b@x.example", 250),
        (format!("DKIM-Signature: v=1\r\n{}", stamped(5, MESSAGE)), "b@x.example", 250),
    ] {
        assert_eq!(client.send("a@c.example", &[recipient], &message), code);
    }
    sink.flush().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let line = |number, intact| format!("{{\"id\":\"000000000000feed.{number}\",\"intact\":{intact}}}\n");
    let signed = line(5, true).replace('}', ",\"signatures\":1}");
    assert_eq!(text, [line(1, true), line(2, false), line(4, true), signed].concat());
    let counts = sink.stop().unwrap().counts;
    assert_eq!((counts.messages, counts.stamped, counts.altered), (5, 4, 1));
    assert_eq!(signatures(0xfeed, &file).unwrap(), [(0, 3), (1, 1)].into());
}

/// A client's TLS that trusts `certificate` alone.
fn trusting(certificate: &Path) -> Arc<rustls::ClientConfig> {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

#[test]
fn tls_from_the_start_or_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["mx.example".to_owned()]).unwrap();
    let (chain, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let certificate = Certificate::Files { chain: chain.clone(), key };
    for tls in [TlsMode::StartTls, TlsMode::Implicit] {
        let sink = start(Options { tls, certificate: certificate.clone(), ..options() });
        let mut plain = Client::connect(sink.local_addr());
        if tls == TlsMode::StartTls {
            assert_eq!(plain.code(), 220);
            plain.write("EHLO c.example\r\n");
            assert!(plain.reply().unwrap().contains("250-STARTTLS"));
            assert_eq!(plain.say("STARTTLS"), 220);
        }
        let name = "mx.example".try_into().unwrap();
        let session = rustls::ClientConnection::new(trusting(&chain), name).unwrap();
        let mut client = Client::over(rustls::StreamOwned::new(session, plain.stream));
        if tls == TlsMode::Implicit {
            assert_eq!(client.code(), 220);
        }
        client.write("EHLO c.example\r\n");
        assert!(!client.reply().unwrap().contains("STARTTLS"));
        let large = format!("x: y\r\n\r\n{}", "An ordinary line of text.\r\n".repeat(20_000));
        assert_eq!(client.send("a@c.example", &["b@x.example"], &large), 250);
        assert_eq!(client.say("QUIT"), 221);
        let counts = sink.stop().unwrap().counts;
        assert_eq!((counts.tls_sessions, counts.messages, counts.octets), (1, 1, large.len() as u64));
    }
}

#[test]
fn octets_after_starttls_or_a_failed_handshake_end_a_session() {
    let sink = start(Options { tls: TlsMode::StartTls, ..options() });
    let mut client = Client::hello(sink.local_addr());
    client.write("STARTTLS\r\nMAIL FROM:<a@c.example>\r\n");
    assert_eq!(client.code(), 554);
    assert!(client.is_closed());
    let mut client = Client::hello(sink.local_addr());
    assert_eq!(client.say("STARTTLS"), 220);
    client.write("this is not a handshake\r\n");
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert_eq!(sink.stop().unwrap().counts.tls_failures, 1);
}

#[test]
fn connections_and_messages_are_bounded() {
    let rules = RuleFile { messages_max: Some(1), ..RuleFile::default() };
    let sink = start(Options { connections_max: 1, rules, ..options() });
    let mut first = Client::hello(sink.local_addr());
    let mut second = Client::connect(sink.local_addr());
    assert_eq!(second.code(), 421);
    assert!(second.is_closed());
    assert_eq!(first.send("a@c.example", &["b@x.example"], MESSAGE), 250);
    assert_eq!(first.say("MAIL FROM:<a@c.example>"), 421);
    assert!(first.is_closed());
    drop(first);
    let started = Instant::now();
    // The place of the first becomes free a moment after it was closed.
    while Client::connect(sink.local_addr()).code() != 220 {
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn silence_is_bounded() {
    let idle_timeout = Duration::from_millis(300);
    let sink = start(Options { idle_timeout, ..options() });
    let started = Instant::now();
    let mut client = Client::connect(sink.local_addr());
    assert_eq!([client.code(), client.code()], [220, 421], "said when nothing came");
    assert!(started.elapsed() >= idle_timeout, "{:?}", started.elapsed());
    assert_eq!(sink.stop().unwrap().counts.timed_out, 1);
}

#[test]
fn hostile_input_gets_its_reply_and_the_session_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let bounded = Options {
        message_bytes_max: 1 << 20,
        memory_bytes_max: 64 << 10,
        store: Some(StoreKind::Mbox(dir.path().join("mbox"))),
        ..options()
    };
    let sink = start(bounded);
    let mut client = Client::hello(sink.local_addr());
    // A line without end: no more than a limit of it is kept, and one reply comes.
    for _ in 0..64 {
        client.stream.write_all(&[b'x'; 64 << 10]).unwrap();
    }
    assert_eq!(client.say(""), 500);
    client.stream.write_all(&[0xff, 0, 1, b'\r', b'\n']).unwrap();
    assert_eq!(client.code(), 500);
    assert_eq!(client.send("a@c.example", &["b@x.example"], "x: y\n\nbare\r\n"), 550);
    assert_eq!(client.send("a@c.example", &["b@x.example"], &format!("x: y\r\n\r\n{}\r\n", "z".repeat(2 << 20))), 552);
    assert_eq!(client.send("a@c.example", &["b@x.example"], &format!("x: y\r\n\r\n{}\r\n", "z".repeat(99 << 10))), 452);
    assert_eq!(client.send("a@c.example", &["b@x.example"], MESSAGE), 250, "the memory is free again");
    client.write("MAIL FROM:<a@c.example>\r\nRCPT TO:<b@x.example>\r\nDATA\r\nx: y\r\n");
    // With replies unread the end would be a reset, and the session would count as failed.
    assert_eq!([client.code(), client.code(), client.code()], [250, 250, 354]);
    drop(client);
    let started = Instant::now();
    while sink.counts().aborted < 3 {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", sink.counts());
        std::thread::sleep(Duration::from_millis(5));
    }
    let counts = sink.stop().unwrap().counts;
    assert_eq!((counts.messages, counts.aborted), (1, 3));
    let lenient = start(Options { lenient: true, ..options() });
    assert_eq!(Client::hello(lenient.local_addr()).send("a@c.example", &["b@x.example"], "x: y\n\n\0\r\n"), 250);
}

#[test]
fn what_cannot_start_says_why() {
    let taken = start(options());
    let refuse = |options: Options, word: &str| match Sink::start(options) {
        Ok(_) => panic!("started without {word}"),
        Err(error) => assert!(error.to_string().contains(word), "{error}"),
    };
    refuse(Options { listen: taken.local_addr().to_string(), ..options() }, "cannot listen on 127.0.0.1");
    let kept = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kept.path(), "of the sink that runs\n").unwrap();
    let account = Some(kept.path().to_owned());
    refuse(Options { listen: taken.local_addr().to_string(), account, ..options() }, "cannot listen on 127.0.0.1");
    assert_eq!(std::fs::read_to_string(kept.path()).unwrap(), "of the sink that runs\n");
    refuse(Options { store: Some(StoreKind::Mbox("/nowhere/mbox".into())), ..options() }, "/nowhere/mbox");
    refuse(Options { account: Some("/nowhere/account".into()), ..options() }, "/nowhere/account");
    let files = Certificate::Files { chain: "/nowhere/cert".into(), key: "/nowhere/key".into() };
    refuse(Options { tls: TlsMode::Implicit, certificate: files, ..options() }, "/nowhere/cert");
}
