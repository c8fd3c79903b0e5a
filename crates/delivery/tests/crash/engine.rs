//! The executor under test that delivers from a log: the one on the journal, or the one on the spool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_delivery::local::{self, LocalConfig, LocalDelivery};
use posthaste_delivery::{Body, DeliveryError, Journaled, JournaledConfig, Message};
use posthaste_fsops::Machine;
use posthaste_spool::{Event, Events, FileSpool};

use crate::mail::{Kind, Letter};

pub enum Engine {
    Journaled(Journaled),
    Local(LocalDelivery, Arc<FileSpool>),
}

impl Engine {
    /// # Errors
    /// Why it does not open, or that what was promised is damaged.
    pub fn open(kind: Kind, dir: &Path) -> Result<Self, String> {
        match kind {
            Kind::Standalone => unreachable!("it has no log"),
            Kind::Journaled => {
                let opened = Journaled::open(journaled_config(dir));
                let (journaled, report) = opened.map_err(|error| error.to_string())?;
                match report.damage.iter().find(|damage| damage.promised) {
                    Some(damage) => Err(format!("promised mail is damaged: {damage:?}")),
                    None => Ok(Engine::Journaled(journaled)),
                }
            }
            Kind::Local => {
                let damage = Arc::new(Mutex::new(Vec::new()));
                let told = damage.clone();
                let events = Events::new(move |event| {
                    if let Event::Damage(found) = event {
                        told.lock().expect("damage").push(found.to_string());
                    }
                });
                let mut config = local_config(dir);
                config.spool.events = events;
                let opened = FileSpool::open(&config.spool_dir, config.spool.clone());
                let (spool, _) = opened.map_err(|error| error.to_string())?;
                let spool = Arc::new(spool);
                let opened = LocalDelivery::open_on(spool.clone(), config);
                let (delivery, report) = opened.map_err(|error| error.to_string())?;
                let damage = damage.lock().expect("damage").clone();
                if !report.damaged.is_empty() || !report.unknown.is_empty() || !damage.is_empty() {
                    return Err(format!("promised mail is damaged: {report:?} {damage:?}"));
                }
                Ok(Engine::Local(delivery, spool))
            }
        }
    }

    /// Makes everything durable that is visible, and lets it go.
    pub fn checkpoint(&self) {
        // Failures are part of the game.
        match self {
            Engine::Journaled(journaled) => drop(journaled.checkpoint()),
            Engine::Local(delivery, spool) => {
                drop(delivery.sync(Duration::from_secs(60)));
                drop(spool.checkpoint());
            }
        }
    }

    /// Hands over a message; puts it on record if it is durable, as soon as that is told.
    pub async fn send(&self, machine: &Machine, letter: &Letter) {
        let message = letter.message();
        let kept = match self {
            Engine::Journaled(journaled) => {
                let message = match letter.comes_in_pieces() {
                    true => journaled_in_pieces(journaled, message).await,
                    false => Ok(message),
                };
                match message {
                    Ok(message) => journaled.deliver_message(message).await.is_ok(),
                    Err(_) => false,
                }
            }
            Engine::Local(delivery, _) => match local_message(delivery, message, letter.comes_in_pieces()).await {
                Ok(message) => delivery.deliver_message(message).await.is_ok(),
                Err(_) => false,
            },
        };
        if kept {
            machine.acknowledge(letter.number);
        }
    }

    /// Entries and bodies that the mounts hold, of those that have a stream.
    pub fn held(&self) -> BTreeMap<String, (u64, u64)> {
        match self {
            Engine::Journaled(_) => BTreeMap::new(),
            Engine::Local(_, spool) => {
                let streams = posthaste_spool::Spool::streams(&**spool);
                streams.into_iter().map(|stream| (stream.name, (stream.entries, stream.bodies))).collect()
            }
        }
    }
}

pub fn journaled_config(dir: &Path) -> JournaledConfig {
    let journal = posthaste_journal::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    JournaledConfig {
        journal,
        host: "rig.example".into(),
        inline_bytes_max: 4096,
        checkpoint_bytes: 48 << 10,
        ..JournaledConfig::new(dir.join("journal"), mail_of(dir))
    }
}

fn local_config(dir: &Path) -> LocalConfig {
    let mut config = LocalConfig::new(dir.join("spool"), mail_of(dir));
    config.host = "rig.example".into();
    (config.inline_bytes_max, config.sync_bytes) = (4096, 48 << 10);
    config.spool.ring.segment_bytes = 64 << 10;
    config.spool.ring.max_segments = 8;
    config.spool.checkpoint_bytes = 96 << 10;
    (config.spool.free_bytes_min, config.spool.free_inodes_min) = (0, 0);
    config.room_patience = Duration::from_secs(1);
    config
}

fn mail_of(dir: &Path) -> PathBuf {
    dir.join("mail")
}

/// Hands over a body as it comes from a client that is slow.
async fn journaled_in_pieces(journaled: &Journaled, message: Message) -> Result<Message, DeliveryError> {
    let mut writer = journaled.spool(message.body.len())?;
    if let Body::Memory(parts) = &message.body {
        for part in parts {
            writer.write(part).await?;
            writer.write_out().await?;
        }
    }
    Ok(Message { body: Body::Spooled(writer.finish().await?), ..message })
}

async fn local_message(
    delivery: &LocalDelivery,
    message: Message,
    in_pieces: bool,
) -> Result<local::Message, DeliveryError> {
    let Message { targets, body, line_ends } = message;
    let Body::Memory(parts) = body else { unreachable!("letters are in memory") };
    let body = if in_pieces {
        let mut writer = delivery.upload(0)?;
        for part in &parts {
            writer.write(part).await?;
            writer.write_out().await?;
        }
        local::Body::Large(writer.finish().await?)
    } else {
        local::Body::Memory(parts)
    };
    Ok(local::Message { targets, body, line_ends })
}
