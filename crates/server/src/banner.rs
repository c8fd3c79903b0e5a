//! The lines that a start prints.

use std::fmt::Write as _;
use std::io::IsTerminal;

use posthaste_directory::{Place, Route};
use posthaste_units::{count, wrapped};
use rustix::process::{Resource, getrlimit};

use crate::Server;
use crate::opening::Restored;
use crate::page_door::SESSION_SECS;
use posthaste_config::{self, Config, Domain, ListenerAuth, ListenerProtocol, ListenerTls};

impl Server {
    /// The banner as one line of JSON.
    pub fn banner_json(&self) -> String {
        let unix = self.config.mail_listeners().filter_map(|listener| listener.socket.unix.as_ref());
        let listening: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
        let listening = [listening, unix.map(|path| path.display().to_string()).collect()].concat();
        let domains: Vec<&str> = self.config.domains.iter().flat_map(Domain::names).collect();
        let Restored { messages, restored, deferred, .. } = self.replayed;
        let banner = serde_json::json!({
            "timestamp": crate::logging::timestamp(), "level": "INFO", "message": "ready", "version": env!("CARGO_PKG_VERSION"), "host_name": self.config.host_name,
            "listening": listening, "http": self.pages(), "imap": self.readers(ListenerProtocol::Imap), "pop3": self.readers(ListenerProtocol::Pop3), "receiving": domains, "mail": self.config.storage.mail,
            "spool_messages": messages, "restored": restored, "deferred": deferred, "damaged": damaged(&self.replayed),
        });
        format!("{banner}\n")
    }

    /// The text that a start prints: where it listens, what it receives, how to try it.
    pub fn banner(&self) -> String {
        let mut out = format!("Posthaste {} as {}\n", env!("CARGO_PKG_VERSION"), self.config.host_name);
        for address in self.addresses() {
            let _ = writeln!(out, "  listening  {address}");
        }
        for note in self.notes() {
            let _ = writeln!(out, "  note       {}", wrapped(&note, 13));
        }
        for path in self.config.mail_listeners().filter_map(|listener| listener.socket.unix.as_ref()) {
            let _ = writeln!(out, "  listening  {}", path.display());
        }
        out += &self.page_lines();
        for (protocol, name) in [(ListenerProtocol::Imap, "imap"), (ListenerProtocol::Pop3, "pop3")] {
            for address in self.readers(protocol) {
                let _ = writeln!(out, "  {name}       {address}");
            }
        }
        if let Some(password) = self.receiver.first_password() {
            let file = password.file().display();
            let _ = match std::io::stdout().is_terminal() {
                true => writeln!(
                    out,
                    "  password   {} (opens the mail of any account, and the page; also in {file})",
                    password.reveal()
                ),
                // Standard output may be a log.
                false => writeln!(out, "  password   in {file} (opens the mail of any account, and the page)"),
            };
        }
        let domains: Vec<&str> = self.config.domains.iter().flat_map(Domain::names).collect();
        let _ = writeln!(out, "  receiving  {}", domains.join(", "));
        let _ = writeln!(out, "  mail       {}", self.config.storage.mail.display());
        if self.is_indexing {
            let _ =
                writeln!(out, "  indexing   into {0}; `posthaste find --index {0}`", self.config.search.dir.display());
        }
        let _ = writeln!(out, "  restored   {}", restored(&self.replayed));
        if let Some(damaged) = damaged(&self.replayed) {
            let _ = writeln!(out, "  DAMAGED    {damaged}");
        }
        out + &self.trial(&domains) + "Ready; Ctrl-C or SIGTERM ends it.\n"
    }
}

impl Server {
    /// Limits of the system that are lower than those of the configuration.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let backlog = self.addresses.backlog;
        if backlog.is_limited_by_somaxconn() {
            let (granted, wanted) = (backlog.granted, backlog.wanted);
            notes
                .push(format!("{granted} connections may wait to be accepted, not {wanted}: raise net.core.somaxconn"));
        }
        let connections = self.config.limits.connections.connections;
        if let Some(files) = files_max().filter(|&files| files < connections as u64) {
            notes.push(format!(
                "{files} files may be open, so there will be no {connections} connections: raise LimitNOFILE (ulimit -Hn)"
            ));
        }
        notes
    }

    /// Commands that send a message and read it; empty where mail is not taken in plain text.
    fn trial(&self, domains: &[&str]) -> String {
        let open = self.addresses.smtp.filter(|_| takes_plain_mail(&self.config));
        let (Some(address), [domain, ..]) = (open, domains) else { return String::new() };
        let user = example_user(&self.config);
        // As it is on disk: a name of the configuration may be in capitals, or have letters that a directory's has not.
        let found = match self.receiver.settings().directory.resolve(&user, Some(domain)) {
            Route::Local(found) => Some(found[0].clone()),
            _ => None,
        };
        let look = match found.as_ref().map(|mailbox| (&mailbox.place, mailbox.text())) {
            Some((Place::Transport(_) | Place::Remote, to)) => {
                format!("# it goes to {to}; the log says what becomes of it")
            }
            Some((Place::Maildir(_), path)) => format!("cat {}/{path}/new/*", self.config.storage.mail.display()),
            None => format!("cat {}/{domain}/{user}/Maildir/new/*", self.config.storage.mail.display()),
        };
        let mut out = format!(
            "Try it:\n  printf 'Subject: hello\\r\\n\\r\\nworld\\r\\n' | curl smtp://{address} \
             --mail-from you@{domain} --mail-rcpt {user}@{domain} -T -\n  {look}\n"
        );
        let imap = self.readers(ListenerProtocol::Imap);
        if let (Some(password), Some(address)) = (self.receiver.first_password(), imap.first()) {
            let file = password.file().display();
            let _ = writeln!(out, "  curl 'imap://{address}/INBOX;MAILINDEX=1' -u \"{user}@{domain}:$(cat {file})\"");
        }
        out
    }

    /// The addresses where mail is read by a protocol.
    fn readers(&self, protocol: ListenerProtocol) -> Vec<String> {
        let of_protocol = self.addresses.reading.iter().filter(|(spoken, _)| *spoken == protocol);
        let unix = self.config.reading_listeners().filter(|listener| listener.protocol == protocol);
        let unix = unix.filter_map(|listener| listener.socket.unix.as_ref()).map(|path| path.display().to_string());
        of_protocol.map(|(_, address)| address.to_string()).chain(unix).collect()
    }

    /// Where the page is. In the first minute a terminal gets a link that opens it; standard output may also be a log.
    fn page_lines(&self) -> String {
        let is_first_minute = self.receiver.first_password().is_some() && std::io::stdout().is_terminal();
        let link = self.page.as_ref().filter(|_| is_first_minute).and_then(|page| page.link(&[], SESSION_SECS));
        if let Some(link) = link {
            return format!("  page       {link} (once, within 10 minutes; again: posthaste page)\n");
        }
        let pages = self.pages();
        let mut lines: String = pages.iter().map(|page| format!("  page       {page}\n")).collect();
        if !pages.is_empty() {
            lines += "  log in     posthaste page\n";
        }
        lines
    }

    /// Where a browser finds the page.
    fn pages(&self) -> Vec<String> {
        let page = |(address, is_encrypted): &(std::net::SocketAddr, bool)| {
            format!("{}://{address}/", if *is_encrypted { "https" } else { "http" })
        };
        self.addresses.http.iter().map(page).collect()
    }
}

/// Files that this process may have open; each connection is one. `None` for any number.
fn files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

fn restored(report: &Restored) -> String {
    let of = match report.messages {
        0 => return "nothing to restore".to_owned(),
        1 => "1 message in the spool".to_owned(),
        many => format!("{many} messages in the spool"),
    };
    match (report.restored, report.deferred) {
        (0, 0) => format!("nothing; {of}, all in their mailboxes"),
        (0, deferred) => format!("nothing; {of}, {}", mailbox_entries(deferred) + " cannot be written yet"),
        (restored, 0) => format!("{} of {of}", mailbox_entries(restored)),
        (restored, deferred) => format!("{} of {of}, {deferred} cannot be written yet", mailbox_entries(restored)),
    }
}

fn mailbox_entries(count: usize) -> String {
    if count == 1 { "1 mailbox entry".to_owned() } else { format!("{count} mailbox entries") }
}

/// Promised mail that could not be read.
fn damaged(report: &Restored) -> Option<String> {
    let (places, batches) = (report.damaged_places, report.damaged_batches);
    let (places_text, batches_text) = (count(places, "damaged place"), count(batches, "unreadable batch"));
    (places + batches > 0).then(|| format!("spool: {places_text}, {batches_text}; see the log"))
}

/// True if the first SMTP listener takes mail in the clear and without a login, as the example of the banner sends it.
fn takes_plain_mail(config: &Config) -> bool {
    let first = config.mail_listeners().find(|listener| listener.protocol == ListenerProtocol::Smtp);
    first.is_some_and(|listener| {
        !matches!(listener.tls, Some(ListenerTls::Required | ListenerTls::Implicit))
            && listener.auth != Some(ListenerAuth::Required)
    })
}

/// A user that the banner can name: the first that there is.
fn example_user(config: &Config) -> String {
    match config.domains.first().map(|domain| &domain.users) {
        Some(posthaste_config::Users::Listed(users)) => users.first().map_or("postmaster", String::as_str).to_owned(),
        _ => "me".to_owned(),
    }
}
