//! Operator commands on recipients in flight: the other host's reply decides.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

use crate::relaying::{ANYWHERE, config, list, queue, wait_for_queue};
use crate::support::{PATIENCE, Server};

#[test]
fn mail_is_under_way_while_its_session_waits_for_a_greeting() {
    let silent = TcpListener::bind(ANYWHERE).unwrap();
    let here = tempfile::tempdir().unwrap();
    let server = Server::start(here.path(), &config(silent.local_addr().unwrap().port(), ""));
    server.hello().try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    // Accepted by the kernel alone: nobody greets.
    wait_for_queue(here.path(), "a session waits", |waiting| waiting.iter().any(|line| line["state"] == "under way"));
    let (_, text) = queue(here.path(), &["list"]);
    assert!(text.contains("under way"), "{text}");
    drop(silent);
    server.stop();
}

/// A host that does not answer RCPT until it is released. Then it accepts the recipients `…-ok` and defers the others.
struct SlowHost {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    is_released: bool,
    /// The recipients of RCPT, in their order.
    asked: Vec<String>,
}

impl SlowHost {
    fn start() -> Self {
        let listener = TcpListener::bind(ANYWHERE).unwrap();
        let host = SlowHost { address: listener.local_addr().unwrap(), state: Arc::default() };
        let state = host.state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        host
    }

    fn asked(&self, recipient: &str) -> usize {
        self.state.0.lock().unwrap().asked.iter().filter(|asked| *asked == recipient).count()
    }

    fn wait_asked(&self, recipient: &str, times: usize) {
        let count = |state: &mut State| state.asked.iter().filter(|asked| *asked == recipient).count() < times;
        let state = self.state.0.lock().unwrap();
        let (state, time) = self.state.1.wait_timeout_while(state, PATIENCE, count).unwrap();
        assert!(!time.timed_out(), "{recipient} does not come: {:?}", state.asked);
    }

    fn release(&self) {
        self.state.0.lock().unwrap().is_released = true;
        self.state.1.notify_all();
    }
}

fn serve(mut stream: TcpStream, state: &(Mutex<State>, Condvar)) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    stream.write_all(b"220 there.example\r\n")?;
    let (mut line, mut is_body) = (String::new(), false);
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let reply = match line.get(..4).unwrap_or_default() {
            _ if is_body && line != ".\r\n" => continue,
            "RCPT" => {
                let recipient = line.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
                let is_taken = recipient.contains("-ok@");
                let mut state_now = state.0.lock().unwrap();
                state_now.asked.push(recipient);
                state.1.notify_all();
                drop(state.1.wait_while(state_now, |state| !state.is_released).unwrap());
                if is_taken { "250 2.1.5 ok" } else { "451 4.2.0 not now" }
            }
            "DATA" => {
                is_body = true;
                "354 go"
            }
            _ => {
                is_body = false;
                "250 2.0.0 ok"
            }
        };
        stream.write_all(format!("{reply}\r\n").as_bytes())?;
    }
}

#[test]
fn an_action_on_a_recipient_in_flight_follows_the_reply() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let host = SlowHost::start();
    let schedule = "[relay.schedule.default]\nfirst_secs = 3600\n";
    let server = Server::start(dir, &config(host.address.port(), schedule));
    let actions = [("hold", "held"), ("delete", "removed"), ("bounce", "given up"), ("requeue", "tried now")];
    let recipient = |action: &str, more: &str| format!("{action}{more}@there.example");
    let all: Vec<String> =
        ["", "-ok"].iter().flat_map(|more| actions.iter().map(move |(action, _)| recipient(action, more))).collect();
    let to: Vec<&str> = all.iter().map(String::as_str).collect();
    server.hello().try_message("eve@here.example", &to, b"Subject: a\r\n\r\nx\r\n").unwrap();
    host.wait_asked(&all[0], 1);
    let states = |waiting: &[Value]| -> Vec<(String, String)> {
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        waiting.iter().map(|line| (text(line, "recipient"), text(line, "state"))).collect()
    };
    for (action, done) in actions {
        for more in ["", "-ok"] {
            let of = recipient(action, more);
            let said = queue(dir, &[action, "--recipient", &of, "--reason", "their wish"]);
            assert_eq!(said, (0, format!("0 {done}; 1 under way follow\n")), "{of}");
        }
    }
    let under_way: Vec<_> = all.iter().map(|of| (of.clone(), "under way".to_owned())).collect();
    assert_eq!(states(&list(dir, &[])), under_way, "nothing is changed before the host has answered");
    host.release();
    // A second attempt, an hour before its time.
    host.wait_asked("requeue@there.example", 2);
    // A failure is recorded at once; its notification waits for the others of its message.
    let left = [("hold", "held"), ("requeue", "scheduled")];
    let left = left.map(|(action, state)| (recipient(action, ""), state.to_owned()));
    wait_for_queue(dir, "the actions follow the replies", |waiting| states(waiting) == left);
    assert_eq!(queue(dir, &["release", "--held"]), (0, "1 released\n".into()));
    host.wait_asked("hold@there.example", 2);
    for action in ["hold", "requeue"] {
        assert_eq!(queue(dir, &["delete", "--recipient", &recipient(action, "")]).0, 0);
    }
    let told = server.wait_for_mail("here.example", "eve", 1).remove(0).text();
    assert!(told.contains("rfc822; bounce@there.example\n") && told.contains("their wish"), "{told}");
    assert!(told.matches("Action: failed").count() == 1, "{told}");
    for of in all.iter().filter(|of| !of.starts_with("requeue@") && !of.starts_with("hold@")) {
        assert_eq!(host.asked(of), 1, "{of}");
    }
    server.stop();
}

#[test]
fn a_later_command_undoes_no_higher_one_in_flight() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let host = SlowHost::start();
    let schedule = "[relay.schedule.default]\nfirst_secs = 3600\n";
    let server = Server::start(dir, &config(host.address.port(), schedule));
    // The highest first.
    let commands = ["delete", "bounce", "hold", "requeue"];
    let address = |command: &str| format!("{command}@there.example");
    let all = commands.map(address);
    let to = all.each_ref().map(String::as_str);
    server.hello().try_message("eve@here.example", &to, b"Subject: a\r\n\r\nx\r\n").unwrap();
    host.wait_asked(to[0], 1);
    for (at, command) in commands.iter().enumerate() {
        for (later, is_first) in commands[at..].iter().zip(std::iter::once(true).chain(std::iter::repeat(false))) {
            let (code, said) = queue(dir, &[later, "--recipient", to[at]]);
            let (expected, end) = if is_first { (0, "follow\n") } else { (1, "have an earlier command\n") };
            let is_said = said.starts_with("0 ") && said.ends_with(&format!("; 1 under way {end}"));
            assert!(code == expected && is_said, "{command}, {later}: {said}");
        }
    }
    host.release();
    host.wait_asked("requeue@there.example", 2);
    wait_for_queue(dir, "each has what came first", |waiting| {
        let states: Vec<_> = waiting.iter().map(|line| [&line["recipient"], &line["state"]]).collect();
        states == [["hold@there.example", "held"], ["requeue@there.example", "scheduled"]]
    });
    assert_eq!(queue(dir, &["delete", "--all"]).0, 0);
    let told = server.wait_for_mail("here.example", "eve", 1).remove(0).text();
    assert!(told.contains("rfc822; bounce@there.example\n") && !told.contains("delete@"), "{told}");
    assert!(to[..3].iter().all(|of| host.asked(of) == 1));
    server.stop();
}
