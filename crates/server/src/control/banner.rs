//! Lines printed at a start.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::SocketAddr;

use posthaste_directory::{Place, Route};
use posthaste_units::{count, wrapped};
use rustix::process::{Resource, getrlimit};

use crate::MailServer;
use crate::control::page_links::SESSION_SECS;
use crate::services::opening::Restored;
use posthaste_config::{self, Config, Domain, ListenerAuth, ListenerProtocol, ListenerTls};

impl MailServer {
    /// The banner as one line of JSON.
    pub fn banner_json(&self) -> String {
        let unix = self.config.mail_listeners().filter_map(|listener| listener.socket.unix.as_ref());
        let listening: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
        let listening = [listening, unix.map(|path| path.display().to_string()).collect()].concat();
        let domains: Vec<&str> = self.config.domains.iter().flat_map(Domain::names).collect();
        let Restored { messages, restored, deferred, .. } = self.replayed;
        let banner = serde_json::json!({
            "timestamp": crate::log_format::timestamp(), "level": "INFO", "message": "ready", "version": env!("CARGO_PKG_VERSION"), "host_name": self.config.host_name,
            "listening": listening, "http": self.pages(), "imap": self.readers(ListenerProtocol::Imap), "pop3": self.readers(ListenerProtocol::Pop3), "receiving": domains, "mail": self.config.storage.mail,
            "spool_messages": messages, "restored": restored, "deferred": deferred, "damaged": damaged(&self.replayed),
        });
        format!("{banner}\n")
    }

    /// The four lines of the first minute: send, read, page, search. `None`: the configuration has listeners or logins,
    /// or standard output is not a terminal, and may be a log.
    pub fn first_minute_banner(&self) -> Option<String> {
        let password = self.receiver.first_password().filter(|_| std::io::stdout().is_terminal())?;
        let (smtp, imap) = (self.addresses.smtp?, self.reading_at(ListenerProtocol::Imap)?);
        let link = self.page.as_ref()?.link(&[], SESSION_SECS)?;
        let domain = self.config.domains.first()?.names().next()?.to_owned();
        let displaced = self.displaced();
        let busy = |taken: SocketAddr, after: &str| {
            let wanted = displaced.iter().find(|(_, now)| *now == taken);
            wanted.map_or_else(String::new, |(wanted, _)| format!("port {} is busy{after}", wanted.port()))
        };
        let lines = FirstMinute {
            smtp,
            to: format!("{}@{domain}", example_user(&self.config)),
            domain,
            imap,
            imap_busy: busy(imap, ", "),
            password: password.reveal(),
            file: password.file().display().to_string(),
            page: link,
            page_busy: self.addresses.http.first().map_or_else(String::new, |(at, _)| busy(*at, "; ")),
            mail: self.config.storage.mail.display().to_string(),
        };
        Some(lines.text())
    }

    /// Remarks of a start that [`first_minute_banner`](Self::first_minute_banner) omits.
    pub(crate) fn remarks(&self) -> Vec<String> {
        self.notes().into_iter().chain(damaged(&self.replayed)).collect()
    }

    /// The mail restored by the start; `None` if the spool was empty.
    pub(crate) fn restored(&self) -> Option<String> {
        (self.replayed.messages > 0).then(|| restored(&self.replayed))
    }

    /// The text printed at a start: listeners, domains, and how to try it.
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
            let _ = writeln!(out, "  password   in {file} (opens the mail of any account, and the page)");
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

impl MailServer {
    /// Default addresses in use by other programs, each with its replacement.
    fn displaced(&self) -> Vec<(SocketAddr, SocketAddr)> {
        if !self.config.has_default_listeners() {
            return Vec::new();
        }
        let http = self.config.http_listeners().zip(self.addresses.http.iter().map(|(address, _)| *address));
        let reading = self.config.reading_listeners().zip(self.addresses.reading.iter().map(|(_, address)| *address));
        let displaced = http.chain(reading).filter_map(|(listener, now)| {
            let wanted = listener.socket.address.as_deref()?.parse().ok()?;
            (wanted != now).then_some((wanted, now))
        });
        displaced.collect()
    }

    /// System limits below the configured ones, and ports in use by others.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let backlog = self.addresses.backlog;
        if backlog.is_limited_by_somaxconn() {
            let (granted, wanted) = (backlog.granted, backlog.wanted);
            notes
                .push(format!("{granted} connections may wait to be accepted, not {wanted}: raise net.core.somaxconn"));
        }
        for (wanted, now) in self.displaced() {
            notes.push(format!("{wanted} is busy: {now} is in its place"));
        }
        let connections = self.config.limits.connections.connections;
        if let Some(files) = files_max().filter(|&files| files < connections as u64) {
            notes.push(format!(
                "{files} files may be open, too few for {connections} connections: raise LimitNOFILE (ulimit -Hn)"
            ));
        }
        notes
    }

    /// Commands that send a message and read it; empty if no listener accepts mail in plain text.
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

    /// The first TCP address of a protocol for reading mail.
    fn reading_at(&self, protocol: ListenerProtocol) -> Option<SocketAddr> {
        self.addresses.reading.iter().find(|(spoken, _)| *spoken == protocol).map(|(_, address)| *address)
    }

    /// The addresses of a protocol for reading mail.
    fn readers(&self, protocol: ListenerProtocol) -> Vec<String> {
        let of_protocol = self.addresses.reading.iter().filter(|(spoken, _)| *spoken == protocol);
        let unix = self.config.reading_listeners().filter(|listener| listener.protocol == protocol);
        let unix = unix.filter_map(|listener| listener.socket.unix.as_ref()).map(|path| path.display().to_string());
        of_protocol.map(|(_, address)| address.to_string()).chain(unix).collect()
    }

    /// Lines with the page's address. No link: standard output may be a log.
    fn page_lines(&self) -> String {
        let pages = self.pages();
        let mut lines: String = pages.iter().map(|page| format!("  page       {page}\n")).collect();
        if !pages.is_empty() {
            lines += "  log in     posthaste page\n";
        }
        lines
    }

    /// Addresses of the page for a browser.
    fn pages(&self) -> Vec<String> {
        let page = |(address, is_encrypted): &(std::net::SocketAddr, bool)| {
            format!("{}://{address}/", if *is_encrypted { "https" } else { "http" })
        };
        self.addresses.http.iter().map(page).collect()
    }
}

/// The parts of the four lines.
struct FirstMinute {
    smtp: SocketAddr,
    domain: String,
    to: String,
    imap: SocketAddr,
    /// Empty, or a note that the usual port is busy.
    imap_busy: String,
    password: String,
    file: String,
    page: String,
    page_busy: String,
    mail: String,
}

impl FirstMinute {
    fn text(&self) -> String {
        let Self { smtp, domain, to, imap, imap_busy, password, file, page, page_busy, mail } = self;
        format!(
            "  send    printf 'Subject: hello\\r\\n\\r\\nworld\\r\\n' | curl smtp://{smtp} --mail-from you@{domain} --mail-rcpt {to} -T -
  read    imap://{imap} as {to}, password {password} ({imap_busy}also in {file})
  page    {page} ({page_busy}once, within 10 minutes; again: posthaste page)
  search  posthaste find --scan {mail} hello
"
        )
    }
}

/// Limit of open files of this process; each connection is one. `None`: unlimited.
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

/// Acknowledged mail that could not be read.
fn damaged(report: &Restored) -> Option<String> {
    let (places, batches) = (report.damaged_places, report.damaged_batches);
    let (places_text, batches_text) = (count(places, "damaged place"), count(batches, "unreadable batch"));
    (places + batches > 0).then(|| format!("spool: {places_text}, {batches_text}; see the log"))
}

/// True if the first SMTP listener accepts mail in the clear and without a login, like the banner's example.
fn takes_plain_mail(config: &Config) -> bool {
    let first = config.mail_listeners().find(|listener| listener.protocol == ListenerProtocol::Smtp);
    first.is_some_and(|listener| {
        !matches!(listener.tls, Some(ListenerTls::Required | ListenerTls::Implicit))
            && listener.auth != Some(ListenerAuth::Required)
    })
}

/// A user for the banner's example: the first one.
fn example_user(config: &Config) -> String {
    match config.domains.first().map(|domain| &domain.users) {
        Some(posthaste_config::Users::Listed(users)) => users.first().map_or("postmaster", String::as_str).to_owned(),
        _ => "me".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_minute_has_four_lines() {
        let lines = FirstMinute {
            smtp: ([127, 0, 0, 1], 2525).into(),
            domain: "localhost".into(),
            to: "me@localhost".into(),
            imap: ([127, 0, 0, 1], 1144).into(),
            imap_busy: "port 1143 is busy, ".into(),
            password: "abc".into(),
            file: "posthaste-data/password".into(),
            page: "http://127.0.0.1:8025/#k=phl_x".into(),
            page_busy: String::new(),
            mail: "posthaste-data/mail".into(),
        };
        let text = lines.text();
        let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names, ["send", "read", "page", "search"]);
        assert!(text.contains(r"printf 'Subject: hello\r\n\r\nworld\r\n' | curl smtp://127.0.0.1:2525 --mail-from you@localhost --mail-rcpt me@localhost -T -"), "{text}");
        let read =
            "imap://127.0.0.1:1144 as me@localhost, password abc (port 1143 is busy, also in posthaste-data/password)";
        assert!(text.contains(read) && text.contains("#k=phl_x (once, within 10 minutes; "), "{text}");
    }
}
