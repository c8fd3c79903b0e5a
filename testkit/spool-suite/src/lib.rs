//! Tests of a spool's promises, for any implementation.
//!
//! An implementation defines how it is opened, killed and cut off from power; [`spool_suite!`] makes a test of each
//! promise. Tests of packs, damage and space belong to the implementation with these.
#![forbid(unsafe_code)]

pub mod model;
pub mod promises;
mod world;

use posthaste_spool::SpoolAdmin;

/// An implementation of a spool, with a place for its data.
pub trait SpoolKind: Sized {
    /// The spool.
    type Spool: SpoolAdmin + 'static;

    /// Makes a place without data.
    fn new() -> Self;

    /// Opens the spool of this place. It makes checkpoints on request and at its end only.
    ///
    /// # Panics
    /// If it cannot be opened, or is damaged.
    fn open(&mut self) -> Self::Spool;

    /// Ends it like a kill: advances since its last checkpoint are forgotten.
    fn kill(&mut self, spool: Self::Spool);

    /// Like [`kill`](Self::kill); `seed` decides the fate of data that are not on stable storage.
    fn cut_power(&mut self, spool: Self::Spool, seed: u64);

    /// Makes room by moving data that are still needed, in one of several `ways`, if the implementation supports it.
    fn move_data(&self, spool: &Self::Spool, way: usize) {
        let _ = (spool, way);
    }

    /// Checks that no data are left of a spool once nobody needs any.
    fn check_empty(&self, spool: &Self::Spool) {
        let _ = spool;
    }
}

/// Tests of each promise of a spool, for one [`SpoolKind`].
#[macro_export]
macro_rules! spool_suite {
    ($kind:ty) => {
        $crate::spool_suite! { $kind:
            a_consumer_is_shown_each_entry_once_and_in_order
            a_detached_consumer_is_neither_called_nor_held
            a_stream_id_is_durable_and_belongs_to_one_name
            a_forgotten_stream_is_gone_and_its_id_is_not_used_again
            batches_that_cannot_be_are_refused_at_once
            then_is_called_in_order_and_after_the_consumers
            a_batch_is_cancelled_or_told_and_never_both
            entries_can_be_read_while_their_body_is_needed
            front_fields_are_read_in_front_of_their_body
            a_large_body_is_read_like_any_other
            a_snapshot_takes_effect_with_the_advance_that_names_it
            an_advance_is_forgotten_without_a_checkpoint
            consumers_are_told_of_checkpoints
        }

        #[test]
        fn any_interleaving_equals_a_list_of_batches() {
            $crate::model::any_interleaving_equals_a_list_of_batches::<$kind>();
        }
    };
    ($kind:ty: $($promise:ident)*) => {
        $(
            #[test]
            fn $promise() {
                $crate::promises::$promise::<$kind>();
            }
        )*
    };
}
