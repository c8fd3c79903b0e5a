//! The mailstore in this process, without a protocol: opened, a mailbox opened and counted, all closed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_maildir::MailboxPath;
use posthaste_mailstore::ledger::MailLedger;
use posthaste_mailstore::{MailboxName, MaildirLogins, MaildirStore, Mailstore as _, SelectMode};
use posthaste_spool::{Config, FileSpool, OpenError};

use super::server::{LOGIN, link_maildir};
use super::{REST_MAX, WORDS};
use crate::maildirs::Maildirs;
use crate::published;
use crate::run::sample;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "mailbox", name: "open mailbox", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "open", name: "open store", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "spool", name: "open spool", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "counts", name: "counts", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "close", name: "close", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "messages", name: "messages", unit: Unit::Count, better: Better::Neither },
];
/// Age after which the time of a directory says that nothing else changed it in the same moment.
const QUIET: Duration = Duration::from_millis(500);

pub(super) fn workload(messages: u64) -> Workload {
    let name = "mailbox-open";
    let start = move |_: &Settings, dir: &Path| {
        let mail = Maildirs::in_one(messages, WORDS);
        let made = mail.make(dir.parent().unwrap_or(dir)).map_err(SideError::failed("making mail"))?;
        Ok(Box::new(Opening::prepare(made, dir, messages)?) as Box<dyn Running>)
    };
    let side = Side { name: "posthaste", is_ours: true, durability: "all is durable", start: Box::new(start) };
    Workload {
        name: name.into(),
        what: format!(
            "the store opened in this process, a mailbox of {messages} known messages opened and counted, all closed"
        ),
        figures: FIGURES,
        published: published::about(name),
        writes_octets: 0,
        sides: vec![side],
    }
}

struct Opening {
    dir: PathBuf,
    messages: u64,
    runtime: tokio::runtime::Runtime,
}

impl Opening {
    /// Gives UIDs to the messages, so that rounds find known ones.
    fn prepare(mail: &Path, dir: &Path, messages: u64) -> Result<Self, SideError> {
        link_maildir(&mail.join("folder00"), &dir.join("mail/Maildir")).map_err(SideError::failed("linking mail"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(SideError::failed("runtime"))?;
        let opening = Self { dir: dir.to_owned(), messages, runtime };
        std::thread::sleep(QUIET);
        opening.runtime.block_on(opening.once())?;
        Ok(opening)
    }

    async fn once(&self) -> Result<Sample, SideError> {
        let begun = Instant::now();
        let (spool, found) = self.open_spool()?;
        let spool_time = begun.elapsed();
        let begun = Instant::now();
        let opened = MailLedger::open(Arc::new(spool), &found, &self.dir.join("mailstore"), "bench", 1);
        let ledger = Arc::new(opened.map_err(SideError::failed("the table"))?.0);
        let store = MaildirStore::open(&self.dir.join("mail"), Arc::clone(&ledger), Box::new(|_| false));
        let store = Arc::new(store.map_err(SideError::failed("the store"))?);
        let open = begun.elapsed();
        let logins = MaildirLogins::new(Arc::clone(&store), Box::new(|_| MailboxPath::parse("Maildir").ok()));
        let begun = Instant::now();
        let account = logins.account(LOGIN).await.map_err(SideError::failed("the account"))?;
        let inbox = account.find(&MailboxName::inbox()).await.map_err(SideError::failed("INBOX"))?;
        let inbox = inbox.ok_or_else(|| SideError::Failed("there is no INBOX".to_owned()))?;
        let view = account.select(inbox, SelectMode::ReadOnly).await.map_err(SideError::failed("INBOX"))?;
        let mailbox = begun.elapsed();
        let begun = Instant::now();
        let status = account.status(inbox).await.map_err(SideError::failed("counts"))?;
        let counts = begun.elapsed();
        if [status.exists, view.exists()].iter().any(|exists| u64::from(*exists) != self.messages) {
            let (counted, seen) = (status.exists, view.exists());
            return Err(SideError::Failed(format!(
                "it has {seen} of {} messages, and counts {counted}",
                self.messages
            )));
        }
        let begun = Instant::now();
        drop((view, account, logins));
        store.note_listings();
        drop(store);
        ledger.end();
        drop(ledger);
        let close = begun.elapsed();
        let times = [("spool", spool_time), ("open", open), ("mailbox", mailbox), ("counts", counts), ("close", close)];
        let mut figures = sample(times.map(|(key, time)| (key, time.as_secs_f64() * 1e6)));
        figures.extend(sample([("messages", f64::from(status.exists))]));
        Ok(figures)
    }

    /// A thread of the last round may hold it for a moment.
    fn open_spool(&self) -> Result<(FileSpool, Vec<posthaste_spool::Damage>), SideError> {
        let begun = Instant::now();
        loop {
            match FileSpool::open(&self.dir.join("spool"), Config::default()) {
                Ok((spool, report)) => return Ok((spool, report.damage)),
                Err(OpenError::Locked) if begun.elapsed() < REST_MAX => std::thread::yield_now(),
                Err(error) => return Err(SideError::failed("spool")(error)),
            }
        }
    }
}

impl Running for Opening {
    fn round(&mut self, _: &Settings) -> Result<Sample, SideError> {
        self.runtime.block_on(self.once())
    }
}
