//! `posthaste completions`: scripts for shells, to complete commands and options, and tags, saved queries and folders.

use clap::Args;
use clap_complete::Shell;

use crate::terminal::print;

#[derive(Args)]
#[command(after_help = "For example:\n  \
    bash  posthaste completions bash > ~/.local/share/bash-completion/completions/posthaste\n  \
    zsh   posthaste completions zsh > \"${fpath[1]}/_posthaste\"\n  \
    fish  posthaste completions fish > ~/.config/fish/completions/posthaste.fish\n\
    In these three, tags, saved queries, folders and fields are completed too: `posthaste find tag:in<Tab>`.")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// `cli`: the whole command line.
    pub fn run(&self, mut cli: clap::Command) -> std::io::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli, "posthaste", &mut script);
        let script = String::from_utf8_lossy(&script);
        print(&match self.shell {
            Shell::Bash => format!("{script}\n{BASH}"),
            Shell::Zsh => script.replacen("_posthaste() {\n", &format!("_posthaste() {{\n{ZSH}"), 1),
            Shell::Fish => format!("{script}\n{FISH}"),
            _ => script.into_owned(),
        })
    }
}

/// bash splits a word at each `:` and replaces the part after the last one.
const BASH: &str = r#"_posthaste_asking() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n' found kept=""
    found=($("${COMP_WORDS[0]}" complete -- "$line" 2>/dev/null))
    if [ ${#found[@]} -eq 0 ]; then
        IFS=$' \t\n'
        _posthaste "$@"
        # Options where one is begun: else the `-` that all begin with would be typed, and no file be completed.
        if [[ "${line##*[[:space:]]}" != -* ]]; then
            found=()
            local one
            for one in "${COMPREPLY[@]}"; do [[ "$one" == -* ]] || found+=("$one"); done
            COMPREPLY=("${found[@]}")
        fi
        return
    fi
    local word="${line##*[[:space:]]}"
    case "$COMP_WORDBREAKS" in *:*) kept="${word%"${word##*:}"}" ;; esac
    COMPREPLY=("${found[@]#"$kept"}")
    case "${found[0]}" in *:) compopt -o nospace 2>/dev/null ;; esac
}
complete -F _posthaste_asking -o nosort -o bashdefault -o default posthaste 2>/dev/null ||
    complete -F _posthaste_asking -o bashdefault -o default posthaste
"#;

const ZSH: &str = r#"    local -a asked
    asked=("${(@f)$("$words[1]" complete -- "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    if [[ -n "$asked[1]" ]]; then
        if [[ "$asked[1]" == *: ]]; then compadd -Q -S '' -- "$asked[@]"; else compadd -Q -- "$asked[@]"; fi
        return
    fi
"#;

const FISH: &str = r#"complete -c posthaste -a '(env (commandline -opc)[1] complete -- (commandline -cp) 2>/dev/null)'
"#;
