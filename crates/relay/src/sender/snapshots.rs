//! How far the stream has come: the queue in a snapshot, and the bodies that are not needed any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_spool::{Lsn, Released, SnapshotName};

use super::shared::Shared;
use crate::queue::Snapshot;

impl Shared {
    /// Writes the queue down, if it has changed, and releases what is settled. Blocks.
    ///
    /// # Errors
    /// Those of writing the snapshot: nothing is released then, and the next call tries again.
    pub fn advance(self: &Arc<Self>) -> io::Result<()> {
        self.wanted.store(0, Ordering::Release);
        let (mut snapshot, settled, first) = {
            let mut queue = self.queue();
            (Snapshot::begin(&queue), queue.take_released(), queue.first_message())
        };
        let position = snapshot.position();
        if position == self.spool.position(self.stream).0 && settled.is_empty() {
            return Ok(());
        }
        let name = SnapshotName::new(&format!("queue-{position}")).expect("letters and digits are a name");
        let written = self.spool.write_snapshot(&name, &mut |out| {
            let mut part = Vec::new();
            loop {
                part.clear();
                let has_more = snapshot.write(&self.queue(), &mut part);
                if !has_more {
                    return out.write_all(&self.replies.write());
                }
                out.write_all(&part)?;
            }
        });
        if let Err(error) = written {
            self.queue().not_released(settled);
            return Err(error);
        }
        let behind = Lsn::new(position.get() + 1);
        let below = first.map_or(behind, |first| first.min(behind));
        let also = settled.into_iter().filter(|message| *message >= below).collect();
        self.spool.advance(self.stream, position, Some(name), Released { below, also });
        Ok(())
    }
}
