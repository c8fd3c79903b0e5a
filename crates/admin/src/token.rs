//! Tokens: secrets that programs and people use in place of a password.

use std::collections::BTreeSet;
use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use crate::scope::{Scope, UnknownScope};
use crate::token_bounds::{TokenBounds, TokenBoundsError};

/// The secret of a token: `pht_` and 160 random bits in hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Prefix of every secret, so that scanners find leaked ones.
const PREFIX: &str = "pht_";
/// Prefix of the secrets of sessions.
pub(crate) const SESSION_PREFIX: &str = "phs_";
const LINK_PREFIX: &str = "phl_";
/// Octets of randomness: 160 bits.
const RANDOM_BYTES: usize = 20;

impl Secret {
    /// Makes a random secret.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn random() -> Self {
        Self::with_prefix(PREFIX)
    }

    /// Makes a random secret of a session.
    pub(crate) fn of_session() -> Self {
        Self::with_prefix(SESSION_PREFIX)
    }

    /// Makes a random secret of a link.
    pub(crate) fn of_link() -> Self {
        Self::with_prefix(LINK_PREFIX)
    }

    fn with_prefix(prefix: &str) -> Self {
        let mut bytes = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
        Self(format!("{prefix}{}", hex(&bytes)))
    }

    /// The secret as text, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Hash of the secret: the only form that is stored.
    pub fn hash(&self) -> TokenHash {
        hash(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// True if a text has the form of a link's secret.
pub fn is_page_link(presented: &str) -> bool {
    presented.starts_with(LINK_PREFIX)
}

/// SHA-256 of a secret. 160 random bits need no slow hash.
pub type TokenHash = [u8; 32];

/// The hash of a presented secret.
pub fn hash(presented: &str) -> TokenHash {
    digest(&SHA256, presented.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 octets")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A stored token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    name: String,
    hash: TokenHash,
    scopes: BTreeSet<Scope>,
    until: Option<u64>,
    bounds: TokenBounds,
}

/// Why a token cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The name is invalid.
    #[error("`{0}` is not a name for a token: 1 to 64 letters, digits, and `.`, `_`, `-`, `@`")]
    Name(String),
    /// The name is reserved for mail that came without a token, in the log and in events.
    #[error(
        "`{0}` is reserved: choose a name that is not `{PASSWORD_NAME}` and does not begin with `{NETWORK_PREFIX}`"
    )]
    Reserved(String),
    /// A token needs at least one scope.
    #[error("a token needs a scope, such as --scope inject")]
    NoScope,
    /// The bounds do not fit the scopes.
    #[error(transparent)]
    Bounds(#[from] TokenBoundsError),
}

/// Prefix of the names of clients authorised by their network.
const NETWORK_PREFIX: &str = "network-";
/// Name of the token that stands for the first password.
const PASSWORD_NAME: &str = "first-password";
/// Maximum octets of a name.
const NAME_BYTES_MAX: usize = 64;

impl Token {
    /// A token that expires at `until`, in seconds since 1970; `None`: never.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn new(name: &str, secret: &Secret, scopes: BTreeSet<Scope>, until: Option<u64>) -> Result<Self, TokenError> {
        Self::with_hash(name, secret.hash(), scopes, until)
    }

    pub(crate) fn with_hash(
        name: &str,
        hash: TokenHash,
        scopes: BTreeSet<Scope>,
        until: Option<u64>,
    ) -> Result<Self, TokenError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(TokenError::Name(name.chars().take(100).collect()));
        }
        if name == PASSWORD_NAME || name.starts_with(NETWORK_PREFIX) {
            return Err(TokenError::Reserved(name.to_owned()));
        }
        if scopes.is_empty() {
            return Err(TokenError::NoScope);
        }
        Ok(Self { name: name.to_owned(), hash, scopes, until, bounds: TokenBounds::default() })
    }

    /// Restricts the token to these bounds.
    ///
    /// # Errors
    /// [`TokenError::Bounds`]: one of its scopes is not possible with these bounds.
    pub fn within(self, bounds: TokenBounds) -> Result<Self, TokenError> {
        bounds.check(self.scopes.iter().copied())?;
        Ok(Self { bounds, ..self })
    }

    /// The token that stands for the first password, which opens the page while there is no configuration: with all
    /// scopes.
    pub(crate) fn of_password(hash: TokenHash) -> Self {
        let (name, scopes) = (PASSWORD_NAME.to_owned(), Scope::all().collect());
        Self { name, hash, scopes, until: None, bounds: TokenBounds::default() }
    }

    /// The token that stands for clients which inject by their network alone. It has no secret.
    pub(crate) fn of_network(network: &str, tenant: Option<String>) -> Self {
        let name = format!("{NETWORK_PREFIX}{network}");
        let bounds = TokenBounds { tenant, ..TokenBounds::default() };
        Self { hash: hash(&name), name, scopes: [Scope::Inject].into(), until: None, bounds }
    }

    /// Name for the log and for `list`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Scopes of the token.
    pub fn scopes(&self) -> &BTreeSet<Scope> {
        &self.scopes
    }

    /// Expiry, in seconds since 1970.
    pub fn until(&self) -> Option<u64> {
        self.until
    }

    /// Limits to a tenant, to sender domains and to client networks.
    pub fn bounds(&self) -> &TokenBounds {
        &self.bounds
    }

    /// The only tenant whose mail is visible to it, if it is bound to one.
    pub fn tenant(&self) -> Option<&str> {
        self.bounds.tenant.as_deref()
    }

    /// Hash of the token's secret.
    pub fn hash(&self) -> &TokenHash {
        &self.hash
    }

    /// True if it has expired at `now`, in seconds since 1970.
    pub(crate) fn has_ended(&self, now: u64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// A line of the file: name, hash, scopes, expiry, tenant, sender domains, networks.
    pub(crate) fn to_line(&self) -> String {
        let scopes: Vec<&str> = self.scopes.iter().map(|scope| scope.name()).collect();
        let until = self.until.map_or("-".to_owned(), |until| until.to_string());
        let bounds = self.bounds.to_words();
        format!("{} {} {} {until} {bounds}\n", self.name, hex(&self.hash), scopes.join(","))
    }

    /// Parses a line of the file. Errors do not quote the hash.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let [name, hash, scopes, until, tenant, domains, networks] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err("a line is `name hash scopes end tenant domains networks`".to_owned());
        };
        let hash = unhex(hash).ok_or("the second word is not a SHA-256 hash")?;
        let scopes = scopes.split(',').map(str::parse).collect::<Result<_, UnknownScope>>();
        let scopes = scopes.map_err(|error| error.to_string())?;
        let until = match until {
            "-" => None,
            text => Some(text.parse().map_err(|_| "the fourth word is neither `-` nor a number of seconds")?),
        };
        let bounds = TokenBounds::of_words(tenant, domains, networks).map_err(|error| error.to_string())?;
        Self::with_hash(name, hash, scopes, until)
            .and_then(|token| token.within(bounds))
            .map_err(|error| error.to_string())
    }
}

pub(crate) fn unhex(text: &str) -> Option<TokenHash> {
    let mut hash = TokenHash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(until: Option<u64>) -> (Secret, Token) {
        let secret = Secret::random();
        let token = Token::new("shop", &secret, [Scope::Inject, Scope::QueueRead].into(), until).unwrap();
        (secret, token)
    }

    #[test]
    fn a_secret_has_160_bits_and_hides_in_debug() {
        let (first, second) = (Secret::random(), Secret::random());
        assert!(first != second && first.reveal().len() == 4 + 40 && first.reveal().starts_with("pht_"));
        let (secret, token) = token(None);
        let shown = format!("{secret:?} {token:?} {}", token.to_line());
        assert!(!shown.contains(&secret.reveal()[4..]), "{shown}");
    }

    #[test]
    fn names_of_what_has_no_token_are_refused() {
        let made = |name: &str| Token::new(name, &Secret::random(), [Scope::Inject].into(), None);
        assert_eq!(made("network-other").unwrap_err(), TokenError::Reserved("network-other".to_owned()));
        assert_eq!(made(PASSWORD_NAME).unwrap_err(), TokenError::Reserved(PASSWORD_NAME.to_owned()));
        assert_eq!(made("network").unwrap().name(), "network");
    }

    #[test]
    fn a_token_survives_its_line() {
        for until in [None, Some(7)] {
            let (_, token) = token(until);
            assert_eq!(Token::parse(token.to_line().trim_end()), Ok(token));
        }
    }

    #[test]
    fn a_line_that_is_wrong_is_refused_without_its_hash() {
        let (_, token) = token(None);
        let good = token.to_line().trim_end().to_owned();
        let hash = hex(token.hash());
        let check = |line: String, expected: &str| {
            let why = Token::parse(&line).unwrap_err();
            assert!(why.contains(expected) && !why.contains(&hash), "{line}: {why}");
        };
        check(good.replace("shop", "sh/op"), "not a name");
        check(good.replace("shop", ""), "not a name");
        check(good.replace(&hash, &hash[1..]), "not a SHA-256 hash");
        check(good.replace(&hash, &"G".repeat(64)), "not a SHA-256 hash");
        check(good.replace(&hash, &"é".repeat(32)), "not a SHA-256 hash");
        check(good.replace("inject", "everything"), "no scope `everything`");
        check(good.replace("inject,queue:read", ""), "no scope ``");
        check(good.replacen(" -", " soon", 1), "number of seconds");
        check(good.replacen(" -", "", 1), "a line is");
        check(good.replacen(" - - - -", " - acme - -", 1).replace("inject", "metrics"), "the whole server");
        check(good.replacen(" - - - -", " - - a@b -", 1), "not a domain of senders");
        check(good.replacen(" - - - -", " - - - 10.0.0.1/8", 1), "10.0.0.0/8");
        check(good + " more", "a line is");
    }

    #[test]
    fn an_unknown_scope_is_named_with_those_there_are() {
        let error = "queue:all".parse::<Scope>().unwrap_err().to_string();
        let all = "inject, queue:read, queue:write, route, suppression, events:read, mail:read, accounts, server:read, server:drain, metrics";
        assert_eq!(error, format!("there is no scope `queue:all`; there are {all}"));
        assert!(Scope::all().all(|scope| scope.name().parse() == Ok(scope)));
    }
}
