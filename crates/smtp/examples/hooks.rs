//! A server that prints the questions and events of its handler: `cargo run --features tls --example hooks`.
//!
//! Mail goes to `anybody@example.org`; AUTH takes `ann` with the password `secret`.

use posthaste_smtp::driver::{
    Aborted, ConnectionRefusal, Handler, IncomingBody, Peer, Server, Session, SmtpSessionEnd,
};
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::server::Config;
use posthaste_smtp::{Envelope, MailFrom, MessageOutcome, RcptTo, Reply};

struct Show;

/// State of a connection.
#[derive(Debug, Default)]
struct Seen {
    messages: usize,
    aborted: usize,
}

/// State from MAIL to the message.
#[derive(Default)]
struct Mail {
    refused: usize,
}

fn say(session: &Session<Seen>, what: impl std::fmt::Display) {
    println!("{} {}: {what}", session.id, session.peer);
}

impl Handler for Show {
    type State = Seen;
    type Transaction = Mail;

    async fn connect(&self, session: &mut Session<Seen>) -> Result<(), Reply> {
        say(session, format_args!("connected to listener {}", session.listener));
        Ok(())
    }

    /// Too many connections, or an address that may not connect.
    fn turned_away(&self, listener: usize, peer: &Peer, why: &ConnectionRefusal) {
        println!("{peer}: not let in at listener {listener}: {why}");
    }

    async fn tls_started(&self, session: &mut Session<Seen>) -> Result<(), Reply> {
        if let Some(tls) = &session.tls {
            let client = tls.client.as_ref().map_or(String::from("nobody"), |client| client.dns_names.join(" "));
            say(session, format_args!("{} with {}, for {:?}, from {client}", tls.version, tls.cipher, tls.server_name));
        }
        Ok(())
    }

    fn tls_failed(&self, session: &Session<Seen>, error: &std::io::Error) {
        say(session, format_args!("no TLS: {error}"));
    }

    async fn hello(&self, session: &mut Session<Seen>) -> Result<(), Reply> {
        say(session, format_args!("is {:?}", session.helo));
        match session.helo.as_deref() {
            Some("localhost") => Err(Reply::new(550, "5.7.1", "That is my own name")),
            _ => Ok(()),
        }
    }

    async fn authenticate(
        &self,
        session: &mut Session<Seen>,
        mechanism: &'static str,
        credentials: Credentials,
    ) -> Result<String, Reply> {
        say(session, format_args!("{mechanism} as {}, for {:?}", credentials.user, credentials.acts_for));
        match (credentials.user.as_str(), credentials.password.as_str(), credentials.acts_for) {
            ("ann", "secret", None) => Ok("ann@example.org".into()),
            _ => Err(Reply::new(535, "5.7.8", "Authentication credentials invalid")),
        }
    }

    fn auth_ended(&self, session: &mut Session<Seen>, mechanism: &'static str, refusal: Option<&Reply>) {
        match (&session.identity, refusal) {
            (_, Some(refusal)) => say(session, format_args!("{mechanism} refused: {refusal}")),
            (Some(who), None) => {
                say(session, format_args!("{} acts as {}", who.authentication_id, who.authorization_id))
            }
            (None, None) => {}
        }
    }

    async fn mail(&self, session: &mut Session<Seen>, _: &mut Mail, mail: &MailFrom) -> Result<(), Reply> {
        say(session, format_args!("from {}, {:?} octets", mail.reverse_path, mail.size));
        Ok(())
    }

    async fn rcpt(
        &self,
        session: &mut Session<Seen>,
        mail: &mut Mail,
        envelope: &Envelope,
        rcpt: &RcptTo,
    ) -> Result<(), Reply> {
        let is_ours = rcpt.forward_path.address().is_none_or(|address| address.domain().to_string() == "example.org");
        say(session, format_args!("recipient {}: {}, ours: {is_ours}", envelope.recipients.len(), rcpt.forward_path));
        if is_ours {
            return Ok(());
        }
        mail.refused += 1;
        Err(Reply::new(550, "5.7.1", "Relaying is not allowed"))
    }

    async fn data(&self, session: &mut Session<Seen>, mail: &mut Mail, _: &Envelope) -> Result<(), Reply> {
        say(session, format_args!("DATA, {} recipients refused", mail.refused));
        if mail.refused < 10 { Ok(()) } else { Err(Reply::new(554, "5.7.1", "Too many strangers among them")) }
    }

    async fn message(
        &self,
        session: &mut Session<Seen>,
        _: Mail,
        envelope: Envelope,
        body: &mut IncomingBody<'_>,
    ) -> MessageOutcome {
        let mut octets = 0;
        while let Some(chunk) = body.chunk().await {
            match chunk {
                Ok(bytes) => octets += bytes.len(),
                // The client gets the error in any case.
                Err(error) => {
                    say(session, format_args!("no message: {error}"));
                    return error.reply().into();
                }
            }
        }
        session.state.messages += 1;
        // Each recipient has a reply of its own, which LMTP sends.
        let reply = |rcpt: &RcptTo| Reply::ok(format!("{octets} octets counted for {}", rcpt.forward_path));
        MessageOutcome::Each(envelope.recipients.iter().map(reply).collect())
    }

    fn aborted(&self, session: &mut Session<Seen>, _: Mail, aborted: Aborted) {
        session.state.aborted += 1;
        say(session, format_args!("no message after {:?}: {:?}", aborted.stage, aborted.cause));
    }

    fn ended(&self, session: Session<Seen>, end: SmtpSessionEnd) {
        say(&session, format_args!("{end:?} after {:?}", session.state));
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:2525".into());
    let auth_mechanisms = vec!["PLAIN".into(), "LOGIN".into()];
    // For a trial on this machine; with a certificate passwords need TLS.
    let mut config = Config { auth_mechanisms, auth_needs_tls: false, ..Config::new("mx.example.org") };
    let mut builder = Server::builder();
    if let (Some(chain), Some(key)) = (arguments.next(), arguments.next()) {
        (config.starttls, config.auth_needs_tls) = (true, true);
        builder = builder.tls(posthaste_smtp::tls::server_config(chain.as_ref(), key.as_ref())?);
    }
    let server = builder.config(config).listen(address).start(Show).await?;
    println!("listening on {:?}; stop with Ctrl-C", server.local_addrs());
    tokio::signal::ctrl_c().await?;
    server.shutdown(std::time::Duration::from_secs(10)).await;
    Ok(())
}
