//! Shows long output through `$PAGER` on a terminal.

use std::io::IsTerminal;
use std::process::{Child, Command, Stdio};

use clap::Args;

use crate::terminal::{Origin, write_to};

#[derive(Args)]
pub struct PagerOption {
    /// Do not use $PAGER (default: less -R -F -X)
    #[arg(long)]
    no_pager: bool,
}

/// Destination of output: a pager, or standard output.
pub struct Pager {
    child: Option<Child>,
    is_terminal: bool,
}

impl PagerOption {
    /// Starts a pager if standard output is a terminal.
    pub fn start(&self) -> Pager {
        let is_terminal = std::io::stdout().is_terminal();
        let is_wanted = is_terminal && !self.no_pager;
        let child = is_wanted.then(|| spawn(std::env::var("PAGER").ok().as_deref())).flatten();
        Pager { child, is_terminal }
    }
}

/// `None` without a pager: output goes to the terminal.
fn spawn(pager: Option<&str>) -> Option<Child> {
    let mut command = match pager {
        Some("" | "cat") => return None,
        // It may hold options, and is the shell's to take apart, as everywhere.
        Some(pager) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", pager]);
            shell
        }
        None => {
            let mut less = Command::new("less");
            less.args(["-R", "-F", "-X"]);
            less
        }
    };
    // For a `less` named in $PAGER: colours, and no screen of its own for what fits on one.
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "RFX");
    }
    command.stdin(Stdio::piped()).spawn().ok()
}

impl Pager {
    /// Writes text. False if the reader has gone, which is no error.
    pub fn write(&mut self, text: &str) -> std::io::Result<bool> {
        self.write_bytes(text.as_bytes(), Origin::Program)
    }

    /// Like [`write`](Self::write), for unchanged octets of a message.
    pub fn write_foreign(&mut self, bytes: &[u8]) -> std::io::Result<bool> {
        self.write_bytes(bytes, Origin::Message)
    }

    fn write_bytes(&mut self, bytes: &[u8], origin: Origin) -> std::io::Result<bool> {
        match self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
            Some(stdin) => write_to(stdin, self.is_terminal, bytes, origin),
            None => write_to(&mut std::io::stdout(), self.is_terminal, bytes, origin),
        }
    }
}

impl Drop for Pager {
    /// Waits until the reader quits.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_goes_through_the_pager() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out");
        let child = spawn(Some(&format!("tr a-z A-Z > {}", file.display())));
        let mut pager = Pager { child, is_terminal: true };
        assert!(pager.write("rye\x1b]52; bread\n").unwrap());
        drop(pager);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "RYE\u{fffd}]52; BREAD\n");
        assert!(spawn(Some("cat")).is_none() && spawn(Some("")).is_none());
    }

    #[test]
    fn a_pager_that_is_left_early_is_no_error() {
        let mut pager = Pager { child: spawn(Some("true")), is_terminal: true };
        while pager.write(&"x".repeat(65_536)).unwrap() {}
    }
}
