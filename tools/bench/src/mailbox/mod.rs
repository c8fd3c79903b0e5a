//! A large mailbox read and changed by IMAP: ours beside Dovecot, through the same client.

mod client;
mod importing;
mod many;
mod million;
mod opening;
mod receiving;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_loadgen::measure::Spread;
use posthaste_loadgen::resources::Sampler;

use crate::maildirs::Maildirs;
use crate::published;
use crate::run::{sample, wait_until_idle};
use crate::suite::{Better, Figure, Running, Sample, Settings, SideError, Start, Suite, Unit, Workload};
use client::{Answer, Client};
use server::{Servers, Who};

pub const SUITE: Suite = Suite {
    name: "mailbox",
    about: "A mailbox of 100,000 messages by IMAP, a command at a time: opened, listed, searched, changed; mail received into mailboxes",
    workloads,
};

const FIGURES: &[Figure] = &[
    Figure { key: "time", name: "time", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu", name: "server CPU", unit: Unit::Micros, better: Better::Lower },
    // Who answers nothing is fast.
    Figure { key: "messages", name: "messages", unit: Unit::Count, better: Better::Neither },
];
const MESSAGES: u64 = 100_000;
const MESSAGES_LEAST: u64 = 2000;
const WORDS: usize = 200;
/// Runs of a command in a round; the median counts.
const RUNS: u32 = 5;
/// Messages in the workloads that use a part of the mailbox.
const SOME: u64 = 1000;
const MANY: u64 = 10_000;
/// Commands of the first session, and whatever they put into an index.
const FIRST_LOOK: &[&str] = &["SELECT INBOX", "FETCH 1:* (FLAGS RFC822.SIZE INTERNALDATE)"];

/// A command, or several given in turn. `{from}` and `{to}` are message numbers. They advance with each run by as many
/// as they hold, so that no server answers from its cache.
struct Asked {
    name: &'static str,
    what: &'static str,
    /// True if the mailbox is selected first.
    is_selected: bool,
    commands: &'static [&'static str],
    /// Messages from `{from}` to `{to}`.
    some: u64,
    runs: u32,
    /// True if another program renames a file before each run.
    is_renamed: bool,
    /// True if a server with an index is asked, too.
    is_indexed: bool,
}

const fn read(name: &'static str, what: &'static str, commands: &'static [&'static str]) -> Asked {
    Asked { name, what, is_selected: true, commands, some: SOME, runs: RUNS, is_renamed: false, is_indexed: false }
}

static ASKED: [Asked; 15] = [
    Asked { is_selected: false, ..read("select", "SELECT and UNSELECT, nothing has changed", &["SELECT INBOX"]) },
    Asked {
        is_selected: false,
        is_renamed: true,
        ..read("select-renamed", "SELECT after another program has renamed a file", &["SELECT INBOX"])
    },
    Asked {
        is_selected: false,
        ..read("status", "STATUS of a mailbox that is not selected", &["STATUS INBOX (MESSAGES UIDNEXT UNSEEN)"])
    },
    read("fetch-flags", "UIDs and flags of all", &["UID FETCH 1:* (FLAGS)"]),
    read("fetch-sizes", "sizes and dates of all", &["FETCH 1:* (RFC822.SIZE INTERNALDATE)"]),
    read("fetch-envelopes", "ENVELOPE of 1,000, other ones each time", &["FETCH {from}:{to} (ENVELOPE)"]),
    read("fetch-envelopes-again", "ENVELOPE of the same 1,000", &["FETCH 1:1000 (ENVELOPE)"]),
    read("fetch-bodies", "1,000 whole messages, other ones each time", &["FETCH {from}:{to} (BODY.PEEK[])"]),
    Asked {
        some: MANY,
        ..read(
            "store",
            "a flag of 10,000 set and taken away, each is a time",
            &["STORE {from}:{to} +FLAGS.SILENT (\\Flagged)", "STORE {from}:{to} -FLAGS.SILENT (\\Flagged)"],
        )
    },
    read("search-unseen", "SEARCH by flag", &["SEARCH UNSEEN"]),
    Asked { runs: 1, ..read("search-subject", "SEARCH of a word in subjects", &["SEARCH SUBJECT kernel"]) },
    Asked {
        runs: 1,
        is_indexed: true,
        ..read("search-text", "SEARCH of a rare word in all text", &["SEARCH TEXT zynqmp"])
    },
    Asked { runs: 1, ..read("sort", "SORT by date", &["SORT (DATE) UTF-8 ALL"]) },
    Asked { runs: 1, ..read("thread", "THREAD by references", &["THREAD REFERENCES UTF-8 ALL"]) },
    read("copy", "1,000 messages copied to another mailbox", &["COPY {from}:{to} Copies"]),
];

fn workloads(settings: &Settings) -> Vec<Workload> {
    let messages = settings.count(MESSAGES, MESSAGES_LEAST);
    let servers = Arc::new(Servers::new(Maildirs::in_one(messages, WORDS), FIRST_LOOK));
    let workload = |name: &str, what: String, sides: &[Who], start: &dyn Fn(Who) -> Start| Workload {
        name: format!("mailbox-{name}"),
        what,
        figures: FIGURES,
        published: published::about(name),
        writes_octets: 0,
        sides: sides.iter().map(|who| who.side(start(*who))).collect(),
    };
    let asked = ASKED.iter().map(|asked| {
        let what = format!("{} ({messages} messages)", asked.what);
        let sides: &[Who] = if asked.is_indexed { &Who::WITH_INDEX } else { &Who::ALL };
        workload(asked.name, what, sides, &|who| asked.start(who, &servers))
    });
    let what = format!("server started, login, SELECT of {messages} known messages");
    let start = workload("start", what, &Who::ALL, &|who| {
        let servers = Arc::clone(&servers);
        Box::new(move |settings: &Settings, dir: &Path| {
            servers.of(who, settings, dir)?;
            Ok(Box::new(Starts { who, servers }) as Box<dyn Running>)
        })
    });
    let mut all: Vec<Workload> = asked.chain([start]).collect();
    all.extend(many::workloads(settings, &servers));
    all.extend([opening::workload(messages), million::workload(settings), importing::workload(settings, &servers)]);
    all.extend(receiving::workloads(settings));
    all
}

impl Asked {
    fn start(&'static self, who: Who, servers: &Arc<Servers>) -> Start {
        let servers = Arc::clone(servers);
        Box::new(move |settings: &Settings, dir: &Path| {
            let mut client = servers.of(who, settings, dir)?;
            let known = client.command("EXAMINE INBOX").map_err(SideError::failed("EXAMINE"))?;
            let all = known.exists.unwrap_or_default();
            let expected = servers.messages();
            if all != expected {
                return Err(SideError::Failed(format!("it has {all} of {expected} messages")));
            }
            let command = if self.is_selected { "SELECT INBOX" } else { "UNSELECT" };
            client.command(command).map_err(SideError::failed(command))?;
            let (pid, maildir) = (servers.pid(who)?, servers.maildir(who)?);
            Ok(Box::new(Session { asked: self, client, pid, maildir, all, from: 1 }) as Box<dyn Running>)
        })
    }
}

struct Session {
    asked: &'static Asked,
    client: Client,
    pid: u32,
    maildir: PathBuf,
    all: u64,
    /// The first message of the next run.
    from: u64,
}

/// A server may have something to do after its last answer, such as writing its index.
const REST_MAX: Duration = Duration::from_secs(20);

impl Running for Session {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let mut sampler = Sampler::new(&[self.pid], Instant::now());
        let before = sampler.sample().cpu_s;
        let mut answers = Vec::new();
        for _ in 0..self.asked.runs {
            if settings.is_stopped() && !answers.is_empty() {
                break;
            }
            self.run(&mut answers).map_err(SideError::failed(self.asked.name))?;
        }
        wait_until_idle(&mut sampler, REST_MAX);
        let cpu = (sampler.sample().cpu_s - before) / answers.len() as f64;
        let times = answers.iter().map(|answer| answer.took.as_secs_f64() * 1e6);
        let time = Spread::of(times).map_or(0.0, |spread| spread.median);
        let messages = answers.last().map_or(0, |answer| answer.messages);
        Ok(sample([("time", time), ("cpu", cpu * 1e6), ("messages", messages as f64)]))
    }
}

impl Session {
    fn run(&mut self, answers: &mut Vec<Answer>) -> std::io::Result<()> {
        let some = self.asked.some.min(self.all);
        if self.from + some - 1 > self.all {
            self.from = 1;
        }
        let (from, to) = (self.from.to_string(), (self.from + some - 1).to_string());
        if self.asked.is_renamed {
            rename_one(&self.maildir.join("cur"))?;
        }
        for command in self.asked.commands {
            answers.push(self.client.command(&command.replace("{from}", &from).replace("{to}", &to))?);
        }
        self.from += some;
        if self.asked.name.starts_with("select") {
            self.client.command("UNSELECT")?;
        }
        Ok(())
    }
}

/// Sets or removes \Flagged of a message by renaming its file, as mail programs do.
fn rename_one(dir: &Path) -> std::io::Result<()> {
    let Some(entry) = std::fs::read_dir(dir)?.next() else { return Ok(()) };
    let name = entry?.file_name().into_string().map_err(|_| std::io::Error::other("a name that is not text"))?;
    let (base, flags) = name.split_once(":2,").unwrap_or((&name, ""));
    let flags = if flags.contains('F') { flags.replace('F', "") } else { format!("F{flags}") };
    std::fs::rename(dir.join(&name), dir.join(format!("{base}:2,{flags}")))
}

/// Measures repeated starts of a server.
struct Starts {
    who: Who,
    servers: Arc<Servers>,
}

impl Running for Starts {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        self.servers.stop(self.who);
        let begun = Instant::now();
        let mut client = self.servers.log_in(self.who, settings)?;
        let answer = client.command("SELECT INBOX").map_err(SideError::failed("SELECT"))?;
        let time = begun.elapsed().as_secs_f64() * 1e6;
        let mut sampler = Sampler::new(&[self.servers.pid(self.who)?], Instant::now());
        wait_until_idle(&mut sampler, REST_MAX);
        let cpu = sampler.sample().cpu_s * 1e6;
        Ok(sample([("time", time), ("cpu", cpu), ("messages", answer.exists.unwrap_or_default() as f64)]))
    }
}
