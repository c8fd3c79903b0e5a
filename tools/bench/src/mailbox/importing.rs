//! A Maildir of 30,000 messages added to a mailbox by command: `posthaste import`, `doveadm import`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use posthaste_loadgen::resources::Sampler;

use super::server::{LOGIN, Servers, Who};
use super::{REST_MAX, WORDS};
use crate::maildirs::Maildirs;
use crate::peers::{Dovecot, program};
use crate::published;
use crate::run::{sample, wait_until_idle};
use crate::suite::{Better, Figure, Running, Sample, Settings, SideError, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "time", name: "time", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu", name: "server CPU", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "messages", name: "messages", unit: Unit::Count, better: Better::Neither },
];
const MESSAGES: u64 = 30_000;
const MESSAGES_LEAST: u64 = 500;

pub(super) fn workload(settings: &Settings, servers: &Arc<Servers>) -> Workload {
    let messages = settings.count(MESSAGES, MESSAGES_LEAST);
    let mail = Arc::new(Maildirs::in_one(messages, WORDS));
    let side = |who: Who| {
        let (servers, mail) = (Arc::clone(servers), Arc::clone(&mail));
        who.side(Box::new(move |settings: &Settings, dir: &Path| {
            servers.of(who, settings, dir)?;
            let from = mail.make(dir.parent().unwrap_or(dir)).map_err(SideError::failed("making mail"))?;
            let from = std::path::absolute(from.join("folder00")).map_err(SideError::failed("the mail"))?;
            Ok(Box::new(Imports { who, servers, from, messages, rounds: 0 }) as Box<dyn Running>)
        }))
    };
    let name = "mailbox-import";
    Workload {
        name: name.into(),
        what: format!("a Maildir of {messages} messages added to a new mailbox of a running server, by command"),
        figures: FIGURES,
        published: published::about(name),
        writes_octets: messages * 2048,
        sides: Who::ALL.map(side).into(),
    }
}

struct Imports {
    who: Who,
    servers: Arc<Servers>,
    /// The Maildir.
    from: PathBuf,
    messages: u64,
    rounds: u32,
}

impl Running for Imports {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        self.rounds += 1;
        // A mailbox that has them already would be given none.
        let mailbox = format!("Imported{}", self.rounds);
        let mut client = self.servers.log_in(self.who, settings)?;
        let mut sampler = Sampler::new(&[self.servers.pid(self.who)?], Instant::now());
        let before = sampler.sample().cpu_s;
        let begun = Instant::now();
        let output = self.command(settings, &mailbox)?.output().map_err(SideError::failed("import"))?;
        let time = begun.elapsed().as_secs_f64() * 1e6;
        if !output.status.success() {
            return Err(SideError::Failed(format!("import: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        wait_until_idle(&mut sampler, REST_MAX);
        let cpu = (sampler.sample().cpu_s - before) * 1e6;
        let found =
            client.command(&format!("EXAMINE {}", self.filled(&mailbox))).map_err(SideError::failed("EXAMINE"))?;
        let found = found.exists.unwrap_or_default();
        if found != self.messages {
            return Err(SideError::Failed(format!("{found} of {} messages are there", self.messages)));
        }
        Ok(sample([("time", time), ("cpu", cpu), ("messages", found as f64)]))
    }
}

impl Imports {
    /// The mailbox that has the messages: doveadm puts the source's mailboxes, here its INBOX alone, below the named one.
    fn filled(&self, mailbox: &str) -> String {
        match self.who {
            Who::Ours | Who::Indexed => mailbox.to_owned(),
            Who::Dovecot => format!("{mailbox}.INBOX"),
        }
    }

    fn command(&self, settings: &Settings, mailbox: &str) -> Result<Command, SideError> {
        let dir = self.servers.dir(self.who)?;
        let mut command = match self.who {
            Who::Ours | Who::Indexed => {
                let mut command = Command::new(&settings.program);
                command.arg("import").arg(&self.from).args(["--to", &format!("{LOGIN}/{mailbox}"), "--config"]);
                command.arg(dir.join("posthaste.toml"));
                command
            }
            Who::Dovecot => {
                let mut command = Command::new(program("doveadm", "dovecot-core")?);
                command.arg("-c").arg(dir.join("dovecot.conf")).args(["import", "-u", LOGIN]);
                // Its own files go elsewhere: the source is not its user's to write.
                let control = dir.join(format!("import-{}", self.rounds));
                let owner = Some(Dovecot::OWNER);
                std::fs::create_dir_all(&control)
                    .and_then(|()| std::os::unix::fs::chown(&control, owner, owner))
                    .map_err(SideError::failed("a directory for Dovecot's files"))?;
                let from = format!("maildir:{}:INDEX=MEMORY:CONTROL={}", self.from.display(), control.display());
                command.args([&from, mailbox, "ALL"]);
                command
            }
        };
        command.current_dir(dir);
        Ok(command)
    }
}
