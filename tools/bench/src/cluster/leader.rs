//! The engine loses the server that leads the shard's log, under an even load.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use posthaste_loadgen::load::{Pace, Plan, run};

use super::nodes::Cluster;
use super::{LOOK, RATE as SENT_ON, wait_for};
use crate::relay::accounting::check_when_written;
use crate::relay::loaded::{plan, pool};
use crate::sink::Sink;
use crate::suite::{Better, Figure, Running, Sample, Settings, SideError, Unit};

pub(super) const NAME: &str = "cluster-leader";
pub(super) const FIGURES: &[Figure] = &[
    Figure { key: "longest_us", name: "longest wait of a client", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "refused", name: "refused", unit: Unit::Count, better: Better::Lower },
    Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99", unit: Unit::Micros, better: Better::Lower },
    SENT_ON,
];
/// Messages a second.
pub(super) const RATE: u32 = 200;
pub(super) const CONNECTIONS: usize = 100;
pub(super) const KILLED_AFTER: Duration = Duration::from_secs(5);
const STARTED_AFTER: Duration = Duration::from_secs(15);

pub(super) fn time(settings: &Settings) -> Duration {
    settings.time(Duration::from_secs(40), Duration::from_secs(20))
}

/// A cluster whose engine is damaged in each round.
pub(super) struct LostLeader {
    cluster: Cluster,
    sink: Sink,
    account: PathBuf,
}

impl LostLeader {
    /// # Errors
    /// Something does not start.
    pub fn start(settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        let account = dir.join("sink.jsonl");
        let sink = Sink::start_with_account(&settings.program, dir, &account)?;
        let cluster = Cluster::start(settings, dir, [sink.address.port(); 3])?;
        Ok(Self { cluster, sink, account })
    }
}

impl Running for LostLeader {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        wait_for("the cluster is not well", || self.cluster.is_well())?;
        let engine = &mut self.cluster.engine;
        let leader = engine.leader(1).ok_or_else(|| SideError::Failed("the log has no leader".to_owned()))?;
        let plan =
            plan(self.cluster.nodes[0].address(), CONNECTIONS, &pool(&"10k".parse().expect("a size")), time(settings));
        let plan =
            Plan { pace: Pace { rate: Some(f64::from(RATE)), ..plan.pace }, timeout: Duration::from_secs(90), ..plan };
        let before = self.sink.accepted();
        let (mut is_killed, mut again) = (false, None);
        let mut watch = |progress: &posthaste_loadgen::load::Progress<'_>| {
            if progress.elapsed >= KILLED_AFTER && !std::mem::replace(&mut is_killed, true) {
                engine.kill(leader);
            }
            if progress.elapsed >= STARTED_AFTER && again.is_none() {
                again = Some(engine.start_again(leader));
            }
        };
        let outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), LOOK, &mut watch);
        let outcome = outcome.map_err(SideError::failed("load"))?;
        again.unwrap_or_else(|| Err(SideError::Failed("the run was too short".to_owned())))?;
        let acked = outcome.ledger.acked();
        wait_for("acknowledged mail is not in the sink", || self.sink.accepted() >= before + acked)?;
        check_when_written(&outcome.ledger, &self.account)?;
        let total = &outcome.total;
        Ok(crate::run::sample([
            ("longest_us", total.latency.max_us as f64),
            ("refused", total.failed as f64),
            ("p50_us", total.latency.p50_us as f64),
            ("p99_us", total.latency.p99_us as f64),
            ("rate", total.rate),
        ]))
    }
}
