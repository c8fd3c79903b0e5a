//! Owners of mailboxes: `owner` and `mode` of domains and accounts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use posthaste_delivery::Ownership;
use posthaste_directory::names::{directory_name, folded};
use posthaste_directory::{Domain, Users};
use posthaste_units::words::{Key, Problem};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

use crate::identity::{UserIdentity, owner, permission_bits};

/// Owner and mode of each mailbox, as configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerRules {
    /// By directory name.
    domains: HashMap<String, DomainRules>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DomainRules {
    /// The name in the configuration.
    name: String,
    own: Ownership,
    /// By directory name.
    accounts: HashMap<String, Ownership>,
}

impl OwnerRules {
    /// The rules of domains that were checked.
    ///
    /// # Panics
    /// When they were not.
    pub fn of(domains: &[Domain]) -> Self {
        Self::new(domains).unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"))
    }

    /// The rules of these domains.
    ///
    /// # Errors
    /// An invalid owner or mode, or an unknown account.
    pub fn new(domains: &[Domain]) -> Result<Self, Problem> {
        let mut by_directory = HashMap::new();
        for (index, domain) in domains.iter().enumerate() {
            let rules = DomainRules::new(domain).map_err(|problem| problem.within(["domain".into(), index.into()]))?;
            // A name that cannot be one is found where the routes are made.
            by_directory.extend(domain.directory_name().zip(rules));
        }
        Ok(Self { domains: by_directory })
    }

    /// Owner and mode of new files at this path below the mail directory.
    pub fn ownership(&self, path: &str) -> Ownership {
        let mut levels = path.split('/');
        let Some(rules) = levels.next().and_then(|domain| self.domains.get(domain)) else {
            return Ownership::default();
        };
        match levels.next() {
            Some(user) => rules.accounts.get(user).copied().unwrap_or(rules.own),
            // The accounts' owners have to get through.
            None if rules.accounts.is_empty() => rules.own,
            None => Ownership { dir_mode: rules.own.dir_mode | SEARCH_FOR_ALL, ..rules.own },
        }
    }

    /// All ownerships in use, each with one domain that uses it.
    fn all(&self) -> impl Iterator<Item = (&str, Ownership)> {
        let mut found = BTreeMap::new();
        for rules in self.domains.values() {
            for own in std::iter::once(&rules.own).chain(rules.accounts.values()) {
                found.insert((own.uid, own.gid), (rules.name.as_str(), *own));
            }
        }
        found.into_values()
    }

    /// True if users other than the server's read the mail: they need search permission on the directories above.
    pub fn are_for_others(&self) -> bool {
        !self.domains.is_empty()
    }

    /// True if mail belongs to other users than the server's.
    pub fn give_away(&self) -> bool {
        self.all().any(|(_, own)| own.uid.or(own.gid).is_some())
    }

    /// Checks that a server with these rights can set all owners.
    ///
    /// # Errors
    /// The domain, and the user or group that mail cannot be given to.
    pub fn check(&self, rights: &Rights) -> Result<(), OwnerRightsMissing> {
        for (domain, own) in self.all() {
            let to = match (own.uid, own.gid) {
                _ if rights.all => continue,
                (Some(uid), _) if uid != rights.uid => format!("uid {uid}"),
                (_, Some(gid)) if !rights.groups.contains(&gid) => format!("gid {gid}"),
                _ => continue,
            };
            return Err(OwnerRightsMissing { domain: domain.to_owned(), to });
        }
        Ok(())
    }

    /// Directories that keep an owner from its mail, one for each owner.
    pub fn barred(&self, mail: &Path) -> Vec<String> {
        let Ok(mail) = std::path::absolute(mail) else { return Vec::new() };
        let bars = |own: Ownership| {
            let uid = own.uid?;
            let gid = own.gid;
            mail.ancestors().filter(|path| !may_search(path, uid, gid)).last().map(|path| (uid, path.to_owned()))
        };
        let found = self.all().filter_map(|(_, own)| bars(own));
        let said = |(uid, path): (u32, std::path::PathBuf)| {
            format!(
                "uid {uid} owns mailboxes below {0}, but may not pass through it: run chmod o+x {0}",
                path.display()
            )
        };
        found.map(said).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl DomainRules {
    /// `None` if neither is set.
    fn new(domain: &Domain) -> Result<Option<Self>, Problem> {
        let base = ownership(Ownership::default(), domain.owner.as_deref(), domain.mode.as_deref())
            .map_err(|(key, message)| Problem::new([key.into()], message))?;
        let mut accounts = HashMap::new();
        let listed: Option<HashSet<_>> = match &domain.users {
            Users::Listed(users) if !domain.accounts.is_empty() => {
                Some(users.iter().map(|user| folded(user)).collect())
            }
            _ => None,
        };
        for (name, account) in &domain.accounts {
            let at = |key: Option<&str>| {
                let key = key.map(Key::from);
                ["accounts".into(), Key::Name(name.clone())].into_iter().chain(key).collect::<Vec<_>>()
            };
            let user = folded(name);
            let is_listed = listed.as_ref().is_none_or(|listed| user == "postmaster" || listed.contains(&user));
            let directory = directory_name(&user).ok().filter(|_| is_listed);
            let Some(directory) = directory else {
                return Err(Problem::new(at(None), format!("there is no user `{name}` in this domain")));
            };
            let own = ownership(base, account.owner.as_deref(), account.mode.as_deref())
                .map_err(|(key, message)| Problem::new(at(Some(key)), message))?;
            if accounts.insert(directory, own).is_some() {
                return Err(Problem::new(at(None), format!("the account `{name}` is listed twice")));
            }
        }
        let says_nothing = accounts.is_empty() && base == Ownership::default();
        Ok((!says_nothing).then(|| Self { name: domain.name.clone(), own: base, accounts }))
    }
}

/// Applies `owner` and `mode` to `base`.
fn ownership(
    base: Ownership,
    owner_key: Option<&str>,
    mode: Option<&str>,
) -> Result<Ownership, (&'static str, String)> {
    let (uid, gid) = match owner_key {
        Some(text) => owner(text).map_err(|problem| ("owner", problem))?,
        None => (base.uid, base.gid),
    };
    let Some(mode) = mode else { return Ok(Ownership { uid, gid, ..base }) };
    let bits = permission_bits(mode).filter(|bits| bits & OWNERS == OWNERS && bits & EXECUTE == 0);
    let bits = bits.ok_or_else(|| {
        (
            "mode",
            "permission bits of files in octal, at least 0600 and without x: \"0600\", \"0640\", \"0660\"".to_owned(),
        )
    })?;
    Ok(Ownership { uid, gid, ..Ownership::with_mode(bits) })
}

fn may_search(path: &Path, uid: u32, gid: Option<u32>) -> bool {
    // What is missing is made so that they can.
    let Ok(metadata) = std::fs::metadata(path) else { return true };
    let bit = match () {
        () if uid == 0 => return true,
        () if metadata.uid() == uid => 0o100,
        () if gid == Some(metadata.gid()) => 0o010,
        () => 0o001,
    };
    metadata.mode() & bit != 0
}

/// The process lacks the rights to give the mail of a domain to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRightsMissing {
    domain: String,
    to: String,
}

impl std::fmt::Display for OwnerRightsMissing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { domain, to } = self;
        write!(
            f,
            "mail of `{domain}` has another owner, {to}; changing owners needs root, or CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER"
        )
    }
}

/// A process's rights to change owners of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// Its user.
    pub uid: u32,
    /// Groups to which it may give its own files.
    pub groups: Vec<u32>,
    /// True if it may give files to anybody and still access them.
    pub all: bool,
}

impl Rights {
    /// Rights of this process.
    pub fn of_this_process() -> Self {
        let needed = CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
        let all = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
        let groups = getgroups().unwrap_or_default().into_iter().chain([getegid()]);
        Self { uid: geteuid().as_raw(), groups: groups.map(|group| group.as_raw()).collect(), all }
    }

    /// Rights of a user.
    pub fn of(user: &UserIdentity) -> Self {
        Self { uid: user.uid, groups: user.groups.clone(), all: user.uid == 0 }
    }
}

/// The server needs to read and write the files that it makes.
const OWNERS: u32 = 0o600;
const EXECUTE: u32 = 0o111;
const SEARCH_FOR_ALL: u32 = 0o011;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn rules(domain: &str) -> Result<OwnerRules, Problem> {
        let text = format!("host_name = \"mx.example\"\n[[domain]]\nname = \"example.org\"\n{domain}");
        OwnerRules::new(&toml::from_str::<Config>(&text).expect(&text).domains)
    }

    #[test]
    fn a_mailbox_is_its_accounts_then_its_domains_then_the_servers() {
        let rules = rules(
            "users = [\"ann\", \"Bob\", \"carl\"]\nowner = \"5000:5001\"\nmode = \"0640\"\n\
             [domain.accounts.ann]\nowner = \"1000:1001\"\n[domain.accounts.bob]\nmode = \"0600\"\n",
        )
        .unwrap();
        for (path, uid, gid, file_mode, dir_mode) in [
            ("example.org", 5000, 5001, 0o640, 0o751),
            ("example.org/ann", 1000, 1001, 0o640, 0o750),
            ("example.org/ann/Maildir", 1000, 1001, 0o640, 0o750),
            ("example.org/bob/Maildir/.Sent", 5000, 5001, 0o600, 0o700),
            ("example.org/carl/Maildir", 5000, 5001, 0o640, 0o750),
        ] {
            let expected = Ownership { uid: Some(uid), gid: Some(gid), file_mode, dir_mode };
            assert_eq!(rules.ownership(path), expected, "{path}");
        }
        assert_eq!(rules.ownership("example.net/ann/Maildir"), Ownership::default());
    }

    #[test]
    fn who_gave_up_root_cannot_give_mail_away() {
        let rights = |uid, groups: &[u32], all| Rights { uid, groups: groups.to_vec(), all };
        let check = |owner: &str, rights: &Rights| {
            let rules = rules(&format!("users = [\"ann\"]\nowner = \"{owner}\"\n")).unwrap();
            rules.check(rights).err().map(|why| why.to_string())
        };
        let server = rights(5000, &[5000, 12], false);
        assert_eq!(check("5000:12", &server), None);
        assert_eq!(check(":12", &server), None);
        assert_eq!(check("1000:12", &rights(0, &[0], true)), None);
        let said = "mail of `example.org` has another owner, uid 1000; changing owners needs root, or CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER";
        assert_eq!(check("1000:12", &server).as_deref(), Some(said));
        assert!(check(":13", &server).is_some_and(|said| said.contains("gid 13")));
    }

    #[test]
    fn what_makes_no_sense_is_pointed_at() {
        let problem = |domain: &str| {
            let problem = rules(domain).unwrap_err();
            let keys = problem.at.iter().map(|key| match key {
                Key::Name(name) => name.clone(),
                Key::Index(index) => index.to_string(),
            });
            (keys.collect::<Vec<_>>().join("."), problem.message)
        };
        for (domain, at, message) in [
            ("owner = \"nobody-here\"", "domain.0.owner", "there is no user `nobody-here`"),
            ("owner = \"4711\"", "domain.0.owner", "write \"4711:GROUP\""),
            ("owner = \"0:nothing-here\"", "domain.0.owner", "there is no group `nothing-here`"),
            ("owner = \"\"", "domain.0.owner", "\"user\", \"user:group\" or \":group\""),
            ("mode = \"0440\"", "domain.0.mode", "at least 0600"),
            ("mode = \"0755\"", "domain.0.mode", "without x"),
            ("[domain.accounts.ann]\nmode = \"0640\"", "domain.0.accounts.ann", "there is no user `ann`"),
            ("users = \"any\"\n[domain.accounts.ann]\nmode = \"x\"", "domain.0.accounts.ann.mode", "in octal"),
        ] {
            let (found, said) = problem(domain);
            assert_eq!(found, at, "{domain}");
            assert!(said.contains(message), "{domain}: {said}");
        }
    }

    #[test]
    fn a_directory_that_an_owner_cannot_get_through_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        let chmod = |bits| std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(bits)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let rules = rules("owner = \"4711:4712\"\n").unwrap();
        chmod(0o700);
        let said = rules.barred(&closed.join("mail"));
        assert!(said.len() == 1 && said[0].contains("4711") && said[0].contains("closed"), "{said:?}");
        chmod(0o711);
        assert_eq!(rules.barred(&closed.join("mail")), Vec::<String>::new());
    }
}
