//! Sessions over sockets, with feature `tokio`: an [`ImapService`] for the listeners of `posthaste-net`.

mod ahead;
mod binary;
mod changes;
mod connection;
mod deflate;
mod logins;
mod mail;
mod messages;
mod octets;
mod serve;
mod service;
mod timeouts;

use posthaste_net::{Connection, ConnectionRefusal, Goodbye, Peer, Service};

pub use logins::LoginSessions;
pub use service::{Authenticator, CurrentImapConfig, ImapService, TextSearch};
pub use timeouts::ImapTimeouts;

impl<A: Authenticator> Service for ImapService<A> {
    async fn serve(&self, connection: Connection) {
        serve::serve(self, connection).await;
    }

    fn refuse(&self, _: &Peer, why: &ConnectionRefusal) -> Goodbye {
        // Under implicit TLS the client could not read it.
        if self.implicit_tls { Goodbye::default() } else { goodbye_to(why) }
    }
}

/// Sends no goodbye to an invalid proxy, or to a proxy that does not name its client.
fn goodbye_to(why: &ConnectionRefusal) -> Goodbye {
    let line: &[u8] = match why {
        ConnectionRefusal::NotAProxy | ConnectionRefusal::Proxy(_) => return Goodbye::default(),
        ConnectionRefusal::NotAllowed => b"* BYE Clients of your address may not connect here\r\n",
        _ => b"* BYE [UNAVAILABLE] Too many connections, try again later\r\n",
    };
    Goodbye::new(line)
}
