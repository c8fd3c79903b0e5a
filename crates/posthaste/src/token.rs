//! `posthaste token`: who may ask by HTTP.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use posthaste_admin::{Scope, Secret, Token, TokenFile};
use serde_json::json;

use crate::config_arg::ConfigArg;
use crate::spool_access::become_owner;
use crate::terminal::{print, print_json};

type AnyError = Box<dyn std::error::Error>;

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Make a token for HTTP and show its secret, once
    Add(AddArgs),
    /// List the tokens, without their secrets
    List {
        #[command(flatten)]
        config: ConfigArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a token; a running server refuses it from then on
    Remove {
        #[command(flatten)]
        config: ConfigArg,
        /// Its name
        name: String,
    },
}

#[derive(Args)]
pub struct AddArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// A name for it, for lists and the log
    name: String,
    /// Scopes: inject, queue:read, queue:write, route, suppression, events:read, mail:read, accounts, server:read, metrics; several with commas between
    #[arg(long, value_name = "SCOPES", required = true, value_delimiter = ',')]
    scope: Vec<Scope>,
    /// It ends after this time, such as 12h; default: never
    #[arg(long = "for", value_name = "TIME", value_parser = end_after)]
    time: Option<Duration>,
    /// Write the secret into this new file, which only its owner can read, instead of to the terminal
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl TokenCommand {
    /// Exit status 1: there is no token to list.
    pub fn run(self) -> Result<ExitCode, AnyError> {
        match self {
            Self::Add(args) => args.run()?,
            Self::List { config, json } => return list(&config, json),
            Self::Remove { config, name } => file(&config)?.remove(&name)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl AddArgs {
    fn run(self) -> Result<(), AnyError> {
        if self.output.is_none() && !io::stdout().is_terminal() {
            return Err("a secret is shown on a terminal only; --output FILE writes it into a file".into());
        }
        let until = self.time.map(|time| now().saturating_add(time.as_secs()));
        let secret = Secret::random();
        let token = Token::new(&self.name, &secret, self.scope.iter().copied().collect::<BTreeSet<_>>(), until)?;
        let Some(path) = &self.output else {
            file(&self.config)?.add(token)?;
            return Ok(print(&format!("{}\n", secret.reveal()))?);
        };
        // First: a token whose secret nobody has is of no use. As the user who asks, who is to read it.
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(at)?;
        let made = writeln!(out, "{}", secret.reveal()).and_then(|()| out.sync_all()).map_err(|error| at(error).into());
        let made = made.and_then(|()| Ok(file(&self.config)?.add(token)?));
        made.inspect_err(|_: &AnyError| _ = std::fs::remove_file(path))
    }
}

/// A time after which a token ends: one that has ended already opens nothing.
pub fn end_after(text: &str) -> Result<Duration, String> {
    match posthaste_units::duration(text).map_err(|error| error.to_string())? {
        time if time < Duration::from_secs(1) => Err(format!("`{text}` is no time for a token: at least 1s")),
        time => Ok(time),
    }
}

fn list(config: &ConfigArg, as_json: bool) -> Result<ExitCode, AnyError> {
    let tokens = file(config)?.read()?;
    let status = ExitCode::from(u8::from(tokens.is_empty()));
    if as_json {
        let token = |token: &Token| {
            let scopes: Vec<&str> = token.scopes().iter().map(|scope| scope.name()).collect();
            json!({ "name": token.name(), "scopes": scopes, "until": token.until() })
        };
        let tokens: Vec<_> = tokens.iter().map(token).collect();
        print_json(&format!("{:#}\n", json!(tokens)))?;
        return Ok(status);
    }
    if tokens.is_empty() {
        print("there are no tokens\n")?;
    }
    let width = tokens.iter().map(|token| token.name().len()).max().unwrap_or_default();
    let line = |token: &Token| {
        let scopes: Vec<&str> = token.scopes().iter().map(|scope| scope.name()).collect();
        format!("{:width$}  {}  {}\n", token.name(), scopes.join(","), end(token.until()))
    };
    print(&tokens.iter().map(line).collect::<String>())?;
    Ok(status)
}

fn end(until: Option<u64>) -> String {
    let Some(until) = until else { return "no end".to_owned() };
    let at = i64::try_from(until).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    let at = at.map_or("the far future".to_owned(), |at| at.to_string());
    if until <= now() { format!("ended {at}") } else { format!("until {at}") }
}

/// The file of the server's tokens. Root becomes the server's user: the server has to read it.
fn file(config: &ConfigArg) -> Result<TokenFile, AnyError> {
    let data = config.load()?.config.storage.data;
    if !data.is_dir() {
        let data = data.display();
        return Err(format!("{data}: there is no such directory; the server's first start makes it").into());
    }
    become_owner(&data)?;
    Ok(TokenFile::in_directory(&data))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
