//! Programs, files and servers as they are, and as they must not be.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_intake::Destination as _;
use posthaste_spool::{Batch, Body, ClosedFileSpool, Entry, FileSpool, OpenError, Spool};
use posthaste_units::BackOff;

use crate::inspect::undelivered;
use crate::{
    Config, Failure, Target, TransportEvent, TransportEvents, TransportMessage, TransportWaits, Transports,
    WaitingTarget,
};

/// Long enough for a machine with other work; nothing is measured with it.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct World {
    dir: tempfile::TempDir,
    pub spool: Arc<FileSpool>,
    pub transports: Transports,
    events: Receiver<TransportEvent>,
}

impl World {
    pub fn new(config: Config) -> Self {
        Self::at(tempfile::tempdir().unwrap(), config)
    }

    fn at(dir: tempfile::TempDir, config: Config) -> Self {
        let mut settings = posthaste_spool::Config::default();
        settings.ring.segment_bytes = 4 << 20;
        // A program that another test has started holds each lock of this process until it is executed.
        let end = Instant::now() + PATIENCE;
        let (spool, _) = loop {
            match FileSpool::open(&dir.path().join("spool"), settings.clone()) {
                Err(OpenError::Locked) if Instant::now() < end => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        let spool = Arc::new(spool);
        let (tell, events) = channel();
        let tell = Mutex::new(tell);
        let events_to = TransportEvents::new(move |event| drop(tell.lock().unwrap().send(event)));
        let (transports, _) = Transports::open(spool.clone(), config, events_to).unwrap();
        World { dir, spool, transports, events }
    }

    /// Ends it and begins anew on what is there.
    pub fn again(self, config: Config) -> Self {
        let World { dir, spool, transports, .. } = self;
        drop(transports);
        let spool = Arc::into_inner(spool).expect("nobody else has it");
        spool.checkpoint().unwrap();
        drop(spool);
        Self::at(dir, config)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A shell script as a program.
    pub fn script(&self, script: &str) -> String {
        assert!(!script.contains('"'));
        format!("|/bin/sh -c \"{}\"", script.replace("DIR", self.dir.path().to_str().unwrap()))
    }

    pub fn send(&self, targets: &[(&str, &str)], body: &[u8]) -> u64 {
        let target = |(transport, recipient): &(&str, &str)| Target {
            transport: (*transport).into(),
            recipient: (*recipient).into(),
            original: "As+Given@example.org".into(),
            detail: recipient.split_once('@').unwrap().0.split_once('+').map_or("", |(_, detail)| detail).into(),
        };
        let targets = targets.iter().map(target).collect();
        let message = TransportMessage { sender: "s@example.net".into(), is_8bit: false, smtputf8: false, targets };
        append(&*self.spool, self.transports.entry(message), body)
    }

    pub fn event(&self) -> TransportEvent {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn until_delivered(&self, count: u64) {
        self.until("all is delivered", || self.transports.stats().delivered == count);
    }
}

pub(crate) fn append(spool: &dyn Spool, entry: Entry, body: &[u8]) -> u64 {
    let (tell, told) = channel();
    let body = Body::inline(vec![body.to_vec().into()]);
    spool.append(Batch { entries: vec![entry], body }, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap().get()
}

/// Retries at once, as far as a test waits for them.
pub(crate) fn quick() -> Config {
    let moment = Duration::from_millis(10);
    Config { retry: BackOff::new(moment, moment), ..Config::default() }
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_program_gets_the_message_and_an_environment_of_its_own() {
    // The parent process of the tests may have left some open.
    crate::close_inherited_on_exec().expect("Linux 5.11 or later");
    let world = World::new(Config::default());
    let program =
        world.script("(pwd; ls /proc/self/fd | wc -l; env | sort; echo; cat) > DIR/out.new; mv DIR/out.new DIR/out");
    world.send(&[(&program, "list+x@example.org")], b"Subject: a\r\n\r\nFrom b\r\n.\r\n");
    world.until_delivered(1);
    let out = read(world.path("out"));
    // Standard input, output and error, and the directory that `ls` reads.
    let expected = "/\n4\nDOMAIN=example.org\nEXTENSION=x\nHOME=/\nLANG=C.UTF-8\nLOCAL=list+x\nLOGNAME=list\n\
         ORIGINAL_RECIPIENT=As+Given@example.org\nPATH=/usr/local/bin:/usr/bin:/bin\nPWD=/\nRECIPIENT=list+x@example.org\n\
         SENDER=s@example.net\nSHELL=/bin/sh\nUSER=list\n\n\
         Return-Path: <s@example.net>\nDelivered-To: list+x@example.org\nSubject: a\n\nFrom b\n.\n";
    let out: Vec<&str> = out
        .lines()
        .filter(|line| !line.starts_with("_=") && !line.starts_with("SHLVL=") && !line.starts_with("OLDPWD="))
        .collect();
    assert_eq!(out.join("\n") + "\n", expected);
    let world = world.again(Config::default());
    assert_eq!(world.transports.stats().messages, 0, "it is delivered");
}

#[test]
fn arguments_are_never_read_by_a_shell() {
    let world = World::new(Config::default());
    let file = world.path("file;touch x $(id)");
    world.send(&[(&format!("|/usr/bin/tee \"{}\"", file.display()), "a@example.org")], b"text\r\n");
    world.until_delivered(1);
    assert!(read(&file).ends_with("\ntext\n"));
}

#[test]
fn a_hanging_program_is_killed_with_its_children() {
    let world = World::new(Config { program_time: Duration::from_secs(10), ..Config::default() });
    let hangs = world.script("sleep 4321 & echo $! > DIR/child.new; mv DIR/child.new DIR/child; sleep 4321");
    let id = world.send(&[(&hangs, "a@example.org")], b"text\r\n");
    let good = world.script("cat > /dev/null");
    for _ in 0..20 {
        world.send(&[(&good, "b@example.org")], b"text\r\n");
    }
    world.until_delivered(20);
    let TransportEvent::Failed { id: failed, error, attempts: 1, .. } = world.event() else { panic!("not killed") };
    assert!(failed == id && error.ends_with("/bin/sh: killed after 10 s"), "{error}");
    let child = read(world.path("child"));
    let status = || read(format!("/proc/{}/status", child.trim()));
    world.until("the child is killed", || !status().contains("sleep") || status().contains("State:\tZ"));
}

#[test]
fn twenty_programs_that_hang_leave_room_for_one_that_does_not() {
    let world = World::new(Config { shutdown_patience: Duration::ZERO, ..Config::default() });
    // More than workers that count: each takes four.
    for number in 0..20 {
        let hangs = world.script(&format!("sleep 4{number:02}"));
        for _ in 0..5 {
            world.send(&[(&hangs, "a@example.org")], b"text\r\n");
        }
    }
    world.send(&[(&world.script("cat > /dev/null"), "b@example.org")], b"text\r\n");
    world.until_delivered(1);
}

#[test]
fn a_program_is_judged_by_its_exit_status_alone() {
    let world = World::new(quick());
    let large = vec![b'x'; 3 << 20];
    world.send(&[(&world.script("exit 0"), "a@example.org")], &large);
    world.until_delivered(1);
    // The child has the pipes open for longer than anybody waits.
    world.send(&[(&world.script("cat > /dev/null; sleep 5 & exit 0"), "a@example.org")], &large);
    world.until_delivered(2);
    world.send(
        &[(&world.script("head -c 5000000 /dev/zero | tr '\\0' 'y'; echo end >&2; exit 75"), "a@example.org")],
        &large,
    );
    let TransportEvent::Failed { error, .. } = world.event() else { panic!("75 is not a refusal") };
    assert!(error.starts_with("/bin/sh: exit status 75: ") && error.len() < 600, "{error}");
}

#[test]
fn what_an_exit_status_means() {
    let world = World::new(Config::default());
    for (code, is_refusal) in [
        (1, false),
        (65, true),
        (66, false),
        (67, true),
        (68, true),
        (69, true),
        (71, false),
        (75, false),
        (77, true),
        (78, false),
    ] {
        world.send(&[(&world.script(&format!("echo no {code}; exit {code}")), "a@example.org")], b"text\r\n");
        match world.event() {
            TransportEvent::Failed { failure: Failure::Temporary, error, .. } if !is_refusal => {
                assert_eq!(&*error, format!("/bin/sh: exit status {code}: no {code}"))
            }
            TransportEvent::Failed { failure: Failure::Refused, error, .. } if is_refusal => {
                assert_eq!(&*error, format!("/bin/sh: exit status {code}: no {code}"))
            }
            other => panic!("{code}: {other:?}"),
        }
    }
    world.send(&[(&world.script("kill -9 $$"), "a@example.org")], b"text\r\n");
    let TransportEvent::Failed { error, .. } = world.event() else { panic!("a signal is not a refusal") };
    assert_eq!(&*error, "/bin/sh: ended by signal 9");
    world.send(&[("|/no/such/program", "a@example.org")], b"text\r\n");
    let TransportEvent::Unavailable { error, .. } = world.event() else { panic!("it cannot be there") };
    assert!(error.starts_with("/no/such/program: No such file"), "{error}");
}

#[test]
fn what_was_refused_stays_is_listed_and_is_tried_on_demand() {
    let world = World::new(Config::default());
    let program = world.script("test -e DIR/good || { echo unknown; exit 67; }");
    let id = world.send(&[(&program, "a@example.org")], b"text\r\n");
    let TransportEvent::Failed { failure: Failure::Refused, id: of, attempts: 1, .. } = world.event() else {
        panic!("no first refusal")
    };
    assert_eq!(of, id);
    let mut waiting = Vec::new();
    world.transports.waiting(&mut |target| {
        waiting.push(target);
        std::ops::ControlFlow::Continue(())
    });
    let [WaitingTarget { waits: TransportWaits::Held(_), why: Some(why), id: of, .. }] = &*waiting else {
        panic!("{waiting:?}")
    };
    assert_eq!((*of, &**why), (id, "/bin/sh: exit status 67: unknown"));
    world.until("inspect tells", || {
        let waiting = undelivered(&ClosedFileSpool::glance(&world.path("spool")).unwrap()).unwrap();
        let trouble = waiting.first().and_then(|message| message.targets[0].trouble.clone());
        trouble.is_some_and(|trouble| {
            trouble.failure == Failure::Refused
                && trouble.attempts == 1
                && &*trouble.error.text == "/bin/sh: exit status 67: unknown"
        })
    });
    world.transports.retry();
    assert!(matches!(world.event(), TransportEvent::Failed { failure: Failure::Refused, attempts: 2, .. }));
    let world = world.again(Config::default());
    assert!(matches!(world.event(), TransportEvent::Failed { failure: Failure::Refused, is_new: true, .. }));
    std::fs::write(world.path("good"), "").unwrap();
    world.transports.retry();
    world.until_delivered(1);
    world.until("nothing waits", || {
        undelivered(&ClosedFileSpool::glance(&world.path("spool")).unwrap()).unwrap().is_empty()
    });
}

#[test]
fn mail_for_a_transport_has_a_bound_of_its_own() {
    let world = World::new(Config { pending_bytes_max: 100_000, ..Config::default() });
    let transport = |text: &str| posthaste_directory::Transport::parse(text).unwrap().unwrap();
    world.send(&[("|/no/such/program", "a@example.org")], &[b'x'; 99_000]);
    assert!(matches!(world.event(), TransportEvent::Unavailable { .. }));
    assert!(world.transports.check_transport(transport("|/no/such/program").text()).is_err());
    assert!(world.transports.check_transport(transport("|/another").text()).is_ok());
}

#[test]
fn a_stuck_transport_holds_only_its_own_mail_in_the_spool() {
    let world = World::new(Config { retry: BackOff::new(PATIENCE, PATIENCE), ..quick() });
    let stuck = world.send(&[("|/no/such/program", "a@example.org")], b"stuck\r\n");
    assert!(matches!(world.event(), TransportEvent::Unavailable { .. }));
    let good = world.script("cat > /dev/null");
    let mut last = 0;
    for _ in 0..10 {
        last = world.send(&[(&good, "b@example.org")], b"text\r\n");
    }
    world.until_delivered(10);
    let stream = || world.spool.streams().into_iter().find(|stream| stream.name == crate::STREAM).unwrap();
    // What the keeper of a full ring asks for.
    world.until("it is passed", || {
        world.transports.want(posthaste_spool::Lsn::new(last));
        stream().position.get() > last
    });
    world.until("one body is left", || stream().bodies == 1);
    let world = world.again(quick());
    assert_eq!(world.transports.stats().messages, 1);
    let TransportEvent::Unavailable { .. } = world.event() else { panic!("it is tried again") };
    let waiting = undelivered(&ClosedFileSpool::glance(&world.path("spool")).unwrap()).unwrap();
    assert_eq!(waiting.iter().map(|message| (message.id, message.bytes)).collect::<Vec<_>>(), [(stuck, 7)]);
}

#[test]
fn a_file_gets_each_message_in_mbox_format() {
    let world = World::new(Config::default());
    let file = world.path("file");
    let transport = file.to_str().unwrap().to_owned();
    world.send(&[(&transport, "a@example.org")], b"Subject: x\r\n\r\nFrom me\r\n>From you\r\n>> From\r\nFromage");
    world.until_delivered(1);
    world.send(&[(&transport, "a@example.org")], b"\r\n");
    world.until_delivered(2);
    let text = read(&file);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("From s@example.net ")
            && lines[0].len() == "From s@example.net Sun Nov  6 08:49:37 1994".len(),
        "{text}"
    );
    let head = ["Return-Path: <s@example.net>", "Delivered-To: a@example.org"];
    assert_eq!(lines[1..3], head);
    assert_eq!(lines[3..10], ["Subject: x", "", ">From me", ">>From you", ">> From", "Fromage", ""]);
    assert!(lines[10].starts_with("From s@example.net "));
    assert_eq!(lines[11..13], head);
    assert!(text.ends_with("Delivered-To: a@example.org\n\n\n"), "{text}");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!world.path("file.lock").exists());
}

#[test]
fn a_locked_file_is_waited_for_and_a_strange_one_left_alone() {
    let world = World::new(Config { lock_time: Duration::from_millis(200), ..quick() });
    let (file, lock) = (world.path("file"), world.path("file.lock"));
    let transport = file.to_str().unwrap().to_owned();
    // Of a process that lives: our own.
    std::fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
    world.send(&[(&transport, "a@example.org")], b"text\r\n");
    let TransportEvent::Unavailable { error, .. } = world.event() else { panic!("it is locked") };
    assert!(error.contains("another program holds") && !file.exists(), "{error}");
    // Of a process that does not.
    std::fs::write(&lock, "2147483646\n").unwrap();
    world.until_delivered(1);
    assert!(!lock.exists() && read(&file).ends_with("\ntext\n\n"));
    let elsewhere = world.path("elsewhere");
    std::fs::write(&elsewhere, "x").unwrap();
    for make in [
        |from: &Path, to: &Path| std::os::unix::fs::symlink(from, to).unwrap(),
        |from: &Path, to: &Path| std::fs::hard_link(from, to).unwrap(),
        |_: &Path, to: &Path| std::fs::create_dir(to).unwrap(),
    ] {
        let strange = tempfile::tempdir().unwrap();
        let strange = strange.path().join("strange");
        make(&elsewhere, &strange);
        world.send(&[(strange.to_str().unwrap(), "a@example.org")], b"text\r\n");
        world.until("it is not used", || {
            matches!(world.event(), TransportEvent::Unavailable { transport, .. } if *transport == *strange.to_str().unwrap())
        });
    }
    assert_eq!(read(&elsewhere), "x");
}
