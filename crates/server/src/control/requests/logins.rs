//! Logins, with the state of the defence against guessing.

use posthaste_accounts::{Guessed, GuessingClient, LoginStatus, LoginUse};
use posthaste_control::{ClientLine, LoginLine, LoginPurpose, LoginsLine};
use serde_json::json;

use super::answering::{Answer, Outcome};
use crate::receive::handler::Receiver;

/// A line for each login, then for each client that has guessed wrong.
pub(super) fn list(receiver: &Receiver, answer: Answer<'_>) -> Outcome {
    let (gate, settings) = (receiver.gate(), receiver.settings());
    let logins = gate.logins(&settings.logins).into_iter().map(|status| {
        let LoginStatus { name, tenant, has_scram, last_use, is_remembered, wrong, is_slow } = status;
        LoginsLine::Login(LoginLine {
            login: name,
            tenant,
            scram: has_scram,
            last_use: last_use.map(|last| last.at),
            last_to: last_use.map(|last| purpose(last.purpose)),
            last_from: last_use.and_then(|last| last.network),
            remembered: is_remembered,
            wrong,
            slow: is_slow,
        })
    });
    let clients = gate.guessing_clients().into_iter().map(|client| {
        let GuessingClient { network, wrong, is_turned_away, secs_left } = client;
        LoginsLine::Client(ClientLine { client: network, wrong, turned_away: is_turned_away, secs: secs_left })
    });
    let is_heard = |line: &LoginsLine| serde_json::to_value(line).is_ok_and(answer);
    let first =
        receiver.first_password().map(|first| LoginsLine::First { first_password: first.file().display().to_string() });
    let listened = first.into_iter().chain(logins).chain(clients).take_while(is_heard).count();
    Ok(json!({ "done": listened }))
}

fn purpose(of: LoginUse) -> LoginPurpose {
    match of {
        LoginUse::Sending => LoginPurpose::Send,
        LoginUse::Reading => LoginPurpose::Read,
    }
}

/// Clears wrong passwords. `done`: number of clients and accounts that had some.
pub(super) fn forget(receiver: &Receiver, uid: u32, of: &[String]) -> Outcome {
    let directory = &receiver.settings().directory;
    let parsed = of.iter().map(|text| {
        let guessed = Guessed::parse(text, directory);
        guessed.ok_or_else(|| format!("{text} is neither an IP address nor the name of a login"))
    });
    let mut done = 0;
    for guessed in parsed.collect::<Result<Vec<_>, _>>()? {
        if receiver.gate().forget(&guessed) {
            done += 1;
            tracing::info!(uid, of = guessed.to_string(), "wrong passwords forgotten");
        }
    }
    Ok(json!({ "done": done }))
}
