//! Completion by real shells, where they are installed.

use std::path::Path;
use std::process::Command;

use crate::search::Place;

/// Set if a missing shell is a failure.
const REQUIRED: &str = "CI_REQUIRE_PEERS";

fn place() -> Place {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "+inbox", "+important", "--", "*"]);
    place.says(0, &["query", "save", "boss", "from:ann"]);
    for shell in ["bash", "zsh", "fish"] {
        std::fs::write(place.path().join(shell), place.says(0, &["completions", shell])).unwrap();
    }
    // Under the name that it is called by.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_posthaste"), place.path().join("posthaste")).unwrap();
    place
}

/// Runs a script and returns its lines, sorted; `None` if the shell is not installed.
fn ask(dir: &Path, shell: &str, script: &str) -> Option<Vec<String>> {
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(shell);
    command.arg(if shell == "zsh" { "-fc" } else { "-c" }).arg(script).current_dir(dir);
    command.env("PATH", path).env("HOME", dir).env("XDG_DATA_HOME", dir.join("data")).env("LC_ALL", "C.UTF-8");
    let Ok(output) = command.output() else {
        assert!(std::env::var_os(REQUIRED).is_none(), "{shell} is not installed");
        println!("{shell} is not installed: nothing is tested");
        return None;
    };
    let mut lines: Vec<String> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    Some(lines)
}

#[test]
fn bash_completes_what_the_index_knows() {
    let place = place();
    let complete = |line: &str, words: &str| {
        let script = format!(
            "source ./bash; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             $(complete -p posthaste | sed 's/.*-F \\([^ ]*\\).*/\\1/') posthaste \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        ask(place.path(), "bash", &script)
    };
    let Some(tags) = complete("posthaste find tag:i", "posthaste find tag : i") else { return };
    assert_eq!(tags, ["important", "inbox"], "bash replaces the part after the colon");
    assert_eq!(complete("posthaste tag +im", "posthaste tag +im").unwrap(), ["+important"]);
    assert_eq!(complete("posthaste find query:", "posthaste find query :").unwrap(), ["boss"]);
    assert_eq!(complete("posthaste find sub", "posthaste find sub").unwrap(), ["subject:"]);
    let options = complete("posthaste find --include-r", "posthaste find --include-r").unwrap();
    assert_eq!(options, ["--include-related"], "what the index does not know is as before");
    for line in ["posthaste view ", "posthaste find from:", "posthaste index "] {
        let offered = complete(line, &format!("{} ''", line.trim_end().replace(':', " :"))).unwrap();
        assert!(!offered.iter().any(|word| word.starts_with('-')), "options before one is begun: {offered:?}");
    }
}

#[test]
fn fish_completes_what_the_index_knows() {
    let place = place();
    let complete =
        |line: &str| ask(place.path(), "fish", &format!("source ./fish; complete -C '{line}' | string split -f1 \\t"));
    let Some(tags) = complete("posthaste find tag:i") else { return };
    assert_eq!(tags, ["tag:important", "tag:inbox"]);
    assert_eq!(complete("posthaste tag +in").unwrap(), ["+inbox"]);
    assert_eq!(complete("posthaste find maildir:/.S").unwrap(), ["maildir:/.Sent"]);
    assert!(complete("posthaste find --include-r").unwrap().contains(&"--include-related".to_owned()));
}

#[test]
fn zsh_completes_what_the_index_knows() {
    let place = place();
    // The function is asked with what the completion system would set, and `compadd` says what it is given.
    let complete = |words: &str, prefix: &str| {
        let script = format!(
            "compdef() {{ : }}; source ./zsh; compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; print -l -- $@ }}; \
             words=({words}); CURRENT=$#words; PREFIX='{prefix}'; _posthaste"
        );
        ask(place.path(), "zsh", &script)
    };
    let Some(tags) = complete("posthaste find tag:i", "tag:i") else { return };
    assert_eq!(tags, ["tag:important", "tag:inbox"]);
    assert_eq!(complete("posthaste find -b b", "b").unwrap(), ["boss"]);
    assert_eq!(complete("posthaste find sub", "sub").unwrap(), ["subject:"]);
}
