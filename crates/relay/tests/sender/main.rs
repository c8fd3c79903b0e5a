//! The relay with a real spool, a DNS server and mail servers on loopback.

mod ahead;
mod attempts;
mod automation;
mod backlog;
mod bounces;
mod changes;
mod crowded;
mod damaged;
mod dane;
mod dead_domains;
mod failing;
mod fallback;
mod forwards;
mod hosts;
mod interrupted;
mod looks;
mod mta_sts;
mod notices;
mod panics;
mod policies;
mod probes;
mod proxies;
mod purging;
mod queue_limits;
mod recording;
mod reuse;
mod scopes;
mod shaping;
mod sink;
mod slow_bodies;
mod snapshots;
mod sources;
mod stuck;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_dns::{Resolver, Settings};
use posthaste_dns_stub::{Server, Zone};
use posthaste_intake::Destination as _;
use posthaste_intake::notify;
use posthaste_queue::{Imported, QueueAction, QueueEntry, Queued, QueuedRecipient, RetrySchedule, Schedules};
use posthaste_relay::sender::{
    ActedOn, AttemptResult, Config, Delivering, Filter, FixedRoute, Notifier, Observer, Originator, OutgoingNotice,
    QueueLimitState, RecipientAttempt, RecordingState, Relay, RouteTls, SiteState, TlsFailure, opportunistic_tls,
};
use posthaste_relay::session::{SessionTimeouts, TlsPolicy};
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::{Protocol, Reply};
use posthaste_spool::{Batch, Body, Entry, FileSpool, Lsn, Spool};
use sink::{Sink, Taken};
use tokio::net::TcpSocket;

/// Sends notifications to the relay, like those for remote senders.
struct Back {
    spool: Arc<dyn Spool>,
    written: Mutex<Vec<(String, String)>>,
}

impl Notifier for Back {
    fn knows(&self, sender: &str) -> bool {
        !sender.starts_with("gone@")
    }

    fn deliver(&self, notice: OutgoingNotice) -> Delivering {
        let text = String::from_utf8_lossy(&notice.written.message.concat()).into_owned();
        if !self.knows(&notice.to) {
            return Box::pin(std::future::ready(Ok(false)));
        }
        self.written.lock().unwrap().push((notice.to.to_string(), text));
        let (tell, told) = tokio::sync::oneshot::channel();
        let batch = Batch { entries: vec![notice.change, notice.remote], body: Body::inline(notice.written.message) };
        self.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        Box::pin(async move { told.await.unwrap().map(|_| true).map_err(|error| error.to_string()) })
    }
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    /// Replies that ended sessions.
    interrupted: Mutex<Vec<String>>,
    /// Number of panics to raise.
    panics: std::sync::atomic::AtomicUsize,
}

impl Observer for Log {
    fn attempts(&self, attempts: Vec<RecipientAttempt>) -> Option<Entry> {
        let (interrupted, attempts): (Vec<_>, Vec<_>) =
            attempts.into_iter().partition(|attempt| attempt.result == AttemptResult::Interrupted);
        let said = |attempt: RecipientAttempt| {
            let RecipientAttempt { recipient, host, stage, reply, .. } = attempt;
            format!("{recipient} {host} {stage}: {reply}")
        };
        self.interrupted.lock().unwrap().extend(interrupted.into_iter().map(said));
        let lines = attempts.iter().map(|attempt| {
            let result = match attempt.result {
                AttemptResult::Delivered => return format!("{} delivered", attempt.recipient),
                AttemptResult::Deferred { .. } => "deferred",
                AttemptResult::Unknown { .. } => "unknown",
                AttemptResult::Failed | AttemptResult::Interrupted => "failed",
                AttemptResult::Expired => "expired",
                AttemptResult::Suppressed => "suppressed",
            };
            format!("{} {result} {}", attempt.recipient, attempt.reply.code())
        });
        let mut log = self.lines.lock().unwrap();
        log.extend(lines);
        let double = attempts.iter().filter(|attempt| attempt.is_double_bounce);
        log.extend(double.map(|attempt| format!("{} double-bounced", attempt.recipient)));
        None
    }

    fn imported(&self, _: &Originator, _: &Imported, _: &str, _: u64) -> Option<Entry> {
        None
    }

    fn acted(&self, by: &Originator, action: QueueAction, recipients: Vec<ActedOn>) -> Option<Entry> {
        let lines = recipients.iter().map(|of| format!("{} {action:?} by {}: {}", of.recipient, by.uid, by.reason));
        self.lines.lock().unwrap().extend(lines);
        None
    }

    fn wants_acted(&self) -> bool {
        true
    }

    fn suspended(&self, by: &Originator, entry: &QueueEntry) -> Option<Entry> {
        use std::sync::atomic::Ordering::Relaxed;
        let panics = self.panics.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        assert!(panics.is_err(), "a panic that a test asks for");
        self.lines.lock().unwrap().push(format!("{entry:?} by {}: {}", by.uid, by.reason));
        None
    }

    fn site(&self, state: &SiteState<'_>) {
        let said = match state {
            SiteState::Unreachable { site, error, .. } => format!("unreachable {site}: {error}"),
            SiteState::Reached { site, .. } => format!("reached {site}"),
        };
        self.lines.lock().unwrap().push(said);
    }

    fn tls_failed(&self, TlsFailure { host, demand, result, error, .. }: &TlsFailure<'_>) {
        self.lines.lock().unwrap().push(format!("TLS {demand} {result} {host}: {error}"));
    }

    fn tls_avoided(&self, host: &str, error: &str, secs: u64) {
        self.lines.lock().unwrap().push(format!("no TLS with {host} for {secs} s: {error}"));
    }

    fn queue_limit(&self, state: &QueueLimitState<'_>) {
        self.lines.lock().unwrap().push(format!("{state:?}"));
    }

    fn recording(&self, state: &RecordingState<'_>) {
        self.lines.lock().unwrap().push(format!("{state:?}"));
    }

    fn source(&self, source: &str, error: Option<&str>) {
        self.lines.lock().unwrap().push(format!("source {source}: {}", error.unwrap_or("usable")));
    }

    fn warn(&self, batch: Lsn, why: &str) {
        self.lines.lock().unwrap().push(format!("unreadable {batch} {why}"));
    }
}

struct Rig {
    spool: Arc<dyn Spool>,
    relay: Relay,
    back: Arc<Back>,
    log: Arc<Log>,
    dir: tempfile::TempDir,
    dns: Server,
}

fn schedules(first_secs: u64, max_age_secs: u64) -> Schedules {
    let schedule = RetrySchedule {
        first_secs,
        longest_secs: first_secs,
        jitter_percent: 0,
        max_age_secs,
        delay_notice_secs: 3600,
    };
    Schedules { default: schedule, rules: Vec::new() }
}

fn config(dns: &Server, port: u16, back: &Arc<Back>, log: &Arc<Log>) -> Config {
    let settings = Settings { servers: vec![dns.address()], timeout_secs: 5, ttl_min_secs: 1, ..Settings::default() };
    Config {
        host_name: "relay.example".to_owned(),
        resolver: Arc::new(Resolver::new(&settings).unwrap()),
        port,
        routing: Default::default(),
        queue_limits: Default::default(),
        schedules: schedules(1, 3600),
        connections_max: 100,
        site_connections_max: 4,
        session_messages_max: 100,
        recipients_max: 100,
        shaping: Arc::default(),
        timeouts: SessionTimeouts { idle: Duration::from_millis(200), ..SessionTimeouts::default() },
        tls: None,
        mta_sts: None,
        eight_bit: Default::default(),
        memory_bytes: 1 << 20,
        site_pause_secs: 1,
        returned_bytes_max: 100_000,
        bounces: Default::default(),
        has_crashed: false,
        notices: Default::default(),
        notifier: back.clone(),
        signer: None,
        observer: Some(log.clone()),
        lender: None,
        witnesses: None,
    }
}

/// Small segments: each start fills three with zeros, and concurrent tests would wait for the disk.
fn spool_config() -> posthaste_spool::Config {
    let ring = posthaste_ring::Config { segment_bytes: 4 << 20, ..Default::default() };
    posthaste_spool::Config { ring, ..Default::default() }
}

fn rig_with(zone: Zone, port: u16, change: impl FnOnce(&mut Config)) -> Rig {
    rig_in(tempfile::tempdir().unwrap(), zone, port, change)
}

fn rig_in(dir: tempfile::TempDir, zone: Zone, port: u16, change: impl FnOnce(&mut Config)) -> Rig {
    rig_over(dir, zone, port, |spool| Arc::new(spool), change)
}

fn rig_over(
    dir: tempfile::TempDir,
    zone: Zone,
    port: u16,
    wrap: impl FnOnce(FileSpool) -> Arc<dyn Spool>,
    change: impl FnOnce(&mut Config),
) -> Rig {
    let dns = Server::start(zone);
    let mut opened = None;
    // Tasks of an ended relay may hold it for a moment.
    wait("nobody else has the spool", || match FileSpool::open(dir.path(), spool_config()) {
        Err(posthaste_spool::OpenError::Locked) => false,
        found => opened.replace(found.unwrap()).is_none(),
    });
    let spool = wrap(opened.expect("it is open").0);
    let back = Arc::new(Back { spool: spool.clone(), written: Mutex::default() });
    let log = Arc::new(Log::default());
    let mut config = config(&dns, port, &back, &log);
    change(&mut config);
    let (relay, _) = Relay::open(spool.clone(), config).unwrap();
    Rig { spool, relay, back, log, dir, dns }
}

fn outgoing(sender: &str, to: &[&str], notify: u8) -> Queued {
    let recipient = |(number, address): (u16, &&str)| QueuedRecipient {
        number,
        address: Arc::from(*address),
        orcpt: Arc::from(""),
        notify,
    };
    Queued { sender: Arc::from(sender), recipients: (0..).zip(to).map(recipient).collect(), ..Queued::default() }
}

impl Rig {
    fn send(&self, sender: &str, to: &[&str], body: &str) {
        self.send_asking(sender, to, body, 0);
    }

    fn send_for(&self, tenant: &str, sender: &str, to: &[&str]) {
        self.append(Queued { tenant: Arc::from(tenant), ..outgoing(sender, to, 0) }, "x\r\n");
    }

    fn send_asking(&self, sender: &str, to: &[&str], body: &str, notify: u8) {
        self.append(outgoing(sender, to, notify), body);
    }

    /// Returns once the message is durable.
    fn append(&self, message: Queued, body: &str) {
        self.append_octets(message, body.as_bytes());
    }

    fn append_octets(&self, message: Queued, body: &[u8]) {
        let body = Body::inline(vec![Bytes::copy_from_slice(body)]);
        let batch = Batch { entries: vec![self.relay.entry(message)], body };
        let (tell, told) = std::sync::mpsc::channel();
        self.spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
        told.recv().unwrap().unwrap();
    }

    /// Has all waiting mail tried now.
    fn flush(&self) {
        self.relay
            .act(&Filter::default(), QueueAction::Flush, &Reply::new(554, "5.0.0", ""), &Originator::default())
            .unwrap();
    }

    /// Waits until nothing is left to send or to report.
    fn wait_empty(&self) {
        wait("the queue is empty", || {
            let stats = self.relay.stats();
            stats.recipients + stats.owed_notices == 0
        });
    }

    fn log(&self) -> Vec<String> {
        self.log.lines.lock().unwrap().clone()
    }

    fn end(self) -> tempfile::TempDir {
        let Rig { spool, relay, back, dir, .. } = self;
        relay.end_by(Instant::now() + Duration::from_secs(30));
        drop((relay, back));
        drop(spool);
        dir
    }
}

/// Checks every few milliseconds until the condition holds, for a minute at most.
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}: it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A port of an address without any listener before this test's. A socket that does not listen reserves it until this
/// program ends, so no other test and no connection gets it. With SO_REUSEADDR, which listeners set, it can be bound
/// again by its number.
fn unused_port(at: Ipv4Addr) -> u16 {
    static HELD: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind((at, 0).into()).unwrap();
    let port = socket.local_addr().unwrap().port();
    HELD.lock().unwrap().push(socket);
    port
}

fn zone() -> Zone {
    Zone::default().mx("a.example", 10, "mx.a.example").a("mx.a.example", LOOPBACK)
}

#[test]
fn a_message_goes_to_the_mail_host_unaltered() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    let body = "Subject: x\r\n\r\n.dot\r\n..two\r\nend\r\n";
    rig.send("ann@here.example", &["bob@a.example", "eve@a.example"], body);
    let taken = sink.wait_taken(1).remove(0);
    assert_eq!(taken.sender, "ann@here.example");
    assert_eq!(taken.recipients, ["bob@a.example", "eve@a.example"], "one transaction for both");
    assert_eq!(String::from_utf8(taken.body).unwrap(), body);
    rig.wait_empty();
    assert_eq!(rig.relay.stats().delivered, 2);
    assert_eq!(rig.back.written.lock().unwrap().len(), 0, "nothing is to be told");
}

#[test]
fn each_recipient_has_its_outcome_and_failures_are_notified() {
    let sink = Sink::start();
    let rig = rig_with(zone().mx("here.example", 1, "mx.a.example"), sink.port(), |_| ());
    rig.send(
        "ann@here.example",
        &["bob@a.example", "no1@a.example", "later@a.example", "no2@a.example"],
        "Subject: x\r\n\r\nhi\r\n",
    );
    let taken = sink.wait_taken(3);
    let to = |address: &str| taken.iter().filter(|taken| taken.recipients.iter().any(|to| to == address)).count();
    assert_eq!((to("bob@a.example"), to("later@a.example")), (1, 1), "once each; the second after its pause");
    let dsn = taken.iter().find(|taken| taken.sender.is_empty()).expect("a notification");
    assert_eq!(dsn.recipients, ["ann@here.example"]);
    let text = String::from_utf8(dsn.body.clone()).unwrap();
    for line in
        ["Final-Recipient: rfc822; no1@a.example", "Final-Recipient: rfc822; no2@a.example", "Status: 5.1.1", "hi\r\n"]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
    rig.wait_empty();
    assert_eq!(sink.rcpts("no1@a.example"), 1, "no second try");
    assert_eq!(rig.back.written.lock().unwrap().len(), 1, "one notification for both");
    assert!(rig.log().contains(&"later@a.example deferred 451".to_owned()), "{:?}", rig.log());
}

#[test]
fn a_notification_is_never_answered_and_asks_for_none() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.send("", &["no@a.example"], "x\r\n");
    rig.send_asking("ann@a.example", &["no@a.example"], "x\r\n", notify::NEVER);
    sink.wait_rcpts("no@a.example", 2);
    rig.wait_empty();
    assert_eq!(rig.back.written.lock().unwrap().len(), 0);
}

#[test]
fn success_is_told_as_relayed_where_the_next_hop_says_nothing() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.send_asking("ann@a.example", &["bob@a.example"], "x\r\n", notify::SUCCESS);
    let taken = sink.wait_taken(2);
    let text = String::from_utf8_lossy(&taken[1].body).into_owned();
    assert!(text.contains("Action: relayed"), "{text}");
    rig.wait_empty();
}

#[test]
fn a_message_that_no_connection_survives_gets_its_attempts() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.schedules = schedules(3600, 86_400));
    rig.send("ann@here.example", &["cut@a.example"], "x\r\n");
    wait("it is put off", || rig.log().iter().any(|line| line.starts_with("cut@a.example deferred")));
    rig.send("ann@here.example", &["bob@a.example"], "y\r\n");
    sink.wait_taken(1);
}

#[test]
fn a_connection_lost_after_the_dot_is_retried_as_unknown() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.schedules = schedules(3600, 86_400));
    rig.send("ann@here.example", &["vanish@a.example"], "x\r\n");
    wait("it is put off", || rig.log().iter().any(|line| line == "vanish@a.example unknown 451"));
    assert_eq!(sink.rcpts("vanish@a.example"), 1, "not at once elsewhere");
}

#[test]
fn too_many_recipients_follow_at_once() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |_| ());
    rig.send("ann@here.example", &["few1@a.example", "few2@a.example", "few3@a.example"], "x\r\n");
    let taken = sink.wait_taken(3);
    assert!(taken.iter().all(|taken| taken.recipients.len() == 1));
    rig.wait_empty();
    // The limit is remembered: the next message sends no RCPT in vain.
    let mut count = 3;
    wait("the limit is remembered", || {
        let next = [1, 2, 3].map(|more| format!("few{}@a.example", count + more));
        count += 3;
        rig.send("ann@here.example", &next.each_ref().map(String::as_str), "x\r\n");
        sink.wait_taken(count);
        rig.wait_empty();
        // It is remembered for seconds, for which this thread may have stood still.
        next.each_ref().map(|address| sink.rcpts(address)) == [1, 1, 1]
    });
    assert!(!rig.log().iter().any(|line| line.contains("deferred")), "{:?}", rig.log());
}

#[test]
fn what_is_too_old_is_given_up_and_told() {
    let sink = Sink::start();
    let rig = rig_with(zone(), sink.port(), |config| config.schedules = schedules(1, 3));
    rig.send("ann@a.example", &["never@a.example"], "x\r\n");
    let dsn = sink.wait_taken(1).remove(0);
    let text = String::from_utf8_lossy(&dsn.body).into_owned();
    assert!(text.contains("never@a.example") && text.contains("Action: failed"), "{text}");
    rig.wait_empty();
}

#[test]
fn a_route_goes_before_mx_hosts() {
    let sink = Sink::start();
    let rig = rig_with(zone(), 1, |config| {
        config.routing.routes = vec![FixedRoute::new("[127.0.0.1]", sink.port()).into()];
    });
    rig.send("ann@here.example", &["bob@unknown.example"], "x\r\n");
    sink.wait_taken(1);
    rig.wait_empty();
}

#[test]
fn routes_to_one_host_keep_their_passwords_and_protocols_apart() {
    let sink = Sink::start();
    let rig = rig_with(zone(), 1, |config| {
        let route = |domain: &str, user: Option<&str>, protocol| FixedRoute {
            domain: domain.to_owned(),
            auth: user.map(|user| Credentials::new(user, "secret")),
            protocol,
            ..FixedRoute::new("[127.0.0.1]", sink.port())
        };
        let routes = [
            route("a.example", Some("ann"), Protocol::Smtp),
            route("b.example", None, Protocol::Lmtp),
            route("", Some("all"), Protocol::Smtp),
        ];
        config.routing.routes = routes.map(Into::into).into();
    });
    rig.send("ann@here.example", &["x@a.example", "x@b.example", "later@b.example", "x@c.example"], "x\r\n");
    let taken = sink.wait_taken(3);
    let said = |domain: &str| {
        let of_it = |taken: &&Taken| taken.recipients.iter().any(|to| to == &format!("x@{domain}"));
        taken.iter().find(of_it).unwrap_or_else(|| panic!("{domain} in {taken:?}")).logged_in.clone()
    };
    assert_eq!([said("a.example"), said("b.example"), said("c.example")], ["ann", "", "all"]);
    sink.wait_taken(4);
    rig.wait_empty();
    assert_eq!(sink.rcpts("later@b.example"), 2);
}

#[test]
fn a_host_that_cannot_be_trusted_gets_neither_mail_nor_password() {
    let sink = Sink::start();
    let rig = rig_with(zone(), 1, |config| {
        let tls = RouteTls {
            policy: TlsPolicy::Required,
            is_implicit: false,
            config: opportunistic_tls().unwrap(),
            name: None,
        };
        let auth = Some(Credentials::new("ann", "secret"));
        config.routing.routes =
            vec![FixedRoute { tls: Some(tls), auth, ..FixedRoute::new("[127.0.0.1]", sink.port()) }.into()];
    });
    rig.send("ann@here.example", &["x@a.example"], "x\r\n");
    wait("it is told", || rig.log().iter().any(|line| line.starts_with("unreachable")));
    let log = rig.log();
    assert!(log.iter().any(|line| line.contains("encrypted as ann") && line.contains("STARTTLS")), "{log:?}");
    assert_eq!((sink.taken().len(), sink.logins(), rig.relay.stats().recipients), (0, 0, 1));
}

#[test]
fn waiting_mail_survives_a_restart_and_done_mail_does_not() {
    let sink = Sink::start();
    let wait_long = |config: &mut Config| config.schedules = schedules(3600, 86_400);
    let rig = rig_with(zone(), sink.port(), wait_long);
    for _ in 0..20 {
        rig.send("ann@here.example", &["bob@a.example", "later@a.example", "never@a.example"], "x\r\n");
    }
    sink.wait_taken(20);
    sink.wait_rcpts("never@a.example", 20);
    wait("all have had their attempt", || rig.relay.stats().recipients == 21);
    let dir = rig.end();
    let rig = rig_in(dir, zone(), sink.port(), wait_long);
    assert_eq!(rig.relay.stats().recipients, 21);
    rig.flush();
    sink.wait_rcpts("never@a.example", 40);
    sink.wait_taken(21);
    wait("one is done", || rig.relay.stats().recipients == 20);
    assert_eq!(sink.rcpts("bob@a.example"), 20, "none of them twice");
}

#[test]
fn what_does_not_fit_into_memory_is_read_from_the_spool() {
    let sink = Sink::start();
    // A pause between two messages ends no connection.
    let rig = rig_with(zone(), sink.port(), |config| {
        (config.memory_bytes, config.timeouts.idle) = (5000, Duration::from_secs(600));
    });
    let body = |number: usize| format!("Number: {number}\r\n\r\n{}\r\n", "x".repeat(990));
    for number in 0..200 {
        rig.send("ann@here.example", &["bob@a.example"], &body(number));
    }
    let taken = sink.wait_taken(200);
    for number in 0..200 {
        assert_eq!(taken.iter().filter(|taken| taken.body == body(number).as_bytes()).count(), 1, "number {number}");
    }
    rig.wait_empty();
    assert!(sink.connections() < 100, "connections are used again: {}", sink.connections());
}
