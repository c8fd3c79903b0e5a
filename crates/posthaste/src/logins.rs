//! `posthaste logins`: who may log in and has, and who guesses, as a running server knows it.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_message::DateTime;
use posthaste_server::control::Request;
use serde_json::Value;

use crate::queue::{AnyError, ServerArgs, answer, ask, columns, number, show, text};
use crate::terminal::{print, print_json};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LoginsArgs {
    #[command(subcommand)]
    command: Option<LoginsCommand>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Subcommand)]
enum LoginsCommand {
    /// Forget wrong passwords of clients or for logins, so that nobody is turned away or slowed for them; exit status 1 if there are none
    Forget {
        /// Address of a client, such as 192.0.2.1 or 2001:db8::1, or name of a login
        #[arg(value_name = "ADDRESS", required = true)]
        of: Vec<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Exit status 1: there is nothing.
pub fn run(args: LoginsArgs) -> Result<ExitCode, AnyError> {
    let Some(LoginsCommand::Forget { of, server }) = args.command else {
        return show(&args.server, &ask(&args.server, &Request::Logins)?, tables);
    };
    let last = answer(&server, &Request::ForgetGuesses { of })?.pop().unwrap_or_default();
    let forgotten = number(&last, "done");
    match server.json {
        true => print_json(&format!("{last}\n"))?,
        false => print(&format!("{forgotten} forgotten\n"))?,
    }
    Ok(ExitCode::from(u8::from(forgotten == 0)))
}

/// A table of logins, and one of clients if any has guessed wrong.
fn tables(lines: &[Value]) -> String {
    let (logins, clients): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["login"].is_string());
    let when =
        |line: &Value| line["last_use"].as_i64().map_or("-".to_owned(), |at| DateTime::from_unix(at).to_string());
    let flag = |is: bool, word: &'static str| if is { word } else { "" };
    let rows = logins.iter().map(|line| {
        let is = |key: &str| line[key].as_bool().unwrap_or_default();
        let state = [flag(is("remembered"), "remembered"), flag(is("slow"), "slow")];
        let state = state.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(", ");
        [
            text(line, "login"),
            when(line),
            text(line, "last_to"),
            text(line, "last_from"),
            number(line, "wrong").to_string(),
            state,
        ]
    });
    let mut out = columns(["login", "last use", "to", "from", "wrong", "state"], rows, "nobody may log in");
    if !clients.is_empty() {
        let rows = clients.iter().map(|line| {
            let state = flag(line["turned_away"] == true, "turned away");
            let left = format!("{} s", number(line, "secs"));
            [text(line, "client"), number(line, "wrong").to_string(), left, state.to_owned()]
        });
        out += "\n";
        out += &columns(["client", "wrong", "for", "state"], rows, "");
    }
    out
}
