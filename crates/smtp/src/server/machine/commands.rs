//! Command lines: their end, their meaning, and the commands without a module of their own.

use bytes::{Bytes, BytesMut};

use super::Machine;
use super::state::{HOLD_UNTIL_MAX, Sort, State, Transaction};
use crate::command::{self, Command, CommandError, Hold, MailFrom, RcptTo, date_time};
use crate::limits::BareNewlines;
use crate::reply::Reply;
use crate::server::{Abort, Envelope, Event, Protocol};

/// A line that is not a command.
pub(super) struct BadLine {
    error: CommandError,
    sort: Sort,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hello {
    Helo,
    Ehlo,
    Lhlo,
}

/// RFC 5321 section 4.1.1.11: parameters belong to extensions, which need EHLO.
const NOT_AFTER_HELO: &str = "Parameters need EHLO";
const NEEDS_TLS: &str = "Must issue a STARTTLS command first";
const DSN_NOT_OFFERED: &str = "DSN parameters are not offered";
/// RFC 9422 section 4: at most six digits.
const RCPT_MAX_MAX: usize = 999_999;

impl Machine {
    /// Takes one line without its line end. `None`: no whole line yet.
    pub(super) fn take_line(&mut self, input: &mut BytesMut) -> Option<Result<Bytes, BadLine>> {
        let end = memchr::memchr(b'\n', input);
        if matches!(self.state, State::LongLine { .. }) {
            let Some(end) = end else {
                input.clear();
                return None;
            };
            drop(input.split_to(end + 1));
            self.lines += 1;
            let State::LongLine { error, sort } = std::mem::replace(&mut self.state, State::Command) else {
                unreachable!("seen above")
            };
            return Some(Err(BadLine { error, sort }));
        }
        let response = matches!(self.state, State::AuthResponse);
        let limit = if response {
            command::AUTH_LINE_BYTES_MAX
        } else {
            command::line_bytes_max(input, self.config.limits.command_line_bytes, self.offers_auth())
        };
        let too_long =
            || if response { CommandError::AuthTooLong { limit } } else { CommandError::CommandTooLong { limit } };
        let Some(end) = end else {
            // `limit` octets without a line feed: the whole line is longer.
            if input.len() >= limit {
                self.state = State::LongLine { error: too_long(), sort: self.sort(&input[..limit]) };
                input.clear();
            }
            return None;
        };
        let mut line = input.split_to(end + 1).freeze();
        self.lines += 1;
        if line.len() > limit {
            let sort = self.sort(&line[..limit]);
            self.state = State::Command;
            return Some(Err(BadLine { error: too_long(), sort }));
        }
        line.truncate(end);
        match line.last() {
            Some(b'\r') => line.truncate(end - 1),
            // RFC 5321 section 2.3.8: only CRLF ends a line. Each such line is refused, none is executed.
            _ if self.config.bare_newlines == BareNewlines::Reject => {
                let sort = self.sort(&line);
                self.state = State::Command;
                return Some(Err(BadLine { error: CommandError::BareLf, sort }));
            }
            _ => {}
        }
        Some(Ok(line))
    }

    /// Classifies a line that is not a command by its intent.
    fn sort(&self, line: &[u8]) -> Sort {
        match self.state {
            State::AuthResponse => Sort::Command,
            _ if command::begins_chunk(line) => Sort::Chunk,
            _ if command::is_foreign(line, &self.config.forbidden_commands) => Sort::Foreign,
            _ => Sort::Command,
        }
    }

    /// Refuses a line that is not a command.
    pub(super) fn misread(&mut self, bad: &BadLine) -> Option<Event> {
        match bad.sort {
            Sort::Command => {
                self.refuse(&bad.error.reply());
                return None;
            }
            // Not 221 as elsewhere: a client that is merely confused must not take it for acceptance of its message.
            Sort::Foreign => self.close_with(&Reply::new(502, "5.7.0", "This is a mail server, closing")),
            // The end of the chunk is unknown, and message octets must never be taken for commands.
            Sort::Chunk => self.close_with(&bad.error.reply()),
        }
        self.reset(Abort::Closed)
    }

    pub(super) fn line(&mut self, line: &Bytes, input: &BytesMut) -> Option<Event> {
        if matches!(self.state, State::AuthResponse) {
            return self.auth_response(line);
        }
        let parsed = command::parse(line);
        let mended = if parsed.is_err() && self.config.lenient_commands { command::mended(line) } else { None };
        let meant = mended.as_deref().and_then(|mended| command::parse(mended.as_bytes()).ok());
        let command = match (meant, parsed) {
            (Some(command), _) | (None, Ok(command)) => command,
            (None, Err(error)) => return self.misread(&BadLine { error, sort: self.sort(line) }),
        };
        self.count_idle(&command);
        if matches!(self.state, State::Closed) {
            return None;
        }
        match command {
            Command::Helo(name) => self.hello(name, Hello::Helo),
            Command::Ehlo(name) => self.hello(name, Hello::Ehlo),
            Command::Lhlo(name) => self.hello(name, Hello::Lhlo),
            Command::Mail(mail) => self.mail_from(mail),
            Command::Rcpt(rcpt) => self.rcpt_to(rcpt),
            Command::Data => self.begin_data(),
            Command::Bdat { size, last } => self.begin_chunk(size, last),
            Command::Rset => {
                self.out.extend_from_slice(b"250 2.0.0 OK\r\n");
                self.reset(Abort::Reset)
            }
            Command::Noop => self.say(b"250 2.0.0 OK\r\n"),
            Command::Quit => {
                self.out.extend_from_slice(format!("221 2.0.0 {} Bye\r\n", self.config.host_name).as_bytes());
                self.state = State::Closed;
                self.said_quit = true;
                self.reset(Abort::Quit)
            }
            Command::Vrfy(_) if self.lacks_tls() => self.error(530, "5.7.0", NEEDS_TLS),
            Command::Vrfy(_) => self.say(b"252 2.5.0 Cannot verify, will take mail and try\r\n"),
            Command::Expn => self.error(502, "5.5.1", "EXPN is not offered"),
            Command::Help => self.say(b"214 2.0.0 See RFC 5321\r\n"),
            Command::StartTls => self.start_tls(input),
            Command::Auth { mechanism, initial } => self.begin_auth(mechanism, initial),
        }
    }

    /// Counts commands that bring no mail; see [`Limits::idle_commands`](crate::Limits::idle_commands).
    pub(super) fn count_idle(&mut self, command: &Command<'_>) {
        // An empty chunk brings nothing, unless it is the last.
        let empty = matches!(command, Command::Bdat { size: 0, last: false });
        if matches!(command, Command::Rcpt(_) | Command::Data | Command::Bdat { .. } | Command::Quit) && !empty {
            return;
        }
        self.idle_commands += 1;
        if self.idle_commands > self.config.limits.idle_commands {
            self.close_with(&Reply::new(421, "4.7.0", "Too many commands without a message"));
        }
    }

    pub(super) fn hello(&mut self, name: &str, hello: Hello) -> Option<Event> {
        let lmtp = self.config.protocol == Protocol::Lmtp;
        if lmtp != (hello == Hello::Lhlo) {
            // RFC 2033 section 4.1: an LMTP server must not accept HELO or EHLO.
            return self.error(500, "5.5.1", if lmtp { "This is LMTP: say LHLO" } else { "This is SMTP: say EHLO" });
        }
        self.helo = Some(name.into());
        self.extended = hello != Hello::Helo;
        if self.config.asks_hello {
            self.state = State::AskHello;
        } else {
            self.welcome();
        }
        self.reset(Abort::Hello)
    }

    pub(super) fn welcome(&mut self) {
        if self.extended {
            self.announce();
        } else {
            self.out.extend_from_slice(format!("250 {}\r\n", self.config.host_name).as_bytes());
        }
    }

    fn announce(&mut self) {
        let config = &self.config;
        let limits = &config.limits;
        let mut lines = vec![config.host_name.clone(), "PIPELINING".into()];
        lines.push(if limits.message_bytes == 0 { "SIZE".into() } else { format!("SIZE {}", limits.message_bytes) });
        lines.extend(["8BITMIME", "SMTPUTF8", "CHUNKING", "ENHANCEDSTATUSCODES"].map(String::from));
        if self.offers_dsn() {
            lines.push("DSN".into());
        }
        if limits.future_release_secs > 0 {
            lines.push(format!("FUTURERELEASE {} {}", limits.future_release_secs, date_time(self.hold_until_max)));
            lines.push("XEXPIRES".into());
        }
        if config.starttls && !self.tls {
            lines.push("STARTTLS".into());
        }
        if self.offers_auth() {
            let mechanisms: String = self.mechanisms().flat_map(|name| [" ", name]).collect();
            lines.push(format!("AUTH{mechanisms}"));
        }
        let mail_max = limits.messages.map_or(String::new(), |max| format!(" MAILMAX={max}"));
        let rcpt_max = Some(limits.recipients).filter(|max| *max <= RCPT_MAX_MAX);
        let rcpt_max = rcpt_max.map_or(String::new(), |max| format!(" RCPTMAX={max}"));
        if !(mail_max.is_empty() && rcpt_max.is_empty()) {
            lines.push(format!("LIMITS{mail_max}{rcpt_max}"));
        }
        Reply::new(250, "", lines.join("\n")).write(&mut self.out);
    }

    fn offers_dsn(&self) -> bool {
        self.config.dsn || self.config.dsn_for_logins && self.authenticated
    }

    pub(super) fn mail_from(&mut self, mail: MailFrom) -> Option<Event> {
        let limits = &self.config.limits;
        if self.helo.is_none() {
            return self.error(503, "5.5.1", "Say hello first");
        }
        if self.transaction.is_some() {
            return self.error(503, "5.5.1", "Sender already given");
        }
        if self.lacks_tls() {
            return self.error(530, "5.7.0", NEEDS_TLS);
        }
        if !self.extended && mail.has_parameters() {
            return self.error(555, "5.5.4", NOT_AFTER_HELO);
        }
        if limits.messages.is_some_and(|max| self.messages >= max) {
            self.close_with(&Reply::new(421, "4.7.0", "Too many messages in one session, come again"));
            return None;
        }
        if limits.message_bytes > 0 && mail.size.is_some_and(|size| size > limits.message_bytes) {
            return self.error(552, "5.3.4", "Message is larger than this server takes");
        }
        if mail.auth.is_some() && self.config.auth_mechanisms.is_empty() {
            return self.error(555, "5.5.4", "AUTH= is not offered");
        }
        if !self.offers_dsn() && (mail.ret.is_some() || mail.envid.is_some()) {
            return self.error(555, "5.5.4", DSN_NOT_OFFERED);
        }
        if limits.future_release_secs == 0 && (mail.hold.is_some() || mail.expires.is_some()) {
            return self.error(555, "5.5.4", "FUTURERELEASE is not offered");
        }
        let is_too_late = match mail.hold {
            Some(Hold::For(secs)) => secs > limits.future_release_secs,
            Some(Hold::Until(until)) => until > self.hold_until_max,
            None => false,
        };
        if is_too_late || mail.expires.is_some_and(|expires| expires > HOLD_UNTIL_MAX) {
            return self.error(501, "5.5.4", "That is later than this server keeps mail");
        }
        if !mail.smtputf8 && !mail.reverse_path.is_ascii() {
            return self.error(553, "5.6.7", "Address needs SMTPUTF8");
        }
        let envelope = Envelope { mail, recipients: Vec::new() };
        self.transaction = Some(Box::new(Transaction { envelope, recipients: 0, refused: false, body: None }));
        self.state = State::AnswerMail;
        Some(Event::Mail)
    }

    pub(super) fn rcpt_to(&mut self, rcpt: RcptTo) -> Option<Event> {
        let offers_dsn = self.offers_dsn();
        let Some(transaction) = self.transaction.as_mut().filter(|t| t.body.is_none()) else {
            return self.error(503, "5.5.1", "Not now: MAIL comes before RCPT");
        };
        if !self.extended && (rcpt.notify.is_some() || rcpt.orcpt.is_some()) {
            return self.error(555, "5.5.4", NOT_AFTER_HELO);
        }
        if !offers_dsn && (rcpt.notify.is_some() || rcpt.orcpt.is_some()) {
            return self.error(555, "5.5.4", DSN_NOT_OFFERED);
        }
        if transaction.recipients >= self.config.limits.recipients {
            // 452, not 552: RFC 5321 section 4.5.3.1.10. The client sends the rest in another transaction.
            self.defer_recipient(&Reply::new(452, "4.5.3", "Too many recipients"));
            return None;
        }
        if !transaction.envelope.mail.smtputf8 && !rcpt.forward_path.is_ascii() {
            transaction.refused = true;
            return self.error(553, "5.6.7", "Address needs SMTPUTF8");
        }
        self.state = State::AnswerRcpt(Box::new(rcpt));
        Some(Event::Rcpt)
    }

    /// Sends a 4yz reply to RCPT. This is not the client's error, but the number in a session is limited.
    pub(super) fn defer_recipient(&mut self, reply: &Reply) {
        reply.write(&mut self.out);
        self.deferred_recipients += 1;
        if self.deferred_recipients > self.config.limits.deferred_recipients {
            self.close_with(&Reply::new(421, "4.7.0", "Too many recipients without a message"));
        }
    }

    pub(super) fn say(&mut self, reply: &[u8]) -> Option<Event> {
        self.out.extend_from_slice(reply);
        None
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::server::Machine;

    /// Replies to these lines, in a session that began at 1,790,000,000 and may hold mail back for 100 s.
    fn replies(lines: &str) -> String {
        let mut config = crate::server::Config::new("s.example");
        config.limits.future_release_secs = 100;
        let mut machine = Machine::new(std::sync::Arc::new(config)).begun_at(1_790_000_000);
        machine.greet(Ok(()));
        let mut input = BytesMut::from(lines);
        while let event = machine.step(&mut input)
            && !matches!(event, Event::NeedInput)
        {
            match event {
                Event::Hello | Event::Mail => machine.answer(Ok(())),
                other => panic!("{other:?}"),
            }
        }
        String::from_utf8(machine.output().to_vec()).unwrap()
    }

    #[test]
    fn the_date_that_is_announced_is_the_latest_to_hold_until() {
        let said = replies("EHLO c.example\r\n");
        let latest = date_time(1_790_000_100).to_string();
        assert!(said.contains(&format!("250-FUTURERELEASE 100 {latest}\r\n")), "{said}");
        for (hold, code) in [
            (format!("HOLDUNTIL={latest}"), "250"),
            (format!("HOLDUNTIL={}", date_time(1_790_000_101)), "501"),
            ("HOLDFOR=100".to_owned(), "250"),
            ("HOLDFOR=101".to_owned(), "501"),
        ] {
            let said = replies(&format!("EHLO c.example\r\nMAIL FROM:<> {hold}\r\n"));
            assert!(said.lines().last().unwrap().starts_with(code), "{hold}: {said}");
        }
    }
}
