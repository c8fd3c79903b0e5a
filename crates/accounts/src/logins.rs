//! The file of passwords.
//!
//! A line is `user@domain:hash`, as in Dovecot's passwd-file, optionally followed by `:` and words about the account.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_directory::{Address, Directory};
use posthaste_scram::{ScramKeys, ScramSecret};
use posthaste_units::is_name;

use crate::password::PasswordHash;

/// All logins. The server's threads only look names up; a reload makes a new value.
#[derive(Debug, Default)]
pub struct Logins {
    /// By name, in the form of [`Directory::login_name`].
    by_name: HashMap<Box<str>, Login>,
    /// The most expensive hash, to check for names that do not exist.
    decoy: Option<Arc<PasswordHash>>,
    /// Source of invented SCRAM keys; `None` if no login has keys.
    scram_decoy: Option<ScramSecret>,
}

/// A login.
#[derive(Debug)]
pub struct Login {
    /// The secrets that a client is checked against.
    pub secrets: Arc<LoginSecrets>,
    senders: Senders,
    /// Tenant whose account is charged for its mail to other hosts.
    pub tenant: Option<Arc<str>>,
}

/// Secrets of one password. After a change of them, it is another login.
#[derive(Debug, PartialEq, Eq)]
pub struct LoginSecrets {
    /// Hash for passwords that clients send.
    pub hash: Arc<PasswordHash>,
    /// Keys for proofs of SCRAM-SHA-256.
    pub scram: Option<ScramKeys>,
}

/// Addresses that a login may send from.
#[derive(Debug, PartialEq, Eq)]
enum Senders {
    Any,
    /// Its own addresses, and these: an address, or `@` and a domain, in the form of [`Directory::login_name`].
    Own(Vec<Box<str>>),
}

/// Reason for which a login may write as an author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorRight {
    /// The author is the login, an address that leads to it alone, or one of its `senders=`.
    Own,
    /// Allowed by `senders=any` alone.
    Any,
}

/// Error in a file of passwords.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {why}", file.display(), line.map_or(String::new(), |line| format!(":{line}")))]
pub struct LoginsError {
    /// The file.
    pub file: PathBuf,
    /// The malformed line; `None` if the file cannot be read.
    pub line: Option<usize>,
    /// The mistake, in words.
    pub why: String,
}

impl Logins {
    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or a line is malformed.
    pub fn load(file: &Path, directory: &Directory) -> Result<Self, LoginsError> {
        let failed = |line: Option<usize>, why: String| LoginsError { file: file.to_owned(), line, why };
        let text = std::fs::read_to_string(file).map_err(|error| failed(None, error.to_string()))?;
        Self::parse(&text, directory).map_err(|(line, why)| failed(Some(line), why))
    }

    /// # Errors
    /// The number of the malformed line, and the mistake. It never quotes a hash.
    pub(crate) fn parse(text: &str, directory: &Directory) -> Result<Self, (usize, String)> {
        let mut logins = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, login) = read_line(line, directory).map_err(|why| (index + 1, why))?;
            let LoginSecrets { hash, scram } = &*login.secrets;
            if logins.decoy.as_ref().is_none_or(|decoy| decoy.cost() < hash.cost()) {
                logins.decoy = Some(Arc::clone(hash));
            }
            if logins.scram_decoy.is_none() {
                logins.scram_decoy = scram.as_ref().map(ScramSecret::like);
            }
            if logins.by_name.contains_key(&*name) {
                return Err((index + 1, format!("{name} already has a line")));
            }
            logins.by_name.insert(name.into(), login);
        }
        Ok(logins)
    }

    /// Looks up a normalised name.
    pub fn get(&self, name: &str) -> Option<&Login> {
        self.by_name.get(name)
    }

    /// Hash to check a password against when the name does not exist, so that the refusal takes as long as for a real
    /// account. `None` if there are no accounts.
    pub fn decoy(&self) -> Option<&Arc<PasswordHash>> {
        self.decoy.as_ref()
    }

    /// All logins with their names, in no order.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Login)> {
        self.by_name.iter().map(|(name, login)| (&**name, login))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True if any login has keys of SCRAM-SHA-256.
    pub fn has_scram(&self) -> bool {
        self.scram_decoy.is_some()
    }

    /// Keys for an exchange with `name`. A name without keys gets invented ones, the same each time, that no password
    /// matches. `None` if no login has keys.
    pub(crate) fn scram_keys(&self, name: &str) -> Option<ScramKeys> {
        let keys = self.get(name).and_then(|login| login.secrets.scram.clone());
        keys.or_else(|| self.scram_decoy.as_ref().map(|secret| ScramKeys::of_nobody(name, secret)))
    }
}

impl Login {
    /// True if the login `name` may send from `sender`. `None` is a name without a domain, which belongs to nobody.
    pub fn may_send_as(&self, sender: Option<&Address>, name: &str, directory: &Directory) -> bool {
        match (&self.senders, sender) {
            (Senders::Any, _) => true,
            (Senders::Own(_), None) => false,
            (Senders::Own(listed), Some(address)) => {
                is_listed(listed, address, directory) || directory.is_address_of(address, name)
            }
        }
    }

    /// The right of the login `name` to write as this author, whom recipients see (From); `None` without a right.
    /// Stricter than [`may_send_as`](Self::may_send_as): an alias of several people belongs to none of them. An unknown
    /// `author` needs `senders=any`.
    pub fn author_right(&self, author: Option<&Address>, name: &str, directory: &Directory) -> Option<AuthorRight> {
        let listed: &[Box<str>] = if let Senders::Own(listed) = &self.senders { listed } else { &[] };
        let is_own = author
            .is_some_and(|author| is_listed(listed, author, directory) || directory.is_only_address_of(author, name));
        match (is_own, &self.senders) {
            (true, _) => Some(AuthorRight::Own),
            (false, Senders::Any) => Some(AuthorRight::Any),
            (false, Senders::Own(_)) => None,
        }
    }
}

fn is_listed(listed: &[Box<str>], address: &Address, directory: &Directory) -> bool {
    if listed.is_empty() {
        return false;
    }
    let Some(form) = directory.login_name(&address.to_string()) else { return false };
    let domain = form.find('@').map_or("", |at| &form[at..]);
    listed.iter().any(|sender| **sender == *form || **sender == *domain)
}

fn read_line(line: &str, directory: &Directory) -> Result<(String, Login), String> {
    let (name, rest) = line.split_once(':').ok_or("a line is `user@domain:hash`")?;
    let name = directory.login_name(name).ok_or_else(|| format!("`{name}` is not a name, such as ann@example.org"))?;
    let (hash, words) = rest.split_once(':').unwrap_or((rest, ""));
    // As Dovecot's `doveadm pw` writes it.
    let hash = ["{ARGON2ID}", "{ARGON2I}"].iter().find_map(|scheme| hash.strip_prefix(scheme)).unwrap_or(hash);
    let hash = Arc::new(PasswordHash::parse(hash).map_err(|error| error.to_string())?);
    let mut scram = None;
    let mut allowed = Senders::Own(Vec::new());
    let mut of_tenant = None;
    for word in words.split_ascii_whitespace() {
        match word.split_once('=') {
            Some(("senders", "any")) => allowed = Senders::Any,
            Some(("senders", listed)) => allowed = Senders::Own(senders(listed, directory)?),
            Some(("tenant", tenant)) if is_name(tenant) => of_tenant = Some(tenant.into()),
            // Keys are not quoted.
            Some(("scram", keys)) => {
                scram = Some(keys.parse::<ScramKeys>().map_err(|error| format!("`scram=…` is {error}"))?);
            }
            _ => return Err(format!("`{word}` is unknown; use `senders=…`, `tenant=…` and `scram=…`")),
        }
    }
    Ok((name, Login { secrets: Arc::new(LoginSecrets { hash, scram }), senders: allowed, tenant: of_tenant }))
}

fn senders(listed: &str, directory: &Directory) -> Result<Vec<Box<str>>, String> {
    let sender = |sender: &str| {
        let form = match sender.strip_prefix('@') {
            // Any user will do to find the form of the domain.
            Some(domain) => directory.login_name(&format!("x@{domain}")).map(|form| form[1..].to_owned()),
            None => directory.login_name(sender).filter(|_| sender.contains('@')),
        };
        form.map(Into::into).ok_or_else(|| format!("`{sender}` is neither an address nor `@` and a domain"))
    };
    listed.split(',').map(sender).collect()
}

#[cfg(test)]
mod tests {
    use posthaste_directory::{Domain, Targets, Users};

    use super::*;

    fn directory() -> Directory {
        let mut domain = Domain::named("example.org");
        domain.domain_aliases = vec!["b\u{fc}cher.example".to_owned()];
        domain.users = Users::Listed(vec!["ann".to_owned(), "bob".to_owned()]);
        Directory::new(&[domain], "Maildir").unwrap()
    }

    const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";

    #[test]
    fn lines_are_read_whoever_wrote_them() {
        let slow = HASH.replace("t=1", "t=2");
        let text = format!(
            "# comment\n\nAnn@B\u{dc}CHER.example:{HASH}\nbob:{{ARGON2ID}}{slow}:tenant=news senders=any\r\napp@else.example:{HASH}\n"
        );
        let logins = Logins::parse(&text, &directory()).unwrap();
        assert_eq!(logins.get("ann@example.org").unwrap().senders, Senders::Own(Vec::new()));
        let bob = logins.get("bob@example.org").unwrap();
        assert_eq!((bob.tenant.as_deref(), &bob.senders), (Some("news"), &Senders::Any));
        assert!(logins.get("app@else.example").is_some() && logins.get("ann@else.example").is_none());
        assert_eq!(logins.decoy(), Some(&bob.secrets.hash), "the one that takes longest");
    }

    #[test]
    fn a_line_may_have_keys_of_scram() {
        let keys = ScramKeys::new("password", 5000).unwrap();
        let text = format!("ann:{HASH}:tenant=news scram={keys}\nbob:{HASH}\n");
        let logins = Logins::parse(&text, &directory()).unwrap();
        assert_eq!(logins.scram_keys("ann@example.org"), Some(keys));
        let invented = logins.scram_keys("bob@example.org").unwrap();
        assert_eq!(logins.scram_keys("bob@example.org"), Some(invented.clone()));
        assert_ne!(logins.scram_keys("nobody@example.org"), Some(invented.clone()));
        // After a restart, too, and with as many iterations as those that there are.
        let again = Logins::parse(&text, &directory()).unwrap();
        assert_eq!(again.scram_keys("bob@example.org"), Some(invented.clone()));
        assert!(invented.to_string().starts_with("SCRAM-SHA-256$5000:"), "{invented}");
        let none = Logins::parse(&format!("ann:{HASH}\n"), &directory()).unwrap();
        assert!(!none.has_scram() && none.scram_keys("ann@example.org").is_none());
    }

    #[test]
    fn a_line_that_is_wrong_is_named_without_its_hash() {
        let check = |line: &str, expected: &str| {
            let (number, why) = Logins::parse(&format!("# one\n{line}\n"), &directory()).unwrap_err();
            assert!(number == 2 && why.contains(expected) && !why.contains("c29tZXNhbHQ"), "{number} {why}");
        };
        check("ann", "a line is `user@domain:hash`");
        check(&format!("a b@example.org:{HASH}"), "`a b@example.org` is not a name");
        check("ann@example.org:secret", "not a hash of Argon2");
        check("ann@example.org:", "not a hash of Argon2");
        check(&format!("ann@example.org:{HASH}:uid=5"), "`uid=5` is unknown");
        check(&format!("ann@example.org:{HASH}:tenant="), "`tenant=` is unknown");
        check(&format!("ann@example.org:{HASH}:scram=SCRAM-SHA-256$0:c29tZXNhbHQ$a:b"), "`scram=…` is not of the form");
        check(&format!("ann@example.org:{HASH}:senders=bob"), "`bob` is neither an address nor");
        check(&format!("ann@example.org:{HASH}:senders=@"), "`@` is neither");
        let twice = format!("ann:{HASH}\nANN@example.org:{HASH}\n");
        let (number, why) = Logins::parse(&twice, &directory()).unwrap_err();
        assert_eq!((number, &*why), (2, "ann@example.org already has a line"));
        let error = Logins::load(Path::new("no such file"), &directory()).unwrap_err();
        assert!(error.to_string().starts_with("no such file: "), "{error}");
    }

    #[test]
    fn a_login_sends_as_itself_and_as_what_its_line_says() {
        let directory = directory();
        let text = format!(
            "ann:{HASH}\nbob:{HASH}:senders=any\napp@else.example:{HASH}:senders=news@Example.net,@lists.example,@xn--bcher-kva.example\n"
        );
        let logins = Logins::parse(&text, &directory).unwrap();
        let check = |login: &str, sender: &str, expected: bool| {
            let may = logins.get(login).unwrap().may_send_as(Address::parse(sender).ok().as_ref(), login, &directory);
            assert_eq!(may, expected, "{login} as {sender}");
        };
        for (sender, ann, app) in [
            ("ann@example.org", true, true),
            ("ann", false, false),
            ("bob@example.org", false, true),
            ("NEWS@example.NET", false, true),
            ("other@example.net", false, false),
            ("x@lists.example", false, true),
            ("x@a.lists.example", false, false),
            ("app@else.example", false, true),
            ("x@[192.0.2.1]", false, false),
        ] {
            check("ann@example.org", sender, ann);
            check("app@else.example", sender, app);
            check("bob@example.org", sender, true);
        }
    }

    #[test]
    fn an_author_is_the_logins_own_or_listed() {
        let mut domain = Domain::named("example.org");
        domain.users = Users::Listed(vec!["ann".to_owned(), "bob".to_owned()]);
        let to = |users: &[&str]| Targets::To(users.iter().map(|user| (*user).to_owned()).collect());
        domain.aliases = [("info".to_owned(), to(&["ann"])), ("team".to_owned(), to(&["ann", "bob"]))].into();
        let directory = Directory::new(&[domain], "Maildir").unwrap();
        let logins = Logins::parse(
            &format!("ann:{HASH}:senders=@lists.example,team@example.org\nbob:{HASH}\nroot:{HASH}:senders=any\n"),
            &directory,
        )
        .unwrap();
        let check = |login: &str, author: &str, expected: Option<AuthorRight>| {
            let parsed = Address::parse(author).ok();
            let right = logins.get(login).unwrap().author_right(parsed.as_ref(), login, &directory);
            assert_eq!(right, expected, "{login} writes as {author:?}");
        };
        let (own, any) = (Some(AuthorRight::Own), Some(AuthorRight::Any));
        for author in ["ann@example.org", "Info@Example.org", "x@lists.example", "team@example.org"] {
            check("ann@example.org", author, own);
        }
        check("ann@example.org", "bob@example.org", None);
        check("ann@example.org", "ceo@other.example", None);
        check("bob@example.org", "team@example.org", None);
        check("root@example.org", "root@example.org", own);
        check("root@example.org", "ceo@other.example", any);
        check("root@example.org", "", any);
        check("ann@example.org", "", None);
    }
}
