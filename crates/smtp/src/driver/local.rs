//! A session with a part of the same program, without a listener.

use std::sync::Arc;

use posthaste_net::{CurrentCertificate, CurrentPhase, Peer, Stream};
use tokio::net::UnixStream;

use super::connection::Connection;
use super::session::serve;
use super::setup::Door;
use super::{Handler, Session};
use crate::server::{Config, Protocol};

/// Serves one SMTP session for `handler`, from the greeting to the end. For messages that arrive without a listener but
/// must be processed like all others. `theirs` is one end of a socket pair; the client has the other. The session gets
/// this `id` and `uid`, and listener 0. TLS and AUTH are not offered.
pub async fn serve_local<H: Handler>(handler: &H, theirs: UnixStream, config: Config, id: u64, uid: u32) {
    let config = Config {
        protocol: Protocol::Smtp,
        asks_hello: true,
        asks_data: true,
        starttls: false,
        requires_tls: false,
        auth_mechanisms: Vec::new(),
        ..config
    };
    let door = Door { protocol: Protocol::Smtp, implicit_tls: false };
    let session = Session::new(id, 0, Peer::Local { uid }, Protocol::Smtp);
    let phase = Arc::<CurrentPhase>::default();
    let connection = Connection::new(Stream::Unix(theirs), Arc::new(config), phase, door);
    serve(connection, handler, session, &CurrentCertificate::default()).await;
}
