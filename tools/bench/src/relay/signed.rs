//! Relay throughput of the same mail, unsigned and signed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use posthaste_dkim::{Algorithm, KeyDirectory};
use posthaste_loadgen::server::ScratchServer;

use super::{Open, Opened, SENDER, Shape, ours_to_sink, postfix, postfix_to_sink, side, workload_of};
use crate::peers::{OpenDkim, Postfix};
use crate::suite::{Settings, SideError, Workload};

const SHAPE: Shape = Shape { name: "signed-10k", size: "10k", connections: 50, ring_segments: 24 };

pub(crate) fn workload(settings: &Settings) -> Workload {
    let ours = |name, open: Open| side(SHAPE, name, true, ScratchServer::DURABILITY, open);
    let sides = vec![
        ours("posthaste unsigned", |shape, settings, dir| Ok(expecting(0, ours_to_sink(shape, settings, dir)?))),
        ours("posthaste RSA-2048", |shape, settings, dir| open(shape, settings, dir, &[Algorithm::Rsa])),
        ours("posthaste Ed25519", |shape, settings, dir| open(shape, settings, dir, &[Algorithm::Ed25519])),
        ours("posthaste RSA-2048 and Ed25519", |shape, settings, dir| {
            open(shape, settings, dir, &[Algorithm::Rsa, Algorithm::Ed25519])
        }),
        side(SHAPE, "Postfix unsigned", false, Postfix::DURABILITY, |shape, settings, dir| {
            Ok(expecting(0, postfix_to_sink(shape, settings, dir)?))
        }),
        side(SHAPE, "Postfix, OpenDKIM RSA-2048", false, Postfix::DURABILITY, opendkim),
    ];
    workload_of(SHAPE, settings, sides)
}

/// A side that fails unless each message reaches the sink with this number of signatures.
fn expecting(signatures: u32, opened: Opened) -> Opened {
    Opened { signatures: Some(signatures), ..opened }
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
    let notes = opened.notes.iter().cloned().chain([note.to_owned()]).collect();
    Ok(expecting(1, Opened { notes, ..opened }))
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
    let number = u32::try_from(algorithms.len()).expect("there are two");
    Ok(expecting(number, ours_to_sink(shape, settings, dir)?))
}
