//! Long output goes through `$PAGER` where a person reads it.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command, Stdio};

use clap::Args;

#[derive(Args)]
pub struct PagerOption {
    /// Print straight to the terminal, not through $PAGER (by default less -R -F -X)
    #[arg(long)]
    no_pager: bool,
}

/// Where output goes: a pager, or standard output.
pub struct Pager(Option<Child>);

impl PagerOption {
    /// A pager runs only if standard output is a terminal.
    pub fn start(&self) -> Pager {
        if self.no_pager || !std::io::stdout().is_terminal() {
            return Pager(None);
        }
        Pager(spawn(std::env::var("PAGER").ok().as_deref()))
    }
}

/// `None` if there is no pager: then the terminal has to do.
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
    /// Writes; that nobody reads any more is no error, and `false`.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<bool> {
        let written = match self.0.as_mut().and_then(|child| child.stdin.as_mut()) {
            Some(stdin) => stdin.write_all(bytes),
            None => std::io::stdout().write_all(bytes),
        };
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Pager {
    /// Waits until the reader has had enough.
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
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
        let mut pager = Pager(spawn(Some(&format!("tr a-z A-Z > {}", file.display()))));
        assert!(pager.write(b"rye bread\n").unwrap());
        drop(pager);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "RYE BREAD\n");
        assert!(spawn(Some("cat")).is_none() && spawn(Some("")).is_none());
    }

    #[test]
    fn a_pager_that_is_left_early_is_no_error() {
        let mut pager = Pager(spawn(Some("true")));
        while pager.write(&[b'x'; 65_536]).unwrap() {}
    }
}
