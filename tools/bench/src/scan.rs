//! First indexing of Maildirs, and scans of Maildirs with few or no changes: ours in each way, mu, notmuch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_loadgen::scratch::write_back;

use crate::engines::{Engine, Index, Indexes, Task};
use crate::maildirs::Maildirs;
use crate::published;
use crate::run::sample;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Start, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "scan",
    about: "490,000 small messages in 50 Maildirs: the first index, and looks at them when little or nothing changed, warm and cold",
    workloads,
};

const TIME: Figure = Figure { key: "time", name: "time", unit: Unit::Micros, better: Better::Lower };
const FIGURES: &[Figure] = &[TIME];
const INDEX_FIGURES: &[Figure] =
    &[TIME, Figure { key: "bytes", name: "index bytes", unit: Unit::Bytes, better: Better::Lower }];
const MESSAGES: u64 = 490_000;
const MESSAGES_LEAST: u64 = 5000;
const WORDS: usize = 12;
/// Octets of a message on disk, about.
const MESSAGE_OCTETS: u64 = 512;
const NOTHING: &str = "nothing is promised";

/// Sides of a full scan: the published ones looked at each file. Listing the names alone is less, and is the full scan
/// of notmuch.
const LOOKS: [(&str, Engine, Task); 6] = [
    ("posthaste statx calls", Engine::Ours, Task::CheckByCalls),
    ("posthaste statx io_uring", Engine::Ours, Task::CheckByUring),
    ("posthaste statx", Engine::Ours, Task::Check),
    ("posthaste names", Engine::Ours, Task::ListAll),
    ("mu", Engine::Mu, Task::ListAll),
    ("notmuch full scan", Engine::Notmuch, Task::ListAll),
];
/// Sides of a program's own scan by the directories' times.
const UPDATES: [(&str, Engine, Task); 3] = [
    ("posthaste", Engine::Ours, Task::Update),
    ("mu lazy", Engine::Mu, Task::Update),
    ("notmuch", Engine::Notmuch, Task::Update),
];

#[derive(Clone)]
struct Shared {
    mail: Arc<Maildirs>,
    indexes: Arc<Indexes>,
}

fn workloads(settings: &Settings) -> Vec<Workload> {
    let messages = settings.count(MESSAGES, MESSAGES_LEAST);
    let shared = Shared { mail: Arc::new(Maildirs::new(messages, WORDS)), indexes: Arc::default() };
    let workload = |name: &str, what: &str, figures, sides| Workload {
        name: name.to_owned(),
        what: format!("{messages} messages in 50 Maildirs: {what}"),
        figures,
        published: published::about(name),
        // An index from nothing is about as large as such small messages.
        writes_octets: messages * MESSAGE_OCTETS,
        sides,
    };
    let looks = |kind: Kind, sides: &[(&'static str, Engine, Task)]| -> Vec<Side> {
        sides.iter().map(|&(name, engine, task)| side(name, engine, look(&shared, kind, engine, task))).collect()
    };
    let firsts = [("posthaste", Engine::Ours), ("mu", Engine::Mu), ("notmuch", Engine::Notmuch)];
    let firsts = firsts.map(|(name, engine)| side(name, engine, first(&shared, engine)));
    vec![
        workload("first-index", "an index from nothing, mail cached", INDEX_FIGURES, firsts.into()),
        workload("rescan", "nothing changed, everything looked at, cached", FIGURES, looks(Kind::Warm, &LOOKS)),
        workload("rescan-cold", "the same, caches dropped", FIGURES, looks(Kind::Cold, &LOOKS)),
        workload("update", "nothing changed, looked at as usual, cached", FIGURES, looks(Kind::Warm, &UPDATES)),
        workload("update-cold", "the same, caches dropped", FIGURES, looks(Kind::Cold, &UPDATES)),
        workload("one-percent", "flags of one in a hundred changed", FIGURES, looks(Kind::Changed, &UPDATES)),
    ]
}

fn side(name: &'static str, engine: Engine, start: Start) -> Side {
    Side { name, is_ours: engine == Engine::Ours, durability: NOTHING, start }
}

fn first(shared: &Shared, engine: Engine) -> Start {
    let mail = Arc::clone(&shared.mail);
    Box::new(move |_: &Settings, dir: &Path| {
        let mail = made(&mail, dir)?;
        Ok(Box::new(First { engine, mail, dir: dir.to_owned(), rounds: 0 }) as Box<dyn Running>)
    })
}

/// Generates the mail. All sides share the mail and the indexes, so these lie above their directories.
fn made(mail: &Maildirs, dir: &Path) -> Result<PathBuf, SideError> {
    let scratch = dir.parent().unwrap_or(dir);
    Ok(mail.make(scratch).map_err(SideError::failed("making mail"))?.to_owned())
}

struct First {
    engine: Engine,
    mail: PathBuf,
    dir: PathBuf,
    rounds: u32,
}

impl Running for First {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        self.rounds += 1;
        let index = Index::begin(self.engine, settings, &self.dir.join(format!("index{}", self.rounds)), &self.mail)?;
        let time = index.task(settings, Task::Update, Some(&self.mail))?;
        Ok(sample([("time", micros(time)), ("bytes", index.bytes() as f64)]))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Warm,
    Cold,
    Changed,
}

fn look(shared: &Shared, kind: Kind, engine: Engine, task: Task) -> Start {
    let shared = shared.clone();
    Box::new(move |settings: &Settings, dir: &Path| {
        if kind == Kind::Cold {
            drop_caches(dir)?;
        }
        let mail = made(&shared.mail, dir)?;
        let index = shared.indexes.of(engine, settings, dir, &mail)?;
        come_to_rest(&mail).map_err(SideError::failed("looking at the mail"))?;
        index.task(settings, Task::Update, None)?;
        Ok(Box::new(Look { kind, task, index, mail, rounds: 0 }) as Box<dyn Running>)
    })
}

/// Waits until the youngest directory's time is trusted: a change within two seconds of a scan makes the next one look
/// again.
fn come_to_rest(mail: &Path) -> std::io::Result<()> {
    let mut youngest = SystemTime::UNIX_EPOCH;
    for folder in std::fs::read_dir(mail)? {
        let folder = folder?.path();
        for dir in ["new", "cur"] {
            youngest = youngest.max(std::fs::metadata(folder.join(dir))?.modified()?);
        }
    }
    std::thread::sleep(SETTLE.saturating_sub(youngest.elapsed().unwrap_or_default()));
    Ok(())
}

const SETTLE: Duration = Duration::from_millis(2500);

struct Look {
    kind: Kind,
    task: Task,
    index: Index,
    mail: PathBuf,
    rounds: usize,
}

impl Running for Look {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        self.rounds += 1;
        match self.kind {
            Kind::Warm => {}
            Kind::Cold => drop_caches(&self.mail)?,
            Kind::Changed => {
                // What other sides changed is taken over before the clock starts.
                self.index.task(settings, Task::Update, None)?;
                change_flags(&self.mail, self.rounds).map_err(SideError::failed("changing flags"))?;
            }
        }
        Ok(sample([("time", micros(self.index.task(settings, self.task, None)?))]))
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn drop_caches(dir: &Path) -> Result<(), SideError> {
    write_back(dir);
    let dropped = std::fs::write("/proc/sys/vm/drop_caches", "3");
    dropped.map_err(|error| SideError::Absent(format!("caches cannot be dropped: {error}")))
}

/// Toggles the flag of every hundredth file by renaming it.
fn change_flags(mail: &Path, round: usize) -> std::io::Result<()> {
    for folder in std::fs::read_dir(mail)? {
        let cur = folder?.path().join("cur");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&cur)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        for name in names.iter().skip(round % 100).step_by(100) {
            let (base, flags) = name.split_once(":2,").unwrap_or((name, ""));
            let flags = match flags.strip_prefix('F') {
                Some(rest) => rest.to_owned(),
                None => format!("F{flags}"),
            };
            std::fs::rename(cur.join(name), cur.join(format!("{base}:2,{flags}")))?;
        }
    }
    Ok(())
}
