//! Commands and options of mu and notmuch that do not exist here, each with its replacement.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands.
const COMMANDS: [(&[&str], &str); 12] = [
    (&["init", "setup"], "`posthaste index MAILDIR` makes the index, and nothing else has to be set up"),
    (&["dump"], "`posthaste tag --dump` prints all tags and saved queries"),
    (&["restore"], "`posthaste tag --restore FILE` does that, with --accumulate to remove no tags"),
    (&["reindex"], "`posthaste index rebuild` reads all mail again; tags are kept"),
    (&["compact"], "the index stays compact by itself"),
    (
        &["insert"],
        "`posthaste serve` delivers into Maildirs, and `posthaste index` finds what any program has delivered",
    ),
    (&["add", "remove"], "`posthaste index` adds new mail and removes missing mail"),
    (
        &["move", "flag"],
        "`posthaste find --move /FOLDER QUERY` moves messages, `posthaste find --flag +S QUERY` changes flags",
    ),
    (&["labels"], "labels are tags: `posthaste tag +NAME -- QUERY`, `posthaste tag --list`"),
    (&["verify"], "`posthaste index verify` checks the index; signatures of messages are not checked"),
    (&["fields", "flags"], "the table of fields and flags is in docs/search.md"),
    (
        &["server", "script", "emacs-mua"],
        "`find`, `view`, `show` and `search` print JSON or s-expressions for other programs",
    ),
];

/// Options of commands that read the index.
const OPTIONS: [(&[&str], &str); 15] = [
    (&["--nocolor", "--no-color"], "NO_COLOR=1 in front of the command turns colours off"),
    (&["--muhome", "--config"], "--index DIR after the command, or POSTHASTE_INDEX, says where the index is"),
    (
        &["--duplicate"],
        "each file is a hit of its own, and `posthaste find --skip-dups --output files QUERY` prints one for each message",
    ),
    (&["--query"], "there is one query language; leave it out"),
    (&["--decrypt", "--verify"], "messages are not decrypted, and signatures not checked; leave it out"),
    (&["--lastmod"], "nothing counts changes; `changed:` in a query goes by the times of files"),
    (&["--input"], "write `< FILE` instead"),
    (&["--output"], "write `> FILE` instead"),
    (&["--analyze"], "errors in a query show the position of the mistake"),
    (&["--verbose"], "results are always reported; leave it out"),
    (
        &["--lazy-check", "--nocleanup"],
        "`index` looks at what changed, and messages that are gone leave it; leave it out",
    ),
    (
        &["--personal"],
        "`posthaste addresses QUERY` lists the addresses in some messages, such as `from:me@example.org`",
    ),
    (
        &["--summary-len", "--terminate"],
        "`posthaste find --summary-len N` prints the beginning of texts; `view` parts messages with a form feed",
    ),
    (&["--play"], "save the part with `--parts N`, and open the file"),
    (&["--deduplicate"], "each address is listed once; leave it out"),
];

/// The replacement of an option, which may have a value (`--duplicate=1`).
pub fn instead_of_option(option: &str) -> Option<String> {
    let name = option.split('=').next().unwrap_or(option);
    let (_, instead) = OPTIONS.iter().find(|(names, _)| names.contains(&name))?;
    Some(format!("no {name}: {instead}"))
}

/// The replacement for a command line that could not be parsed.
pub fn instead_of(cli: &clap::Command, error: &clap::Error, line: &[OsString]) -> Option<String> {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(name)) => Some(name.as_str()),
        _ => None,
    };
    match error.kind() {
        // The same name may mean something else to commands that have no index.
        ErrorKind::UnknownArgument if reads_index(cli, line) => instead_of_option(named(ContextKind::InvalidArg)?),
        ErrorKind::InvalidSubcommand => {
            let name = named(ContextKind::InvalidSubcommand)?;
            if line.get(1).is_some_and(|command| command == "config") {
                let is_notmuchs = ["get", "set", "list"].contains(&name);
                let instead = "settings of the index are in its config.toml (docs/reading.md), saved queries in `posthaste query`; \
                               `posthaste info` shows them";
                return is_notmuchs.then(|| format!("no command `config {name}`: {instead}"));
            }
            // Not of the commands below another, such as `queue`.
            let is_first = line.get(1).is_some_and(|first| first == name);
            let (_, instead) = COMMANDS.iter().find(|(names, _)| is_first && names.contains(&name))?;
            Some(format!("no command `{name}`: {instead}"))
        }
        _ => None,
    }
}

fn reads_index(cli: &clap::Command, line: &[OsString]) -> bool {
    let Some(first) = line.get(1) else { return false };
    // Options of notmuch stand in front of its commands.
    if first.as_encoded_bytes().starts_with(b"-") {
        return true;
    }
    let command = cli.find_subcommand(first);
    command.is_some_and(|command| command.get_arguments().any(|arg| arg.get_long() == Some("index")))
}
