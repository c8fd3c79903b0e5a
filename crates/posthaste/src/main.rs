//! The command line. All logic is in the crates.
#![forbid(unsafe_code)]
// Many comments here are help texts, in which brackets are not links.
#![allow(rustdoc::broken_intra_doc_links)]
#![deny(clippy::print_stdout)]

mod account;
mod acme;
mod addresses;
mod alone;
mod cfind;
mod change;
mod chosen;
mod cli;
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
mod own_domain;
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
mod server;
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
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use posthaste_config::LogFormat;

use crate::alone::Alone;
use crate::cli::{Cli, Command, ConfigCommand, Format, Serve};
use crate::options_first::{long_options_first, options_first};
use crate::server::{ServeError, ServeFailure, ServeOptions, check_config, error_line, serve};
use crate::terminal::{complain, print, without_error_numbers};

/// Bodies are allocated on one thread and freed on another, which is slow in the system's allocator. Measurements:
/// bench-results/2026-11-26.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = sendmail::run(&line) {
        return code;
    }
    if let Some(is_misuse) = help::asked(&line) {
        if is_misuse {
            eprint!("{}", help::text(&Cli::command()));
            return ExitCode::from(2);
        }
        return print(&help::text(&Cli::command())).map_or(ExitCode::from(2), |()| ExitCode::SUCCESS);
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
        if let Some(instead) = foreign::instead_of(&Cli::command(), &error, &line) {
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
        Command::Serve(args) => {
            let format = args.log_format.map(|format| match format {
                Format::Plain => LogFormat::Plain,
                Format::Json => LogFormat::Json,
            });
            let Serve { config, ready_fd, .. } = args;
            let options = ServeOptions { config: config.named(), log_format: format, ready_fd };
            if let Err(ServeFailure { error, log_format }) = serve(options, || std::process::exit(1)) {
                match log_format {
                    LogFormat::Plain => complain_with_config(&error.to_string()),
                    LogFormat::Json => eprint!("{}", error_line(&error.to_string())),
                }
                let is_bug = matches!(error, ServeError::Failed { .. });
                return Ok(if is_bug { ExitCode::FAILURE } else { ExitCode::from(2) });
            }
        }
        Command::Sink(args) => return sink::run(*args),
        Command::Doctor(args) => return doctor::run(args),
        Command::Config(ConfigCommand::Check { file, config }) => {
            let checked = check_config(&config.or(file).load()?);
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
        Command::Completions(args) => args.run(Cli::command())?,
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
