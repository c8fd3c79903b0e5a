//! The server's state as Prometheus reads it: its text format, version 0.0.4.
//!
//! No label has an address, a message, a client or free text. Destinations are the busiest of the queue, and `other`.

use std::fmt::Write as _;

use crate::view::{Distribution, DnsStatus, Readiness, Urgency};
use crate::{CHECK_METHODS, CHECK_RESULTS, Counters, QueueStatus, RelayStatus, ServerStatus};

/// A metric: name, type, help.
pub(crate) struct Metric(pub &'static str, pub &'static str, pub &'static str);

/// All metrics, in their order.
pub(crate) static METRICS: [Metric; 40] = [
    Metric("posthaste_build_info", "gauge", "1, with the version of the program as a label."),
    Metric("posthaste_ready", "gauge", "1 while mail is taken, as /health/ready says."),
    Metric("posthaste_messages_received_total", "counter", "Messages made durable since the start."),
    Metric("posthaste_recipients_delivered_total", "counter", "Recipients that got their message since the start."),
    Metric("posthaste_refusals_total", "counter", "Senders, recipients and messages refused since the start."),
    Metric("posthaste_attempts_deferred_total", "counter", "Attempts that failed for now since the start."),
    Metric("posthaste_dkim_signed_total", "counter", "Messages signed with DKIM since the start."),
    Metric("posthaste_dkim_failed_total", "counter", "Messages that a key could not sign, since the start."),
    Metric("posthaste_checks_total", "counter", "Checks of strangers' mail since the start, by method and result."),
    Metric(ACCEPT, "histogram", "From the first octet of a message to its 250."),
    Metric("posthaste_sync_seconds", "histogram", "Syncs of the spool's log."),
    Metric("posthaste_commit_records", "histogram", "Batches that one sync makes durable."),
    Metric("posthaste_sent_age_seconds", "histogram", "From the 250 to another host's, by destination."),
    Metric("posthaste_deferred_age_seconds", "histogram", "Age of recipients at each attempt that failed for now."),
    Metric("posthaste_stream_lag_batches", "histogram", "Batches that a consumer is behind, looked at each second."),
    Metric("posthaste_attention", "gauge", "Things that need somebody, by urgency."),
    Metric("posthaste_spool_fill_ratio", "gauge", "Share of the spool's log that is in use, 0 to 1."),
    Metric("posthaste_disk_free_bytes", "gauge", "Bytes free on a file system, by its use."),
    Metric("posthaste_disk_size_bytes", "gauge", "Bytes of a file system, by its use."),
    Metric("posthaste_stream_behind_batches", "gauge", "Batches that a consumer of the spool has not passed."),
    Metric("posthaste_stream_in_trouble", "gauge", "1 while a consumer of the spool does not go on."),
    Metric("posthaste_mailboxes_waiting_messages", "gauge", "Messages that wait for a mailbox here, each as often."),
    Metric("posthaste_certificate_end_timestamp_seconds", "gauge", "When a certificate of a listener ends, by file."),
    Metric("posthaste_webhook_behind_seconds", "gauge", "For how long a webhook has not been told all."),
    Metric("posthaste_relay_connections", "gauge", "Connections to other hosts, by state."),
    Metric("posthaste_relay_unreachable_sites", "gauge", "Sets of mail hosts that cannot be reached now."),
    Metric("posthaste_relay_back_offs_total", "counter", "Times since the start that one became unreachable."),
    Metric("posthaste_relay_tls_avoided_total", "counter", "Times since the start that TLS with a host was given up."),
    Metric(
        "posthaste_limit_tokens_total",
        "counter",
        "Tokens of limits in a cluster: lent to shards, used, own share.",
    ),
    Metric("posthaste_relay_tls_sessions_total", "counter", "Sessions with other hosts, by demand on TLS and result."),
    Metric("posthaste_mta_sts_fetches_total", "counter", "Fetches of MTA-STS policies since the start, by result."),
    Metric("posthaste_dns_questions_total", "counter", "Questions to DNS since the start, by type and outcome."),
    Metric("posthaste_dns_seconds", "histogram", "From a question to DNS to its answer, or to the end of its time."),
    Metric("posthaste_dns_lookups_total", "counter", "Look-ups of mail hosts and addresses since the start, by cache."),
    Metric("posthaste_dns_pending_questions", "gauge", "Questions to DNS that are asked, or wait for a place."),
    Metric("posthaste_queue_recipients", "gauge", "Recipients that wait for other hosts."),
    Metric("posthaste_queue_oldest_timestamp_seconds", "gauge", "When the oldest of them was received; 0 for none."),
    Metric("posthaste_queue_destination_recipients", "gauge", "Recipients that wait, by destination."),
    Metric("posthaste_queue_destinations", "gauge", "Destinations that recipients wait for."),
    Metric("posthaste_queue_tenant_recipients", "gauge", "Recipients that wait, by tenant."),
];

/// The latency of a 250, which the page shows as well.
pub(crate) const ACCEPT: &str = "posthaste_accept_seconds";
/// Name for all destinations and tenants that are not listed by name.
const OTHER: &str = "other";

/// The metrics as text. Without a status or a queue their metrics are missing, not 0.
pub(crate) fn text(
    readiness: &Readiness,
    Work { counters, distributions }: &Work,
    status: Option<&ServerStatus>,
    queue: Option<&QueueStatus>,
) -> String {
    let mut out = Lines::default();
    out.labelled("posthaste_build_info", status.map(|status| (("version", &*status.version), 1.0)));
    out.one("posthaste_ready", f64::from(u8::from(*readiness == Readiness::Ready)));
    out.one("posthaste_messages_received_total", counters.received as f64);
    out.one("posthaste_recipients_delivered_total", counters.delivered as f64);
    out.one("posthaste_refusals_total", counters.refused as f64);
    out.one("posthaste_attempts_deferred_total", counters.deferred as f64);
    out.one("posthaste_dkim_signed_total", counters.signed as f64);
    out.one("posthaste_dkim_failed_total", counters.not_signed as f64);
    out.checks(counters);
    out.distributions(distributions);
    if let Some(status) = status {
        let urgencies = [(Urgency::Broken, "broken"), (Urgency::Warning, "warning"), (Urgency::Note, "note")];
        let count = |of: Urgency| status.attention.iter().filter(|attention| attention.urgency == of).count() as f64;
        out.labelled("posthaste_attention", urgencies.map(|(of, name)| (("urgency", name), count(of))));
        out.one("posthaste_spool_fill_ratio", status.spool_fill);
        let disks = status.disks.iter();
        out.labelled(
            "posthaste_disk_free_bytes",
            disks.clone().map(|disk| (("disk", &*disk.holds), disk.free_bytes as f64)),
        );
        out.labelled("posthaste_disk_size_bytes", disks.map(|disk| (("disk", &*disk.holds), disk.total_bytes as f64)));
        let streams = status.streams.iter();
        out.labelled(
            "posthaste_stream_behind_batches",
            streams.clone().map(|stream| (("stream", &*stream.name), stream.behind as f64)),
        );
        let is_in_trouble = |trouble: &Option<String>| f64::from(u8::from(trouble.is_some()));
        out.labelled(
            "posthaste_stream_in_trouble",
            streams.map(|stream| (("stream", &*stream.name), is_in_trouble(&stream.trouble))),
        );
        out.one("posthaste_mailboxes_waiting_messages", status.waiting_here as f64);
        let ends = status.certificates.iter().map(|of| (("file", &*of.file), of.ends as f64));
        out.labelled("posthaste_certificate_end_timestamp_seconds", ends);
        let behind = status.webhooks.iter().map(|of| (("webhook", &*of.name), of.behind_secs as f64));
        out.labelled("posthaste_webhook_behind_seconds", behind);
        let RelayStatus {
            connections,
            idle,
            unreachable,
            back_offs,
            tls_avoided,
            lent_tokens,
            tls,
            policy_fetches,
            dns,
        } = status.relay.clone();
        let states = [("busy", connections.saturating_sub(idle)), ("idle", idle)];
        out.labelled("posthaste_relay_connections", states.map(|(state, count)| (("state", state), count as f64)));
        out.one("posthaste_relay_unreachable_sites", unreachable as f64);
        out.one("posthaste_relay_back_offs_total", back_offs as f64);
        out.one("posthaste_relay_tls_avoided_total", tls_avoided as f64);
        out.lent_tokens(lent_tokens);
        let sessions =
            tls.iter().map(|(policy, result, count)| ([("policy", *policy), ("result", *result)], *count as f64));
        out.with_labels("posthaste_relay_tls_sessions_total", sessions);
        out.policy_fetches(policy_fetches);
        out.dns(&dns);
    }
    if let Some(queue) = queue {
        out.one("posthaste_queue_recipients", queue.recipients as f64);
        out.one("posthaste_queue_oldest_timestamp_seconds", queue.oldest.unwrap_or(0) as f64);
        let destinations = queue.destinations.iter().map(|of| (&*of.domain, of.recipients));
        out.shares("posthaste_queue_destination_recipients", "destination", queue.recipients, destinations);
        out.one("posthaste_queue_destinations", queue.destinations.len() as f64 + queue.others as f64);
        let tenants = queue.tenants.iter().map(|(name, recipients)| (&**name, *recipients));
        out.shares("posthaste_queue_tenant_recipients", "tenant", queue.recipients, tenants);
    }
    out.0
}

/// Work of a server since its start.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub counters: Counters,
    pub distributions: Vec<Distribution>,
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn policy_fetches(&mut self, counts: (u64, u64)) {
        let fetches = [("ok", counts.0), ("failed", counts.1)];
        self.labelled(
            "posthaste_mta_sts_fetches_total",
            fetches.map(|(result, count)| (("result", result), count as f64)),
        );
    }

    fn lent_tokens(&mut self, [lent, used, alone]: [u64; 3]) {
        let tokens = [("lent", lent), ("used", used), ("own_share", alone)];
        self.labelled("posthaste_limit_tokens_total", tokens.map(|(state, count)| (("state", state), count as f64)));
    }

    fn one(&mut self, name: &'static str, value: f64) {
        self.head(name);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// Parts of a whole by name, and the rest as [`OTHER`].
    fn shares<'a>(
        &mut self,
        name: &'static str,
        label: &'static str,
        whole: u64,
        parts: impl Iterator<Item = (&'a str, u64)>,
    ) {
        let mut rest = whole;
        // One of that name would be told twice.
        let named = parts.filter(|(part, _)| *part != OTHER).map(|(part, count)| {
            rest = rest.saturating_sub(count);
            ((label, part), count as f64)
        });
        let mut lines: Vec<_> = named.collect();
        lines.push(((label, OTHER), rest as f64));
        self.labelled(name, lines);
    }

    fn labelled<'a>(&mut self, name: &'static str, lines: impl IntoIterator<Item = ((&'static str, &'a str), f64)>) {
        self.with_labels(name, lines.into_iter().map(|(label, value)| ([label], value)));
    }

    fn with_labels<'a, const N: usize>(
        &mut self,
        name: &'static str,
        lines: impl IntoIterator<Item = ([(&'static str, &'a str); N], f64)>,
    ) {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return;
        }
        self.head(name);
        for (labels, value) in lines {
            let labels = labels.map(|(label, text)| format!("{label}=\"{}\"", quoted(text)));
            let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
        }
    }

    fn checks(&mut self, counters: &Counters) {
        let of_method = |(method, counts): (&'static &'static str, [u64; CHECK_RESULTS.len()])| {
            let counts = CHECK_RESULTS.iter().zip(counts);
            counts.map(move |(result, count)| ([("method", *method), ("result", *result)], count as f64))
        };
        self.with_labels("posthaste_checks_total", CHECK_METHODS.iter().zip(counters.checks.0).flat_map(of_method));
    }

    fn dns(&mut self, DnsStatus { questions, hits, misses, asked, waiting }: &DnsStatus) {
        let questions =
            questions.iter().map(|(kind, end, count)| ([("type", *kind), ("outcome", *end)], *count as f64));
        self.with_labels("posthaste_dns_questions_total", questions);
        let lookups = [("hit", *hits), ("miss", *misses)].map(|(end, count)| (("cache", end), count as f64));
        self.labelled("posthaste_dns_lookups_total", lookups);
        let pending = [("asked", *asked), ("waiting", *waiting)].map(|(state, count)| (("state", state), count as f64));
        self.labelled("posthaste_dns_pending_questions", pending);
    }

    /// Writes histograms. Those with the same name must be adjacent in `all`, as Prometheus requires.
    fn distributions(&mut self, all: &[Distribution]) {
        let mut before = "";
        for of in all {
            if of.name != before {
                self.head(of.name);
            }
            before = of.name;
            let label = |more: Option<String>| {
                let own = of.label.as_ref().map(|(label, text)| format!("{label}=\"{}\"", quoted(text)));
                let all: Vec<String> = own.into_iter().chain(more).collect();
                if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
            };
            let mut count = 0;
            for (bound, counted) in of.read.bounds.iter().zip(of.read.counts) {
                count += counted;
                let bound = format!("le=\"{}\"", *bound as f64 / of.parts);
                let _ = writeln!(self.0, "{}_bucket{} {count}", of.name, label(Some(bound)));
            }
            let count: u64 = of.read.counts.iter().sum();
            let _ = writeln!(self.0, "{}_bucket{} {count}", of.name, label(Some("le=\"+Inf\"".to_owned())));
            let _ = writeln!(self.0, "{}_sum{} {}", of.name, label(None), of.read.sum as f64 / of.parts);
            let _ = writeln!(self.0, "{}_count{} {count}", of.name, label(None));
        }
    }

    fn head(&mut self, name: &'static str) {
        let Metric(_, kind, help) =
            METRICS.iter().find(|Metric(known, ..)| *known == name).expect("a metric of the list");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }
}

/// A quoted label value.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Attention, CertificateEnd, CheckCounts, DestinationCount, DiskRoom, StreamStatus, WebhookStatus};
    use posthaste_units::histogram::{Histogram, LATENCY_US};

    fn all() -> String {
        let questions = vec![("mx", "answer", 9), ("mx", "timeout", 3)];
        let tls = vec![("mta-sts", "verified", 8), ("opportunistic", "clear", 2)];
        let dns = DnsStatus { questions, hits: 5, misses: 2, asked: 1, waiting: 7 };
        let status = ServerStatus {
            version: "0.1.0".to_owned(),
            attention: vec![Attention::new(Urgency::Broken, "a", "b", "c")],
            spool_fill: 0.25,
            disks: vec![DiskRoom { holds: "spool, mail".to_owned(), free_bytes: 5_000_000_000_000, total_bytes: 10 }],
            streams: vec![StreamStatus { name: "relay".to_owned(), behind: 3, trouble: Some("x".to_owned()) }],
            waiting_here: 4,
            certificates: vec![CertificateEnd { file: "/tls/mx.pem".to_owned(), ends: 1_800_000_000 }],
            webhooks: vec![WebhookStatus { name: "crm".to_owned(), behind_secs: 240, trouble: None }],
            relay: RelayStatus {
                connections: 5,
                idle: 2,
                unreachable: 1,
                back_offs: 7,
                tls_avoided: 3,
                lent_tokens: [6, 5, 4],
                tls,
                policy_fetches: (2, 1),
                dns,
            },
            ..ServerStatus::default()
        };
        let destination = |domain: &str, recipients| DestinationCount {
            domain: domain.to_owned(),
            recipients,
            deferred: 0,
            held: 0,
            suspended: 0,
            oldest: 0,
        };
        let queue = QueueStatus {
            recipients: 1_000_000,
            oldest: Some(1_700_000_000),
            destinations: vec![destination("a\"\\\n.example", 7), destination("other", 2)],
            others: 999,
            tenants: vec![("acme".to_owned(), 400_000), ("other".to_owned(), 5), ("shop".to_owned(), 0)],
            ..QueueStatus::default()
        };
        let mut checks = CheckCounts::default();
        checks.0[2][1] = 4;
        let counters =
            Counters { received: 12, delivered: 11, refused: 1, deferred: 2, signed: 6, not_signed: 1, checks };
        let latency = Histogram::new(&LATENCY_US);
        [100, 2000, 20_000_000].into_iter().for_each(|us| latency.count(us));
        let of = |name| Distribution::new(name, latency.read()).in_millionths();
        let distributions = vec![
            of("posthaste_accept_seconds"),
            of("posthaste_sync_seconds"),
            of("posthaste_commit_records"),
            of("posthaste_sent_age_seconds").labelled("destination", "a\"b"),
            of("posthaste_sent_age_seconds").labelled("destination", "other"),
            of("posthaste_deferred_age_seconds"),
            of("posthaste_stream_lag_batches").labelled("stream", "relay"),
            of("posthaste_dns_seconds"),
        ];
        text(&Readiness::Ready, &Work { counters, distributions }, Some(&status), Some(&queue))
    }

    #[test]
    fn each_metric_is_told_with_its_type() {
        let text = all();
        for Metric(name, kind, help) in &METRICS {
            assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
            assert!(text.contains(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}")), "{name}: {text}");
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name}");
        }
        for line in [
            "posthaste_ready 1",
            "posthaste_messages_received_total 12",
            "posthaste_checks_total{method=\"spf\",result=\"pass\"} 0",
            "posthaste_checks_total{method=\"dmarc\",result=\"fail\"} 4",
            "posthaste_accept_seconds_bucket{le=\"0.00025\"} 1",
            "posthaste_accept_seconds_bucket{le=\"0.0025\"} 2",
            "posthaste_accept_seconds_bucket{le=\"10\"} 2",
            "posthaste_accept_seconds_bucket{le=\"+Inf\"} 3",
            "posthaste_accept_seconds_sum 20.0021",
            "posthaste_accept_seconds_count 3",
            "posthaste_sent_age_seconds_bucket{destination=\"a\\\"b\",le=\"+Inf\"} 3",
            "posthaste_sent_age_seconds_count{destination=\"other\"} 3",
            "posthaste_attention{urgency=\"broken\"} 1",
            "posthaste_attention{urgency=\"note\"} 0",
            "posthaste_disk_free_bytes{disk=\"spool, mail\"} 5000000000000",
            "posthaste_stream_in_trouble{stream=\"relay\"} 1",
            "posthaste_queue_destination_recipients{destination=\"a\\\"\\\\\\n.example\"} 7",
            "posthaste_queue_destination_recipients{destination=\"other\"} 999993",
            "posthaste_queue_destinations 1001",
            "posthaste_queue_tenant_recipients{tenant=\"acme\"} 400000",
            "posthaste_queue_tenant_recipients{tenant=\"shop\"} 0",
            "posthaste_queue_tenant_recipients{tenant=\"other\"} 600000",
            "posthaste_dns_questions_total{type=\"mx\",outcome=\"timeout\"} 3",
            "posthaste_dns_lookups_total{cache=\"hit\"} 5",
            "posthaste_dns_pending_questions{state=\"waiting\"} 7",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
    }

    #[test]
    fn a_million_destinations_make_less_than_5000_lines() {
        let few = all();
        // As many of each as the server names at most: streams and destinations of histograms, destinations of the queue.
        let latency = Histogram::new(&LATENCY_US).read();
        let named = |name: &'static str, label, count| {
            let of = move |number| Distribution::new(name, latency).labelled(label, &format!("n{number}"));
            (0..count).map(of)
        };
        let destinations = named("posthaste_sent_age_seconds", "destination", 51);
        let distributions = destinations.chain(named("posthaste_stream_lag_batches", "stream", 100)).collect();
        let of_queue = (0..50).map(|number| DestinationCount {
            domain: format!("d{number}.example"),
            recipients: 5,
            deferred: 0,
            held: 0,
            suspended: 0,
            oldest: 0,
        });
        let tenants = (0..200).map(|number| (format!("t{number}"), 5)).collect();
        let destinations = of_queue.collect();
        let queue = QueueStatus { destinations, tenants, others: 999_950, ..QueueStatus::default() };
        let work = Work { counters: Counters::default(), distributions };
        let many = text(&Readiness::Ready, &work, None, Some(&queue));
        let lines = few.lines().count() + many.lines().count();
        assert!(lines < 5000 && many.contains("posthaste_queue_destinations 1000000\n"), "{lines}");
    }

    #[test]
    fn what_is_not_known_is_missing() {
        let text = text(&Readiness::NotReady("full"), &Work::default(), None, None);
        assert!(
            text.contains("\nposthaste_ready 0\n") && !text.contains("queue") && !text.contains("build_info"),
            "{text}"
        );
    }

    #[test]
    fn the_dashboard_names_metrics_that_there_are() {
        let dashboard: serde_json::Value = serde_json::from_str(include_str!("../../../dist/grafana.json")).unwrap();
        let text = dashboard["panels"].to_string();
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let mut named = BTreeSet::new();
        for (at, _) in text.match_indices("posthaste_") {
            let name = text[at..].split(|letter| !is_name(letter)).next().unwrap();
            let parts = ["_bucket", "_sum", "_count"].into_iter().filter_map(|part| name.strip_suffix(part));
            let metric =
                METRICS.iter().find(|Metric(known, ..)| *known == name || parts.clone().any(|of| of == *known));
            named.insert(metric.unwrap_or_else(|| panic!("there is no metric {name}")).0);
        }
        // The program's version and the number of destinations are left out.
        assert_eq!(named.len(), METRICS.len() - 2, "{named:?}");
    }

    #[test]
    fn the_documented_table_has_each_metric() {
        let page = include_str!("../../../docs/metrics.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `posthaste_"));
        let rows: Vec<String> = rows.map(|row| format!("| `posthaste_{row}")).collect();
        let row = |Metric(name, kind, help): &Metric| format!("| `{name}` | {kind} | {help} |");
        let expected: Vec<String> = METRICS.iter().map(row).collect();
        assert_eq!(rows, expected);
    }
}
