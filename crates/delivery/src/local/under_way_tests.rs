//! A hanging disk, and messages given up meanwhile.

use std::future::{pending, ready};
use std::sync::Arc;

use posthaste_fsops::{Faults, FsEvent};
use posthaste_intake::IntakeError;
use posthaste_spool::Spool;

use super::test_world::{PATIENCE, Place, World, message};
use super::{GatheredBody, LocalDelivery, MailboxMessage};
use crate::DeliveryError;

/// Has syncs hang, from the write of a text until this is dropped, so that even a failing test ends. Not earlier: the
/// ring makes segments in time, and writes nothing while it has none.
struct Hang<'w>(&'w World, &'static str);

impl<'w> Hang<'w> {
    fn begin(world: &'w World, text: &'static str) -> Self {
        world.place.machine().set_faults(Faults { hang_syncs: Some(text.into()), ..Faults::default() });
        Hang(world, text)
    }

    /// Waits until the text is written, and its sync hangs.
    async fn written(&self) {
        let text = self.1.as_bytes();
        let has_it = |event: &FsEvent| match event {
            FsEvent::Write { bytes, .. } => bytes.windows(text.len()).any(|part| part == text),
            _ => false,
        };
        while !self.0.place.machine().recording().events.iter().any(has_it) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Hang<'_> {
    fn drop(&mut self) {
        self.0.place.machine().set_faults(Faults::default());
    }
}

async fn large(delivery: &LocalDelivery, mailbox: &str, text: &[u8]) -> MailboxMessage {
    let mut writer = delivery.intake().upload(0).expect("room");
    writer.write(text).await.expect("written");
    MailboxMessage { body: GatheredBody::Large(writer.finish().await.expect("synced")), ..message(&[mailbox], "") }
}

fn bodies(place: &Place) -> usize {
    std::fs::read_dir(place.config().spool_dir.join("bodies")).expect("a spool").count()
}

fn is_whole(world: &World) -> bool {
    world.delivery.intake().budget().is_whole()
}

#[test]
fn mail_given_up_while_the_disk_hangs_is_never_delivered() {
    let world = World::new(&[]);
    let delivery = &world.delivery;
    let cancelled = world.spool.stats().cancelled;
    world.place.runtime.block_on(async {
        let large = large(delivery, "ann", b"large").await;
        let hang = Hang::begin(&world, "written");
        // One is being written, the others wait for it.
        let written = delivery.deliver_unless(message(&["ann"], "written"), hang.written()).await;
        assert!(matches!(written, Err(DeliveryError::Intake(IntakeError::Cancelled))), "{written:?}");
        for message in [message(&["ann"], "waits"), large] {
            let outcome = delivery.deliver_unless(message, ready(())).await;
            assert!(matches!(outcome, Err(DeliveryError::Intake(IntakeError::Cancelled))), "{outcome:?}");
        }
        drop(hang);
        delivery.deliver_unless(message(&["ann"], "wanted"), pending()).await.expect("the disk goes on");
    });
    world.until("visible", || world.delivery.stats().delivered == 1);
    world.sync();
    assert_eq!(world.texts("ann"), ["Delivered-To: ann\nwanted"]);
    assert_eq!(world.spool.stats().cancelled - cancelled, 1, "one was on the disk already");
    assert_eq!(world.held("").1, 0, "no body is needed");
    assert!(is_whole(&world), "memory is given back");
    // The file of a cancelled body goes two checkpoints later.
    (0..2).for_each(|_| world.spool.checkpoint().expect("a checkpoint"));
    assert_eq!(bodies(&world.place), 0);
    let world = World::opened(world.end(), Arc::default(), |config| config);
    assert_eq!(world.report.messages, 0);
    assert_eq!(world.texts("ann").len(), 1);
}

#[test]
fn a_dropped_future_cancels_its_message_where_it_may() {
    let world = World::new(&[]);
    let delivery = &world.delivery;
    world.place.runtime.block_on(async {
        let hang = Hang::begin(&world, "dropped");
        tokio::select! {
            outcome = delivery.deliver_unless(message(&["ann"], "dropped"), pending()) => panic!("{outcome:?}"),
            () = hang.written() => {}
        }
        tokio::select! {
            biased;
            outcome = delivery.deliver_message(message(&["ann"], "stays")) => panic!("{outcome:?}"),
            () = ready(()) => {}
        }
    });
    world.until("visible", || world.delivery.stats().delivered == 1);
    world.until("memory is given back", || is_whole(&world));
    assert_eq!(world.texts("ann"), ["Delivered-To: ann\nstays"]);
}

#[test]
fn a_message_is_delivered_once_or_cancelled_and_never_both() {
    let world = World::new(&[]);
    let delivery = &world.delivery;
    let (mut kept, mut cancelled) = (Vec::new(), 0);
    // Given up at every moment: before its write, during it, at its publication, and after it.
    for number in 0.. {
        if (kept.len() >= 100 && cancelled >= 100) || number >= 20_000 {
            break;
        }
        let text = format!("{number}");
        let moments = number % 64;
        let give_up = async {
            for _ in 0..moments {
                std::thread::yield_now();
                tokio::task::yield_now().await;
            }
            if moments == 63 {
                pending().await
            }
        };
        match world.place.runtime.block_on(delivery.deliver_unless(message(&["ann"], &text), give_up)) {
            Ok(_) => kept.push(format!("Delivered-To: ann\n{text}")),
            Err(DeliveryError::Intake(IntakeError::Cancelled)) => cancelled += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!kept.is_empty() && cancelled > 0, "{} kept, {cancelled} cancelled", kept.len());
    delivery.sync(PATIENCE).expect("synced");
    world.until("memory is given back", || is_whole(&world));
    kept.sort();
    let delivered = |world: &World| {
        let mut texts = world.texts("ann");
        texts.sort();
        texts
    };
    assert_eq!(delivered(&world), kept);
    world.spool.checkpoint().expect("a checkpoint");
    let world = World::opened(world.end(), Arc::default(), |config| config);
    assert_eq!(delivered(&world), kept, "and not after another start");
}

#[test]
fn a_kill_before_a_durable_cancellation_delivers_once() {
    let world = World::new(&[]);
    let machine = world.place.machine();
    let cut = world.place.runtime.block_on(async {
        let hang = Hang::begin(&world, "given up");
        let outcome = world.delivery.deliver_unless(message(&["ann"], "given up"), hang.written()).await;
        assert!(matches!(outcome, Err(DeliveryError::Intake(IntakeError::Cancelled))), "{outcome:?}");
        // The state of the page cache.
        machine.recording().cached()
    });
    let place = Place::of(&cut, true);
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!(world.report.messages, 1, "it was written, and nothing says that it does not count");
    assert_eq!(world.texts("ann"), ["Delivered-To: ann\ngiven up"]);
    let world = World::opened(world.end(), Arc::default(), |config| config);
    assert_eq!(world.texts("ann").len(), 1);
}

#[test]
fn mail_refused_for_room_is_not_retried_once_given_up() {
    let world = World::new(&[]);
    world.spool.hooks.refuse_entries(true);
    let given_up = world.delivery.deliver_unless(message(&["ann"], "x"), ready(()));
    let outcome = world.place.runtime.block_on(given_up);
    assert!(matches!(outcome, Err(DeliveryError::Intake(IntakeError::Cancelled))), "{outcome:?}");
    world.spool.hooks.refuse_entries(false);
    world.sync();
    assert_eq!(world.texts("ann"), [] as [&str; 0]);
    assert!(is_whole(&world));
}
