//! A user's settings of an index: the optional `config.toml` in its directory, beside the tags.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Zoned;
use posthaste_maildir::{KEYWORD_BYTES_MAX, KEYWORDS_MAX, is_keyword};
use posthaste_units::words::{Mistake, Position, plain};
use serde::Deserialize;
use toml::Spanned;

use crate::disk;
use crate::flag_tags::is_flag_tag;
use crate::query::{Query, SavedQueries, parse_with};
use crate::state::Snapshot;
use crate::tags::{TagStore, check_tag};
use posthaste_text::{HEADERS_MAX, HeaderNames, check_header_name};

/// The file's name.
pub const SETTINGS_FILE: &str = "config.toml";

/// All settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchSettings {
    /// Name and addresses of the reader.
    pub user: User,
    /// Tags and rules for messages that are new in a run.
    pub new: NewMail,
    /// Relation of tags and Maildirs.
    pub maildir: MaildirSettings,
    /// Commands to run after an update.
    pub hook: Hooks,
    /// Additional header fields to index, searched as `header:NAME:value`.
    pub headers: HeaderNames,
    path: PathBuf,
}

/// The reader, for replies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct User {
    /// The name in `From`.
    pub name: String,
    /// The reader's own addresses. The first is used in `From` if a message was sent to none of them.
    pub addresses: Vec<String>,
}

/// Tags for new messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewMail {
    /// Tags added to each new message.
    pub tags: BTreeSet<String>,
    /// Tagging rules, applied in this order.
    pub rule: Vec<TagRule>,
}

/// Tags for new messages that match a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRule {
    /// Query that selects the messages.
    pub query: String,
    /// Line of the query in the file, from 1.
    pub line: usize,
    /// Tags to add, before `remove` applies.
    pub add: BTreeSet<String>,
    /// Tags to remove.
    pub remove: BTreeSet<String>,
}

/// Relation of tags and Maildirs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaildirSettings {
    /// True if the tags of [`FLAG_TAGS`](crate::flag_tags::FLAG_TAGS) are the file's flags, as with notmuch's
    /// `maildir.synchronize_flags`.
    pub synchronize_flags: bool,
    /// True if keywords in the file's name are tags, named by the folder's `dovecot-keywords`.
    pub synchronize_keywords: bool,
    /// Tags that become a keyword in folders without a keyword of that name.
    pub new_keywords: BTreeSet<String>,
}

/// Commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hooks {
    /// Run by `sh` after a run that changed something.
    pub after_index: Option<String>,
}

/// An error in the settings.
#[derive(Debug)]
pub struct SettingsError {
    /// The file.
    pub path: PathBuf,
    /// The error's place in the file, unless `why` contains it.
    pub position: Option<Position>,
    /// The mistake, in words.
    pub why: String,
}

impl std::error::Error for SettingsError {}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Mistake { file: &self.path, position: self.position.as_ref(), message: &self.why }.fmt(f)
    }
}

impl SettingsError {
    fn new(path: &Path, why: String) -> Self {
        Self { path: path.to_owned(), position: None, why }
    }

    /// The mistake with its line number, on one line.
    pub(crate) fn in_short(&self) -> String {
        match &self.position {
            Some(at) => format!("line {}: {}", at.line, self.why),
            None => self.why.clone(),
        }
    }
}

/// The file as parsed, with the positions of values that are validated later.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    headers: Vec<Spanned<String>>,
    user: User,
    new: FileNewMail,
    maildir: FileMaildir,
    hook: Hooks,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FileMaildir {
    synchronize_flags: bool,
    synchronize_keywords: bool,
    new_keywords: Vec<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FileNewMail {
    tags: Vec<Spanned<String>>,
    rule: Vec<FileRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    query: Spanned<String>,
    #[serde(default)]
    add: Vec<Spanned<String>>,
    #[serde(default)]
    remove: Vec<Spanned<String>>,
}

/// The section to which a misplaced key belongs.
fn home_of(key: &str) -> Option<String> {
    let table = match key {
        "headers" => return Some("to the top of the file, before the first table".to_owned()),
        "name" | "addresses" => "[user]",
        "tags" | "rule" => "[new]",
        "query" | "add" | "remove" => "[[new.rule]]",
        "synchronize_flags" | "synchronize_keywords" | "new_keywords" => "[maildir]",
        "after_index" => "[hook]",
        _ => return None,
    };
    Some(format!("below {table}"))
}

impl File {
    fn checked(self, text: &str, path: PathBuf) -> Result<SearchSettings, String> {
        let line = |start: usize| text[..start].matches('\n').count() + 1;
        let are_flags = self.maildir.synchronize_flags;
        let tags = |tags: Vec<Spanned<String>>| {
            let checked = tags.into_iter().map(|tag| {
                let line = line(tag.span().start);
                let tag = tag.into_inner();
                check_tag(&tag).map_err(|error| format!("line {line}: {error}"))?;
                if are_flags && is_flag_tag(&tag) {
                    return Err(format!(
                        "line {line}: with synchronize_flags, `{tag}` is a flag of the message's file, which no rule changes; leave it out \
                         (the hook may run `posthaste tag`)"
                    ));
                }
                Ok(tag)
            });
            checked.collect::<Result<BTreeSet<String>, String>>()
        };
        let rule = |rule: FileRule| {
            let line = line(rule.query.span().start);
            if rule.add.is_empty() && rule.remove.is_empty() {
                return Err(format!("line {line}: a rule needs `add = [...]` or `remove = [...]`"));
            }
            Ok(TagRule { line, query: rule.query.into_inner(), add: tags(rule.add)?, remove: tags(rule.remove)? })
        };
        let rules = self.new.rule.into_iter().map(rule).collect::<Result<_, String>>()?;
        let new = NewMail { tags: tags(self.new.tags)?, rule: rules };
        let headers = headers(self.headers, line)?;
        let maildir = self.maildir.checked(line)?;
        Ok(SearchSettings { headers, user: self.user, new, maildir, hook: self.hook, path })
    }
}

impl FileMaildir {
    fn checked(self, line: impl Fn(usize) -> usize) -> Result<MaildirSettings, String> {
        let mut new_keywords = BTreeSet::new();
        for name in self.new_keywords {
            let line = line(name.span().start);
            let name = name.into_inner();
            if !self.synchronize_keywords {
                return Err(format!("line {line}: new_keywords needs `synchronize_keywords = true`"));
            }
            if check_tag(&name).is_err() || !is_keyword(&name) {
                return Err(format!(
                    "line {line}: `{name}` cannot be a keyword: at most {KEYWORD_BYTES_MAX} ASCII letters, digits and other characters, but no blank and none of (){{%*\"\\]"
                ));
            }
            if is_flag_tag(&name) {
                return Err(format!("line {line}: `{name}` is a flag, not a keyword: use synchronize_flags"));
            }
            new_keywords.insert(name);
        }
        if new_keywords.len() > KEYWORDS_MAX {
            return Err(format!("new_keywords: a folder can have {KEYWORDS_MAX} keywords"));
        }
        let Self { synchronize_flags, synchronize_keywords, .. } = self;
        Ok(MaildirSettings { synchronize_flags, synchronize_keywords, new_keywords })
    }
}

fn headers(names: Vec<Spanned<String>>, line: impl Fn(usize) -> usize) -> Result<HeaderNames, String> {
    for name in &names {
        check_header_name(name.get_ref()).map_err(|why| format!("line {}: {why}", line(name.span().start)))?;
    }
    if names.len() > HEADERS_MAX {
        return Err(format!("line {}: there may be {HEADERS_MAX} headers", line(names[HEADERS_MAX].span().start)));
    }
    Ok(HeaderNames::of(names.into_iter().map(Spanned::into_inner).collect()))
}

/// Adds names to `headers` in the settings of the index in `dir`. The rest of the file stays as the user wrote it.
///
/// # Errors
/// [`SettingsError`]: the file cannot be read or written, or a name is no header's.
pub fn add_headers(dir: &Path, names: &[String]) -> Result<(), SettingsError> {
    let settings = SearchSettings::load(dir)?;
    let fail = |why: String| SettingsError::new(&settings.path, why);
    names.iter().try_for_each(|name| check_header_name(name)).map_err(fail)?;
    let new: Vec<&String> = names.iter().filter(|name| settings.headers.known_as(name).is_none()).collect();
    if new.is_empty() {
        return Ok(());
    }
    let written = (|| {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let text = match std::fs::read_to_string(&settings.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let quoted = new.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        disk::replace(&settings.path, with_headers(&text, &quoted).as_bytes())?;
        disk::sync_dir(dir)
    })();
    written.map_err(|error: io::Error| fail(error.to_string()))
}

/// Inserts a list of `names` into `headers` in the file's text.
fn with_headers(text: &str, names: &str) -> String {
    #[derive(Deserialize)]
    struct Headers {
        headers: Option<Spanned<Vec<Spanned<String>>>>,
    }
    match toml::from_str::<Headers>(text).ok().and_then(|file| file.headers) {
        // Keys after the first table would belong to that table.
        None => format!("headers = [{names}]\n{text}"),
        Some(list) => match list.get_ref().last() {
            Some(last) => {
                let (before, behind) = text.split_at(last.span().end);
                format!("{before}, {names}{behind}")
            }
            None => {
                let (before, behind) = text.split_at(list.span().start + 1);
                format!("{before}{names}{behind}")
            }
        },
    }
}

impl SearchSettings {
    /// Loads the settings of the index in `dir`; defaults if there is no file.
    ///
    /// # Errors
    /// [`SettingsError`]: the file cannot be read, or contains a mistake.
    pub fn load(dir: &Path) -> Result<Self, SettingsError> {
        let path = dir.join(SETTINGS_FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { path, ..Self::default() }),
            read => read.map_err(|error| SettingsError::new(&path, error.to_string()))?,
        };
        let file: File = toml::from_str(&text).map_err(|error| SettingsError {
            path: path.clone(),
            position: error.span().map(|span| Position::of(&text, span)),
            why: plain(error.message(), home_of),
        })?;
        file.checked(&text, path.clone()).map_err(|why| SettingsError::new(&path, why))
    }

    /// Like [`load`](Self::load), but also parses the rules' queries, to report mistakes before any work begins.
    ///
    /// # Errors
    /// Like [`load`](Self::load).
    pub fn check(dir: &Path) -> Result<Self, SettingsError> {
        let settings = Self::load(dir)?;
        match Snapshot::open(dir) {
            Ok(snapshot) => settings.queries(&snapshot.directory().queries).map(drop)?,
            // If an index must be rebuilt beside tags that were kept, the saved queries are not known so far.
            Err(_) if TagStore::exists(dir) => {}
            Err(_) => settings.queries(&SavedQueries::new()).map(drop)?,
        }
        Ok(settings)
    }

    /// The rules' queries, in their order.
    ///
    /// # Errors
    /// [`SettingsError`]: one is malformed.
    pub(crate) fn queries(&self, saved: &SavedQueries) -> Result<Vec<Query>, SettingsError> {
        let now = Zoned::now();
        let query = |rule: &TagRule| {
            let fail = |why: String| SettingsError::new(&self.path, format!("line {}: {why}", rule.line));
            let query = parse_with(&rule.query, &now, saved).map_err(|error| fail(error.show(&rule.query)))?;
            if let Some(name) = query.headers().iter().find(|name| self.headers.known_as(name).is_none()) {
                return Err(fail(format!(
                    "the header {name} is not indexed; add it to `headers = [...]` at the top of the file"
                )));
            }
            Ok(query)
        };
        self.new.rule.iter().map(query).collect()
    }

    /// Makes an error about the settings.
    pub(crate) fn error(&self, why: String) -> SettingsError {
        SettingsError::new(&self.path, why)
    }

    /// True if the settings tag new messages.
    pub fn has_rules(&self) -> bool {
        !self.new.tags.is_empty() || !self.new.rule.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<SearchSettings, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SETTINGS_FILE), text).unwrap();
        SearchSettings::load(dir.path()).map_err(|error| error.why)
    }

    #[test]
    fn settings_are_read_and_mistakes_are_pointed_at() {
        let all = load(
            "[user]\nname = \"Ann\"\naddresses = [\"ann@example.org\"]\n[new]\ntags = [\"inbox\"]\n[[new.rule]]\nquery = \"list:*\"\n\
             add = [\"lists\"]\nremove = [\"inbox\"]\n[maildir]\nsynchronize_flags = true\n[hook]\nafter_index = \"true\"\n",
        )
        .unwrap();
        assert_eq!(all.new.rule[0].add, BTreeSet::from(["lists".to_owned()]));
        assert_eq!(all.new.rule[0].line, 7);
        assert!(all.has_rules() && all.maildir.synchronize_flags && all.user.name == "Ann");
        assert!(!load("").unwrap().has_rules());
        assert!(!SearchSettings::check(Path::new("/nowhere")).unwrap().has_rules());
        assert!(load("[new]\ntags = [\"unread\"]\n").unwrap().new.tags.contains("unread"));
        let check = |text: &str, line: &str, why: &str| {
            let error = load(text).unwrap_err();
            assert!(error.starts_with(line) && error.contains(why), "{error}");
        };
        let flags = "[maildir]\nsynchronize_flags = true\n[new]\ntags = [\"inbox\",\n\"unread\"]\n";
        check(flags, "line 5: ", "is a flag of the message's file");
        check("[new]\ntags = [\"-x\"]\n", "line 2: ", "cannot be a tag");
        let keywords = |name: &str| format!("[maildir]\nsynchronize_keywords = true\nnew_keywords = [\"{name}\"]\n");
        assert_eq!(load(&keywords("$Work")).unwrap().maildir.new_keywords, BTreeSet::from(["$Work".to_owned()]));
        check(&keywords("two words"), "line 3: ", "cannot be a keyword");
        check(&keywords("unread"), "line 3: ", "is a flag, not a keyword");
        check("[maildir]\nnew_keywords = [\"x\"]\n", "line 2: ", "needs `synchronize_keywords = true`");
        check("[[new.rule]]\n\nquery = \"from:ann\"\n", "line 3: ", "needs `add");
    }

    #[test]
    fn what_is_no_setting_is_told_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(SETTINGS_FILE);
        for (text, told) in [
            ("[new]\ntag = []\n", ":2:1: there is no key `tag` here; did you mean `tags`?\n 2 | tag = []\n   | ^^^"),
            ("[new]\ntags = \"x\"\n", ":2:8: this has to be a list in brackets, such as [\"a\", \"b\"]; it is \"x\"\n"),
            ("[[new.rule]]\nadd = [\"x\"]\n", ":1:1: `query` is missing"),
            ("[hook]\nheaders = []\n", ":2:1: there is no key `headers` here; it belongs to the top of the file"),
            ("[maildir]\nsynchronize_flags = \"yes\"\n", "true or false, without quotes"),
            ("headers = [\"X-A:\"]\n", "line 1: `X-A:` is not a header name"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = SearchSettings::load(dir.path()).unwrap_err().to_string();
            let error = error.strip_prefix(&file.display().to_string()).unwrap();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_query_that_cannot_be_read_is_pointed_at() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            "[[new.rule]]\nquery = \"from:ann\"\nadd = [\"a\"]\n[[new.rule]]\nquery = \"date:x\"\nadd = [\"a\"]\n";
        std::fs::write(dir.path().join(SETTINGS_FILE), text).unwrap();
        assert_eq!(SearchSettings::load(dir.path()).unwrap().new.rule.len(), 2);
        let error = SearchSettings::check(dir.path()).unwrap_err().to_string();
        assert!(error.contains("config.toml: line 5: ") && error.contains("`x` is not a date"), "{error}");
    }
}
