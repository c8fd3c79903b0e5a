//! Settings of one listener, or for one network, apply there and nowhere else, also after a reload.

use std::net::Ipv4Addr;
use std::time::Instant;

use crate::support::{Client, MESSAGE, PATIENCE, Reply, Server};

/// A listener by its number, and the client's address 127.0.0.`last`.
#[derive(Clone, Copy)]
struct At<'a> {
    server: &'a Server,
    listener: usize,
    last: u8,
}

impl At<'_> {
    /// A connected client, and the greeting.
    fn open(self) -> (Client, Reply) {
        let from = Ipv4Addr::new(127, 0, 0, self.last);
        let mut client = Client::open_from(from, self.server.addresses[self.listener]).expect("connect");
        let greeting = client.reply();
        (client, greeting)
    }

    /// A client after EHLO, and the answer to it.
    fn hello(self) -> (Client, Reply) {
        let (mut client, greeting) = self.open();
        assert_eq!(greeting.code, 220, "{greeting:?}");
        let hello = client.expect("EHLO client.example.net", 250);
        (client, hello)
    }

    /// The replies to these commands and a final QUIT, until the connection ends.
    fn codes(self, commands: &[&str]) -> Vec<u16> {
        let (mut client, _) = self.hello();
        client.send(format!("{}\r\nQUIT\r\n", commands.join("\r\n")).as_bytes()).expect("send commands");
        std::iter::from_fn(|| client.try_reply().ok()).map(|reply| reply.code).collect()
    }

    /// The reply to a message.
    fn message(self, message: &[u8]) -> u16 {
        self.hello().0.try_message("s@example.net", &["a@example.org"], message).expect("a reply").code
    }
}

/// A message with this body.
fn with_body(body: &[u8]) -> Vec<u8> {
    [b"Subject: x\r\n\r\n", body, b"\r\n"].concat()
}

/// Limits of a session, each far from the value elsewhere.
const LIMITS: &str = "limits = { message_bytes = 4096, header_bytes = 1024, recipients = 2, messages_per_session = 1, \
                      command_line_bytes = 600, text_line_bytes = 2000, discard_bytes = 100000, errors = 2, \
                      deferred_recipients = 1, idle_commands = 5, hops = 1 }";

/// Replies of a listener with [`LIMITS`].
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    size: String,
    header: u16,
    third_recipient: u16,
    second_message: u16,
    long_command: u16,
    long_line: u16,
    is_open_behind_a_long_refused_message: bool,
    behind_three_errors: u16,
    behind_five_recipients: u16,
    behind_seven_idle_commands: u16,
    one_hop: u16,
}

impl Limits {
    fn of(at: At<'_>) -> Self {
        let hello = at.hello().1.text;
        let size = hello.lines().find_map(|line| line.strip_prefix("SIZE ")).expect("SIZE is announced").to_owned();
        let begun = ["MAIL FROM:<s@example.net>"].into_iter().chain([RCPT; 5]).collect::<Vec<_>>();
        let (mut session, _) = at.hello();
        session.deliver(&["a@example.org"], MESSAGE);
        let second_message = session.command("MAIL FROM:<s@example.net>").code;
        let last = |commands: &[&str]| *at.codes(commands).last().expect("a reply");
        Self {
            size,
            header: at.message(&[b"X-Filler: 0123456789\r\n".repeat(60), MESSAGE.to_vec()].concat()),
            third_recipient: at.codes(&begun[..4])[3],
            second_message,
            long_command: at.codes(&[&format!("NOOP {}", "x".repeat(550))])[0],
            long_line: at.message(&with_body(&[b'x'; 1100])),
            is_open_behind_a_long_refused_message: is_open_behind_a_long_refused_message(at),
            behind_three_errors: last(&["BOGUS"; 3]),
            behind_five_recipients: last(&begun),
            behind_seven_idle_commands: last(&["NOOP"; 7]),
            one_hop: at.message(&[b"Received: from x by y; z\r\n", MESSAGE].concat()),
        }
    }

    fn elsewhere() -> Self {
        Self {
            size: (50 << 20).to_string(),
            header: 250,
            third_recipient: 250,
            second_message: 250,
            long_command: 500,
            long_line: 554,
            is_open_behind_a_long_refused_message: true,
            behind_three_errors: 221,
            behind_five_recipients: 221,
            behind_seven_idle_commands: 221,
            one_hop: 250,
        }
    }

    fn set() -> Self {
        Self {
            size: "4096".to_owned(),
            header: 552,
            third_recipient: 452,
            second_message: 421,
            long_command: 250,
            long_line: 250,
            is_open_behind_a_long_refused_message: false,
            behind_three_errors: 421,
            behind_five_recipients: 421,
            behind_seven_idle_commands: 421,
            one_hop: 554,
        }
    }
}

const RCPT: &str = "RCPT TO:<a@example.org>";

fn is_open_behind_a_long_refused_message(at: At<'_>) -> bool {
    let (mut client, _) = at.hello();
    let lines = [b"a\nb\r\n".to_vec(), b"0123456789\r\n".repeat(30_000)].concat();
    // A server that cuts it off may be heard or not.
    let _ = client.try_message("s@example.net", &["a@example.org"], &with_body(&lines));
    client.send(b"NOOP\r\n").is_ok() && client.try_reply().is_ok_and(|reply| reply.code == 250)
}

/// Policies, each the opposite of the value elsewhere.
const POLICY: &str = "policy = { bare_newlines = \"accept\", nul_octets = \"accept\", long_lines = \"accept\", forbidden_commands = [] }";

/// Replies of a listener with [`POLICY`].
#[derive(Debug, PartialEq, Eq)]
struct Policy {
    bare_newline: u16,
    nul: u16,
    long_line: u16,
    http: Vec<u16>,
}

impl Policy {
    fn of(at: At<'_>) -> Self {
        Self {
            bare_newline: at.message(&with_body(b"a\nb")),
            nul: at.message(&with_body(b"a\0b")),
            // Longer than any `text_line_bytes` here.
            long_line: at.message(&with_body(&[b'x'; 2100])),
            http: at.codes(&["GET / HTTP/1.1"]),
        }
    }

    fn elsewhere() -> Self {
        Self { bare_newline: 550, nul: 550, long_line: 554, http: vec![502] }
    }

    fn set() -> Self {
        Self { bare_newline: 250, nul: 250, long_line: 250, http: vec![500, 221] }
    }
}

/// A configuration with these keys for each listener, and for networks of one address.
fn config(listeners: &[&str], networks: &[(u8, &str)]) -> String {
    let mut text = "host_name = \"mx.example.org\"\n".to_owned();
    for keys in listeners {
        text += &format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{keys}\n");
    }
    for (last, keys) in networks {
        text += &format!("[[network]]\ncidr = \"127.0.0.{last}\"\n{keys}\n");
    }
    text + "[[domain]]\nname = \"example.org\"\nusers = \"any\"\n"
}

fn reload(server: &Server, config: &str) {
    server.reload(config);
    server.wait_for_log("configuration reloaded");
    assert!(!server.log_text().contains("need a restart"), "{}", server.log_text());
}

#[test]
fn limits_and_policies_act_at_their_listener_and_network() {
    let base = "[limits]\nrecipients = 3\n[policy]\nlong_lines = \"reject\"\n";
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &(config(&["", LIMITS, POLICY], &[(2, LIMITS), (3, POLICY)]) + base));
    let at = |listener, last| At { server: &server, listener, last };
    let check = |listener, last, limits: Limits, policy: Policy| {
        assert_eq!(Limits::of(at(listener, last)), limits, "listener {listener}, from 127.0.0.{last}");
        assert_eq!(Policy::of(at(listener, last)), policy, "listener {listener}, from 127.0.0.{last}");
    };
    check(0, 1, Limits::elsewhere(), Policy::elsewhere());
    check(1, 1, Limits::set(), Policy::elsewhere());
    check(2, 1, Limits { long_line: 250, ..Limits::elsewhere() }, Policy::set());
    check(0, 2, Limits::set(), Policy::elsewhere());
    check(0, 3, Limits { long_line: 250, ..Limits::elsewhere() }, Policy::set());
    // A network's own come on top of the listener's own.
    check(1, 3, Limits::set(), Policy::set());
    check(2, 2, Limits::set(), Policy::set());

    let (mut open, _) = at(1, 1).hello();
    let both = format!("{LIMITS}\n{POLICY}");
    reload(&server, &(config(&[&both, "", ""], &[(4, LIMITS), (5, POLICY)]) + base));
    check(0, 1, Limits::set(), Policy::set());
    check(1, 1, Limits::elsewhere(), Policy::elsewhere());
    check(2, 2, Limits::elsewhere(), Policy::elsewhere());
    check(2, 3, Limits::elsewhere(), Policy::elsewhere());
    check(1, 4, Limits::set(), Policy::elsewhere());
    check(2, 5, Limits { long_line: 250, ..Limits::elsewhere() }, Policy::set());
    // A session keeps what it began with.
    open.expect("MAIL FROM:<s@example.net> SIZE=5000", 552);
    drop(open);
    server.stop();
}

#[test]
fn each_listener_has_its_protocol_clients_and_limits() {
    let dir = tempfile::tempdir().unwrap();
    let listeners = |allowed: u8, one: &str, all: &str| {
        let allow = format!("allow = \"127.0.0.{allowed}\"");
        let keys = ["", &allow, "protocol = \"lmtp\"", "proxy_protocol = true\nproxies = \"127.0.0.1\"", one, all];
        config(&keys, &[(6, "limits = { connections_per_address = 2 }"), (7, "limits = { connections = 2 }")])
    };
    let one = "limits = { connections_per_address = 1 }";
    let all = "limits = { connections = 1 }";
    let server = Server::start(dir.path(), &listeners(2, one, all));
    let open = |listener, last| At { server: &server, listener, last }.open();
    let greeted = |listener, last| {
        let (client, greeting) = open(listener, last);
        (greeting.code == 220).then_some(client).ok_or(greeting.code)
    };
    // A place comes free when the server has seen the end of the connection.
    let until_greeted = |listener, last| {
        let begun = Instant::now();
        loop {
            match greeted(listener, last) {
                Ok(client) => return client,
                Err(code) => assert!(code == 421 && begun.elapsed() < PATIENCE, "{code}"),
            }
        }
    };
    let refused = |listener, last| greeted(listener, last).err();

    assert_eq!(refused(1, 1), Some(554));
    assert_eq!([refused(1, 2), refused(0, 1), refused(0, 2)], [None; 3]);

    greeted(2, 1).unwrap().expect("LHLO client.example.net", 250);
    greeted(2, 1).unwrap().expect("EHLO client.example.net", 500);
    greeted(0, 1).unwrap().expect("LHLO client.example.net", 500);

    let mut proxy = Client::open(server.addresses[3]).unwrap();
    proxy.send(b"PROXY TCP4 192.0.2.1 127.0.0.1 1 25\r\n").unwrap();
    assert_eq!(proxy.reply().code, 220);
    let mut plain = greeted(0, 1).unwrap();
    plain.expect("PROXY TCP4 192.0.2.1 127.0.0.1 1 25", 500);

    // One for each address at this listener, two for a network that says so; no such number at the others.
    let held = until_greeted(4, 1);
    assert_eq!([refused(4, 1), refused(4, 2), refused(0, 1)], [Some(421), None, None]);
    let two = [until_greeted(4, 6), until_greeted(4, 6)];
    assert_eq!([refused(4, 6), refused(0, 6)], [Some(421), Some(421)], "a network's number is for all listeners");
    drop((held, two));

    let held = until_greeted(5, 1);
    assert_eq!([refused(5, 2), refused(0, 2)], [Some(421), None]);
    drop(held);

    // A network's number counts over all listeners.
    let two = [until_greeted(0, 7), until_greeted(2, 7)];
    assert_eq!([refused(0, 7), refused(4, 7), refused(0, 8)], [Some(421), Some(421), None]);
    drop(two);

    reload(&server, &listeners(1, "", one));
    assert_eq!([refused(1, 1), refused(1, 2)], [None, Some(554)]);
    let held = [until_greeted(4, 1), until_greeted(4, 1), until_greeted(5, 1)];
    assert_eq!([refused(5, 1), refused(5, 2)], [Some(421), None]);
    drop(held);
    server.stop();
}

#[test]
fn each_listener_has_its_own_times() {
    let dir = tempfile::tempdir().unwrap();
    let keys =
        ["", "limits = { command_secs = 1 }", "limits = { body_read_secs = 1 }", "limits = { body_total_secs = 1 }"];
    let server = Server::start(dir.path(), &config(&keys, &[(2, keys[1])]));
    let at = |listener, last| At { server: &server, listener, last };
    // In one piece: the time must not be over before the message has begun, however slow this process is.
    let begin = |listener, data: &str, code| {
        let (mut client, _) = at(listener, 1).open();
        let envelope = format!("EHLO client.example.net\r\nMAIL FROM:<s@example.net>\r\n{RCPT}\r\n");
        client.send(format!("{envelope}{data}\r\n").as_bytes()).unwrap();
        for code in [250, 250, 250, code] {
            assert_eq!(client.reply().code, code);
        }
        client
    };
    let idle = |listener, last| at(listener, last).open().0;
    let body = |listener| begin(listener, "DATA", 354);
    let chunk = |listener| begin(listener, "BDAT 3\r\na", 250);
    let times_out = |mut client: Client| {
        let reply = client.reply();
        assert_eq!((reply.code, &reply.text[..5]), (421, "4.4.2"), "{reply:?}");
    };

    let (mut long_idle, mut long_body, mut long_chunk) = (idle(0, 1), body(0), chunk(0));
    times_out(idle(1, 1));
    times_out(idle(0, 2));
    times_out(body(2));
    times_out(chunk(3));
    long_idle.expect("NOOP", 250);
    assert_eq!(long_body.command("Subject: x\r\n\r\nx\r\n.").code, 250);
    long_chunk.expect("BDAT 0 LAST", 250);

    let keys = [keys[1], keys[0], keys[0], keys[0]];
    reload(&server, &config(&keys, &[(2, "limits = { command_secs = 300 }")]));
    let (mut long_idle, mut of_network, mut long_body, mut long_chunk) = (idle(1, 1), idle(0, 2), body(2), chunk(3));
    times_out(idle(0, 1));
    long_idle.expect("NOOP", 250);
    of_network.expect("NOOP", 250);
    assert_eq!(long_body.command("Subject: x\r\n\r\nx\r\n.").code, 250);
    long_chunk.expect("BDAT 0 LAST", 250);
    drop((long_idle, of_network, long_body, long_chunk));
    server.stop();
}

#[test]
fn a_closed_connection_is_read_as_long_as_its_listener_says() {
    let base = "[limits]\nlinger_secs = 600\n";
    let dir = tempfile::tempdir().unwrap();
    let none = "limits = { linger_secs = 0 }";
    let server = Server::start(dir.path(), &(config(&["", none], &[(2, none)]) + base));
    // More than all buffers between the two can hold.
    let is_read = |listener, last| {
        let (mut client, _) = At { server: &server, listener, last }.open();
        client.expect("QUIT", 221);
        assert!(client.try_reply().is_err(), "the server has nothing more to say");
        (0..1000).all(|_| client.send(&[b'x'; 64 << 10]).is_ok())
    };
    assert_eq!([is_read(0, 1), is_read(1, 1), is_read(0, 2)], [true, false, false]);
    reload(&server, &(config(&[none, ""], &[(3, "limits = { linger_secs = 500 }")]) + base));
    assert_eq!([is_read(0, 1), is_read(1, 1), is_read(1, 2), is_read(0, 3)], [false, true, true, true]);
    server.stop();
}

#[test]
fn the_spool_share_of_a_client_is_by_listener_or_network() {
    let dir = tempfile::tempdir().unwrap();
    let base = "[limits]\nmessage_bytes = \"2M\"\nspool_per_address = \"16M\"\n";
    let share = "limits = { spool_per_address = \"2M\" }";
    let server = Server::start(dir.path(), &(config(&["", share], &[(3, share)]) + base));
    // Which of them takes a message of 1.5 MB beside one of 1.2 MB that is under way.
    let takes = |listener, last| {
        let mut client = At { server: &server, listener, last }.hello().0;
        client.command("MAIL FROM:<s@example.net> SIZE=1500000").code
    };
    let begin = |last| {
        let (mut client, _) = At { server: &server, listener: 0, last }.hello();
        client.expect("MAIL FROM:<s@example.net>", 250);
        client.expect(RCPT, 250);
        client.send(b"BDAT 1200000\r\n").unwrap();
        client.send(&[&b"Subject: x\r\n\r\n"[..], &[b'x'; 1_199_986]].concat()).unwrap();
        assert_eq!(client.reply().code, 250);
        client
    };
    let _under_way = [begin(1), begin(3)];
    assert_eq!([takes(0, 1), takes(1, 1), takes(1, 2), takes(0, 3), takes(0, 2)], [250, 452, 250, 452, 250]);
    reload(&server, &(config(&[share, ""], &[(1, "limits = { spool_per_address = \"8M\" }")]) + base));
    assert_eq!([takes(0, 3), takes(1, 3), takes(0, 1), takes(1, 1)], [452, 250, 250, 250]);
}
