//! Keeps documents true: finds what they tell a reader to type, and asks the program whether it has these commands and options.
//!
//! For tests of every program that documents describe. It understands as much of a shell as documents use: quotes, comments, `|`, `&&`, `;`,
//! a line that `\` continues, redirections.
#![forbid(unsafe_code)]

mod commands;
mod keys;
mod links;

pub use commands::{commands, commands_in_blocks, spans};
pub use keys::{DeclaredKey, DeclaredTable, declared_table};
pub use links::{anchors, links};

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All Markdown files below `root`, without what was built and what lies in directories that begin with a dot.
pub fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the repository can be read") {
            let path = entry.expect("the repository can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A program, known through its `--help`.
pub struct Program {
    binary: PathBuf,
    help: HashMap<Vec<String>, String>,
}

impl Program {
    /// The program with this binary.
    pub fn new(binary: impl Into<PathBuf>) -> Program {
        Program { binary: binary.into(), help: HashMap::new() }
    }

    /// Returns the mistake in a command: a subcommand or an option that the program does not have. `words` are those
    /// after the program's name.
    ///
    /// Words after the first `--` are ignored. Of short options only the first letter is checked.
    pub fn mistake(&mut self, words: &[String]) -> Option<String> {
        let words = words.split(|word| word == "--").next().unwrap_or_default();
        let mut subcommands = Vec::new();
        for word in words {
            let known = subcommand_names(self.help(&subcommands));
            if known.contains(word) {
                subcommands.push(word.clone());
            } else if !known.is_empty() && subcommands.is_empty() && !word.starts_with('-') {
                return Some(format!("there is no command `{word}`"));
            } else {
                break;
            }
        }
        let help = self.help(&subcommands);
        let named = options(help);
        words
            .iter()
            .filter_map(|word| option(word))
            .find(|option| !named.contains(option))
            .map(|option| format!("`{}` has no option `{option}`", subcommands.join(" ")))
    }

    /// Returns the mistakes in a document: commands of this program with mistakes, and unknown options that stand alone
    /// in a span of code. Options of other programs are `foreign`.
    pub fn mistakes(&mut self, document: &str, name: &str, foreign: &[&str]) -> Vec<String> {
        let mut mistakes: Vec<String> =
            commands(document, name).iter().filter_map(|words| self.mistake(words)).collect();
        let all = self.all_options(&mut Vec::new());
        let loose = spans(document).into_iter().filter_map(|span| option(span.split_whitespace().next()?));
        let unknown = loose.filter(|option| !all.contains(option) && !foreign.contains(&option.as_str()));
        mistakes.extend(unknown.map(|option| format!("no command has an option `{option}`")));
        mistakes
    }

    fn all_options(&mut self, subcommands: &mut Vec<String>) -> Vec<String> {
        let help = self.help(subcommands);
        let (mut all, below) = (options(help), subcommand_names(help));
        for name in below.into_iter().filter(|name| name != "help") {
            subcommands.push(name);
            all.extend(self.all_options(subcommands));
            subcommands.pop();
        }
        all
    }

    fn help(&mut self, subcommands: &[String]) -> &str {
        let binary = &self.binary;
        self.help.entry(subcommands.to_vec()).or_insert_with(|| {
            let output = Command::new(binary).args(subcommands).arg("--help").output().expect("the program starts");
            assert!(output.status.success(), "{subcommands:?} --help: {output:?}");
            String::from_utf8(output.stdout).expect("help is UTF-8")
        })
    }
}

/// Names of the subcommands that this help lists.
fn subcommand_names(help: &str) -> Vec<String> {
    // The program itself has its commands in groups.
    let list = match (help.split_once("\nCommands:\n"), help.split_once(" <COMMAND>\n")) {
        (Some((_, list)), _) => list.split("\n\n").next().unwrap_or_default(),
        (None, Some((_, list))) => list.split("\nOptions:\n").next().unwrap_or_default(),
        (None, None) => return Vec::new(),
    };
    let rows = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    rows.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Every word of this help that looks like an option, such as `--json` and `-n`.
fn options(help: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let words = help.split(|letter: char| !is_part(letter)).filter(|word| word.starts_with('-'));
    words.map(str::to_owned).collect()
}

/// The option in a word of a command: `--limit` of `--limit=5`, `-n` of `-n5`. A word such as `-todo`, `-5` or `-` is
/// none.
fn option(word: &str) -> Option<String> {
    let letters = word.strip_prefix("--").unwrap_or_default();
    if letters.starts_with(|first: char| first.is_ascii_lowercase()) {
        let name = letters.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').next()?;
        return Some(format!("--{name}"));
    }
    let short = word.strip_prefix('-')?;
    let value = short.strip_prefix(|first: char| first.is_ascii_alphabetic())?;
    value.chars().all(|letter| letter.is_ascii_digit()).then(|| word[..2].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_help_and_of_commands() {
        let help = "Usage: x [OPTIONS]\n\nCommands:\n  run   Run\n        on\n  help  Help\n\nOptions:\n  -n, --limit <N>  Most [alias: --maxnum]\n";
        assert_eq!(subcommand_names(help), ["run", "help"]);
        let groups = "About\n\nUsage: x <COMMAND>\n\nOne group:\n  run  Run\n       on\n\nOther:\n  go   Go\n\nOptions:\n  -h  Help\n";
        assert_eq!(subcommand_names(groups), ["run", "go"]);
        assert_eq!(options(help), ["-n", "--limit", "--maxnum"]);
        let option_of = |word| option(word).unwrap_or_default();
        assert_eq!(["--limit=5", "--a-b", "-n5", "-n"].map(option_of), ["--limit", "--a-b", "-n", "-n"]);
        assert_eq!(["-todo", "--", "-", "-5", "+x", "--Big", "x-y"].map(option_of), [""; 7]);
    }
}
