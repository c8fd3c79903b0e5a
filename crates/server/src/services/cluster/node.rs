//! Start and end of a node.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use posthaste_cluster::nats::{NatsConfig, NatsEngine, NatsError, NatsLogin, NatsPeers, NatsTls};
use posthaste_cluster::{
    BootTime, CallThreads, Cells, ClusterNode, DriverConfig, DriverWorld, LogError, NodeDriver, NodeName, NodeNews,
    NodeShard, OwnerIdentity, OwnershipConfig, OwnershipRules, OwnershipTimes, Peers, ReaderRules, ReplicatedConfig,
    ReplicatedSpool, SenderRules, ShardLog, ShardOpenError, WriterRules,
};
use posthaste_config::{Cluster, ClusterShard, Config, Dns};
use posthaste_directory::Directory;
use posthaste_events::Event;
use posthaste_intake::{Destination, Intake};
use posthaste_notify::suppression::Suppressions;
use posthaste_spool::FileSpool;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use super::control::{ControlDesk, ControlParts};
use super::lending::Lending;
use super::nodes::NodeList;
use super::others::EngineNodes;
use super::serving_node::{Roles, ServedShard, ServingNode, event_of};
use super::shard::{Alarm, RelaySettings, ShardParts, ShardRelay, ShardSenders};
use crate::config::engine_login::EngineLogin;
use crate::config::error::ServeError;
use crate::config::start_files::RelayFiles;
use crate::lifecycle::{Ended, Ending, OnFailure, START_ENDS, Service};
use crate::receive::handler::{Receiver, WeakReceiver};
use crate::receive::relay_slot::RelaySlot;
use crate::receive::shards::ShardQueue;
use crate::receive::success::random_id;
use crate::repeats::Repeats;
use crate::services::inject::KEY_STREAM;
use crate::services::opening::{intake_config, open_when_free, spool_config};
use crate::services::relay::{self, relay_config, warn_of_far};

/// The shards of this node, open as a standby's.
pub(crate) struct OpenShards {
    node: String,
    /// Limit of the log of each shard.
    log_bytes: u64,
    cells: Arc<dyn Cells>,
    control: Arc<dyn ShardLog>,
    peers: NatsPeers,
    nodes: NodeList,
    shards: Vec<OpenShard>,
    home: Intake,
}

struct OpenShard {
    config: ClusterShard,
    dir: PathBuf,
    log: Arc<dyn ShardLog>,
    spool: Arc<ReplicatedSpool<FileSpool>>,
    intake: Intake,
}

impl OpenShards {
    /// Connects to the engine, and opens the spool of each shard. `None` without a cluster.
    ///
    /// # Errors
    /// The engine does not answer or has unsafe settings, a spool cannot be opened, or the process must end.
    pub async fn open(config: &Config, login: EngineLogin, repeats: Arc<Repeats>) -> Result<Option<Self>, ServeError> {
        let Some(cluster) = config.cluster.clone() else { return Ok(None) };
        let config = config.clone();
        let open = move || open(&config, &cluster, login, &repeats);
        tokio::select! {
            opened = spawn_blocking(open) => opened.map_err(std::io::Error::from)?.map(Some),
            // It may wait a minute for the engine. The thread ends with the process; no mail was accepted.
            () = START_ENDS.notified() => {
                tracing::info!("stopped while the engine of the cluster did not answer");
                Err(ServeError::Stopped)
            }
        }
    }

    /// Accepts the mail of this node.
    pub fn intake(&self) -> &Intake {
        &self.home
    }

    /// Takes shards over, and sends their mail, from now on.
    ///
    /// # Errors
    /// A name in the configuration that cannot be used, no resolver, or no threads.
    pub async fn start(
        self,
        config: &Config,
        mut files: RelayFiles,
        receiver: Receiver,
    ) -> Result<ClusterService, ServeError> {
        let forwarding = std::mem::take(&mut files.forwarding);
        let resolver = files.resolver.as_ref().map_err(|error| ServeError::Dns(error.to_string()))?.clone();
        warn_of_far(&resolver);
        receiver.remote().set_resolver(resolver.clone());
        let home_slot = receiver.remote().queue().clone();
        let senders = ShardSenders::new(receiver.downgrade(), self.home.clone(), home_slot);
        let (of_relay, to) = (config.clone(), receiver.clone());
        let make = move || relay_config(&of_relay, files, resolver, &to, (Arc::new(senders), to.events().cloned()));
        let relay = spawn_blocking(make).await.map_err(std::io::Error::from)??;
        let settings = Arc::new(Mutex::new(RelaySettings { config: relay, section: config.relay.clone() }));
        receiver.remote().open_now_and_then(forwarding);
        let of_thread = |error| ServeError::Service { service: "cluster", error };
        self.run(config, settings, &receiver).map_err(of_thread)
    }

    fn run(
        self,
        config: &Config,
        settings: Arc<Mutex<RelaySettings>>,
        receiver: &Receiver,
    ) -> std::io::Result<ClusterService> {
        let Self { node, log_bytes, cells, control, peers, nodes, shards, home: _ } = self;
        let peers: Arc<dyn Peers> = Arc::new(peers);
        let lending = lending_of(config, &peers, receiver);
        let intakes = shards.iter().map(|shard| shard.intake.clone()).collect();
        let (alive, ended) = Ended::new();
        let alarm = Alarm::new(alive);
        let (mut members, mut relays, mut seen, mut queues) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for OpenShard { config, dir, log, spool, intake } in shards {
            let is_home = config.home == node;
            let slot = if is_home { receiver.remote().queue().clone() } else { Arc::<RelaySlot>::default() };
            let notifier = Arc::new(ShardSenders::new(receiver.downgrade(), intake.clone(), slot.clone()));
            let own: Arc<dyn Destination> = slot.clone();
            let destinations = if is_home { receiver.destinations().list().to_vec() } else { vec![own] };
            let queue = Arc::new(ShardQueue::new(config.number, intake, slot, destinations));
            queues.push(queue.clone());
            let parts = ShardParts {
                queue,
                spool: spool.clone(),
                dir,
                settings: settings.clone(),
                notifier,
                lending: lending.clone(),
            };
            let relay = Arc::new(ShardRelay::start(parts, alarm.clone())?);
            seen.push(ServedShard { config, log, state: relay.state.clone() });
            members.push(NodeShard::new(spool, is_home, relay.clone()));
            relays.push(relay);
        }
        receiver.remote().set_shards(queues.clone());
        let roles = Arc::<Roles>::default();
        let noted = roles.clone();
        let events = events_of(receiver, node.clone());
        let tell = Box::new(move |news: NodeNews| {
            events(&news);
            if noted.note(&news) {
                alarm.ring();
            }
        });
        let world =
            DriverWorld { cells: cells.clone(), calls: Arc::new(CallThreads::start()?), clock: Arc::new(BootTime) };
        let driver = NodeDriver::new(driver_config(&node, log_bytes), world, members, tell)?;
        let running = Arc::new(ClusterNode::start(driver)?);
        let control = ControlDesk::start(ControlParts {
            me: NodeName::new(&node).expect("the configuration was checked"),
            log: control,
            path: config.storage.data.join("cluster").join("control"),
            suppressions: suppressions_of(&settings),
            queues,
            node: running.clone(),
            nodes: nodes.clone(),
            seed: random(),
        })?;
        let is_draining = AtomicBool::new(false);
        let others = EngineNodes {
            me: node.clone(),
            nodes: nodes.clone(),
            cells: cells.clone(),
            peers,
            answers: Mutex::default(),
        };
        receiver.set_cluster(Arc::new(ServingNode {
            node,
            running: running.clone(),
            cells,
            shards: seen,
            nodes,
            control,
            others,
            roles,
            is_draining,
        }));
        let (receiver, dns) = (receiver.downgrade(), config.dns.clone());
        Ok(ClusterService { node: running, relays, intakes, settings, receiver, dns, ended })
    }
}

/// `None` with one shard: its limits are whole.
fn lending_of(config: &Config, peers: &Arc<dyn Peers>, receiver: &Receiver) -> Option<Arc<Lending>> {
    let numbers = config.cluster.iter().flat_map(|cluster| &cluster.shards).map(|shard| shard.number);
    let lending = Lending::new(numbers, peers.clone(), Arc::new(BootTime), receiver.meters().clone());
    (config.limit_shares() > 1).then_some(lending)
}

/// Writes the news of this node into the event log.
fn events_of(receiver: &Receiver, here: String) -> impl Fn(&NodeNews) + use<> {
    let recorder = receiver.events().cloned();
    move |news| {
        if let (Some(recorder), Some(kind)) = (&recorder, event_of(news, &here)) {
            recorder.note(&Event::now(kind));
        }
    }
}

fn suppressions_of(settings: &Mutex<RelaySettings>) -> Option<Arc<Suppressions>> {
    settings.lock().unwrap_or_else(PoisonError::into_inner).config.bounces.suppressions.clone()
}

fn driver_config(node: &str, log_bytes: u64) -> DriverConfig {
    let node = NodeName::new(node).expect("the configuration was checked");
    let (mut times, rules) = (OwnershipTimes::default(), OwnershipRules::ALL);
    // New mail is refused from 80 % on: kept records, or a member that is away, must not fill the log that far.
    for bytes in [&mut times.keep.1, &mut times.behind_most.1] {
        *bytes = (log_bytes / 2).min(*bytes);
    }
    let ownership = OwnershipConfig { node, incarnation: random(), times, rules };
    DriverConfig { ownership, transactions: TRANSACTIONS, release: RELEASE }
}

fn open(
    config: &Config,
    cluster: &Cluster,
    login: EngineLogin,
    repeats: &Arc<Repeats>,
) -> Result<OpenShards, ServeError> {
    let until = Instant::now() + ENGINE_STARTS;
    let engine_config = engine_config(cluster, login);
    let engine = answered(until, || Ok(NatsEngine::connect(engine_config.clone())?))?;
    let cells = answered(until, || Ok(engine.cells()?))?;
    let control: Arc<dyn ShardLog> = Arc::new(answered(until, || Ok(engine.control()?))?);
    let mut wrong = answered(until, || Ok(cells.check()?))?;
    wrong.extend(answered(until, || Ok(control.check()?))?);
    wrong.sort();
    wrong.dedup();
    if !wrong.is_empty() {
        return Err(ServeError::Cluster(format!("change the settings of the engine: {}", wrong.join("; "))));
    }
    let cells: Arc<dyn Cells> = Arc::new(cells);
    let nodes = NodeList::new(cluster.shards.iter().flat_map(ClusterShard::members), cells.clone());
    answered(until, || Ok(nodes.check_start(&cluster.node)?))?.map_err(ServeError::Cluster)?;
    let (mut shards, mut home) = (Vec::new(), None);
    for shard in cluster.own_shards() {
        let dir = copy_of(config, shard.number);
        let log: Arc<dyn ShardLog> = Arc::new(answered(until, || Ok(engine.log(shard.number)?))?);
        // Each log elects a leader of its own: the engine knows an old one before it can read it.
        let follow = || {
            let local = open_local(config, &dir, repeats)?;
            let spool = ReplicatedSpool::follow(local, log.clone(), shard_config(config, shard.number));
            spool.map_err(|error| Unopened::of_shard(shard.number, &error))
        };
        let spool = Arc::new(answered(until, follow)?);
        let intake = Intake::new(spool.clone(), intake_config(config));
        if shard.home == cluster.node {
            home = Some(intake.clone());
        }
        shards.push(OpenShard { config: shard.clone(), dir, log, spool, intake });
    }
    let home = home.expect("the configuration was checked");
    let (node, log_bytes) = (cluster.node.clone(), cluster.log_bytes);
    let peers = engine.peers();
    Ok(OpenShards { node, log_bytes, cells, control, peers, nodes, shards, home })
}

/// Why a step of the start failed.
#[derive(Debug)]
enum Unopened {
    /// The engine has not answered: it may still be starting.
    Silent(String),
    Failed(ServeError),
}

impl Unopened {
    fn of_shard(shard: u16, error: &ShardOpenError) -> Self {
        let is_silent = matches!(error, ShardOpenError::Log(LogError::Unreachable(_)));
        let why = format!("shard {shard}: {error}");
        if is_silent { Self::Silent(why) } else { Self::Failed(ServeError::Cluster(why)) }
    }
}

impl From<LogError> for Unopened {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Unreachable(_) => Self::Silent(error.to_string()),
            _ => Self::Failed(ServeError::Cluster(error.to_string())),
        }
    }
}

impl From<NatsError> for Unopened {
    fn from(error: NatsError) -> Self {
        if error.is_silence() {
            Self::Silent(error.to_string())
        } else {
            Self::Failed(ServeError::Cluster(error.to_string()))
        }
    }
}

impl From<ServeError> for Unopened {
    fn from(error: ServeError) -> Self {
        Self::Failed(error)
    }
}

/// Retries until a deadline while the engine does not answer: its servers may still be starting, or electing leaders.
fn answered<T>(until: Instant, ask: impl Fn() -> Result<T, Unopened>) -> Result<T, ServeError> {
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(Unopened::Silent(why)) if Instant::now() < until => {
                tracing::warn!(why, "the engine does not answer; asking again");
                std::thread::sleep(Duration::from_secs(1));
            }
            Err(Unopened::Silent(why)) => return Err(ServeError::Cluster(why)),
            Err(Unopened::Failed(error)) => return Err(error),
        }
    }
}

fn open_local(config: &Config, dir: &Path, repeats: &Arc<Repeats>) -> Result<FileSpool, ServeError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| ServeError::Service { service: "cluster", error })?;
    let (spool, found) = open_when_free(dir, spool_config(config, repeats.clone()))?;
    crate::services::opening::tell(&found);
    Ok(spool)
}

/// The directory of a member's spool.
pub(super) fn copy_of(config: &Config, shard: u16) -> PathBuf {
    config.storage.data.join("cluster").join(format!("shard-{shard}"))
}

pub(super) fn engine_config(cluster: &Cluster, EngineLogin(login): EngineLogin) -> NatsConfig {
    let tls =
        || NatsTls { roots: cluster.ca_file.clone(), client: cluster.certificate.clone().zip(cluster.key.clone()) };
    NatsConfig {
        servers: cluster.servers.clone(),
        monitors: cluster.monitors.clone(),
        tls: cluster.tls.then(tls),
        login: login.map(|(user, password)| NatsLogin { user, password }),
        prefix: cluster.prefix.clone(),
        replicas: cluster.replicas,
        log_bytes_max: cluster.log_bytes,
        timeout: ENGINE_TIMEOUT,
    }
}

fn shard_config(config: &Config, shard: u16) -> ReplicatedConfig {
    let segment_bytes = config.storage.spool_segment_bytes;
    ReplicatedConfig {
        shard,
        identity: OwnerIdentity { nonce: random(), log: random(), epoch: None },
        segment_bytes,
        record_bytes_max: usize::try_from(segment_bytes / 2).unwrap_or(usize::MAX),
        pending_bytes_max: PENDING_BYTES_MAX,
        engine_pace: ENGINE_PACE,
        // Nobody reads the idempotency keys on a standby.
        owner_streams: vec![KEY_STREAM.to_owned()],
        reader_rules: ReaderRules::default(),
        sender_rules: SenderRules::default(),
        writer_rules: WriterRules::default(),
    }
}

fn random() -> u64 {
    random_id() as u64
}

/// A running cluster node.
pub(crate) struct ClusterService {
    node: Arc<ClusterNode>,
    relays: Vec<Arc<ShardRelay>>,
    intakes: Vec<Intake>,
    settings: Arc<Mutex<RelaySettings>>,
    receiver: WeakReceiver,
    /// Resolver and its limits.
    dns: Dns,
    ended: Ended,
}

impl Service for ClusterService {
    fn name(&self) -> &'static str {
        "cluster"
    }

    /// Another process has its name, or a thread has panicked.
    fn on_failure(&self) -> OnFailure {
        OnFailure::Stop
    }

    /// As for the relay of a server without a cluster; also for relays that are opened later.
    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        let (mut kept, mut resolver) = (Vec::new(), None);
        match RelayFiles::read(config) {
            Ok(files) => {
                let has_other_dns = self.dns != config.dns || config.dns.hosts_file.is_some();
                resolver = files.resolver.ok().filter(|_| has_other_dns);
                let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
                let RelaySettings { config: of_relay, section } = &mut *settings;
                section.clone_from(&config.relay);
                (of_relay.routing, of_relay.shaping, of_relay.notices) = (files.routing, files.shaping, files.notices);
                of_relay.queue_limits = config.relay.queue_limits();
                of_relay.resolver = resolver.clone().unwrap_or_else(|| of_relay.resolver.clone());
            }
            Err(_) => kept.push("the relay's files, for shards taken over from now on"),
        }
        if let Some((resolver, receiver)) = resolver.as_ref().zip(self.receiver.upgrade()) {
            receiver.remote().set_resolver(resolver.clone());
            self.dns = config.dns.clone();
        }
        for relay in self.relays.iter().filter_map(|relay| relay.state.opened()) {
            resolver.iter().for_each(|resolver| relay.set_resolver(resolver.clone()));
            kept.extend(relay::reload(&relay, config));
        }
        kept
    }

    /// Hands its shards over. Work in progress is finished, or continues on another node.
    fn stop(self: Box<Self>, deadline: tokio::time::Instant) -> Ending<'static> {
        Box::pin(async move {
            let (node, (tell, told)) = (self.node.clone(), oneshot::channel());
            self.intakes.iter().for_each(Intake::close);
            // A thread of its own: an engine that does not answer holds it up.
            let drain = std::thread::Builder::new().name("cluster-drain".to_owned()).spawn(move || {
                node.drain();
                let _ = tell.send(());
            });
            let is_drained = drain.is_ok() && timeout_at(deadline, told).await.is_ok();
            if !is_drained {
                tracing::warn!("shards are not handed over: another node takes them once this one is silent");
            }
            let end = move || {
                self.relays.iter().for_each(|relay| relay.end_by(deadline.into_std()));
                self.intakes.iter().for_each(|intake| intake.end(deadline.into_std()));
            };
            let _ = spawn_blocking(end).await;
            Ok(())
        })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ended.poll(cx)
    }
}

/// Maximum bytes that wait for the engine in each shard.
const PENDING_BYTES_MAX: u64 = 256 << 20;
/// Time after which a request without an answer is lost.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a start waits for the engine.
const ENGINE_STARTS: Duration = Duration::from_secs(60);
/// Interval between queries of the engine's room.
const ENGINE_PACE: Duration = Duration::from_secs(5);
/// A planned hand-over waits this long for open transactions.
const TRANSACTIONS: Duration = Duration::from_secs(10);
/// A planned hand-over waits this long for work in progress.
const RELEASE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_start_asks_again_only_while_the_engine_is_not_reached() {
        let check = |wait_secs, answers: &[Result<u8, LogError>], expected: Option<u8>, asked: usize| {
            let next = Cell::new(0);
            let until = Instant::now() + Duration::from_secs(wait_secs);
            let answer = answered(until, || Ok(answers[next.replace(next.get() + 1)].clone()?));
            assert_eq!((answer.ok(), next.get()), (expected, asked));
        };
        let away = || Err(LogError::Unreachable("no leader".to_owned()));
        check(60, &[away(), Ok(7)], Some(7), 2);
        check(60, &[Err(LogError::Conflict), Ok(7)], None, 1);
        check(0, &[away(), Ok(7)], None, 1);
    }

    #[test]
    fn an_engine_that_starts_later_is_asked_again() {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = |servers: &str| NatsConfig {
            servers: vec![servers.to_owned()],
            monitors: Vec::new(),
            tls: None,
            login: None,
            prefix: "test".to_owned(),
            replicas: 1,
            log_bytes_max: 1 << 20,
            timeout: Duration::from_secs(5),
        };
        let of = |servers: &str| NatsEngine::connect(config(servers)).map(drop).map_err(Unopened::from);
        assert!(matches!(of(&unused.to_string()), Err(Unopened::Silent(_))));
        assert!(matches!(of("192.0.2.1:4222"), Err(Unopened::Failed(_))));
    }
}
