//! A session: reads commands and dispatches them.

use std::sync::Arc;

use bytes::BytesMut;
use posthaste_scram::TlsExporter;

use super::event::update;
use super::state::{AfterChanges, Reply, State};
use super::{ImapConfig, ImapEvent, SelectedMailbox};
use crate::command::{ImapCommand, ImapCommandError, TaggedCommand, parse};
use crate::frame::{Appends, Frame, Framer};
use crate::set::NumberSet;

/// One server session. See the [module](super) for how it is driven.
///
/// Between two calls of [`ImapMachine::step`] it holds the running command and unwritten output; unused input stays in
/// the caller's buffer.
#[derive(Debug)]
pub struct ImapMachine {
    pub(super) config: Arc<ImapConfig>,
    pub(super) state: State,
    pub(super) out: Vec<u8>,
    pub(super) framer: Framer,
    pub(super) tls: bool,
    /// Logins need no TLS: the connection comes from this machine.
    pub(super) trusted: bool,
    /// SCRAM-SHA-256 is offered.
    pub(super) scram: bool,
    /// The exporter of a TLS 1.3 connection, for channel binding.
    pub(super) exporter: Option<TlsExporter>,
    pub(super) logged_in: bool,
    /// True once COMPRESS is active.
    pub(super) compressed: bool,
    pub(super) mailbox: Option<SelectedMailbox>,
    /// True if MODSEQ is reported with flags (RFC 7162 section 3.1).
    pub(super) condstore: bool,
    /// True if VANISHED replaces EXPUNGE (RFC 7162 section 3.2).
    pub(super) qresync: bool,
    /// True once the client has enabled IMAP4rev2 (RFC 9051).
    pub(super) rev2: bool,
    /// UIDs that a search in the selected mailbox has saved (RFC 5182).
    pub(super) saved: NumberSet,
    /// True if the command removes messages: its reply then has the MODSEQ after the removal (RFC 7162 section 3.2.7).
    pub(super) expunges: bool,
    /// True if the command has changed messages: its own change is applied without checking for changes by others.
    pub(super) has_changed: bool,
    pub(super) errors: u32,
    pub(super) commands: u64,
    /// Set in IDLE when the view may have changed.
    poked: bool,
    /// An APPEND whose message is being dropped, with its reply.
    pub(super) dropping: Option<Reply>,
}

/// More output than this is written before the session continues.
pub(super) const OUTPUT_BYTES_MAX: usize = 16 << 10;

impl ImapMachine {
    /// A session that waits for [`ImapMachine::greet`]. `trusted`: logins need no TLS, as the client is on this machine (decision 49).
    pub fn new(config: Arc<ImapConfig>, trusted: bool) -> Self {
        Self {
            config,
            state: State::Greeting,
            out: Vec::new(),
            framer: Framer::default(),
            tls: false,
            trusted,
            scram: false,
            exporter: None,
            logged_in: false,
            compressed: false,
            mailbox: None,
            condstore: false,
            qresync: false,
            rev2: false,
            saved: NumberSet::default(),
            expunges: false,
            has_changed: false,
            errors: 0,
            commands: 0,
            poked: false,
            dropping: None,
        }
    }

    /// The session is encrypted from its first octet on (RFC 8314 section 3.2).
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

    /// Writes the greeting.
    ///
    /// # Panics
    /// If the greeting was already written.
    pub fn greet(&mut self) {
        assert!(matches!(self.state, State::Greeting), "greeted in {:?}", self.state);
        let text = format!("* OK [CAPABILITY {}] {} ready", self.capabilities(), self.config.host_name);
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

    /// True if [`ImapMachine::tls_started`] was called, or the session is [encrypted](Self::encrypted).
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// True after a login.
    pub fn is_logged_in(&self) -> bool {
        self.logged_in
    }

    /// True if the client waits for changes (RFC 2177).
    pub fn is_idling(&self) -> bool {
        matches!(self.state, State::Idle { .. })
    }

    /// True if the client sends a message of an APPEND.
    pub fn is_appending(&self) -> bool {
        matches!(self.state, State::Appending(_))
    }

    /// Counts complete commands: while it is unchanged, the same command is awaited.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Notes that the view may have changed, for IDLE.
    pub fn poke(&mut self) {
        self.poked = self.is_idling() && self.mailbox.is_some();
    }

    /// Sends a keep-alive in IDLE (decision 15).
    pub fn still_here(&mut self) {
        if self.is_idling() {
            self.line("* OK Still here");
        }
    }

    /// Sends BYE and closes, because the server shuts down.
    pub fn shut_down(&mut self) {
        self.bye("Server is shutting down");
    }

    /// Sends BYE and closes, because the login was removed or its password changed.
    pub fn revoke(&mut self) {
        self.bye("Your login has changed, connect and log in again");
    }

    /// Sends BYE and closes after a timeout.
    pub fn time_out(&mut self) {
        let text = if self.logged_in { "Autologout; idle for too long" } else { "No login for too long" };
        self.bye(text);
    }

    /// Continues with `input` and consumes the usable part.
    ///
    /// # Panics
    /// When an event that *asks* has not been answered, or [`ImapMachine::greet`] was not called.
    pub fn step(&mut self, input: &mut BytesMut) -> ImapEvent {
        loop {
            if matches!(self.state, State::Closed) {
                return ImapEvent::Close;
            }
            if self.out.len() >= OUTPUT_BYTES_MAX {
                return ImapEvent::Flush;
            }
            let event = match &self.state {
                State::Command | State::AuthResponse { .. } => match self.next_frame(input) {
                    Some(event) => event,
                    None => return ImapEvent::NeedInput,
                },
                State::Idle { .. } if std::mem::take(&mut self.poked) => {
                    let State::Idle { tag } = std::mem::replace(&mut self.state, State::Closed) else { unreachable!() };
                    self.state = State::Changes(AfterChanges::Idle { tag });
                    return self.ask_changes(true);
                }
                State::Idle { .. } => match self.next_frame(input) {
                    Some(event) => event,
                    None => return ImapEvent::NeedInput,
                },
                State::Appending(_) => match self.step_append(input) {
                    Some(event) => event,
                    None => return ImapEvent::NeedInput,
                },
                State::Storing { .. } => self.step_stored(),
                State::Closing { .. } => self.close(),
                State::Finishing { .. } => self.finish(),
                State::Listing(_) => self.step_list(),
                State::Selecting(_) => self.step_select(),
                State::Fetching(_) => self.step_fetch(),
                State::Vanishing(_) => self.step_vanishing(),
                State::Searching(_) => self.step_search(),
                State::Greeting
                | State::Login { .. }
                | State::ScramKeys { .. }
                | State::ScramProof { .. }
                | State::Tls
                | State::Status { .. }
                | State::Quota { .. }
                | State::Changing(_)
                | State::Changes(_)
                | State::Closed => {
                    panic!("stepped in {:?}", self.state)
                }
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// Takes the next frame. The outer `None`: needs more input.
    fn next_frame(&mut self, input: &mut BytesMut) -> Option<Option<ImapEvent>> {
        let limits = &self.config.limits;
        let limit = if self.logged_in { limits.command_bytes } else { limits.command_bytes_before_login };
        let is_append = self.logged_in && matches!(self.state, State::Command);
        let appends = if is_append { Appends::First } else { Appends::No };
        let frame = self.framer.next(input, limit, appends);
        if !matches!(frame, Frame::Incomplete | Frame::Literal) {
            self.commands += 1;
        }
        Some(match frame {
            Frame::Incomplete => return None,
            Frame::Literal => {
                self.line("+ OK");
                None
            }
            Frame::Endless => {
                self.bye("[TOOBIG] That command is too long");
                None
            }
            Frame::TooBig { .. } if self.dropping.is_some() => {
                let reply = self.dropping.take()?;
                self.append_refused(reply)
            }
            Frame::TooBig { tag } => {
                self.state = State::Command;
                match tag {
                    Some(tag) => self.reply(&tag, "NO [TOOBIG] That command is too long"),
                    None => self.line("* BAD That command is too long"),
                }
                self.count_error();
                None
            }
            Frame::Append { line, octets, waits } => self.append(&line, octets, waits),
            Frame::Command(line) => match std::mem::replace(&mut self.state, State::Command) {
                State::AuthResponse { tag, asked } => self.auth_response(tag, asked, &line),
                State::Idle { tag } => {
                    self.end_idle(tag, &line);
                    None
                }
                // An empty line before a command is Apple Mail's (decision 18).
                _ if line.is_empty() => None,
                _ => self.command(&line, input),
            },
        })
    }

    fn command(&mut self, line: &[u8], input: &BytesMut) -> Option<ImapEvent> {
        if !self.logged_in && is_http(line) {
            self.bye("This is not an HTTP server");
            return None;
        }
        let Some(TaggedCommand { tag, command }) = parse(line) else {
            self.line("* BAD A command begins with a tag");
            self.count_error();
            return None;
        };
        let command = match command {
            Ok(command) => command,
            Err(ImapCommandError::Bad(why)) => {
                self.bad(&tag, why);
                return None;
            }
            Err(ImapCommandError::Limit(why)) => {
                self.reply(&tag, &format!("NO [LIMIT] {why}"));
                return None;
            }
            Err(ImapCommandError::Charset) => {
                self.reply(&tag, "NO [BADCHARSET (US-ASCII UTF-8)] The charset is not known");
                return None;
            }
        };
        if !self.logged_in && !command.is_for_anybody() {
            self.bad(&tag, "Log in first");
            return None;
        }
        if self.mailbox.is_none() && command.is_for_selected() {
            self.bad(&tag, "Select a mailbox first");
            return None;
        }
        (self.errors, self.has_changed) = (0, false);
        self.carry_out(tag, command, input)
    }

    fn carry_out(&mut self, tag: String, command: ImapCommand, input: &BytesMut) -> Option<ImapEvent> {
        match command {
            ImapCommand::Capability => {
                let text = format!("* CAPABILITY {}", self.capabilities());
                self.line(&text);
                self.done(tag, "CAPABILITY")
            }
            ImapCommand::Noop => self.done(tag, "NOOP"),
            ImapCommand::Check => self.done(tag, "CHECK"),
            ImapCommand::Logout => {
                self.line("* BYE Logging out");
                self.reply(&tag, "OK LOGOUT completed");
                self.state = State::Closed;
                None
            }
            ImapCommand::Id(_) => {
                self.tell_id();
                self.done(tag, "ID")
            }
            ImapCommand::StartTls => self.start_tls(&tag, input),
            ImapCommand::Compress(mechanism) => self.compress(&tag, &mechanism, input),
            ImapCommand::Authenticate { mechanism, initial } => self.authenticate(tag, &mechanism, initial),
            ImapCommand::Login { user, password } => self.login(tag, user, password),
            ImapCommand::Enable(names) => self.enable(tag, &names),
            ImapCommand::Namespace => {
                let names = self.config.names;
                self.line(&format!("* NAMESPACE ((\"{}\" \"{}\")) NIL NIL", names.prefix(), names.separator()));
                self.done(tag, "NAMESPACE")
            }
            ImapCommand::List(list) => self.list(tag, list),
            ImapCommand::Lsub { reference, pattern } => self.lsub(tag, &reference, &pattern),
            ImapCommand::Status { mailbox, items } => self.ask_status(tag, &mailbox, items),
            ImapCommand::Select { resync: Some(_), .. } | ImapCommand::Fetch { vanished: true, .. }
                if !self.qresync =>
            {
                self.bad(&tag, "Enable QRESYNC first");
                None
            }
            ImapCommand::Select { mailbox, read_only, condstore, resync } => {
                self.condstore |= condstore;
                self.select(tag, &mailbox, read_only, resync)
            }
            ImapCommand::Unselect => self.unselect(tag, "UNSELECT"),
            ImapCommand::Close => self.ask_close(tag),
            ImapCommand::Expunge(uids) => self.expunge(tag, uids.as_ref()),
            ImapCommand::Store { uid, set, unchanged_since, kind, silent, flags } => {
                self.condstore |= unchanged_since.is_some();
                self.store(tag, uid, &set, update(kind, flags), silent, unchanged_since)
            }
            ImapCommand::Copy { uid, set, mailbox } => self.copy(tag, uid, &set, &mailbox, false),
            ImapCommand::Move { uid, set, mailbox } => self.copy(tag, uid, &set, &mailbox, true),
            ImapCommand::Create { mailbox, uses } => self.create(tag, &mailbox, &uses),
            ImapCommand::Delete(mailbox) => self.delete(tag, &mailbox),
            ImapCommand::Rename { from, to } => self.rename(tag, &from, &to),
            ImapCommand::Subscribe(mailbox) => self.subscribe(tag, &mailbox, true),
            ImapCommand::Unsubscribe(mailbox) => self.subscribe(tag, &mailbox, false),
            ImapCommand::Idle => {
                self.line("+ idling");
                self.state = State::Idle { tag };
                self.poke();
                None
            }
            ImapCommand::Fetch { uid, set, items, changed_since, vanished } => {
                self.fetch(tag, uid, &set, items, changed_since, vanished)
            }
            ImapCommand::Search { uid, search } => self.search(tag, uid, search),
            ImapCommand::Sort { uid, sort } => self.sort(tag, uid, sort),
            ImapCommand::Thread { uid, thread } => self.thread(tag, uid, thread),
            ImapCommand::GetQuota(root) => self.get_quota(tag, &root),
            ImapCommand::GetQuotaRoot(mailbox) => self.get_quota_root(tag, &mailbox),
            ImapCommand::SetQuota { .. } => {
                self.bad(&tag, "That command is not offered");
                None
            }
        }
    }

    /// Reports newly enabled extensions (decision 38).
    fn enable(&mut self, tag: String, names: &[String]) -> Option<ImapEvent> {
        let is_meant = |wanted: &str| names.iter().any(|name| name == wanted);
        let mut enabled = String::from("* ENABLED");
        if is_meant("QRESYNC") && !std::mem::replace(&mut self.qresync, true) {
            // It includes the other one.
            self.condstore = true;
            enabled += " QRESYNC";
        }
        if is_meant("CONDSTORE") && !std::mem::replace(&mut self.condstore, true) {
            enabled += " CONDSTORE";
        }
        if is_meant("IMAP4REV2") && !std::mem::replace(&mut self.rev2, true) {
            enabled += " IMAP4rev2";
        }
        self.line(&enabled);
        self.done(tag, "ENABLE")
    }

    fn end_idle(&mut self, tag: String, line: &[u8]) {
        if line.eq_ignore_ascii_case(b"DONE") {
            drop(self.done(tag, "IDLE"))
        } else {
            self.bad(&tag, "IDLE ends with DONE")
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(super) fn line(&mut self, text: &str) {
        self.text(text);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn reply(&mut self, tag: &str, text: &str) {
        self.line(&format!("{tag} {text}"));
    }

    /// Sends BAD, and counts it.
    pub(super) fn bad(&mut self, tag: &str, why: &str) {
        self.reply(tag, &format!("BAD {why}"));
        self.count_error();
    }

    fn count_error(&mut self) {
        self.errors += 1;
        if self.errors >= self.config.limits.errors {
            self.bye("Too many commands that make no sense");
        }
    }

    pub(super) fn bye(&mut self, text: &str) {
        self.line(&format!("* BYE {text}"));
        self.state = State::Closed;
    }
}

/// True for the first line of HTTP, of any version. A web page can have a browser send it to any port, with commands in the body.
fn is_http(line: &[u8]) -> bool {
    line.windows(6).rposition(|window| window == b" HTTP/").is_some_and(|at| at + 9 == line.len())
}
