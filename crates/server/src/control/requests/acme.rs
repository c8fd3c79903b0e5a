//! Certificates from the authority, on request.

use std::io;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::watch;

use crate::config::acme::Acme;

/// Renews certificates, all or due ones, and answers a line for each name.
pub(super) async fn renew(
    mut write: OwnedWriteHalf,
    acme: &Acme,
    all: bool,
    mut ended: watch::Receiver<()>,
    uid: u32,
) -> io::Result<()> {
    tracing::info!(uid, all, "the operator requested certificates");
    let renewed = tokio::select! {
        renewed = acme.renew(all) => renewed,
        _ = ended.changed() => Err("the server is stopping".to_owned()),
    };
    let lines = match renewed {
        Ok(lines) => lines.into_iter().chain([json!({ "done": 1 })]).collect(),
        Err(error) => vec![json!({ "error": error })],
    };
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    write.write_all(text.as_bytes()).await
}
