//! The states of a server session.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{AuthStep, Config, Envelope, Event, MessageOutcome, Protocol, Waiting};
use crate::command::{self, Command, CommandError, MailFrom, RcptTo};
use crate::limits::BareNewlines;
use crate::reply::Reply;
use crate::scan::{BodyError, Scanner};

/// One server session. See the [module](super) for how it is driven.
///
/// Between two calls of [`Machine::step`] it holds the envelope and the unwritten replies, nothing else: what it did
/// not take stays in the caller's buffer, which never needs to hold more than one command line or a few octets of a body.
#[derive(Debug)]
pub struct Machine {
    config: Arc<Config>,
    state: State,
    out: Vec<u8>,
    helo: Option<Box<str>>,
    extended: bool,
    tls: bool,
    authenticated: bool,
    transaction: Option<Box<Transaction>>,
    errors: u32,
    deferred_recipients: u32,
    idle_commands: u32,
    messages: u32,
    lines: u64,
    bodies: u64,
    said_goodbye: bool,
}

#[derive(Debug)]
enum State {
    /// Waits for [`Machine::greet`].
    Greeting,
    /// Waits for a command line.
    Command,
    /// Waits for the end of a line that is already too long.
    LongLine { limit: usize, chunk: bool },
    /// Waits for [`Machine::answer`] about MAIL.
    AnswerMail,
    /// Waits for [`Machine::answer`] about RCPT.
    AnswerRcpt(Box<RcptTo>),
    /// Waits for CRLF.CRLF.
    Data,
    /// Waits for the rest of a chunk; `refusal` is told instead of 250 once it has been read over.
    Chunk { left: u64, size: u64, last: bool, refusal: Option<Box<Reply>> },
    /// The message is complete; its last event has not been given out yet.
    Complete,
    /// Waits for [`Machine::finish`].
    Outcome,
    /// Waits for [`Machine::tls_started`].
    Tls,
    /// Waits for [`Machine::auth_challenge`] or [`Machine::auth_done`].
    AuthAnswer,
    /// Waits for the client's answer to a challenge.
    AuthResponse,
    /// Nothing more is read.
    Closed,
}

#[derive(Debug)]
struct Transaction {
    envelope: Envelope,
    /// Recipients in the envelope, which leaves with [`Event::BodyBegin`].
    recipients: usize,
    /// Whether a RCPT was refused: then DATA without recipients is 554 and not 503.
    refused: bool,
    body: Option<Body>,
}

#[derive(Debug)]
struct Body {
    scanner: Scanner,
    /// [`Event::BodyBegin`] has been given out.
    begun: bool,
    /// [`Event::BodyAborted`] has been given out.
    aborted: bool,
}

const DSN_NOT_OFFERED: &str = "DSN parameters are not offered";
/// Replies beyond this are written before more commands are looked at.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

impl Machine {
    /// A session that waits for [`Machine::greet`].
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            state: State::Greeting,
            out: Vec::new(),
            helo: None,
            extended: false,
            tls: false,
            authenticated: false,
            transaction: None,
            errors: 0,
            deferred_recipients: 0,
            idle_commands: 0,
            messages: 0,
            lines: 0,
            bodies: 0,
            said_goodbye: false,
        }
    }

    /// Writes the greeting, or refuses the connection with a 4yz or 5yz reply and closes it.
    pub fn greet(&mut self, verdict: Result<(), Reply>) {
        assert!(matches!(self.state, State::Greeting), "greeted in {:?}", self.state);
        match verdict {
            Ok(()) => {
                let protocol = if self.config.protocol == Protocol::Lmtp { "LMTP" } else { "ESMTP" };
                let line = format!("220 {} {protocol} ready\r\n", self.config.host_name);
                self.out.extend_from_slice(line.as_bytes());
                self.state = State::Command;
            }
            Err(reply) => self.close_with(&reply),
        }
    }

    /// The replies that wait to be written.
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// The replies that wait to be written, for the driver to take.
    pub fn output_mut(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// The client's name as given with HELO, EHLO or LHLO.
    pub fn helo(&self) -> Option<&str> {
        self.helo.as_deref()
    }

    /// Whether the client said EHLO or LHLO.
    pub fn is_extended(&self) -> bool {
        self.extended
    }

    /// Whether [`Machine::tls_started`] was called.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Whether AUTH succeeded.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// The MAIL command of the open transaction, while its envelope has not left with [`Event::BodyBegin`].
    pub fn mail(&self) -> Option<&MailFrom> {
        self.envelope().map(|envelope| &envelope.mail)
    }

    /// The envelope of the open transaction so far, while it has not left with [`Event::BodyBegin`].
    pub fn envelope(&self) -> Option<&Envelope> {
        self.transaction.as_ref().filter(|t| t.body.is_none()).map(|t| &t.envelope)
    }

    /// The recipient that [`Event::Rcpt`] asks about.
    pub fn recipient(&self) -> Option<&RcptTo> {
        match &self.state {
            State::AnswerRcpt(rcpt) => Some(rcpt),
            _ => None,
        }
    }

    /// What the client is expected to send.
    pub fn waiting(&self) -> Waiting {
        match self.state {
            State::Data | State::Chunk { .. } => Waiting::Body,
            _ if self.transaction.is_some() => Waiting::Command,
            State::AuthResponse | State::LongLine { .. } => Waiting::Command,
            _ => Waiting::Idle,
        }
    }

    /// Whether the session ended with QUIT, so that the client expects nothing but a close.
    pub fn said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Counts finished command lines: while it stands still, the same command is being waited for.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Counts bodies that began, each message and each refused chunk: while it stands still, octets belong to the same one.
    pub fn bodies(&self) -> u64 {
        self.bodies
    }

    /// A sensible room for the next read, in octets: little for commands, growing with the message for bodies.
    pub fn read_bytes_hint(&self) -> usize {
        const COMMANDS: u64 = 4 << 10;
        const SMALL_BODY: u64 = 16 << 10;
        const LARGE_BODY: u64 = 256 << 10;
        let received = self.transaction.as_ref().and_then(|t| t.body.as_ref()).map_or(0, |b| b.scanner.size());
        let bytes = match self.state {
            State::Chunk { left, .. } => left.saturating_add(512).clamp(COMMANDS, LARGE_BODY),
            State::Data => received.saturating_mul(4).clamp(SMALL_BODY, LARGE_BODY),
            _ => COMMANDS,
        };
        bytes as usize
    }

    /// Says 421 4.4.2 and closes: the client took too long.
    pub fn time_out(&mut self) {
        self.close_with(&Reply::new(421, "4.4.2", format!("{} Timeout, closing", self.config.host_name)));
    }

    /// Says 421 4.3.2 and closes: the server shuts down.
    pub fn shut_down(&mut self) {
        self.close_with(&Reply::new(421, "4.3.2", format!("{} Service shutting down", self.config.host_name)));
    }

    /// Answers [`Event::Mail`] and [`Event::Rcpt`]. An error is sent as it is.
    ///
    /// # Panics
    /// When nothing was asked, or an error is not a 4yz or 5yz reply.
    pub fn answer(&mut self, verdict: Result<(), Reply>) {
        if let Err(reply) = &verdict {
            assert!(reply.is_transient() || reply.is_permanent(), "refused with {reply}");
        }
        let asked = std::mem::replace(&mut self.state, State::Command);
        let rcpt = matches!(asked, State::AnswerRcpt(_));
        let text = match asked {
            State::AnswerMail => {
                if verdict.is_err() {
                    self.transaction = None;
                }
                "250 2.1.0 Sender OK\r\n"
            }
            State::AnswerRcpt(rcpt) => {
                let transaction = self.transaction.as_mut().expect("RCPT has a transaction");
                match verdict {
                    Ok(()) => {
                        transaction.recipients += 1;
                        transaction.envelope.recipients.push(*rcpt);
                    }
                    Err(_) => transaction.refused = true,
                }
                "250 2.1.5 Recipient OK\r\n"
            }
            other => panic!("answered in {other:?}"),
        };
        match verdict {
            Ok(()) => self.out.extend_from_slice(text.as_bytes()),
            // A handler's 421 ends the session (RFC 5321 section 3.8).
            Err(reply) if reply.code() == 421 => self.close_with(&reply),
            Err(reply) if rcpt && reply.is_transient() => self.defer_recipient(&reply),
            Err(reply) => self.refuse(&reply),
        }
    }

    /// Answers [`Event::BodyEnd`]: one reply, or in LMTP one for each recipient.
    ///
    /// # Panics
    /// When nothing was asked, or a verdict is a 3yz reply.
    pub fn finish(&mut self, outcome: &MessageOutcome) {
        assert!(matches!(self.state, State::Outcome), "finished in {:?}", self.state);
        assert!(outcome.is_final(), "finished with {outcome:?}");
        self.state = State::Command;
        if outcome.is_accepted() {
            self.messages += 1;
            self.errors = 0;
            self.deferred_recipients = 0;
            self.idle_commands = 0;
        }
        self.conclude(outcome);
    }

    /// The handshake asked for by [`Event::StartTls`] is done. The session starts over, as RFC 3207 section 4.2 demands.
    ///
    /// # Panics
    /// When nothing was asked.
    pub fn tls_started(&mut self) {
        assert!(matches!(self.state, State::Tls), "TLS started in {:?}", self.state);
        self.state = State::Command;
        self.tls = true;
        self.helo = None;
        self.extended = false;
        self.authenticated = false;
        self.transaction = None;
    }

    /// Answers [`Event::Auth`] with a challenge in base64; its reply comes as [`AuthStep::Response`].
    ///
    /// # Panics
    /// When nothing was asked.
    pub fn auth_challenge(&mut self, base64: &str) {
        assert!(matches!(self.state, State::AuthAnswer), "challenged in {:?}", self.state);
        self.state = State::AuthResponse;
        self.out.extend_from_slice(format!("334 {base64}\r\n").as_bytes());
    }

    /// Answers [`Event::Auth`]: the client is who it says, or gets the error (usually 535 5.7.8).
    ///
    /// # Panics
    /// When nothing was asked.
    pub fn auth_done(&mut self, verdict: Result<(), Reply>) {
        assert!(matches!(self.state, State::AuthAnswer), "AUTH done in {:?}", self.state);
        self.state = State::Command;
        match verdict {
            Ok(()) => {
                self.authenticated = true;
                self.out.extend_from_slice(b"235 2.7.0 Authentication succeeded\r\n");
            }
            Err(reply) => self.refuse(&reply),
        }
    }

    /// Goes on with `input`, of which it takes what it can use.
    ///
    /// # Panics
    /// When an event that asks has not been answered, or [`Machine::greet`] was not called.
    pub fn step(&mut self, input: &mut BytesMut) -> Event {
        loop {
            let event = match self.state {
                State::Closed => return Event::Close,
                _ if self.out.len() >= OUTPUT_BYTES_MAX => return Event::Flush,
                State::Command | State::AuthResponse | State::LongLine { .. } => match self.take_line(input) {
                    None => return Event::NeedInput,
                    Some(Ok(line)) => self.line(&line, input),
                    Some(Err(bad)) => self.misread(&bad),
                },
                State::Data | State::Chunk { .. } => {
                    if let Some(event) = self.begin_body() {
                        return event;
                    }
                    if input.is_empty() && !self.chunk_is_done() {
                        return Event::NeedInput;
                    }
                    let before = input.len();
                    let event = if matches!(self.state, State::Data) { self.data(input) } else { self.chunk(input) };
                    let stuck = event.is_none() && input.len() == before && matches!(self.state, State::Data);
                    if stuck {
                        return Event::NeedInput;
                    }
                    event
                }
                State::Complete => {
                    self.state = State::Outcome;
                    Some(Event::BodyEnd)
                }
                State::Greeting
                | State::AnswerMail
                | State::AnswerRcpt(_)
                | State::Outcome
                | State::Tls
                | State::AuthAnswer => panic!("stepped in {:?}", self.state),
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// Takes one line without its line end. `None`: there is no whole line yet.
    fn take_line(&mut self, input: &mut BytesMut) -> Option<Result<Bytes, BadLine>> {
        let end = memchr::memchr(b'\n', input);
        if let State::LongLine { limit, chunk } = self.state {
            let Some(end) = end else {
                input.clear();
                return None;
            };
            drop(input.split_to(end + 1));
            self.state = State::Command;
            self.lines += 1;
            return Some(Err(BadLine { error: CommandError::CommandTooLong { limit }, chunk }));
        }
        let (limit, chunk) = match self.state {
            State::AuthResponse => (command::AUTH_LINE_BYTES_MAX, false),
            _ => {
                let limit = command::line_bytes_max(input, self.config.limits.command_line_bytes);
                (limit, command::begins_chunk(input))
            }
        };
        let Some(end) = end else {
            // `limit` octets without a line feed: the line with it has more.
            if input.len() >= limit {
                input.clear();
                self.state = State::LongLine { limit, chunk };
            }
            return None;
        };
        let mut line = input.split_to(end + 1).freeze();
        self.lines += 1;
        if line.len() > limit {
            self.state = State::Command;
            return Some(Err(BadLine { error: CommandError::CommandTooLong { limit }, chunk }));
        }
        line.truncate(end);
        match line.last() {
            Some(b'\r') => line.truncate(end - 1),
            // RFC 5321 section 2.3.8: only CRLF ends a line. Each such line is refused, none is executed.
            _ if self.config.bare_newlines == BareNewlines::Reject => {
                self.state = State::Command;
                return Some(Err(BadLine { error: CommandError::BareLf, chunk }));
            }
            _ => {}
        }
        Some(Ok(line))
    }

    /// Refuses a line that was no command.
    fn misread(&mut self, bad: &BadLine) -> Option<Event> {
        self.refuse(&bad.error.reply());
        if bad.chunk {
            // Where the chunk ends is not known, and message octets must never be taken for commands.
            self.state = State::Closed;
            return self.reset();
        }
        None
    }

    fn line(&mut self, line: &Bytes, input: &BytesMut) -> Option<Event> {
        if matches!(self.state, State::AuthResponse) {
            return self.auth_response(line);
        }
        let command = match command::parse(line) {
            Ok(command) => command,
            Err(error) => return self.misread(&BadLine { error, chunk: command::begins_chunk(line) }),
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
                self.reset()
            }
            Command::Noop => self.say(b"250 2.0.0 OK\r\n"),
            Command::Quit => {
                self.out.extend_from_slice(format!("221 2.0.0 {} Bye\r\n", self.config.host_name).as_bytes());
                self.state = State::Closed;
                self.said_goodbye = true;
                self.reset()
            }
            Command::Vrfy(_) => self.say(b"252 2.5.0 Cannot verify, will take mail and try\r\n"),
            Command::Expn => self.error(502, "5.5.1", "EXPN is not offered"),
            Command::Help => self.say(b"214 2.0.0 See RFC 5321\r\n"),
            Command::StartTls => self.start_tls(input),
            Command::Auth { mechanism, initial } => self.begin_auth(mechanism, initial),
        }
    }

    /// Commands that bring no mail are counted; see [`Limits::idle_commands`](crate::Limits::idle_commands).
    fn count_idle(&mut self, command: &Command<'_>) {
        if matches!(command, Command::Rcpt(_) | Command::Data | Command::Bdat { .. } | Command::Quit) {
            return;
        }
        self.idle_commands += 1;
        if self.idle_commands > self.config.limits.idle_commands {
            self.close_with(&Reply::new(421, "4.7.0", "Too many commands without a message"));
        }
    }

    fn hello(&mut self, name: &str, hello: Hello) -> Option<Event> {
        let lmtp = self.config.protocol == Protocol::Lmtp;
        if lmtp != (hello == Hello::Lhlo) {
            // RFC 2033 section 4.1: an LMTP server must not accept HELO or EHLO.
            return self.error(500, "5.5.1", if lmtp { "This is LMTP: say LHLO" } else { "This is SMTP: say EHLO" });
        }
        self.helo = Some(name.into());
        self.extended = hello != Hello::Helo;
        if self.extended {
            self.announce();
        } else {
            self.out.extend_from_slice(format!("250 {}\r\n", self.config.host_name).as_bytes());
        }
        self.reset()
    }

    fn announce(&mut self) {
        let config = &self.config;
        let limits = &config.limits;
        let mut lines = vec![config.host_name.clone(), "PIPELINING".into()];
        lines.push(if limits.message_bytes == 0 { "SIZE".into() } else { format!("SIZE {}", limits.message_bytes) });
        lines.extend(["8BITMIME", "SMTPUTF8", "CHUNKING", "ENHANCEDSTATUSCODES"].map(String::from));
        if config.dsn {
            lines.push("DSN".into());
        }
        if config.starttls && !self.tls {
            lines.push("STARTTLS".into());
        }
        if self.offers_auth() {
            lines.push(format!("AUTH {}", config.auth_mechanisms.join(" ")));
        }
        let mail_max = limits.messages.map_or(String::new(), |max| format!(" MAILMAX={max}"));
        lines.push(format!("LIMITS{mail_max} RCPTMAX={}", limits.recipients));
        Reply::new(250, "", lines.join("\n")).write(&mut self.out);
    }

    fn offers_auth(&self) -> bool {
        !self.config.auth_mechanisms.is_empty() && !self.authenticated && (self.tls || !self.config.auth_needs_tls)
    }

    fn mail_from(&mut self, mail: MailFrom) -> Option<Event> {
        let limits = &self.config.limits;
        if self.helo.is_none() {
            return self.error(503, "5.5.1", "Say hello first");
        }
        if self.transaction.is_some() {
            return self.error(503, "5.5.1", "Sender already given");
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
        if !self.config.dsn && (mail.ret.is_some() || mail.envid.is_some()) {
            return self.error(555, "5.5.4", DSN_NOT_OFFERED);
        }
        if !mail.smtputf8 && mail.reverse_path.address().is_some_and(|a| !a.is_ascii()) {
            return self.error(553, "5.6.7", "Address needs SMTPUTF8");
        }
        let envelope = Envelope { mail, recipients: Vec::new() };
        self.transaction = Some(Box::new(Transaction { envelope, recipients: 0, refused: false, body: None }));
        self.state = State::AnswerMail;
        Some(Event::Mail)
    }

    fn rcpt_to(&mut self, rcpt: RcptTo) -> Option<Event> {
        let Some(transaction) = self.transaction.as_mut().filter(|t| t.body.is_none()) else {
            return self.error(503, "5.5.1", "Not now: MAIL comes before RCPT");
        };
        if !self.config.dsn && (rcpt.notify.is_some() || rcpt.orcpt.is_some()) {
            return self.error(555, "5.5.4", DSN_NOT_OFFERED);
        }
        if transaction.recipients >= self.config.limits.recipients {
            // 452 and not 552: RFC 5321 section 4.5.3.1.10. The client sends the rest in another transaction.
            self.defer_recipient(&Reply::new(452, "4.5.3", "Too many recipients"));
            return None;
        }
        if !transaction.envelope.mail.smtputf8 && rcpt.forward_path.address().is_some_and(|a| !a.is_ascii()) {
            transaction.refused = true;
            return self.error(553, "5.6.7", "Address needs SMTPUTF8");
        }
        self.state = State::AnswerRcpt(Box::new(rcpt));
        Some(Event::Rcpt)
    }

    /// Why no body may begin now.
    fn body_refusal(&self) -> Option<Reply> {
        match &self.transaction {
            None => Some(Reply::new(503, "5.5.1", "MAIL and RCPT come first")),
            Some(t) if t.recipients > 0 => None,
            Some(t) if t.refused => Some(Reply::new(554, "5.5.1", "No valid recipients")),
            Some(_) => Some(Reply::new(503, "5.5.1", "RCPT comes first")),
        }
    }

    fn begin_data(&mut self) -> Option<Event> {
        if self.transaction.as_ref().is_some_and(|t| t.body.is_some()) {
            return self.error(503, "5.5.1", "BDAT and DATA do not mix");
        }
        if let Some(refusal) = self.body_refusal() {
            self.refuse(&refusal);
            return None;
        }
        self.out.extend_from_slice(b"354 End data with <CR><LF>.<CR><LF>\r\n");
        self.open_body(true);
        self.state = State::Data;
        None
    }

    /// A refused chunk is still read over to its last octet (RFC 3030 section 2).
    fn begin_chunk(&mut self, size: u64, last: bool) -> Option<Event> {
        let refusal = self.body_refusal();
        if refusal.is_none() && self.transaction.as_ref().is_some_and(|t| t.body.is_none()) {
            self.open_body(false);
        }
        let limits = &self.config.limits;
        let discard_bytes = limits.message_bytes.saturating_add(limits.discard_bytes);
        if limits.message_bytes > 0 && size > discard_bytes {
            self.close_with(&Reply::new(552, "5.3.4", "Chunk is too large to be read over, closing"));
            return self.reset();
        }
        self.bodies += u64::from(refusal.is_some());
        self.state = State::Chunk { left: size, size, last, refusal: refusal.map(Box::new) };
        None
    }

    fn open_body(&mut self, dots: bool) {
        let scanner = Scanner::new(self.config.body_policy(), dots);
        let transaction = self.transaction.as_mut().expect("a body has a transaction");
        transaction.body = Some(Body { scanner, begun: false, aborted: false });
        self.bodies += 1;
    }

    /// The first event of a body.
    fn begin_body(&mut self) -> Option<Event> {
        let transaction = self.transaction.as_mut()?;
        let body = transaction.body.as_mut().filter(|body| !body.begun)?;
        body.begun = true;
        let mail = MailFrom::new(crate::address::ReversePath::Null);
        let empty = Envelope { mail, recipients: Vec::new() };
        Some(Event::BodyBegin(std::mem::replace(&mut transaction.envelope, empty)))
    }

    fn data(&mut self, input: &mut BytesMut) -> Option<Event> {
        let body = self.transaction.as_mut().and_then(|t| t.body.as_mut()).expect("DATA has a body");
        let scanned = body.scanner.scan(input);
        if scanned.ended {
            self.state = State::Complete;
        }
        self.piece(scanned.bytes)
    }

    fn chunk_is_done(&self) -> bool {
        matches!(self.state, State::Chunk { left: 0, .. })
    }

    fn chunk(&mut self, input: &mut BytesMut) -> Option<Event> {
        let State::Chunk { left, size, last, refusal } = &mut self.state else { unreachable!("not in a chunk") };
        let take = (*left).min(input.len() as u64);
        *left -= take;
        let (left, size, last) = (*left, *size, *last);
        let mut part = input.split_to(take as usize);
        if refusal.is_some() {
            if left == 0 {
                let reply = refusal.take();
                self.state = State::Command;
                self.refuse(&reply.expect("a refusal"));
            }
            return None;
        }
        let body = self.transaction.as_mut().and_then(|t| t.body.as_mut()).expect("BDAT has a body");
        let mut bytes = body.scanner.scan(&mut part).bytes;
        if left == 0 && last {
            let tail = body.scanner.finish();
            if !tail.is_empty() {
                bytes = [&bytes[..], &tail].concat().into();
            }
            self.state = State::Complete;
        }
        let event = self.piece(bytes);
        if left == 0 && !last && !matches!(self.state, State::Closed) {
            self.state = State::Command;
            let body = self.transaction.as_ref().and_then(|t| t.body.as_ref()).expect("BDAT has a body");
            match body.scanner.fault() {
                // Told for each chunk; those already in the pipeline are read over in the same way.
                Some(error) => self.refuse(&error.reply()),
                None => self.out.extend_from_slice(format!("250 2.0.0 {size} octets received\r\n").as_bytes()),
            }
        }
        event
    }

    /// Hands out octets of a message, or notices that they are no longer wanted.
    fn piece(&mut self, bytes: Bytes) -> Option<Event> {
        let transaction = self.transaction.as_mut().expect("a piece has a transaction");
        let body = transaction.body.as_mut().expect("a piece has a body");
        let complete = matches!(self.state, State::Complete);
        let Some(error) = body.scanner.fault() else {
            return (!bytes.is_empty()).then_some(Event::Body(bytes));
        };
        let over = body.scanner.size().saturating_sub(self.config.limits.message_bytes);
        let too_much = self.config.limits.message_bytes > 0 && over > self.config.limits.discard_bytes;
        let first = !std::mem::replace(&mut body.aborted, true);
        if too_much {
            self.transaction = None;
            self.close_with(&error.reply());
        } else if complete {
            self.state = State::Command;
            self.conclude(&MessageOutcome::All(error.reply()));
        }
        first.then_some(Event::BodyAborted(error))
    }

    /// Ends the transaction with its replies.
    fn conclude(&mut self, outcome: &MessageOutcome) {
        let recipients = self.transaction.take().map_or(0, |t| t.recipients);
        if self.config.protocol == Protocol::Smtp {
            let reply = outcome.single();
            return match reply.code() {
                421 => self.close_with(&reply),
                _ if reply.is_positive() => reply.write(&mut self.out),
                _ => self.refuse(&reply),
            };
        }
        for index in 0..recipients {
            outcome.of_recipient(index).write(&mut self.out);
        }
        if !outcome.is_accepted() {
            self.count_error();
        }
    }

    /// Forgets the open transaction.
    fn reset(&mut self) -> Option<Event> {
        let body = self.transaction.take()?.body?;
        (body.begun && !body.aborted).then_some(Event::BodyAborted(BodyError::Reset))
    }

    fn start_tls(&mut self, input: &BytesMut) -> Option<Event> {
        if !self.config.starttls {
            return self.error(502, "5.5.1", "STARTTLS is not offered");
        }
        if self.tls || self.transaction.is_some() || self.helo.is_none() || !self.extended {
            return self.error(503, "5.5.1", "STARTTLS is out of place");
        }
        if !input.is_empty() {
            // Octets sent in the clear must not be taken for octets of the encrypted session (CVE-2011-0411).
            self.close_with(&Reply::new(554, "5.5.0", "Data behind STARTTLS, closing"));
            return None;
        }
        self.out.extend_from_slice(b"220 2.0.0 Ready to start TLS\r\n");
        self.state = State::Tls;
        Some(Event::StartTls)
    }

    fn begin_auth(&mut self, mechanism: &str, initial: Option<&str>) -> Option<Event> {
        if self.authenticated || self.transaction.is_some() || !self.extended {
            return self.error(503, "5.5.1", "AUTH is out of place");
        }
        if self.config.auth_mechanisms.is_empty() {
            return self.error(502, "5.5.1", "AUTH is not offered");
        }
        if !self.offers_auth() {
            return self.error(538, "5.7.11", "Encryption is required for AUTH");
        }
        let Some(known) = self.config.auth_mechanisms.iter().find(|m| m.eq_ignore_ascii_case(mechanism)) else {
            return self.error(504, "5.5.4", "Mechanism is not offered");
        };
        let (mechanism, initial) = (known.clone(), initial.map(String::from));
        self.state = State::AuthAnswer;
        Some(Event::Auth(AuthStep::Begin { mechanism, initial }))
    }

    fn auth_response(&mut self, line: &[u8]) -> Option<Event> {
        self.state = State::Command;
        match std::str::from_utf8(line) {
            Ok("*") => self.error(501, "5.7.0", "Authentication cancelled"),
            Ok(text) if text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)) => {
                self.state = State::AuthAnswer;
                Some(Event::Auth(AuthStep::Response(text.into())))
            }
            _ => self.error(501, "5.5.2", "Not base64"),
        }
    }

    fn say(&mut self, reply: &[u8]) -> Option<Event> {
        self.out.extend_from_slice(reply);
        None
    }

    fn error(&mut self, code: u16, enhanced: &str, text: &'static str) -> Option<Event> {
        self.refuse(&Reply::new(code, enhanced, text));
        None
    }

    /// Sends a negative reply and counts it.
    fn refuse(&mut self, reply: &Reply) {
        reply.write(&mut self.out);
        if reply.is_permanent() {
            self.count_error();
        }
    }

    /// Sends a 4yz reply to RCPT. No error of the client's, yet a session must not live on nothing else.
    fn defer_recipient(&mut self, reply: &Reply) {
        reply.write(&mut self.out);
        self.deferred_recipients += 1;
        if self.deferred_recipients > self.config.limits.deferred_recipients {
            self.close_with(&Reply::new(421, "4.7.0", "Too many recipients without a message"));
        }
    }

    fn count_error(&mut self) {
        self.errors += 1;
        if self.errors > self.config.limits.errors {
            self.close_with(&Reply::new(421, "4.7.0", "Too many errors"));
        }
    }

    fn close_with(&mut self, reply: &Reply) {
        reply.write(&mut self.out);
        self.state = State::Closed;
    }
}

/// A line that is not a command.
struct BadLine {
    error: CommandError,
    /// It would have been BDAT, and octets of a message follow it.
    chunk: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hello {
    Helo,
    Ehlo,
    Lhlo,
}
