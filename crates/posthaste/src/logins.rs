//! `posthaste logins`: logins and their use, and clients that guess passwords, in a running server.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_control::{ClientLine, LoginLine, LoginPurpose, LoginsLine, Request};
use posthaste_message::DateTime;

use crate::queue::{AnyError, ServerArgs, answer, columns, number, show};
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

/// Exit status 1: the list is empty.
pub fn run(args: LoginsArgs) -> Result<ExitCode, AnyError> {
    let Some(LoginsCommand::Forget { of, server }) = args.command else {
        return show(&args.server, &Request::Logins {}, tables);
    };
    let last = answer(&server, &Request::ForgetGuesses { of })?.pop().unwrap_or_default();
    let forgotten = number(&last, "done");
    if server.json {
        print_json(&format!("{last}\n"))?
    } else {
        print(&format!("{forgotten} forgotten\n"))?
    }
    Ok(ExitCode::from(u8::from(forgotten == 0)))
}

/// A table of logins, and one of the clients that gave wrong passwords, if any.
fn tables(lines: &[LoginsLine]) -> String {
    let mut logins = Vec::new();
    let mut clients = Vec::new();
    let mut first = None;
    for line in lines {
        match line {
            LoginsLine::Login(login) => logins.push(login_row(login)),
            LoginsLine::Client(client) => clients.push(client_row(client)),
            LoginsLine::First { first_password } => first = Some(first_password),
        }
    }
    let heading = ["login", "last use", "to", "from", "wrong", "state"];
    let mut out = match first {
        Some(file) if logins.is_empty() => {
            format!("the password in {file} opens each account that has mail, and the page, from this machine\n")
        }
        _ => columns(heading, logins.into_iter(), "nobody may log in"),
    };
    if !clients.is_empty() {
        out += "\n";
        out += &columns(["client", "wrong", "for", "state"], clients.into_iter(), "");
    }
    out
}

fn login_row(of: &LoginLine) -> [String; 6] {
    let time = |at: u64| DateTime::from_unix(at.cast_signed()).to_string();
    let to = of.last_to.map_or("", |to| match to {
        LoginPurpose::Send => "send",
        LoginPurpose::Read => "read",
    });
    let state = [(of.remembered, "remembered"), (of.slow, "slow")].into_iter().filter(|(is, _)| *is);
    [
        of.login.clone(),
        of.last_use.map_or("-".to_owned(), time),
        to.to_owned(),
        of.last_from.map_or(String::new(), |ip| ip.to_string()),
        of.wrong.to_string(),
        state.map(|(_, word)| word).collect::<Vec<_>>().join(", "),
    ]
}

fn client_row(of: &ClientLine) -> [String; 4] {
    let state = if of.turned_away { "turned away" } else { "" };
    [of.client.clone(), of.wrong.to_string(), format!("{} s", of.secs), state.to_owned()]
}
