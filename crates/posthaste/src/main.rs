//! The command line. All logic is in the crates.
#![forbid(unsafe_code)]
// Many comments here are help texts, in which brackets are no links.
#![allow(rustdoc::broken_intra_doc_links)]
#![deny(clippy::print_stdout)]

mod account;
mod acme;
mod addresses;
mod alone;
mod cfind;
mod change;
mod chosen;
mod cluster;
mod columns;
mod complete;
mod completions;
mod config_arg;
mod count;
mod dkim;
mod dns;
mod dns_check;
mod doctor;
mod doctor_cluster;
mod exclude;
mod export;
mod extract;
mod find;
mod find_lines;
mod find_output;
mod foreign;
mod help;
mod import;
mod index;
mod index_update;
mod index_watch;
mod info;
mod layout;
mod load;
mod logins;
mod mail_json;
mod mail_session;
mod mailbox;
mod new;
mod new_file;
mod notmuch_form;
mod options_first;
mod page;
mod pager;
mod password;
mod progress;
mod query;
mod queue;
mod reply;
mod report;
mod route;
mod search;
mod search_common;
mod sendmail;
mod sendmail_options;
mod setup;
mod show;
mod sink;
mod spool;
mod spool_access;
mod spool_drop;
mod spool_export;
mod spool_export_dir;
mod spool_export_files;
mod spool_give_up;
mod spool_import;
mod spool_inspect;
mod spool_manifest;
mod spool_waiting;
mod suppression;
mod tag;
mod terminal;
mod threads;
mod token;
mod trace;
mod trace_live;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use posthaste_config::LogFormat;
// The only import of the server: commands call its functions by these names, and know nothing else of it.
use posthaste_server::{ServeError, ServeFailure, ServeOptions, open_closed, open_routes, set_copy_aside};

use crate::alone::Alone;
use crate::config_arg::ConfigArg;
use crate::options_first::{long_options_first, options_first};
use crate::terminal::{complain, print, without_error_numbers};

/// A mail engine: receives mail, and answers 250 only when it is on stable storage.
#[derive(Parser)]
#[command(name = "posthaste", version, propagate_version = true)]
struct Cli {
    /// Commands that read a configuration have the same option themselves
    #[arg(long, value_name = "FILE", global = true, hide = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Receive mail and deliver it into Maildirs until SIGTERM or Ctrl-C; SIGHUP reloads the configuration
    Serve(Serve),
    /// Test server: discard, store or refuse mail by rule
    Sink(Box<sink::SinkArgs>),
    /// Check this machine's settings and disk before you serve mail or measure; exit status 1 for a serious problem
    Doctor(doctor::DoctorArgs),
    /// Check or print the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show where mail for an address goes, step by step; exit status 1 if it is refused
    Route(route::RouteArgs),
    /// Read a password from the terminal or standard input and print its hash, for the file of passwords
    Password(password::PasswordArgs),
    /// Add, change, list and delete logins in the file of passwords
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Show who may log in and has, and who guesses wrong passwords, in a running server; exit status 1 if there is nobody
    Logins(logins::LoginsArgs),
    /// Make, list and remove tokens for HTTP: the API and the page
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Make, list and change the keys that sign mail (DKIM)
    #[command(subcommand)]
    Dkim(dkim::DkimCommand),
    /// Print and check the DNS records of a domain
    #[command(subcommand)]
    Dns(dns::DnsCommand),
    /// Set up this machine for the mail of a domain, with keys, a first login and the DNS records to add; a second run changes nothing
    Setup(Box<setup::SetupArgs>),
    /// Print a link that opens the page of a running server in a browser, once, within 10 minutes
    Page(page::PageArgs),
    /// Get certificates of a running server from its authority
    #[command(subcommand)]
    Acme(acme::AcmeCommand),
    /// Index Maildirs for `find`: everything the first time, then only changes
    Index(index::Index),
    /// Find messages in the index
    Find(find::Find),
    /// Find conversations in the index
    Threads(threads::Threads),
    /// Show a message
    View(view::View),
    /// List or save a message's attachments
    Extract(extract::Extract),
    /// List the addresses in messages and how often they occur
    #[command(alias = "address")]
    Addresses(addresses::Addresses),
    /// Add, remove, list, dump and restore tags
    Tag(tag::Tag),
    /// Save, list and delete queries for use as `query:NAME`
    Query(query::QueryArgs),
    /// Find conversations, and print them as `notmuch search` does
    Search(search::Search),
    /// Print messages, whole threads or a part, as `notmuch show` does
    Show(show::Show),
    /// Print a reply template, as `notmuch reply` does
    Reply(reply::Reply),
    /// Count messages, as `notmuch count` does
    Count(count::Count),
    /// Bring the search index up to date, as `notmuch new` does
    New(new::New),
    /// List addresses that match a pattern, as `mu cfind` does
    Cfind(cfind::Cfind),
    /// Show what is in the search index
    Info(info::Info),
    /// Print a shell completion script
    Completions(completions::Completions),
    /// Print what the last word of a line may become; for the scripts that `completions` prints
    #[command(hide = true)]
    Complete(complete::Complete),
    /// Send a message from standard input, as the sendmail of other mail servers does; it waits for the server if that is down
    Sendmail(sendmail::Sendmail),
    /// Show and change the queue of mail for other hosts, in a running server
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Show what happened to a message, from the event log, or sessions of a running server; exit status 1 if nothing fits
    Trace(trace::Trace),
    /// Show and change the list of addresses to which nothing is sent, in a running server
    #[command(subcommand)]
    Suppression(suppression::SuppressionCommand),
    /// Show and move the shards of a node of a cluster, in a running server
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Show the mailboxes of an account: messages, UIDs, keywords
    #[command(subcommand)]
    Mailbox(mailbox::MailboxCommand),
    /// Import mail of other programs into an account: a Maildir, an mbox file, .eml files; safe to repeat after an interrupt
    Import(import::ImportArgs),
    /// Write an account's mail into a Maildir or an mbox file; safe to repeat after an interrupt
    Export(export::ExportArgs),
    /// Inspect, verify, repair or export a spool
    #[command(subcommand)]
    Spool(spool::SpoolCommand),
    /// Load a server with mail and measure throughput, latency and errors
    Load(Box<load::Load>),
    /// Compare or render reports of `load`
    #[command(subcommand)]
    Report(report::ReportCommand),
}

impl Command {
    /// Reports whether it reads the server's configuration.
    fn has_config(&self) -> bool {
        use Command::{
            Account, Acme, Cluster, Config, Dkim, Dns, Doctor, Export, Import, Logins, Mailbox, Page, Queue, Route,
            Sendmail, Serve, Suppression, Token, Trace,
        };
        matches!(
            self,
            Serve(_)
                | Doctor(_)
                | Config(_)
                | Account(_)
                | Export(_)
                | Import(_)
                | Mailbox(_)
                | Route(_)
                | Queue(_)
                | Suppression(_)
                | Logins(_)
                | Token(_)
                | Dkim(_)
                | Dns(_)
                | Page(_)
                | Acme(_)
                | Cluster(_)
                | Trace(_)
                | Sendmail(_)
        )
    }

    /// Reports whether it reads the search index.
    fn has_index(&self) -> bool {
        use Command::{
            Addresses, Cfind, Count, Extract, Find, Index, Info, New, Query, Reply, Search, Show, Tag, Threads, View,
        };
        matches!(
            self,
            Index(_)
                | Find(_)
                | Threads(_)
                | View(_)
                | Extract(_)
                | Addresses(_)
                | Tag(_)
                | Query(_)
                | Search(_)
                | Show(_)
                | Reply(_)
                | Count(_)
                | New(_)
                | Cfind(_)
                | Info(_)
        )
    }
}

#[derive(Args)]
struct Serve {
    #[command(flatten)]
    config: ConfigArg,
    /// Format of log lines; overrides the configuration
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
    /// Write `ready` to this descriptor (3 or above) once all listeners are bound and the spool is replayed, as s6's notification-fd expects
    #[arg(long, value_name = "N")]
    ready_fd: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Plain,
    Json,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a configuration and show where it is wrong; exit status 0: usable, perhaps with notes and warnings, 2: not usable
    Check {
        /// The same as --config FILE
        #[arg(conflicts_with = "config")]
        file: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Print the effective configuration, including defaults
    Show {
        #[command(flatten)]
        config: ConfigArg,
        /// Print JSON instead of TOML
        #[arg(long)]
        json: bool,
    },
}

/// Bodies are allocated on one thread and freed on another all day, which the system's allocator is slow at. The gain
/// is recorded in bench-results/2026-11-26.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = sendmail::run(&line) {
        return code;
    }
    if let Some(is_misuse) = help::asked(&line) {
        if is_misuse {
            eprint!("{}", help::text());
            return ExitCode::from(2);
        }
        return print(&help::text()).map_or(ExitCode::from(2), |()| ExitCode::SUCCESS);
    }
    match run(command(line)) {
        Ok(code) => code,
        Err(error) => {
            complain_with_config(&error.to_string());
            ExitCode::from(2)
        }
    }
}

/// Parses the command line; exits after help or a mistake.
fn command(mut line: Vec<OsString>) -> Command {
    if let Some(alone) = line.get(1).and_then(|name| Alone::named(name)) {
        let command = alone.command();
        line = options_first(&command, &line).unwrap_or(line);
        if let Some(command) = alone.parse(command, &line) {
            return command;
        }
    } else if let Some(moved) = long_options_first(&line) {
        line = moved;
    }
    let Cli { mut command, config } = parse(line);
    match (&mut command, config) {
        (Command::Sendmail(args), Some(config)) => args.set_config(config),
        (command, Some(_)) if command.has_index() => {
            complain(&foreign::instead_of_option("--config").unwrap_or_default());
            std::process::exit(2)
        }
        (command, Some(_)) if !command.has_config() => {
            let message = "unexpected argument '--config': this command reads no configuration of a server";
            Cli::command().error(clap::error::ErrorKind::UnknownArgument, message).exit()
        }
        _ => {}
    }
    command
}

/// Reports an error, with the configuration in use.
fn complain_with_config(error: &str) {
    complain(error);
    config_arg::in_use(error).iter().for_each(|used| complain(used));
}

/// Parses the command line; on a mistake, reports it and exits.
fn parse(line: Vec<OsString>) -> Cli {
    Cli::try_parse_from(&line).unwrap_or_else(|error| {
        if let Some(instead) = foreign::instead_of(&error, &line) {
            complain(&instead);
            std::process::exit(2)
        }
        if error.kind() != clap::error::ErrorKind::ValueValidation {
            error.exit();
        }
        eprint!("{}", in_words(error.render().to_string()));
        std::process::exit(2)
    })
}

/// Replaces the standard library's messages about malformed numbers by instructions.
fn in_words(text: String) -> String {
    [
        ("invalid digit found in string", "write a whole number"),
        ("cannot parse integer from empty string", "write a whole number"),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        ("invalid float literal", "write a number, such as 1.5"),
        ("cannot parse float from empty string", "write a number, such as 1.5"),
    ]
    .iter()
    .fold(text, |text, (said, words)| text.replace(said, words))
}

fn run(command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        Command::Serve(serve) => {
            let format = serve.log_format.map(|format| match format {
                Format::Plain => LogFormat::Plain,
                Format::Json => LogFormat::Json,
            });
            let Serve { config, ready_fd, .. } = serve;
            let options = ServeOptions { config: config.named(), log_format: format, ready_fd };
            if let Err(ServeFailure { error, log_format }) = posthaste_server::serve(options, || std::process::exit(1))
            {
                match log_format {
                    LogFormat::Plain => complain_with_config(&error.to_string()),
                    LogFormat::Json => eprint!("{}", posthaste_server::logging::error_line(&error.to_string())),
                }
                let is_bug = matches!(error, ServeError::Failed { .. });
                return Ok(if is_bug { ExitCode::FAILURE } else { ExitCode::from(2) });
            }
        }
        Command::Sink(args) => return sink::run(*args),
        Command::Doctor(args) => return doctor::run(args),
        Command::Config(ConfigCommand::Check { file, config }) => {
            let checked = posthaste_server::check_config(&config.or(file).load()?);
            print(&without_error_numbers(&checked.text))?;
            checked.errors.iter().for_each(|error| complain(&without_error_numbers(error)));
            return Ok(if checked.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) });
        }
        Command::Config(ConfigCommand::Show { config, json }) => {
            let config = config.load()?.config;
            print(&if json { config.to_json() + "\n" } else { config.to_toml() })?;
        }
        Command::Route(args) => return route::run(args),
        Command::Password(args) => args.run()?,
        Command::Token(command) => return command.run(),
        Command::Dkim(command) => return dkim::run(command),
        Command::Dns(command) => return dns::run(command),
        Command::Setup(args) => return setup::run(*args),
        Command::Page(args) => args.run()?,
        Command::Acme(command) => command.run()?,
        Command::Index(args) => return index::run(args),
        Command::Find(args) => return find::run(args),
        Command::Threads(args) => return threads::run(args),
        Command::View(args) => return view::run(args),
        Command::Extract(args) => return extract::run(args),
        Command::Addresses(args) => return addresses::run(args),
        Command::Tag(args) => return tag::run(args),
        Command::Query(args) => return query::run(args),
        Command::Search(args) => return search::run(args),
        Command::Show(args) => return show::run(args),
        Command::Reply(args) => return reply::run(args),
        Command::Count(args) => return count::run(args),
        Command::New(args) => return new::run(args),
        Command::Cfind(args) => return cfind::run(args),
        Command::Info(args) => return info::run(args),
        Command::Completions(args) => args.run()?,
        Command::Complete(args) => complete::run(args)?,
        Command::Sendmail(args) => return Ok(args.run()),
        Command::Queue(command) => return queue::run(command),
        Command::Trace(args) => return trace::run(args),
        Command::Suppression(command) => return suppression::run(command),
        Command::Cluster(command) => return cluster::run(command),
        Command::Export(args) => return export::run(&args),
        Command::Import(args) => return import::run(&args),
        Command::Mailbox(command) => return mailbox::run(command),
        Command::Logins(args) => return logins::run(args),
        Command::Spool(command) => return command.run(),
        Command::Load(load) => return load.run(),
        Command::Account(command) => return account::run(command),
        Command::Report(command) => return command.run(),
    }
    Ok(ExitCode::SUCCESS)
}

/// The command line as given, under the program's own name and without the password.
fn command_line() -> Vec<String> {
    let mut hides_next = false;
    let word = |word: String| {
        if std::mem::replace(&mut hides_next, word == "--auth-password") {
            "…".to_owned()
        } else if word.starts_with("--auth-password=") {
            "--auth-password=…".to_owned()
        } else {
            word
        }
    };
    std::iter::once("posthaste".to_owned()).chain(std::env::args().skip(1).map(word)).collect()
}
