//! `posthaste page`: a link that opens the page of a running server in a browser.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use posthaste_admin::Scope;
use posthaste_control::Request;

use crate::config_arg::ConfigArg;
use crate::new_file::new_file;
use crate::queue::{answer_in, text};
use crate::terminal::print;
use crate::token::end_after;

#[derive(Args)]
pub struct PageArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// The browser stays logged in for this time, such as 12h
    #[arg(long = "for", value_name = "TIME", default_value = "12h", value_parser = end_after)]
    time: Duration,
    /// Scopes, with commas between; default: all but mail:read, and that too until there is a [[listener]] or [auth]
    #[arg(long, value_name = "SCOPES", value_delimiter = ',')]
    scopes: Vec<Scope>,
    /// Write the link into this new file, which only its owner can read, instead of to the terminal
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl PageArgs {
    pub fn run(self) -> Result<(), Box<dyn std::error::Error>> {
        if self.output.is_none() && !io::stdout().is_terminal() {
            return Err("a link is shown on a terminal only; --output FILE writes it into a file".into());
        }
        let scopes = self.scopes.iter().map(ToString::to_string).collect();
        let request = Request::Page { secs: self.time.as_secs(), scopes };
        let data = self.config.load()?.config.storage.data;
        let lines = answer_in(&data, &request)?;
        let link = text(lines.last().ok_or("the server does not answer")?, "link");
        let Some(path) = &self.output else { return Ok(print(&format!("{link}\n"))?) };
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let mut out = new_file(path).map_err(at)?;
        Ok(writeln!(out, "{link}").map_err(at)?)
    }
}
