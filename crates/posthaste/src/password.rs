//! `posthaste password`: the hash of a password, for the file of passwords.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::fd::AsFd;

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use crate::terminal::print;

#[derive(Args)]
pub struct PasswordArgs {
    /// Name to log in with, such as ann@example.org: prints a whole line for the file of passwords
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print keys of SCRAM-SHA-256 as well, for clients that show a password without sending it
    #[arg(long)]
    scram: bool,
}

impl PasswordArgs {
    pub fn run(&self) -> Result<(), Box<dyn std::error::Error>> {
        let password = read_password()?;
        let mut line = self.name.as_ref().map_or_else(String::new, |name| format!("{name}:"));
        line += &posthaste_accounts::hash_password(&password)?;
        if self.scram {
            line += &format!(":scram={}", posthaste_accounts::scram_keys(&password)?);
        }
        print(&(line + "\n"))?;
        Ok(())
    }
}

/// Asks for a password on a terminal, twice and without echo; elsewhere reads the first line of standard input.
pub fn read_password() -> Result<String, Box<dyn std::error::Error>> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let hidden = Hidden::begin(stdin.as_fd())?;
        let password = ask("Password: ")?;
        let again = ask("Again: ")?;
        drop(hidden);
        if password != again {
            return Err("the two passwords differ; nothing was made".into());
        }
        Ok(password)
    } else {
        Ok(line(&mut stdin.lock(), None)?)
    }
}

fn ask(prompt: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut err = io::stderr().lock();
    err.write_all(prompt.as_bytes())?;
    let password = line(&mut io::stdin().lock(), Some(INTERRUPT))?;
    err.write_all(b"\n")?;
    // Ctrl-C, which must not leave a terminal without echo.
    if password.contains(INTERRUPT) { Err("interrupted".into()) } else { Ok(password) }
}

/// The character that Ctrl-C sends.
const INTERRUPT: char = '\u{3}';

/// Reads up to a line feed or `ends`, and returns the line without its line end.
fn line(input: &mut impl BufRead, ends: Option<char>) -> io::Result<String> {
    let mut line = Vec::new();
    for byte in input.take(LINE_BYTES_MAX).bytes() {
        let byte = byte?;
        line.push(byte);
        if byte == b'\n' || Some(char::from(byte)) == ends {
            break;
        }
    }
    let line = String::from_utf8(line).map_err(io::Error::other)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// A terminal without echo, on which no key ends the program.
struct Hidden<'a> {
    terminal: std::os::fd::BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Hidden<'a> {
    fn begin(terminal: std::os::fd::BorrowedFd<'a>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        // It ends the line, so that it is read at once.
        hidden.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT as u8;
        tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

/// More than any password, so that a longer line is refused, not truncated.
const LINE_BYTES_MAX: u64 = 8192;
