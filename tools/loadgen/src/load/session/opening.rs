//! From the greeting to the first message: EHLO or LHLO, STARTTLS, AUTH.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use posthaste_smtp::client::Extensions;
use posthaste_smtp::reply::ReplyParser;

use super::super::failure::{Cause, Failure, Stage};
use super::super::plan::{AuthMechanism, Pipelining, Plan};
use super::super::replies::Reply;
use super::{Event, Expect, Session};
use crate::values::{Protocol, TlsStart};

impl Session {
    /// Call it after the handshake. Everything learned in the clear is forgotten (RFC 3207 section 4.2).
    pub fn tls_started(&mut self, plan: &Plan) {
        self.is_encrypted = true;
        self.hello(plan);
    }

    pub(super) fn hello(&mut self, plan: &Plan) {
        let verb = match plan.servers[self.server].protocol {
            Protocol::Lmtp => "LHLO",
            Protocol::Smtp | Protocol::Http => "EHLO",
        };
        let line = format!("{verb} {}\r\n", plan.helo);
        self.command(line.as_bytes(), Expect::Hello);
    }

    pub(super) fn after_hello(&mut self, reply: Reply<'_>, plan: &Plan) -> Result<Event, Failure> {
        let garbage = |_| Failure::new(Stage::Hello, Cause::Garbage, String::from_utf8_lossy(reply.wire));
        let parsed = ReplyParser::default().next(&mut BytesMut::from(reply.wire)).map_err(garbage)?;
        self.extensions = parsed.map(|reply| Extensions::read(&reply)).unwrap_or_default();
        let lacks = |stage, what: &str| Err(Failure::new(stage, Cause::Unsupported, format!("{what} is not offered")));
        if plan.servers[self.server].tls == TlsStart::StartTls && !self.is_encrypted {
            if !self.extensions.starttls {
                return lacks(Stage::StartTls, "STARTTLS");
            }
            self.command(b"STARTTLS\r\n", Expect::StartTls);
            return Ok(Event::Wait);
        }
        if plan.bdat && !self.extensions.chunking {
            return lacks(Stage::Hello, "CHUNKING");
        }
        self.pipelining = if self.extensions.pipelining { plan.pipelining } else { Pipelining::Off };
        let Some(auth) = &plan.auth else { return Ok(self.ready()) };
        match auth.mechanism {
            AuthMechanism::Plain => {
                let secret = BASE64.encode(format!("\0{}\0{}", auth.user, auth.password));
                self.command(format!("AUTH PLAIN {secret}\r\n").as_bytes(), Expect::Auth(0));
            }
            AuthMechanism::Login => self.command(b"AUTH LOGIN\r\n", Expect::Auth(2)),
        }
        Ok(Event::Wait)
    }

    pub(super) fn login_step(&mut self, left: u8, plan: &Plan) {
        let auth = plan.auth.as_ref().expect("AUTH was begun");
        let answer = if left == 2 { &auth.user } else { &auth.password };
        self.command(format!("{}\r\n", BASE64.encode(answer)).as_bytes(), Expect::Auth(left - 1));
    }

    pub(super) fn ready(&mut self) -> Event {
        self.is_ready = true;
        Event::Ready
    }
}
