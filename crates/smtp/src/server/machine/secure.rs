//! STARTTLS and AUTH.

use bytes::BytesMut;

use super::Machine;
use super::state::State;
use crate::reply::Reply;
use crate::server::{AuthStep, Event};

impl Machine {
    pub(super) fn start_tls(&mut self, input: &BytesMut) -> Option<Event> {
        if !self.config.starttls {
            return self.error(502, "5.5.1", "STARTTLS is not offered");
        }
        if self.tls || self.transaction.is_some() || self.helo.is_none() || !self.extended {
            return self.error(503, "5.5.1", "STARTTLS is out of place");
        }
        if !input.is_empty() {
            // Octets sent in the clear must not be taken for octets of the encrypted session (CVE-2011-0411).
            self.close_with(&Reply::new(554, "5.5.0", "Data after STARTTLS, closing"));
            return None;
        }
        self.out.extend_from_slice(b"220 2.0.0 Ready to start TLS\r\n");
        self.state = State::Tls;
        Some(Event::StartTls)
    }

    /// Notes the end of the handshake that [`Event::StartTls`] asked for. The session starts over, as RFC 3207 section
    /// 4.2 demands.
    ///
    /// # Panics
    /// If STARTTLS was not asked for.
    pub fn tls_started(&mut self) {
        assert!(matches!(self.state, State::Tls), "TLS started in {:?}", self.state);
        self.state = State::Command;
        self.tls = true;
        self.helo = None;
        self.extended = false;
        self.authenticated = false;
        self.transaction = None;
    }

    /// True if the session must be encrypted before it may bring mail, and is not.
    pub(super) fn lacks_tls(&self) -> bool {
        self.config.requires_tls && !self.tls
    }

    /// Offers mechanisms with channel binding, too (names that end in `-PLUS`, RFC 5801 section 3.1): the connection
    /// has one.
    pub fn offer_channel_binding(&mut self) {
        self.has_channel_binding = true;
    }

    /// True if AUTH accepts this mechanism on this connection.
    pub fn offers_mechanism(&self, mechanism: &str) -> bool {
        self.mechanisms().any(|offered| offered.eq_ignore_ascii_case(mechanism))
    }

    pub(super) fn mechanisms(&self) -> impl Iterator<Item = &String> {
        self.config.auth_mechanisms.iter().filter(|name| self.has_channel_binding || !name.ends_with("-PLUS"))
    }

    pub(super) fn offers_auth(&self) -> bool {
        !self.config.auth_mechanisms.is_empty() && !self.authenticated && (self.tls || !self.config.auth_needs_tls)
    }

    pub(super) fn begin_auth(&mut self, mechanism: &str, initial: Option<&str>) -> Option<Event> {
        if self.config.auth_mechanisms.is_empty() {
            return self.error(502, "5.5.1", "AUTH is not offered");
        }
        if self.authenticated || self.transaction.is_some() || !self.extended {
            return self.error(503, "5.5.1", "AUTH is out of place");
        }
        if !self.offers_auth() {
            return self.error(538, "5.7.11", "Encryption is required for AUTH");
        }
        let Some(known) = self.mechanisms().find(|m| m.eq_ignore_ascii_case(mechanism)) else {
            return self.error(504, "5.5.4", "Mechanism is not offered");
        };
        let mechanism = known.clone();
        let initial = initial.map(String::from);
        self.state = State::AuthAnswer;
        Some(Event::Auth(AuthStep::Begin { mechanism, initial }))
    }

    /// Answers [`Event::Auth`] with a challenge in base64; its reply comes as [`AuthStep::Response`].
    ///
    /// # Panics
    /// If no question is pending.
    pub fn auth_challenge(&mut self, base64: &str) {
        assert!(matches!(self.state, State::AuthAnswer), "challenged in {:?}", self.state);
        self.state = State::AuthResponse;
        self.out.extend_from_slice(format!("334 {base64}\r\n").as_bytes());
    }

    pub(super) fn auth_response(&mut self, line: &[u8]) -> Option<Event> {
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

    /// Answers [`Event::Auth`]: the client is authenticated, or gets the error (usually 535 5.7.8).
    ///
    /// # Panics
    /// If no question is pending.
    pub fn auth_done(&mut self, verdict: Result<(), Reply>) {
        assert!(matches!(self.state, State::AuthAnswer), "AUTH done in {:?}", self.state);
        self.state = State::Command;
        match verdict {
            Ok(()) => {
                self.authenticated = true;
                self.out.extend_from_slice(b"235 2.7.0 Authentication succeeded\r\n");
            }
            Err(reply) if reply.code() == 421 => self.close_with(&reply),
            Err(reply) => self.refuse(&reply),
        }
    }
}
