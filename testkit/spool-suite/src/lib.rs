//! The promises of a spool as tests that any kind of spool runs.
//!
//! A kind says how it is opened, killed and cut off from its power; [`spool_suite!`] makes a test of each promise. Tests of packs, damage and space
//! belong to the kind that has them.
#![forbid(unsafe_code)]

pub mod model;
pub mod promises;
mod world;

use posthaste_spool::SpoolAdmin;

/// A kind of spool, and a place for the data of one.
pub trait SpoolKind: Sized {
    /// The spool.
    type Spool: SpoolAdmin + 'static;

    /// A place without data.
    fn new() -> Self;

    /// Opens the spool of this place. It makes checkpoints when it is asked to and at its end, and not by itself.
    ///
    /// # Panics
    /// If it cannot be opened, or is damaged.
    fn open(&mut self) -> Self::Spool;

    /// Ends it as a kill does: what was advanced since its last checkpoint is forgotten.
    fn kill(&mut self, spool: Self::Spool);

    /// As [`kill`](Self::kill), and of what was not on stable storage `seed` says what is left.
    fn cut_power(&mut self, spool: Self::Spool, seed: u64);

    /// Makes room by moving what is still needed elsewhere, in one of several `ways`, if this kind does that.
    fn move_data(&self, spool: &Self::Spool, way: usize) {
        let _ = (spool, way);
    }

    /// Checks that nothing is left of a spool of which nobody needs anything.
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
