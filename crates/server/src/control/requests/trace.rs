//! Live dialogues: lines until the client disconnects.

use std::io;
use std::time::Duration;

use posthaste_control::Request;
use posthaste_smtp::driver::IpNet;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::time::timeout;

use super::answering::PATIENCE;
use crate::receive::live::{Live, Shown};

/// Sessions selected by a request; `None` for other requests.
pub(super) fn shown(request: &Request) -> Option<Result<Shown, String>> {
    let Request::Trace { inbound, outbound, peer, recipient } = request else { return None };
    let net = |text: &String| {
        let net =
            text.parse::<IpNet>().ok().or_else(|| text.parse().ok().map(|address: std::net::IpAddr| address.into()));
        net.ok_or_else(|| format!("`{text}` is not an address or network"))
    };
    let peer = match peer.as_ref().map(net).transpose() {
        Ok(peer) => peer,
        Err(error) => return Some(Err(error)),
    };
    let recipient = recipient.as_ref().map(|recipient| recipient.trim_matches(['<', '>']).to_lowercase());
    Some(Ok(Shown { inbound: *inbound, outbound: *outbound, peer, recipient }))
}

/// Writes trace lines until the client disconnects.
pub(super) async fn follow(mut write: OwnedWriteHalf, live: Live, shown: Shown) -> io::Result<()> {
    let mut watching = live.watch(shown);
    let mut say = async |line: Value| timeout(PATIENCE, write.write_all(format!("{line}\n").as_bytes())).await?;
    say(json!({ "watching": true })).await?;
    loop {
        let line =
            timeout(ALIVE_INTERVAL, watching.lines.recv()).await.unwrap_or_else(|_| Some(json!({ "alive": true })));
        let Some(line) = line else { return Ok(()) };
        say(line).await?;
        let dropped = watching.dropped();
        if dropped > 0 {
            say(json!({ "dropped": dropped })).await?;
        }
    }
}

/// Interval of empty lines, which detect a disconnected client.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);
