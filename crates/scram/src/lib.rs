//! SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677): both sides prove that they know the password. Nothing
//! sent could be used in its place. A server stores [`ScramKeys`], from which the password cannot be computed.
//!
//! For any protocol with SASL: messages are passed as text, and the protocol encodes them in base64 lines of its own.
//! With `-PLUS` both sides also prove that they are the ends of one TLS connection ([`TlsExporter`]), so that nobody in
//! the middle can relay the proof. Passwords are used as given: prepare those beyond ASCII with SASLprep (RFC 4013)
//! first.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::{digest, hmac, pbkdf2};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Minimum rounds of PBKDF2 (RFC 7677 section 4).
pub const ITERATIONS_MIN: u32 = 4096;
/// Maximum rounds that a client does, so that no server can keep it busy.
pub const ITERATIONS_MAX: u32 = 600_000;

type Key = [u8; 32];

/// The server's keys for one password. Their text form is `SCRAM-SHA-256$4096:salt$StoredKey:ServerKey`, the last three
/// in base64, as in PostgreSQL and others.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    salt: Vec<u8>,
    iterations: NonZeroU32,
    stored_key: Key,
    server_key: Key,
}

impl ScramKeys {
    /// Derives keys from a new password, with a random salt. `iterations` is at least [`ITERATIONS_MIN`]; each ten
    /// thousand take milliseconds.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(password: &str, iterations: u32) -> Result<Self, NoRandomness> {
        let mut salt = [0; 16];
        SystemRandom::new().fill(&mut salt).map_err(|_| NoRandomness)?;
        let iterations = NonZeroU32::new(iterations.max(ITERATIONS_MIN)).expect("not less than the minimum");
        Ok(Self::derived(password, &salt, iterations))
    }

    fn derived(password: &str, salt: &[u8], iterations: NonZeroU32) -> Self {
        let keys = Keys::derived(password, salt, iterations);
        let stored_key = hash(&keys.client_key);
        Self { salt: salt.to_vec(), iterations, stored_key, server_key: keys.server_key }
    }

    /// Invented keys for an unknown user, so that the exchange does not reveal that: constant for the same `secret`,
    /// and no password matches.
    pub fn of_nobody(user: &str, secret: &ScramSecret) -> Self {
        let ScramSecret { key, iterations } = secret;
        let salt = sign(key, user.as_bytes())[..16].to_vec();
        let key = sign(key, &[user.as_bytes(), b"\0"].concat());
        Self { salt, iterations: *iterations, stored_key: key, server_key: key }
    }
}

/// Secret from which invented keys are derived.
#[derive(Clone)]
pub struct ScramSecret {
    key: Key,
    iterations: NonZeroU32,
}

impl ScramSecret {
    /// A secret for keys that look like `keys`: constant as long as those are, even across processes.
    pub fn like(keys: &ScramKeys) -> Self {
        Self { key: sign(&keys.server_key, b"Nobody"), iterations: keys.iterations }
    }

    /// A secret for the life of the process, with [`ITERATIONS_MIN`]. `None` without random numbers from the system.
    pub fn of_process() -> Option<Self> {
        static SECRET: std::sync::OnceLock<Key> = std::sync::OnceLock::new();
        if SECRET.get().is_none() {
            let mut secret = [0; 32];
            SystemRandom::new().fill(&mut secret).ok()?;
            // If another thread was faster, its secret is used.
            let _ = SECRET.set(secret);
        }
        let iterations = NonZeroU32::new(ITERATIONS_MIN).expect("not zero");
        SECRET.get().map(|key| Self { key: *key, iterations })
    }
}

/// Omits the key.
impl fmt::Debug for ScramSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramSecret").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// The system has no random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system has no random numbers")]
pub struct NoRandomness;

impl fmt::Display for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [salt, stored, server] =
            [&self.salt[..], &self.stored_key, &self.server_key].map(|octets| BASE64.encode(octets));
        write!(f, "{NAME}${}:{salt}${stored}:{server}", self.iterations)
    }
}

/// Omits the keys.
impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramKeys").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// The text is not in the form of [`ScramKeys`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not of the form SCRAM-SHA-256$4096:salt$StoredKey:ServerKey")]
pub struct BadKeys;

impl FromStr for ScramKeys {
    type Err = BadKeys;

    fn from_str(text: &str) -> Result<Self, BadKeys> {
        let read = || {
            let rest = text.strip_prefix(NAME)?.strip_prefix('$')?;
            let (how, keys) = rest.split_once('$')?;
            let ((iterations, salt), (stored, server)) = (how.split_once(':')?, keys.split_once(':')?);
            Some(Self {
                salt: BASE64.decode(salt).ok()?,
                iterations: iterations.parse().ok()?,
                stored_key: BASE64.decode(stored).ok()?.try_into().ok()?,
                server_key: BASE64.decode(server).ok()?.try_into().ok()?,
            })
        };
        read().ok_or(BadKeys)
    }
}

/// Makes a nonce: random, printable and without commas. `None` without random numbers from the system.
pub fn nonce() -> Option<String> {
    let mut octets = [0; 18];
    SystemRandom::new().fill(&mut octets).ok()?;
    Some(BASE64.encode(octets))
}

/// Octets that only the two ends of a TLS 1.3 connection can compute: `tls-exporter` of RFC 9266. They are not secret.
pub type TlsExporter = [u8; 32];

/// The client's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScramFirst {
    user: String,
    /// Expected in the client's last message: the GS2 header and the octets of the channel.
    channel: Vec<u8>,
    bare: String,
    nonce: String,
}

impl ScramFirst {
    /// Parses the first message of SCRAM-SHA-256. `offers_plus`: SCRAM-SHA-256-PLUS was offered, too. `None` if it is
    /// malformed, or asks for an extension or for acting for another user. Also if the client has not seen the offer of
    /// `-PLUS`: somebody in the middle removed it (RFC 5802 section 6).
    pub fn parse(message: &str, offers_plus: bool) -> Option<Self> {
        // `y`: the client could do channel binding and believes that we cannot.
        let unaware = || message.strip_prefix("y,").filter(|_| !offers_plus);
        Self::parse_after(message, message.strip_prefix("n,").or_else(unaware)?, &[])
    }

    /// Parses the first message of SCRAM-SHA-256-PLUS. `None` as for [`parse`](Self::parse), or if it names another
    /// channel binding.
    pub fn parse_bound(message: &str, exporter: &TlsExporter) -> Option<Self> {
        Self::parse_after(message, message.strip_prefix(BOUND)?, exporter)
    }

    fn parse_after(message: &str, rest: &str, channel: &[u8]) -> Option<Self> {
        let (acts_for, bare) = rest.split_once(',')?;
        let mut parts = bare.split(',');
        let user = unescaped(parts.next()?.strip_prefix("n=")?)?;
        let nonce = parts.next()?.strip_prefix("r=").filter(|nonce| is_printable(nonce))?;
        let acts_for_self = acts_for.is_empty() || unescaped(acts_for.strip_prefix("a=")?)? == user;
        (acts_for_self && !user.is_empty()).then(|| Self {
            channel: [&message.as_bytes()[..message.len() - bare.len()], channel].concat(),
            bare: bare.to_owned(),
            nonce: nonce.to_owned(),
            user,
        })
    }

    /// Name of the user whose password the client claims to know.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// [`NAME`] or [`PLUS_NAME`].
    pub fn mechanism(&self) -> &'static str {
        if self.channel.starts_with(BOUND.as_bytes()) { PLUS_NAME } else { NAME }
    }
}

/// The server's side, after the client's first message.
#[derive(Debug)]
pub struct ScramServer {
    first: ScramFirst,
    keys: ScramKeys,
    message: String,
    nonce: String,
}

impl ScramServer {
    /// Begins with the user's keys, and a [`nonce`] of the server.
    pub fn new(first: ScramFirst, keys: ScramKeys, server_nonce: &str) -> Self {
        let nonce = format!("{}{server_nonce}", first.nonce);
        let message = format!("r={nonce},s={},i={}", BASE64.encode(&keys.salt), keys.iterations);
        Self { first, keys, message, nonce }
    }

    /// Begins with invented keys if the user has none, which the client cannot tell, and a fresh nonce. `None` without
    /// random numbers from the system.
    pub fn begin(first: ScramFirst, keys: Option<ScramKeys>) -> Option<Self> {
        let invented = || ScramSecret::of_process().map(|secret| ScramKeys::of_nobody(first.user(), &secret));
        let keys = keys.or_else(invented)?;
        Some(Self::new(first, keys, &nonce()?))
    }

    /// The server's first message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Parses the client's last message, without comparing its proof yet. `None` if it is malformed, or of another
    /// exchange or TLS connection.
    pub fn prove(self, client_final: &str) -> Option<ScramProof> {
        let (without_proof, proof) = client_final.rsplit_once(",p=")?;
        let (binding, nonce) = without_proof.split_once(',')?;
        let proof: Key = BASE64.decode(proof).ok()?.try_into().ok()?;
        let is_bound = binding.strip_prefix("c=")? == BASE64.encode(&self.first.channel);
        // No extension is known that could stand after the nonce.
        let is_ours = nonce.strip_prefix("r=")? == self.nonce;
        let said = format!("{},{},{without_proof}", self.first.bare, self.message);
        let mechanism = self.first.mechanism();
        (is_bound && is_ours).then_some(ScramProof { user: self.first.user, mechanism, keys: self.keys, said, proof })
    }
}

/// The client's proof that it knows a password.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramProof {
    user: String,
    mechanism: &'static str,
    keys: ScramKeys,
    /// Both sides' messages.
    said: String,
    proof: Key,
}

/// The proof is for another password than the server's keys. Proofs of the same wrong password have nothing in common,
/// so repetitions are not recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the proof is of another password")]
pub struct WrongProof;

impl ScramProof {
    /// Name of the user whose password it claims to prove.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// [`NAME`] or [`PLUS_NAME`].
    pub fn mechanism(&self) -> &'static str {
        self.mechanism
    }

    /// Both sides' messages, which are unique to an exchange.
    pub fn exchange(&self) -> &str {
        &self.said
    }

    /// The keys to compare it with.
    pub fn keys(&self) -> &ScramKeys {
        &self.keys
    }

    /// Compares the proof, in constant time.
    ///
    /// # Errors
    /// [`WrongProof`].
    pub fn check(&self) -> Result<(), WrongProof> {
        let client_key = xor(&self.proof, &sign(&self.keys.stored_key, self.said.as_bytes()));
        if is_same(&hash(&client_key), &self.keys.stored_key) { Ok(()) } else { Err(WrongProof) }
    }

    /// The server's last message, which proves that it has the keys; only for a client with a correct proof.
    ///
    /// # Errors
    /// [`WrongProof`].
    pub fn answer(&self) -> Result<String, WrongProof> {
        self.check().map(|()| format!("v={}", BASE64.encode(sign(&self.keys.server_key, self.said.as_bytes()))))
    }
}

/// Omits the proof.
impl fmt::Debug for ScramProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramProof").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The client's side.
#[derive(Clone)]
pub struct ScramClient {
    password: String,
    acts_for: String,
    exporter: Option<TlsExporter>,
    bare: String,
    nonce: String,
    /// Signature that the server has to send at the end.
    server_signature: Option<Key>,
}

impl fmt::Debug for ScramClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramClient").field("bare", &self.bare).finish_non_exhaustive()
    }
}

impl ScramClient {
    /// Begins with a [`nonce`] of the client. `acts_for` is the identity to act for; `None` for its own.
    pub fn new(user: &str, password: &str, acts_for: Option<&str>, nonce: String) -> Self {
        Self {
            password: password.to_owned(),
            acts_for: acts_for.map_or(String::new(), |name| format!("a={}", escaped(name))),
            exporter: None,
            bare: format!("n={},r={nonce}", escaped(user)),
            nonce,
            server_signature: None,
        }
    }

    /// Uses SCRAM-SHA-256-PLUS over this TLS connection.
    #[must_use]
    pub fn bound_to(self, exporter: TlsExporter) -> Self {
        Self { exporter: Some(exporter), ..self }
    }

    fn gs2_header(&self) -> String {
        format!("{}{},", if self.exporter.is_some() { BOUND } else { "n," }, self.acts_for)
    }

    /// The client's first message.
    pub fn first(&self) -> String {
        self.gs2_header() + &self.bare
    }

    /// The client's last message, in reply to the server's first.
    ///
    /// # Errors
    /// The mistake in the server's message.
    pub fn last(&mut self, server_first: &str) -> Result<String, &'static str> {
        let mut parts = server_first.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name));
        let (Some(nonce), Some(salt), Some(iterations)) = (part("r="), part("s="), part("i=")) else {
            return Err("its first message is not a SCRAM message");
        };
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() || !is_printable(nonce) {
            return Err("its nonce does not continue ours");
        }
        let salt = BASE64.decode(salt).map_err(|_| "its salt is not base64")?;
        let iterations = iterations.parse().ok().filter(|count| (ITERATIONS_MIN..=ITERATIONS_MAX).contains(count));
        let iterations = iterations.and_then(NonZeroU32::new).ok_or("it asks for too few or too many iterations")?;
        let keys = Keys::derived(&self.password, &salt, iterations);
        let channel = [self.gs2_header().as_bytes(), self.exporter.as_ref().map_or(&[], |octets| &octets[..])].concat();
        let without_proof = format!("c={},r={nonce}", BASE64.encode(channel));
        let said = format!("{},{server_first},{without_proof}", self.bare);
        let proof = xor(&keys.client_key, &sign(&hash(&keys.client_key), said.as_bytes()));
        self.server_signature = Some(sign(&keys.server_key, said.as_bytes()));
        Ok(format!("{without_proof},p={}", BASE64.encode(proof)))
    }

    /// True if the server's last message proves that it knows the password.
    pub fn is_shown(&self, server_final: &str) -> bool {
        let shown = server_final.strip_prefix("v=").and_then(|shown| BASE64.decode(shown).ok());
        match (shown.and_then(|shown| Key::try_from(shown).ok()), self.server_signature) {
            (Some(shown), Some(expected)) => is_same(&shown, &expected),
            _ => false,
        }
    }
}

struct Keys {
    client_key: Key,
    server_key: Key,
}

impl Keys {
    fn derived(password: &str, salt: &[u8], iterations: NonZeroU32) -> Self {
        let mut salted = Key::default();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password.as_bytes(), &mut salted);
        Self { client_key: sign(&salted, b"Client Key"), server_key: sign(&salted, b"Server Key") }
    }
}

fn sign(key: &Key, message: &[u8]) -> Key {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, message).as_ref().try_into().expect("SHA-256 has 32 octets")
}

fn hash(key: &Key) -> Key {
    digest::digest(&digest::SHA256, key).as_ref().try_into().expect("SHA-256 has 32 octets")
}

fn xor(a: &Key, b: &Key) -> Key {
    std::array::from_fn(|at| a[at] ^ b[at])
}

/// Compares in constant time.
fn is_same(a: &Key, b: &Key) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn is_printable(nonce: &str) -> bool {
    !nonce.is_empty() && nonce.bytes().all(|octet| octet.is_ascii_graphic() && octet != b',')
}

/// Escapes comma and equals sign in a name (RFC 5802 section 5.1).
fn escaped(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut out = parts.next()?.to_owned();
    for part in parts {
        let (c, rest) = match part.split_at_checked(2)? {
            ("2C", rest) => (',', rest),
            ("3D", rest) => ('=', rest),
            _ => return None,
        };
        out.push(c);
        out.push_str(rest);
    }
    Some(out)
}

/// The name of the mechanism.
pub const NAME: &str = "SCRAM-SHA-256";
/// The name of the mechanism with channel binding.
pub const PLUS_NAME: &str = "SCRAM-SHA-256-PLUS";
/// Start of the GS2 header with channel binding.
const BOUND: &str = "p=tls-exporter,";

#[cfg(test)]
mod tests {
    use super::*;

    // The exchange of RFC 7677 section 3.
    const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const LAST: &str =
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_LAST: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn client_with(password: &str) -> ScramClient {
        ScramClient::new("user", password, None, "rOprNGfwEbeRWgbNEkqO".into())
    }

    fn client() -> ScramClient {
        client_with("pencil")
    }

    fn keys() -> ScramKeys {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        ScramKeys::derived("pencil", &salt, NonZeroU32::new(4096).unwrap())
    }

    fn server(keys: ScramKeys) -> ScramServer {
        ScramServer::new(ScramFirst::parse(FIRST, false).unwrap(), keys, SERVER_NONCE)
    }

    /// The server's answer to the client's last message.
    fn answer(keys: ScramKeys, last: &str) -> Option<Result<String, WrongProof>> {
        server(keys).prove(last).map(|proof| proof.answer())
    }

    #[test]
    fn both_sides_say_what_the_rfc_says() {
        let mut client = client();
        assert_eq!(client.first(), FIRST);
        assert!(!client.is_shown(SERVER_LAST), "not before anything was asked");
        let server = server(keys());
        assert_eq!(server.message(), SERVER_FIRST);
        assert_eq!(client.last(SERVER_FIRST).as_deref(), Ok(LAST));
        let proof = server.prove(LAST).unwrap();
        assert_eq!((proof.user(), proof.keys(), proof.check()), ("user", &keys(), Ok(())));
        assert_eq!(proof.answer().as_deref(), Ok(SERVER_LAST));
        assert!(client.is_shown(SERVER_LAST));
        assert!(
            !client.is_shown("v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") && !client.is_shown("e=other-error")
        );
    }

    #[test]
    fn a_message_with_any_changed_octet_shows_nothing() {
        for at in 0..LAST.len() {
            let mut octets = LAST.as_bytes().to_vec();
            octets[at] ^= 1;
            let changed = String::from_utf8(octets).unwrap();
            assert!(!matches!(answer(keys(), &changed), Some(Ok(_))), "{changed}");
        }
        for ill_formed in ["", "c=biws", "c=biws,p=", &LAST.replace(",p=", ",x=1,p="), &LAST[..LAST.len() - 4]] {
            assert!(answer(keys(), ill_formed).is_none(), "{ill_formed}");
        }
    }

    #[test]
    fn an_unknown_user_has_a_stable_salt_and_no_password() {
        let secret = ScramSecret::like(&keys());
        let nobody = |user: &str| ScramKeys::of_nobody(user, &secret);
        let (one, again) = (server(nobody("user")), server(nobody("user")));
        assert_eq!(one.message(), again.message());
        assert!(one.message() != SERVER_FIRST && one.message().ends_with(",i=4096"));
        assert_ne!(one.message(), server(nobody("other")).message());
        let last = client().last(one.message()).unwrap();
        assert!(one.prove(&last).unwrap().answer().is_err());
        let mut other = keys();
        other.server_key = [7; 32];
        assert_ne!(ScramKeys::of_nobody("user", &ScramSecret::like(&other)), nobody("user"));
        let of_process = || ScramKeys::of_nobody("user", &ScramSecret::of_process().unwrap());
        assert_eq!(of_process(), of_process());
    }

    #[test]
    fn a_server_that_wants_too_much_or_plays_foul_gets_nothing() {
        for message in [
            "",
            "e=invalid-proof",
            "m=ext,r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "r=rOprNGfwEbeRWgbNEkqOx,s=?,i=4096",
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095",
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=600001",
        ] {
            assert!(client().last(message).is_err(), "{message}");
        }
    }

    #[test]
    fn a_first_message_that_is_not_one_is_refused() {
        for message in [
            "",
            "n,,",
            "p=tls-unique,,n=user,r=abc",
            "n,a=other,n=user,r=abc",
            "n,,m=ext,n=user,r=abc",
            "n,,n=,r=abc",
            "n,,n=us=er,r=abc",
            "n,,n=user,r=",
            "n,,n=user,r=a c",
            "n,,n=user",
        ] {
            assert_eq!(ScramFirst::parse(message, false), None, "{message}");
        }
        let first = ScramClient::new("a=b,c", "x", Some("a=b,c"), "abc".into()).first();
        assert_eq!(first, "n,a=a=3Db=2Cc,n=a=3Db=2Cc,r=abc");
        assert_eq!(ScramFirst::parse(&first, false).unwrap().user, "a=b,c");
    }

    const CHANNEL: TlsExporter = [9; 32];

    /// Outcome of SCRAM-SHA-256-PLUS between a client and a server with these octets of the channel.
    fn bound(of_client: TlsExporter, of_server: &TlsExporter) -> Option<Result<String, WrongProof>> {
        let mut client = client().bound_to(of_client);
        let first = ScramFirst::parse_bound(&client.first(), of_server)?;
        let server = ScramServer::new(first, keys(), SERVER_NONCE);
        let last = client.last(server.message()).unwrap();
        let proof = server.prove(&last)?;
        assert_eq!(proof.mechanism(), PLUS_NAME);
        let answer = proof.answer();
        assert!(answer.iter().all(|shown| client.is_shown(shown)));
        Some(answer)
    }

    #[test]
    fn a_proof_is_good_for_one_channel_only() {
        assert!(matches!(bound(CHANNEL, &CHANNEL), Some(Ok(_))));
        let mut other = CHANNEL;
        other[31] ^= 1;
        assert_eq!(bound(other, &CHANNEL), None);
    }

    #[test]
    fn an_offer_that_was_taken_out_on_the_way_is_noticed() {
        let unaware = "y,,n=user,r=abc";
        assert!(ScramFirst::parse(unaware, false).is_some(), "nothing was offered");
        assert_eq!(ScramFirst::parse(unaware, false).unwrap().mechanism(), NAME);
        assert_eq!(ScramFirst::parse(unaware, true), None);
        assert!(ScramFirst::parse("n,,n=user,r=abc", true).is_some(), "the client cannot do it");
        // The header counts in the proof: whoever turns `n` into `y`, or into another binding, breaks it.
        assert_eq!(ScramFirst::parse("p=tls-exporter,,n=user,r=abc", true), None, "of the other mechanism");
        assert!(ScramFirst::parse_bound("p=tls-exporter,,n=user,r=abc", &CHANNEL).is_some());
        for other in ["n,,n=user,r=abc", "y,,n=user,r=abc", "p=tls-unique,,n=user,r=abc", "p=tls-exporter,n=user,r=abc"]
        {
            assert_eq!(ScramFirst::parse_bound(other, &CHANNEL), None, "{other}");
        }
    }

    #[test]
    fn keys_are_written_and_read_and_not_shown() {
        let text = keys().to_string();
        assert!(text.starts_with("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"), "{text}");
        assert_eq!(text.parse(), Ok(keys()));
        assert_eq!("SCRAM-SHA-256$0:YQ==$YQ==:YQ==".parse::<ScramKeys>(), Err(BadKeys));
        assert_eq!(format!("{:?}", keys()), "ScramKeys { iterations: 4096, .. }");
        assert_eq!(answer(keys(), &client_with("x").last(SERVER_FIRST).unwrap()), Some(Err(WrongProof)));
        assert_eq!(format!("{:?}", server(keys()).prove(LAST).unwrap()), "ScramProof { user: \"user\", .. }");
        assert_eq!(format!("{:?}", ScramSecret::like(&keys())), "ScramSecret { iterations: 4096, .. }");
        let [one, other] = [0, 1].map(|_| ScramKeys::new("pencil", 1).unwrap());
        assert!(one != other && one.iterations.get() == ITERATIONS_MIN);
    }
}
