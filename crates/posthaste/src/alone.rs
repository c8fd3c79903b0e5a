//! Parses the options of one command alone: building the options of all commands takes as long as a search.

use std::ffi::{OsStr, OsString};

use clap::{ArgMatches, Args, FromArgMatches};

use crate::cli::Command;

/// A command that takes a query.
pub struct Alone {
    options: fn(clap::Command) -> clap::Command,
    read: fn(&ArgMatches) -> Result<Command, clap::Error>,
}

impl Alone {
    /// The command with this name; `None` for all others.
    pub fn named(name: &OsStr) -> Option<Self> {
        macro_rules! of {
            ($args:ty, $command:path) => {
                Self {
                    options: <$args>::augment_args,
                    read: |matches| <$args>::from_arg_matches(matches).map($command),
                }
            };
        }
        Some(match name.to_str()? {
            "find" => of!(crate::find::Find, Command::Find),
            "threads" => of!(crate::threads::Threads, Command::Threads),
            "addresses" | "address" => of!(crate::addresses::Addresses, Command::Addresses),
            "view" => of!(crate::view::View, Command::View),
            "extract" => of!(crate::extract::Extract, Command::Extract),
            "search" => of!(crate::search::Search, Command::Search),
            "show" => of!(crate::show::Show, Command::Show),
            "count" => of!(crate::count::Count, Command::Count),
            "reply" => of!(crate::reply::Reply, Command::Reply),
            _ => return None,
        })
    }

    /// The program's options, with `--help` and `--version`.
    pub fn command(&self) -> clap::Command {
        let mut command = (self.options)(clap::Command::new("posthaste").version(env!("CARGO_PKG_VERSION")));
        command.build();
        command
    }

    /// Parses the command line. `None` for help, the version, or a mistake: these need the options of the whole
    /// program.
    pub fn parse(&self, command: clap::Command, line: &[OsString]) -> Option<Command> {
        let matches = command.try_get_matches_from(line.get(1..)?).ok()?;
        (self.read)(&matches).ok()
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// [`Alone::named`] knows exactly the commands that take a query as words.
    #[test]
    fn a_command_alone_has_the_options_that_it_has_among_the_others() {
        let mut cli = crate::cli::Cli::command();
        cli.build();
        let options = |command: &clap::Command| {
            // `--config` is every command's, and these refuse it.
            let own = command.get_arguments().filter(|option| option.get_id() != "config");
            let mut options: Vec<String> = own.map(|option| format!("{option:?}")).collect();
            options.sort();
            options
        };
        let mut named = 0;
        for command in cli.get_subcommands() {
            if let Some(alone) = Alone::named(OsStr::new(command.get_name())) {
                assert_eq!(options(&alone.command()), options(command), "{}", command.get_name());
                let names = command.get_all_aliases().all(|alias| Alone::named(OsStr::new(alias)).is_some());
                assert!(names, "an alias of {}", command.get_name());
                named += 1;
            }
        }
        assert_eq!(named, 9);
    }
}
