//! The promises of every spool, kept by a replicated one over the spool of the ring. Once the engine does all, and once
//! it fails in every way.

use posthaste_spool::Spool;
use posthaste_spool_suite::{SpoolKind, spool_suite};

use crate::world::{self, Replicated};

mod without_faults {
    use super::*;
    spool_suite!(OnMachine<false>);
}

mod with_faults {
    use super::*;
    spool_suite!(OnMachine<true>);
}

#[cfg(feature = "nats")]
mod on_nats {
    use super::*;
    spool_suite!(nats::OnNats);
}

/// A member on a machine whose power can be cut, and an engine that stays.
struct OnMachine<const FAULTS: bool>(world::Place);

impl<const FAULTS: bool> SpoolKind for OnMachine<FAULTS> {
    type Spool = Replicated;

    fn new() -> Self {
        OnMachine(world::Place::new(if FAULTS { world::faults() } else { Default::default() }))
    }

    fn open(&mut self) -> Replicated {
        self.0.open().unwrap()
    }

    fn kill(&mut self, spool: Replicated) {
        spool.abandon().abandon();
    }

    fn cut_power(&mut self, spool: Replicated, seed: u64) {
        spool.abandon().abandon();
        self.0.cut_power(seed);
    }

    /// Packs so many segments, or with 0 cleans the packs.
    fn move_data(&self, spool: &Replicated, way: usize) {
        match way {
            0 => drop(spool.local().clean_packs().unwrap()),
            segments => drop(spool.local().pack_oldest(segments).unwrap()),
        }
    }

    fn check_empty(&self, spool: &Replicated) {
        let is_empty = |dir: &str| std::fs::read_dir(self.0.path().join(dir)).unwrap().next().is_none();
        // A checkpoint advances the private stream, so packs with its entries go after it; and what waited for room may
        // come only now.
        let is_left = || {
            let files = spool.local().file_stats();
            files.packs > 0
                || files.ring.segments_in_service > 1
                || !["packs", "bodies", "live"].iter().all(|dir| is_empty(dir))
        };
        while is_left() {
            spool.local().clean_packs().unwrap();
            spool.checkpoint().unwrap();
        }
        let snapshots = std::fs::read_dir(self.0.path().join("snapshots")).unwrap();
        assert!(snapshots.count() <= 2, "its own, and the one before");
    }
}

/// The suite with NATS JetStream. Where there is no server, the engine in memory takes its place: the stage `nats` of
/// CI always has one.
#[cfg(feature = "nats")]
mod nats {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use posthaste_cluster::ShardLog;
    use posthaste_cluster::nats::{NatsConfig, NatsEngine};
    use posthaste_nats_server::{NatsServer, shared};
    use posthaste_spool_suite::SpoolKind;

    use super::OnMachine;
    use crate::nats::config;
    use crate::world::Replicated;

    pub struct OnNats {
        machine: OnMachine<false>,
        log: Arc<dyn ShardLog>,
        _server: Option<Arc<NatsServer>>,
    }

    impl SpoolKind for OnNats {
        type Spool = Replicated;

        fn new() -> Self {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let machine = OnMachine::<false>::new();
            let server = shared();
            let log: Arc<dyn ShardLog> = match &server {
                None => Arc::new(machine.0.log.clone()),
                Some(server) => {
                    let prefix = format!("suite-{}", COUNT.fetch_add(1, Ordering::SeqCst));
                    // A busy machine is slow to make a stream.
                    let timeout = Duration::from_secs(20);
                    let config = NatsConfig { prefix, log_bytes_max: 256 << 20, timeout, ..config(server) };
                    Arc::new(NatsEngine::connect(config).unwrap().log(3).unwrap())
                }
            };
            OnNats { machine, log, _server: server }
        }

        fn open(&mut self) -> Replicated {
            self.machine.0.config.identity.nonce += 1;
            self.machine.0.open_on(self.log.clone()).unwrap()
        }

        fn kill(&mut self, spool: Replicated) {
            self.machine.kill(spool);
        }

        fn cut_power(&mut self, spool: Replicated, seed: u64) {
            self.machine.cut_power(spool, seed);
        }

        fn move_data(&self, spool: &Replicated, way: usize) {
            self.machine.move_data(spool, way);
        }

        fn check_empty(&self, spool: &Replicated) {
            self.machine.check_empty(spool);
        }
    }
}
