//! The states of a session.

use std::sync::Arc;

use bytes::BytesMut;
use posthaste_scram::{ScramProof, ScramServer, TlsExporter};

use super::events::{Pop3Config, Pop3Event, Pop3Refusal};
use super::listing::{Listing, Sending};
use super::maildrop::{Maildrop, MarkedMessages};
use crate::command::{Pop3Command, parse};
use crate::line::{LineFrame, LineFramer};

/// One server session. See the [module](super) for how it is driven.
///
/// Between two calls of [`Pop3Machine::step`] it holds a bit for each message and unwritten output; unused input stays
/// in the caller's buffer.
#[derive(Debug)]
pub struct Pop3Machine {
    pub(super) config: Arc<Pop3Config>,
    pub(super) state: State,
    pub(super) out: Vec<u8>,
    framer: LineFramer,
    pub(super) tls: bool,
    /// Logins need no TLS: the connection comes from this machine.
    pub(super) trusted: bool,
    /// SCRAM-SHA-256 is offered.
    pub(super) scram: bool,
    /// The exporter of a TLS 1.3 connection, for channel binding.
    pub(super) exporter: Option<TlsExporter>,
    /// The name of USER, until the next command.
    pub(super) user: Option<Vec<u8>>,
    /// Set by the login.
    pub(super) maildrop: Option<Maildrop>,
    errors: u32,
    commands: u64,
}

#[derive(Debug)]
pub(super) enum State {
    /// Waits for [`Pop3Machine::greet`].
    Greeting,
    /// Waits for a command.
    Command,
    /// Waits for the message of PLAIN.
    AuthPlain,
    /// Waits for the name of LOGIN.
    AuthUser,
    /// Waits for the password of LOGIN.
    AuthPassword {
        user: String,
    },
    /// Waits for the client's first message of SCRAM.
    ScramFirst {
        is_bound: bool,
    },
    /// Waits for [`Pop3Machine::scram_begun`].
    ScramKeys,
    /// Waits for the client's last message of SCRAM.
    ScramLast(Box<ScramServer>),
    /// Waits for [`Pop3Machine::scram_checked`].
    ScramProof(Box<ScramProof>),
    /// Waits for SCRAM's last message, which is empty: the client has verified that the server has the keys.
    ScramEnd {
        messages: u32,
    },
    /// Waits for [`Pop3Machine::logged_in`].
    Login,
    /// Waits for [`Pop3Machine::tls_started`].
    Tls,
    Listing(Listing),
    /// Waits for [`Pop3Machine::opened`].
    Opening {
        message: u32,
        lines: Option<u64>,
    },
    Sending(Sending),
    /// Waits for [`Pop3Machine::updated`].
    Updating,
    /// The session is over, and no more input is read.
    Closed,
}

/// More output than this is written before the session continues.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

impl Pop3Machine {
    /// A session that waits for [`Pop3Machine::greet`]. `trusted`: logins need no TLS, as the client is on this machine.
    pub fn new(config: Arc<Pop3Config>, trusted: bool) -> Self {
        Self {
            config,
            state: State::Greeting,
            out: Vec::new(),
            framer: LineFramer::default(),
            tls: false,
            trusted,
            scram: false,
            exporter: None,
            user: None,
            maildrop: None,
            errors: 0,
            commands: 0,
        }
    }

    /// The session is encrypted from its first octet on (RFC 8314 section 3.3).
    #[must_use]
    pub fn encrypted(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Offers SCRAM-SHA-256 (RFC 7677), for owners with keys of a login.
    #[must_use]
    pub fn with_scram(mut self) -> Self {
        self.scram = true;
        self
    }

    /// Writes the greeting. It has no angle brackets, which would offer APOP.
    ///
    /// # Panics
    /// When it has been written.
    pub fn greet(&mut self) {
        assert!(matches!(self.state, State::Greeting), "greeted in {:?}", self.state);
        let text = format!("+OK {} ready", self.config.host_name);
        self.line(&text);
        self.state = State::Command;
    }

    /// Output that waits to be written.
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// Waiting output, for the driver to take.
    pub fn output_mut(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// True after a login.
    pub fn is_logged_in(&self) -> bool {
        self.maildrop.is_some()
    }

    /// Counts complete lines: while it is unchanged, the same line is awaited.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Messages marked for deletion; `None` before the login.
    pub fn deleted(&self) -> Option<&MarkedMessages> {
        self.maildrop.as_ref().map(|maildrop| &maildrop.deleted)
    }

    /// Completely sent messages; `None` before the login.
    pub fn retrieved(&self) -> Option<&MarkedMessages> {
        self.maildrop.as_ref().map(|maildrop| &maildrop.retrieved)
    }

    /// Ends the session because the server shuts down. Nothing is removed. The client reads this as the reply to its next command.
    pub fn shut_down(&mut self) {
        self.line("-ERR [SYS/TEMP] Server is shutting down");
        self.state = State::Closed;
    }

    /// Tells the client that its login was removed or has another password, and closes.
    pub fn revoke(&mut self) {
        self.line("-ERR [AUTH] Your login has changed, connect and log in again");
        self.state = State::Closed;
    }

    /// Continues with `input` and consumes the usable part.
    ///
    /// # Panics
    /// When an event that *asks* has not been answered, or [`Pop3Machine::greet`] was not called.
    pub fn step(&mut self, input: &mut BytesMut) -> Pop3Event {
        loop {
            if matches!(self.state, State::Closed) {
                return Pop3Event::Close;
            }
            if self.out.len() >= OUTPUT_BYTES_MAX {
                return Pop3Event::Flush;
            }
            match &self.state {
                State::Command
                | State::AuthPlain
                | State::AuthUser
                | State::AuthPassword { .. }
                | State::ScramFirst { .. }
                | State::ScramLast(_)
                | State::ScramEnd { .. } => {}
                State::Listing(_) => return Pop3Event::NextRow,
                State::Sending(sending) => return Pop3Event::Read { from: sending.from },
                state => panic!("stepped in {state:?}"),
            }
            let frame = self.framer.next(input, self.config.limits.line_bytes);
            if frame == LineFrame::Incomplete {
                return Pop3Event::NeedInput;
            }
            self.commands += 1;
            if let Some(event) = self.take(frame, input) {
                return event;
            }
        }
    }

    fn take(&mut self, frame: LineFrame, input: &BytesMut) -> Option<Pop3Event> {
        match frame {
            LineFrame::Incomplete => None,
            LineFrame::Endless => {
                self.line("-ERR That line is too long");
                self.state = State::Closed;
                None
            }
            LineFrame::TooLong => {
                (self.state, self.user) = (State::Command, None);
                self.wrong_command("That line is too long");
                None
            }
            LineFrame::Line(line) => match std::mem::replace(&mut self.state, State::Command) {
                State::AuthPlain => self.auth_plain(&line),
                State::AuthUser => self.auth_user(&line),
                State::AuthPassword { user } => self.auth_password(user, &line),
                State::ScramFirst { is_bound } => self.scram_first(is_bound, &line),
                State::ScramLast(server) => self.scram_last(*server, &line),
                State::ScramEnd { messages } => self.scram_end(messages, &line),
                _ => self.command(&line, input),
            },
        }
    }

    fn command(&mut self, line: &[u8], input: &BytesMut) -> Option<Pop3Event> {
        if !self.is_logged_in() && is_http(line) {
            self.line("-ERR This is not an HTTP server");
            self.state = State::Closed;
            return None;
        }
        let command = match parse(line) {
            Ok(command) => command,
            Err(why) => {
                self.wrong_command(&why.to_string());
                return None;
            }
        };
        let user = self.user.take();
        match (&command, &self.maildrop) {
            (Pop3Command::Capa | Pop3Command::Quit, _) => {}
            (
                Pop3Command::Stls
                | Pop3Command::Utf8
                | Pop3Command::User(_)
                | Pop3Command::Pass(_)
                | Pop3Command::Auth { .. },
                None,
            ) => {}
            (
                Pop3Command::Stls
                | Pop3Command::Utf8
                | Pop3Command::User(_)
                | Pop3Command::Pass(_)
                | Pop3Command::Auth { .. },
                Some(_),
            ) => {
                self.wrong_command("You are logged in");
                return None;
            }
            (_, None) => {
                self.wrong_command("Log in first");
                return None;
            }
            (_, Some(_)) => {}
        }
        self.errors = 0;
        match command {
            Pop3Command::Capa => self.tell_capabilities(),
            Pop3Command::Quit => return self.quit(),
            Pop3Command::Stls => return self.start_tls(input),
            // Messages are sent as they are, with or without it.
            Pop3Command::Utf8 => self.line("+OK UTF-8 it is"),
            Pop3Command::User(name) => self.user(name),
            Pop3Command::Pass(password) => return self.password(user, password),
            Pop3Command::Auth { mechanism, initial } => return self.auth(mechanism.as_deref(), initial.as_deref()),
            command => return self.with_mail(command),
        }
        None
    }

    fn quit(&mut self) -> Option<Pop3Event> {
        let changes = |maildrop: &Maildrop| !maildrop.deleted.is_empty() || !maildrop.retrieved.is_empty();
        if self.maildrop.as_ref().is_some_and(changes) {
            self.state = State::Updating;
            return Some(Pop3Event::Update);
        }
        self.line("+OK Bye");
        self.state = State::Closed;
        None
    }

    /// Answers [`Pop3Event::Update`]. An error is about the messages to remove: without `\Seen`, a client may read a message twice.
    ///
    /// # Panics
    /// If [`Pop3Event::Update`] is not pending.
    pub fn updated(&mut self, removed: Result<(), Pop3Refusal>) {
        assert!(matches!(self.state, State::Updating), "updated in {:?}", self.state);
        let count = self.deleted().map_or(0, MarkedMessages::len);
        match removed {
            _ if count == 0 => self.line("+OK Bye"),
            // Another session has removed them: decision of the store, and the same in the end.
            Ok(()) | Err(Pop3Refusal::Gone) => self.line(&format!("+OK Bye; {count} removed")),
            Err(Pop3Refusal::Unavailable) => self.line("-ERR [SYS/TEMP] Some deleted messages were not removed"),
            Err(Pop3Refusal::Impossible) => self.line("-ERR [SYS/PERM] Some deleted messages were not removed"),
        }
        self.state = State::Closed;
    }

    pub(super) fn line(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Sends `-ERR` for an invalid command, and counts it.
    pub(super) fn wrong_command(&mut self, why: &str) {
        self.line(&format!("-ERR {why}"));
        self.errors += 1;
        if self.errors >= self.config.limits.errors {
            self.line("-ERR Too many commands that make no sense");
            self.state = State::Closed;
        }
    }
}

/// True for the first line of HTTP, of any version. A web page can have a browser send it to any port, with commands in the body.
fn is_http(line: &[u8]) -> bool {
    line.windows(6).rposition(|window| window == b" HTTP/").is_some_and(|at| at + 9 == line.len())
}
