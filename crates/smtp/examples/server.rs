//! A server that counts the octets of every message and forgets it: `cargo run --features tokio --example server`.

use posthaste_smtp::driver::{Handler, IncomingBody, Server, Session};
use posthaste_smtp::server::Config;
use posthaste_smtp::{Envelope, MessageOutcome, RcptTo, Reply};

struct Count;

impl Handler for Count {
    type State = ();
    type Transaction = ();

    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }

    async fn message(
        &self,
        session: &mut Session,
        _: (),
        envelope: Envelope,
        body: &mut IncomingBody<'_>,
    ) -> MessageOutcome {
        let mut octets = 0;
        while let Some(chunk) = body.chunk().await {
            match chunk {
                Ok(bytes) => octets += bytes.len(),
                Err(error) => return error.reply().into(),
            }
        }
        if std::env::var_os("QUIET").is_none() {
            println!("{} sent {octets} octets from {}", session.peer, envelope.mail.reverse_path);
        }
        MessageOutcome::accepted(format!("{octets} octets counted"))
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2525".into());
    let server = Server::builder().config(Config::new("mx.example.org")).listen(address).start(Count).await?;
    println!("listening on {:?}; stop with Ctrl-C", server.local_addrs());
    tokio::signal::ctrl_c().await?;
    server.shutdown(std::time::Duration::from_secs(10)).await;
    Ok(())
}
