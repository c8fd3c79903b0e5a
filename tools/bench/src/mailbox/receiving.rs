//! Mail received into mailboxes: by LMTP beside Dovecot, and by SMTP with and without UIDs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use posthaste_loadgen::process::free_address;
use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::PerConnection;

use super::client::Client;
use super::server::{PASSWORD, write_passwords};
use crate::peers::Dovecot;
use crate::published;
use crate::receive::FIGURES;
use crate::receive::loaded::{Door, Opened, Serving, side};
use crate::receive::shape::{Amount, Shape, shape};
use crate::suite::{Better, Figure, Settings, Side, SideError, Unit, Workload};

/// The cost of UIDs: CPU comes first, so ratios are those of CPU.
const CPU_FIGURES: &[Figure] = &[
    Figure { key: "server_cpu_us", name: "server CPU to rest", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "rate", name: "messages/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "acked_percent", name: "acked", unit: Unit::Percent, better: Better::Higher },
    Figure { key: "written", name: "written", unit: Unit::Times, better: Better::Lower },
];
const CONNECTIONS: u32 = 50;
const MAILBOXES: [u64; 4] = [1, 64, 2000, 100_000];
/// Mailboxes of the workload with LMTP.
const LMTP_MAILBOXES: u64 = 20;
/// Messages of a round. More would fill the disk: each of ten sides keeps what it was given.
const MESSAGES: u64 = 40_000;
/// A user who gets mail. `localhost` takes any user.
const USER: &str = "user1";

fn of_10k(name: &str, mailboxes: u64) -> Shape {
    shape(name, "10k", CONNECTIONS, PerConnection::All, Amount::Count(MESSAGES), mailboxes)
}

pub(super) fn workloads(settings: &Settings) -> Vec<Workload> {
    let with_and_without = MAILBOXES.map(|mailboxes| {
        let shape = of_10k(&format!("mailbox-receive-{mailboxes}"), mailboxes);
        let sides = vec![ours("posthaste", Listeners::WithImap, &shape), ours(WITHOUT, Listeners::Smtp, &shape)];
        workload(&shape, CPU_FIGURES, sides, settings)
    });
    let shape = of_10k("mailbox-lmtp", LMTP_MAILBOXES);
    let dovecot = side("Dovecot", false, Dovecot::LMTP_DURABILITY, &shape, |_, _, dir| {
        let mail = dir.join("mail");
        let dovecot = Dovecot::start_lmtp(dir, &mail)?;
        let opened = Opened::new(dovecot.address, dovecot.pid(), dovecot);
        Ok(Opened { mail: Some(mail), door: Door::Lmtp, ..opened })
    });
    let lmtp = workload(&shape, FIGURES, vec![ours("posthaste", Listeners::LmtpAndImap, &shape), dovecot], settings);
    with_and_without.into_iter().chain([lmtp]).collect()
}

const WITHOUT: &str = "posthaste without UIDs";

fn workload(shape: &Shape, figures: &'static [Figure], sides: Vec<Side>, settings: &Settings) -> Workload {
    Workload {
        name: shape.name.clone(),
        what: shape.what(settings),
        figures,
        published: published::about(&shape.name),
        writes_octets: shape.octets(settings),
        sides,
    }
}

/// Listeners of our server. Mail gets UIDs where there is one that reads mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listeners {
    Smtp,
    WithImap,
    LmtpAndImap,
}

impl Listeners {
    fn configuration(self, imap: SocketAddr) -> String {
        let protocol = if self == Self::LmtpAndImap { "protocol = \"lmtp\"\n" } else { "" };
        let receives = format!("[[listener]]\n{protocol}address = \"127.0.0.1:0\"\n");
        let reads = match self {
            Self::Smtp => String::new(),
            _ => {
                format!("[[listener]]\nprotocol = \"imap\"\naddress = \"{imap}\"\n[imap]\nconnections_per_login = 0\n")
            }
        };
        format!(
            "host_name = \"localhost\"\n[limits]\nconnections_per_address = 20000\n[auth]\nfile = \"passwords\"\n\
             [storage]\ndata = \"data\"\n{receives}{reads}"
        )
    }
}

fn ours(name: &'static str, listeners: Listeners, shape: &Shape) -> Side {
    side(name, true, ScratchServer::DURABILITY, shape, move |_, settings, dir| {
        let imap = free_address().map_err(SideError::failed("a free port"))?;
        write_passwords(&settings.program, dir, &format!("{USER}@localhost"))?;
        let config = dir.join("posthaste.toml");
        std::fs::write(&config, listeners.configuration(imap)).map_err(SideError::failed("configuration"))?;
        let server = ScratchServer::start(&settings.program, dir, Some(&config));
        let server = server.map_err(SideError::failed("posthaste serve"))?;
        let (mail, address, pid) = (server.mail.clone(), server.address, server.pid());
        let imap = (listeners != Listeners::Smtp).then_some(imap);
        let opened = Opened::new(address, pid, Receiving { server, imap, table: dir.join("data/mailstore") });
        let door = if listeners == Listeners::LmtpAndImap { Door::Lmtp } else { Door::Smtp };
        Ok(Opened { mail: Some(mail), door, ..opened })
    })
}

struct Receiving {
    server: ScratchServer,
    /// Its listener for IMAP.
    imap: Option<SocketAddr>,
    /// Directory of the table of mailboxes, which is there once mail has UIDs.
    table: PathBuf,
}

impl Serving for Receiving {
    /// A side without UIDs must have none; otherwise all mail of a user must have one.
    fn check(&self) -> Result<Option<String>, SideError> {
        let Some(imap) = self.imap else {
            return if self.table.exists() { Err(SideError::Failed("its mail has UIDs".to_owned())) } else { Ok(None) };
        };
        let inbox = self.server.mail.join("localhost").join(USER).join("Maildir");
        let files = files_in(&inbox.join("new")) + files_in(&inbox.join("cur"));
        let shown = || Client::log_in(imap, &format!("{USER}@localhost"), PASSWORD)?.command("EXAMINE INBOX");
        let shown = shown().map_err(SideError::failed("IMAP"))?.exists.unwrap_or_default();
        if shown == files {
            Ok(Some(format!("{USER}: each of {files} messages has a UID")))
        } else {
            Err(SideError::Failed(format!("{USER}: {shown} of {files} messages have a UID")))
        }
    }
}

/// Entries of a directory, which need not be there.
fn files_in(dir: &Path) -> u64 {
    std::fs::read_dir(dir).map_or(0, |entries| entries.count() as u64)
}
