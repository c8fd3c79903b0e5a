//! Relay throughput of the same mail, unsigned and signed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use posthaste_dkim::{Algorithm, KeyDirectory};
use posthaste_loadgen::server::ScratchServer;

use super::ours::Ours;
use super::{Open, Opened, SENDER, Shape, ours_to_sink, postfix, postfix_to_sink, side, workload_of};
use crate::pages::Web;
use crate::peers::{OpenDkim, Postfix};
use crate::suite::{Settings, SideError, Workload};

const SHAPE: Shape = Shape { name: "signed-10k", size: "10k", connections: 50, ring_segments: 24 };

pub(crate) fn workload(settings: &Settings) -> Workload {
    let ours = |name, open: Open| side(SHAPE, name, true, ScratchServer::DURABILITY, open);
    let sides = vec![
        ours("posthaste unsigned", ours_to_sink),
        ours("posthaste RSA-2048", |shape, settings, dir| open(shape, settings, dir, &[Algorithm::Rsa])),
        ours("posthaste Ed25519", |shape, settings, dir| open(shape, settings, dir, &[Algorithm::Ed25519])),
        ours("posthaste RSA-2048 and Ed25519", |shape, settings, dir| {
            open(shape, settings, dir, &[Algorithm::Rsa, Algorithm::Ed25519])
        }),
        side(SHAPE, "Postfix unsigned", false, Postfix::DURABILITY, postfix_to_sink),
        side(SHAPE, "Postfix, OpenDKIM RSA-2048", false, Postfix::DURABILITY, opendkim),
    ];
    workload_of(SHAPE, settings, sides)
}

/// Postfix, whose mail OpenDKIM signs with a key of the sender's domain.
fn opendkim(shape: Shape, settings: &Settings, dir: &Path) -> Result<Opened, SideError> {
    let keys = make_keys(&dir.join("dkim"), &[Algorithm::Rsa])?;
    let mut files = std::fs::read_dir(keys.join(domain())).map_err(SideError::failed("the key"))?;
    let is_key = |path: &PathBuf| path.extension().is_some_and(|end| end == "pem");
    let made = files.find_map(|file| Some(file.ok()?.path()).filter(is_key));
    let text = std::fs::read_to_string(made.unwrap_or_default()).map_err(SideError::failed("the key"))?;
    // OpenDKIM takes a file that begins otherwise for DER.
    let pem = &text[text.find("-----BEGIN").unwrap_or_default()..];
    let key = dir.join("opendkim.pem");
    std::fs::write(&key, pem).map_err(SideError::failed("the key"))?;
    let opened = postfix(shape, settings, dir, |next_hop| {
        let opendkim = OpenDkim::start(dir, domain(), &key)?;
        Ok((Postfix::start_as_relay_with(dir, next_hop, opendkim.address)?, Box::new(opendkim)))
    })?;
    let note = "OpenDKIM is a process of its own: the CPU of the server leaves it out, that of the machine has it";
    Ok(Opened { notes: opened.notes.iter().cloned().chain([note.to_owned()]).collect(), ..opened })
}

/// The domain of the sender.
fn domain() -> &'static str {
    SENDER.rsplit('@').next().unwrap_or_default()
}

/// Makes keys of the sender's domain in a directory, which it returns.
fn make_keys(keys: &Path, algorithms: &[Algorithm]) -> Result<PathBuf, SideError> {
    std::fs::create_dir_all(keys).map_err(SideError::failed("the directory of keys"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    KeyDirectory::new(keys).create(domain(), algorithms, "bench", now).map_err(SideError::failed("a key"))?;
    Ok(keys.to_owned())
}

/// Our server with keys of the sender's domain.
fn open(shape: Shape, settings: &Settings, dir: &Path, algorithms: &[Algorithm]) -> Result<Opened, SideError> {
    make_keys(&dir.join("data/dkim"), algorithms)?;
    let opened = ours_to_sink(shape, settings, dir)?;
    Ok(Opened { check: Some(Box::new(all_are_signed)), ..opened })
}

/// Compares the server's count of signed messages with those that it has acknowledged.
fn all_are_signed(ours: &Ours, acked: u64) -> Result<String, SideError> {
    let address = ours.server.http.ok_or_else(|| SideError::Failed("it has no HTTP listener".into()))?;
    let token = ours.server.token("metrics", "metrics").map_err(SideError::failed("posthaste token"))?;
    let scrape = Web::connect(address, &token).and_then(|mut web| web.ask("GET", "/metrics", ""));
    let scrape = scrape.map_err(SideError::failed("/metrics"))?;
    match signed(&String::from_utf8_lossy(&scrape)) {
        Some(signed) if signed >= acked => Ok(format!("{signed} messages signed")),
        signed => Err(SideError::Failed(format!("{acked} messages acknowledged, {} signed", signed.unwrap_or(0)))),
    }
}

fn signed(scrape: &str) -> Option<u64> {
    let value = scrape.lines().find_map(|line| line.strip_prefix("posthaste_dkim_signed_total "))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_signed_messages_is_read_from_a_scrape() {
        let scrape = "# TYPE posthaste_dkim_signed_total counter\nposthaste_dkim_signed_total 17\nposthaste_x 3\n";
        assert_eq!((signed(scrape), signed("posthaste_x 3\n")), (Some(17), None));
    }
}
