//! The executor under test with a spool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_delivery::DeliveryError;
use posthaste_delivery::local::{GatheredBody, LocalConfig, LocalDelivery, MailboxMessage};
use posthaste_fsops::Machine;
use posthaste_intake::Intake;
use posthaste_spool::{Events, FileSpool, SpoolEvent};

use crate::mail::Letter;

pub struct Engine {
    delivery: LocalDelivery,
    spool: Arc<FileSpool>,
}

impl Engine {
    /// # Errors
    /// The opening fails, or promised mail is damaged.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let damage = Arc::new(Mutex::new(Vec::new()));
        let told = damage.clone();
        let events = Events::new(move |event| {
            if let SpoolEvent::Damage(found) = event {
                told.lock().expect("damage").push(found.to_string());
            }
        });
        let mut config = config(dir);
        config.spool.events = events;
        let opened = FileSpool::open(&config.spool_dir, config.spool.clone());
        let (spool, _) = opened.map_err(|error| error.to_string())?;
        let spool = Arc::new(spool);
        let opened = LocalDelivery::open_on(Intake::new(spool.clone(), config.intake.clone()), config);
        let (delivery, report) = opened.map_err(|error| error.to_string())?;
        let damage = damage.lock().expect("damage").clone();
        if !report.damaged.is_empty() || !report.unknown.is_empty() || !damage.is_empty() {
            return Err(format!("promised mail is damaged: {report:?} {damage:?}"));
        }
        Ok(Engine { delivery, spool })
    }

    /// Makes all visible mail durable, and releases it.
    pub fn checkpoint(&self) {
        // Failures are expected, as is a small ring without space for an entry until its keeper makes some.
        for _ in 0..CHECKPOINTS_MAX {
            drop(self.delivery.sync(Duration::from_secs(60)));
            drop(self.spool.checkpoint());
            if self.held().values().all(|(_, bodies)| *bodies == 0) {
                break;
            }
            // The spool's keeper and the mount check again after a second.
            std::thread::sleep(Duration::from_secs(2));
        }
    }

    /// Hands over a message; records it as durable as soon as that is reported.
    pub async fn send(&self, machine: &Machine, letter: &Letter) {
        let message = letter.message();
        let message = if letter.comes_in_pieces() { in_pieces(&self.delivery, message).await } else { Ok(message) };
        let kept = match message {
            Ok(message) if letter.may_be_given_up() => {
                self.delivery.deliver_unless(message, some_moments(letter.number)).await.is_ok()
            }
            Ok(message) => self.delivery.deliver_message(message).await.is_ok(),
            Err(_) => false,
        };
        if kept {
            machine.acknowledge(letter.number);
        }
    }

    /// Entries and bodies held by the mounts, by stream.
    pub fn held(&self) -> BTreeMap<String, (u64, u64)> {
        let streams = posthaste_spool::Spool::streams(&*self.spool);
        streams.into_iter().map(|stream| (stream.name, (stream.entries, stream.bodies))).collect()
    }
}

fn config(dir: &Path) -> LocalConfig {
    let mut config = LocalConfig::new(dir.join("spool"), mail_of(dir));
    config.host = "rig.example".into();
    (config.intake.inline_bytes_max, config.sync_bytes) = (4096, 48 << 10);
    // So small that mail for a blocked mailbox moves into packs.
    config.spool.ring.segment_bytes = 32 << 10;
    config.spool.ring.max_segments = 4;
    config.spool.pack_bytes = 48 << 10;
    config.spool.checkpoint_bytes = 24 << 10;
    (config.spool.free_bytes_min, config.spool.free_inodes_min) = (0, 0);
    config.intake.room_patience = Duration::from_secs(1);
    config
}

/// Most tries to sync and release the mail.
const CHECKPOINTS_MAX: usize = 4;

fn mail_of(dir: &Path) -> PathBuf {
    dir.join("mail")
}

/// Shorter or longer than a commit.
async fn some_moments(number: u64) {
    for _ in 0..number % 50 {
        tokio::task::yield_now().await;
    }
}

/// Hands over a body in pieces, like a slow client.
async fn in_pieces(delivery: &LocalDelivery, message: MailboxMessage) -> Result<MailboxMessage, DeliveryError> {
    let mut writer = delivery.intake().upload(0)?;
    if let GatheredBody::Memory(parts) = &message.body {
        for part in parts {
            writer.write(part).await?;
            writer.write_out().await?;
        }
    }
    Ok(MailboxMessage { body: GatheredBody::Large(writer.finish().await?), ..message })
}
