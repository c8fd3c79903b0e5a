//! The server's state for the page: counters, streams, disks, and problems for the operator.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use posthaste_accounts::LoginFailure;
use posthaste_acme::Challenges;
use posthaste_admin::{
    AskRefusal, Attention, CertificateEnd, ClientAddress, Counters, DestinationCount, Distribution, DnsStatus,
    FollowEvents, Guess, InjectCall, InjectReply, PublicFile, QueueStatus, Readiness, RelayStatus, ServerStatus,
    ServerView, StreamStatus, Token, TokenHash, Urgency, WebhookStatus, secret_hash,
};
use posthaste_control::{CountLine, Request};
use posthaste_events::read::{Next, Reader};
use posthaste_intake::{Intake, Trouble};
use posthaste_queue::{QueueEntry, Secs, Selection};
use posthaste_relay::sender::{CountBy, Filter, Relay, STREAM as QUEUE, Standing};
use serde_json::{Value, json};

use crate::config::expiry::CertificateWarning;
use crate::control::delays::{DELAYS_MAX, Delay, rough};
use crate::control::disks::{Disks, FileSystem};
use crate::control::public_files::PublicFiles;
use crate::control::requests::everywhere::busiest_domains;
use crate::control::requests::queue_counts::{NamedCount, QueueCounts, tls_counts};
use crate::lifecycle::request_drain;
use crate::receive::handler::Receiver;
use crate::services::inject::{InjectKeys, Injector};
use crate::services::watch::CHECKPOINT_HANGS;
use posthaste_config::{Config, Storage};

/// Data for the page about the server.
pub(crate) struct Overview {
    receiver: Receiver,
    injector: Injector,
    settings: Mutex<Shown>,
    public: PublicFiles,
    disks: Disks,
    /// True if the spool's file system was short of space at the last check.
    is_short: AtomicBool,
    /// Time of the start, in seconds since 1970.
    started: i64,
}

/// The displayed part of the configuration.
struct Shown {
    config: Config,
    /// Certificates about to expire, expiry of all certificates, and the time of the check.
    expiring: Option<(Instant, Vec<CertificateWarning>, Vec<CertificateEnd>)>,
}

/// Interval between checks of certificates.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(600);
/// Maximum destinations in a list.
const DESTINATIONS_MAX: usize = 50;
/// Maximum configured tenants in a list.
const TENANTS_MAX: usize = 200;
/// Maximum suspensions that are named.
const SUSPENSIONS_MAX: usize = 10;

impl Overview {
    pub fn new(receiver: Receiver, keys: InjectKeys, config: &Config, challenges: Challenges) -> Self {
        let settings = Mutex::new(Shown { config: config.clone(), expiring: None });
        let injector = Injector::new(receiver.clone(), keys, config);
        Self {
            receiver,
            injector,
            settings,
            public: PublicFiles::new(config, challenges),
            disks: Disks::of(&config.storage),
            is_short: AtomicBool::new(false),
            started: now_secs(),
        }
    }

    pub fn reload(&self, config: &Config) {
        self.injector.reload(config);
        self.public.reload(config);
        let shown = Shown { config: config.clone(), expiring: None };
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// The configuration, certificates about to expire, and expiry of all.
    fn shown(&self) -> (Storage, String, Vec<CertificateWarning>, Vec<CertificateEnd>) {
        let mut shown = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let Shown { config, expiring } = &mut *shown;
        if expiring.as_ref().is_none_or(|(at, ..)| at.elapsed() >= CERTIFICATES_EVERY) {
            let ends = crate::config::expiry::ends(config).into_iter();
            let ends = ends.map(|(file, ends)| CertificateEnd { file: file.display().to_string(), ends }).collect();
            *expiring = Some((Instant::now(), crate::config::expiry::warnings(config, SystemTime::now()), ends));
        }
        let (warnings, ends) =
            expiring.as_ref().map(|(_, warnings, ends)| (warnings.clone(), ends.clone())).unwrap_or_default();
        (config.storage.clone(), config.host_name.clone(), warnings, ends)
    }
}

impl Overview {
    /// Recipients of each configured tenant: others are arbitrary words from a header field.
    fn tenants(&self, counts: &[NamedCount]) -> Vec<(String, u64)> {
        let counts: HashMap<&str, u64> = counts.iter().map(|count| (&*count.name, count.recipients)).collect();
        let shown = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let named = shown.config.tenants().into_iter().take(TENANTS_MAX);
        named.map(|name| (name.to_owned(), counts.get(name).copied().unwrap_or(0))).collect()
    }
}

impl ServerView for Overview {
    fn readiness(&self) -> Readiness {
        match () {
            () if self.receiver.cluster().is_some_and(|cluster| !cluster.takes_mail()) => {
                Readiness::NotReady("standby")
            }
            () if self.receiver.destinations().poisoned().is_some() => Readiness::NotReady("poisoned"),
            () if self.is_short.load(Ordering::Relaxed) => Readiness::NotReady("full"),
            () => Readiness::Ready,
        }
    }

    fn counters(&self) -> Counters {
        let destinations = self.receiver.destinations();
        let meters = self.receiver.meters();
        destinations.streams().iter().for_each(|(name, entries)| meters.behind(name, *entries));
        let figures = destinations.figures();
        let (signed, not_signed) = meters.of_signatures();
        Counters {
            received: destinations.intakes().into_iter().map(Intake::accepted).sum(),
            delivered: figures.delivered,
            refused: self.receiver.refused(),
            deferred: figures.failed_attempts,
            signed,
            not_signed,
            checks: meters.of_checks(),
        }
    }

    fn distributions(&self) -> Vec<Distribution> {
        let spool = self.receiver.destinations().intake().spool().stats();
        let of_spool = [
            Distribution::new("posthaste_sync_seconds", spool.sync_us).in_millionths(),
            Distribution::new("posthaste_commit_records", spool.commit_records),
        ];
        let dns = self.receiver.remote().relay().map(|relay| relay.resolver().stats().took_us);
        let dns = dns.map(|took| Distribution::new("posthaste_dns_seconds", took).in_millionths());
        self.receiver.meters().read().into_iter().chain(of_spool).chain(dns).collect()
    }

    fn status(&self) -> ServerStatus {
        let (storage, host_name, expiring, certificates) = self.shown();
        let receiver = &self.receiver;
        let (of_mailboxes, troubles) = (receiver.destinations().of_mailboxes(), receiver.destinations().troubles());
        let intakes = receiver.destinations().intakes();
        let stats: Vec<_> = intakes.iter().map(|intake| intake.spool().stats()).collect();
        let disks = self.disks.report();
        let is_short = disks.spool.is_some_and(|disk| is_short(&storage, disk));
        self.is_short.store(is_short, Ordering::Relaxed);
        let poisoned = receiver.destinations().poisoned();
        let mut attention = disks.attention;
        if let Some(why) = &poisoned {
            let help = "repair the disk, then restart the server: acknowledged mail is in the spool";
            attention.push(Attention::new(Urgency::Broken, "spool", format!("stable storage failed: {why}"), help));
        }
        if is_short {
            let what = format!("the file system of {} is nearly full: mail is refused", storage.spool.display());
            attention.push(Attention::new(Urgency::Broken, "disk of the spool", what, "free space there"));
        }
        if let Some(why) = receiver.remote().stuck() {
            let what = format!("the queue for other hosts is stuck: {why}");
            attention.push(Attention::new(Urgency::Broken, "queue", what, "the log says what helps; then restart"));
        }
        attention.extend(troubles.iter().map(|trouble| {
            let urgency = if trouble.is_urgent { Urgency::Broken } else { Urgency::Warning };
            Attention::new(urgency, &trouble.about, &*trouble.what, &*trouble.help)
        }));
        let hangs = |running: Duration| running >= CHECKPOINT_HANGS;
        if stats.iter().any(|stats| stats.checkpoint_running.is_some_and(hangs)) {
            let what = "a checkpoint of the spool hangs: nothing is freed";
            attention.push(Attention::new(Urgency::Broken, "checkpoint", what, "look at the disk of the spool"));
        }
        attention.extend(
            expiring
                .into_iter()
                .map(|CertificateWarning { what, help }| Attention::new(Urgency::Warning, &what.clone(), what, help)),
        );
        ServerStatus {
            host_name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            not_taking: poisoned
                .map(|_| "stable storage failed".to_owned())
                .or(is_short.then(|| "the disk is full".to_owned())),
            not_delivering: not_delivering(of_mailboxes.stands_still, receiver.remote().stuck()),
            attention,
            spool_fill: stats.iter().map(|it| it.space_used as f64 / it.space_max.max(1) as f64).fold(0.0, f64::max),
            disks: disks.rooms,
            streams: streams(receiver, &troubles),
            waiting_here: of_mailboxes.waiting,
            queued: receiver.remote().relays().iter().map(|relay| relay.stats().recipients).sum(),
            certificates,
            webhooks: webhooks(receiver),
            relay: of_relay(receiver),
        }
    }

    fn queue(&self, tenant: Option<&str>) -> QueueStatus {
        let relays = self.receiver.remote().relays();
        if relays.is_empty() {
            return QueueStatus::default();
        }
        let selection = Selection { tenant: tenant.map(Into::into), ..Selection::default() };
        let filter = Filter { selection, ..Filter::default() };
        let by = [(CountBy::Domain, DESTINATIONS_MAX), (CountBy::Tenant, usize::MAX)];
        let [all, by_tenant] = QueueCounts::all(&relays, &filter, by);
        let destination = |count: &NamedCount| DestinationCount {
            domain: count.name.to_string(),
            recipients: count.recipients,
            deferred: count.deferred,
            held: count.held,
            suspended: count.suspended,
            oldest: count.oldest,
        };
        QueueStatus {
            recipients: all.recipients,
            oldest: all.oldest,
            destinations: all.busiest.iter().map(destination).collect(),
            others: all.names.saturating_sub(DESTINATIONS_MAX) as u64,
            tenants: self.tenants(&by_tenant.busiest),
            attention: of_queues(&relays, tenant).into_iter().chain(delays(&relays, tenant, now_secs())).collect(),
        }
    }

    fn is_node(&self) -> bool {
        self.receiver.cluster().is_some()
    }

    fn whole_queue(&self, tenant: Option<&str>) -> QueueStatus {
        let Some((lines, end, answers)) = busiest_domains(&self.receiver, tenant, DESTINATIONS_MAX as u32) else {
            return self.queue(tenant);
        };
        let relays = self.receiver.remote().relays();
        let mut attention = of_queues(&relays, tenant);
        attention.extend(delays(&relays, tenant, now_secs()));
        if !answers.is_whole() {
            let what = format!("not all nodes are shown: {answers}");
            attention.push(Attention::new(Urgency::Warning, "nodes", what, "posthaste cluster status"));
        }
        let destination = |line: &CountLine| DestinationCount {
            domain: line.name().to_owned(),
            recipients: line.recipients,
            deferred: line.deferred,
            held: line.held,
            suspended: line.suspended,
            oldest: line.oldest,
        };
        QueueStatus {
            recipients: end.recipients,
            oldest: end.oldest,
            destinations: lines.iter().map(destination).collect(),
            others: end.done.saturating_sub(lines.len() as u64),
            tenants: Vec::new(),
            attention,
        }
    }

    fn ask(&self, request: &Request, token: &Token, answer: &dyn Fn(Value) -> bool) -> Result<Value, AskRefusal> {
        crate::control::requests::ask(&self.receiver, request, token, answer)
    }

    fn system(&self) -> Value {
        let shown = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let config = &shown.config;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "host_name": config.host_name,
            "started": self.started,
            "listeners": serde_json::to_value(&config.listeners).unwrap_or_default(),
            "config": config.to_toml(),
            "log_dropped": crate::logging::dropped_lines(),
        })
    }

    fn drain(&self, token: &Token) {
        request_drain(token.name());
    }

    fn log_lines(&self) -> Vec<String> {
        crate::logging::recent_lines()
    }

    fn follow(&self, tenant: Option<&str>) -> Option<Box<dyn FollowEvents>> {
        let dir = self.receiver.settings().events.clone()?;
        let reader = Reader::tail(dir, 0).ok()?;
        let mut following = Following { reader, line: Vec::new(), tenant: tenant.map(str::to_owned) };
        // To the end: what was before is found otherwise.
        following.move_to_end();
        Some(Box::new(following))
    }

    async fn inject(&self, call: InjectCall<'_>) -> InjectReply {
        self.injector.inject(call).await
    }

    fn public_file(&self, host: &str, path: &str) -> Option<PublicFile> {
        self.public.get(host, path)
    }

    fn is_first_password(&self, presented: &str) -> bool {
        self.receiver.first_password().is_some_and(|first| first.opens_page(presented))
    }

    fn first_password(&self) -> Option<TokenHash> {
        self.receiver.first_password().map(|first| secret_hash(&first.reveal()))
    }

    async fn wrong_token(&self, client: ClientAddress, presented: &str) -> Guess {
        match self.receiver.wrong_token(client.0, presented).await {
            LoginFailure::Wrong(_) => Guess::Wrong,
            LoginFailure::Busy => Guess::Busy,
            LoginFailure::Blocked => Guess::TooMany,
        }
    }
}

/// Follows the event log.
struct Following {
    reader: Reader,
    line: Vec<u8>,
    /// Only lines that name this tenant.
    tenant: Option<String>,
}

/// Lines of one read, matching or not.
const LINES_AT_ONCE: usize = 10_000;

impl Following {
    /// Skips existing events.
    fn move_to_end(&mut self) {
        while matches!(self.reader.next(&mut self.line), Ok(next) if !matches!(next, Next::End)) {}
    }

    fn is_shown(&self) -> bool {
        let Some(tenant) = &self.tenant else { return true };
        serde_json::from_slice::<Value>(&self.line).is_ok_and(|event| event["tenant"] == **tenant)
    }
}

impl FollowEvents for Following {
    fn read(&mut self, most: usize, bytes: usize) -> Vec<String> {
        let (mut lines, mut read) = (Vec::new(), 0);
        for _ in 0..LINES_AT_ONCE {
            // What cannot be read now may be with the next look.
            match self.reader.next(&mut self.line) {
                Ok(Next::Line) if self.is_shown() => {
                    read += self.line.len();
                    lines.push(String::from_utf8_lossy(&self.line).into_owned());
                }
                Ok(Next::Line | Next::Gap { .. } | Next::Damaged { .. }) => {}
                Ok(Next::End) | Err(_) => break,
            }
            if lines.len() == most || read >= bytes {
                break;
            }
        }
        lines
    }
}

fn webhooks(receiver: &Receiver) -> Vec<WebhookStatus> {
    let all = receiver.meters().webhooks.all().into_iter();
    all.map(|(name, state)| WebhookStatus {
        name,
        behind_secs: state.behind_since.map_or(0, |since| since.elapsed().as_secs()),
        trouble: state.trouble,
    })
    .collect()
}

fn of_relay(receiver: &Receiver) -> RelayStatus {
    let relays = receiver.remote().relays();
    let Some(one) = relays.first() else { return RelayStatus::default() };
    // All have one resolver and one store of policies.
    let (policy_fetches, dns) = (one.policy_fetches(), one.resolver().stats());
    let stats: Vec<_> = relays.iter().map(Relay::stats).collect();
    let (back_offs, tls_avoided) = receiver.meters().of_hosts();
    RelayStatus {
        connections: stats.iter().map(|stats| stats.connections as u64).sum(),
        idle: stats.iter().map(|stats| stats.idle as u64).sum(),
        unreachable: stats.iter().map(|stats| stats.unreachable as u64).sum(),
        back_offs,
        tls_avoided,
        lent_tokens: receiver.meters().of_lending(),
        tls: tls_counts(&relays),
        policy_fetches,
        dns: DnsStatus {
            questions: dns.questions,
            hits: dns.hits,
            misses: dns.misses,
            asked: dns.asked,
            waiting: dns.waiting,
        },
    }
}

fn not_delivering(mailboxes_stand_still: bool, relay_stuck: Option<&str>) -> Option<String> {
    let here = mailboxes_stand_still.then(|| "no mail mount works".to_owned());
    here.or(relay_stuck.map(|_| "the queue for other hosts is stuck".to_owned()))
}

/// Queue problems that need the operator: a reached limit, and suspensions, which are easily forgotten. For a tenant,
/// only those of its own mail.
fn of_queues(relays: &[Relay], tenant: Option<&str>) -> Vec<Attention> {
    let mut attention = Vec::new();
    let is_shown = |of: &str| tenant.is_none_or(|tenant| of == tenant);
    for room in relays.iter().flat_map(Relay::queue_limits).filter(|room| room.is_full && is_shown(&room.tenant)) {
        let whose = if room.tenant.is_empty() {
            "the queue".to_owned()
        } else {
            format!("the queue of tenant {}", room.tenant)
        };
        let what =
            format!("{whose} is full: {} of {} recipients wait, and more are refused", room.recipients, room.max);
        let full = Attention::new(Urgency::Broken, &format!("room {}", room.tenant), what, "posthaste queue summary");
        attention.push(match &*room.tenant {
            "" => full.in_queue([]),
            tenant => full.in_queue([("tenant", tenant)]),
        });
    }
    let unreachable: usize = relays.iter().map(|relay| relay.stats().unreachable).sum();
    if unreachable > 0 && tenant.is_none() {
        let what = match unreachable {
            1 => "1 destination cannot be reached now".to_owned(),
            many => format!("{many} destinations cannot be reached now"),
        };
        let help = "they are tried again by themselves: posthaste queue summary --by site";
        attention.push(Attention::new(Urgency::Note, "unreachable", what, help).in_queue([("by", "site")]));
    }
    let mut suspensions: Vec<Attention> = Vec::new();
    for relay in relays {
        let mut entries = relay.suspensions();
        entries.retain(|entry| tenant.is_none_or(|tenant| crate::control::requests::suspend::is_of(entry, tenant)));
        suspensions.extend(entries.iter().filter_map(|entry| suspension(relay, entry)));
    }
    // Each queue has those of a command.
    let mut known = HashSet::new();
    suspensions.retain(|line| known.insert(line.about.clone()));
    let count = suspensions.len();
    attention.extend(suspensions.into_iter().take(SUSPENSIONS_MAX));
    if let more @ 1.. = count.saturating_sub(SUSPENSIONS_MAX) {
        let what = format!("{more} further suspensions");
        let more = Attention::new(Urgency::Note, "suspensions", what, "posthaste queue suspensions");
        attention.push(more.in_queue([]));
    }
    attention
}

/// Destinations with much waiting mail, the largest first. `now` is in seconds since 1970. Blocks.
pub(crate) fn delays(relays: &[Relay], tenant: Option<&str>, now: i64) -> Vec<Attention> {
    // Held mail is old by somebody's decision: neither its age nor its attempts are the destination's.
    let selection = Selection { tenant: tenant.map(Into::into), is_held: Some(false), ..Selection::default() };
    let filter = Filter { selection, ..Filter::default() };
    let line = |count: &NamedCount| {
        let free = count.recipients.saturating_sub(count.suspended);
        let delay = Delay { free, deferred: count.deferred, age_secs: now - count.oldest };
        delay.needs_somebody().then(|| {
            let Standing { reply, limit, .. } = count.standing(relays);
            delay.line(&count.name, reply.as_deref().or(limit.as_deref()))
        })
    };
    let all = QueueCounts::of(relays, &filter, CountBy::Domain, DESTINATIONS_MAX);
    all.busiest.iter().filter_map(line).take(DELAYS_MAX).collect()
}

fn suspension(relay: &Relay, entry: &QueueEntry) -> Option<Attention> {
    let (scope, until, reason, is) = match entry {
        QueueEntry::Suspended { scope, until, reason } => (scope, until, reason, "suspended"),
        QueueEntry::Slowed { scope, until, reason, .. } => (scope, until, reason, "slowed down"),
        _ => return None,
    };
    let name = format!("{} {}", scope.kind(), scope.name());
    let until = Some(*until).filter(|until| *until < Secs::MAX).map(|until| relay.wall(until));
    let left = until.map(|until| rough(until.saturating_sub(now_secs())));
    let end = left.map_or("until somebody resumes it".to_owned(), |left| format!("for {left} more"));
    let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let what = format!("mail of {name} is {is} {end}{why}");
    let about = format!("suspension {name}");
    let suspended = Attention::new(Urgency::Note, &about, what, "posthaste queue suspensions");
    // The page selects no mail by its hosts.
    Some(match scope.kind() {
        kind @ ("domain" | "tenant" | "campaign") => suspended.in_queue([(kind, &*scope.name())]),
        _ => suspended.in_queue([("by", "site")]),
    })
}

fn now_secs() -> i64 {
    crate::ids::unix_micros() / 1_000_000
}

fn streams(receiver: &Receiver, troubles: &[Trouble]) -> Vec<StreamStatus> {
    let trouble = |name: &str| match name {
        QUEUE => receiver.remote().stuck().map(str::to_owned),
        name => troubles.iter().find(|trouble| trouble.stream.as_deref() == Some(name)).map(|it| it.what.clone()),
    };
    let all = receiver.destinations().streams().into_iter();
    all.map(|(name, behind)| StreamStatus { trouble: trouble(&name), name, behind }).collect()
}

/// True if the spool accepts no mail for lack of space.
fn is_short(storage: &Storage, disk: FileSystem) -> bool {
    disk.free_bytes < storage.free_bytes_min
        || disk.free_inodes.is_some_and(|free| free < storage.free_inodes_min as u64)
}
