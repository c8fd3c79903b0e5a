//! Webhooks, with real HTTP servers that fail.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::relaying::{self, EVENTS, unused_port};
use crate::support::{PATIENCE, Server};

/// A request: its header in lower case, and its body.
#[derive(Debug, Clone)]
struct Request {
    header: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// An HTTP server that gives the prepared answers, in order or for a text in a request, and then 200.
struct Http {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    answers: Vec<Answer>,
    /// The first request with this text is not answered.
    silent_for: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Status(u16),
    /// No answer: the connection stays open until the client gives up.
    Silence,
}

impl Http {
    fn start(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        state.0.lock().unwrap().answers = answers.iter().rev().copied().collect();
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { address, state }
    }

    /// A server that does not answer the first request with this text.
    fn silent_for(text: &'static str) -> Self {
        let http = Self::start(&[]);
        http.state.0.lock().unwrap().silent_for = Some(text);
        http
    }

    fn url(&self) -> String {
        format!("http://{}/events?key=1", self.address)
    }

    /// Waits until it has received this many requests.
    fn wait(&self, count: usize) -> Vec<Request> {
        let guard = self.state.0.lock().unwrap();
        let few = |state: &mut State| state.requests.len() < count;
        let (state, waited) = self.state.1.wait_timeout_while(guard, PATIENCE, few).unwrap();
        assert!(!waited.timed_out(), "{} requests, {count} expected", state.requests.len());
        state.requests.clone()
    }

    /// Waits for events of these recipients. Returns the ids of each.
    fn wait_for_recipients(&self, recipients: &[String]) -> BTreeMap<String, Vec<String>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = ids(&self.state.0.lock().unwrap().requests);
            if recipients.iter().all(|recipient| found.contains_key(recipient)) {
                return found;
            }
            assert!(Instant::now() < deadline, "{recipients:?} expected: {found:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn serve(stream: TcpStream, shared: &(Mutex<State>, Condvar)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut header = BTreeMap::new();
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) && line != "\r\n" {
            if let Some((key, value)) = line.trim_end().split_once(": ") {
                header.insert(key.to_lowercase(), value.to_owned());
            }
            line.clear();
        }
        let Some(length) = header.get("content-length") else { return };
        let mut body = vec![0; length.parse().unwrap()];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let answer = {
            let mut state = shared.0.lock().unwrap();
            let is_silent = state.silent_for.take_if(|text| String::from_utf8_lossy(&body).contains(*text)).is_some();
            state.requests.push(Request { header, body });
            shared.1.notify_all();
            let silence = is_silent.then_some(Answer::Silence);
            silence.or_else(|| state.answers.pop()).unwrap_or(Answer::Status(200))
        };
        match answer {
            Answer::Status(status) => {
                let text = format!("HTTP/1.1 {status} said\r\nContent-Length: 2\r\nLocation: /x\r\n\r\nok");
                if stream.write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
            Answer::Silence => {
                let _ = reader.read_line(&mut line);
                return;
            }
        }
    }
}

/// Seconds to wait for a server that does answer, however slowly.
const FOR_EVER: u32 = 300;

fn events(request: &Request) -> Vec<Value> {
    serde_json::from_slice(&request.body).expect("a JSON array")
}

/// Ids of refused recipients.
fn ids(requests: &[Request]) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for event in requests.iter().flat_map(events) {
        let to = event["to"][0].as_str().unwrap_or_default().to_owned();
        found.entry(to).or_default().push(event["event_id"].as_str().unwrap().to_owned());
    }
    found
}

fn config(hooks: &[(&str, &str)], timeout_secs: u32) -> String {
    let mut text = String::from(
        "host_name = \"mx.example.org\"\n[events]\nenabled = true\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n",
    );
    for (name, url) in hooks {
        text += &format!(
            "[[webhook]]\nname = \"{name}\"\nurl = \"{url}\"\nevents = [\"refused\"]\nbatch = 3\ntimeout_secs = {timeout_secs}\nsecret_file = \"secret\"\n"
        );
    }
    text
}

/// Starts a server with a time limit for answers.
fn start(dir: &Path, hooks: &[(&str, &str)], timeout_secs: u32) -> Server {
    std::fs::write(dir.join("secret"), "a secret of the tests\n").unwrap();
    let server = Server::start(dir, &config(hooks, timeout_secs));
    wait_for_places(dir, hooks);
    server
}

/// Waits until each webhook has its place in the event log, as a new one gets only later events.
fn wait_for_places(dir: &Path, hooks: &[(&str, &str)]) {
    let deadline = Instant::now() + PATIENCE;
    for (name, _) in hooks {
        while !dir.join(format!("posthaste-data/events/webhook-{name}.json")).exists() {
            assert!(Instant::now() < deadline, "no place of {name}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Causes a refusal, and so an event, for each recipient.
fn refuse(server: &Server, numbers: std::ops::Range<usize>) -> Vec<String> {
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<s@example.net>", 250);
    let each = numbers.map(|number| {
        client.expect(&format!("RCPT TO:<no{number}@example.org>"), 550);
        format!("<no{number}@example.org>")
    });
    let all = each.collect();
    client.expect("QUIT", 221);
    all
}

#[test]
fn failed_posts_are_repeated_signed_and_a_dead_hook_is_alone() {
    let dir = tempfile::tempdir().unwrap();
    let answers = [Answer::Status(500), Answer::Status(302), Answer::Silence];
    let (http, other) = (Http::start(&answers), Http::start(&[]));
    let nobody = SocketAddr::from(([127, 0, 0, 1], unused_port()));
    let dead = format!("http://{nobody}/");
    let hooks = [("crm", &*http.url()), ("other", &*other.url()), ("dead", &*dead)];
    let server = start(dir.path(), &hooks, 1);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org"], b"Subject: not wanted\r\n\r\nx\r\n");
    let refused = refuse(&server, 0..5);
    other.wait_for_recipients(&refused);
    let found = http.wait_for_recipients(&refused);
    server.wait_for_log("a webhook receives events again");
    let requests = http.wait(4);
    assert!(requests[..3].iter().all(|request| request.body == requests[3].body), "{requests:?}");
    assert!(requests.iter().all(|request| events(request).len() <= 3));
    assert_eq!(events(&requests[0])[0]["event"], "refused");
    let header = &requests[0].header;
    assert_eq!((&*header["content-type"], &*header["x-posthaste-webhook"]), ("application/json", "crm"));
    let signature = &header["x-posthaste-signature"];
    assert!(signature.starts_with("sha256=") && signature.len() == 71, "{signature}");
    // Each event has one id, for each receiver, and however often it is sent.
    let same = |ids: &Vec<String>| ids.iter().all(|id| *id == ids[0]);
    assert!(found.values().all(same), "{found:?}");
    let told = other.wait_for_recipients(&refused);
    assert!(refused.iter().all(|to| told[to][0] == found[to][0]), "{told:?} {found:?}");
    server.stop();
}

#[test]
fn a_kill_loses_nothing_and_duplicates_have_the_same_id() {
    let dir = tempfile::tempdir().unwrap();
    let http = Http::silent_for("<no3@example.org>");
    // Hears of an event once that is durable.
    let witness = Http::start(&[]);
    let hooks = [("crm", &*http.url()), ("witness", &*witness.url())];
    let mut server = start(dir.path(), &hooks, FOR_EVER);
    let mut all = refuse(&server, 0..3);
    http.wait_for_recipients(&all);
    let later = refuse(&server, 3..6);
    // This request is in flight, and the server has it. Others may follow it.
    http.wait_for_recipients(&later[..1]);
    witness.wait_for_recipients(&later);
    all.extend(later);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir.path());
    all.extend(refuse(&server, 6..9));
    let found = http.wait_for_recipients(&all);
    assert_eq!(found.len(), 9, "{found:?}");
    assert!(found.values().all(|ids| ids.iter().all(|id| *id == ids[0])), "{found:?}");
    assert!(found[&all[3]].len() > 1, "told again: {found:?}");
    server.stop();
}

#[test]
fn a_reload_adds_removes_and_keeps_webhooks_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Http::start(&[]), Http::start(&[]));
    let server = start(dir.path(), &[("crm", &*old.url())], FOR_EVER);
    let first = refuse(&server, 0..3);
    old.wait_for_recipients(&first);
    let reload = |hooks: &[(&str, &str)]| {
        server.reload(&config(hooks, FOR_EVER));
    };
    let moved = [("crm", &*new.url()), ("more", &*new.url())];
    reload(&moved);
    wait_for_places(dir.path(), &moved);
    let second = refuse(&server, 3..6);
    let found = new.wait_for_recipients(&second);
    assert!(first.iter().all(|to| !found.contains_key(to)), "{found:?}");
    server.stop();
}

#[test]
fn a_reload_reads_the_secret_again() {
    let dir = tempfile::tempdir().unwrap();
    let http = Http::start(&[Answer::Status(500); 100]);
    let server = start(dir.path(), &[("crm", &*http.url())], FOR_EVER);
    refuse(&server, 0..1);
    let before = http.wait(1).remove(0);
    std::fs::write(dir.path().join("secret"), "another secret\n").unwrap();
    server.signal(Signal::HUP);
    let is_after = |request: &Request| {
        request.body == before.body && request.header["x-posthaste-signature"] != before.header["x-posthaste-signature"]
    };
    let guard = http.state.0.lock().unwrap();
    let waiting = |state: &mut State| !state.requests.iter().any(is_after);
    let waited = http.state.1.wait_timeout_while(guard, PATIENCE, waiting).unwrap().1;
    assert!(!waited.timed_out(), "the same event has another signature");
    server.stop();
}

#[test]
fn a_session_that_another_host_ends_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"421 4.7.0 rate limited\r\n");
        }
    });
    let (dir, http) = (tempfile::tempdir().unwrap(), Http::start(&[]));
    let hook = format!("[[webhook]]\nname = \"crm\"\nurl = \"{}\"\nevents = [\"interrupted\"]\n", http.url());
    let server = Server::start(dir.path(), &relaying::config(port, &format!("{EVENTS}{hook}")));
    server.hello().deliver(&["ann@there.example"], b"Subject: a\r\n\r\nx\r\n");
    let told = events(&http.wait(1)[0]).remove(0);
    let expected = [("host", "there.example"), ("stage", "greeting"), ("reply", "421 4.7.0 rate limited")];
    for (key, value) in expected.into_iter().chain([("event", "interrupted"), ("recipient", "ann@there.example")]) {
        assert_eq!(told[key], value, "{told}");
    }
    server.stop();
}
