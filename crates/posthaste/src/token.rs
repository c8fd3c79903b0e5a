//! `posthaste token`: tokens for requests by HTTP.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use posthaste_admin::{Scope, Secret, Token, TokenBounds, TokenFile};
use serde_json::json;

use crate::config_arg::ConfigArg;
use crate::new_file::new_file;
use crate::spool_access::become_owner;
use crate::terminal::{complain, print, print_json};

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
    /// Scopes: inject, queue:read, queue:write, route, suppression, events:read, mail:read, accounts, server:read, server:drain, metrics; several with commas between
    #[arg(long, value_name = "SCOPES", required = true, value_delimiter = ',')]
    scope: Vec<Scope>,
    /// Only this tenant's mail exists for it
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Mail that it brings is from these domains, or below those with a dot in front; several with commas between
    #[arg(long, value_name = "DOMAINS", value_delimiter = ',')]
    sender_domains: Vec<String>,
    /// Clients that may show it: addresses and networks, several with commas between
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    networks: Vec<String>,
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
            Self::Remove { config, name } => {
                file(&config)?.remove(&name)?;
                complain(&format!("token {name} is removed"));
            }
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
        let bounds = TokenBounds::parse(self.tenant.as_deref(), &self.sender_domains, &self.networks)?;
        let secret = Secret::random();
        let token = Token::new(&self.name, &secret, self.scope.iter().copied().collect::<BTreeSet<_>>(), until)?;
        let token = token.within(bounds)?;
        if let Some(tenant) = &self.tenant
            && !self.config.load()?.config.tenants().contains(&**tenant)
        {
            complain(&format!("warning: the configuration names no tenant {tenant}"));
        }
        let Some(path) = &self.output else {
            file(&self.config)?.add(token)?;
            return Ok(print(&format!("{}\n", secret.reveal()))?);
        };
        // First: a token whose secret nobody has is of no use. As the user who asks, who is to read it.
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let mut out = new_file(path).map_err(at)?;
        let made = writeln!(out, "{}", secret.reveal()).and_then(|()| out.sync_all()).map_err(|error| at(error).into());
        let made = made.and_then(|()| Ok(file(&self.config)?.add(token)?));
        made.inspect_err(|_: &AnyError| _ = std::fs::remove_file(path))?;
        complain(&format!("token {}: its secret is in {}", self.name, path.display()));
        Ok(())
    }
}

/// Parses the lifetime of a token, at least a second.
pub fn end_after(text: &str) -> Result<Duration, String> {
    match posthaste_units::duration(text).map_err(|error| error.to_string())? {
        time if time < Duration::from_secs(1) => Err(format!("`{text}` is not a time for a token: at least 1s")),
        time => Ok(time),
    }
}

fn list(config: &ConfigArg, as_json: bool) -> Result<ExitCode, AnyError> {
    let tokens = file(config)?.read()?;
    let status = ExitCode::from(u8::from(tokens.is_empty()));
    if as_json {
        let token = |token: &Token| {
            let scopes: Vec<&str> = token.scopes().iter().map(|scope| scope.name()).collect();
            let TokenBounds { tenant, sender_domains, networks } = token.bounds();
            let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
            let name = token.name();
            let until = token.until();
            json!({ "name": name, "scopes": scopes, "until": until, "tenant": tenant, "sender_domains": sender_domains, "networks": networks })
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
        let bounds = bounds(token.bounds());
        format!("{:width$}  {}  {}{bounds}\n", token.name(), scopes.join(","), end(token.until()))
    };
    print(&tokens.iter().map(line).collect::<String>())?;
    Ok(status)
}

/// Formats the limits, such as `  of tenant acme  from example.org  at 192.0.2.0/24`.
fn bounds(of: &TokenBounds) -> String {
    let networks: Vec<String> = of.networks.iter().map(ToString::to_string).collect();
    let tenant = of.tenant.as_ref().map(|tenant| format!("  of tenant {tenant}"));
    let list = |word: &str, texts: &[String]| (!texts.is_empty()).then(|| format!("  {word} {}", texts.join(",")));
    [tenant, list("from", &of.sender_domains), list("at", &networks)].into_iter().flatten().collect()
}

fn end(until: Option<u64>) -> String {
    let Some(until) = until else { return "no end".to_owned() };
    let at = i64::try_from(until).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    let at = at.map_or("the far future".to_owned(), |at| at.to_string());
    if until <= now() { format!("ended {at}") } else { format!("until {at}") }
}

/// The file of the server's tokens. Root becomes the server's user first, so that the server can read it.
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
