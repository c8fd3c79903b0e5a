//! `posthaste --help`: the commands in groups.

use std::ffi::OsString;
use std::fmt::Write as _;

const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Receive and send mail",
        &["serve", "setup", "config", "route", "doctor", "password", "account", "dkim", "dns", "sendmail"],
    ),
    (
        "Look after a server",
        &[
            "queue",
            "trace",
            "suppression",
            "cluster",
            "logins",
            "token",
            "page",
            "acme",
            "mailbox",
            "import",
            "export",
            "spool",
        ],
    ),
    ("Find and read mail", &["index", "find", "threads", "view", "extract", "addresses", "tag", "query", "info"]),
    ("As in notmuch and mu", &["search", "show", "reply", "count", "new", "cfind"]),
    ("Test and measure", &["sink", "load", "report"]),
    ("Shells", &["completions"]),
];

/// `Some` if the command line asks for the program's help; `true` if it names no command.
pub fn asked(line: &[OsString]) -> Option<bool> {
    match line {
        [_] => Some(true),
        [_, word] if word == "--help" || word == "-h" || word == "help" => Some(false),
        _ => None,
    }
}

/// The help text of a command line.
pub fn text(command: &clap::Command) -> String {
    let about = |of: &clap::Command| of.get_about().map(ToString::to_string).unwrap_or_default();
    let mut out = format!("{}\n\nUsage: posthaste <COMMAND>\n", about(command));
    for (heading, names) in GROUPS {
        let _ = write!(out, "\n{heading}:\n");
        for name in names {
            let of = command.find_subcommand(name).map(about).unwrap_or_default();
            let _ = writeln!(out, "  {name:<12} {}", posthaste_units::wrapped(&of, 15));
        }
    }
    out + "\nOptions:\n  -h, --help     Print help; `posthaste COMMAND --help` has that of a command\n  -V, --version  Print version\n"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut expected: Vec<&str> = visible.map(clap::Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn help_is_asked_for_by_a_word_or_by_none() {
        let asked = |line: &[&str]| asked(&line.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(["--help", "-h", "help"].map(|word| asked(&["posthaste", word])), [Some(false); 3]);
        assert_eq!((asked(&["posthaste"]), asked(&["posthaste", "help", "find"])), (Some(true), None));
        let text = text(&Cli::command());
        assert!(text.contains("\nLook after a server:\n  queue        Show and change"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
