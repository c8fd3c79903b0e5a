//! Users and groups of /etc/passwd and /etc/group; those of other directory services can be given as numbers.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// "No change" for `setuid(2)`, `setgid(2)` and `chown(2)`.
const UNCHANGED: u32 = u32::MAX;

/// A user that a process can switch to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserIdentity {
    /// The name, as given.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The groups that the user is a member of, `gid` among them.
    pub groups: Vec<u32>,
}

impl UserIdentity {
    /// A user by name or number, with its own group or another.
    ///
    /// # Errors
    /// The wrong key, `user` or `group`, and the mistake.
    pub fn of(user: &str, group_key: Option<&str>) -> Result<Self, (&'static str, String)> {
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
        Self::among(&passwd, &groups, user, group_key)
    }

    fn among(passwd: &str, groups: &str, user: &str, group_key: Option<&str>) -> Result<Self, (&'static str, String)> {
        let number: Option<u32> = user.parse().ok();
        // name:password:uid:gid:…
        let known = passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let uid = fields.get(2)?.parse().ok()?;
            let gid = fields.get(3)?.parse().ok()?;
            (fields[0] == user || number == Some(uid)).then(|| (fields[0].to_owned(), uid, gid))
        });
        let gid =
            group_key.map(|group| group_among(groups, group).map_err(|problem| ("group", problem))).transpose()?;
        let (uid, gid) = match (&known, number, gid) {
            (Some((_, uid, own)), _, gid) => (*uid, gid.unwrap_or(*own)),
            (None, Some(number), Some(gid)) => (number, gid),
            (None, Some(_), None) => {
                return Err(("user", format!("there is no user {user} in /etc/passwd: set `group` as well")));
            }
            (None, None, _) => {
                let make = "make it with `useradd --system`, or give its number";
                return Err(("user", format!("there is no user `{user}` in /etc/passwd; {make}")));
            }
        };
        if uid == UNCHANGED {
            return Err(("user", format!("{UNCHANGED} cannot be a user: the kernel reserves it")));
        }
        let mut member_of = vec![gid];
        if let Some((name, ..)) = &known {
            member_of.extend(groups.lines().filter_map(|line| {
                // name:password:gid:member,member
                let fields: Vec<&str> = line.split(':').collect();
                fields.get(3)?.split(',').any(|member| member == name).then(|| fields[2].parse::<u32>().ok())?
            }));
        }
        member_of.sort_unstable();
        member_of.dedup();
        Ok(Self { name: user.to_owned(), uid, gid, groups: member_of })
    }

    /// True if owner and permission bits let this user write the file, and also enter it if it is a directory.
    pub fn may_write(&self, metadata: &Metadata) -> bool {
        let needed = if metadata.is_dir() { 0o3 } else { 0o2 };
        let shift = match metadata {
            _ if metadata.uid() == self.uid => 6,
            _ if metadata.gid() == self.gid || self.groups.contains(&metadata.gid()) => 3,
            _ => 0,
        };
        metadata.mode() >> shift & needed == needed
    }
}

/// User and group of `user`, `user:group` or `:group`; without a group, the user's own.
///
/// # Errors
/// The name of the user or group that does not exist.
pub fn owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let (user, group_key) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    match (user, group_key) {
        ("", None | Some("")) | (_, Some("")) => {
            Err("an owner is \"user\", \"user:group\" or \":group\", by name or number".to_owned())
        }
        ("", Some(name)) => Ok((None, Some(group(name)?))),
        _ => match UserIdentity::of(user, group_key) {
            Ok(identity) => Ok((Some(identity.uid), Some(identity.gid))),
            Err(_) if group_key.is_none() && user.parse::<u32>().is_ok() => {
                Err(format!("there is no user {user} in /etc/passwd: write \"{user}:GROUP\""))
            }
            Err((_, problem)) => Err(problem),
        },
    }
}

/// The bits of `text`, in octal.
pub fn permission_bits(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777)
}

/// The number of a group.
///
/// # Errors
/// No such group.
pub fn group(group: &str) -> Result<u32, String> {
    group_among(&std::fs::read_to_string("/etc/group").unwrap_or_default(), group)
}

fn group_among(groups: &str, group: &str) -> Result<u32, String> {
    match group.parse() {
        Ok(UNCHANGED) => return Err(format!("{UNCHANGED} cannot be a group: the kernel reserves it")),
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    let found = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    });
    found.ok_or_else(|| format!("there is no group `{group}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nmail:x:8:12:mail:/var/mail:/bin/false\n";
    const GROUPS: &str = "root:x:0:\nmail:x:12:\nspool:x:40:ann,mail\nother:x:41:ann\n";

    #[test]
    fn the_number_that_changes_nothing_is_nobody() {
        let number = UNCHANGED.to_string();
        assert_eq!(UserIdentity::among(PASSWD, GROUPS, &number, Some("mail")).unwrap_err().0, "user");
        assert_eq!(UserIdentity::among(PASSWD, GROUPS, "mail", Some(&number)).unwrap_err().0, "group");
    }

    #[test]
    fn a_user_brings_groups_along() {
        let of = |user: &str, group: Option<&str>| {
            UserIdentity::among(PASSWD, GROUPS, user, group).map(|found| (found.uid, found.gid, found.groups))
        };
        assert_eq!(of("mail", None), Ok((8, 12, vec![12, 40])));
        assert_eq!(of("8", None), Ok((8, 12, vec![12, 40])));
        assert_eq!(of("mail", Some("other")), Ok((8, 41, vec![40, 41])));
        assert_eq!(of("4711", Some("4712")), Ok((4711, 4712, vec![4712])));
        assert_eq!(of("4711", None).unwrap_err().0, "user");
        assert_eq!(of("nobody-here", Some("mail")).unwrap_err().0, "user");
        assert_eq!(of("mail", Some("nothing")).unwrap_err(), ("group", "there is no group `nothing`".to_owned()));
    }
}
