//! Measures messages/s that the sink takes, and its CPU time for each, beside Postfix's `smtp-sink` where that is
//! installed, in turns. The load is 10 KiB of text over 50 connections that stay open. The generator sends prepared
//! bytes, so that the sink is the limit and not the client. Sink and generator are two processes.
//!
//! - *lock step*: each command waits for the reply to the one before, as `smtp-source` does;
//! - *pipelined*: a message's end and the next one's MAIL, RCPT and DATA travel together (RFC 2920).
//!
//! Leaves out TLS, rules, stores, connection setup. `cargo bench -p posthaste-loadgen --bench sink` runs it whole (5 rounds),
//! `cargo test --benches` tiny and without the other sink.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use posthaste_loadgen::measure::Spread;
use posthaste_loadgen::sink::{Options, Sink};
use rustix::time::{ClockId, clock_gettime};

const CONNECTIONS: usize = 50;
const MESSAGE_BYTES: usize = 10 << 10;
/// Says to the program itself: be the sink.
const AS_SINK: &str = "--be-the-sink";

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == AS_SINK) {
        return be_the_sink(args[at + 1].parse().expect("a number of threads"));
    }
    let whole = args.iter().any(|arg| arg == "--bench");
    let (rounds, messages) = if whole { (5, 60_000) } else { (1, 500) };
    let mut sinks = vec![Target::ours(2), Target::ours(1)];
    if whole {
        sinks.extend(Target::smtp_sink());
    }
    let (script, mut rows) = (Script::new(), Vec::new());
    for _ in 0..rounds {
        for (index, target) in sinks.iter().enumerate() {
            for mode in [Mode::LockStep, Mode::Pipelined] {
                rows.push((index, mode, round(target, &script, mode, messages)));
            }
        }
    }
    println!(
        "{:<26} {:<10} {:>36} {:>12} {:>12}",
        "", "", "messages/s: median (least - most)", "sink us/msg", "client us/msg"
    );
    for mode in [Mode::LockStep, Mode::Pipelined] {
        for (index, target) in sinks.iter().enumerate() {
            let of_both = rows.iter().filter(|row| row.0 == index && row.1 == mode);
            print_row(&target.name, mode, &of_both.map(|row| row.2).collect::<Vec<_>>());
        }
    }
}

fn print_row(name: &str, mode: Mode, runs: &[Run]) {
    let of = |figure: fn(&Run) -> f64| Spread::of(runs.iter().map(figure)).expect("there was a round");
    let rate = of(|run| run.rate);
    let rates = format!("{:.0} ({:.0} - {:.0})", rate.median, rate.min, rate.max);
    let (sink_us, client_us) = (of(|run| run.sink_us).median, of(|run| run.client_us).median);
    println!("{name:<26} {mode:<10?} {rates:>36} {sink_us:>12.1} {client_us:>12.1}");
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    LockStep,
    Pipelined,
}

#[derive(Clone, Copy)]
struct Run {
    rate: f64,
    sink_us: f64,
    client_us: f64,
}

/// A sink in its own process, ended with this value.
struct Target {
    name: String,
    child: Child,
    address: SocketAddr,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Target {
    fn ours(threads: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args([AS_SINK, &threads.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the sink starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("the sink's address");
        let address = line.trim().parse().expect("an address");
        Self { name: format!("posthaste, {threads} thread(s)"), child, address }
    }

    fn smtp_sink() -> Option<Self> {
        let program =
            ["/usr/sbin/smtp-sink", "/usr/local/sbin/smtp-sink"].into_iter().find(|p| Path::new(p).exists())?;
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "postfix"]);
        }
        let child = command.args([&address.to_string(), "500"]).stderr(Stdio::null()).spawn().ok()?;
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(started.elapsed() < Duration::from_secs(10), "smtp-sink does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self { name: "smtp-sink".into(), child, address })
    }

    /// Processor time of the sink so far.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the sink lives");
        let (_, behind_name) = stat.rsplit_once(')').expect("a stat line");
        let ticks = |field: usize| behind_name.split_whitespace().nth(field).and_then(|t| t.parse::<u64>().ok());
        let total = ticks(11).expect("utime") + ticks(12).expect("stime");
        Duration::from_secs_f64(total as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

fn be_the_sink(threads: usize) {
    let options = Options { listen: "127.0.0.1:0".into(), threads, ..Options::default() };
    let sink = Sink::start(options).expect("the sink starts");
    println!("{}", sink.local_addr());
    // Until the one who started it is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Prepared bytes of a session.
struct Script {
    commands: [&'static str; 3],
    body: Vec<u8>,
    body_and_commands: Vec<u8>,
}

impl Script {
    fn new() -> Self {
        let commands = ["MAIL FROM:<a@client.example>\r\n", "RCPT TO:<b@sink.example>\r\n", "DATA\r\n"];
        let mut body = b"From: <a@client.example>\r\nTo: <b@sink.example>\r\nSubject: bench\r\n\r\n".to_vec();
        for line in 0_u64.. {
            if body.len() >= MESSAGE_BYTES {
                break;
            }
            // Not runs of one letter: a number that changes, and words.
            let text = format!(
                "Line {line:04} of an ordinary message, {:016x}, and it goes on.\r\n",
                line.wrapping_mul(0x9E37_79B9_7F4A_7C15)
            );
            body.extend_from_slice(text.as_bytes());
        }
        body.extend_from_slice(b".\r\n");
        let body_and_commands = [&body, commands.concat().as_bytes()].concat();
        Self { commands, body, body_and_commands }
    }
}

fn round(target: &Target, script: &Script, mode: Mode, messages: usize) -> Run {
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::hello(target.address)).collect();
    let turns = messages / CONNECTIONS;
    let (started, sink_before, own_before) = (Instant::now(), target.cpu(), own_cpu());
    match mode {
        Mode::LockStep => {
            for _ in 0..turns {
                for command in script.commands {
                    exchange(&mut clients, command.as_bytes(), 1);
                }
                exchange(&mut clients, &script.body, 1);
            }
        }
        Mode::Pipelined => {
            exchange(&mut clients, script.commands.concat().as_bytes(), 3);
            for _ in 1..turns {
                exchange(&mut clients, &script.body_and_commands, 4);
            }
            exchange(&mut clients, &script.body, 1);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / messages as f64;
    Run {
        rate: messages as f64 / seconds,
        sink_us: each(target.cpu() - sink_before),
        client_us: each(own_cpu() - own_before),
    }
}

/// Writes to all, then reads from all: the sink has work for every connection before the first reply is looked at.
fn exchange(clients: &mut [Client], bytes: &[u8], replies: usize) {
    for client in &mut *clients {
        client.stream.write_all(bytes).expect("written");
    }
    for client in clients {
        client.expect(replies);
    }
}

fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("nanoseconds"))
}

struct Client {
    stream: TcpStream,
    buffer: [u8; 4096],
    /// The incomplete reply line.
    line: Vec<u8>,
}

impl Client {
    fn hello(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_nodelay(true).expect("an option is set");
        let mut client = Self { stream, buffer: [0; 4096], line: Vec::new() };
        client.expect(1);
        client.stream.write_all(b"EHLO client.example\r\n").expect("written");
        client.expect(1);
        client
    }

    /// Reads so many replies, which must be positive.
    fn expect(&mut self, mut replies: usize) {
        while replies > 0 {
            let n = self.stream.read(&mut self.buffer).expect("a reply");
            assert!(n > 0, "closed with {replies} replies to come");
            for part in self.buffer[..n].split_inclusive(|octet| *octet == b'\n') {
                self.line.extend_from_slice(part);
                if part.ends_with(b"\n") {
                    assert!(matches!(self.line[0], b'2' | b'3'), "{}", self.line.escape_ascii());
                    replies -= usize::from(self.line[3] == b' ');
                    self.line.clear();
                }
            }
        }
    }
}
