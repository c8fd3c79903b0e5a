//! The spool's disk fails while a server delivers mail to a program and an LMTP server, and posts events to a webhook.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_consumer::UNRECORDED_MAX;
use posthaste_loadgen::stamp;
use serde_json::Value;

use super::{Problems, until};
use crate::disk::Faults;
use crate::load::{DOMAIN, Load, message_of, send, user};
use crate::mount::FileSystem;
use crate::relay::hop::{Manner, NextHop};
use crate::relay::lines;
use crate::rig::{Environment, Rig, RigError};
use crate::server::{NOBODY, Setup};

/// Mail waits at a slow LMTP server, a slow program and a slow webhook; the disk fails meanwhile. From then on none of
/// them gets more than the deliveries in flight. After a power cut and a restart all of it arrives. The number of
/// copies is within the bound on unrecorded deliveries.
pub fn spool_fails(environment: &Environment) -> Result<Problems, RigError> {
    let mut problems = Problems::new();
    for faults in
        [Faults { writes_fail: true, ..Faults::default() }, Faults { flushes_fail: true, ..Faults::default() }]
    {
        problems.extend(fails_by(environment, faults)?);
    }
    Ok(problems)
}

fn fails_by(environment: &Environment, faults: Faults) -> Result<Problems, RigError> {
    let load = Load { large_one_in: u64::MAX, several_one_in: u64::MAX, body_bytes_max: 4 << 10, ..Load::mixed(51) };
    let rig = Rig::new(environment, FileSystem::Ext4, 192 << 20)?;
    let takers = Takers::new(&rig, &load)?;
    let setup = Setup { tables: Some(takers.tables()), ..rig.setup() };
    let mut mounted = Some(rig.mount()?);
    std::fs::set_permissions(rig.scratch(), std::fs::Permissions::from_mode(0o755))?;
    chown(rig.mount_point(), Some(NOBODY), Some(NOBODY))?;
    rig.disk.record();
    let server = setup.start()?;
    let sent = send(&load, server.address, 8, 0..MESSAGES, |_| ());
    let mut problems: Problems = super::unexpected(&sent, "").into_iter().collect();
    let few = |counts: Counts| counts.iter().all(|count| *count >= SOME);
    problems.extend(until("each has got some of it", || Ok(few(takers.counts()?)))?);
    rig.disk.set_faults(faults);
    for said in STOPPED {
        problems.extend(until(said, || Ok(server.read_log().contains(said)))?);
    }
    let stopped = takers.counts()?;
    let image = rig.disk.after_a_cut();
    rig.disk.set_faults(Faults::default());
    problems.extend(until("no session is left", || Ok(takers.lmtp.sessions() == 0))?);
    let log = server.read_log();
    for said in STOPPED.iter().filter(|said| log.matches(**said).count() != 1) {
        problems.push(format!("{} times in the log: {said}", log.matches(said).count()));
    }
    server.kill();
    for ((count, before), most) in takers.counts()?.iter().zip(stopped).zip(IN_FLIGHT_MAX) {
        if count - before > most {
            problems.push(format!("a failed spool and {} deliveries more", count - before));
        }
    }
    drop(mounted.take());
    rig.disk.exchange(image);
    rig.disk.record();
    takers.hook.is_slow.store(false, Ordering::Relaxed);
    let mounted = rig.mount()?;
    let server = setup.start()?;
    let acknowledged: Vec<u64> = sent.acknowledged.iter().map(|mark| message_of(*mark)).collect();
    problems.extend(until("all of it comes after the restart", || takers.have_all(&load, &acknowledged))?);
    let events = setup.data.join("events");
    problems.extend(until("all events are posted", || takers.have_events(&events))?);
    server.stop()?;
    for (what, twice) in takers.copies()? {
        if twice > UNRECORDED_MAX {
            problems.push(format!("{what}: {twice} came twice"));
        }
    }
    problems.extend(takers.lmtp.altered());
    drop(mounted);
    Ok(problems)
}

/// Deliveries to each taker: mail by LMTP, mail by the program, events.
type Counts = [u64; 3];

/// The receivers: an LMTP server for half of the mailboxes, a program for the others, and a webhook, all outside the
/// disks of the rig.
struct Takers {
    lmtp: NextHop,
    hook: HttpServer,
    /// Directory with a file for each completed run of the program.
    out: PathBuf,
    script: PathBuf,
    mailboxes: u64,
}

impl Takers {
    fn new(rig: &Rig, load: &Load) -> io::Result<Self> {
        let (out, script) = (rig.scratch().join("out"), rig.scratch().join("program.sh"));
        std::fs::create_dir(&out)?;
        chown(&out, Some(NOBODY), Some(NOBODY))?;
        let dir = out.display();
        std::fs::write(
            &script,
            format!("set -e\nf=$(mktemp {dir}/.XXXXXXXX)\ncat >\"$f\"\nsleep 0.02\nmv \"$f\" {dir}/\"${{f##*/.}}\"\n"),
        )?;
        let lmtp = NextHop::start(load, &rig.disk, Manner::Unhurried)?;
        Ok(Takers { lmtp, hook: HttpServer::start()?, out, script, mailboxes: load.mailboxes })
    }

    /// Configuration tables that route mail and events to them.
    fn tables(&self) -> String {
        let (lmtp, script, hook) = (self.lmtp.address, self.script.display(), self.hook.address);
        let program = |mailbox| format!("{} = \"|/bin/sh {script}\"\n", user(mailbox));
        let aliases: String = (0..self.mailboxes).filter(|mailbox| is_for_program(*mailbox)).map(program).collect();
        format!(
            "[[domain]]\nname = \"{DOMAIN}\"\nusers = \"any\"\ntransport = \"lmtp:{lmtp}\"\n[domain.aliases]\n{aliases}\
             [events]\nenabled = true\n[[webhook]]\nname = \"rig\"\nurl = \"http://{hook}/\"\nbatch = {BATCH}\n"
        )
    }

    /// Messages received whole by the program, with the number of copies.
    fn by_program(&self) -> io::Result<BTreeMap<u64, u64>> {
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(&self.out)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if let Some(stamp) = stamp::find(&std::fs::read(entry.path())?).filter(|stamp| stamp.is_intact) {
                *found.entry(stamp.id.number).or_default() += 1;
            }
        }
        Ok(found)
    }

    fn counts(&self) -> Result<Counts, RigError> {
        Ok([self.lmtp.taken(), self.by_program()?.values().sum(), self.hook.events().values().sum()])
    }

    fn have_all(&self, load: &Load, acknowledged: &[u64]) -> Result<bool, RigError> {
        let (lmtp, program) = (self.lmtp.copies(), self.by_program()?);
        let has = |number: &u64| match load.recipients(*number)[0] {
            mailbox if is_for_program(mailbox) => program.contains_key(number),
            mailbox => lmtp.contains_key(&crate::load::Entry { message: *number, mailbox }),
        };
        Ok(acknowledged.iter().all(has))
    }

    /// Compares the posted events with the log's files.
    fn have_events(&self, dir: &Path) -> Result<bool, RigError> {
        let posted = self.hook.events();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let mut numbers = BTreeMap::<String, u64>::new();
                for line in lines(&path)? {
                    let Some(lsn) = line["lsn"].as_str() else { continue };
                    let nth = numbers.entry(lsn.to_owned()).or_default();
                    if !posted.contains_key(&format!("{lsn}.{nth}")) {
                        return Ok(false);
                    }
                    *nth += 1;
                }
            }
        }
        Ok(true)
    }

    /// Extra copies of each kind.
    fn copies(&self) -> io::Result<[(&'static str, u64); 3]> {
        let too_many = |copies: &mut dyn Iterator<Item = u64>| copies.map(|copies| copies - 1).sum::<u64>();
        Ok([
            ("LMTP", too_many(&mut self.lmtp.copies().into_values())),
            ("the program", too_many(&mut self.by_program()?.into_values())),
            ("the webhook", too_many(&mut self.hook.events().into_values())),
        ])
    }
}

fn is_for_program(mailbox: u64) -> bool {
    mailbox % 2 == 1
}

/// An HTTP server that accepts every event, slowly at first. Its threads end with the connections of the mail server.
struct HttpServer {
    address: SocketAddr,
    is_slow: Arc<AtomicBool>,
    /// Number of posts of each event, by its `event_id`.
    posted: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl HttpServer {
    fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let posted = Arc::<Mutex<BTreeMap<String, u64>>>::default();
        let is_slow = Arc::new(AtomicBool::new(true));
        let (slow, shared) = (is_slow.clone(), posted.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (slow, shared) = (slow.clone(), shared.clone());
                std::thread::spawn(move || drop(take_posts(stream, &slow, &shared)));
            }
        });
        Ok(HttpServer { address, is_slow, posted })
    }

    fn events(&self) -> BTreeMap<String, u64> {
        lock(&self.posted).clone()
    }
}

fn lock(posted: &Mutex<BTreeMap<String, u64>>) -> MutexGuard<'_, BTreeMap<String, u64>> {
    posted.lock().expect("events that were posted")
}

/// Answers the requests of a connection.
fn take_posts(mut stream: TcpStream, is_slow: &AtomicBool, posted: &Mutex<BTreeMap<String, u64>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let (mut length, mut line) = (0, String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(digits) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = digits.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let events: Vec<Value> = serde_json::from_slice(&body)?;
        for id in events.iter().filter_map(|event| event["event_id"].as_str()) {
            *lock(posted).entry(id.to_owned()).or_default() += 1;
        }
        if is_slow.load(Ordering::Relaxed) {
            std::thread::sleep(POST_TAKES);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    }
}

const MESSAGES: u64 = 1500;
/// Deliveries to each taker before the disk fails: less than half.
const SOME: u64 = 100;
/// Events in a request.
const BATCH: u64 = 20;
/// Time to answer a post, so that events wait when the disk fails.
const POST_TAKES: Duration = Duration::from_millis(400);
/// Lines expected in the log, once each.
const STOPPED: [&str; 2] = [
    "nothing is delivered to transports until the server is restarted",
    "a webhook receives no more events until a restart",
];
/// Deliveries that may follow those lines: a transaction of each LMTP connection, running copies of the program, a
/// request.
const IN_FLIGHT_MAX: Counts = [8, 4, BATCH];
