//! SASL mechanisms for both sides (RFC 4616, RFC 4954, RFC 7677): PLAIN and LOGIN; with feature `scram` SCRAM-SHA-256,
//! and SCRAM-SHA-256-PLUS (server only).

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
#[cfg(feature = "scram")]
#[cfg_attr(docsrs, doc(cfg(feature = "scram")))]
pub use posthaste_scram as scram;

use crate::reply::Reply;
use crate::server::AuthStep;

/// Known mechanisms, best first. The first is offered over TLS 1.3 only.
#[cfg(feature = "scram")]
pub const MECHANISMS: &[&str] = &[scram::PLUS_NAME, scram::NAME, "PLAIN", "LOGIN"];
/// Known mechanisms, best first.
#[cfg(not(feature = "scram"))]
pub const MECHANISMS: &[&str] = &["PLAIN", "LOGIN"];

/// Credentials of a client.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The authentication identity: the login's name.
    pub user: String,
    /// The password itself.
    pub password: String,
    /// The authorization identity of PLAIN; `None`: the login itself.
    pub acts_for: Option<String>,
}

impl Credentials {
    /// Credentials without a separate authorization identity.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: user.into(), password: password.into(), acts_for: None }
    }

    /// Encodes the message of PLAIN (RFC 4616) in base64.
    pub(crate) fn plain(&self) -> String {
        let acts_for = self.acts_for.as_deref().unwrap_or_default();
        BASE64.encode(format!("{acts_for}\0{}\0{}", self.user, self.password))
    }

    fn from_plain(message: &str) -> Option<Self> {
        let mut parts = message.split('\0');
        let acts_for = parts.next()?;
        let user = parts.next()?;
        let password = parts.next()?;
        let acts_for = Some(acts_for.to_owned()).filter(|name| !name.is_empty());
        let whole = parts.next().is_none() && !user.is_empty() && !password.is_empty();
        whole.then(|| Self { user: user.to_owned(), password: password.to_owned(), acts_for })
    }
}

/// A client's identity by AUTH (RFC 4954, RFC 4422 section 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name of the mechanism: one of [`MECHANISMS`].
    pub mechanism: &'static str,
    /// The authentication identity: the login's name.
    pub authentication_id: String,
    /// The authorization identity: the account that the session acts for, as the server spells it.
    pub authorization_id: String,
}

/// Omits the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("acts_for", &self.acts_for)
            .finish_non_exhaustive()
    }
}

pub(crate) fn encode(text: &str) -> String {
    BASE64.encode(text)
}

/// Decodes a server's challenge.
#[cfg(feature = "scram")]
pub(crate) fn decode(base64: &str) -> Option<String> {
    BASE64.decode(base64).ok().and_then(|octets| String::from_utf8(octets).ok())
}

/// A server's next step after a client's line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Send this challenge, in base64 already: [`Machine::auth_challenge`](crate::server::Machine::auth_challenge).
    Challenge(Cow<'static, str>),
    /// Check these credentials, then [`Machine::auth_done`](crate::server::Machine::auth_done).
    Check(Credentials),
    /// Find the keys of this user, and continue with [`Exchange::keys`].
    #[cfg(feature = "scram")]
    Lookup(String),
    /// Check this proof, and continue with [`Exchange::proven`] if it is right.
    #[cfg(feature = "scram")]
    Prove(Box<scram::ScramProof>),
    /// This user has proved the password, and acts in the name given to [`Exchange::proven`]:
    /// [`Machine::auth_done`](crate::server::Machine::auth_done).
    #[cfg(feature = "scram")]
    Proven {
        /// The user, as sent by the client.
        user: String,
        /// The name in which the session acts.
        name: String,
    },
    /// Give this error to [`Machine::auth_done`](crate::server::Machine::auth_done).
    Refuse(Reply),
}

/// The server's side of the session's AUTH exchanges.
#[derive(Debug, Default)]
pub struct Exchange {
    asked: Asked,
    /// TLS exporter of the connection, if SCRAM-SHA-256-PLUS is offered.
    #[cfg(feature = "scram")]
    exporter: Option<scram::TlsExporter>,
}

#[derive(Debug, Default)]
enum Asked {
    #[default]
    Nothing,
    Plain,
    LoginUser,
    LoginPassword {
        user: String,
    },
    #[cfg(feature = "scram")]
    ScramFirst,
    /// The first message of SCRAM-SHA-256-PLUS.
    #[cfg(feature = "scram")]
    ScramBound,
    #[cfg(feature = "scram")]
    ScramKeys(scram::ScramFirst),
    #[cfg(feature = "scram")]
    ScramLast(Box<scram::ScramServer>),
    /// The answer to the server's last message; it is empty.
    #[cfg(feature = "scram")]
    ScramEnd {
        user: String,
        name: String,
    },
}

impl Exchange {
    /// Exchanges over a connection that offers SCRAM-SHA-256-PLUS, with its channel binding.
    #[cfg(feature = "scram")]
    #[must_use]
    pub fn bound_to(exporter: scram::TlsExporter) -> Self {
        Self { exporter: Some(exporter), ..Self::default() }
    }

    /// Continues with the step of [`Event::Auth`](crate::server::Event::Auth).
    pub fn step(&mut self, step: AuthStep) -> Step {
        let asked = std::mem::take(&mut self.asked);
        let (asked, answer) = match step {
            AuthStep::Begin { mechanism, initial } => {
                let (asked, challenge) = match mechanism.as_str() {
                    #[cfg(feature = "scram")]
                    scram::PLUS_NAME if self.exporter.is_some() => (Asked::ScramBound, ""),
                    #[cfg(feature = "scram")]
                    scram::NAME => (Asked::ScramFirst, ""),
                    "PLAIN" => (Asked::Plain, ""),
                    // The standard text is `User Name`, but old clients want these very words, in base64.
                    "LOGIN" => (Asked::LoginUser, LOGIN_USER),
                    _ => return Step::Refuse(Reply::new(504, "5.5.4", "Mechanism is not offered")),
                };
                match initial {
                    None => {
                        self.asked = asked;
                        return Step::Challenge(challenge.into());
                    }
                    // An empty initial response (RFC 4954 section 4).
                    Some(initial) if initial == "=" => (asked, String::new()),
                    Some(initial) => (asked, initial),
                }
            }
            AuthStep::Response(answer) => (asked, answer),
        };
        let Some(text) = BASE64.decode(answer).ok().and_then(|octets| String::from_utf8(octets).ok()) else {
            return Step::Refuse(Reply::new(501, "5.5.2", "Not base64, or not UTF-8"));
        };
        let checked = match asked {
            Asked::Plain => Credentials::from_plain(&text),
            Asked::LoginUser if text.is_empty() => None,
            Asked::LoginUser => {
                self.asked = Asked::LoginPassword { user: text };
                return Step::Challenge(LOGIN_PASSWORD.into());
            }
            Asked::LoginPassword { user } => Some(Credentials::new(user, text)),
            #[cfg(feature = "scram")]
            Asked::ScramFirst => return self.look_up(scram::ScramFirst::parse(&text, self.exporter.is_some())),
            #[cfg(feature = "scram")]
            Asked::ScramBound => {
                let exporter = self.exporter;
                return self.look_up(exporter.and_then(|exporter| scram::ScramFirst::parse_bound(&text, &exporter)));
            }
            #[cfg(feature = "scram")]
            Asked::ScramLast(server) => {
                return server.prove(&text).map_or_else(wrong, |proof| Step::Prove(Box::new(proof)));
            }
            #[cfg(feature = "scram")]
            Asked::ScramEnd { user, name } if text.is_empty() => return Step::Proven { user, name },
            #[cfg(feature = "scram")]
            Asked::ScramKeys(_) | Asked::ScramEnd { .. } => None,
            Asked::Nothing => None,
        };
        checked.map_or_else(ill_formed, Step::Check)
    }

    #[cfg(feature = "scram")]
    fn look_up(&mut self, first: Option<scram::ScramFirst>) -> Step {
        let Some(first) = first else { return ill_formed() };
        let user = first.user().to_owned();
        self.asked = Asked::ScramKeys(first);
        Step::Lookup(user)
    }

    /// Continues after [`Step::Lookup`] with the user's keys; `None`: the user has none, which the client cannot tell.
    #[cfg(feature = "scram")]
    pub fn keys(&mut self, keys: Option<scram::ScramKeys>) -> Step {
        let Asked::ScramKeys(first) = std::mem::take(&mut self.asked) else { return ill_formed() };
        let Some(server) = scram::ScramServer::begin(first, keys) else {
            return Step::Refuse(Reply::new(454, "4.7.0", "Temporary authentication failure"));
        };
        let challenge = encode(server.message()).into();
        self.asked = Asked::ScramLast(Box::new(server));
        Step::Challenge(challenge)
    }

    /// Continues after [`Step::Prove`]: the session may act as `name`. A wrong proof is refused nevertheless.
    #[cfg(feature = "scram")]
    pub fn proven(&mut self, proof: &scram::ScramProof, name: String) -> Step {
        let Ok(last) = proof.answer() else { return wrong() };
        self.asked = Asked::ScramEnd { user: proof.user().to_owned(), name };
        Step::Challenge(encode(&last).into())
    }
}

#[cfg(feature = "scram")]
fn wrong() -> Step {
    Step::Refuse(Reply::new(535, "5.7.8", "Authentication credentials invalid"))
}

fn ill_formed() -> Step {
    Step::Refuse(Reply::new(501, "5.5.2", "Not what the mechanism asks for"))
}

/// `Username:`
const LOGIN_USER: &str = "VXNlcm5hbWU6";
/// `Password:`
const LOGIN_PASSWORD: &str = "UGFzc3dvcmQ6";

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(mechanism: &str, initial: Option<&str>) -> AuthStep {
        AuthStep::Begin { mechanism: mechanism.into(), initial: initial.map(String::from) }
    }

    fn answer(text: &str) -> AuthStep {
        AuthStep::Response(BASE64.encode(text))
    }

    fn is_refused(step: &Step) -> bool {
        matches!(step, Step::Refuse(reply) if reply.code() == 501)
    }

    #[test]
    fn plain_takes_its_message_at_once_or_when_asked() {
        let ann = Credentials::new("ann", "secret");
        let mut exchange = Exchange::default();
        assert_eq!(exchange.step(begin("PLAIN", Some(&ann.plain()))), Step::Check(ann.clone()));
        assert_eq!(exchange.step(begin("PLAIN", None)), Step::Challenge("".into()));
        let for_bob = Credentials { acts_for: Some("bob".into()), ..ann };
        assert_eq!(exchange.step(AuthStep::Response(for_bob.plain())), Step::Check(for_bob));
    }

    #[test]
    fn login_asks_for_name_and_password() {
        let mut exchange = Exchange::default();
        assert_eq!(exchange.step(begin("LOGIN", None)), Step::Challenge(LOGIN_USER.into()));
        assert_eq!(exchange.step(answer("ann")), Step::Challenge(LOGIN_PASSWORD.into()));
        assert_eq!(exchange.step(answer("secret")), Step::Check(Credentials::new("ann", "secret")));
        assert_eq!(exchange.step(begin("LOGIN", Some("YW5u"))), Step::Challenge(LOGIN_PASSWORD.into()));
        assert_eq!(exchange.step(answer("")), Step::Check(Credentials::new("ann", "")));
    }

    #[test]
    fn what_is_not_well_formed_is_refused_and_forgotten() {
        let mut exchange = Exchange::default();
        for initial in ["=", "????", "AA==", "YQ==", "/w==", "AGEAYgBj"] {
            assert!(is_refused(&exchange.step(begin("PLAIN", Some(initial)))), "{initial}");
        }
        assert!(is_refused(&exchange.step(begin("LOGIN", Some("=")))));
        assert!(is_refused(&exchange.step(answer("ann"))), "nothing was asked");
    }

    #[test]
    fn nobody_prints_a_password() {
        assert_eq!(
            format!("{:?}", Credentials::new("ann", "secret")),
            "Credentials { user: \"ann\", acts_for: None, .. }"
        );
    }
}
