//! `posthaste account …`: the logins of the file of passwords, and their mail.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_accounts::{ChangeLoginsError, LoginEntry, LoginsFile, hash_password, scram_keys};
use posthaste_config::Config;
use posthaste_control::{MailCommand, Request};
use posthaste_directory::Directory;
use posthaste_units::count;
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::mail_session::MailSession;
use crate::password::read_password;
use crate::queue::{AnyError, answer_or_none, columns};
use crate::terminal::{complain, confirmed, harmless, print, print_json};

#[derive(Subcommand)]
pub enum AccountCommand {
    /// Add a login; the password is read from the terminal or standard input
    Add {
        #[command(flatten)]
        of: OfLogin,
        /// Make keys of SCRAM-SHA-256 as well, for clients that show a password without sending it [default: if another login has them]
        #[arg(long)]
        scram: bool,
        /// From whom it may send beside its own addresses, with commas between: addresses, @ and a domain, or `any`
        #[arg(long, value_name = "LIST")]
        senders: Option<String>,
        /// Tenant on whose account its mail for other hosts is sent
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
    },
    /// Change the password of a login; it is read from the terminal or standard input
    Passwd(OfLogin),
    /// List the logins; exit status 1 if there are none
    List {
        #[command(flatten)]
        config: ConfigArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a login; its mail stays
    Delete {
        #[command(flatten)]
        of: OfLogin,
        /// Delete its mail and folders, too
        #[arg(long)]
        mail: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub struct OfLogin {
    /// The name, such as ann@example.org
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The configuration, and its file of passwords.
struct Logins {
    config: Config,
    directory: Directory,
    path: PathBuf,
}

impl Logins {
    fn of(config: &ConfigArg) -> Result<Self, AnyError> {
        let config = config.load()?.config;
        let Some(path) = config.auth.file().map(Path::to_owned) else {
            return Err(
                "the configuration names no file of passwords: add `[auth]` with `file = \"/etc/posthaste/passwords\"`"
                    .into(),
            );
        };
        Ok(Self { directory: config.directory(), config, path })
    }

    /// Opens the file. A new one belongs to the user that the configuration names, else to the owner of the server's data.
    fn open(&self) -> Result<LoginsFile, ChangeLoginsError> {
        let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let named = self.config.identity().ok().flatten().map(|identity| (identity.uid, identity.gid));
        let of_data = || std::fs::metadata(&self.config.storage.data).ok().map(|data| (data.uid(), data.gid()));
        let owner = if user.0 == 0 { named.or_else(of_data).unwrap_or(user) } else { user };
        LoginsFile::open(&self.path, &self.directory, owner)
    }

    /// Makes a running server reload the file, and prints its messages.
    fn tell_server(&self) -> Result<bool, AnyError> {
        let Some(mut lines) = answer_or_none(&self.config.storage.data, &Request::Reload {})? else { return Ok(false) };
        let last = lines.pop().unwrap_or_default();
        for kept in last["kept"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            complain(&format!("the running server could not read {kept}: its log says why"));
        }
        Ok(true)
    }

    fn entry(&self, file: &LoginsFile, name: &str) -> Option<LoginEntry> {
        let login = self.directory.login_name(name)?;
        file.entries(&self.directory).into_iter().find(|entry| entry.login == login)
    }
}

/// Exit status 1: the login does not exist, or exists already.
pub fn run(command: AccountCommand) -> Result<ExitCode, AnyError> {
    match command {
        AccountCommand::Add { of, scram, senders, tenant } => of.add(scram, senders.as_deref(), tenant.as_deref()),
        AccountCommand::Passwd(of) => of.passwd(),
        AccountCommand::List { config, json } => list(&config, json),
        AccountCommand::Delete { of, mail, yes } => of.delete(mail, yes),
    }
}

impl OfLogin {
    fn add(&self, scram: bool, senders: Option<&str>, tenant: Option<&str>) -> Result<ExitCode, AnyError> {
        let logins = Logins::of(&self.config)?;
        // Before a password is asked for.
        if let Some(entry) = logins.entry(&logins.open()?, &self.name) {
            return told(ChangeLoginsError::Exists(entry.login));
        }
        let mut words = Vec::new();
        for (word, value) in [("senders", senders), ("tenant", tenant)] {
            if let Some(value) = value {
                if value.is_empty() || value.contains(|c: char| c.is_whitespace() || c.is_control()) {
                    return Err(format!("--{word} {value:?}: no blanks").into());
                }
                words.push(format!("{word}={value}"));
            }
        }
        let password = read_password()?;
        // Clients are offered it by all logins, or by none.
        let has_keys = |entry: &LoginEntry| entry.scram;
        if scram || logins.open()?.entries(&logins.directory).iter().any(has_keys) {
            words.push(format!("scram={}", scram_keys(&password)?));
        }
        let mut rest = hash_password(&password)?;
        if !words.is_empty() {
            rest += &format!(":{}", words.join(" "));
        }
        let mut file = logins.open()?;
        let login = match file.add(&self.name, &rest, &logins.directory) {
            Ok(login) => login,
            Err(error) => return told(error),
        };
        file.save()?;
        drop(file);
        let is_told = logins.tell_server()?;
        if logins.directory.maildir_of(&login).is_none() {
            complain(&format!("{login} can log in and send, but has no mailbox here: no [[domain]] has this user"));
        }
        self.say(json!({ "added": login, "reloaded": is_told }), &format!("{login} may log in"), is_told)
    }

    fn passwd(&self) -> Result<ExitCode, AnyError> {
        let logins = Logins::of(&self.config)?;
        if logins.entry(&logins.open()?, &self.name).is_none() {
            return told(ChangeLoginsError::Absent(self.name.clone()));
        }
        let password = read_password()?;
        let hash = hash_password(&password)?;
        let mut file = logins.open()?;
        let keys = || -> Result<String, AnyError> { Ok(scram_keys(&password)?) };
        let login = file.set_password(&self.name, &hash, keys, &logins.directory)?;
        file.save()?;
        drop(file);
        let is_told = logins.tell_server()?;
        self.say(json!({ "changed": login, "reloaded": is_told }), &format!("{login} has a new password"), is_told)
    }

    fn delete(&self, mail: bool, yes: bool) -> Result<ExitCode, AnyError> {
        let logins = Logins::of(&self.config)?;
        let entry = logins.entry(&logins.open()?, &self.name);
        let Some(LoginEntry { login, .. }) = entry.filter(|_| !mail).or_else(|| self.of_mail_alone(&logins, mail))
        else {
            return told(ChangeLoginsError::Absent(self.name.clone()));
        };
        let maildir = logins.directory.maildir_of(&login);
        let path = maildir.as_deref().map(|path| logins.config.storage.mail.join(path).display().to_string());
        let mail = mail && maildir.is_some();
        let of_mail = match &path {
            Some(_) if mail => " with all its mail".to_owned(),
            Some(path) => format!("? Its mail stays in {}", harmless(path)),
            None => String::new(),
        };
        let question =
            format!("Delete {}{of_mail}{}", harmless(&login), if mail || path.is_none() { "?" } else { "." });
        if !yes && !confirmed(&question)? {
            return Err(format!("nothing is deleted without --yes: {}", question.replace('?', ".")).into());
        }
        let mut file = logins.open()?;
        let removed = file.remove(&login, &logins.directory);
        let removed = match removed {
            Err(ChangeLoginsError::Absent(_)) if mail => false,
            removed => removed.map(|_| true)?,
        };
        if removed {
            file.save()?;
        }
        drop(file);
        let is_told = logins.tell_server()?;
        let messages = if mail { delete_mail(&logins.config, &login)? } else { 0 };
        if maildir.is_some() {
            complain(&format!("mail for {login} is still accepted: to end that, remove the user from its [[domain]]"));
        }
        let mut text = format!("{login} is deleted");
        if mail {
            text += &format!(", with {}", count(usize::try_from(messages)?, "message"));
        } else if let Some(path) = &path {
            text += &format!("; its mail stays in {}", harmless(path));
        }
        let kept = path.filter(|_| !mail);
        self.say(json!({ "deleted": login, "messages": messages, "mail": kept, "reloaded": is_told }), &text, is_told)
    }

    /// The entry of a login that was deleted before: an interrupted `--mail` may have left its mail.
    fn of_mail_alone(&self, logins: &Logins, mail: bool) -> Option<LoginEntry> {
        let login = logins.directory.login_name(&self.name).filter(|_| mail)?;
        logins.directory.maildir_of(&login)?;
        Some(LoginEntry { login, words: Vec::new(), scram: false })
    }

    fn say(&self, json: Value, text: &str, is_told: bool) -> Result<ExitCode, AnyError> {
        if self.json {
            print_json(&format!("{json}\n"))?
        } else if is_told {
            print(&format!("{text}\n"))?
        } else {
            print(&format!("{text}; no server runs\n"))?
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reports an error of the caller, with exit status 1.
fn told(error: ChangeLoginsError) -> Result<ExitCode, AnyError> {
    match error {
        ChangeLoginsError::Exists(_) | ChangeLoginsError::Absent(_) => {
            complain(&error.to_string());
            Ok(ExitCode::FAILURE)
        }
        error => Err(error.into()),
    }
}

/// Removes all messages and folders; INBOX stays, empty.
fn delete_mail(config: &Config, login: &str) -> Result<u64, AnyError> {
    let mut session = MailSession::begin(config.clone(), login)?;
    let removed = session.mailboxes().and_then(|names| {
        let mut messages = 0;
        // Those below others first.
        for mailbox in names.into_iter().rev() {
            let command = if mailbox == "INBOX" {
                MailCommand::Empty { mailbox }
            } else {
                MailCommand::Delete { mailbox, expect: None }
            };
            messages += u64::from(session.done(&command)?.messages);
        }
        Ok(messages)
    });
    session.end()?;
    removed
}

fn list(config: &ConfigArg, is_json: bool) -> Result<ExitCode, AnyError> {
    let logins = Logins::of(config)?;
    let entries = logins.open()?.entries(&logins.directory);
    let maildir = |entry: &LoginEntry| logins.directory.maildir_of(&entry.login).map(|path| path.to_string());
    if is_json {
        let line = |entry: &LoginEntry| json!({ "login": entry.login, "maildir": maildir(entry), "scram": entry.scram, "words": entry.words });
        print_json(&format!("{}\n", entries.iter().map(line).collect::<Value>()))?;
    } else {
        let row = |entry: &LoginEntry| {
            let scram = if entry.scram { "yes" } else { "" };
            [entry.login.clone(), maildir(entry).unwrap_or_default(), scram.to_owned(), entry.words.join(" ")]
        };
        print(&columns(["login", "maildir", "scram", "words"], entries.iter().map(row), "no logins"))?;
    }
    Ok(ExitCode::from(u8::from(entries.is_empty())))
}
