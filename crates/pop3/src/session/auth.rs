//! Capabilities, STLS and logins.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use posthaste_scram::{NAME as SCRAM, PLUS_NAME as SCRAM_PLUS, ScramFirst, ScramServer, TlsExporter};

use super::machine::State;
use super::maildrop::Maildrop;
use super::{MESSAGES_MAX, Pop3Credentials, Pop3Event, Pop3LoginRefusal, Pop3Machine};

/// Mechanisms of AUTH (RFC 5034). Clients use the first known one. SCRAM is offered only if a login has keys, and -PLUS
/// only over TLS 1.3.
const MECHANISMS: [&str; 4] = [SCRAM_PLUS, SCRAM, "PLAIN", "LOGIN"];

const NEEDS_TLS: &str = "-ERR Passwords are taken with TLS only";

impl Pop3Machine {
    /// Lists capabilities, the same before and after the login (RFC 2449 section 6), except those about passwords.
    pub(super) fn tell_capabilities(&mut self) {
        self.line("+OK This is offered");
        for capability in [
            "TOP",
            "UIDL",
            "RESP-CODES",
            "AUTH-RESP-CODE",
            "PIPELINING",
            "UTF8 USER",
            "EXPIRE NEVER",
            "LOGIN-DELAY 0",
            "IMPLEMENTATION Posthaste",
        ] {
            self.line(capability);
        }
        if self.may_log_in() {
            self.line("USER");
            self.line(&format!("SASL {}", self.mechanisms().join(" ")));
        }
        if self.config.stls && !self.tls {
            self.line("STLS");
        }
        self.line(".");
    }

    fn mechanisms(&self) -> &'static [&'static str] {
        let left_out = if !self.scram { 2 } else { usize::from(self.exporter.is_none()) };
        &MECHANISMS[left_out..]
    }

    /// Sets the channel binding of the encrypted connection, which makes SCRAM-SHA-256-PLUS available.
    pub fn bind_channel(&mut self, exporter: Option<TlsExporter>) {
        self.exporter = exporter;
    }

    /// True if logins are allowed here: a password must not cross the network in the clear.
    fn may_log_in(&self) -> bool {
        self.tls || self.trusted
    }

    pub(super) fn start_tls(&mut self, input: &BytesMut) -> Option<Pop3Event> {
        if !self.config.stls || self.tls {
            self.wrong_command("STLS is not offered");
            return None;
        }
        if !input.is_empty() {
            // Somebody may have put them there who is not the client.
            self.line("-ERR Octets after STLS");
            self.state = State::Closed;
            return None;
        }
        self.line("+OK Begin TLS now");
        self.state = State::Tls;
        Some(Pop3Event::StartTls)
    }

    /// Answers [`Pop3Event::StartTls`]: the handshake is done.
    ///
    /// # Panics
    /// If [`Pop3Event::StartTls`] is not pending.
    pub fn tls_started(&mut self) {
        assert!(matches!(self.state, State::Tls), "TLS in {:?}", self.state);
        self.tls = true;
        self.state = State::Command;
    }

    /// Accepts any name, so that clients cannot test which names exist.
    pub(super) fn user(&mut self, name: Vec<u8>) {
        if !self.may_log_in() {
            return self.line(NEEDS_TLS);
        }
        self.user = Some(name);
        self.line("+OK The password, please");
    }

    pub(super) fn password(&mut self, user: Option<Vec<u8>>, password: Vec<u8>) -> Option<Pop3Event> {
        if !self.may_log_in() {
            self.line(NEEDS_TLS);
            return None;
        }
        let Some(user) = user else {
            self.wrong_command("USER comes before PASS");
            return None;
        };
        self.ask_login(String::from_utf8(user).ok(), String::from_utf8(password).ok(), None)
    }

    pub(super) fn auth(&mut self, mechanism: Option<&str>, initial: Option<&[u8]>) -> Option<Pop3Event> {
        if !self.may_log_in() {
            self.line(NEEDS_TLS);
            return None;
        }
        match (mechanism, initial) {
            // Older clients ask so for the list.
            (None, _) => {
                self.line("+OK These mechanisms are offered");
                self.mechanisms().iter().for_each(|mechanism| self.line(mechanism));
                self.line(".");
            }
            (Some("PLAIN"), Some(initial)) => return self.auth_plain(initial),
            (Some("PLAIN"), None) => {
                self.line("+ ");
                self.state = State::AuthPlain;
            }
            (Some("LOGIN"), Some(user)) => return self.auth_user(user),
            (Some("LOGIN"), None) => {
                self.challenge("Username:");
                self.state = State::AuthUser;
            }
            (Some(scram), initial) if scram.starts_with(SCRAM) && self.mechanisms().contains(&scram) => {
                let is_bound = scram == SCRAM_PLUS;
                if let Some(first) = initial {
                    return self.scram_first(is_bound, first);
                }
                self.line("+ ");
                self.state = State::ScramFirst { is_bound };
            }
            (Some(_), _) => self.wrong_command("That mechanism is not offered"),
        }
        None
    }

    fn challenge(&mut self, text: &str) {
        self.line(&format!("+ {}", BASE64.encode(text)));
    }

    /// A decoded response of the client; `=` is empty.
    fn decoded(&mut self, response: &[u8]) -> Option<Option<String>> {
        if response == b"*" {
            self.line("-ERR AUTH was cancelled");
            return None;
        }
        let octets = if response == b"=" { Ok(Vec::new()) } else { BASE64.decode(response) };
        let Ok(octets) = octets else {
            self.wrong_command("That is not base64");
            return None;
        };
        Some(String::from_utf8(octets).ok())
    }

    /// The message of PLAIN (RFC 4616).
    pub(super) fn auth_plain(&mut self, response: &[u8]) -> Option<Pop3Event> {
        let message = self.decoded(response)?.unwrap_or_default();
        let mut parts = message.split('\0');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(acts_for), Some(user), Some(password), None) if !user.is_empty() => {
                let acts_for = Some(acts_for.to_owned()).filter(|name| !name.is_empty());
                self.ask_login(Some(user.into()), Some(password.into()), acts_for)
            }
            _ => self.wrong(),
        }
    }

    pub(super) fn auth_user(&mut self, response: &[u8]) -> Option<Pop3Event> {
        let Some(user) = self.decoded(response)? else { return self.wrong() };
        self.challenge("Password:");
        self.state = State::AuthPassword { user };
        None
    }

    pub(super) fn auth_password(&mut self, user: String, response: &[u8]) -> Option<Pop3Event> {
        let password = self.decoded(response)?;
        self.ask_login(Some(user), password, None)
    }

    pub(super) fn scram_first(&mut self, is_bound: bool, response: &[u8]) -> Option<Pop3Event> {
        let message = self.decoded(response)?.unwrap_or_default();
        let first = match &self.exporter {
            Some(exporter) if is_bound => ScramFirst::parse_bound(&message, exporter),
            exporter => ScramFirst::parse(&message, exporter.is_some()),
        };
        let Some(first) = first else {
            self.wrong_command("SCRAM-SHA-256 does not begin with that");
            return None;
        };
        self.state = State::ScramKeys;
        Some(Pop3Event::ScramKeys(Box::new(first)))
    }

    /// Answers [`Pop3Event::ScramKeys`].
    ///
    /// # Panics
    /// If [`Pop3Event::ScramKeys`] is not pending.
    pub fn scram_begun(&mut self, begun: Result<ScramServer, Pop3LoginRefusal>) {
        assert!(matches!(self.state, State::ScramKeys), "an exchange begins in {:?}", self.state);
        self.state = State::Command;
        match begun {
            Ok(server) => {
                self.challenge(server.message());
                self.state = State::ScramLast(Box::new(server));
            }
            Err(why) => self.keep_out(why),
        }
    }

    pub(super) fn scram_last(&mut self, server: ScramServer, response: &[u8]) -> Option<Pop3Event> {
        let message = self.decoded(response)?.unwrap_or_default();
        let Some(proof) = server.prove(&message).map(Box::new) else { return self.wrong() };
        self.state = State::ScramProof(proof.clone());
        Some(Pop3Event::ScramProof(proof))
    }

    /// Answers [`Pop3Event::ScramProof`] with the number of messages. The client logs in with its next line.
    ///
    /// # Panics
    /// If [`Pop3Event::ScramProof`] is not pending.
    pub fn scram_checked(&mut self, verdict: Result<u32, Pop3LoginRefusal>) {
        let State::ScramProof(proof) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a proof in {:?}", self.state)
        };
        let shown = |messages| proof.answer().map(|last| (messages, last)).map_err(|_| Pop3LoginRefusal::Wrong);
        match verdict.and_then(shown) {
            Ok((messages, last)) => {
                self.challenge(&last);
                self.state = State::ScramEnd { messages };
            }
            Err(why) => self.keep_out(why),
        }
    }

    pub(super) fn scram_end(&mut self, messages: u32, response: &[u8]) -> Option<Pop3Event> {
        match self.decoded(response)?.as_deref() {
            Some("") => self.let_in(messages),
            _ => self.wrong_command("SCRAM-SHA-256 ends with an empty response"),
        }
        None
    }

    fn ask_login(
        &mut self,
        user: Option<String>,
        password: Option<String>,
        acts_for: Option<String>,
    ) -> Option<Pop3Event> {
        let (Some(user), Some(password)) = (user, password) else { return self.wrong() };
        self.state = State::Login;
        Some(Pop3Event::Login(Pop3Credentials { user, password, acts_for }))
    }

    fn wrong(&mut self) -> Option<Pop3Event> {
        self.line("-ERR [AUTH] Name or password is wrong");
        None
    }

    /// Answers [`Pop3Event::Login`] with the number of messages, limited to [`MESSAGES_MAX`].
    ///
    /// # Panics
    /// If [`Pop3Event::Login`] is not pending.
    pub fn logged_in(&mut self, verdict: Result<u32, Pop3LoginRefusal>) {
        assert!(matches!(self.state, State::Login), "a login in {:?}", self.state);
        self.state = State::Command;
        match verdict {
            Ok(messages) => self.let_in(messages),
            Err(why) => self.keep_out(why),
        }
    }

    fn let_in(&mut self, messages: u32) {
        let maildrop = Maildrop::new(messages.min(MESSAGES_MAX));
        self.line(&format!("+OK {} messages", maildrop.messages));
        self.maildrop = Some(maildrop);
    }

    fn keep_out(&mut self, why: Pop3LoginRefusal) {
        match why {
            Pop3LoginRefusal::Wrong => drop(self.wrong()),
            Pop3LoginRefusal::Busy => self.line("-ERR [SYS/TEMP] Logins cannot be checked now, try again later"),
            Pop3LoginRefusal::Unavailable => {
                self.line("-ERR [SYS/TEMP] Your mailbox cannot be opened now, try again later");
            }
            Pop3LoginRefusal::Blocked => {
                self.line("-ERR [SYS/TEMP] Too many wrong passwords from your address, try again later");
                self.state = State::Closed;
            }
        }
    }
}
