//! Figures published by others, as data: workload, source, place, setting, figures.
//!
//! Times are microseconds; rates are messages a second. The figures come from other machines and stand beside ours for
//! orientation; only sides that ran in the same minutes give a meaningful ratio.

use std::collections::BTreeMap;

/// One published row.
#[derive(Debug, Clone)]
pub struct Published {
    /// Name of its workload.
    pub workload: &'static str,
    /// Author and version.
    pub source: &'static str,
    /// Address of the publication.
    pub url: &'static str,
    /// Hardware and configuration, as far as published.
    pub setting: &'static str,
    /// Durability at the moment it reports success.
    pub durability: &'static str,
    /// Figures by the key of the workload's figure.
    pub figures: &'static [(&'static str, f64)],
}

impl Published {
    /// Its figures in the form of a round's.
    pub fn sample(&self) -> BTreeMap<String, f64> {
        self.figures.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    }
}

/// The rows about one workload.
pub fn about(workload: &str) -> Vec<Published> {
    ROWS.iter().filter(|row| row.workload == workload).cloned().collect()
}

const MAILRS: &str = "https://docs.rs/crate/mailrs-delivery-executor/1.2.0";
const MAILRS_MAILDIR: &str = "https://docs.rs/crate/mailrs-maildir/1.2.0";
const KUMOMTA: &str = "https://kumomta.com/blog/building-the-fastest-mta-on-the-planet";
const PRIXFIXE: &str = "https://github.com/chrisjeane/PrixFixe/blob/main/stress-test/results/PERFORMANCE-REPORT.md";
const CONTAINERS: &str = "stress suite, five servers of 2 cores each in containers, in turn";
const MU: &str = "https://github.com/djcb/mu/pull/2821";
const NOT_SAID: &str = "not said";
const DIRECTORIES: &str = "directories synced, files not";

const fn row(
    url: &'static str,
    workload: &'static str,
    source: &'static str,
    setting: &'static str,
    durability: &'static str,
    figures: &'static [(&'static str, f64)],
) -> Published {
    Published { workload, source, url, setting, durability, figures }
}

/// All published rows.
pub const ROWS: &[Published] = &[
    row(
        MU,
        "rescan",
        "mu with io_uring, pull request of 2025",
        "490,000 real messages, which are larger than these; the machine is not told",
        NOT_SAID,
        &[("time", 15.4e6)],
    ),
    row(MU, "rescan", "mu without io_uring, pull request of 2025", "the same", NOT_SAID, &[("time", 17.5e6)]),
    row(
        PRIXFIXE,
        "prixfixe-10k",
        "PrixFixe 0.1",
        CONTAINERS,
        NOT_SAID,
        &[
            ("rate", 685.0),
            ("p50_us", 7_000.0),
            ("p99_us", 15_600.0),
            ("p999_us", 1_041_000.0),
            ("acked_percent", 100.0),
        ],
    ),
    row(
        PRIXFIXE,
        "prixfixe-1k",
        "PrixFixe 0.1",
        CONTAINERS,
        NOT_SAID,
        &[
            ("rate", 643.0),
            ("p50_us", 8_300.0),
            ("p99_us", 15_900.0),
            ("p999_us", 1_032_000.0),
            ("acked_percent", 99.78),
        ],
    ),
    row(
        PRIXFIXE,
        "prixfixe-100k",
        "PrixFixe 0.1",
        CONTAINERS,
        NOT_SAID,
        &[("rate", 77.0), ("p50_us", 33_000.0), ("p99_us", 1_089_000.0), ("acked_percent", 97.8)],
    ),
    row(
        PRIXFIXE,
        "prixfixe-sustained",
        "PrixFixe 0.1",
        CONTAINERS,
        NOT_SAID,
        &[("rate", 36.9), ("p50_us", 4_900.0), ("p99_us", 6_900.0), ("p999_us", 9_100.0), ("acked_percent", 100.0)],
    ),
    row(
        MAILRS,
        "mailrs",
        "mailrs delivery executor 1.1",
        "mailrs-server, bench smtp_load, 3 rounds",
        DIRECTORIES,
        &[("rate", 1079.0), ("p50_us", 29_000.0), ("p99_us", 36_000.0), ("p999_us", 45_000.0)],
    ),
    row(
        MAILRS,
        "mailrs",
        "mailrs before the executor",
        "the same, each message for itself",
        NOT_SAID,
        &[("rate", 291.0), ("p50_us", 105_000.0), ("p99_us", 163_000.0), ("p999_us", 199_000.0)],
    ),
    // 60 and 131 million an hour.
    row(KUMOMTA, "kumomta", "KumoMTA 2023, relay", "96 cores, relayed to a null sink", NOT_SAID, &[("rate", 16_667.0)]),
    row(KUMOMTA, "kumomta", "KumoMTA 2023, sink", "96 cores, discarded at once", "discards", &[("rate", 36_389.0)]),
    // 7 million an hour and server.
    row(KUMOMTA, "kumomta", "KumoMTA 2023, in use", "a server in the field", NOT_SAID, &[("rate", 1_944.0)]),
    row(
        MAILRS_MAILDIR,
        "batch",
        "mailrs-maildir 1.2",
        "deliver_batch of 64 against single deliveries",
        DIRECTORIES,
        &[("gain", 15.3)],
    ),
];
