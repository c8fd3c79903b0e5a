//! Tokens of limits, between the shards of a cluster: locks, threads and the engine around [`TokenHome`] and
//! [`Borrower`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_cluster::{
    Borrower, LeaseClock, LendingCounts, LendingRules, LendingShards, PACE, PeerAnswerer, PeerName, Peers, TokenAnswer,
    TokenHome, TokenRequest, VALID, limit_key,
};
use posthaste_shaping::limits::{Lender, Lent};
use posthaste_units::Rate;

use crate::receive::meters::Meters;
use crate::receive::success::random_id;

/// Lends and borrows for the shards that this node owns.
pub(super) struct Lending {
    shards: LendingShards,
    peers: Arc<dyn Peers>,
    clock: Arc<dyn LeaseClock>,
    meters: Arc<Meters>,
    /// The homes on this node: they are asked without the engine.
    homes: Mutex<BTreeMap<u16, PeerAnswerer>>,
}

/// The limits of a shard that this node owns, until it is dropped: then the shard lends nothing, and borrows nothing.
pub(super) struct ShardLending {
    lending: Arc<Lending>,
    shard: u16,
    borrowed: Arc<Borrowed>,
    home: Arc<Mutex<Option<TokenHome>>>,
    _answers: Box<dyn Send + Sync>,
}

/// Tokens borrowed by a shard.
struct Borrowed {
    lending: Arc<Lending>,
    may_act: MayAct,
    state: Mutex<BorrowedState>,
    /// For each home: notified of a wish, and at the end.
    wanted: Vec<Condvar>,
}

struct BorrowedState {
    borrower: Borrower,
    /// Handles of each limit.
    handles: HashMap<u64, u32>,
    /// For each home: a limit has had no tokens since the last request.
    wishes: Vec<bool>,
    counted: LendingCounts,
    is_ended: bool,
}

/// True within the lease of a shard.
type MayAct = Arc<dyn Fn() -> bool + Send + Sync>;

/// A limit in use.
struct LentLimit {
    of: Arc<Borrowed>,
    key: u64,
}

impl Lending {
    /// `shards`: the numbers of all shards of the cluster.
    pub fn new(
        shards: impl Iterator<Item = u16>,
        peers: Arc<dyn Peers>,
        clock: Arc<dyn LeaseClock>,
        meters: Arc<Meters>,
    ) -> Arc<Self> {
        let mut shards: Vec<u16> = shards.collect();
        shards.sort_unstable();
        Arc::new(Lending { shards: shards.into(), peers, clock, meters, homes: Mutex::default() })
    }

    /// Lends and borrows for a shard within its lease, until that is dropped.
    pub fn begin(self: &Arc<Self>, shard: u16, may_act: MayAct) -> ShardLending {
        let begun = self.open(shard, may_act);
        for home in 0..self.shards.len() {
            let borrowed = begun.borrowed.clone();
            let thread = std::thread::Builder::new().name("cluster-limits".to_owned());
            if let Err(error) = thread.spawn(move || borrowed.run(home)) {
                let error = error.to_string();
                tracing::error!(shard, error, "no thread for limits: this shard keeps to its share of some of them");
            }
        }
        begun
    }

    fn open(self: &Arc<Self>, shard: u16, may_act: MayAct) -> ShardLending {
        let now = self.now();
        let home = TokenHome::new(random_id() as u64, self.shards.clone(), now, LendingRules::ALL);
        let home = Arc::new(Mutex::new(Some(home)));
        let (lender, clock, of_home) = (home.clone(), self.clock.clone(), may_act.clone());
        let answerer: PeerAnswerer = Arc::new(move |question: Bytes| {
            let Some(request) = TokenRequest::decode(&question) else { return Bytes::new() };
            let mut home = lender.lock().unwrap_or_else(PoisonError::into_inner);
            // The clock is read before the lease is checked.
            let now = nanos(&*clock);
            let home = home.as_mut().filter(|_| of_home());
            home.and_then(|home| home.answer(&request, now)).map_or_else(Bytes::new, |answer| answer.encode())
        });
        self.homes().insert(shard, answerer.clone());
        let answers = self.peers.answer(&PeerName::Limits(shard), answerer);
        let borrower = Borrower::new(shard, self.shards.clone(), now, LendingRules::ALL);
        let (handles, counted, is_ended) = Default::default();
        let wishes = vec![false; self.shards.len()];
        let state = Mutex::new(BorrowedState { borrower, handles, wishes, counted, is_ended });
        let wanted = self.shards.iter().map(|_| Condvar::new()).collect();
        let borrowed = Arc::new(Borrowed { lending: self.clone(), may_act, state, wanted });
        ShardLending { lending: self.clone(), shard, borrowed, home, _answers: answers }
    }

    fn homes(&self) -> MutexGuard<'_, BTreeMap<u16, PeerAnswerer>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the owner of a shard for tokens. `None`: there is no owner, or no answer in time.
    fn ask(&self, home: usize, request: &TokenRequest) -> Option<TokenAnswer> {
        let (shard, question) = (self.shards[home], request.encode());
        let here = self.homes().get(&shard).cloned();
        let answer = match here {
            Some(answer) => answer(question),
            None => self.peers.ask(&PeerName::Limits(shard), question, PATIENCE).ok()?,
        };
        TokenAnswer::decode(&answer)
    }

    fn now(&self) -> u64 {
        nanos(&*self.clock)
    }
}

impl ShardLending {
    /// Lends to the relay of the shard.
    pub fn lender(&self) -> Arc<dyn Lender> {
        Arc::new(RelayLender(self.borrowed.clone()))
    }
}

impl Drop for ShardLending {
    fn drop(&mut self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.lending.homes().remove(&self.shard);
        self.borrowed.state().is_ended = true;
        self.borrowed.wanted.iter().for_each(Condvar::notify_all);
    }
}

impl Borrowed {
    fn state(&self) -> MutexGuard<'_, BorrowedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges requests with a home until the end.
    fn run(&self, home: usize) {
        while self.turn(home) {
            let wanted = &self.wanted[home];
            // A wish is sent at once, but not each by itself.
            let state = wanted.wait_timeout_while(self.state(), GATHER, |state| !state.is_ended);
            let (state, _) = state.unwrap_or_else(PoisonError::into_inner);
            let is_quiet = |state: &mut BorrowedState| !state.is_ended && !state.wishes[home];
            drop(wanted.wait_timeout_while(state, Duration::from_nanos(PACE) - GATHER, is_quiet));
        }
    }

    /// Sends the request that is due. False at the end.
    fn turn(&self, home: usize) -> bool {
        let (sent_at, request) = {
            let mut state = self.state();
            if state.is_ended {
                return false;
            }
            state.wishes[home] = false;
            let now = self.lending.now();
            // Without the lease the home must not hear this shard: the next owner may not hear the home.
            let request = if (self.may_act)() { state.borrower.request(home, now) } else { None };
            (now, request)
        };
        if let Some(answer) = request.and_then(|request| self.lending.ask(home, &request)) {
            let mut state = self.state();
            let now = self.lending.now();
            state.borrower.answered(home, sent_at, &answer, now);
        }
        self.state().count(&self.lending.meters);
        true
    }
}

impl BorrowedState {
    fn count(&mut self, meters: &Meters) {
        let counts = self.borrower.counts();
        let LendingCounts { lent, used, alone } = std::mem::replace(&mut self.counted, counts);
        meters.lent(counts.lent - lent, counts.used - used, counts.alone - alone);
    }
}

struct RelayLender(Arc<Borrowed>);

impl Lender for RelayLender {
    fn limit(&self, name: &Arc<str>, rate: Rate) -> Box<dyn Lent> {
        let key = limit_key(name);
        let mut state = self.0.state();
        let now = self.0.lending.now();
        state.borrower.set(key, rate, now);
        *state.handles.entry(key).or_default() += 1;
        Box::new(LentLimit { of: self.0.clone(), key })
    }
}

impl Lent for LentLimit {
    fn available(&self) -> u32 {
        let mut state = self.of.state();
        let now = self.of.lending.now();
        state.borrower.available(self.key, now)
    }

    fn take(&self) -> bool {
        let mut state = self.of.state();
        // Read after the lock was waited for: the token may have died meanwhile.
        let now = self.of.lending.now();
        state.borrower.take(self.key, now)
    }

    fn hold(&self, is_held: bool) {
        let mut state = self.of.state();
        let now = self.of.lending.now();
        state.borrower.hold(self.key, is_held, now);
    }

    fn want(&self, count: u32) -> u64 {
        let mut state = self.of.state();
        let now = self.of.lending.now();
        let until = state.borrower.want(self.key, count, now);
        let home = state.borrower.home_of(self.key);
        if !std::mem::replace(&mut state.wishes[home], true) {
            self.of.wanted[home].notify_one();
        }
        until.saturating_sub(now)
    }
}

impl Drop for LentLimit {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let left = state.handles.get_mut(&self.key).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            state.handles.remove(&self.key);
            state.borrower.remove(self.key);
        }
    }
}

fn nanos(clock: &dyn LeaseClock) -> u64 {
    u64::try_from(clock.now().as_nanos()).unwrap_or(u64::MAX)
}

/// Timeout of a request: a later answer is useless.
const PATIENCE: Duration = Duration::from_nanos(VALID);
/// Wishes within this time go into one request.
const GATHER: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use posthaste_cluster::{LogError, NodeName};

    use super::*;

    #[derive(Default)]
    struct HandClock(Mutex<Duration>);

    impl HandClock {
        fn advance(&self, ms: u64) {
            *self.0.lock().unwrap() += Duration::from_millis(ms);
        }
    }

    impl LeaseClock for HandClock {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    /// The engine between the nodes of a test.
    #[derive(Clone, Default)]
    struct Engine {
        answerers: Arc<Mutex<BTreeMap<PeerName, PeerAnswerer>>>,
        is_away: Arc<AtomicBool>,
    }

    impl Peers for Engine {
        fn ask(&self, node: &PeerName, question: Bytes, _: Duration) -> Result<Bytes, LogError> {
            let answerer = self.answerers.lock().unwrap().get(node).cloned();
            let answerer = answerer.filter(|_| !self.is_away.load(Ordering::Relaxed));
            answerer.map(|answer| answer(question)).ok_or_else(|| LogError::Unreachable("away".to_owned()))
        }

        fn answer(&self, node: &PeerName, answer: PeerAnswerer) -> Box<dyn Send + Sync> {
            self.answerers.lock().unwrap().insert(node.clone(), answer);
            Box::new(())
        }
    }

    struct Cluster {
        clock: Arc<HandClock>,
        engine: Engine,
        meters: Arc<Meters>,
        nodes: Vec<Arc<Lending>>,
        shards: Vec<ShardLending>,
    }

    impl Cluster {
        fn new() -> Self {
            let (clock, engine, meters) = (Arc::<HandClock>::default(), Engine::default(), Arc::<Meters>::default());
            clock.advance(1000);
            let node = |_| Lending::new([3, 1, 2].into_iter(), Arc::new(engine.clone()), clock.clone(), meters.clone());
            let nodes: Vec<_> = (0..3).map(node).collect();
            let shards = nodes.iter().zip(1..).map(|(node, shard)| node.open(shard, Arc::new(|| true))).collect();
            Cluster { clock, engine, meters, nodes, shards }
        }

        /// All ask all homes, each tenth of a second; the limits use what they get.
        fn run(&self, ms: u64, limits: &[&dyn Lent]) -> Vec<u32> {
            let mut used = vec![0; limits.len()];
            for _ in 0..ms / 100 {
                for (limit, used) in limits.iter().zip(&mut used) {
                    while limit.take() {
                        *used += 1;
                    }
                    limit.want(1);
                }
                for shard in &self.shards {
                    (0..3).for_each(|home| assert!(shard.borrowed.turn(home)));
                }
                self.clock.advance(100);
            }
            used
        }
    }

    #[test]
    fn one_shard_gets_the_whole_rate_and_two_share_it() {
        let cluster = Cluster::new();
        let rate: Rate = "30/second".parse().unwrap();
        let of = |shard: usize| cluster.shards[shard].lender().limit(&"site a".into(), rate);
        let (one, other) = (of(0), of(1));
        cluster.run(2000, &[&*one]);
        let alone = cluster.run(10_000, &[&*one])[0];
        assert!((285..=315).contains(&alone), "{alone}");
        let both = cluster.run(10_000, &[&*one, &*other]);
        // The home's own shard hears of its tokens first, so it has the larger part.
        assert!(both.iter().all(|used| *used > 60) && both.iter().sum::<u32>() <= 345, "{both:?}");
    }

    #[test]
    fn without_the_engine_each_shard_uses_its_share() {
        let cluster = Cluster::new();
        let limits: Vec<_> = (0..3)
            .map(|shard| cluster.shards[shard].lender().limit(&"site a".into(), "30/second".parse().unwrap()))
            .collect();
        let limits: Vec<&dyn Lent> = limits.iter().map(|limit| &**limit).collect();
        cluster.run(3000, &limits);
        cluster.engine.is_away.store(true, Ordering::Relaxed);
        cluster.run(3000, &limits);
        let used = cluster.run(10_000, &limits);
        // The home hears itself, and the others not.
        assert!(used.iter().all(|used| (90..=110).contains(used)), "{used:?}");
        let [lent, used, alone] = cluster.meters.of_lending();
        assert!(lent >= used && used > 0 && alone > 180, "{lent} {used} {alone}");
    }

    #[test]
    fn a_home_lends_within_its_lease_until_it_ends() {
        let cluster = Cluster::new();
        let key = (0..)
            .find(|number| cluster.shards[0].borrowed.state().borrower.home_of(limit_key(&format!("{number}"))) == 2);
        let name: Arc<str> = key.unwrap().to_string().into();
        let limit = cluster.shards[0].lender().limit(&name, "30/second".parse().unwrap());
        assert!(cluster.run(1500, &[&*limit])[0] > 0);
        let mut cluster = cluster;
        let may_act = Arc::new(AtomicBool::new(true));
        let lease = may_act.clone();
        let ended = cluster.shards.pop().unwrap();
        let answerer = cluster.nodes[2].homes().get(&3).cloned().unwrap();
        drop(ended);
        assert!(cluster.nodes[2].homes().is_empty() && answerer(request()).is_empty(), "it has ended");
        cluster.shards.push(cluster.nodes[2].open(3, Arc::new(move || lease.load(Ordering::Relaxed))));
        let asked = || cluster.engine.ask(&PeerName::Limits(3), request(), PATIENCE).unwrap();
        assert!(TokenAnswer::decode(&asked()).is_some());
        may_act.store(false, Ordering::Relaxed);
        assert!(asked().is_empty(), "its lease has ended");
        assert!(cluster.engine.ask(&PeerName::Node(NodeName::new("a").unwrap()), request(), PATIENCE).is_err());
    }

    fn request() -> Bytes {
        TokenRequest { shard: 1, heard: None, returned: Vec::new(), asks: Vec::new() }.encode()
    }

    #[test]
    fn threads_bring_tokens_and_end() {
        let engine = Engine::default();
        let (clock, meters) = (Arc::new(posthaste_cluster::BootTime), Arc::<Meters>::default());
        let lending = Lending::new([1, 2].into_iter(), Arc::new(engine), clock, meters);
        let shards = [1, 2].map(|shard| lending.begin(shard, Arc::new(|| true)));
        let limit = shards[0].lender().limit(&"site a".into(), "1000/second".parse().unwrap());
        wait("a token", || {
            let is_taken = limit.take();
            if !is_taken {
                limit.want(1);
            }
            is_taken
        });
        let borrowed = shards[0].borrowed.clone();
        drop((shards, limit));
        wait("the end of the threads", || Arc::strong_count(&borrowed) == 1);
    }

    fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "no {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
