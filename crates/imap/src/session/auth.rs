//! Capabilities, ID, STARTTLS and logins.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use posthaste_scram::{NAME as SCRAM, PLUS_NAME as SCRAM_PLUS, ScramFirst, ScramServer, TlsExporter};

use super::state::{Asked, State};
use super::{ImapCredentials, ImapEvent, ImapMachine, LoginRefusal};
use crate::write;

impl ImapMachine {
    /// Capabilities in the present state. Lists only what works now: clients use all listed ones.
    pub(super) fn capabilities(&self) -> String {
        // LITERAL+ allows all that LITERAL- does, and a server must not list both (RFC 7888 section 5).
        let mut text = String::from("IMAP4rev1 IMAP4rev2 LITERAL+ ID ENABLE");
        if self.logged_in {
            text.push_str(
                " IDLE NAMESPACE UNSELECT CHILDREN SPECIAL-USE CREATE-SPECIAL-USE LIST-EXTENDED LIST-STATUS ESEARCH SEARCHRES UIDPLUS MOVE MULTIAPPEND BINARY QUOTA",
            );
            text.push_str(&format!(
                " CONDSTORE QRESYNC STATUS=SIZE SORT SORT=DISPLAY THREAD=ORDEREDSUBJECT THREAD=REFERENCES APPENDLIMIT={}",
                self.config.limits.append_bytes
            ));
            if self.config.compress && !self.compressed {
                text.push_str(" COMPRESS=DEFLATE");
            }
            return text;
        }
        text.push_str(" SASL-IR");
        if self.config.starttls && !self.tls {
            text.push_str(" STARTTLS");
        }
        if !self.may_log_in() {
            text.push_str(" LOGINDISABLED");
            return text;
        }
        if self.scram {
            // Clients take the first that they know.
            if self.exporter.is_some() {
                text.push_str(" AUTH=SCRAM-SHA-256-PLUS");
            }
            text.push_str(" AUTH=SCRAM-SHA-256");
        }
        text.push_str(" AUTH=PLAIN");
        text
    }

    /// True if logins are allowed here: a password must not cross the network in the clear (decision 49).
    fn may_log_in(&self) -> bool {
        self.tls || self.trusted
    }

    pub(super) fn tell_id(&mut self) {
        self.text("* ID (");
        let pairs = self.config.id.clone();
        for (at, (key, value)) in pairs.iter().enumerate() {
            if at > 0 {
                self.out.push(b' ');
            }
            write::string(&mut self.out, key.as_bytes());
            self.out.push(b' ');
            write::string(&mut self.out, value.as_bytes());
        }
        self.line(")");
    }

    pub(super) fn start_tls(&mut self, tag: &str, input: &BytesMut) -> Option<ImapEvent> {
        if !self.config.starttls || self.tls || self.logged_in {
            self.bad(tag, "STARTTLS is not offered");
            return None;
        }
        if !input.is_empty() {
            // Somebody may have put them there who is not the client (decision 49).
            self.bye("Octets after STARTTLS");
            return None;
        }
        self.reply(tag, "OK Begin TLS now");
        self.state = State::Tls;
        Some(ImapEvent::StartTls)
    }

    pub(super) fn compress(&mut self, tag: &str, mechanism: &str, input: &BytesMut) -> Option<ImapEvent> {
        if !self.config.compress || !mechanism.eq_ignore_ascii_case("DEFLATE") {
            self.bad(tag, "That compression is not offered");
            return None;
        }
        if self.compressed {
            self.reply(tag, "NO [COMPRESSIONACTIVE] The connection is compressed");
            return None;
        }
        if !input.is_empty() {
            // The client does not know yet whether they are to be compressed (RFC 4978 section 3).
            self.bye("Octets after COMPRESS");
            return None;
        }
        self.reply(tag, "OK DEFLATE active");
        self.compressed = true;
        Some(ImapEvent::Compress)
    }

    /// Answers [`ImapEvent::StartTls`]: the handshake is done.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn tls_started(&mut self) {
        assert!(matches!(self.state, State::Tls), "TLS in {:?}", self.state);
        self.tls = true;
        self.state = State::Command;
    }

    /// Sets the channel binding of the encrypted connection, which makes SCRAM-SHA-256-PLUS available.
    pub fn bind_channel(&mut self, exporter: Option<TlsExporter>) {
        self.exporter = exporter;
    }

    pub(super) fn login(&mut self, tag: String, user: Vec<u8>, password: Vec<u8>) -> Option<ImapEvent> {
        if !self.check_login(&tag) {
            return None;
        }
        match (String::from_utf8(user), String::from_utf8(password)) {
            (Ok(user), Ok(password)) => self.ask_login(tag, ImapCredentials { user, password, acts_for: None }),
            _ => self.wrong(&tag),
        }
    }

    pub(super) fn authenticate(&mut self, tag: String, mechanism: &str, initial: Option<String>) -> Option<ImapEvent> {
        if !self.check_login(&tag) {
            return None;
        }
        let asked = match mechanism {
            "PLAIN" => Asked::Plain,
            SCRAM if self.scram => Asked::ScramFirst { is_bound: false },
            SCRAM_PLUS if self.scram && self.exporter.is_some() => Asked::ScramFirst { is_bound: true },
            _ => {
                self.reply(&tag, "NO [CANNOT] That mechanism is not offered");
                return None;
            }
        };
        match initial {
            Some(initial) => self.auth_message(tag, asked, initial.as_bytes()),
            None => {
                self.line("+ ");
                self.state = State::AuthResponse { tag, asked };
                None
            }
        }
    }

    pub(super) fn auth_response(&mut self, tag: String, asked: Asked, line: &[u8]) -> Option<ImapEvent> {
        if line == b"*" {
            self.bad(&tag, "AUTHENTICATE was cancelled");
            return None;
        }
        self.auth_message(tag, asked, line)
    }

    /// A message of the mechanism in base64; `=` is an empty one.
    fn auth_message(&mut self, tag: String, asked: Asked, base64: &[u8]) -> Option<ImapEvent> {
        let message = if base64 == b"=" { Ok(Vec::new()) } else { BASE64.decode(base64) };
        let Some(message) = message.ok().and_then(|octets| String::from_utf8(octets).ok()) else {
            self.bad(&tag, "That is not base64 of UTF-8");
            return None;
        };
        match asked {
            Asked::Plain => self.plain(tag, &message),
            Asked::ScramFirst { is_bound } => {
                let first = match &self.exporter {
                    Some(exporter) if is_bound => ScramFirst::parse_bound(&message, exporter),
                    exporter => ScramFirst::parse(&message, exporter.is_some()),
                };
                let Some(first) = first else {
                    self.bad(&tag, "SCRAM-SHA-256 does not begin with that");
                    return None;
                };
                self.state = State::ScramKeys { tag };
                Some(ImapEvent::ScramKeys(Box::new(first)))
            }
            Asked::ScramLast(server) => {
                let Some(proof) = server.prove(&message).map(Box::new) else { return self.wrong(&tag) };
                self.state = State::ScramProof { tag, proof: proof.clone() };
                Some(ImapEvent::ScramProof(proof))
            }
            Asked::ScramEnd if message.is_empty() => {
                self.let_in(&tag);
                None
            }
            Asked::ScramEnd => {
                self.bad(&tag, "SCRAM-SHA-256 ends with an empty response");
                None
            }
        }
    }

    /// The message of PLAIN (RFC 4616).
    fn plain(&mut self, tag: String, message: &str) -> Option<ImapEvent> {
        let mut parts = message.split('\0');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(acts_for), Some(user), Some(password), None) if !user.is_empty() => {
                let acts_for = Some(acts_for.to_owned()).filter(|name| !name.is_empty());
                self.ask_login(tag, ImapCredentials { user: user.into(), password: password.into(), acts_for })
            }
            _ => self.wrong(&tag),
        }
    }

    fn check_login(&mut self, tag: &str) -> bool {
        if self.logged_in {
            self.bad(tag, "You are logged in");
            return false;
        }
        if !self.may_log_in() {
            self.reply(tag, "NO [PRIVACYREQUIRED] Passwords are taken with TLS only");
            return false;
        }
        true
    }

    fn ask_login(&mut self, tag: String, credentials: ImapCredentials) -> Option<ImapEvent> {
        self.state = State::Login { tag };
        Some(ImapEvent::Login(credentials))
    }

    fn wrong(&mut self, tag: &str) -> Option<ImapEvent> {
        self.reply(tag, "NO [AUTHENTICATIONFAILED] Name or password is wrong");
        None
    }

    /// Answers [`ImapEvent::Login`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn logged_in(&mut self, verdict: Result<(), LoginRefusal>) {
        let State::Login { tag } = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a login in {:?}", self.state)
        };
        match verdict {
            Ok(()) => self.let_in(&tag),
            Err(why) => self.keep_out(&tag, why),
        }
    }

    /// Answers [`ImapEvent::ScramKeys`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn scram_begun(&mut self, begun: Result<ScramServer, LoginRefusal>) {
        let State::ScramKeys { tag } = std::mem::replace(&mut self.state, State::Command) else {
            panic!("an exchange begins in {:?}", self.state)
        };
        match begun {
            Ok(server) => {
                self.challenge(server.message());
                self.state = State::AuthResponse { tag, asked: Asked::ScramLast(Box::new(server)) };
            }
            Err(why) => self.keep_out(&tag, why),
        }
    }

    /// Answers [`ImapEvent::ScramProof`]. The client logs in with its next line.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn scram_checked(&mut self, verdict: Result<(), LoginRefusal>) {
        let State::ScramProof { tag, proof } = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a proof in {:?}", self.state)
        };
        match verdict.and_then(|()| proof.answer().map_err(|_| LoginRefusal::Wrong)) {
            Ok(last) => {
                self.challenge(&last);
                self.state = State::AuthResponse { tag, asked: Asked::ScramEnd };
            }
            Err(why) => self.keep_out(&tag, why),
        }
    }

    fn challenge(&mut self, message: &str) {
        self.line(&format!("+ {}", BASE64.encode(message)));
    }

    fn let_in(&mut self, tag: &str) {
        self.logged_in = true;
        let text = format!("OK [CAPABILITY {}] Logged in", self.capabilities());
        self.reply(tag, &text);
    }

    fn keep_out(&mut self, tag: &str, why: LoginRefusal) {
        match why {
            LoginRefusal::Wrong => drop(self.wrong(tag)),
            LoginRefusal::Busy => self.reply(tag, "NO [UNAVAILABLE] Logins cannot be checked now, try again later"),
            LoginRefusal::TooMany => self.reply(tag, "NO [LIMIT] Too many connections of this login"),
            LoginRefusal::Unavailable => {
                self.reply(tag, "NO [UNAVAILABLE] Your mailboxes cannot be opened now, try again later");
            }
            LoginRefusal::Blocked => self.bye("Too many wrong passwords from your address, try again later"),
        }
    }
}
