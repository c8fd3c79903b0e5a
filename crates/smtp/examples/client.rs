//! Sends the message on standard input: `cargo run --features tls --example client -- HOST:PORT FROM TO...`.
//!
//! With `TLS_NAME` in the environment the session is encrypted by STARTTLS. The server must show a certificate of that
//! name, signed by an authority in the file `TLS_ROOTS` (default `/etc/ssl/certs/ca-certificates.crt`). With
//! `SMTP_USER` and `SMTP_PASSWORD` it authenticates, which needs TLS.

use std::error::Error;
use std::io::Read;
use std::process::ExitCode;

use posthaste_smtp::driver::Client;
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::tls::{TlsTrust, client_config};
use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match send().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if the message was accepted for all.
async fn send() -> Result<bool, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, from, to @ ..] = arguments.as_slice() else { return Err("give HOST:PORT FROM TO...".into()) };
    let variable = |name| std::env::var(name).ok();

    let mut builder = Client::builder("localhost");
    if let Some(name) = variable("TLS_NAME") {
        let roots = variable("TLS_ROOTS").unwrap_or_else(|| "/etc/ssl/certs/ca-certificates.crt".into());
        builder = builder.starttls(client_config(&TlsTrust::Authorities(roots.into()))?, name.try_into()?);
    }
    if let (Some(user), Some(password)) = (variable("SMTP_USER"), variable("SMTP_PASSWORD")) {
        builder = builder.credentials(Credentials::new(user, password));
    }

    let mut message = Vec::new();
    std::io::stdin().read_to_end(&mut message)?;
    // Text from a file has LF; the client sends CRLF.
    let mail = MailFrom::new(from.parse::<ReversePath>()?);
    let recipients =
        to.iter().map(|to| Ok(RcptTo::new(to.parse::<ForwardPath>()?))).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let mut client = builder.connect(server.as_str()).await?;
    let outcome = client.send(mail, recipients, vec![message.into()]).await?;
    for (to, recipient) in to.iter().zip(&outcome.recipients) {
        println!("{to}: {}", recipient.reply);
    }
    client.quit().await?;
    Ok(outcome.recipients.iter().all(|recipient| recipient.is_delivered()))
}
