//! `posthaste completions`: what a shell needs to complete commands and options.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Cli;
use crate::terminal::print;

#[derive(Args)]
#[command(after_help = "For example:\n  \
    bash  posthaste completions bash > ~/.local/share/bash-completion/completions/posthaste\n  \
    zsh   posthaste completions zsh > \"${fpath[1]}/_posthaste\"\n  \
    fish  posthaste completions fish > ~/.config/fish/completions/posthaste.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(&self) -> std::io::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "posthaste", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
